"""Pair fit: one group at a time, the largest items first, and its last two items such that they fill it."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._jit import helper, kernel
from solvers._loops import first_at_most
from solvers.dual_feasible import runs_of_equal_sizes
from solvers.groups import read_only
from solvers.packing._problem import Assignment, PackingProblem, num_groups_of, solve
from solvers.packing.types import PackingResult

# Pairs of like size first, and of most unlike: which are better depends on the lengths. Rows *even pairs* and *uneven
# pairs* of benchmarks/ablation.py, packs.
_EVEN = (True, False)
# Tries of the smaller of two items: more gain a few groups in 100,000, and take time.
_TRIES = 64


@helper
def _first_left(skip, at):
    """The first class from `at` on that has items left, ``len(skip) - 1`` if none; shortens its way there."""
    found = at
    # Classes with nothing left point onwards. Each walk shortens the way for the next, so that they stay near one
    # step.
    while skip[found] != found:
        found = np.int64(skip[found])
    while skip[at] != found:
        further = np.int64(skip[at])
        skip[at] = found
        at = further
    return found


@helper
def _largest_fitting(sizes, skip, room):
    """The class of the largest items left that are at most `room`, ``len(sizes)`` if there is none."""
    return _first_left(skip, first_at_most(sizes, 0, room))


@helper
def _even_pair(sizes, left, skip, room, largest):
    """The two items that fill `room` best, those of like size first; the second is ``len(sizes)`` for one alone."""
    none = len(sizes)
    best, first, second = sizes[largest], largest, none
    small = _largest_fitting(sizes, skip, room // 2)
    for _ in range(_TRIES):
        # What comes later is smaller: with the largest item it makes no better pair than there is.
        if small == none or sizes[small] + sizes[largest] <= best:
            break
        large = _largest_fitting(sizes, skip, room - sizes[small])
        # An item is no pair with itself.
        if large != small or left[small] > 1:
            total = sizes[small] + sizes[large]
            if total > best:
                best, first, second = total, large, small
                if best == room:
                    break
        small = _first_left(skip, small + 1)
    return first, second


@helper
def _uneven_pair(sizes, left, skip, room, largest):
    """The same, but those of most unlike size first."""
    none = len(sizes)
    best, first, second = sizes[largest], largest, none
    large = largest
    for _ in range(_TRIES):
        # What follows is less than half of the room: two such do not fill it better than those already looked at.
        if large == none or sizes[large] < room - sizes[large]:
            break
        small = _largest_fitting(sizes, skip, room - sizes[large])
        if small == large and left[small] < 2:
            small = _first_left(skip, small + 1)
        if small != none and sizes[small] + sizes[large] > best:
            best, first, second = sizes[small] + sizes[large], large, small
            if best == room:
                break
        large = _first_left(skip, large + 1)
    return first, second


@kernel(turns=200)
def _fill(sizes, left, cap, max_items, even, skip, class_of, group_of):
    """Place all items, `left` of each of the descending `sizes`: the class of the k-th placed, and its group."""
    none, count = len(sizes), len(class_of)
    placed, group, held, room = 0, 0, 0, cap
    while placed < count:
        first, second = _largest_fitting(sizes, skip, room), none
        if first == none or held == max_items:
            group, held, room = group + 1, 0, cap
            continue
        # Two items can end the group where the largest alone leaves no more room than it takes.
        is_last = held > 0 and sizes[first] < room and sizes[first] >= room - sizes[first]
        if is_last and held + 2 <= max_items:
            if even:
                first, second = _even_pair(sizes, left, skip, room, first)
            else:
                first, second = _uneven_pair(sizes, left, skip, room, first)
        for item in (first, second):
            if item != none:
                class_of[placed] = item
                group_of[placed] = group
                placed += 1
                held += 1
                room -= sizes[item]
                left[item] -= 1
                if left[item] == 0:
                    skip[item] = item + 1


def assign_pair_fit(problem: PackingProblem) -> Assignment:
    """Pair fit on a prepared problem, by either order of pairs, whichever needs fewer; the group of each item."""
    sizes, counts = runs_of_equal_sizes(problem.sorted_sizes)
    found = [_assigned(problem, sizes, counts, even) for even in _EVEN]
    return min(found, key=num_groups_of)


def _assigned(problem: PackingProblem, sizes: NDArray[np.int64], counts: NDArray[np.int64], even: bool) -> Assignment:
    n = len(problem.sorted_sizes)
    class_of, group_of = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    skip = np.arange(len(sizes) + 1, dtype=np.int64)
    _fill(read_only(sizes), counts.copy(), problem.cap, problem.max_items, even, skip, class_of, group_of)
    return problem.by_item(group_of[np.argsort(class_of, kind="stable")].astype(np.int32))


def pair_fit(sizes: ArrayLike, cap: int, *, max_items: int | None = None, time_budget: float = 0.01) -> PackingResult:
    """Pack group after group: the largest item that fits, until two can end the group; those fill it, if any do.

    Where sizes are many and differ by little, as lengths of documents do, most groups are full: decreasing fits put
    two large items together and find nothing for the rest. O(n log d) time for d distinct sizes, after the sort, and
    O(n) memory.

    References
    ----------
    Gupta & Ho, "A new heuristic algorithm for the one-dimensional bin-packing problem", Production Planning & Control
    10(6), 1999, which fills each group by the best subset; here it is the best of pairs.

    Examples
    --------
    >>> pair_fit([6, 5, 4, 3, 3, 3], 12).group_of_item.tolist()  # first fit decreasing needs three groups
    [0, 1, 1, 0, 0, 1]
    """
    return solve(sizes, cap, max_items, "pair_fit", assign_pair_fit)
