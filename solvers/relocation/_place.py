"""Finished groups laid on ranks so that little moves: the local stand-in for an exact rearrangement."""

import numpy as np
from numpy.typing import NDArray

from solvers._jit import kernel
from solvers.groups import group_loads
from solvers.relocation._problem import RelocationProblem

__all__ = ["place_groups"]


@kernel
def _greedy(first, second, pairs, capacity, choice):
    """Assign each of `pairs`, best first, whose first is free and whose second has capacity left."""
    for p in pairs:
        a, b = first[p], second[p]
        if choice[a] < 0 and capacity[b] > 0:
            choice[a] = b
            capacity[b] -= 1


def _largest_first(
    first: NDArray[np.int64], second: NDArray[np.int64], width: int, volumes: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    keys, inverse = np.unique(first * width + second, return_inverse=True)
    volume = np.zeros(len(keys), dtype=np.int64)
    np.add.at(volume, inverse, volumes)
    return keys // width, keys % width, np.argsort(-volume, kind="stable")


def place_groups(problem: RelocationProblem, group_of_item: NDArray[np.int32]) -> NDArray[np.int32]:
    """Rank of each item when whole groups go to ranks, one each: to nodes first, largest volume first, then inside."""
    m, nodes = problem.num_ranks, problem.num_nodes
    affinity, node_of_rank = problem.affinity, problem.node_of_rank
    groups = group_of_item.astype(np.int64)
    home_node = node_of_rank[affinity.home].astype(np.int64)
    node_of_group = np.full(m, -1, dtype=np.int64)
    capacity = np.bincount(node_of_rank, minlength=nodes).astype(np.int64)
    _greedy(*_largest_first(groups, home_node, nodes, affinity.leave_node), capacity, node_of_group)
    left = np.repeat(np.arange(nodes), capacity)
    node_of_group[node_of_group < 0] = left
    rank_of_group = np.full(m, -1, dtype=np.int64)
    near = node_of_group[groups] == home_node
    free = np.ones(m, dtype=np.int64)
    triples = _largest_first(groups[near], affinity.home[near].astype(np.int64), m, affinity.leave_rank[near])
    _greedy(*triples, free, rank_of_group)
    waiting = np.flatnonzero(rank_of_group < 0)
    waiting = waiting[np.argsort(node_of_group[waiting], kind="stable")]
    open_ranks = np.flatnonzero(free)
    rank_of_group[waiting] = open_ranks[np.argsort(node_of_rank[open_ranks], kind="stable")]
    placed = rank_of_group[groups].astype(np.int32)
    if problem.sizes is not None and (group_loads(problem.sizes, placed, m) > problem.room).any():
        return group_of_item  # caps differ from rank to rank, and the groups were made to fit as they are
    return placed
