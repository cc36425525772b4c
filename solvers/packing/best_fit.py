"""Best fit: each item to the fullest group in which it fits (Johnson 1973), found in a search tree of the rooms left.

The open groups are the nodes of a treap ordered by (room, group). Its priorities are a fixed mixing of the group's
number, so the tree is as balanced as a random one and yet the same everywhere. Insertion unzips a path and deletion
zips two.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._jit import helper, kernel
from solvers.groups import read_only
from solvers.packing._problem import Assignment, PackingProblem, solve
from solvers.packing.types import PackingResult


@helper
def _least_fitting(room, child, size):
    """The group with the least room >= size, the lowest of equals; -1 if there is none."""
    best = np.int64(-1)
    node = np.int64(child[len(child) - 1])
    while node >= 0:
        if room[node] >= size:
            best = node
            node = np.int64(child[2 * node])
        else:
            node = np.int64(child[2 * node + 1])
    return best


@helper
def _insert(room, child, priority, group):
    """``child[2 g]`` and ``child[2 g + 1]`` hang below g, and the last entry of `child` is the root."""
    # Down to the place where the group's priority puts it: all above have a higher one, as in a heap.
    slot = len(child) - 1
    node = np.int64(child[slot])
    while node >= 0 and priority[node] > priority[group]:
        slot = 2 * node + np.int64(room[node] < room[group] or (room[node] == room[group] and node < group))
        node = np.int64(child[slot])
    child[slot] = group
    # The rest of the path is unzipped: what is smaller hangs to the left of the group, what is larger to its right.
    low, high = 2 * group, 2 * group + 1
    while node >= 0:
        if room[node] < room[group] or (room[node] == room[group] and node < group):
            child[low] = node
            low = 2 * node + 1
            node = np.int64(child[low])
        else:
            child[high] = node
            high = 2 * node
            node = np.int64(child[high])
    child[low] = -1
    child[high] = -1


@helper
def _delete(room, child, priority, group):
    slot = len(child) - 1
    node = np.int64(child[slot])
    while node != group:
        slot = 2 * node + np.int64(room[node] < room[group] or (room[node] == room[group] and node < group))
        node = np.int64(child[slot])
    # The two subtrees are zipped into one, the higher priority above.
    low, high = np.int64(child[2 * group]), np.int64(child[2 * group + 1])
    while low >= 0 and high >= 0:
        if priority[low] > priority[high]:
            child[slot] = low
            slot = 2 * low + 1
            low = np.int64(child[slot])
        else:
            child[slot] = high
            slot = 2 * high
            high = np.int64(child[slot])
    child[slot] = max(low, high)


@kernel
def _best_fit(sizes, smallest, cap, max_items, priority, group_of_position):
    """A group in which nothing more can fit, by count or because its room is below `smallest`, leaves the tree."""
    most_groups = len(priority)
    room = np.empty(most_groups, dtype=np.int64)
    held = np.zeros(most_groups, dtype=np.int32)
    child = np.full(2 * most_groups + 1, -1, dtype=np.int32)
    num_groups = np.int64(0)
    for i in range(len(sizes)):
        size = sizes[i]
        group = _least_fitting(room, child, size)
        if group < 0:
            group = num_groups
            num_groups += 1
            room[group] = cap
        else:
            _delete(room, child, priority, group)
        group_of_position[i] = group
        room[group] -= size
        held[group] += 1
        # A tree of groups that can still take something stays small, which is what makes every step short.
        if held[group] < max_items and room[group] >= smallest:
            _insert(room, child, priority, group)


def _priorities(num_groups: int) -> NDArray[np.uint32]:
    """Return 0..num_groups - 1 mixed by a bijection of 32 bits, so without ties (MurmurHash3's finaliser)."""
    mixed = np.arange(num_groups, dtype=np.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        mixed ^= mixed >> np.uint32(shift)
        mixed *= np.uint32(factor)
    return mixed ^ (mixed >> np.uint32(16))


def assign_best_fit_decreasing(problem: PackingProblem) -> Assignment:
    """Best fit in descending order of size, on a prepared problem; the group of each item."""
    assignment = np.empty(len(problem.sorted_sizes), dtype=np.int32)
    smallest = int(problem.sorted_sizes[-1]) if len(problem.sorted_sizes) else 0
    priority = _priorities(problem.most_groups)
    _best_fit(read_only(problem.sorted_sizes), smallest, problem.cap, problem.max_items, priority, assignment)
    return problem.by_item(assignment)


def best_fit_decreasing(
    sizes: ArrayLike, cap: int, *, max_items: int | None = None, time_budget: float = 0.01
) -> PackingResult:
    """Pack by best fit, the largest item first.

    Without `max_items` it has at most 11/9 OPT + 4 groups. O(n log m) time for m groups after the sort, as expected
    of random priorities, and O(n + m) memory.

    References
    ----------
    Johnson, Demers, Ullman, Garey & Graham, "Worst-case performance bounds for simple one-dimensional packing
    algorithms", SIAM Journal on Computing 3(4), 1974.

    Examples
    --------
    >>> best_fit_decreasing([2, 5, 3, 7, 3], 10).group_of_item.tolist()
    [1, 1, 0, 0, 1]
    """
    return solve(sizes, cap, max_items, "best_fit_decreasing", assign_best_fit_decreasing)
