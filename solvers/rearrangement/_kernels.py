"""Loops over the volumes: what each place would keep, who goes where inside a place, what all of it moves."""

import numpy as np
from numpy.typing import NDArray

from solvers._jit import kernel
from solvers.rearrangement._transport import solve_parts, solve_transport, take_largest

_ENDLESS = 1 << 62
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


def settle(
    place_of_group: NDArray[np.int32],
    starts: NDArray[np.int64],
    rank_of_slot: NDArray[np.int32],
    slot_of_rank: NDArray[np.int32],
    volumes: tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]],
    small: bool,
    work: int,
) -> NDArray[np.int32]:
    """Inside each place, groups to ranks so that most stays where it is; in large places as far as `work` allows.

    Place p has the ranks ``rank_of_slot[starts[p] : starts[p + 1]]``, and ``slot_of_rank`` is the way back. `volumes`
    are offsets, ranks and amounts of each group.
    """
    num_groups, rooms = len(place_of_group), np.diff(starts)
    groups = np.argsort(place_of_group, kind="stable")
    first = np.repeat(starts[:-1], rooms)  # slot of the place that each of them is in
    offsets, slots, kept = _inside(groups, first, np.repeat(rooms, rooms), slot_of_rank, *volumes)
    slot_of_group = (np.arange(num_groups) - first).astype(np.int32)
    price, ones = np.empty(num_groups, dtype=np.int64), np.arange(num_groups + 1)
    if (rooms <= _TINY).all():
        solve_parts(starts, starts, offsets, slots, kept, ones, slot_of_group, price, False, _ENDLESS)
    else:
        for p, room in enumerate(rooms.tolist()):
            inside = slice(starts[p], starts[p + 1])
            entries = slice(offsets[starts[p]], offsets[starts[p + 1]])
            rows = offsets[starts[p] : starts[p + 1] + 1] - entries.start, slots[entries], kept[entries]
            if room <= _TINY:
                solve_transport(*rows, ones[: room + 1], slot_of_group[inside], price[inside], False, _ENDLESS)
                continue
            order = np.argsort(-rows[2], kind="stable").astype(np.int32)
            take_largest(*rows, order, ones[: room + 1], slot_of_group[inside])
            if work > 0:
                work = solve_transport(*rows, ones[: room + 1], slot_of_group[inside], price[inside], small, work)
    rank_of_group = np.empty(num_groups, dtype=np.int32)
    rank_of_group[groups] = rank_of_slot[first + slot_of_group]
    return rank_of_group


def _inside(
    groups: NDArray[np.int64],
    first: NDArray[np.int64],
    room: NDArray[np.int64],
    slot_of_rank: NDArray[np.int32],
    offsets: NDArray[np.int64],
    ranks: NDArray[np.int32],
    amounts: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
    """The entries of each of `groups` on the ``room`` slots from ``first`` on, as rows: offsets, slots, amounts."""
    sizes = np.diff(offsets)[groups]
    ends = np.cumsum(sizes)
    entries = np.repeat(offsets[groups] - ends + sizes, sizes) + np.arange(int(ends[-1]))
    row = np.repeat(np.arange(len(groups)), sizes)
    slots, kept = slot_of_rank[ranks[entries]] - first[row], amounts[entries]
    stays = (slots >= 0) & (slots < room[row]) & (kept > 0)
    counts = np.bincount(row[stays], minlength=len(groups))
    return np.concatenate(([0], np.cumsum(counts))), slots[stays].astype(np.int32), kept[stays]


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
