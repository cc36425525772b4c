"""Context shards: which rank of a group has which tokens of a pack, so that work is even and little must travel."""

from __future__ import annotations

import time
from collections.abc import Mapping
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._budget import work_units
from solvers.arguments import as_budget
from solvers.context._greedy import search
from solvers.context._measure import MeasuredLayout, Rows, measure
from solvers.context._problem import Problem, as_problem, caps_of, most_rows_held
from solvers.context.bounds import levels_of, travel_bound, work_bound
from solvers.context.types import ContextShardsResult
from solvers.errors import SolverError
from solvers.types import SolveStatus, status_of

Ints = NDArray[np.int64]


def context_shards(
    lengths: ArrayLike,
    num_ranks: int,
    *,
    ranks_per_node: int | None = None,
    eps: Fraction | float | str = "0.02",
    block: int | None = None,
    masks: Mapping[str, int] | None = None,
    token_slack: int = 0,
    pad: bool = False,
    max_rows_held: int | None = None,
    time_budget: float = 0.05,
) -> ContextShardsResult:
    """Divide a pack of documents among the ranks of a context-parallel group.

    Attention stays within documents, so a rank computes the pairs of its queries, and receives the keys that these see
    and others have. Each rank has as many tokens as every other, no more work than a cap; of such layouts, one in which
    few rows of keys travel.

    Parameters
    ----------
    lengths : int64[n]
        Tokens of each document, all positive.
    num_ranks : int
        g, which divides the sum of `lengths`.
    ranks_per_node : int, optional
        Consecutive ranks that share a node, all nodes alike: what crosses nodes then counts before what ranks receive.
    eps : float or str
        A rank's work is at most the mean and this share of it, of each mask; or that of the most even layout found.
    block : int, optional
        Documents are cut at multiples of it from their start; up to ``g - 1`` cuts more make tokens exact. By default
        128; where a rank's tokens are fewer than 16 such blocks, the power of two of which they are 16.
    masks : dict from str to int, optional
        Layers by what their queries see: ``full`` (causal), ``windowN`` or ``chunkN``, and how many there are of each;
        by default ``{"full": 1}``.
    token_slack : int
        By how many tokens a rank may differ from the mean.
    pad : bool
        Add a document, the last, of as many tokens as the sum lacks of a multiple of g; nobody computes it.
    max_rows_held : int, optional
        The most rows that a rank may hold in a layer, its own included.
    time_budget : float
        Seconds' worth of work for the search, counted and not timed.

    Returns
    -------
    ContextShardsResult
        Rows, what each rank computes, receives and sends, and proven bounds. Its status speaks of rows received, and of
        work: where that is less even than `eps` allows, and may be more even, the status is ``FEASIBLE``.

    Raises
    ------
    TypeError, ValueError
        On bad arguments; layers whose state runs along the sequence are refused by name.
    InfeasibleError
        If `max_rows_held` is less than a rank's own rows.
    SolverError
        If no layout was found that keeps `max_rows_held`; there may be one.

    Notes
    -----
    Deterministic. O(longest document + long documents * g log^2) for the bounds, and a fixed amount of work.

    References
    ----------
    FlashCP, arXiv:2606.08476 (2026); FCP, arXiv:2605.08524 (2026). Search and bounds are this package's own.

    Examples
    --------
    Short documents stay whole, and nothing travels.

    >>> result = context_shards([512, 512, 512, 512], 2)
    >>> result.rank.tolist(), result.work.tolist(), result.total_received
    ([0, 0, 1, 1], [[262656, 262656]], 0)
    """
    started, budget = time.perf_counter(), as_budget(time_budget)
    problem = as_problem(lengths, num_ranks, ranks_per_node, block, masks, token_slack, pad)
    asked, most_rows = caps_of(problem, eps), most_rows_held(problem, max_rows_held)
    rows, measured = _best(problem, asked, most_rows, work_units(budget))
    # The bounds hold for the caps that the layout keeps, so both are reported together.
    most, least = measured.work.max(axis=1), work_bound(problem)
    caps = np.maximum(asked, most)
    levels = levels_of(problem)
    bound, name = travel_bound(problem, caps, levels)
    crossing = travel_bound(problem, caps, levels, nodes=True)[0] if measured.crossing else 0
    total = int((problem.weights @ measured.received).sum())
    held = int(measured.received.max(axis=0).max()) + problem.tokens // num_ranks
    return ContextShardsResult(
        *rows, measured.work, measured.received, measured.sent, measured.crossing, measured.ranges, problem.weights,
        total, caps, held, least, crossing, lower_bound=bound, bound_name=name,
        status=status_of(total, bound) if (most <= np.maximum(asked, least)).all() else SolveStatus.FEASIBLE,
        runtime_s=time.perf_counter() - started,
    )  # fmt: skip


def _best(problem: Problem, caps: Ints, most_rows: int, work: int) -> tuple[Rows, MeasuredLayout]:
    """Return the best layout of the search, and what it takes."""

    def judged(rows: Rows) -> tuple[tuple[int, ...], Rows, MeasuredLayout]:
        measured = measure(problem, rows)
        tokens = np.zeros(problem.num_ranks, dtype=np.int64)
        np.add.at(tokens, rows.rank, rows.stop - rows.start)
        held = int((measured.received + tokens).max())
        # In ppm of a cap, so that masks compare; then what crosses nodes, what travels, and the busiest rank.
        over = max(int(1_000_000 * (w - c) // max(1, c)) for w, c in zip(measured.work.max(axis=1), caps, strict=True))
        both = problem.weights @ np.maximum(measured.received, measured.sent)
        key = (max(0, held - most_rows), max(0, over), measured.crossing,
               int((problem.weights @ measured.received).sum()), int(both.max()))  # fmt: skip
        return key, rows, measured

    key, rows, measured = min(map(judged, search(problem, caps, work)), key=lambda each: each[0])
    if key[0]:
        raise SolverError(
            "no layout was found that keeps {max_rows_held} = {rows}: a rank holds {held} rows in the best",
            remedy=("raise it", "raise {eps}"), rows=most_rows, held=most_rows + key[0],
        )  # fmt: skip
    return rows, measured
