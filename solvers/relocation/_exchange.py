"""Items of different nodes change places, so that nodes come under their room while counts stay as they are.

A node that is over gives a large item and takes one of the smallest elsewhere: little more crosses than the large one,
and few such exchanges are enough.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers.relocation._tournament import first_of, hold, update

_SMALLEST = 32  # items of a node that may come back
_FIRSTS = 24  # items that may go as the first of two
_NEVER = 2**62


class _Residents(NamedTuple):
    """Items, node by node, and which of them may still go."""

    # Read-only
    costs: NDArray[np.int64]  # int64[n]
    leave: NDArray[np.int64]  # int64[n]: what crosses more if the item leaves its node
    # Writable
    items: NDArray[np.int64]  # int64[n]: those of each node by descending cost
    free: NDArray[np.bool_]  # bool[n]: of each item, whether it may go


@helper
def _last_of_at_least(residents, low, high, least):
    """The last place from `low` to `high` - 1, by descending cost, whose item costs `least`; low - 1 if none."""
    costs, items = residents.costs, residents.items
    while low < high:
        middle = (low + high) // 2
        if costs[items[middle]] >= least:
            low = middle + 1
        else:
            high = middle
    return low - 1


@helper
def _least_over(residents, giver, back, least, most, skip):
    """The place of the cheapest item that goes for `back`, their difference within `least` and `most`; -1 if none."""
    costs, items, free, low = residents.costs, residents.items, residents.free, giver[0]
    at = _last_of_at_least(residents, low, giver[1], least + costs[back])
    while at >= low and (not free[items[at]] or at == skip):
        at -= 1
    return at if at >= low and costs[items[at]] - costs[back] <= most else -1


@helper
def _next_free(residents, at, step, end):
    """The next place from `at` on, in steps of 1 or -1, whose item may still go, or `end`."""
    items, free = residents.items, residents.free
    while at != end and not free[items[at]]:
        at += step
    return at


@helper
def _filling(residents, giver, taker, gap, tolerance):
    """The pair whose difference comes nearest to `gap`, the smallest items to come back first; (-1, -1) if none."""
    costs, items = residents.costs, residents.items
    best, least, tried = (-1, -1), np.int64(_NEVER), 0
    back = _next_free(residents, taker[1] - 1, -1, taker[0] - 1)
    # Only of what comes back few are tried: for each, the item that fills the gap best is found by halving.
    while back >= taker[0] and tried < _SMALLEST and least > 0:
        y = costs[items[back]]
        at = _last_of_at_least(residents, giver[0], giver[1], gap + y + 1) + 1
        at = _next_free(residents, at, 1, giver[1])
        if at < giver[1] and costs[items[at]] > y:
            left = max(0, gap - (costs[items[at]] - y) - tolerance)
            if left < least:
                best, least = (at, back), left
        tried += 1
        back = _next_free(residents, back - 1, -1, taker[0] - 1)
    return best


@helper
def _enough(residents, giver, taker, excess, gap):
    """The pair that comes to just over `excess` with the least volume; its volume is last, 2**62 if there is none."""
    leave, items = residents.leave, residents.items
    best, volume, tried = (-1, -1), np.int64(_NEVER), 0
    back = _next_free(residents, taker[1] - 1, -1, taker[0] - 1)
    while back >= taker[0] and tried < _SMALLEST:
        y = items[back]
        at = _least_over(residents, giver, y, excess, gap, -1)
        if at >= 0 and leave[items[at]] + leave[y] < volume:
            best, volume = (at, back), leave[items[at]] + leave[y]
        tried += 1
        back = _next_free(residents, back - 1, -1, taker[0] - 1)
    return best[0], best[1], volume


@helper
def _choose(residents, giver, taker, excess, gap):
    """Return the places of the pair that changes nodes next: what goes from the giver, what comes back; -1 if none.

    `giver` and `taker` are where the items of the nodes begin and end. One exchange, or the first of two, that come to
    just over the excess with the least volume; else the largest below it.
    """
    costs, leave, items = residents.costs, residents.leave, residents.items
    goes, comes, volume = _enough(residents, giver, taker, excess, gap)
    back = _next_free(residents, taker[1] - 1, -1, taker[0] - 1)
    second = _next_free(residents, back - 1, -1, taker[0] - 1) if back >= taker[0] else back
    if second < taker[0]:
        return goes, comes
    # The two smallest come back. The first of two that go is not enough by itself; the second just tops it up.
    at = _last_of_at_least(residents, giver[0], giver[1], excess + costs[items[back]] + 1) + 1
    at = _next_free(residents, at, 1, giver[1])
    first, tried = -1, 0
    while at < giver[1] and tried < _FIRSTS and costs[items[at]] > costs[items[back]]:
        first = at if first < 0 else first
        gone = costs[items[at]] - costs[items[back]]
        other = _least_over(residents, giver, items[second], excess - gone, gap - gone, at)
        if other >= 0:
            both = leave[items[at]] + leave[items[back]] + leave[items[other]] + leave[items[second]]
            if both < volume:
                goes, comes, volume = at, back, both
        tried += 1
        at = _next_free(residents, at + 1, 1, giver[1])
    return (goes, comes) if goes >= 0 else (first, back)


@helper
def by_group(order, group_of_item, k):
    """Items group by group, in each in the given order, and where each group begins."""
    start = np.zeros(k + 1, dtype=np.int64)
    for group in group_of_item:
        start[group + 1] += 1
    for group in range(k):
        start[group + 1] += start[group]
    filled, items = start.copy(), np.empty(len(order), dtype=np.int64)
    for i in order:
        items[filled[group_of_item[i]]] = i
        filled[group_of_item[i]] += 1
    return items, start


@helper
def settle(order, goal, nodes, costs, equal_counts, where):
    """Put the items that are to be on other nodes on ranks there: where an item is missing, if counts count; by room.

    `goal` has the node of each item. Each in turn, in this order, to the emptiest rank of its node, of those with
    fewest items if counts count.
    """
    node_of_rank, ranks, node_start = nodes.of_rank, nodes.ranks, nodes.start
    weight = np.int64(equal_counts)
    loads, counts = np.zeros(len(ranks), dtype=np.int64), np.zeros(len(ranks), dtype=np.int64)
    arrives = np.empty(len(where), dtype=np.bool_)
    for i in range(len(where)):
        arrives[i] = node_of_rank[where[i]] != goal[i]
        if not arrives[i]:
            loads[where[i]] += costs[i]
            counts[where[i]] += 1
    by_node = hold(counts[ranks] * weight, loads[ranks], np.zeros(len(ranks), dtype=np.int64))
    for i in order:
        if not arrives[i]:
            continue
        node = goal[i]
        j = first_of(by_node, node_start[node], node_start[node + 1], 0)
        r = ranks[j]
        where[i] = r
        loads[r] += costs[i]
        counts[r] += 1
        update(by_node, j, counts[r] * weight, loads[r], 0)


@helper
def _exchange(items, node_of_item, loads, room, free, work):
    """As :func:`exchange_nodes`, which changes `node_of_item`, `loads` and `free`."""
    k, costs = len(loads), items.costs
    listed, start = by_group(items.order, node_of_item, k)
    residents = _Residents(costs, items.leave_node, listed, free)
    refused = np.zeros(k, dtype=np.bool_)
    # How far below its room a node may stay for nothing: a quarter of what it would have, were spare room even.
    spare = np.int64(0)
    for node in range(k):
        spare += room[node] - loads[node]
    tolerance = max(0, spare) // (4 * k)
    nothing = np.zeros(k, dtype=np.int64)
    givers, takers = hold(room - loads, nothing, nothing), hold(loads - room, nothing, nothing)
    while work > 0:
        work -= 8 * (_SMALLEST + _FIRSTS)
        # Who is most over gives to who has most room: together they end the fastest.
        a, b = first_of(givers, 0, k, 0), first_of(takers, 0, k, 0)
        excess, gap = loads[a] - room[a], room[b] - loads[b]
        if excess <= 0:
            return work
        if gap <= 0 or refused[b]:
            return 0
        giver, taker = (start[a], start[a + 1]), (start[b], start[b + 1])
        # Where there is room for all that is over, least volume counts; else that none of the room is wasted.
        if gap >= excess:
            goes, back = _choose(residents, giver, taker, excess, gap)
        else:
            goes, back = _filling(residents, giver, taker, gap, tolerance)
        if goes < 0:
            refused[b] = True
            update(takers, b, _NEVER, 0, 0)  # until it changes
            continue
        # Neither moves again, so that the lists stay as they are.
        x, y = listed[goes], listed[back]
        free[x] = free[y] = False
        node_of_item[x], node_of_item[y] = b, a
        loads[a] -= costs[x] - costs[y]
        loads[b] += costs[x] - costs[y]
        for node in (a, b):
            update(givers, node, room[node] - loads[node], 0, 0)
            update(takers, node, loads[node] - room[node], 0, 0)
            refused[node] = False
    return 0


@kernel
def exchange_nodes(items, nodes, room, where, free, work):
    """Exchange free items until no node is over its room. Changes `where` and `free`; returns the work left.

    O(n + exchanges * (items a node may return * log n)).
    """
    goal, loads = np.empty(len(where), np.int32), np.zeros(len(room), np.int64)
    for i in range(len(where)):
        goal[i] = nodes.of_rank[where[i]]
        loads[goal[i]] += items.costs[i]
    # First which node each item goes to, then which rank of it: an exchange of nodes leaves all counts as they are.
    work = _exchange(items, goal, loads, room, free, work)
    settle(items.order, goal, nodes, items.costs, True, where)
    return work
