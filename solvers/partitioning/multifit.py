"""MULTIFIT: bisect the makespan, packing the items under it first-fit decreasing (Coffman, Garey & Johnson 1978)."""

import numpy as np
from numpy.typing import ArrayLike

from solvers._jit import kernel
from solvers.partitioning._problem import Assignment, PartitionProblem, solve
from solvers.partitioning.lpt import assign_lpt
from solvers.types import PartitionResult

# Of the way from the bound to LPT's makespan: a part in 16 million is left. Few steps would do, but
# a packing takes little beside the sort.
_HALVINGS = 24


@kernel
def _first_fit(costs, num_groups, capacity, quota, longer, group_of_position, room):
    """Pack `costs` under `capacity` in order, each into the first group with room; returns whether all fit.

    A group holds at most `quota` items, and `longer` groups one more. `room` is a tournament tree: leaf g, at
    ``len(room) // 2 + g``, is the room in group g, and every other vertex the larger of its two children.
    """
    leaves = len(room) // 2
    room[:] = -1
    room[leaves : leaves + num_groups] = capacity
    for vertex in range(leaves - 1, 0, -1):
        room[vertex] = max(room[2 * vertex], room[2 * vertex + 1])
    counts = np.zeros(num_groups, dtype=np.int64)
    for i in range(len(costs)):
        if room[1] < costs[i]:
            return False
        vertex = 1
        while vertex < leaves:
            vertex = 2 * vertex if room[2 * vertex] >= costs[i] else 2 * vertex + 1
        g = vertex - leaves
        group_of_position[i] = g
        counts[g] += 1
        room[vertex] -= costs[i]
        if counts[g] > quota or (counts[g] == quota and longer == 0):
            room[vertex] = -1
        if counts[g] == quota + 1:
            longer -= 1
            if longer == 0:  # from now on, groups that have their quota are full
                for other in range(num_groups):
                    if counts[other] >= quota:
                        room[leaves + other] = -1
                for parent in range(leaves - 1, 0, -1):
                    room[parent] = max(room[2 * parent], room[2 * parent + 1])
        while vertex > 1:
            vertex //= 2
            room[vertex] = max(room[2 * vertex], room[2 * vertex + 1])
    return True


def assign_multifit(problem: PartitionProblem) -> Assignment:
    """MULTIFIT on a prepared problem; LPT's assignment where no packing beats it."""
    best = assign_lpt(problem)
    n, num_groups = len(best), problem.num_groups
    low, high = problem.bound.value, problem.makespan_of(best)  # `high` is reached; can anything below it be?
    quota, longer = divmod(n, num_groups) if problem.equal_counts else (n, 0)
    room = np.empty(2 << (num_groups - 1).bit_length(), dtype=np.int64)
    for _ in range(_HALVINGS):
        if low >= high:
            break
        capacity = low + (high - low) // 2
        trial = np.empty(n, dtype=np.int32)
        if _first_fit(problem.sorted_costs, num_groups, capacity, quota, longer, trial, room):
            # Down to what was reached, which is mostly less than what was allowed.
            best, high = trial, problem.makespan_of(trial)
        else:
            low = capacity + 1
    return best


def multifit(
    costs: ArrayLike, num_groups: int, *, equal_counts: bool = False, time_budget: float = 0.01
) -> PartitionResult:
    """Partition by packing first-fit decreasing under a makespan that is bisected.

    Parameters
    ----------
    costs, num_groups
        As for :func:`solvers.partition`, and so are the errors.
    equal_counts : bool
        Exactly n/m items a group, within one where m does not divide n: full groups take no more.
    time_budget : float
        Not read: 24 packings at most, whatever the budget.

    Returns
    -------
    PartitionResult
        Never worse than :func:`lpt`, where it starts. Without `equal_counts`, within 13/11 of the optimum.

    Notes
    -----
    O(n log m) a packing, by a tournament tree of the room left; O(n + m) memory.

    References
    ----------
    Coffman, Garey & Johnson, "An application of bin-packing to multiprocessor scheduling", SIAM Journal on Computing
    7(1), 1978; the bound 13/11: Yue, "On the exact upper bound for the MULTIFIT processor scheduling algorithm",
    Annals of Operations Research 24, 1990.

    Examples
    --------
    >>> multifit([9, 7, 6, 5, 5, 4, 4], 3).loads.tolist()
    [14, 13, 13]
    """
    return solve(costs, num_groups, equal_counts, "multifit", assign_multifit)
