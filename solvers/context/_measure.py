"""What rows of a layout compute, receive and send: exact, by intervals."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers.context._problem import Parts, Problem, parts_of

Ints = NDArray[np.int64]


class Rows(NamedTuple):
    """Parts of documents on ranks, by rank, document and start; none touches the next."""

    rank: Ints
    document: Ints
    start: Ints
    stop: Ints


class MeasuredLayout(NamedTuple):
    """What a layout takes."""

    work: Ints  # int64[m, g]
    received: Ints  # int64[m, g]: rows of keys that others have
    sent: Ints  # int64[m, g]: rows of its own times the other ranks that need them
    crossing: int  # rows that some rank of another node needs, once a node, weighted
    ranges: Ints  # int64[g]


def as_rows(rank: Ints, document: Ints, start: Ints, stop: Ints) -> Rows:
    """Sort parts, and join those that touch on one rank. O(p log p)."""
    kept = np.flatnonzero(stop > start)
    order = kept[np.lexsort((start[kept], document[kept], rank[kept]))]
    rank, document, start, stop = (each[order] for each in (rank, document, start, stop))
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = (np.diff(rank) != 0) | (np.diff(document) != 0) | (start[1:] != stop[:-1])
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(order)) - 1
    return Rows(rank[first], document[first], start[first], stop[last])


def measure(problem: Problem, rows: Rows) -> MeasuredLayout:
    """Count what a layout takes. O(m p log p)."""
    ranks, node = problem.num_ranks, problem.ranks_per_node
    parts = parts_of(problem, *rows[1:])
    shape = len(problem.weights), ranks
    work, received, sent = (np.zeros(shape, dtype=np.int64) for _ in range(3))
    for k in range(shape[0]):
        np.add.at(work[k], rows.rank, parts.work[k])
        fresh = _fresh(rows, parts, k)
        # A rank's own keys need not travel; what it sees before them, and others have, must.
        own = rows.stop - rows.start
        np.add.at(received[k], rows.rank, rows.stop - fresh - own)
        np.add.at(sent[k], rows.rank, _seen(problem, rows, fresh) - own)
    crossing = 0
    if node < ranks:
        # Ranks of a node as one: what one of them has received is there for all of them.
        on_nodes = as_rows(rows.rank // node, *rows[1:])
        seen = parts_of(problem, *on_nodes[1:])
        for k, weight in enumerate(problem.weights.tolist()):
            needed = on_nodes.stop - _fresh(on_nodes, seen, k)
            crossing += weight * (int(needed.sum()) - problem.tokens)
    return MeasuredLayout(work, received, sent, crossing, np.bincount(rows.rank, minlength=ranks))


def _fresh(rows: Rows, parts: Parts, k: int) -> Ints:
    """Return the first key that each row sees and the rank's rows before it do not; both ends rise from row to row."""
    fresh: Ints = parts.low[k].copy()
    after = np.flatnonzero((np.diff(rows.rank) == 0) & (np.diff(rows.document) == 0)) + 1
    fresh[after] = np.maximum(fresh[after], rows.stop[after - 1])
    return fresh


def _seen(problem: Problem, rows: Rows, low: Ints) -> Ints:
    """Return of each row how often its keys are seen: in intervals of documents, of which a rank's are disjoint."""
    offset = np.cumsum(problem.lengths) - problem.lengths  # all documents on one axis

    def up_to(ends: Ints, points: Ints) -> Ints:
        """Sum over all ends below a point of the distance to it."""
        ends = np.sort(ends)
        sums = np.append(0, np.cumsum(ends))
        below = np.searchsorted(ends, points)
        return np.asarray(below * points - sums[below])

    at = offset[rows.document]
    points = np.concatenate((at + rows.start, at + rows.stop))
    # The number of seen intervals over each position, summed up to a point: each end adds its distance to it, begins
    # plus, ends minus. So no position is looked at by itself.
    counted = up_to(at + low, points) - up_to(at + rows.stop, points)
    half = len(rows.rank)
    return np.asarray(counted[half:] - counted[:half])
