"""Groups to places of limited room, so that as much as possible is kept: the transportation problem, exactly.

Row g holds what group g would keep in each place where that is more than nothing; in every other place it keeps 0, and
these many cells are never stored: one *hub*, which every group reaches at 0 and from which every place is reached,
stands for them. Places have prices, and group g's surplus is the most that ``kept[g, p] - price[p]`` comes to. For
*any* prices

    sum of surpluses + sum over places of (room * price) >= what any assignment keeps,

and where every group sits in a place that gives it its surplus, the two sides are equal: optimal, and the prices are
the proof. Two kernels reach that state. The auction raises prices in large steps and ends near it; augmentation by
shortest paths, from any prices, ends in it. All in integers, one group after the other: deterministic.

Groups that keep nothing anywhere are alike, and so are places where nobody keeps anything: where there are many, the
problem is solved without them.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers._loops import copy, largest_of, smallest_of, sum_of

# Longer than any path.
_FAR = np.int64(2**63 - 1)
# Auctions in steps of the largest amount / 2^k, one after the other; without auctions the work ends sooner than the
# search, and gaps are 194 ppm larger.
_COARSE_STEPS = (3, 6, 9, 12)
# An auction longer than this many passes over the data is left to the shortest paths, which end from any prices.
_PATIENCE = 64
# Up to so many groups that keep nothing cost less than to leave them out.
_FEW_GROUPS = 1024


class Rows(NamedTuple):
    """What each group would keep in each place, where that is more than nothing; written when it is made."""

    offsets: NDArray[np.int64]  # int64[groups + 1]: group g has the entries ``offsets[g] .. offsets[g + 1] - 1``
    places: NDArray[np.int32]  # int32[entries]
    kept: NDArray[np.int64]  # int64[entries], at least 0


class _Paths(NamedTuple):
    """Who sits where while groups are placed one by one, and room for a search of paths; all of it is written."""

    surplus: NDArray[np.int64]  # int64[groups]: the most that each gains at these prices
    slots: NDArray[np.int32]  # int32[groups]: the group in each slot, the filled ones of a place first
    filled: NDArray[np.int64]  # int64[places]: how many of its slots
    # Of a search. The hub is the last vertex
    distance: NDArray[np.int64]  # int64[places + 1]
    settled: NDArray[np.bool_]  # bool[places + 1]: its distance is final
    by_group: NDArray[np.int32]  # int32[places + 1]: the group that moves there
    heap: NDArray[np.int32]  # int32[vertices that may wait]
    keys: NDArray[np.int64]  # int64, as long: their distances


class _Busy(NamedTuple):
    """Groups that keep something somewhere, the places where, and how much of their room matters."""

    groups: NDArray[np.int64]
    places: NDArray[np.int64]
    rooms: NDArray[np.int64]


@helper
def _two_cheapest(price):
    """The two places of lowest price, ties to the lowest; the second is -1 if there is but one."""
    first, second = 0, -1
    for p in range(1, len(price)):
        if price[p] < price[first]:
            second = first
            first = p
        elif second < 0 or price[p] < price[second]:
            second = p
    return first, second


@helper
def _best_two(g, rows, price, first, second):
    """Where group g gains most, how much, and the most that it gains elsewhere (its own gain if there is no else)."""
    offsets, places, kept = rows
    best, gain, other = first, -price[first], -price[second]
    for e in range(offsets[g], offsets[g + 1]):
        p = places[e]
        value = kept[e] - price[p]
        if p == best:
            gain = max(gain, value)
        elif value > gain or (value == gain and p < best):
            other = max(other, gain)
            best, gain = p, value
        elif value > other:
            other = value
    return best, gain, other


@helper
def _auction(rows, starts, price, step, place_of_group, work):
    """Assign every group by bids that raise prices by more than `step`: at most (groups * step) below the optimum.

    Place p has the slots ``starts[p] .. starts[p + 1] - 1``. Prices are raised in place from any start. A group bids
    for the cheapest slot of the place that gains it most, up to where the next best place would gain it as much, and
    `step` more; who held the slot bids again. Returns the work left; below zero, some groups are without a place (-1).
    """
    offsets = rows.offsets
    num_groups, num_places = len(offsets) - 1, len(starts) - 1
    slot_price = np.empty(num_groups, dtype=np.int64)
    holder = np.empty(num_groups, dtype=np.int32)
    holder[:] = -1
    for p in range(num_places):
        slot_price[starts[p] : starts[p + 1]] = price[p]
    place_of_group[:] = -1
    waiting = np.empty(num_groups, dtype=np.int64)
    for g in range(num_groups):
        waiting[g] = num_groups - 1 - g
    size = num_groups
    first, second = _two_cheapest(price)
    while size > 0 and work >= 0:
        g = waiting[size - 1]
        size -= 1
        p, gain, other = _best_two(g, rows, price, first, second)
        # The cheapest slot of the place, and what the place costs once that is dearer.
        cheapest, next_price = starts[p], _FAR
        for s in range(starts[p] + 1, starts[p + 1]):
            if slot_price[s] < slot_price[cheapest]:
                next_price = slot_price[cheapest]
                cheapest = s
            elif slot_price[s] < next_price:
                next_price = slot_price[s]
        # Work is counted, not timed: some 10 for a bid, one for each entry or two slots that it reads.
        work -= 10 + (offsets[g + 1] - offsets[g]) + (starts[p + 1] - starts[p]) // 2
        # Dearer by what is lost at the next best place: there the group is as well off. By `step` more, or two groups
        # that gain as much from two places could outbid each other by nothing for ever.
        slot_price[cheapest] += gain - other + step
        if holder[cheapest] >= 0:  # who is outbid bids next
            waiting[size] = holder[cheapest]
            place_of_group[holder[cheapest]] = -1
            size += 1
        holder[cheapest] = g
        place_of_group[g] = p
        raised = min(slot_price[cheapest], next_price)
        if raised != price[p]:
            price[p] = raised
            if p in (first, second):
                first, second = _two_cheapest(price)
                work -= num_places // 4
    return work


@helper
def _surpluses(rows, price, surplus):
    offsets, places, kept = rows
    cheapest = smallest_of(price)
    for g in range(len(offsets) - 1):
        best = -cheapest
        for e in range(offsets[g], offsets[g + 1]):
            best = max(best, kept[e] - price[places[e]])
        surplus[g] = best


@helper
def _dual_value(rows, starts, price):
    """What no assignment can exceed, by these prices."""
    surplus = np.empty(len(rows.offsets) - 1, dtype=np.int64)
    _surpluses(rows, price, surplus)
    value = sum_of(surplus)
    for p in range(len(price)):
        value += (starts[p + 1] - starts[p]) * price[p]
    return value


dual_value_kernel = kernel(_dual_value)


@helper
def _kept_in(g, p, rows):
    offsets, places, kept = rows
    for e in range(offsets[g], offsets[g + 1]):
        if places[e] == p:
            return kept[e]
    return np.int64(0)


@helper
def _drop_loose(rows, price, place_of_group):
    """Take out of their places (-1) the groups whose surplus is larger elsewhere; return how many are out."""
    surplus = np.empty(len(rows.offsets) - 1, dtype=np.int64)
    _surpluses(rows, price, surplus)
    out = 0
    for g in range(len(surplus)):
        p = place_of_group[g]
        if p >= 0 and _kept_in(g, p, rows) - price[p] != surplus[g]:
            place_of_group[g] = -1
        out += place_of_group[g] < 0
    return out


@helper
def _push(heap, keys, size, vertex, key):
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        if keys[parent] <= key:
            break
        keys[i] = keys[parent]
        heap[i] = heap[parent]
        i = parent
    keys[i] = key
    heap[i] = vertex
    return size + 1


@helper
def _pop(heap, keys, size):
    """Drop the root; returns the new size."""
    size -= 1
    key, vertex = keys[size], heap[size]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and keys[child + 1] < keys[child]:
            child += 1
        if keys[child] >= key:
            break
        keys[i] = keys[child]
        heap[i] = heap[child]
        i = child
    keys[i] = key
    heap[i] = vertex
    return size


@helper
def _forget(starts, price, paths):
    """Begin a search. Returns the price of the cheapest place with room, and that place."""
    lowest_open, open_place = _FAR, -1
    for p in range(len(price)):
        paths.distance[p], paths.settled[p] = _FAR, False
        if paths.filled[p] < starts[p + 1] - starts[p] and price[p] < lowest_open:
            lowest_open, open_place = price[p], p
    paths.distance[-1], paths.settled[-1] = _FAR, False
    return lowest_open, open_place


@helper
def _reach(paths, size, vertex, distance, group):
    """Note a shorter way to a vertex: `group` moves there. Returns how many wait in the heap."""
    if distance >= paths.distance[vertex]:
        return size
    paths.distance[vertex], paths.by_group[vertex] = distance, group
    return _push(paths.heap, paths.keys, size, vertex, distance)


@helper
def _shortest_path(root, rows, starts, price, paths):
    """Dijkstra from group `root` over places to the nearest with room; returns it, its distance, and the work done.

    An arc from place p to place q moves a member h of p; its length is what h loses by it at these prices, so >= 0.
    """
    offsets, places, kept = rows
    hub, settled = len(price), paths.settled
    cheapest = smallest_of(price)
    lowest_open, open_place = _forget(starts, price, paths)
    size, work = np.int64(0), hub
    count, at = 1, np.int64(0)  # groups to move, and how far away they are
    vertex = -1
    while True:
        for k in range(count):
            h = root if vertex < 0 else paths.slots[starts[vertex] + k]
            base = at + paths.surplus[h]
            # Anywhere else h keeps nothing: the hub stands for the cheapest of all places.
            size = _reach(paths, size, hub, base + cheapest, h)
            for e in range(offsets[h], offsets[h + 1]):
                size = _reach(paths, size, places[e], base - kept[e] + price[places[e]], h)
            work += 10 + 2 * (offsets[h + 1] - offsets[h])
        while True:
            vertex, at = paths.heap[0], paths.keys[0]
            size = _pop(paths.heap, paths.keys, size)
            work += 20
            if settled[vertex]:
                continue
            settled[vertex] = True
            if vertex != hub:
                break
            # From the hub a path may go to any place. One that costs as much as the cheapest place with room, or more,
            # is of no use: the path could end in that one at once.
            for q in range(hub):
                if price[q] < lowest_open or q == open_place:
                    size = _reach(paths, size, q, at - cheapest + price[q], paths.by_group[hub])
            work += hub
        if paths.filled[vertex] < starts[vertex + 1] - starts[vertex]:
            return vertex, at, work
        count = paths.filled[vertex]


@helper
def _seated(rows, starts, price, place_of_group, slot_of_group):
    """Groups in slots of the places that they have; fills `slot_of_group`."""
    num_groups, num_places = len(place_of_group), len(price)
    most = len(rows.places) + 2 * num_groups + 2 * num_places + 2  # each entry waits once, hub and places twice
    paths = _Paths(
        np.empty(num_groups, np.int64), np.empty(num_groups, np.int32), np.zeros(num_places, np.int64),
        np.empty(num_places + 1, np.int64), np.zeros(num_places + 1, np.bool_), np.empty(num_places + 1, np.int32),
        np.empty(most, np.int32), np.empty(most, np.int64),
    )  # fmt: skip
    _surpluses(rows, price, paths.surplus)
    for g in range(num_groups):
        p = place_of_group[g]
        if p >= 0:
            slot_of_group[g] = starts[p] + paths.filled[p]
            paths.slots[slot_of_group[g]] = g
            paths.filled[p] += 1
    return paths


@helper
def _augment(rows, starts, price, place_of_group, work):
    """Complete an assignment to an optimal one: each group without a place (-1), in turn, by a shortest path.

    Every group that has a place must gain its surplus there (:func:`_drop_loose`); this stays so, and at the end no
    group is without. Returns the work left; below zero, it stopped early and some groups are without a place.
    """
    num_groups, num_places = len(place_of_group), len(price)
    slot_of_group = np.empty(num_groups, dtype=np.int32)
    paths = _seated(rows, starts, price, place_of_group, slot_of_group)
    for root in range(num_groups):
        if place_of_group[root] >= 0:
            continue
        if work < 0:
            break
        end, reach, spent = _shortest_path(root, rows, starts, price, paths)
        work -= spent + num_places
        for p in range(num_places):  # what was nearer than the end becomes dearer by as much
            if paths.settled[p] and paths.distance[p] < reach:
                rise = reach - paths.distance[p]
                price[p] += rise
                for s in range(starts[p], starts[p] + paths.filled[p]):
                    paths.surplus[paths.slots[s]] -= rise
        paths.surplus[root] -= reach
        # Each group on the path moves on, the last one first, into the slot that the next one left.
        p = end
        slot = starts[p] + paths.filled[p]
        paths.filled[p] += 1
        while True:
            h = paths.by_group[p]
            came_from, left = place_of_group[h], slot_of_group[h]
            place_of_group[h] = p
            slot_of_group[h] = slot
            paths.slots[slot] = h
            if h == root:
                break
            p, slot = came_from, left
    return work


@helper
def kept_by(rows, place_of_group):
    """What an assignment keeps."""
    total = np.int64(0)
    for g in range(len(place_of_group)):
        total += _kept_in(g, place_of_group[g], rows)
    return total


@kernel
def take_largest(rows, order, starts, place_of_group):
    """Greedy: the largest amount first, wherever its group is still without a place and its place has room.

    `order` lists the entries from the largest on. What is left fills the places in ascending order.
    """
    offsets, places = rows.offsets, rows.places
    num_groups = len(offsets) - 1
    group_of_entry = np.empty(len(places), dtype=np.int32)
    for g in range(num_groups):
        group_of_entry[offsets[g] : offsets[g + 1]] = g
    room = np.empty(len(starts) - 1, dtype=np.int64)
    for p in range(len(room)):
        room[p] = starts[p + 1] - starts[p]
    place_of_group[:] = -1
    for e in order:
        g, p = group_of_entry[e], places[e]
        if place_of_group[g] < 0 and room[p] > 0:
            place_of_group[g] = p
            room[p] -= 1
    p = 0
    for g in range(num_groups):
        if place_of_group[g] < 0:
            while room[p] == 0:
                p += 1
            place_of_group[g] = p
            room[p] -= 1


@kernel
def solve_parts(group_starts, place_starts, rows, starts, place_of_group, price, small, work):
    """Solve each part as :func:`solve_transport` does, all with the same `work`; return what the last left of it.

    Part k has the groups ``group_starts[k] .. group_starts[k + 1] - 1`` and the places ``place_starts[k] ..``; both are
    numbered from 0 in `places` and `place_of_group`.
    """
    left = work
    for k in range(len(group_starts) - 1):
        first, last = group_starts[k], group_starts[k + 1]
        begin, end = place_starts[k], place_starts[k + 1]
        own_offsets, own_starts = np.empty(last - first + 1, dtype=np.int64), np.empty(end - begin + 1, dtype=np.int64)
        for g in range(first, last + 1):
            own_offsets[g - first] = rows.offsets[g] - rows.offsets[first]
        for p in range(begin, end + 1):
            own_starts[p - begin] = starts[p] - starts[begin]
        entries = slice(rows.offsets[first], rows.offsets[last])
        own_rows = Rows(own_offsets, rows.places[entries], rows.kept[entries])
        left = _solve(own_rows, own_starts, place_of_group[first:last], price[begin:end], small, work)
    return left


@helper
def _solve(rows, starts, place_of_group, price, small, work):
    """As :func:`solve_transport`, of all groups and places."""
    num_groups, num_places = len(place_of_group), len(price)
    best = kept_by(rows, place_of_group)
    price[:] = 0
    proven = _dual_value(rows, starts, price)
    if proven == best:  # greedy met nobody's second choice
        return work
    # Auctions raise the prices, each from where the last one ended; every assignment and every price may be the best.
    current = np.zeros(num_places, dtype=np.int64)
    trial = np.empty(num_groups, dtype=np.int32)
    trial[:] = -1
    if small and num_places > 1:
        largest = largest_of(rows.kept)
        for shift in _COARSE_STEPS:
            if work < 0 or (largest >> shift) == 0:
                break
            allowance = min(work, _PATIENCE * (len(rows.places) + 16 * num_groups))
            left = _auction(rows, starts, current, largest >> shift, trial, allowance)
            work -= allowance - left
            bound = _dual_value(rows, starts, current)
            if bound < proven:
                proven = bound
                copy(price, current)
            if left < 0:
                break
            value = kept_by(rows, trial)
            if value > best:
                best = value
                copy(place_of_group, trial)
        _drop_loose(rows, current, trial)
    if work < 0:
        return work
    # Shortest paths seat the groups that are still without a place, from any prices.
    work = _augment(rows, starts, current, trial, work)
    if work >= 0:
        copy(place_of_group, trial)
        copy(price, current)
    elif small and _dual_value(rows, starts, current) < proven:
        copy(price, current)
    return work


def solve_transport(
    rows: Rows,
    starts: NDArray[np.int64],
    place_of_group: NDArray[np.int32],
    price: NDArray[np.int64],
    small: bool,
    work: int,
) -> int:
    """Improve an assignment to an optimal one, and find the prices that prove it, while `work` lasts.

    `rows` are what groups keep; elsewhere it is 0. Place p has room for ``starts[p + 1] - starts[p]`` groups; together
    they have room for exactly all groups. `place_of_group`, a complete assignment, is replaced by the best found, and
    `price` by the prices that prove most.
    Returns the work left; below zero, it ran out before the optimum was reached.

    `small`: whether sums of amounts stay far enough from the end of int64 for the auction, which only saves time.
    Without it prices start at 0, stay within 0 and the largest amount, and no path is longer than the sum of all.

    From any prices the augmentation takes O(groups * entries * log entries) at most; the auction, which can take long
    where many groups want the same places for almost the same, is given up long before that.
    """
    if len(place_of_group) > _FEW_GROUPS:
        busy = _busy(rows, starts)
        if 2 * (len(busy.groups) + int(busy.rooms.sum())) <= len(place_of_group):
            return _solve_busy(rows, starts, place_of_group, price, small, work, busy)
    groups, places = np.array([0, len(place_of_group)]), np.array([0, len(price)])
    return int(solve_parts(groups, places, rows, starts, place_of_group, price, small, work))


def _busy(rows: Rows, starts: NDArray[np.int64]) -> _Busy:
    """Find the groups and places that matter.

    Of a place that is a slot for each group that keeps something there, and one that none of them needs: with it the
    place is worth nothing to the others, as it is with more.
    """
    entries = np.bincount(rows.places, minlength=len(starts) - 1)
    wanted = np.flatnonzero(entries)
    return _Busy(
        np.flatnonzero(np.diff(rows.offsets)), wanted, np.minimum(np.diff(starts)[wanted], entries[wanted] + 1)
    )


def _solve_busy(
    rows: Rows,
    starts: NDArray[np.int64],
    place_of_group: NDArray[np.int32],
    price: NDArray[np.int64],
    small: bool,
    work: int,
    busy: _Busy,
) -> int:
    """As :func:`solve_transport`, of the busy groups and places alone; all the rest is one place, the last.

    Groups that keep nothing fill the rooms that are left.
    """
    offsets, places, kept = rows
    groups, wanted, rooms = busy
    rest = len(wanted)
    number = np.full(len(price), rest, dtype=np.int32)
    number[wanted] = np.arange(rest)
    own_starts = np.concatenate(([0], np.cumsum(rooms), [rooms.sum() + len(groups)]))
    own_offsets = np.full(own_starts[-1] + 1, len(places), dtype=np.int64)
    own_offsets[: len(groups)] = offsets[groups]  # those between have no entries
    # Start from where groups are and gain something; the others of them begin in the rest.
    group_of_entry = np.repeat(np.arange(len(place_of_group)), np.diff(offsets))
    gains = np.zeros(len(place_of_group), dtype=np.bool_)
    gains[group_of_entry[(places == place_of_group[group_of_entry]) & (kept > 0)]] = True
    own = np.full(own_starts[-1], -1, dtype=np.int32)
    own[: len(groups)] = np.where(gains[groups], number[place_of_group[groups]], rest)
    _fill(own, own_starts)
    own_price = np.empty(rest + 1, dtype=np.int64)
    work = solve_transport(Rows(own_offsets, number[places], kept), own_starts, own, own_price, small, work)
    # Prices count from that of the rest, which is worth nothing.
    price[:] = 0
    proven = dual_value_kernel(rows, starts, price)
    price[wanted] = own_price[:-1] - own_price[-1]
    if dual_value_kernel(rows, starts, price) > proven:  # stopped early
        price[:] = 0
    place_of_group[:] = -1
    inside = own[: len(groups)] < rest
    place_of_group[groups[inside]] = wanted[own[: len(groups)][inside]]
    _fill(place_of_group, starts)
    return work


def _fill(place_of_group: NDArray[np.int32], starts: NDArray[np.int64]) -> None:
    """Groups without a place (-1) to what room is left, both in ascending order."""
    free = place_of_group < 0
    room = np.diff(starts) - np.bincount(place_of_group[~free], minlength=len(starts) - 1)
    place_of_group[free] = np.repeat(np.arange(len(room), dtype=np.int32), room)
