"""Starts for mixed costs: groups filled one after the other, longest item first, under a bound that is bisected.

Neighbours in the sorted order waste no padding on each other, so a group takes the longest item left and those that
follow, while they fit (which alone is the best that contiguous runs can do). What room is left is less than the next
item needs. Then comes the longest item further down that fits: little of it is padding, because it nearly fills the
room, and without it long items, few of which fit a group, would leave much of the group empty.
"""

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers._loops import copy, first_at_most
from solvers.partitioning._problem import Assignment

_CONTIGUOUS, _FILLED, _EVEN = range(3)
# Steps of a bisection: from the whole range down to a sixteen-millionth of it.
_STEPS = 24
# Work units of an item: filling takes about 5 ns of one, measured.
_WORK_OF_ITEM = 2


@helper
def _live(links, i):
    """The first position from `i` on that is not taken; taken ones link onwards."""
    while links[i] != i:
        links[i] = links[links[i]]
        i = links[i]
    return i


@helper
def _live_before(back, i):
    """The last position before `i`, plus one, that is not taken; 0 if there is none."""
    while back[i] != i:
        back[i] = back[back[i]]
        i = back[i]
    return i


@helper
def _fill(costs, rows, bound, num_groups, contiguous, links, group_of_position):
    """Fill groups under `bound`; returns whether all items found a place."""
    n = len(costs)
    for i in range(n + 1):
        links[i] = i
    first = 0
    for group in range(num_groups):
        first = _live(links, first)
        if first == n:
            return True
        longest = rows[first]
        room = bound
        p = first
        while p < n:
            if costs[p] + longest > room:
                if contiguous or p == first:
                    break
                # The longest item further down that fits: it nearly fills the room, so that little of it is lost.
                p = _live(links, first_at_most(costs, p, room - longest))
                if p == n:
                    break
            group_of_position[p] = group
            links[p] = p + 1
            room -= costs[p] + longest
            p = _live(links, p + 1)
    return _live(links, first) == n


@helper
def _fill_even(costs, rows, bound, num_groups, links, back, group_of_position):
    """As :func:`_fill`, with n // m items a group and one more in the last n mod m.

    The shortest items left are kept for the places still to fill, so that none stays empty.
    """
    n = len(costs)
    few, longer = n // num_groups, n % num_groups
    for i in range(n + 1):
        links[i] = i
        back[i] = i  # shifted by one: back[p + 1] is p's; 0 is before all
    kept = np.empty(few + 1, dtype=np.int64)
    for group in range(num_groups):
        count = few + (1 if group >= num_groups - longer else 0)
        if count == 0:
            continue
        p = _live(links, 0)
        longest = rows[p]
        room = bound - count * longest
        reserved = np.int64(0)
        last = n
        for k in range(count - 1):  # the shortest, for all places but the first
            last = _live_before(back, last)
            kept[k] = last - 1
            reserved += costs[last - 1]
            last -= 1
        if costs[p] + reserved > room:
            return False
        for place in range(count):
            left = count - place  # places to fill, this one included
            if place > 0:
                reserved -= costs[kept[left - 1]]
                p = _live(links, p + 1)
                if p < n and costs[p] > room - reserved:
                    p = _live(links, first_at_most(costs, p, room - reserved))
                # The walk has come to the shortest items, which are kept for these places.
                if p >= kept[left - 1]:
                    p = kept[left - 1]
            group_of_position[p] = group
            links[p] = p + 1
            back[p + 1] = p
            room -= costs[p]
    return True


@kernel
def _bisect(costs, rows, num_groups, low, high, steps, way, best):
    """Lower the bound `steps` times by bisection; the best assignment goes to `best`. Returns what bound it keeps."""
    n = len(costs)
    links = np.empty(n + 1, dtype=np.int64)
    back = np.empty(n + 1, dtype=np.int64)
    trial = np.zeros(n, dtype=np.int32)
    for _ in range(steps):
        if low >= high:
            break
        middle = low + (high - low) // 2
        if way == _EVEN:
            fits = _fill_even(costs, rows, middle, num_groups, links, back, trial)
        else:
            fits = _fill(costs, rows, middle, num_groups, way == _CONTIGUOUS, links, trial)
        if fits:
            high = middle
            copy(best, trial)
        else:
            low = middle + 1
    return high


def best_fill(
    costs: NDArray[np.int64],
    rows: NDArray[np.int64],
    num_groups: int,
    low: int,
    high: int,
    work: int,
    *,
    contiguous: bool = False,
    equal_counts: bool = False,
) -> tuple[Assignment | None, int]:
    """Fill groups under the smallest bound that a bisection of `low` .. `high` finds.

    `costs` and `rows` descend together. Groups are of neighbours only where they are to be `contiguous`, and of n // m
    items, the last n mod m of one more, with `equal_counts`. Returns the group of each position, None where nothing was
    found below `high`, and the work left.
    """
    price = _WORK_OF_ITEM * len(costs) + num_groups
    steps = min(_STEPS, max(0, work) // price)
    assignment = np.zeros(len(costs), dtype=np.int32)
    way = _EVEN if equal_counts else _CONTIGUOUS if contiguous else _FILLED
    found = int(_bisect(costs, rows, num_groups, low, high, steps, way, assignment))
    return (assignment if found < high else None), work - steps * price
