"""What other projects expect, with their names and signatures.

For any data loader there is :class:`BalancedBatchSampler`, for streams :class:`BalancedStream`, for plan files
:class:`PlannedBatchSampler`, for any batcher :func:`micro_batch_grid`.

Each module serves one project, and imports it only when something of it is needed.
"""

from typing import TYPE_CHECKING, Any

from balancer.compat.sampler import BalancedBatchSampler

if TYPE_CHECKING:
    from balancer.compat.grid import micro_batch_grid
    from balancer.compat.planned import PlannedBatchSampler
    from balancer.compat.stream import BalancedStream

__all__ = ["BalancedBatchSampler", "BalancedStream", "PlannedBatchSampler", "micro_batch_grid"]


def __getattr__(name: str) -> Any:
    """Import what plans, reads files or brings in torch only for those who need it."""
    if name == "PlannedBatchSampler":
        from balancer.compat.planned import PlannedBatchSampler

        return PlannedBatchSampler
    if name == "micro_batch_grid":
        from balancer.compat.grid import micro_batch_grid

        return micro_batch_grid
    if name == "BalancedStream":
        from balancer.compat.stream import BalancedStream

        return BalancedStream
    raise AttributeError(f"module 'balancer.compat' has no attribute {name!r}")
