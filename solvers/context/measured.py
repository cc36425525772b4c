"""What a layout of a pack takes: one that is given, or one by the rule of a framework."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers.context._measure import MeasuredLayout, Rows, as_rows, measure
from solvers.context._problem import Problem, as_problem
from solvers.context.layouts import RULES
from solvers.errors import ArgumentError

Ints = NDArray[np.int64]
Layout = str | tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike]
"""The name of a rule, or rows: the rank, document, start and stop of each run of tokens."""


def measure_layout(
    lengths: ArrayLike,
    num_ranks: int,
    rows: Layout,
    *,
    ranks_per_node: int | None = None,
    masks: Mapping[str, int] | None = None,
    pad: bool = False,
) -> MeasuredLayout:
    """Count what ranks compute, receive and send by a layout.

    Parameters
    ----------
    lengths, num_ranks, ranks_per_node, masks, pad
        As :func:`solvers.context_shards` has them.
    rows : rank, document, start and stop, int64[p] each; or str
        The layout: rank ``rank[i]`` holds positions ``start[i]`` to ``stop[i] - 1`` of a document. With `pad` it may
        leave padding out, which then goes to the ranks that have less than their share. Or the name of a rule:
        ``"head_tail"``, of the pack (PyTorch's and Megatron's default); ``"per_document"``, head and tail of each
        document (Megatron's of packed documents); ``"round_robin"``, tiles by work (PyTorch's PTRR).

    Returns
    -------
    MeasuredLayout

    Raises
    ------
    ArgumentError
        If the rows do not tile the documents, or the rule is not known.

    Notes
    -----
    O(p log p) of p parts, a mask; ``round_robin`` has a part for each 128 tokens.

    Examples
    --------
    >>> whole = ([0, 1], [0, 1], [0, 0], [512, 512])
    >>> [int(measure_layout([512, 512], 2, rows).received.sum()) for rows in (whole, "head_tail")]
    [0, 512]
    """
    problem = as_problem(lengths, num_ranks, ranks_per_node, 1, masks, 0, pad)
    if not isinstance(rows, str):
        return measure(problem, _given(problem, rows, np.size(lengths)))
    if rows not in RULES:
        raise ArgumentError("rows", f"be four arrays, or one of {', '.join(RULES)}", repr(rows))
    return measure(problem, RULES[rows](problem))


def _given(problem: Problem, rows: tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike], documents: int) -> Rows:
    """Return the rows of a layout, if they tile the documents, with padding where it is left out."""
    rank, document, start, stop = (np.asarray(each, dtype=np.int64) for each in rows)
    if len(rank) and (min(rank.min(), document.min()) < 0 or rank.max() >= problem.num_ranks):
        raise ArgumentError("rows", f"have ranks within 0..{problem.num_ranks - 1}", int(rank.max()))
    padding = len(problem.lengths) > documents
    # Padding fills up each rank to its share, in the order of ranks: any other order computes and sends the same.
    if padding and not (document == documents).any():
        lacking = problem.tokens // problem.num_ranks - np.bincount(rank, stop - start, problem.num_ranks).astype(int)
        ends = np.cumsum(lacking)
        rank, document = np.append(rank, np.arange(len(ends))), np.append(document, np.full(len(ends), documents))
        start, stop = np.append(start, ends - lacking), np.append(stop, ends)
    kept = np.flatnonzero(stop > start)
    order = kept[np.lexsort((start[kept], document[kept]))]
    # One behind the other, parts of a document begin where the one before ends, and the first and last at its ends
    offset = np.append(0, np.cumsum(problem.lengths))
    known = bool((document[order] < len(problem.lengths)).all())
    edges = np.append(0, offset[document[order]] + stop[order]) if known else np.empty(0, dtype=np.int64)
    begins = offset[document[order]] + start[order] if known else edges
    inside = known and (stop[order] <= problem.lengths[document[order]]).all() and (start[order] >= 0).all()
    if not (inside and (edges[:-1] == begins).all() and edges[-1] == problem.tokens):
        raise ArgumentError("rows", "tile the documents", f"{len(rank)} parts")
    return as_rows(rank, document, start, stop)
