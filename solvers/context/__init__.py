"""Documents of a pack to the ranks of a context-parallel group: even in work, little to send, and proven."""

from solvers.context._measure import MeasuredLayout
from solvers.context.measured import measure_layout
from solvers.context.seen import keys_seen
from solvers.context.solver import context_shards
from solvers.context.types import ContextShardsResult
from solvers.context.verify import check_context_shards

__all__ = [
    "ContextShardsResult", "MeasuredLayout", "check_context_shards", "context_shards", "keys_seen", "measure_layout",
]  # fmt: skip
