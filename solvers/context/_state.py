"""A layout that is being changed: units of documents with their ranks, and what it costs to move some of them."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper
from solvers.context.masks import sees_from, work_before

Ints = NDArray[np.int64]


class Layout(NamedTuple):
    """Units by document and start, the first n of each array; and what ranks hold."""

    document: Ints  # int64[capacity]
    start: Ints
    stop: Ints
    rank: Ints
    tokens: Ints  # int64[g]
    work: Ints  # int64[m, g]


class Prices(NamedTuple):
    """What a layout may hold, and what it costs if it holds more; a weighted row received costs one."""

    caps: Ints  # int64[m]: work of a rank
    scales: Ints  # int64[m]: work above that costs `over` a token's mean work
    fewest: int  # tokens of a rank
    most: int
    over: int
    token: int  # of each token below or above
    exact: int  # 1 if no rank's tokens may change
    range: int  # of each range


@helper
def part_work(problem, k, d, p, q):
    """Work of positions p to q - 1 of a document under mask k."""
    kind, size = problem.kinds[k, d], problem.sizes[k, d]
    return work_before(kind, size, q) - work_before(kind, size, p)


@helper
def neighbours(layout, n, i, j, rank):
    """Stop of the last part of a rank before unit i in its document, start of its first part behind j; -1: none."""
    d = layout.document[i]
    before = after = np.int64(-1)
    # Within the document alone, and mostly a few steps: units of one document stand side by side.
    u = i - 1
    while u >= 0 and layout.document[u] == d:
        if layout.rank[u] == rank:
            before = layout.stop[u]
            break
        u -= 1
    u = j + 1
    while u < n and layout.document[u] == d:
        if layout.rank[u] == rank:
            after = layout.start[u]
            break
        u += 1
    return before, after


@helper
def keys_moved(problem, d, p, q, near_a, near_b):
    """Weighted rows more that must travel if p to q - 1 of a document leave the rank whose parts end and begin at
    `near_a` for that whose parts do at `near_b`.

    A part adds to what its rank's parts before it see: its last key less the larger of its first and their last.
    """  # noqa: D205 (one sentence)
    more = np.int64(0)
    seen_a, seen_b = max(near_a[0], 0), max(near_b[0], 0)
    for k in range(len(problem.weights)):
        kind, size = problem.kinds[k, d], problem.sizes[k, d]
        low = sees_from(kind, size, p)
        # Leaving a saves what lies between its last seen key and the run's; joining b adds the same there.
        change = max(low, seen_a) - max(low, seen_b)
        if near_a[1] >= 0:
            # What follows on a loses a neighbour whose keys it saw too.
            first = sees_from(kind, size, near_a[1])
            change += max(first, q) - max(first, seen_a)
        if near_b[1] >= 0:
            # And what follows on b gains one.
            first = sees_from(kind, size, near_b[1])
            change += max(first, seen_b) - max(first, q)
        more += problem.weights[k] * change
    return more


@helper
def ranges_moved(p, q, near_a, near_b):
    """How many ranges more ranks have, if the same positions move."""
    more = 1 if near_a[0] == p else 0
    more += 1 if near_a[1] == q else 0
    more -= 1 if near_b[0] == p else 0
    return more - (1 if near_b[1] == q else 0)


@helper
def excess(prices, layout, r, tokens, works, sign):
    """What a rank's tokens and work above limits cost, with so many tokens and so much work more or less."""
    held = layout.tokens[r] + sign * tokens
    cost = prices.token * (max(0, held - prices.most) + max(0, prices.fewest - held))
    for k in range(len(prices.caps)):
        over = layout.work[k, r] + sign * works[k] - prices.caps[k]
        if over > 0:
            # Whole scales and the rest apart, so that no product leaves int64
            scale = prices.scales[k]
            cost += 1 + over // scale * prices.over + over % scale * prices.over // scale
    return cost


@helper
def give(problem, layout, i, j, to):
    """Move units i to j, of one document and rank, to another rank."""
    p, q, d, own = layout.start[i], layout.stop[j], layout.document[i], layout.rank[i]
    for u in range(i, j + 1):
        layout.rank[u] = to
    layout.tokens[own] -= q - p
    layout.tokens[to] += q - p
    for k in range(len(problem.weights)):
        moved = part_work(problem, k, d, p, q)
        layout.work[k, own] -= moved
        layout.work[k, to] += moved


@helper
def split(layout, n, u, x):
    """Cut unit u at position x; the units behind it go one place on."""
    for v in range(n, u, -1):
        layout.document[v] = layout.document[v - 1]
        layout.start[v] = layout.start[v - 1]
        layout.stop[v] = layout.stop[v - 1]
        layout.rank[v] = layout.rank[v - 1]
    layout.stop[u] = x
    layout.start[u + 1] = x
