"""A run as a notebook shows it, and the picture of one step."""

from balancer.plan.dispatch_plan import DispatchPlan
from balancer.plan.shown import Ratios, as_html
from balancer.plan.step_plan import StepPlan, as_step_plan
from balancer.report.remarks import warnings_of
from balancer.report.summary import RunSummary
from balancer.report.text import counted


def brief(summary: RunSummary, title: str) -> str:
    """Return the imbalance ratio of every phase, before, after and at best, as HTML."""
    phases = {
        name: Ratios(phase.ratio_before, phase.ratio_after, None if phase.follows else phase.ratio_bound)
        for name, phase in summary.phases.items()
    }
    what = f"{counted(summary.samples, 'sample')} in {counted(summary.steps, 'step')}"
    return as_html(title, what, phases, warnings_of(summary))


def plot(plan: DispatchPlan | StepPlan, path: str) -> None:
    """Draw the load of ranks before and after, one panel per phase, to a PNG or SVG file; needs the extra ``plot``.

    Raises
    ------
    InputError
        If the path cannot be written.
    """
    from balancer.report.page_data import PageData
    from balancer.report.plan_page import plot_loads

    data = PageData()
    data.add(as_step_plan(plan))
    plot_loads(data, path)
