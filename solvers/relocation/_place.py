"""Finished groups laid on ranks so that least crosses nodes."""

import numpy as np
from numpy.typing import NDArray

from solvers.groups import group_loads
from solvers.rearrangement import group_volumes, rearrange
from solvers.relocation._problem import RelocationProblem

__all__ = ["place_groups"]

_LEAST_SECONDS = 0.1  # worth of work: for thousands of ranks that is enough for the optimum


def place_groups(problem: RelocationProblem, group_of_item: NDArray[np.int32], time_budget: float) -> NDArray[np.int32]:
    """Rank of each item when whole groups go to ranks, one each: least across nodes, and then least inside them."""
    affinity, m = problem.affinity, problem.num_ranks
    if affinity.rows is None:
        volumes = group_volumes(group_of_item, affinity.home, affinity.leave_node, m)
    else:
        offsets, ranks, parts = affinity.rows
        volumes = group_volumes(np.repeat(group_of_item, np.diff(offsets)), ranks, parts, m)
    found = rearrange(volumes, problem.node_of_rank, time_budget=max(time_budget, _LEAST_SECONDS))
    placed = found.rank_of_group[group_of_item]
    if problem.sizes is not None and (group_loads(problem.sizes, placed, m) > problem.room).any():
        return group_of_item  # caps differ from rank to rank, and the groups were made to fit as they are
    return placed
