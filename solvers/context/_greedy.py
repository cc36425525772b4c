"""The search from its start: whole documents by work, long ones cut from their end, then passes of finer units.

Where ranks stand on nodes, nodes are searched first, as if each were a rank, and then the ranks inside each: what
crosses nodes falls several times, and what is exchanged inside a node crosses none.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from solvers.context._measure import Rows, as_rows
from solvers.context._problem import Problem, parts_of
from solvers.context._search import PASSES, Search, snapped

Ints = NDArray[np.int64]

# With one fifth 0.43 +- 0.24 points more cross nodes. With three fifths 0.15 +- 0.04 points less do, and ranks receive
# 37 +- 19 ppm more of all keys (2,304 other packs): it gains where it loses.
_OF_NODES = 2, 5
"""The share of the slack in work that nodes may use; the rest is left to the ranks inside."""

# With parts twice as large, 0.15 +- 0.10 points more cross nodes.
_FINE = 64, 128
"""Parts of a rank's tokens and of its work that units of the last passes are."""

# Rows *last passes* of benchmarks/ablation.py: without 4 the gap is 604 +- 31 ppm larger, without 32 436 +- 28.
# `_passes` ends at the first layout that is even, so the repeats of 256 are for packs that are not.
_OVER = 4, 32, 256, 256, 256
"""How dear work above caps is in the last passes, one after the other until no rank has any."""


