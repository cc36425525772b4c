"""What other projects expect, with their names and signatures; and :class:`BalancedBatchSampler`, for any data loader.

Each module serves one project, and imports it only when something of it is needed.
"""

from balancer.compat.sampler import BalancedBatchSampler

__all__ = ["BalancedBatchSampler"]
