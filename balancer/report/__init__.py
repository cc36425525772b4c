"""What a plan is worth, as numbers and text."""

from balancer.report.summary import PhaseSummary, RunSummary, StreamSummary

__all__ = ["PhaseSummary", "RunSummary", "StreamSummary"]
