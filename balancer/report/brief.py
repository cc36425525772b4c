"""A run as a notebook shows it."""

from balancer.plan.shown import Ratios, as_html
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
