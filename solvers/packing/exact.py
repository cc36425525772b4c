"""Exact packing by branch and bound: fill one group after the other, and skip fillings that others dominate.

Groups are filled in turn, and each starts with the largest item left, so that no two branches differ only in the
numbers of groups; items of one size are one class, so none differ only in equal items. Of the fillings of a group,
these are skipped, because exchanging items with later groups makes any packing that has them into one that has not:

- one to which a left item could be added, or in which an item could be replaced by a larger one that is left;
- all others, where one left item fills the rest of the group to the brim (not under `max_items`: what it replaces may
  be many items).

A closed group is kept only if the ones so far and the l2 bound of what is left stay below the best packing known.
"""

import time
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._budget import work_units
from solvers._jit import helper, kernel
from solvers._loops import first_at_most, sum_of
from solvers.arguments import as_budget
from solvers.bounds import Bound
from solvers.dual_feasible import runs_of_equal_sizes, threshold_bound
from solvers.packing._problem import Assignment, PackingProblem, num_groups_of
from solvers.packing.best_fit import assign_best_fit_decreasing
from solvers.packing.first_fit import assign_first_fit_decreasing
from solvers.packing.types import PackingResult

# Work units of one placement; they stand for 20 nanoseconds.
_WORK_OF_PLACING = 8


@helper
def _next_fitting(sizes, left, room, start):
    """The first class from `start` on, so the largest, that has an item left of at most `room`; len(sizes) if none."""
    first = first_at_most(sizes, start, room)
    while first < len(sizes) and left[first] == 0:
        first += 1
    return first


@helper
def _is_replaceable(sizes, left, room, may_add, filling):
    """Whether a left item could be added to the group, or take the place of a smaller one than itself in it."""
    if may_add and _next_fitting(sizes, left, room, 0) < len(sizes):
        return True
    for k in range(1, len(filling)):  # none is larger than the first
        # Classes descend, so the next class with items left is the least that is larger; if it does not fit, none
        # does.
        larger = filling[k] - 1
        while larger >= 0 and left[larger] == 0:
            larger -= 1
        if larger >= 0 and sizes[larger] - sizes[filling[k]] <= room:
            return True
    return False


@helper
def _needs_more(sizes, left, items_left, volume_left, cap, max_items, limit):
    """Whether what is left needs more than `limit` groups, by volume, counts or l2."""
    if limit <= 0 or (volume_left - 1) // cap >= limit or (items_left - 1) // max_items >= limit:
        return True
    return threshold_bound(sizes, sizes, left, cap, cap) > limit


class Placed(NamedTuple):
    """The best packing found, unset if none is better; all of it is written."""

    class_of: NDArray[np.int64]  # int64[n]: the class of the k-th item placed
    group_of: NDArray[np.int64]  # int64[n]: and its group


