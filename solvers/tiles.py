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


class Tiles(NamedTuple):
    """Parts of items as integer intervals; all of it is written."""

    item: NDArray[np.int64]  # int64[k]
    start: NDArray[np.int64]  # int64[k]
    stop: NDArray[np.int64]  # int64[k]
    holder: NDArray[np.int32]  # int32[k]


@kernel
def _windowed(packed, owner, halves, outer, tiles):
    """Fill the tiles. `owner` is [groups, shards, windows]; shards are `outer` times those inside. O(tiles)."""
    shards = owner.shape[1]
    inner = shards // outer
    k = 0
    for i in range(len(packed.part)):
        size, window = packed.part[i], packed.window[i]
        if size == 0:
            continue
        for half in range(halves):
            at = packed.begin[i] + half * size
            # A part may reach over several windows, each with another holder.
            first, last = at // window, (at + size - 1) // window
            for place in range(shards):
                shard = place
                if half == 1:  # the mirrored ones come back
                    shard = (outer - 1 - place // inner) * inner + place % inner
                base = (half * shards + place) * size
                for turn in range(first, last + 1):
                    tiles.item[k] = packed.item[i]
                    tiles.start[k] = base + max(turn * window - at, 0)
                    tiles.stop[k] = base + min((turn + 1) * window - at, size)
                    tiles.holder[k] = owner[packed.group[i], shard, turn]
                    k += 1


def windowed(packed: Packed, owner: NDArray[np.int32], halves: int, outer: int) -> Tiles:
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
    tiles = Tiles(item, start, stop, rest.view(np.int32)[:total])
    _windowed(Packed(*(read_only(array) for array in packed)), read_only(owner), halves, outer, tiles)
    return tiles


class Given(NamedTuple):
    """Tiles of two kinds, nothing of which is written; see :func:`intersections`."""

    first_start: NDArray[np.int64]  # int64[s]
    first_stop: NDArray[np.int64]  # int64[s]
    first_of_item: NDArray[np.int64]  # int64[n + 1]
    lengths: NDArray[np.int64]  # int64[n]
    item: NDArray[np.int64]  # int64[t]
    start: NDArray[np.int64]  # int64[t]
    stop: NDArray[np.int64]  # int64[t]


@kernel
def _intersections(given, found):
    """Fill what is found, as far as it has room; returns how many there are."""
    first_start, first_stop, first_of_item = given.first_start, given.first_stop, given.first_of_item
    item, start, stop, lengths = given.item, given.start, given.stop, given.lengths
    k, low, at_item = 0, np.int64(0), np.int64(-1)
    cursor = 0
    for second in range(len(item)):
        # A new item, or back within it: the walk begins anew there. In ascending order it never does, which is what
        # makes it linear.
        if item[second] != at_item or start[second] < low:
            at_item, cursor = item[second], first_of_item[item[second]]
        low, high = start[second], min(stop[second], lengths[at_item])
        last = first_of_item[at_item + 1]
        # Tiles of the first kind that end before this one begins are passed over for good.
        while cursor < last and first_stop[cursor] <= low:
            cursor += 1
        one = cursor
        while one < last and first_start[one] < high:
            begin = max(first_start[one], low)
            end = min(first_stop[one], high)
            if end > begin:
                # Counted on where there is no room, so that the second call has enough.
                if k < len(found.size):
                    found.first[k], found.second[k] = one, second
                    found.start[k], found.size[k] = begin, end - begin
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
    given = Given(*map(read_only, (*first, first_of_item, lengths, item, start, stop)))
    room = len(first[0]) + len(item)  # enough where no tiles of the second kind overlap either
    while True:
        found = Intersections(*np.empty((4, room), dtype=np.int64))
        count = _intersections(given, found)
        if count <= room:
            return Intersections(*(array[:count] for array in found))
        room = count
