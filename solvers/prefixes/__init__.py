"""Items that share a prefix: its cost counts once in every group that holds any of them."""

from solvers.prefixes.solver import partition_with_prefixes, prefix_bound

__all__ = ["partition_with_prefixes", "prefix_bound"]
