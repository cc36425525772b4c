"""The search from its start: whole documents by work, long ones cut from their end, then passes of finer units."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from solvers.context._measure import Rows, as_rows
from solvers.context._problem import parts_of
from solvers.context._search import PASSES, Search

Ints = NDArray[np.int64]


def begin(search: Search, work: int) -> Iterator[Rows]:
    """Yield layouts of a search, exact in tokens."""
    rows = place(search)
    for parts_tokens, parts_work, share in PASSES:
        threshold = search.share * int(search.problem.weights.sum()) // share
        slack = max(1, search.share // (4 * parts_tokens))
        rows = search.improve(rows, (parts_tokens, parts_work), threshold, slack, 1, work // (len(PASSES) + 1))
    rows = search.exact(rows)
    yield rows
    for over in (4, 32, 256):
        rows = search.improve(rows, (64, 128), search.share // 256, 0, over, work // 4)
        yield rows
        if search.is_even(rows):
            return


def place(search: Search) -> Rows:
    """Place documents by work, the fullest rank that they fit first; units of those that fit nowhere, from the end."""
    problem = search.problem
    layout, n = search.layout(
        Rows(np.zeros_like(problem.lengths), np.arange(len(problem.lengths)), 0 * problem.lengths, problem.lengths),
        PASSES[0][:2],
    )
    document, start, stop = (each[:n].copy() for each in layout[:3])
    work = parts_of(problem, document, start, stop).work
    heavy = (work // np.maximum(1, search.caps >> 20)[:, None]).max(axis=0)  # of the mask whose cap it fills most
    full, g, share, size = 1 << 20, problem.num_ranks, search.share, problem.lengths
    sums = np.zeros(len(size), dtype=np.int64)
    np.add.at(sums, document, heavy)
    short = size <= np.sort(size)[len(size) // 2]
    light, of = int(sums[short].sum()), int(size[short].sum())  # work of tokens that fill up

    def filled(loads: Ints, room: Ints) -> Ints:
        """Return what ranks compute once their room has been filled with light tokens."""
        return np.asarray(loads + np.maximum(room, 0) * light // of)

    tokens, loads, rank = np.zeros(g, dtype=np.int64), np.zeros(g, dtype=np.int64), np.zeros(n, dtype=np.int64)
    firsts = np.searchsorted(document, np.arange(len(size) + 1))
    for d in np.argsort(-sums, kind="stable").tolist():
        room = share - tokens - size[d]
        fits = (room >= 0) & (filled(loads + sums[d], room) <= full)
        if fits.any():
            r = int(np.argmax(np.where(fits, tokens, -1)))
            rank[firsts[d] : firsts[d + 1]] = r
            tokens[r] += size[d]
            loads[r] += sums[d]
            continue
        u, r = int(firsts[d + 1]) - 1, -1
        while u >= firsts[d]:
            room = share - tokens - (stop[u] - start[u])
            left = full - filled(loads + heavy[u], room)
            if r < 0 or room[r] < 0 or left[r] < 0:  # on with the emptiest rank, of tokens or of work
                r = int(np.argmax(np.minimum(room * (full // share + 1), left)))
            rank[u] = r
            tokens[r] += stop[u] - start[u]
            loads[r] += heavy[u]
            u -= 1
    return as_rows(rank, document, start, stop)
