"""Loops over the volumes: what each place would keep, who goes where inside a place, what all of it moves."""

import numpy as np

from solvers._jit import inlined, kernel
from solvers.rearrangement._transport import solve_transport, take_largest

__all__ = ["count_entries", "kept_in_places", "measure", "settle", "weighted_sends"]

_TINY = 64  # up to so many ranks in a place, the optimum inside it costs less than the thought of saving it


@kernel
def count_entries(order, offsets, ranks, unit_of_rank, unit_starts, num_places):
    """At most so many entries will :func:`kept_in_places` make."""
    total = np.int64(0)
    for g in order:
        row = np.int64(0)
        for e in range(offsets[g], offsets[g + 1]):
            for level in range(len(unit_of_rank)):
                u = unit_of_rank[level, ranks[e]]
                row += unit_starts[u + 1] - unit_starts[u]
        total += min(row, num_places)
    return total


@kernel
def kept_in_places(order, offsets, ranks, amounts, unit_of_rank, weights, unit_starts, unit_places, span, out):
    """What group ``order[i]`` keeps off the network in each place, weighted by the levels that it then does not cross.

    Units of all levels are numbered together; unit u holds the places ``unit_places[unit_starts[u]:unit_starts[u+1]]``.
    Group i may take the places ``span[i, 0] .. span[i, 1] - 1``, those of its class. Fills `out`: (offsets, places,
    kept).
    """
    row_starts, places, kept = out
    volume_of_unit = np.zeros(len(unit_starts) - 1, dtype=np.int64)
    touched_units = np.empty(len(volume_of_unit), dtype=np.int32)
    worth = np.zeros(len(unit_places), dtype=np.int64)
    seen_by = np.full(len(unit_places), -1, dtype=np.int64)
    filled = 0
    for i in range(len(order)):
        g = order[i]
        for level in range(len(unit_of_rank)):
            touched = 0
            for e in range(offsets[g], offsets[g + 1]):
                u = unit_of_rank[level, ranks[e]]
                if volume_of_unit[u] == 0 and amounts[e] > 0:
                    touched_units[touched] = u
                    touched += 1
                volume_of_unit[u] += amounts[e]
            for u in touched_units[:touched]:
                for k in range(unit_starts[u], unit_starts[u + 1]):
                    p = unit_places[k]
                    if span[i, 0] <= p < span[i, 1]:
                        if seen_by[p] != i:
                            seen_by[p] = i
                            worth[p] = 0
                            places[filled] = p
                            filled += 1
                        worth[p] += weights[level] * volume_of_unit[u]
                volume_of_unit[u] = 0
        for e in range(row_starts[i], filled):
            kept[e] = worth[places[e]]
        row_starts[i + 1] = filled


@inlined
def _inside(groups, first_rank, room, offsets, ranks, amounts, slot_of_rank):
    """The entries of `groups` on the ranks of their place, as rows over its slots."""
    count = 0
    for g in groups:
        count += offsets[g + 1] - offsets[g]
    starts = np.zeros(len(groups) + 1, dtype=np.int64)
    slots = np.empty(count, dtype=np.int32)
    kept = np.empty(count, dtype=np.int64)
    filled = 0
    for i in range(len(groups)):
        for e in range(offsets[groups[i]], offsets[groups[i] + 1]):
            slot = slot_of_rank[ranks[e]] - first_rank
            if 0 <= slot < room and amounts[e] > 0:
                slots[filled] = slot
                kept[filled] = amounts[e]
                filled += 1
        starts[i + 1] = filled
    return starts, slots[:filled], kept[:filled]


@kernel
def settle(place_of_group, starts, rank_of_slot, slot_of_rank, offsets, ranks, amounts, small, work, rank_of_group):
    """Inside each place, groups to ranks so that most stays where it is; in large places as far as `work` allows.

    Place p has the ranks ``rank_of_slot[starts[p] : starts[p + 1]]``, and ``slot_of_rank`` is the way back.
    """
    endless = np.int64(1 << 62)
    filled = starts[:-1].copy()
    groups_of_place = np.empty(len(place_of_group), dtype=np.int32)
    for g in range(len(place_of_group)):
        groups_of_place[filled[place_of_group[g]]] = g
        filled[place_of_group[g]] += 1
    for p in range(len(starts) - 1):
        first, room = starts[p], starts[p + 1] - starts[p]
        groups = groups_of_place[first : first + room]
        rows, slots, kept = _inside(groups, first, room, offsets, ranks, amounts, slot_of_rank)
        ones = np.arange(room + 1)
        slot_of_group = np.arange(room).astype(np.int32)
        tiny = room <= _TINY
        if not tiny:
            order = np.argsort(-kept, kind="mergesort").astype(np.int32)
            take_largest(rows, slots, kept, order, ones, slot_of_group)
        if tiny or work > 0:
            allowance = endless if tiny else work
            left = solve_transport(
                rows, slots, kept, ones, slot_of_group, np.empty(room, dtype=np.int64), small and not tiny, allowance
            )
            work = work if tiny else left
        for i in range(room):
            rank_of_group[groups[i]] = rank_of_slot[first + slot_of_group[i]]
    return work


@kernel
def weighted_sends(rank_of_group, offsets, ranks, amounts, unit_of_rank, weights, sends):
    """What leaves each rank, each element counted with the weights of the levels that it crosses."""
    sends[:] = 0
    for g in range(len(rank_of_group)):
        target = rank_of_group[g]
        for e in range(offsets[g], offsets[g + 1]):
            source = ranks[e]
            for level in range(len(unit_of_rank)):
                if unit_of_rank[level, source] != unit_of_rank[level, target]:
                    sends[source] += weights[level] * amounts[e]


@kernel
def measure(rank_of_group, offsets, ranks, amounts, unit_of_rank, crossing, rank_send, rank_receive):
    """What crosses each level, and what each rank sends to and receives from other nodes.

    Returns what moves between ranks of one node.
    """
    inside = np.int64(0)
    for g in range(len(rank_of_group)):
        target = rank_of_group[g]
        for e in range(offsets[g], offsets[g + 1]):
            source = ranks[e]
            for level in range(len(unit_of_rank)):
                if unit_of_rank[level, source] != unit_of_rank[level, target]:
                    crossing[level] += amounts[e]
            if unit_of_rank[0, source] != unit_of_rank[0, target]:
                rank_send[source] += amounts[e]
                rank_receive[target] += amounts[e]
            elif source != target:
                inside += amounts[e]
    return inside
