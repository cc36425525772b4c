"""What other projects expect, with their names and signatures.

For any data loader there is :class:`BalancedBatchSampler`, for any batcher :func:`micro_batch_grid`.

Each module serves one project, and imports it only when something of it is needed.
"""

from balancer.compat.grid import micro_batch_grid
from balancer.compat.sampler import BalancedBatchSampler

__all__ = ["BalancedBatchSampler", "micro_batch_grid"]
