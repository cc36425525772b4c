"""Finished groups laid on ranks so that little moves: across nodes, or inside them alone."""

import numpy as np
from numpy.typing import NDArray

from solvers._jit import kernel
from solvers.groups import group_loads, read_only
from solvers.rearrangement import group_volumes, rearrange
from solvers.relocation._problem import RelocationProblem

_LEAST_SECONDS = 0.1  # worth of work: for thousands of ranks that is enough for the optimum


def place_groups(problem: RelocationProblem, group_of_item: NDArray[np.int32], time_budget: float) -> NDArray[np.int32]:
    """Rank of each item when whole groups go to ranks, one each: least across nodes, and then least inside them."""
    affinity, m = problem.affinity, problem.num_ranks
    if affinity.rows is None:
        volumes = group_volumes(group_of_item, affinity.home, affinity.leave_node, m)
    else:
        offsets, ranks, parts = affinity.rows
        volumes = group_volumes(np.repeat(group_of_item, np.diff(offsets)), ranks, parts, m)
    found = rearrange(volumes, problem.nodes.of_rank, time_budget=max(time_budget, _LEAST_SECONDS))
    placed = found.rank_of_group[group_of_item]
    if problem.sizes is not None and (group_loads(problem.sizes, placed, m) > problem.room).any():
        return group_of_item  # caps differ from rank to rank, and the groups were made to fit as they are
    return placed


@kernel
def _most_in_common(volumes, order, width, node_of_rank, node_start, ranks_by_node, rank_of_group):
    """Each group and rank of a node that have most in common first; what is left over by number."""
    taken = np.zeros(len(rank_of_group), np.bool_)
    for at in order:
        if volumes[at] == 0:
            break
        group = at // width
        rank = ranks_by_node[node_start[node_of_rank[group]] + at % width]
        if rank_of_group[group] < 0 and not taken[rank]:
            rank_of_group[group], taken[rank] = rank, True
    for node in range(len(node_start) - 1):
        free = node_start[node]
        for at in range(node_start[node], node_start[node + 1]):
            if rank_of_group[ranks_by_node[at]] < 0:
                while taken[ranks_by_node[free]]:
                    free += 1
                rank_of_group[ranks_by_node[at]], taken[ranks_by_node[free]] = ranks_by_node[free], True


def change_ranks(problem: RelocationProblem, where: NDArray[np.int32]) -> NDArray[np.int32]:
    """Let the ranks of each node change what they hold among themselves, so that more is at home.

    Not where their caps differ. Greedy: O(m times the ranks of a node, sorted).
    """
    affinity, m = problem.affinity, problem.num_ranks
    if problem.sizes is not None and (problem.room != problem.room[0]).any():
        return where
    width = int(np.diff(problem.nodes.start).max())
    place = np.empty(m, dtype=np.int64)  # of a rank in its node
    place[problem.nodes.ranks] = np.arange(m) - np.repeat(problem.nodes.start[:-1], np.diff(problem.nodes.start))
    stays = np.flatnonzero(problem.nodes.of_rank[where] == problem.nodes.of_rank[affinity.home])
    volumes = np.zeros(m * width, dtype=np.int64)
    np.add.at(volumes, where[stays].astype(np.int64) * width + place[affinity.home[stays]], affinity.leave_rank[stays])
    rank_of_group = np.full(m, -1, dtype=np.int32)
    _most_in_common(
        read_only(volumes), np.argsort(-volumes, kind="stable"), width, problem.nodes.of_rank, problem.nodes.start,
        problem.nodes.ranks, rank_of_group,
    )  # fmt: skip
    return rank_of_group[where]
