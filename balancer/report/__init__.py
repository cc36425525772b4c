"""What a plan gains, as numbers, text, charts and pages."""

from balancer.report.summary import PhaseSummary, RunSummary, StreamSummary

__all__ = ["PhaseSummary", "RunSummary", "StreamSummary"]
