"""From nodes to ranks: which node each item goes to where ranks hold equal counts, and then which rank of it.

Large items need tiny ones beside them (:func:`stand_by`). Then items of different nodes change places, so that nodes
come under their room while counts stay as they are (:func:`exchange_nodes`): a node that is over gives a large item and
takes one of the smallest elsewhere, so that little more crosses than the large one, and few such exchanges are enough.
What has another node after that is put on a rank there (:func:`settle`), by a tournament of ranks.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers._loops import copy
from solvers.relocation._problem import NONE, Nodes

_SMALLEST = 32  # items of a node that may come back
_FIRSTS = 24  # items that may go as the first of two
_NEVER = 2**62
_DEEPEST = 2**63 - 1
_NO_PAIR = (NONE, NONE)


# --- small items to stand beside large ones --------------------------------------------------------------------------


class _Lists(NamedTuple):
    """Items by node and by group, all by descending cost. Read alone."""

    costs: NDArray[np.int64]  # int64[n]
    nodes: Nodes
    items: NDArray[np.int64]  # int64[n]: node by node, as they were before any changed places
    start: NDArray[np.int64]  # int64[k + 1]: where each node begins
    groups: NDArray[np.int32]  # int32[n]: the group of each item in a partition
    members: NDArray[np.int64]  # int64[n]: group by group
    begin: NDArray[np.int64]  # int64[m + 1]: where each group begins
    few: int  # items of every rank
    cap: int  # of a load


class _Claims(NamedTuple):
    """Which items are meant for whom. Writable."""

    reserved: NDArray[np.int64]  # int64[n]: the group whose largest item it stands beside; NONE: none
    taken: NDArray[np.bool_]  # bool[n]: whether it stands beside a large item of its own node
    needs: NDArray[np.bool_]  # bool[m]: whether the largest item of a group lacks small ones
    free: NDArray[np.bool_]  # bool[n]: whether it may still change places


@kernel
def stand_by(items, nodes, groups, few, cap, where, free):
    """Bring together large items that lack small ones, and those that `groups` has beside them; these are not free.

    A rank with an item of nearly its cap needs others that are tiny. A node whose own are not small enough takes those
    that a partition has beside the item, as few as possible: no two items share those, so that all are served. Every
    rank holds `few` items. Changes `where`, few items across nodes, and `free`. O(n + what lacks small ones).
    """
    n, m, k = len(items.costs), len(nodes.of_rank), len(nodes.start) - 1
    listed, start = _by_group(items.order, nodes.of_rank[where], k)
    members, begin = _by_group(items.order, groups, m)
    lists = _Lists(items.costs, nodes, listed, start, groups, members, begin, few, cap)
    claims = _Claims(np.full(n, NONE), np.zeros(n, np.bool_), np.zeros(m, np.bool_), free)
    # 1. What is reserved for one node's item, another node cannot take: so all are asked again until none needs more.
    again, some = True, False
    while again:
        again = False
        for node in range(k):
            while _reserve(lists, claims, node):
                again = some = True
    if not some:
        return
    # 2. A rank serves one large item; if it has two, the smaller one has to leave it anyway.
    used = np.zeros(m, dtype=np.bool_)
    for i in items.order:
        g = groups[i]
        if not claims.needs[g] or members[begin[g]] != i:
            continue
        claims.reserved[i] = g
        rank = where[i]
        if used[rank]:
            continue
        used[rank] = True
        _serve(lists, claims, where, g, rank)


@helper
def _reserve(lists, claims, node):
    """Reserve for the first of a node's largest items that lacks small ones what its group has; return if there is one.

    What the others find in their own node is then taken.
    """
    costs, items, few = lists.costs, lists.items, lists.few
    low, high = lists.start[node], lists.start[node + 1]
    ranks = lists.nodes.start[node + 1] - lists.nodes.start[node]
    # 1. What the node has besides one large item a rank, and which is meant for nobody, ascending.
    small = np.empty(high - low, dtype=np.int64)
    size = 0
    for at in range(high - 1, low + ranks - 1, -1):
        claims.taken[items[at]] = False
        if claims.reserved[items[at]] == NONE:
            small[size] = items[at]
            size += 1
    # 2. The largest items choose first, as they have the least room beside them.
    for at in range(low, min(low + ranks, high)):
        h = items[at]
        g = lists.groups[h]
        if claims.needs[g]:
            continue
        first = _own_window(costs, small, size, few - 1, lists.cap - costs[h], claims.taken)
        if first == NONE and lists.members[lists.begin[g]] == h:
            claims.needs[g] = True
            for j in range(lists.begin[g] + 1, lists.begin[g + 1]):
                claims.reserved[lists.members[j]] = g
            return True
        size -= few - 1
        if first == NONE or first > few:
            return False  # the others are smaller, and what is smaller is left to them
    return False


@helper
def _own_window(costs, small, size, few, room, taken):
    """Take the `few` items, one after another by cost, that come nearest to `room`; NONE if the smallest are over it.

    `small` has the node's items, ascending. Returns the place of the first, and marks them in `taken`.
    """
    if size < few:
        return NONE
    total = np.int64(0)
    for j in range(few):
        total += costs[small[j]]
    if total > room:
        return NONE
    first = 0
    while first + few < size and total + costs[small[first + few]] - costs[small[first]] <= room:
        total += costs[small[first + few]] - costs[small[first]]
        first += 1
    for j in range(first, first + few):
        taken[small[j]] = True
    for j in range(first + few, size):
        small[j - few] = small[j]
    return first


@helper
def _serve(lists, claims, where, g, rank):
    """Bring to `rank` what stands beside the first of group g: its node's smallest, or members that are less."""
    costs, items, members, free = lists.costs, lists.items, lists.members, claims.free
    node_of_rank, first, last = lists.nodes.of_rank, lists.begin[g], lists.begin[g + 1]
    h, node = members[first], node_of_rank[rank]
    low, high = lists.start[node], lists.start[node + 1]
    # 1. The smallest of its own node, which cross nothing.
    beside = np.empty(lists.few - 1, dtype=np.int64)
    size, total = 0, costs[h]
    for at in range(high - 1, low - 1, -1):
        i = items[at]
        mine = claims.reserved[i] == g or (claims.reserved[i] == NONE and not claims.taken[i])
        if size < lists.few - 1 and mine and i != h and free[i] and node_of_rank[where[i]] == node:
            beside[size] = i
            size += 1
            total += costs[i]
    # 2. While these are too much, the largest of them goes for the smallest member elsewhere: as few as can be.
    at = last - 1
    for j in range(size - 1, -1, -1):
        while at > first and (node_of_rank[where[members[at]]] == node or not free[members[at]]):
            at -= 1
        if total <= lists.cap or at <= first or costs[members[at]] >= costs[beside[j]]:
            break
        total += costs[members[at]] - costs[beside[j]]
        where[members[at]], where[beside[j]] = where[beside[j]], where[members[at]]
        free[members[at]] = False
        beside[j] = members[at]
    for j in range(size):
        free[beside[j]] = False
    free[h] = False
    # 3. To the rank, each for the largest there that does not belong.
    at = low
    for j in range(size):
        if where[beside[j]] == rank:
            continue
        while at < high and (where[items[at]] != rank or not free[items[at]]):
            at += 1
        if at < high:
            where[items[at]], where[beside[j]] = where[beside[j]], where[items[at]]


