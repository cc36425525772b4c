"""Ranks and the nodes they share: what is near and what is across the network."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from solvers.arguments import as_count
from solvers.errors import ArgumentError, ArgumentTypeError, UsageError

MAX_RANKS = 2**22  # a hundred times the largest clusters; a typing error should not allocate gigabytes


@dataclass(frozen=True, slots=True)
class Topology:
    """Nodes of ranks; ranks are numbered node by node.

    Attributes
    ----------
    node_sizes : tuple of int
        Ranks in each node; nodes may differ in size.
    node_of_rank : int32[num_ranks], read-only
        The node of each rank.

    Examples
    --------
    >>> Topology.uniform(num_ranks=16, ranks_per_node=8).num_nodes
    2
    >>> Topology(node_sizes=[8, 8, 4]).num_ranks
    20
    """

    node_sizes: Sequence[int]
    node_of_rank: NDArray[np.int32] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        sizes = tuple(as_count(f"node_sizes[{i}]", size) for i, size in enumerate(self.node_sizes))
        if not sizes:
            raise ValueError("node_sizes must name at least one node, got none")
        if sum(sizes) > MAX_RANKS:
            raise ArgumentError("num_ranks", f"be <= {MAX_RANKS}", sum(sizes))
        node_of_rank = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        node_of_rank.flags.writeable = False
        object.__setattr__(self, "node_sizes", sizes)
        object.__setattr__(self, "node_of_rank", node_of_rank)

    @classmethod
    def uniform(cls, num_ranks: int, ranks_per_node: int | None = None) -> "Topology":
        """Nodes of `ranks_per_node` ranks each; without it, all ranks in one node."""
        num_ranks = as_count("num_ranks", num_ranks)
        if num_ranks > MAX_RANKS:
            raise ArgumentError("num_ranks", f"be <= {MAX_RANKS}", num_ranks)
        if ranks_per_node is None:
            return cls((num_ranks,))
        ranks_per_node = as_count("ranks_per_node", ranks_per_node)
        if num_ranks % ranks_per_node:
            raise UsageError(
                "{num_ranks} must be a multiple of {ranks_per_node}, got {count} ranks with {each} a node",
                "spell uneven nodes out with {Topology(node_sizes=[...])}", count=num_ranks, each=ranks_per_node,
            )  # fmt: skip
        return cls((ranks_per_node,) * (num_ranks // ranks_per_node))

    @property
    def num_ranks(self) -> int:
        """Ranks in all nodes together."""
        return len(self.node_of_rank)

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.node_sizes)


def check_topology(topology: object) -> None:
    """Refuse a number, which some took for ranks and some for ranks a node."""
    if not isinstance(topology, Topology):
        raise ArgumentTypeError(
            "topology",
            "be a Topology, of nodes of unequal size: give {num_ranks} and {ranks_per_node} for others",
            repr(topology),
        )
