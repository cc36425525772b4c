"""The default method: greedy, then a search for a proven optimum while the budget lasts."""

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._budget import work_units
from solvers.arguments import as_budget
from solvers.rearrangement._problem import ProvenBound, RearrangementProblem
from solvers.rearrangement._send_bounds import (
    LARGEST_MULTIPLIER,
    best_node_bound,
    even_multipliers,
    shift_multipliers,
)
from solvers.rearrangement._swap_search import SwapSearch
from solvers.rearrangement.types import Objective, RearrangementResult
from solvers.rearrangement.volumes import Volumes

_NODES_TRIED = 8  # whose own ranks are tried for a bound on the largest send
_MOST_ROUNDS = 64  # of multipliers
_ROUND_WORK = 20  # work units an entry, and
_ROUND_START = 100_000  # in all, or 16 a rank, for what a round does besides its searches


class Found(NamedTuple):
    """Candidates, the first the best by the objective, and what was proven."""

    candidates: list[NDArray[np.int32]]
    bound: ProvenBound
    stopped_early: bool


def search(problem: RearrangementProblem, work: int) -> Found:
    """Return what `work` units find; more of them never find less."""
    rows = problem.rows()
    assignment = problem.greedy(rows)
    starts = [problem.settled(assignment, 0), problem.identity()]
    price, work = problem.transport(rows, assignment, work)
    bound = problem.bound(rows, price)
    if problem.objective == "sum":
        return Found([problem.settled(assignment, max(work, 0)), problem.identity()], bound, work < 0)
    if work > 0:  # half-way to the least sum, the largest send may be anything
        starts.insert(0, problem.settled(assignment, 0))
    starts.sort(key=problem.value_of)  # ties to the first
    best = starts[0].copy()
    if work > 0 and problem.value_of(best) > bound.value:
        best, bound, work = _lower_sends(problem, best, bound, work)
        best = problem.resettled(best, max(work, 0))
    return Found([best, *starts], bound, work <= 0)


def _lower_sends(
    problem: RearrangementProblem, best: NDArray[np.int32], bound: ProvenBound, work: int
) -> tuple[NDArray[np.int32], ProvenBound, int]:
    """Swap, then count again with other multipliers, which gives new starts and new bounds, until `work` is spent."""
    swaps = SwapSearch(problem)
    rows = problem.rows()
    work = swaps.lower(best, bound.value, work - _ROUND_WORK * len(rows.kept))
    if work > 0:
        node_bound, spent = best_node_bound(problem, swaps, rows, _NODES_TRIED, problem.sends(best))
        work -= spent
        if node_bound is not None and node_bound.value > bound.value:
            bound = node_bound
    multiplier = even_multipliers(problem)
    sends, reached = problem.sends(best), problem.value_of(best)
    turn, round_start = 0, max(_ROUND_START, 16 * problem.num_ranks)
    while work > 0 and reached > bound.value and turn < _MOST_ROUNDS and problem.fits(LARGEST_MULTIPLIER):
        multiplier = shift_multipliers(multiplier, sends, turn)
        turn += 1
        rows = problem.rows(multiplier)
        assignment = problem.greedy(rows)
        price, work = problem.transport(rows, assignment, work - round_start - _ROUND_WORK * len(rows.kept))
        proven = problem.bound(rows, price, multiplier)
        if proven.value > bound.value:
            bound = proven
        if work < 0:
            break
        start = problem.settled(assignment, 0)
        sends = problem.sends(start)
        work = swaps.lower(start, bound.value, work)
        if (value := problem.value_of(start)) < reached:
            best, reached = start, value
    return best, bound, work


def auto(
    volumes: Volumes | ArrayLike,
    levels: ArrayLike | Sequence[ArrayLike],
    *,
    objective: Objective = "sum",
    weights: ArrayLike | None = None,
    class_of_group: ArrayLike | None = None,
    class_of_rank: ArrayLike | None = None,
    time_budget: float = 0.01,
) -> RearrangementResult:
    """Rearrange by greedy, then towards the least sum; for the largest send, then by swaps from several starts.

    Greedy always runs; what follows, while the budget lasts and optimality is not proven: it is counted in work, and no
    clock is read (see :mod:`solvers._budget`). Never worse than :func:`greedy` or :func:`identity`; for the sum
    ``OPTIMAL`` wherever the budget suffices.

    Examples
    --------
    >>> result = auto([[9, 8], [8, 0]], [0, 1])
    >>> result.rank_of_group.tolist(), result.value, result.status.value
    ([1, 0], 9, 'optimal')
    """
    started = time.perf_counter()
    work = work_units(as_budget(time_budget))
    problem = RearrangementProblem.prepare(volumes, levels, objective, weights, class_of_group, class_of_rank)
    found = search(problem, work)
    return problem.result(found.candidates, found.bound, "auto", started, stopped_early=found.stopped_early)