# --- nodes exchange items --------------------------------------------------------------------------------------------


class _Residents(NamedTuple):
    """Items, node by node, and which of them may still go."""

    # Read-only
    costs: NDArray[np.int64]  # int64[n]
    leave: NDArray[np.int64]  # int64[n]: what crosses more if the item leaves its node
    # Writable
    items: NDArray[np.int64]  # int64[n]: those of each node by descending cost
    free: NDArray[np.bool_]  # bool[n]: of each item, whether it may go


@kernel
def exchange_nodes(items, nodes, room, where, free, work):
    """Exchange free items until no node is over its room. Changes `where` and `free`.

    Returns whether none is over then, and the work left. O(n + exchanges * (items a node may return * log n)).
    """
    goal, loads = np.empty(len(where), np.int32), np.zeros(len(room), np.int64)
    for i in range(len(where)):
        goal[i] = nodes.of_rank[where[i]]
        loads[goal[i]] += items.costs[i]
    # First which node each item goes to, then which rank of it: an exchange of nodes leaves all counts as they are.
    done, work = _exchange(items, goal, loads, room, free, work)
    settle(items.order, goal, nodes, items.costs, True, where)
    return done, work


@helper
def _exchange(items, node_of_item, loads, room, free, work):
    """As :func:`exchange_nodes`, of nodes alone. Changes `node_of_item`, `loads` and `free`."""
    k, costs = len(loads), items.costs
    listed, start = _by_group(items.order, node_of_item, k)
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
        # 1. Who is most over gives to who has most room: together they end the fastest.
        a, b = first_of(givers, 0, k, 0), first_of(takers, 0, k, 0)
        excess, gap = loads[a] - room[a], room[b] - loads[b]
        if excess <= 0:
            return True, work
        if gap <= 0 or refused[b]:
            return False, work
        giver, taker = (start[a], start[a + 1]), (start[b], start[b + 1])
        # 2. Where there is room for all that is over, least volume counts; else that none of the room is wasted.
        if gap >= excess:
            goes, back = _choose(residents, giver, taker, excess, gap)
        else:
            goes, back = _filling(residents, giver, taker, gap, tolerance)
        if goes == NONE:
            refused[b] = True
            update(takers, b, _NEVER, 0, 0)  # until it changes
            continue
        # 3. Neither moves again, so that the lists stay as they are.
        x, y = listed[goes], listed[back]
        free[x] = free[y] = False
        node_of_item[x], node_of_item[y] = b, a
        loads[a] -= costs[x] - costs[y]
        loads[b] += costs[x] - costs[y]
        for node in (a, b):
            update(givers, node, room[node] - loads[node], 0, 0)
            update(takers, node, loads[node] - room[node], 0, 0)
            refused[node] = False
    return False, work


