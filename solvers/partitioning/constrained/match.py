"""List scheduling by composition: each unit to the group whose remaining room it resembles most.

Where caps are tight, list scheduling by load fills groups evenly with costs and unevenly with tokens; then a group that
has room for the one has none for the other, and no small exchange helps. Here a group's room is a vector, the makespan
that the bound allows less its load beside its caps less what it holds, and a unit goes where the vector of what it has
makes the smallest angle with it: what is expensive for its tokens goes where tokens are scarce. (The cosine, the unit's
own length left out as it is the same for all groups. Compare the dot product heuristics of Panigrahy, Talwar, Uyeda &
Wieder, "Heuristics for vector bin packing", Microsoft Research, 2011.)
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers.partitioning.constrained.state import State

Ints = NDArray[np.int64]

# Groups that a unit is compared with: more are all alike by then, and each comparison takes O(d).
_WINDOW = 256
# Bits of a coordinate: a whole group is 2^20, and a product of two, summed over all dimensions, fits int64.
_BITS = 20


class Groups(NamedTuple):
    """What groups have left; all of it is written."""

    room: Ints  # int64[m, d]: of each dimension
    want: Ints  # int64[m]: items that a group lacks to its lowest count
    direction: Ints  # int64[m, d]: room, in 2**-20 of a whole group
    length: Ints  # int64[m]: of that vector


class Rules(NamedTuple):
    """What is placed, and where it may be; nothing of it is written."""

    amounts: Ints  # int64[u, d]
    whole: Ints  # int64[m, d]: what an empty group may hold
    mean: Ints  # int64[d]: what an average group gets
    allowed: NDArray[np.bool_]  # bool[k, m]
    mask_of_unit: Ints  # int64[u]
    by_speed: Ints  # int64[m]: groups, the fastest first
    components: int  # dimensions before this one are costs, whose room may be overdrawn


@helper
def _scaled(value, whole):
    """``value / whole`` in units of 2^-20, between -1 and 1; whole >= 1."""
    if value >= whole:
        return np.int64(1 << _BITS)
    if value <= -whole:
        return np.int64(-(1 << _BITS))
    if whole < 1 << 42:
        return (value << _BITS) // whole
    return value // (whole >> _BITS)


@helper
def _point(groups, whole, g):
    """Bring the scaled vector of a group's room up to date. O(d)."""
    square = np.int64(1)
    for d in range(whole.shape[1]):
        groups.direction[g, d] = _scaled(groups.room[g, d], whole[g, d])
        square += groups.direction[g, d] * groups.direction[g, d]
    groups.length[g] = np.int64(np.sqrt(square))


@helper
def _compare(rules, groups, unit, vector, g, slack):
    """By how much a unit overfills a group, 0 if there is room; and how alike the two vectors are. O(d)."""
    amounts, last = rules.amounts, len(vector) - 1
    harm, likeness = np.int64(0), np.int64(0)
    for d in range(last + 1):
        if d >= rules.components and amounts[unit, d] > groups.room[g, d]:
            harm += vector[d] - groups.direction[g, d] + 1
        likeness += vector[d] * groups.direction[g, d]
    if amounts[unit, last] - min(amounts[unit, last], groups.want[g]) > slack:
        harm += vector[last]
    return harm, likeness * 1024 // groups.length[g]


@helper
def _most_alike(rules, groups, unit, vector, first, slack):
    """The group with room that the unit resembles most, or else the one that it overfills least; and which it is.

    Of more than 256 groups one in so many is looked at, of all kinds, the fastest first; and where none of them has
    room, the next.
    """
    num_groups = len(groups.want)
    stride = (num_groups + _WINDOW - 1) // _WINDOW
    best, best_group = np.int64(-(2**62)), -1
    least_harm, least_group = np.int64(2**62), -1
    for offset in range(stride):
        if best_group >= 0:
            break
        for k in range((first + offset) % stride, num_groups, stride):
            g = rules.by_speed[k]
            if not rules.allowed[rules.mask_of_unit[unit], g]:
                continue
            harm, likeness = _compare(rules, groups, unit, vector, g, slack)
            if harm <= 0 and likeness > best:
                best, best_group = likeness, g
            elif 0 < harm < least_harm:
                least_harm, least_group = harm, g
    return (best_group, True) if best_group >= 0 else (least_group, False)


@kernel
def _match(order, rules, groups, slack, group_of_unit):
    """Place the units in `order`; those without room go where they overfill least. Returns how many those were."""
    num_groups, dims = groups.room.shape
    for g in range(num_groups):
        _point(groups, rules.whole, g)
    vector = np.empty(dims, dtype=np.int64)
    failed, turn = 0, 0
    # One unit after the other, by how alike the vectors are: the room of one group changes each time.
    for unit in order:
        for d in range(dims):
            vector[d] = _scaled(rules.amounts[unit, d], rules.mean[d])
        g, fits = _most_alike(rules, groups, unit, vector, turn, slack)
        turn = (turn + 1) % ((num_groups + _WINDOW - 1) // _WINDOW)
        failed += not fits
        group_of_unit[unit] = g
        items = rules.amounts[unit, dims - 1]
        wanted = min(items, groups.want[g])
        slack -= items - wanted
        groups.want[g] -= wanted
        for d in range(dims):
            groups.room[g, d] -= rules.amounts[unit, d]
        _point(groups, rules.whole, g)
    return failed


def match(state: State, order: Ints, targets: list[int]) -> tuple[Ints, int]:
    """Place the units in `order`, the room for component k being that below a largest time of ``targets[k]``.

    Returns int64[u] groups, and how many units found no group with room. O(u min(m, 256)) as long as there is room.
    """
    m = state.problem.num_groups
    upper = state.limits_for(targets)
    whole = np.maximum(upper, 1)
    mean = np.maximum(state.amounts.sum(axis=0) // m, 1)
    if not state.count_limited:  # a dimension that is never scarce, and the kernel's last is the number of items
        whole[:, -1] = 2**62
        mean[-1] = 2**62
    slack = int(state.units.items.sum()) - int(state.lower[:, -1].sum())
    by_speed = np.argsort(-state.problem.speeds, kind="stable")
    rules = Rules(state.amounts, whole, mean, state.allowed, state.mask_of_unit, by_speed, state.components)
    room = upper - state.held_before
    groups = Groups(room, state.lower[:, -1].copy(), np.empty_like(room), np.empty(m, dtype=np.int64))
    found = np.zeros(len(state.amounts), dtype=np.int64)
    failed = _match(order, rules, groups, max(slack, 0), found)
    return found, int(failed)
