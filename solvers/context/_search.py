"""Search of a layout: units of documents exchanged for units of about as many tokens, then tokens made exact.

Threshold accepting: a change is taken if it costs less than a threshold that falls to nothing; most are refused, so
that each is priced before it is made.
"""

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers._loops import draw
from solvers.context._measure import Rows, as_rows
from solvers.context._problem import Problem, parts_of
from solvers.context._state import (
    Layout,
    Prices,
    excess,
    give,
    keys_moved,
    neighbours,
    part_work,
    ranges_moved,
    split,
)
from solvers.context.masks import PADDING, sees_from

Ints = NDArray[np.int64]


@helper
def _any_unit(random, n):
    """Draw one of up to 2**30 units."""
    return (draw(random, 1 << 15) * (1 << 15) + draw(random, 1 << 15)) % n


@helper
def _run_to_move(layout, n, random):
    """Draw up to six units of one document and rank, first and last, and the rank to move them to."""
    i = _any_unit(random, n)
    own, d = layout.rank[i], layout.document[i]
    j, longest = i, draw(random, 6)
    while j - i < longest and j + 1 < n and layout.document[j + 1] == d and layout.rank[j + 1] == own:
        j += 1
    # Half of all go to a rank that has what stands beside them, where few keys more are needed
    to, way = own, draw(random, 4)
    if way == 0 and i > 0 and layout.document[i - 1] == d:
        to = layout.rank[i - 1]
    elif way == 1 and j + 1 < n and layout.document[j + 1] == d:
        to = layout.rank[j + 1]
    return i, j, to if to != own else draw(random, len(layout.tokens))


@helper
def _run_back(layout, n, random, rank, tokens):
    """Draw units of a document that a rank has, as many tokens at least if they are there, and count units passed.

    The first is -1 if there are none, and in one case of eight.
    """
    # A move without return, so that ranks may come to differ in tokens as far as prices allow.
    if draw(random, 8) == 0:
        return -1, -1, 0
    s, looked = _any_unit(random, n), 0
    # From a random unit on to the next of that rank: no list of each rank's units has to be kept up to date.
    while layout.rank[s] != rank and looked < n:
        s = s + 1 if s + 1 < n else 0
        looked += 1
    if looked == n:
        return -1, -1, looked
    e, d = s, layout.document[s]
    while (
        e + 1 < n and layout.document[e + 1] == d and layout.rank[e + 1] == rank
        and layout.stop[e] - layout.start[s] < tokens
    ):  # fmt: skip
        e += 1
    return s, e, looked


@kernel
def anneal(problem, layout, n, prices, threshold, random, work):
    """Exchange units until the work is spent: at first what costs up to `threshold` is taken, at last nothing."""
    ranks, masks = len(layout.tokens), len(problem.weights)
    mine, others, none = np.zeros(masks, np.int64), np.zeros(masks, np.int64), np.zeros(masks, np.int64)
    left = work
    while left > 0 and n > 1 and ranks > 1:
        # A price that is counted, not timed: drawing and pricing the move; what is walked and made is added below.
        left -= 100
        i, j, b = _run_to_move(layout, n, random)
        a, d = layout.rank[i], layout.document[i]
        if a == b:
            continue
        # What it costs that the run leaves a for b: keys and ranges by themselves, work and tokens with what comes back
        p, q = layout.start[i], layout.stop[j]
        near_a, near_b = neighbours(layout, n, i, j, a), neighbours(layout, n, i, j, b)
        delta = keys_moved(problem, d, p, q, near_a, near_b) + prices.range * ranges_moved(p, q, near_a, near_b)
        for k in range(masks):
            mine[k] = part_work(problem, k, d, p, q)
        allowed = threshold * left // work
        before = excess(prices, layout, a, 0, none, 1) + excess(prices, layout, b, 0, none, 1)
        tokens = q - p
        s, e, looked = _run_back(layout, n, random, b, tokens)
        left -= looked // 2
        if s < 0:
            if not prices.exact:
                after = excess(prices, layout, a, tokens, mine, -1) + excess(prices, layout, b, tokens, mine, 1)
                if delta + after - before <= allowed:
                    give(problem, layout, i, j, b)
            continue
        other, p, q = layout.document[s], layout.start[s], layout.stop[e]
        if q - p - tokens > prices.most or (prices.exact and q - p != tokens):
            continue
        if other == d:  # the two meet in one document: the second is priced where the first is made
            give(problem, layout, i, j, b)
        near_b, near_a = neighbours(layout, n, s, e, b), neighbours(layout, n, s, e, a)
        delta += keys_moved(problem, other, p, q, near_b, near_a)
        delta += prices.range * ranges_moved(p, q, near_b, near_a)
        more = q - p - (0 if other == d else tokens)
        for k in range(masks):
            others[k] = part_work(problem, k, other, p, q) - (0 if other == d else mine[k])
        after = excess(prices, layout, a, more, others, 1) + excess(prices, layout, b, more, others, -1)
        if delta + after - before <= allowed:
            if other != d:
                give(problem, layout, i, j, b)
            give(problem, layout, s, e, a)
        # The first half was made to price the second. Refused, it is taken back.
        elif other == d:
            give(problem, layout, i, j, a)
        left -= 40


