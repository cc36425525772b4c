"""What other projects expect, with their names and signatures.

For any data loader there is :class:`BalancedBatchSampler`, for plan files :class:`PlannedBatchSampler`, for any batcher
:func:`micro_batch_grid`.

Each module serves one project, and imports it only when something of it is needed.
"""

from typing import TYPE_CHECKING, Any

from balancer.compat.sampler import BalancedBatchSampler

if TYPE_CHECKING:
    from balancer.compat.grid import micro_batch_grid
    from balancer.compat.planned import PlannedBatchSampler

__all__ = ["BalancedBatchSampler", "PlannedBatchSampler", "micro_batch_grid"]


def __getattr__(name: str) -> Any:
    """Import what plans or reads files only for those who do."""
    if name == "PlannedBatchSampler":
        from balancer.compat.planned import PlannedBatchSampler

        return PlannedBatchSampler
    if name == "micro_batch_grid":
        from balancer.compat.grid import micro_batch_grid

        return micro_batch_grid
    raise AttributeError(f"module 'balancer.compat' has no attribute {name!r}")
