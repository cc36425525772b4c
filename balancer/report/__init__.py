"""What a plan is worth, as numbers, text and pictures."""

from balancer.report.summary import PhaseSummary, RunSummary

__all__ = ["PhaseSummary", "RunSummary"]
