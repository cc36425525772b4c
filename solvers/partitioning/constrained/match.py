"""List scheduling by composition: each unit to the group whose remaining room it resembles most.

Where caps are tight, list scheduling by load fills groups evenly with costs and unevenly with tokens; then a group that
has room for the one has none for the other, and no small exchange helps. Here a group's room is a vector, the makespan
that the bound allows less its load beside its caps less what it holds, and a unit goes where the vector of what it has
makes the smallest angle with it: what is expensive for its tokens goes where tokens are scarce. (The cosine, the unit's
own length left out as it is the same for all groups. Compare the dot product heuristics of Panigrahy, Talwar, Uyeda &
Wieder, "Heuristics for vector bin packing", Microsoft Research, 2011.)
"""

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers.partitioning.constrained.state import State

Ints = NDArray[np.int64]

_WINDOW = 256  # groups that a unit is compared with
_BITS = 20  # of a coordinate: a whole group is 2^20


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
def _place(room, whole, direction, length, g):
    """Bring the scaled vector of a group's room up to date."""
    square = np.int64(1)
    for d in range(room.shape[1]):
        direction[g, d] = _scaled(room[g, d], whole[g, d])
        square += direction[g, d] * direction[g, d]
    length[g] = np.int64(np.sqrt(square))


@kernel
def _match(order, amounts, room, whole, mean, components, want, slack, allowed, mask_of_unit, by_speed, group_of_unit):
    """Returns how many units found no group with room; those go where they overfill least, by the scaled sum."""
    num_groups, dims = room.shape
    direction = np.empty((num_groups, dims), dtype=np.int64)
    length = np.empty(num_groups, dtype=np.int64)
    for g in range(num_groups):
        _place(room, whole, direction, length, g)
    unit_vector = np.empty(dims, dtype=np.int64)
    stride = (num_groups + _WINDOW - 1) // _WINDOW  # groups of all kinds are looked at, the fastest first
    failed, first = 0, 0
    for unit in order:
        for d in range(dims):
            unit_vector[d] = _scaled(amounts[unit, d], mean[d])
        items = amounts[unit, dims - 1]
        best, best_group = np.int64(-(2**62)), -1
        least_harm, least_group = np.int64(2**62), -1
        for offset in range(stride):
            if best_group >= 0:
                break
            for k in range((first + offset) % stride, num_groups, stride):
                g = by_speed[k]
                if not allowed[mask_of_unit[unit], g]:
                    continue
                harm, likeness = np.int64(0), np.int64(0)
                for d in range(dims):
                    if d >= components and amounts[unit, d] > room[g, d]:
                        harm += unit_vector[d] - direction[g, d] + 1
                    likeness += unit_vector[d] * direction[g, d]
                if items - min(items, want[g]) > slack:
                    harm += unit_vector[dims - 1]
                if harm > 0:
                    if harm < least_harm:
                        least_harm, least_group = harm, g
                    continue
                likeness = likeness * 1024 // length[g]
                if likeness > best:
                    best, best_group = likeness, g
        first = (first + 1) % stride
        if best_group < 0:
            failed += 1
            best_group = least_group
        group_of_unit[unit] = best_group
        slack -= items - min(items, want[best_group])
        want[best_group] -= min(items, want[best_group])
        for d in range(dims):
            room[best_group, d] -= amounts[unit, d]
        _place(room, whole, direction, length, best_group)
    return failed


def match(state: State, order: Ints, targets: list[int]) -> tuple[Ints, int]:
    """Place the units in `order`, the room for component k being that below a largest time of ``targets[k]``.

    Returns int64[u] groups, and how many units found no group with room. O(u min(m, 256)) as long as there is room.
    """
    m, c = state.problem.num_groups, state.components
    upper = state.limits_for(targets)
    amounts = state.amounts
    whole = np.maximum(upper, 1)
    mean = np.maximum(amounts.sum(axis=0) // m, 1)
    if not state.count_limited:  # a dimension that is never scarce, and the kernel's last is the number of items
        whole[:, -1] = 2**62
        mean[-1] = 2**62
    slack = int(state.units.items.sum()) - int(state.lower[:, -1].sum())
    groups = np.zeros(len(amounts), dtype=np.int64)
    failed = _match(
        order, amounts, upper - state.held_before, whole, mean, c, state.lower[:, -1].copy(), max(slack, 0),
        state.allowed, state.mask_of_unit, np.argsort(-state.problem.speeds, kind="stable"), groups,
    )  # fmt: skip
    return groups, int(failed)
