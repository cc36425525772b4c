"""What travels at least, whatever the layout: a key goes to all ranks but one that its queries need.

Ranks that together hold all queries of a key hold their tokens and their work, and the lightest positions there are
besides, as every rank must be full. Of the sets of queries of a document's keys one holds the next, or, of windows,
they first get heavier, then fewer; so where j ranks do not suffice is found by bisection.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers.context._problem import Problem
from solvers.context.masks import CHUNK, FULL, PADDING, WINDOW, work_before

Ints = NDArray[np.int64]


class Levels(NamedTuple):
    """How many positions have a work of v at most, and their sum: int64[m, v + 1]."""

    counts: Ints
    sums: Ints


class Limits(NamedTuple):
    """What all ranks, or all nodes, may hold; and how many there are."""

    ranks: int
    fewest: int
    most: int
    tokens: int
    caps: Ints


class _Keys(NamedTuple):
    """Keys of a document under a mask, whose sets of queries fall from key to key, or rise."""

    mask: int
    document: int
    first: int
    end: int


@helper
def _below(kind, size, p, q, v):
    """How many of queries p to q - 1 see v keys at most, and their work; these are the first of them."""
    if kind == PADDING:
        return q - p, np.int64(0)
    n = np.int64(max(0, min(q, v) - p))  # of full, and of chunks, which callers hand over by themselves
    if kind == WINDOW and v >= size:
        n = q - p
    return n, work_before(kind, size, p + n) - work_before(kind, size, p)


@helper
def _suffice(problem, levels, limits, of, d, p, q, j):
    """Whether j ranks may hold all of queries p to q - 1, which see a key under mask `of`: tokens and work allow it."""
    if q - p > j * limits.most:
        return False
    held = max(j * limits.fewest, limits.tokens - (limits.ranks - j) * limits.most)
    asked = max(0, held - (q - p))
    for k in range(len(problem.weights)):
        kind, size = problem.kinds[k, d], problem.sizes[k, d]
        # Queries in several chunks are not counted, and no window is by chunks: its queries do not get heavier there
        if kind == CHUNK and (p // size != (q - 1) // size or problem.kinds[of, d] == WINDOW):
            continue
        offset = p // size * size if kind == CHUNK else 0
        kind = FULL if kind == CHUNK else kind
        p_, q_ = p - offset, q - offset
        own = work_before(kind, size, q_) - work_before(kind, size, p_)
        if own > j * limits.caps[k]:
            return False
        low, high = 0, levels.counts.shape[1] - 1
        while low < high:  # the least level at which there are enough positions outside
            middle = (low + high) // 2
            if levels.counts[k, middle] - _below(kind, size, p_, q_, middle)[0] >= asked:
                high = middle
            else:
                low = middle + 1
        inside, work = _below(kind, size, p_, q_, low)
        spare = levels.counts[k, low] - inside - asked
        if own + levels.sums[k, low] - work - spare * low > j * limits.caps[k]:
            return False
    return True


@helper
def _queries(problem, k, d, q):
    """First query that sees key q, and one behind the last."""
    kind, size, length = problem.kinds[k, d], problem.sizes[k, d], problem.lengths[d]
    if kind == WINDOW:
        return q, min(length, q + size)
    if kind == CHUNK:
        return q, min(length, (q // size + 1) * size)
    return q, q + 1 if kind == PADDING else length


@helper
def _lacking(problem, levels, limits, keys, falls, j):
    """How many of these keys need more than j ranks; their sets fall from key to key, or rise."""
    first, last = keys.first, keys.end
    # If a set suffices, so does every smaller one: so those that need more are the first of them, or the last.
    while first < last:
        middle = (first + last) // 2
        p, q = _queries(problem, keys.mask, keys.document, middle)
        if _suffice(problem, levels, limits, keys.mask, keys.document, p, q, j) == falls:
            last = middle
        else:
            first = middle + 1
    return first - keys.first if falls else keys.end - first


@kernel(turns=200)
def keys_bound(problem, levels, limits, found):
    """Rows of each mask and document that must travel: found[0] by keys, found[1] by cuts, int64[2, m, n]."""
    for k in range(len(problem.weights)):
        for d in range(len(problem.lengths)):
            kind, size, length = problem.kinds[k, d], problem.sizes[k, d], problem.lengths[d]
            step = size if kind == CHUNK else length
            rising = max(0, length - size) if kind == WINDOW else 0
            for begin in range(0, length, step):
                end = min(length, begin + step)
                falling_keys, rising_keys = _Keys(k, d, begin + rising, end), _Keys(k, d, begin, begin + rising)
                # A key that needs more than j ranks travels to the j-th at least: each j counts it once more.
                for j in range(1, limits.ranks):
                    more = _lacking(problem, levels, limits, falling_keys, True, j)
                    if rising > 0:
                        more += _lacking(problem, levels, limits, rising_keys, False, j)
                    found[0, k, d] += more
                    if more == 0:
                        break
            if kind == WINDOW and size > 1:
                # Of so many positions, all but those of the rank that has the last one see a key each, or its window
                stretch = limits.most + size - 1
                found[1, k, d] = length // stretch * (size - 1) + max(0, length % stretch - limits.most)


@kernel
def _fill_levels(problem, counts, sums):
    for k in range(len(problem.weights)):
        for d in range(len(problem.lengths)):
            kind, size, length = problem.kinds[k, d], problem.sizes[k, d], problem.lengths[d]
            if kind == PADDING:
                counts[k, 0] += length
            elif kind == CHUNK:
                sums[k, size if length >= size else 0] += length // size  # so many times 1 to size
                sums[k, length % size] += 1
            elif kind == WINDOW:
                sums[k, min(length, size)] += 1
                counts[k, min(length, size)] += max(0, length - size)
            else:
                sums[k, length] += 1
        # `sums` holds how many ramps from 1 end at each level: a level is in all that end there or later
        ramps = np.int64(0)
        for v in range(counts.shape[1] - 1, 0, -1):
            ramps += sums[k, v]
            counts[k, v] += ramps
        sums[k, 0] = 0
        for v in range(1, counts.shape[1]):
            sums[k, v] = sums[k, v - 1] + v * counts[k, v]
            counts[k, v] += counts[k, v - 1]


def levels_of(problem: Problem) -> Levels:
    """Count positions by work. O(n + longest document)."""
    shape = len(problem.weights), int(problem.lengths.max()) + 1
    levels = Levels(np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64))
    _fill_levels(problem, *levels)
    return levels


def work_bound(problem: Problem) -> Ints:
    """Return what some rank computes at least: the mean, or what the query that sees most sees; int64[m]."""
    return np.maximum(-(-problem.work // problem.num_ranks), heaviest(problem))


def heaviest(problem: Problem) -> Ints:
    """Return how many keys the query sees that sees most: int64[m]."""
    kinds, sizes, lengths = problem.kinds, problem.sizes, problem.lengths
    capped = np.where((kinds == WINDOW) | (kinds == CHUNK), np.minimum(sizes, lengths), lengths)
    return np.asarray(np.where(kinds == PADDING, 0, capped).max(axis=1))


def travel_bound(problem: Problem, caps: Ints, levels: Levels, nodes: bool = False) -> tuple[int, str]:
    """Return the weighted rows that ranks, or nodes, receive at least, and the name of what proves it."""
    each = problem.ranks_per_node if nodes else 1
    limits = Limits(problem.num_ranks // each, problem.fewest * each, problem.most * each, problem.tokens,
                    caps * each)  # fmt: skip
    found = np.zeros((2, *problem.kinds.shape), dtype=np.int64)
    keys_bound(problem, levels, limits, found)
    total = int(problem.weights @ found.max(axis=0).sum(axis=1))
    by_cuts = (found[1] > found[0]).any()
    return total, ("keys + cuts" if (found[0] > found[1]).any() else "cuts") if by_cuts else "keys"
