"""First fit: each item to the lowest group in which it fits (Johnson 1973), found in a tournament of the rooms left."""

import numpy as np
from numpy.typing import ArrayLike

from solvers._jit import helper, kernel
from solvers.groups import read_only
from solvers.packing._problem import Assignment, PackingProblem, solve
from solvers.packing.types import PackingResult


@helper
def fill_first_fit(sizes, cap, max_items, room, group_of_position):
    """``room[v]`` is the largest room in the tree below v, whose leaves are the groups; those not yet open have `cap`.

    The tree has a leaf more than there are open groups, so its root always has room enough.
    """
    leaves = len(room) // 2
    room[:] = cap
    held = np.zeros(leaves, dtype=np.int32)
    for i in range(len(sizes)):
        size = sizes[i]
        # Left wherever the left side has room: the lowest group in which the item fits. -1 is less than any size,
        # also than one of no tokens: a group that is full by count takes nothing more.
        vertex = 1
        while vertex < leaves:
            vertex *= 2
            vertex += np.int64(room[vertex] < size)
        group = vertex - leaves
        group_of_position[i] = group
        held[group] += 1
        room[vertex] = room[vertex] - size if held[group] < max_items else -1
        while vertex > 1:
            vertex //= 2
            largest = max(room[2 * vertex], room[2 * vertex + 1])
            if room[vertex] == largest:
                break
            room[vertex] = largest


fill_first_fit_kernel = kernel(fill_first_fit)


def assign_first_fit_decreasing(problem: PackingProblem) -> Assignment:
    """First fit in descending order of size, on a prepared problem; the group of each item."""
    assignment = np.empty(len(problem.sorted_sizes), dtype=np.int32)
    leaves = 1 << max(problem.most_groups - 1, 0).bit_length()
    room = np.empty(2 * leaves, dtype=np.int64)
    fill_first_fit_kernel(read_only(problem.sorted_sizes), problem.cap, problem.max_items, room, assignment)
    return problem.by_item(assignment)


def first_fit_decreasing(
    sizes: ArrayLike, cap: int, *, max_items: int | None = None, time_budget: float = 0.01
) -> PackingResult:
    """Pack by first fit, the largest item first.

    Without `max_items` it has at most 11/9 OPT + 6/9 groups. O(n log m) time for m groups after the sort and O(n +
    m) memory.

    References
    ----------
    Johnson, "Near-optimal bin packing algorithms", PhD thesis, MIT, 1973. Dósa, "The tight bound of first fit
    decreasing bin-packing algorithm is FFD(I) <= 11/9 OPT(I) + 6/9", ESCAPE 2007.

    Examples
    --------
    >>> first_fit_decreasing([4, 5, 6, 5], 10).group_of_item.tolist()
    [0, 1, 0, 1]
    """
    return solve(sizes, cap, max_items, "first_fit_decreasing", assign_first_fit_decreasing)
