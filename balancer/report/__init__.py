"""What a plan is worth, as numbers and text."""

from balancer.report.summary import PhaseSummary, RunSummary

__all__ = ["PhaseSummary", "RunSummary"]
