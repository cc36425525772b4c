"""Deferral: which items form a step, when each may run a few steps before or after its own."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._budget import work_units
from solvers.arguments import as_budget
from solvers.deferral._problem import as_given, bin_times
from solvers.deferral._search import floors_of, search
from solvers.deferral.bounds import cover_bound, price_steps
from solvers.deferral.types import DeferralResult
from solvers.types import status_of


def defer(
    costs: ArrayLike,
    rows: ArrayLike,
    spans: ArrayLike,
    num_bins: int,
    *,
    start: ArrayLike | None = None,
    heights: ArrayLike | None = None,
    tokens: ArrayLike | None = None,
    token_limits: ArrayLike | None = None,
    count_limits: ArrayLike | None = None,
    sizes: ArrayLike | None = None,
    size_limits: ArrayLike | None = None,
    counts: ArrayLike | None = None,
    time_budget: float = 1.5,
) -> DeferralResult:
    """Choose the step of each item within its window, so that the sum of all steps' makespans is small.

    A step of `num_bins` bins takes as long as its tallest item at least, and as its volume over the bins. So tall items
    should share steps, and these be full of what is tall else.

    Parameters
    ----------
    costs : int64[n]
        Volume of each item, and its height, non-negative.
    rows : int64[n]
        The row of `spans` that has each item's window; rows are nominal steps, as a rule.
    spans : int64[R, 2]
        First and last step of each row's window, of 0..T-1, neither smaller than of the row before: see
        ``solvers.deferral.windows``.
    num_bins : int
        N: bins of a step.
    start : int64[n], optional
        Steps to begin with, within the windows and limits; by default row r in step r.
    heights : int64[n], optional
        Where an item is not whole in one bin: the least time that a step with it takes.
    tokens : int64[n], optional
        What `token_limits` limit.
    token_limits, count_limits : int64[2, T], optional
        The least and the most tokens and items of each step. Both hold what each step has at the start.
    sizes : int64[q, n], optional
        Further quantities, such as tokens of long items.
    size_limits : int64[q, T], optional
        The most that a step has of each.
    counts : int64[n], optional
        For how many each item counts under `count_limits`; by default one.
    time_budget : float
        Seconds' worth of work for the search, counted and not timed.

    Returns
    -------
    DeferralResult
        Steps, what each takes at least, and a proven bound on the sum of makespans.

    Raises
    ------
    TypeError, ValueError
        On arguments of the wrong kind or shape, sums past 2**62, or a start outside windows or limits.

    Notes
    -----
    Deterministic. O(n D + T^2 D) for the bound, D steps to a window, and at most a fixed amount of work for the search,
    which begins at the steps that prove the bound.

    References
    ----------
    WLB-LLM, arXiv:2503.17924 (2025), delays outliers in queues; windows, limits and proof are this package's own.

    Examples
    --------
    Two long documents share a step.

    >>> result = defer([9, 1, 9, 1], [0, 0, 1, 1], [[0, 1], [0, 1]], 2, count_limits=[[2, 2], [2, 2]])
    >>> result.step_of_item.tolist(), result.floors.tolist(), result.start_total, result.lower_bound
    ([0, 1, 0, 1], [9, 1], 18, 10)
    """
    started, budget = time.perf_counter(), as_budget(time_budget)
    given = as_given(costs, rows, spans, num_bins, start, heights, (tokens, counts, sizes),
                     (token_limits, count_limits, size_limits))  # fmt: skip
    problem = given.problem
    prices = price_steps(problem)
    cover = cover_bound(problem, prices)
    step = search(problem, prices, cover.heights, work_units(budget) // 3)
    floors = -(-floors_of(problem, step) // problem.num_bins)
    total = int(floors.sum())
    bound = -(-(int(problem.volumes.sum()) + cover.wasted) // problem.num_bins)
    return DeferralResult(
        given.in_order_given(step), floors, total, int((-(-floors_of(problem, problem.start) // num_bins)).sum()),
        prices.values, prices.bits, lower_bound=bound, bound_name="cover" if cover.wasted else "mean",
        status=status_of(total, bound), runtime_s=time.perf_counter() - started,
    )  # fmt: skip


def least_makespans(
    costs: NDArray[np.int64], step: NDArray[np.int64], num_steps: int, num_bins: int,
    heights: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:  # fmt: skip
    """Return what each step takes at least with these items, however they are packed into bins: int64[T].

    Parameters
    ----------
    costs, heights : int64[n]
        As given to :func:`defer`, whose checks they have passed.
    step : int64[n]
        The step of each item, of 0..T-1.

    Examples
    --------
    >>> least_makespans(np.array([9, 1, 9, 1]), np.array([0, 1, 0, 1]), 2, 2).tolist()
    [9, 1]
    """
    times = bin_times(costs, costs if heights is None else heights, step, num_steps, num_bins, heights is None)
    return -(-times // num_bins)
