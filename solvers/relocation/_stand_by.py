"""Small items to stand beside large ones, where ranks hold equal counts.

A rank with an item of nearly its cap needs others that are tiny. A node whose own are not small enough takes those that
a partition has beside the item, as few as possible: no two items share those, so that all large items are served.
"""

import numpy as np

from solvers._jit import helper, kernel
from solvers.relocation._exchange import by_group


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
def _in_need(costs, items, low, high, ranks, groups, members, begin, few, cap, reserved, taken, needs):
    """Reserve for each of a node's largest items what it lacks; return whether anything was.

    `taken` is what the others find in their own node.
    """
    small = np.empty(high - low, dtype=np.int64)
    size = 0
    for at in range(high - 1, low + ranks - 1, -1):
        taken[items[at]] = False
        if reserved[items[at]] < 0:
            small[size] = items[at]
            size += 1
    for at in range(low, min(low + ranks, high)):
        h = items[at]
        g = groups[h]
        if needs[g]:
            continue
        first = _own_window(costs, small, size, few - 1, cap - costs[h], taken)
        if first < 0 and members[begin[g]] == h:
            needs[g] = True
            for j in range(begin[g] + 1, begin[g + 1]):
                reserved[members[j]] = g
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
def _serve(costs, items, low, high, members, first, last, few, cap, rank, node_of_rank, where, reserved, taken, free):
    """Bring to `rank` what stands beside the first of `members`: its node's smallest, or members that are less."""
    h = members[first]
    g, node = reserved[h], node_of_rank[rank]
    beside = np.empty(few - 1, dtype=np.int64)
    size, total = 0, costs[h]
    for at in range(high - 1, low - 1, -1):
        i = items[at]
        mine = reserved[i] == g or (reserved[i] < 0 and not taken[i])
        if size < few - 1 and mine and i != h and free[i] and node_of_rank[where[i]] == node:
            beside[size] = i
            size += 1
            total += costs[i]
    at = last - 1
    for j in range(size - 1, -1, -1):  # from the largest of its own
        while at > first and (node_of_rank[where[members[at]]] == node or not free[members[at]]):
            at -= 1
        if total <= cap or at <= first or costs[members[at]] >= costs[beside[j]]:
            break
        total += costs[members[at]] - costs[beside[j]]
        _change(where, members[at], beside[j])
        free[members[at]] = False
        beside[j] = members[at]
    for j in range(size):
        free[beside[j]] = False
    free[h] = False
    at = low
    for j in range(size):  # to the rank, each for the largest there that does not belong
        if where[beside[j]] == rank:
            continue
        while at < high and (where[items[at]] != rank or not free[items[at]]):
            at += 1
        if at < high:
            _change(where, items[at], beside[j])


@kernel
def stand_by(costs, order, where, node_of_rank, ranks_of_node, groups, few, cap, free):
    """Bring together large items that lack small ones, and those that `groups` has beside them; these are not free.

    Every rank holds `few` items. Changes `where`, few items across nodes, and `free`. O(n + what lacks small ones).
    """
    m, k = len(node_of_rank), len(ranks_of_node)
    items, start = by_group(order, node_of_rank[where], k)
    members, begin = by_group(order, groups, m)
    reserved, needs = np.full(len(costs), -1), np.zeros(m, dtype=np.bool_)
    taken = np.zeros(len(costs), dtype=np.bool_)
    again, some = True, False
    while again:
        again = False
        for node in range(k):
            while _in_need(
                costs, items, start[node], start[node + 1], ranks_of_node[node], groups, members, begin, few, cap,
                reserved, taken, needs,
            ):  # fmt: skip
                again = some = True
    if not some:
        return
    used = np.zeros(m, dtype=np.bool_)
    for i in order:
        g = groups[i]
        if not needs[g] or members[begin[g]] != i:
            continue
        reserved[i] = g
        rank = where[i]
        node = node_of_rank[rank]
        if used[rank]:
            continue
        used[rank] = True
        _serve(
            costs, items, start[node], start[node + 1], members, begin[g], begin[g + 1], few, cap, rank, node_of_rank,
            where, reserved, taken, free,
        )  # fmt: skip
