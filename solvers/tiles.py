"""Tiles: parts of items as integer intervals, cut into windows, and intersected. Callers check the inputs."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import kernel
from solvers.groups import read_only


class Packed(NamedTuple):
    """Items in buffers, one after the other, each item in one part or in several."""

    item: NDArray[np.int64]  # int64[n]: what each is called in the result
    group: NDArray[np.int32]  # int32[n]: the group of buffers that each item is in: one buffer a shard, all alike
    part: NDArray[np.int64]  # int64[n]: elements of an item's part
    begin: NDArray[np.int64]  # int64[n]: where its first part begins in its buffer; others follow
    window: NDArray[np.int64]  # int64[n]: elements of each window of its buffer, the last of which may be shorter


class Intersections(NamedTuple):
    """Where tiles of two kinds meet, int64[k] each: which of the first, which of the second, where, and the size."""

    first: NDArray[np.int64]
    second: NDArray[np.int64]
    start: NDArray[np.int64]
    size: NDArray[np.int64]


@kernel
def _windowed(items, group, part, begin, window, owner, halves, outer, item, start, stop, holder):
    """Fill the last four. `owner` is [groups, shards, windows]; shards are `outer` times those inside."""
    shards = owner.shape[1]
    inner = shards // outer
    k = 0
    for i in range(len(part)):
        size = part[i]
        if size == 0:
            continue
        for half in range(halves):
            at = begin[i] + half * size
            first, last = at // window[i], (at + size - 1) // window[i]
            for place in range(shards):
                shard = place
                if half == 1:  # the mirrored ones come back
                    shard = (outer - 1 - place // inner) * inner + place % inner
                base = (half * shards + place) * size
                for turn in range(first, last + 1):
                    item[k] = items[i]
                    start[k] = base + max(turn * window[i] - at, 0)
                    stop[k] = base + min((turn + 1) * window[i] - at, size)
                    holder[k] = owner[group[i], shard, turn]
                    k += 1


def windowed(
    packed: Packed, owner: NDArray[np.int32], halves: int, outer: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
    """Cut the parts of items in all shards where windows begin.

    `owner`, int32[groups, shards, windows], has each window. With 2 `halves` an item is two parts for each shard, the
    second ones in mirrored order of the `outer` shards; the other shards divide each of these. Returns items in the
    order in which they are given, of each, by where it begins, elements from start to stop, and who holds them.
    """
    _, _, part, begin, window = packed
    at = begin[:, None] + part[:, None] * np.arange(halves)
    each = np.maximum(window, 1)
    count = (at + part[:, None] - 1) // each[:, None] - at // each[:, None] + 1
    total = int(count[part > 0].sum()) * owner.shape[1]
    item, start, stop, rest = np.empty((4, total), dtype=np.int64)  # one block: large ones are cheaper to get
    holder = rest.view(np.int32)[:total]
    _windowed(*(read_only(array) for array in packed), read_only(owner), halves, outer, item, start, stop, holder)
    return item, start, stop, holder


@kernel
def _intersections(
    first_start, first_stop, first_of_item, lengths, item, start, stop, found_first, found_second, at, size
):
    """Fill the last four, as far as they have room; returns how many there are."""
    k, low, at_item = 0, np.int64(0), np.int64(-1)
    cursor = 0
    for second in range(len(item)):
        if item[second] != at_item or start[second] < low:
            at_item, cursor = item[second], first_of_item[item[second]]
        low, high = start[second], min(stop[second], lengths[at_item])
        last = first_of_item[at_item + 1]
        while cursor < last and first_stop[cursor] <= low:
            cursor += 1
        one = cursor
        while one < last and first_start[one] < high:
            begin = max(first_start[one], low)
            end = min(first_stop[one], high)
            if end > begin:
                if k < len(at):
                    found_first[k], found_second[k], at[k], size[k] = one, second, begin, end - begin
                k += 1
            one += 1
    return k


def intersections(
    first: tuple[NDArray[np.int64], NDArray[np.int64]], first_of_item: NDArray[np.int64], lengths: NDArray[np.int64],
    item: NDArray[np.int64], start: NDArray[np.int64], stop: NDArray[np.int64],
) -> Intersections:  # fmt: skip
    """Intersect tiles of items, of which no two of the first kind overlap, with others of them.

    `first` says where tiles of the first kind begin and end: item after item, in each ascending, none empty; item i has
    those from ``first_of_item[i]`` to ``first_of_item[i + 1]``. What lies beyond an item's length is left out. Tiles of
    the second kind come in any order; item after item, in each ascending, it takes O(s + t + k). Returned by tile of
    the second kind, in each ascending.
    """
    given = [read_only(array) for array in (*first, first_of_item, lengths, item, start, stop)]
    room = len(first[0]) + len(item)  # enough where no tiles of the second kind overlap either
    while True:
        found = Intersections(*np.empty((4, room), dtype=np.int64))
        count = _intersections(*given, *found)
        if count <= room:
            return Intersections(*(array[:count] for array in found))
        room = count
