"""Trading: subsets of two groups change places, chosen by meeting in the middle among all subsets of a few items.

Of two groups, take six items each, drawn at random. Each six have 64 subsets; sorted by sum, one walk along both
lists finds the two subsets whose exchange moves a load as near to a wanted amount as any of the 4,096 can. So one
step is a move, a swap, two for one, three for three or whatever fits, of groups that may be rigid under each alone.

The search aims at a target T for all loads, and walks along plateaus. What counts is the *excess*, all that loads
have over T, and no step raises it. Two groups that can both be under T are left so, and mostly one of them filled up
as far as it goes: then what is to spare gathers in few groups, where it is enough to be of use (Fleszar & Hindi 2002
do the same by a sum of squares). Now and then the amount is drawn at random instead, which is the way out where all
groups but one are full.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, inlined, kernel
from solvers._loops import copy, draw, largest_of, sum_of
from solvers.groups import group_loads
from solvers.partition._problem import Assignment, PartitionProblem
from solvers.partition.refine import members_by_group

__all__ = ["trade"]

_DRAWN = 6  # items of each group; measured: 5 to 8 do as well
_SUBSETS = 1 << _DRAWN
_STRAY = 10  # per cent of the steps move an amount drawn at random
_WORK_PER_STEP = 50
_WORK_PER_SUBSET = 5
_MOST_COST = 1 << 54  # six of them and a subset's number fit one int64


class _State(NamedTuple):
    costs: NDArray[np.int64]
    group: NDArray[np.int32]
    loads: NDArray[np.int64]
    members: NDArray[np.int32]  # group g lists its positions from start[g] on, in any order
    start: NDArray[np.int64]
    sizes: NDArray[np.int64]


@inlined
def _draw_between(state, low, high):
    """Draw a number of low .. high, in steps that leave at most 2^22 of them."""
    shift = 0
    while (high - low) >> shift >= 1 << 22:
        shift += 1
    return low + (draw(state, ((high - low) >> shift) + 1) << shift)


@helper
def _draw_items(walk, g, state):
    """Bring up to six items of group g, drawn at random, to the front of its list; returns how many."""
    first, size = walk.start[g], walk.sizes[g]
    count = min(_DRAWN, size)
    for k in range(count):
        here, there = first + k, first + k + draw(state, size - k)
        walk.members[here], walk.members[there] = walk.members[there], walk.members[here]
    return count


@helper
def _list_subsets(walk, g, count, subsets, spare):
    """List ``sum << 6 | subset`` for all subsets of the first `count` items of group g, ascending; returns how many."""
    size = 1
    subsets[0] = 0
    for k in range(count):
        item = walk.costs[walk.members[walk.start[g] + k]] << _DRAWN | 1 << k
        i, j = 0, 0
        for place in range(2 * size):  # merge those without the item and those with it
            if j == size or (i < size and subsets[i] <= subsets[j] + item):
                spare[place] = subsets[i]
                i += 1
            else:
                spare[place] = subsets[j] + item
                j += 1
        size *= 2
        copy(subsets, spare[:size])
    return size


@helper
def _best_exchange(given, taken, low, high, wanted):
    """Return the subsets to give and to take: what goes over within low .. high, or else near it, and near `wanted`."""
    best_given, best_taken = np.int64(0), np.int64(0)  # nothing for nothing, which is always there
    best_outside, best_distance = max(low, 0) + max(-high, 0), abs(wanted)
    j = 0
    for i in range(len(given)):
        amount = given[i] >> _DRAWN
        while j < len(taken) and amount - (taken[j] >> _DRAWN) > wanted:
            j += 1
        for k in range(max(j - 1, 0), min(j + 1, len(taken))):  # the last that moves more, the first that does not
            moved = amount - (taken[k] >> _DRAWN)
            outside, distance = max(low - moved, 0) + max(moved - high, 0), abs(moved - wanted)
            if outside < best_outside or (outside == best_outside and distance < best_distance):
                best_given, best_taken = given[i], taken[k]
                best_outside, best_distance = outside, distance
    return best_given, best_taken


@helper
def _exchange(walk, g, h, count_g, count_h, given, taken, spare):
    """Exchange two subsets of the items drawn, if both lists have room; returns whether they had."""
    from_g, from_h = walk.start[g], walk.start[h]
    to_h, to_g = 0, 0
    for k in range(_DRAWN):
        to_h += given >> k & 1
        to_g += taken >> k & 1
    grown = max(walk.sizes[g] - to_h + to_g - (walk.start[g + 1] - from_g), 0)
    grown += max(walk.sizes[h] - to_g + to_h - (walk.start[h + 1] - from_h), 0)
    if grown > 0:
        return False
    leaving = 0
    for k in range(count_g - 1, -1, -1):  # from behind, so that the last of the list can fill the gap
        if given >> k & 1:
            spare[leaving] = walk.members[from_g + k]
            leaving += 1
            walk.sizes[g] -= 1
            walk.members[from_g + k] = walk.members[from_g + walk.sizes[g]]
    for k in range(count_h - 1, -1, -1):
        if taken >> k & 1:
            position = walk.members[from_h + k]
            walk.sizes[h] -= 1
            walk.members[from_h + k] = walk.members[from_h + walk.sizes[h]]
            walk.members[from_g + walk.sizes[g]] = position
            walk.sizes[g] += 1
            walk.group[position] = g
    for k in range(leaving):
        walk.members[from_h + walk.sizes[h]] = spare[k]
        walk.sizes[h] += 1
        walk.group[spare[k]] = h
    moved = (given >> _DRAWN) - (taken >> _DRAWN)
    walk.loads[g] -= moved
    walk.loads[h] += moved
    return True


@helper
def _walk(walk, target, state, work):
    """Walk until no load is over `target` or the work is spent; returns the work left."""
    loads = walk.loads
    num_groups = len(loads)
    given, taken, spare = (np.empty(_SUBSETS, np.int64), np.empty(_SUBSETS, np.int64), np.empty(_SUBSETS, np.int64))
    over = sum_of(loads > target)
    turn = 0
    while over > 0 and work > 0:
        g = draw(state, num_groups)
        while turn & 1 == 0 and loads[g] <= target:  # every other step begins at a group that is over
            g = g + 1 if g + 1 < num_groups else 0
            work -= 1
        turn += 1
        h = draw(state, num_groups - 1)
        h += h >= g
        count_g = _draw_items(walk, g, state)
        count_h = _draw_items(walk, h, state)
        size_g = _list_subsets(walk, g, count_g, given, spare)
        size_h = _list_subsets(walk, h, count_h, taken, spare)
        work -= _WORK_PER_STEP + _WORK_PER_SUBSET * (size_g + size_h)
        low, high = loads[g] - target, target - loads[h]  # what may go over so that both end under the target
        low, high = min(low, high), max(low, high)  # or, where that cannot be, so that neither does
        chance = draw(state, 200)
        wanted = high if chance & 1 else low
        if chance < 2 * _STRAY:
            wanted = _draw_between(state, low, high)
        given_subset, taken_subset = _best_exchange(given[:size_g], taken[:size_h], low, high, wanted)
        if given_subset or taken_subset:
            over -= (loads[g] > target) + (loads[h] > target)
            _exchange(walk, g, h, count_g, count_h, given_subset, taken_subset, spare)
            over += (loads[g] > target) + (loads[h] > target)
    return work


@kernel
def _trade(costs, group, loads, bound, state, each, work):
    """Bisect the target, `each` of them for so much work, again and again; improves `group` in place."""
    members, start, sizes = members_by_group(group, len(loads), len(costs) // len(loads) + 1)
    walk = _State(costs, group.copy(), loads.copy(), members, start, sizes)
    work -= len(costs)
    largest, too_low = largest_of(loads), bound - 1
    while work > 0 and largest > bound:
        if largest - too_low <= 1:  # begin again: it draws otherwise
            too_low = bound - 1
        target = max(bound, too_low + (largest - too_low) // 2)
        spent = min(each, work)
        work -= spent - _walk(walk, target, state, spent)
        if largest_of(walk.loads) < largest:
            largest = largest_of(walk.loads)
            copy(group, walk.group)
        if largest > target:
            too_low = target
    return work


def trade(problem: PartitionProblem, assignment: Assignment, work: int, each: int, seed: int) -> int:
    """Improve `assignment` in place, without equal counts; returns the work left: positive if the bound was reached.

    Never makes it worse. After the work `each`, a target is given up for the next, half way up. A step takes about a
    microsecond, whatever n and m are; O(n + m) memory.

    References
    ----------
    Horowitz & Sahni, "Computing partitions with applications to the knapsack problem", Journal of the ACM 21(2), 1974,
    for meeting in the middle; Fleszar & Hindi, "New heuristics for one-dimensional bin-packing", Computers &
    Operations Research 29(7), 2002.
    """
    loads = group_loads(problem.sorted_costs, assignment, problem.num_groups)
    positive = int(np.count_nonzero(problem.sorted_costs))
    if problem.num_groups < 2 or positive == 0 or int(problem.sorted_costs[0]) > _MOST_COST:
        return work
    costs, state = problem.sorted_costs[:positive], np.array([seed])
    return int(_trade(costs, assignment[:positive], loads, problem.bound.value, state, each, work))
