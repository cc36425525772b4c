"""Layouts by the rules of others, written anew: what frameworks ship, for reports to compare with.

All give each rank as many tokens as it must have, up to one; where a rule's pieces do not divide so, the last differ.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from solvers.context._measure import Rows, as_rows
from solvers.context._problem import Problem, parts_of

Ints = NDArray[np.int64]

# Queries of a tile: PyTorch's rule deals tiles of attention kernels, which have mostly 128.
_TILE = 128


def head_tail(problem: Problem) -> Rows:
    """The pack in 2 g parts, rank r has parts r and 2 g - 1 - r: PyTorch's and Megatron's default."""
    g = problem.num_ranks
    edges = np.arange(2 * g + 1) * problem.tokens // (2 * g)
    return _of_pack(problem, edges, np.minimum(np.arange(2 * g), 2 * g - 1 - np.arange(2 * g)))


def per_document(problem: Problem) -> Rows:
    """Each document in 2 g parts, head and tail together. Frameworks pad documents to 2 g; here parts differ by one.

    Where parts differ, each document's longer ones begin behind those of the document before, so that sums are even.
    """
    g, lengths = problem.num_ranks, problem.lengths
    own = np.minimum(np.arange(2 * g), 2 * g - 1 - np.arange(2 * g))
    share, rest = lengths // (2 * g), lengths % (2 * g)
    sizes = np.repeat(share[:, None], 2 * g, axis=1)
    behind = 0
    by_rank = np.argsort(own, kind="stable")  # parts of rank 0, of rank 1, ...
    dealt = np.concatenate((by_rank[::2], by_rank[1::2]))  # one to each rank, then the second
    for d, more in enumerate(rest.tolist()):
        sizes[d, dealt[(behind + np.arange(more)) % (2 * g)]] += 1
        behind += more
    stop = np.cumsum(sizes, axis=1)
    document = np.repeat(np.arange(len(lengths)), 2 * g)
    return as_rows(np.tile(own, len(lengths)), document, (stop - sizes).ravel(), stop.ravel())


def round_robin(problem: Problem) -> Rows:
    """Tiles of the pack by work, dealt to ranks to and fro: PyTorch's PTRR."""
    edges, work = _tiles(problem)
    g = problem.num_ranks
    order = np.argsort(-work, kind="stable")
    turn = np.arange(len(order)) % (2 * g)
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.minimum(turn, 2 * g - 1 - turn)
    return _of_pack(problem, edges, rank)


RULES: dict[str, Callable[[Problem], Rows]] = {
    "head_tail": head_tail,
    "per_document": per_document,
    "round_robin": round_robin,
}
"""By name."""


def _tiles(problem: Problem) -> tuple[Ints, Ints]:
    """Cut the pack into tiles, the last of what is left, of fewer tokens where ranks have few; return their work."""
    share = problem.tokens // problem.num_ranks
    # At least four tiles a rank, so that dealing can even out anything at all.
    tile = next((t for t in (_TILE, 64, 32, 16, 8, 4, 2) if share // t >= 4), 1)
    edges = np.append(np.arange(0, problem.tokens, tile), problem.tokens)
    rows = _of_pack(problem, edges, np.arange(len(edges) - 1))
    work = parts_of(problem, *rows[1:]).work * problem.weights[:, None]
    total = np.zeros(len(edges) - 1, dtype=np.int64)
    np.add.at(total, rows.rank, work.sum(axis=0))
    return edges, total


def _of_pack(problem: Problem, edges: Ints, rank: Ints) -> Rows:
    """Cut the documents of the pack, one behind the other, at the edges, and give each part its rank."""
    ends = np.cumsum(problem.lengths)
    cuts = np.union1d(edges, ends)
    start, stop = np.append(0, cuts[cuts > 0][:-1]), cuts[cuts > 0]
    document = np.searchsorted(ends, start, side="right")
    offset = ends - problem.lengths
    part = np.searchsorted(edges, start, side="right") - 1
    return as_rows(rank[part], document, start - offset[document], stop - offset[document])