@kernel
def _search(sizes, counts, cap, max_items, target, best, work, found):
    """Look for packings with fewer than `best` groups, and stop at `target`; returns best, whether done, work left."""
    n = len(found.class_of)
    left = counts.copy()
    class_at, group_at, held_at = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    room_at = np.empty(n, np.int64)  # room and items held before the placement
    forced_at = np.empty(n, np.bool_)
    volume_left = sum_of(sizes * counts)
    placed, groups, held, room = 0, 1, 0, cap
    chosen, forced = 0, True
    while work > 0:
        # Forward: the largest item that fits goes into the open group, without choice if it fills it.
        if chosen < len(sizes):
            class_at[placed], group_at[placed], held_at[placed] = chosen, groups - 1, held
            room_at[placed], forced_at[placed] = room, forced
            placed += 1
            held += 1
            left[chosen] -= 1
            room -= sizes[chosen]
            volume_left -= sizes[chosen]
            work -= _WORK_OF_PLACING + len(sizes) // 64  # classes used up are walked past
            was_first = held == 1
            # From `chosen` on: within a group items descend, so that the same filling is not tried in another order.
            chosen = _next_fitting(sizes, left, room, chosen) if held < max_items else len(sizes)
            forced = was_first and max_items >= n and chosen < len(sizes) and sizes[chosen] == room
            continue
        # The group is full: is there a better use of it, or too much left for the groups that there may be?
        keep = False
        work -= held * (1 + len(sizes) // 16)
        if placed == n:
            best = groups
            found.class_of[:] = class_at
            found.group_of[:] = group_at
            if best <= target:
                return best, True, work
        elif not _is_replaceable(sizes, left, room, held < max_items, class_at[placed - held : placed]):
            work -= 4 * len(sizes)
            keep = not _needs_more(sizes, left, n - placed, volume_left, cap, max_items, best - 1 - groups)
        if keep:
            # The largest item left has to go somewhere, so it opens the next group: no choice, and none is taken
            # back.
            groups, held, room = groups + 1, 0, cap
            chosen, forced = _next_fitting(sizes, left, cap, 0), True
            continue
        # Back to the last choice that was free; forced ones have no other.
        while True:  # back to the last choice that was free
            if placed == 0:
                return best, True, work
            placed -= 1
            chosen = class_at[placed]
            left[chosen] += 1
            volume_left += sizes[chosen]
            work -= 1
            if not forced_at[placed]:
                break
        groups, held, room = group_at[placed] + 1, held_at[placed], room_at[placed]
        chosen, forced = _next_fitting(sizes, left, room, chosen + 1), False
    return best, False, work


def assign_better(problem: PackingProblem) -> tuple[Assignment, str, Bound]:
    """Return the better of first fit and best fit decreasing, ties to the first, its name, and the best bound."""
    first = assign_first_fit_decreasing(problem)
    bound = problem.bound(enough=num_groups_of(first))
    # Best fit is seldom better, and takes longer. It is asked where first fit is not proven to be best.
    if num_groups_of(first) > bound.value:
        second = assign_best_fit_decreasing(problem)
        if num_groups_of(second) < num_groups_of(first):
            return second, "best_fit_decreasing", bound
    return first, "first_fit_decreasing", bound


def search(problem: PackingProblem, assignment: Assignment, bound: Bound, work: int) -> tuple[Assignment, Bound, bool]:
    """Improve `assignment` until it meets `bound` or the work ends; also returns the bound, and whether work ran out.

    The assignments are of items. O(n + d) memory for d distinct sizes.
    """
    n = len(assignment)
    known = num_groups_of(assignment)
    if known == bound.value:
        return assignment, bound, False
    sizes, counts = runs_of_equal_sizes(problem.sorted_sizes)
    placed = Placed(np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64))
    found, done, _ = _search(sizes, counts, problem.cap, problem.max_items, bound.value, known, work, placed)
    if found < known:
        # Placed class by class; positions descend in size, so a stable sort by class is the way back.
        group_of_position = placed.group_of[np.argsort(placed.class_of, kind="stable")].astype(np.int32)
        assignment = problem.by_item(group_of_position)
    if done and found > bound.value:
        bound = Bound(int(found), "search")
    return assignment, bound, not done


def exact(sizes: ArrayLike, cap: int, *, max_items: int | None = None, time_budget: float = 0.01) -> PackingResult:
    """Pack by branch and bound, from the better of first fit and best fit decreasing.

    Parameters
    ----------
    sizes, cap, max_items
        As for :func:`solvers.packing.pack`, and so are the errors.
    time_budget : float
        Seconds' worth of search, counted and not timed.

    Returns
    -------
    PackingResult
        ``OPTIMAL`` if the search ended, else ``TIME_LIMIT`` and the best packing that it saw.

    Notes
    -----
    Exponential time, up to the budget; O(n) memory. Deterministic: no clock is read (see :mod:`solvers._budget`).

    References
    ----------
    Martello & Toth, "Knapsack Problems", chapter 8, 1990. Korf, "A new algorithm for optimal bin packing", AAAI 2002.

    Examples
    --------
    >>> result = exact([6, 5, 4, 3, 3, 3], 12)  # first fit decreasing needs three groups
    >>> result.group_of_item.tolist(), result.status.value
    ([0, 1, 1, 0, 0, 1], 'optimal')
    """
    started = time.perf_counter()
    work = work_units(as_budget(time_budget))
    problem = PackingProblem.prepare(sizes, cap, max_items)
    assignment, _, bound = assign_better(problem)
    assignment, bound, out_of_time = search(problem, assignment, bound, work)
    return problem.result(assignment, "exact", started, bound=bound, out_of_time=out_of_time)
