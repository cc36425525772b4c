"""Two groups exchange an item for another, or for nothing, so that what goes over comes nearest to an aim.

What goes from one group to another is a difference d of two costs. One sum falls by d and the other grows by d, so a
choice is good as far as d is near what evens them, and allowed if d lies in a window and neither group grows beyond its
room in a second measure (tokens under a cap). Groups keep their items in descending order of cost: for each item that
may go, the partners with d just above and just below the aim are found by walking the other group once, and not by
trying all pairs.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper

NOTHING = -1
"""Stands for an item where only one side gives: it costs nothing and takes no room."""

# Places that even the list of an empty group has, so that it can take items before lists are laid out anew.
_SPARE = 4
# Further off than any difference: the first exchange that is allowed is better.
_NEVER = 2**63 - 1


class Members(NamedTuple):
    """Items of each group, ascending: by descending cost, as items are numbered so. Lists have room to grow."""

    item: NDArray[np.int32]  # int32[places], writable: group g holds item[start[g] : start[g] + size[g]]
    start: NDArray[np.int64]  # int64[m + 1], writable
    size: NDArray[np.int64]  # int64[m], writable


class Window(NamedTuple):
    """What may go from the giver to the taker, net; all of it int64, so that kernels are compiled once."""

    low: np.int64  # the least difference of costs
    high: np.int64  # the most
    aim_low: np.int64  # a difference within aim_low .. aim_high is as good as can be, others by how far they are off
    aim_high: np.int64
    room_given: np.int64  # by how much the giver may grow in sizes
    room_taken: np.int64  # by how much the taker may


@helper
def members_of(group_of_item, num_groups, longer):
    """List the items of each group, with room for twice as many, and for `longer` more at least. O(n + m)."""
    size = np.zeros(num_groups, dtype=np.int64)
    for g in group_of_item:
        size[g] += 1
    start = np.zeros(num_groups + 1, dtype=np.int64)
    for g in range(num_groups):
        # A list never grows beyond its place; callers ask `may_grow` and do without the move where it is full.
        start[g + 1] = start[g] + size[g] + max(size[g], longer) + _SPARE
    item = np.empty(start[num_groups], dtype=np.int32)
    size[:] = 0
    for i in range(len(group_of_item)):
        g = group_of_item[i]
        item[start[g] + size[g]] = i
        size[g] += 1
    return Members(item, start, size)


@helper
def items_of(members, g):
    """The items of group g, ascending: int32[size], a view."""
    return members.item[members.start[g] : members.start[g] + members.size[g]]


@helper
def may_grow(members, g):
    """Whether the list of group g has a place left."""
    return members.size[g] < members.start[g + 1] - members.start[g]


@helper
def _replace(members, g, at, entering):
    """Drop the item at place `at` of group g (none if that is its size) and insert `entering`. O(size)."""
    first, size = members.start[g], members.size[g]
    if at < size:
        for k in range(first + at, first + size - 1):
            members.item[k] = members.item[k + 1]
        size -= 1
    if entering != NOTHING:
        k = first + size
        while k > first and members.item[k - 1] > entering:
            members.item[k] = members.item[k - 1]
            k -= 1
        members.item[k] = entering
        size += 1
    members.size[g] = size


@helper
def exchange(members, group_of_item, g, i, h, j):
    """Item i of group g goes to h, and item j of h, if it has so many, to g. Returns the two items. O(sizes)."""
    leaving, entering = np.int64(members.item[members.start[g] + i]), np.int64(NOTHING)
    if j < members.size[h]:
        entering = np.int64(members.item[members.start[h] + j])
        group_of_item[entering] = g
    group_of_item[leaving] = h
    _replace(members, g, i, entering)
    _replace(members, h, j, leaving)
    return leaving, entering


@helper
def best_exchange(costs, sizes, given, taken, window, may_move):
    """The exchange whose difference of costs comes nearest to the aim; ties go to the first item given.

    Parameters
    ----------
    costs, sizes : int64[n]
        Of all items; costs are ascending or equal from the last to the first.
    given, taken : int32[]
        Items of the two groups, ascending.
    window : Window
    may_move : bool
        Whether nothing may come back: place ``len(taken)``.

    Returns
    -------
    d, i, j, steps : int64
        What goes over, net; the places of the two items in `given` and `taken`, i = -1 where no exchange is allowed;
        and how many items were looked at: O(given + taken), and more only where rooms exclude many.
    """
    best, best_i, best_j, off = np.int64(0), np.int64(-1), np.int64(-1), np.int64(_NEVER)
    num_taken = np.int64(len(taken))
    last = num_taken + np.int64(may_move)
    aim_low = min(max(window.aim_low, window.low), window.high)  # within the window, so that walks begin there
    aim_high = min(max(window.aim_high, window.low), window.high)
    steps, middle = np.int64(len(given) + num_taken), np.int64(0)
    for i in range(len(given) if window.low <= window.high else 0):
        cost, size = costs[given[i]], sizes[given[i]]
        # The costs given descend, so that the first partner that is cheap enough only ever comes later.
        while middle < last and cost - (costs[taken[middle]] if middle < num_taken else 0) < aim_high:
            middle += 1
        # From there down, then up: on each side the first that rooms allow is the best of that side.
        for step in (-1, 1):
            j = middle + (step - 1) // 2
            while 0 <= j < last:
                d, grows = cost, size
                if j < num_taken:
                    d -= costs[taken[j]]
                    grows -= sizes[taken[j]]
                if d < window.low or d > window.high:
                    break
                far = max(aim_low - d, d - aim_high, np.int64(0))
                if far >= off:
                    break
                steps += 1
                if grows <= window.room_taken and -grows <= window.room_given:
                    best, best_i, best_j, off = d, np.int64(i), j, far
                    break
                j += step
        # An exchange that meets the aim cannot be beaten.
        if off == 0:
            break
    return best, best_i, best_j, steps
