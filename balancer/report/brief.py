"""A run, a step or a plan as a notebook shows it: a small table of HTML; nothing is drawn, no library is loaded."""

import os
import tempfile
from collections.abc import Iterable
from typing import Any

from balancer.plan.dispatch_plan import DispatchPlan
from balancer.plan.step_plan import StepPlan, as_step_plan
from balancer.report.remarks import warnings_of
from balancer.report.summary import RunSummary
from balancer.report.text import counted, escaped

__all__ = ["brief", "brief_of_step", "plot_step", "rows_of_step"]


def brief(summary: RunSummary, title: str) -> str:
    """Return the imbalance ratio of every phase, before, after and at best."""
    rows = "".join(
        f"<tr><th>{escaped(name)}</th><td>{phase.ratio_before:.3f}</td><td>{phase.ratio_after:.3f}</td>"
        f"<td>{'' if phase.follows else f'{phase.ratio_bound:.3f}'}</td></tr>"
        for name, phase in summary.phases.items()
    )
    what = f"{counted(summary.samples, 'sample')} in {counted(summary.steps, 'step')}"
    notes = "".join(f"<p>{escaped(line)}</p>" for line in warnings_of(summary))
    head = "<tr><th>imbalance ratio</th><th>before</th><th>after</th><th>best possible</th></tr>"
    return f"<div><p><b>{escaped(title)}</b>: {what}</p><table>{head}{rows}</table>{notes}</div>"


def _summed(plans: Iterable[StepPlan]) -> RunSummary:
    summary = RunSummary()
    for plan in plans:
        summary.add_step(plan)
    return summary


def brief_of_step(plan: DispatchPlan | StepPlan) -> str:
    """Return the same of one step."""
    step = plan if isinstance(plan, StepPlan) else as_step_plan(plan)
    return brief(_summed([step]), f"{counted(step.num_ranks, 'rank')}")


def rows_of_step(plan: DispatchPlan | StepPlan) -> Any:
    """Return the rows of a step as an Arrow table, as a plan file that was saved by itself has them."""
    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "plan.parquet")
        plan.save(path)
        return pq.read_table(path)


def plot_step(plan: DispatchPlan | StepPlan, path: str) -> None:
    """Draw the load of ranks before and after to a PNG or SVG file; needs the extra ``plot``."""
    from balancer.report.figures import plot_loads
    from balancer.report.page_data import PageData

    data = PageData()
    data.add(plan if isinstance(plan, StepPlan) else as_step_plan(plan))
    plot_loads(data, path)
