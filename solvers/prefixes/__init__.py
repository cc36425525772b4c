"""Items that share a prefix: its cost counts once in every group that holds any of them."""

from solvers.prefixes.solver import partition_with_prefixes, prefix_bound
from solvers.prefixes.verify import check_with_prefixes

__all__ = ["check_with_prefixes", "partition_with_prefixes", "prefix_bound"]