@helper
def _choose(residents, giver, taker, excess, gap):
    """Return the places of the pair that changes nodes next: what goes from the giver, what comes back; NONE if none.

    `giver` and `taker` are where the items of the nodes begin and end. One exchange, or the first of two, that come to
    just over the excess with the least volume; else the largest below it.
    """
    costs, leave, items = residents.costs, residents.leave, residents.items
    # 1. One exchange.
    goes, comes, volume = _enough(residents, giver, taker, excess, gap)
    back = _next_free(residents, taker[1] - 1, -1, taker[0] - 1)
    second = _next_free(residents, back - 1, -1, taker[0] - 1) if back >= taker[0] else back
    if second < taker[0]:
        return goes, comes
    # 2. Two. The two smallest come back. The first of two that go is not enough by itself; the second just tops it up.
    at = _last_of_at_least(residents, giver[0], giver[1], excess + costs[items[back]] + 1) + 1
    at = _next_free(residents, at, 1, giver[1])
    first, tried = NONE, 0
    while at < giver[1] and tried < _FIRSTS and costs[items[at]] > costs[items[back]]:
        first = at if first == NONE else first
        gone = costs[items[at]] - costs[items[back]]
        other = _least_over(residents, giver, items[second], excess - gone, gap - gone, at)
        if other != NONE:
            both = leave[items[at]] + leave[items[back]] + leave[items[other]] + leave[items[second]]
            if both < volume:
                goes, comes, volume = at, back, both
        tried += 1
        at = _next_free(residents, at + 1, 1, giver[1])
    return (goes, comes) if goes != NONE else (first, back)


@helper
def _enough(residents, giver, taker, excess, gap):
    """The pair that comes to just over `excess` with the least volume, and that volume: `_NEVER` if there is none."""
    leave, items = residents.leave, residents.items
    best, volume, tried = _NO_PAIR, np.int64(_NEVER), 0
    back = _next_free(residents, taker[1] - 1, -1, taker[0] - 1)
    while back >= taker[0] and tried < _SMALLEST:
        y = items[back]
        at = _least_over(residents, giver, y, excess, gap, NONE)
        if at != NONE and leave[items[at]] + leave[y] < volume:
            best, volume = (at, back), leave[items[at]] + leave[y]
        tried += 1
        back = _next_free(residents, back - 1, -1, taker[0] - 1)
    return best[0], best[1], volume


@helper
def _filling(residents, giver, taker, gap, tolerance):
    """The pair whose difference comes nearest to `gap`, the smallest items to come back first; `_NO_PAIR` if none."""
    costs, items = residents.costs, residents.items
    best, least, tried = _NO_PAIR, np.int64(_NEVER), 0
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
def _least_over(residents, giver, back, least, most, skip):
    """The place of the cheapest item that goes for `back`, their difference within `least` and `most`; NONE if none."""
    costs, items, free, low = residents.costs, residents.items, residents.free, giver[0]
    at = _last_of_at_least(residents, low, giver[1], least + costs[back])
    while at >= low and (not free[items[at]] or at == skip):
        at -= 1
    return at if at >= low and costs[items[at]] - costs[back] <= most else NONE


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
def _next_free(residents, at, step, end):
    """The next place from `at` on, in steps of 1 or -1, whose item may still go, or `end`."""
    items, free = residents.items, residents.free
    while at != end and not free[items[at]]:
        at += step
    return at