@kernel(turns=200)
def make_exact(problem, layout, n, prices):
    """Move tokens from ranks that have too many until all have as many as they must; return the number of units.

    Each transfer is as large as one of its two ranks needs, or a whole run: it adds a cut for one rank at most.
    """
    masks = len(problem.weights)
    moved, none = np.zeros(masks, np.int64), np.zeros(masks, np.int64)
    while True:
        a = b = 0
        for r in range(len(layout.tokens)):
            a = r if layout.tokens[r] > layout.tokens[a] else a
            b = r if layout.tokens[r] < layout.tokens[b] else b
        if layout.tokens[a] <= prices.most and layout.tokens[b] >= prices.fewest:
            return n
        best, chosen, to, begin, end = np.int64(1) << 61, -1, -1, np.int64(0), np.int64(0)
        for i in range(n):
            if layout.rank[i] != a:
                continue
            d = layout.document[i]
            first = i > 0 and layout.document[i - 1] == d and layout.rank[i - 1] == a
            last = i + 1 < n and layout.document[i + 1] == d and layout.rank[i + 1] == a
            # Only at an end of the rank's run: a cut inside would leave it two ranges where it had one.
            for tail in range(2):
                if (last if tail else first) or (tail and layout.stop[i] - layout.start[i] < 1):
                    continue
                # To the emptiest rank, or to the one that has what stands beside it: there the run goes on, and no
                # range is new.
                for beside in range(2):
                    target, u = b, i + 1 if tail else i - 1
                    if beside:
                        if u < 0 or u >= n or layout.document[u] != d:
                            continue
                        target = layout.rank[u]
                    asked = max(layout.tokens[a] - prices.most, prices.fewest - layout.tokens[target])
                    asked = min(asked, layout.tokens[a] - prices.fewest, prices.most - layout.tokens[target])
                    if asked <= 0:
                        continue
                    size = min(asked, layout.stop[i] - layout.start[i])
                    p = layout.stop[i] - size if tail else layout.start[i]
                    q = p + size
                    near_a, near_b = neighbours(layout, n, i, i, a), neighbours(layout, n, i, i, target)
                    if p > layout.start[i]:
                        near_a = (p, near_a[1])
                    if q < layout.stop[i]:
                        near_a = (near_a[0], q)
                    cost = keys_moved(problem, d, p, q, near_a, near_b)
                    cost += prices.range * ranges_moved(p, q, near_a, near_b)
                    for k in range(masks):
                        moved[k] = part_work(problem, k, d, p, q)
                    cost += excess(prices, layout, a, size, moved, -1) - excess(prices, layout, a, 0, none, 1)
                    cost += excess(prices, layout, target, size, moved, 1)
                    cost -= excess(prices, layout, target, 0, none, 1)
                    # For each token moved, in 64ths, as transfers differ in size.
                    cost = cost * 64 // size
                    if cost < best:
                        best, chosen, to, begin, end = cost, i, target, p, q
        if chosen < 0:  # not while the ranks hold as many tokens as they must together
            return n
        if end < layout.stop[chosen]:
            split(layout, n, chosen, end)
            n += 1
        if begin > layout.start[chosen]:
            split(layout, n, chosen, begin)
            n += 1
            chosen += 1
        give(problem, layout, chosen, chosen, to)


