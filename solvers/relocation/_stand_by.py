"""Small items to stand beside large ones, where ranks hold equal counts.

A rank with an item of nearly its cap needs others that are tiny. A node whose own are not small enough takes those that
a partition has beside the item, as few as possible: no two items share those, so that all large items are served.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers.relocation._exchange import by_group
from solvers.relocation._problem import Nodes


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

    reserved: NDArray[np.int64]  # int64[n]: the group whose largest item it stands beside; -1: none
    taken: NDArray[np.bool_]  # bool[n]: whether it stands beside a large item of its own node
    needs: NDArray[np.bool_]  # bool[m]: whether the largest item of a group lacks small ones
    free: NDArray[np.bool_]  # bool[n]: whether it may still change places


@helper
def _own_window(costs, small, size, few, room, taken):
    """Take the `few` items, one after another by cost, that come nearest to `room`; -1 if the smallest are over it.

    `small` has the node's items, ascending. Returns the place of the first, and marks them in `taken`.
    """
    if size < few:
        return -1
    total = np.int64(0)
    for j in range(few):
        total += costs[small[j]]
    if total > room:
        return -1
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
        if claims.reserved[items[at]] < 0:
            small[size] = items[at]
            size += 1
    # 2. The largest items choose first, as they have the least room beside them.
    for at in range(low, min(low + ranks, high)):
        h = items[at]
        g = lists.groups[h]
        if claims.needs[g]:
            continue
        first = _own_window(costs, small, size, few - 1, lists.cap - costs[h], claims.taken)
        if first < 0 and lists.members[lists.begin[g]] == h:
            claims.needs[g] = True
            for j in range(lists.begin[g] + 1, lists.begin[g + 1]):
                claims.reserved[lists.members[j]] = g
            return True
        size -= few - 1
        if first < 0 or first > few:
            return False  # the others are smaller, and what is smaller is left to them
    return False


@helper
def _change(where, x, y):
    """Two items change places."""
    where[x], where[y] = where[y], where[x]


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
        mine = claims.reserved[i] == g or (claims.reserved[i] < 0 and not claims.taken[i])
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
        _change(where, members[at], beside[j])
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
            _change(where, items[at], beside[j])


@kernel
def stand_by(items, nodes, groups, few, cap, where, free):
    """Bring together large items that lack small ones, and those that `groups` has beside them; these are not free.

    Every rank holds `few` items. Changes `where`, few items across nodes, and `free`. O(n + what lacks small ones).
    """
    n, m, k = len(items.costs), len(nodes.of_rank), len(nodes.start) - 1
    listed, start = by_group(items.order, nodes.of_rank[where], k)
    members, begin = by_group(items.order, groups, m)
    lists = _Lists(items.costs, nodes, listed, start, groups, members, begin, few, cap)
    claims = _Claims(np.full(n, -1), np.zeros(n, np.bool_), np.zeros(m, np.bool_), free)
    # What is reserved for one node's item, another node cannot take: so all are asked again until none needs more.
    again, some = True, False
    while again:
        again = False
        for node in range(k):
            while _reserve(lists, claims, node):
                again = some = True
    if not some:
        return
    # A rank serves one large item; if it has two, the smaller one has to leave it anyway.
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