# --- from a node to a rank of it -------------------------------------------------------------------------------------


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
def list_by_group(order, group_of_item, backwards, start, items):
    """Fill `items` group by group, in each in the given order or `backwards`, and `start` with where each begins.

    A counting sort: O(n), with no comparison.
    """
    start[:] = 0
    for group in group_of_item:
        start[group + 1] += 1
    for group in range(len(start) - 1):
        start[group + 1] += start[group]
    filled = start[:-1].copy()
    for k in range(len(order)):
        i = order[len(order) - 1 - k] if backwards else order[k]
        items[filled[group_of_item[i]]] = i
        filled[group_of_item[i]] += 1


@helper
def _by_group(order, group_of_item, k):
    """Items group by group, in each in the given order, and where each group begins."""
    start, items = np.empty(k + 1, dtype=np.int64), np.empty(len(order), dtype=np.int64)
    list_by_group(order, group_of_item, False, start, items)
    return items, start


class Tournament(NamedTuple):
    """The tree: vertex v is above 2 v and 2 v + 1, and the ranks are its last row."""

    major: NDArray[np.int64]
    minor: NDArray[np.int64]
    room: NDArray[np.int64]


@helper
def hold(major, minor, room):
    """The tournament of ranks with these numbers and this room: who comes first by two numbers, of some, with room.

    Ranks stand in a row. Every vertex of the binary tree above them knows the least pair of numbers, and the most room,
    of the ranks below it. Ties go to the rank that stands first. O(log m) a change.
    """
    width = 1
    while width < len(major):
        width *= 2
    tree = Tournament(
        np.full(2 * width, _DEEPEST), np.full(2 * width, _DEEPEST), np.full(2 * width, np.int64(-_DEEPEST))
    )
    copy(tree.major[width:], major)
    copy(tree.minor[width:], minor)
    copy(tree.room[width:], room)
    for v in range(width - 1, 0, -1):
        _decide(tree, v)
    return tree


@helper
def update(tree, rank, major, minor, room):
    """Give a rank other numbers."""
    v = (len(tree.room) >> 1) + rank
    tree.major[v], tree.minor[v], tree.room[v] = major, minor, room
    v >>= 1
    while v > 0:
        _decide(tree, v)
        v >>= 1


@helper
def first_of(tree, low, high, need):
    """The rank that comes first of those from `low` to `high` - 1 with room for `need`; NONE if none has."""
    width = len(tree.room) >> 1
    stack = np.empty((128, 2), dtype=np.int64)  # vertices, and how many ranks are below
    stack[0, 0], stack[0, 1], size = 1, width, 1
    best = NONE
    while size > 0:
        size -= 1
        v, below = stack[size, 0], stack[size, 1]
        left = v * below - width
        # What has too little room below it, or only ranks of others, is not entered; nor what comes after the best.
        if tree.room[v] < need or left >= high or left + below <= low:
            continue
        if best != NONE and (_before(tree, best, v) or (not _before(tree, v, best) and left > best - width)):
            continue
        if below == 1:
            best = v
            continue
        right_first = _before(tree, 2 * v + 1, 2 * v)
        stack[size, 0], stack[size + 1, 0] = (2 * v, 2 * v + 1) if right_first else (2 * v + 1, 2 * v)
        stack[size, 1] = stack[size + 1, 1] = below // 2
        size += 2
    return best - width if best != NONE else NONE


@helper
def _decide(tree, v):
    winner = 2 * v + 1 if _before(tree, 2 * v + 1, 2 * v) else 2 * v
    tree.major[v], tree.minor[v] = tree.major[winner], tree.minor[winner]
    tree.room[v] = max(tree.room[2 * v], tree.room[2 * v + 1])


@helper
def _before(tree, v, other):
    major, minor = tree.major, tree.minor
    return major[v] < major[other] or (major[v] == major[other] and minor[v] < minor[other])