@kernel
def cut(problem, spans, parts, per_rank, units):
    """Cut spans (document, start, stop, rank) into units of a part of a rank's tokens and work; return how many.

    By the square-root law for causal attention: the work of a unit is its tokens times what its last query sees.
    """
    n = 0
    for row in range(spans.shape[1]):
        d, p, end = spans[0, row], spans[1, row], spans[2, row]
        while p < end:
            size = max(1, per_rank[0] // parts[0])
            last = min(end, p + size) - 1
            for k in range(len(problem.weights)):
                kind, width = problem.kinds[k, d], problem.sizes[k, d]
                sees = last + 1 - sees_from(kind, width, last)
                if kind != PADDING:
                    size = min(size, per_rank[1 + k] // (parts[1] * sees))
            # Up to the last place of the grid, from the document's start, that is no farther; to the next if none is
            q = (p + size) // problem.block * problem.block
            if q <= p:
                q = (p // problem.block + 1) * problem.block
            if q > end or (end - q) * 2 < q - p:
                q = end
            # Counted on where there is no room: the caller makes some, and comes again.
            if n < units.shape[1]:
                units[0, n], units[1, n], units[2, n], units[3, n] = d, p, q, spans[3, row]
            n += 1
            p = q
    return n


# Rows *pass 1* and *pass 2* of benchmarks/ablation.py, context shards, leave one out each. A pass before them, with a
# threshold four times as high, showed nothing there and went.
PASSES = ((8, 8, 32), (16, 24, 64))
"""Passes: parts of a rank's tokens and of its work that units are, and the threshold, a share of a rank's tokens."""

_MOST_OVER = 2**24
"""The largest price of work: that of 2**27 tokens stays far below int64, times 64 too."""


class Search:
    """What all passes have in common: the problem, the ranks in question and what each of them may hold.

    Parameters
    ----------
    problem : Problem
        Of its rows those that these ranks share are handed to each pass.
    caps : int64[m]
        Work of a rank.
    ranks : int
        All of the problem's, or those of a node.
    """

    def __init__(self, problem: Problem, caps: Ints, ranks: int) -> None:
        self.problem, self.caps, self.ranks = problem, caps, ranks
        self.random = np.array([1], dtype=np.int64)
        self.share = max(1, problem.tokens // problem.num_ranks)
        weight, mean = int(problem.weights.sum()), problem.work // problem.num_ranks
        # Where a document is much longer than a shard, its last tokens are worth far more than the mean
        steep = weight * max(1, int(problem.lengths.max()) // self.share)
        self.free = Prices(
            # An eighth of the slack is kept back, so that exact tokens and cuts on the grid, which follow, do not
            # break caps.
            caps - (caps - mean) // 8, np.maximum(1, problem.work // problem.tokens), problem.fewest, problem.most,
            4 * steep, 2 * weight, 0, 1 + weight * self.share // 256,
        )  # fmt: skip

    def prices(self, slack: int, over: int) -> Prices:
        """Return prices at which a rank may have some tokens more or less, and work above caps costs `over` times."""
        free = self.free
        return free._replace(
            fewest=free.fewest - slack, most=free.most + slack, over=min(over * free.over, _MOST_OVER),
            exact=int(slack == 0),
        )  # fmt: skip

    def units(self, rows: Rows, parts: tuple[int, int]) -> Ints:
        """Cut rows into units (document, start, stop, rank), by document and start: int64[4, n]."""
        spans = np.stack((rows.document, rows.start, rows.stop, rows.rank))
        spans = np.ascontiguousarray(spans[:, np.lexsort((rows.start, rows.document))])
        per_rank = np.append(self.share, self.caps)
        # Room for most packs at once; longer ones are cut twice.
        found = np.zeros((4, 4096), dtype=np.int64)
        arguments = self.problem, spans, np.array(parts, dtype=np.int64), per_rank
        n = cut(*arguments, found)
        if n > found.shape[1]:
            found = np.zeros((4, n), dtype=np.int64)
            cut(*arguments, found)
        return found[:, :n]

    def layout(self, rows: Rows, parts: tuple[int, int]) -> tuple[Layout, int]:
        """Cut rows into units, with room for the cuts that make tokens exact."""
        units = self.units(rows, parts)
        n = units.shape[1]
        # A transfer cuts a unit at two places at most, and each makes one rank exact.
        room = np.zeros((4, n + 2 * self.ranks + 2), dtype=np.int64)
        room[:, :n] = units
        tokens = np.zeros(self.ranks, dtype=np.int64)
        np.add.at(tokens, units[3], units[2] - units[1])
        return Layout(room[0], room[1], room[2], room[3], tokens, self.work(rows)), n

    def work(self, rows: Rows) -> Ints:
        """Return the work of each rank: int64[m, ranks]."""
        work = np.zeros((len(self.caps), self.ranks), dtype=np.int64)
        for k, each in enumerate(parts_of(self.problem, *rows[1:]).work):
            np.add.at(work[k], rows.rank, each)
        return work

    def improve(self, rows: Rows, parts: tuple[int, int], threshold: int, slack: int, over: int, work: int) -> Rows:
        """Exchange units, then make tokens exact, if no rank may have any too many or too few."""
        layout, n = self.layout(rows, parts)
        prices = self.prices(slack, over)
        anneal(self.problem, layout, n, prices, threshold, self.random, work)
        return rows_of(layout, n)

    def is_even(self, rows: Rows) -> bool:
        """Whether no rank has more work than it should."""
        return bool((self.work(rows).max(axis=1) <= self.caps).all())

    def exact(self, rows: Rows) -> Rows:
        """Give each rank as many tokens as it must have."""
        layout, n = self.layout(rows, (1, 1))
        n = make_exact(self.problem, layout, n, self.prices(0, 1))
        return rows_of(layout, n)


def rows_of(layout: Layout, n: int) -> Rows:
    """Return the rows of units."""
    return as_rows(*(each[:n] for each in (layout.rank, layout.document, layout.start, layout.stop)))


def snapped(problem: Problem, rows: Rows) -> Rows:
    """Move cuts within documents to the nearest place of the grid."""
    if problem.block == 1:
        return rows
    length = problem.lengths[rows.document]

    def on_grid(x: Ints) -> Ints:
        near = (x + problem.block // 2) // problem.block * problem.block
        return np.asarray(np.where((x == 0) | (x == length), x, np.minimum(near, length)))

    return as_rows(rows.rank, rows.document, on_grid(rows.start), on_grid(rows.stop))