def search(problem: Problem, caps: Ints, work: int) -> Iterator[Rows]:
    """Yield layouts, exact in tokens, better and better in work."""
    nodes, each = problem.num_ranks // problem.ranks_per_node, problem.ranks_per_node
    rows = _whole(problem)
    if nodes == 1 or each == 1:
        yield from _passes(Search(problem, caps, problem.num_ranks), rows, work)
        return
    mean = -(-problem.work // problem.num_ranks)
    fewest, most = problem.fewest * each, problem.most * each
    # Nodes as ranks. It costs ranks 92 +- 26 ppm of what they receive, and what crosses nodes of eight falls several
    # times.
    of_nodes = problem._replace(num_ranks=nodes, ranks_per_node=nodes, fewest=fewest, most=most)
    # Nodes get more slack than their ranks' mean, and less than all of it: what they use up, no rank inside can use
    # again.
    wide = mean * each + np.maximum(0, caps - mean) * each * _OF_NODES[0] // _OF_NODES[1]
    *_, on_nodes = _passes(Search(of_nodes, wide, nodes), rows, work // 2)
    inside = []
    for node in range(nodes):
        mine = on_nodes.rank == node
        found = Rows(*(part[mine] for part in on_nodes))._replace(rank=np.zeros(np.count_nonzero(mine), dtype=np.int64))
        if mine.any():  # with few tokens, and slack, a node may be empty
            *_, found = _passes(Search(problem, caps, each), found, work // (2 * nodes))
        inside.append(found._replace(rank=found.rank + node * each))
    together = as_rows(*(np.concatenate(parts) for parts in zip(*inside, strict=True)))
    yield together
    over_all = Search(problem, caps, problem.num_ranks)
    if not over_all.is_even(together):  # a node by itself may be uneven where all ranks together are not
        yield from _passes(over_all, _whole(problem), work)


def _whole(problem: Problem) -> Rows:
    none = np.zeros_like(problem.lengths)
    return Rows(none, np.arange(len(problem.lengths)), none, problem.lengths)


def _passes(search: Search, rows: Rows, work: int) -> Iterator[Rows]:
    """Yield layouts of the rows on the ranks of a search, until no rank has too much work."""
    rows = place(search, rows)
    weight = int(search.problem.weights.sum())
    for parts_tokens, parts_work, share in PASSES:
        threshold = search.share * weight // share
        slack = max(1, search.share // (4 * parts_tokens))
        # Coarse units first: a document that is cut where it need not be travels between its ranks from then on.
        # Tokens may differ a little until the last passes, as a unit seldom has a partner of exactly its size.
        rows = search.improve(rows, (parts_tokens, parts_work), threshold, slack, 1, work // (len(PASSES) + 1))
    rows = search.exact(rows)
    yield rows
    # A low threshold from here on: these passes even out work, and change little else.
    threshold, work = search.share * weight // 256, work // (len(PASSES) + 1)
    for over in _OVER:
        rows = search.improve(rows, _FINE, threshold, 0, over, work)
        yield rows
        if search.is_even(rows):
            return
        # Inside a node tokens stay exact: there the search over all ranks follows, which may loosen them.
        if search.ranks == search.problem.num_ranks:
            rows = loosened(search, rows, threshold, over, work)
            yield rows
            if search.is_even(rows):
                return


def loosened(search: Search, rows: Rows, threshold: int, over: int, work: int) -> Rows:
    """Let ranks differ in tokens again, then make them exact: odd lengths have few others to be exchanged for."""
    # Without this step the gap is 186 +- 28 ppm larger: row *tokens loose again* of benchmarks/ablation.py.
    rows = search.improve(snapped(search.problem, rows), _FINE, threshold, search.share // 32, over, work)
    return search.exact(rows)


def place(search: Search, rows: Rows) -> Rows:
    """Place rows by work, the fullest rank that they fit first; units of those that fit nowhere, from the end."""
    problem = search.problem
    of_rows = rows._replace(rank=np.arange(len(rows.rank)))
    document, start, stop, row = search.units(of_rows, PASSES[0][:2])
    work = parts_of(problem, document, start, stop).work
    # In 2**-20 of a cap, so that masks of very different work compare.
    heavy = (work // np.maximum(1, search.caps >> 20)[:, None]).max(axis=0)  # of the mask whose cap it fills most
    full, g, share, size = 1 << 20, search.ranks, search.share, rows.stop - rows.start
    sums, first, last = (np.zeros(len(size), dtype=np.int64) for _ in range(3))
    np.add.at(sums, row, heavy)
    begins = np.flatnonzero(np.diff(row, prepend=-1))
    first[row[begins]], last[row[begins]] = begins, np.append(begins[1:], len(row)) - 1
    # The shorter half of the rows stands for what fills ranks up at last: short documents have little work for a
    # token.
    short = size <= np.sort(size)[len(size) // 2]
    light, of = int(sums[short].sum()), int(size[short].sum())  # work of tokens that fill up

    def filled(loads: Ints, room: Ints) -> Ints:
        """Return what ranks compute once their room has been filled with light tokens."""
        return np.asarray(loads + np.maximum(room, 0) * light // of)

    tokens, loads, rank = np.zeros(g, dtype=np.int64), np.zeros(g, dtype=np.int64), np.zeros(len(row), dtype=np.int64)
    for d in np.argsort(-sums, kind="stable").tolist():
        room = share - tokens - size[d]
        fits = (room >= 0) & (filled(loads + sums[d], room) <= full)
        if fits.any():
            # Best fit by tokens: the fullest rank, so that others keep room for whole documents.
            r = int(np.argmax(np.where(fits, tokens, -1)))
            rank[first[d] : last[d] + 1] = r
            tokens[r] += size[d]
            loads[r] += sums[d]
            continue
        r = -1
        # From the end: the last tokens of a document see all before them, so they are its heaviest, and harder to
        # place.
        for u in range(int(last[d]), int(first[d]) - 1, -1):
            room = share - tokens - (stop[u] - start[u])
            left = full - filled(loads + heavy[u], room)
            if r < 0 or room[r] < 0 or left[r] < 0:  # on with the emptiest rank, of tokens or of work
                r = int(np.argmax(np.minimum(room * (full // share + 1), left)))
            rank[u] = r
            tokens[r] += stop[u] - start[u]
            loads[r] += heavy[u]
    return as_rows(rank, document, start, stop)
