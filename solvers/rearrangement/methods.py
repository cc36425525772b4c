"""Methods that read no clock: identity, greedy, the least sum, and the default, which is told from top to bottom here.

The default, :func:`auto`, places groups greedily, then by the least sum; that ends it where the sum counts. Where the
largest send does, it swaps groups of the rank that sends most, and begins again from other multipliers.
"""

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._budget import work_units
from solvers.arguments import as_budget
from solvers.rearrangement._largest_send import (
    LARGEST_MULTIPLIER,
    SwapSearch,
    best_node_bound,
    even_multipliers,
    shift_multipliers,
)
from solvers.rearrangement._problem import UNLIMITED, ProvenBound, RearrangementProblem
from solvers.rearrangement.types import Objective, RearrangementResult
from solvers.rearrangement.volumes import Volumes

# Nodes whose own ranks are tried for a bound on the largest send; with one, gaps are 83 ppm larger.
_NODES_TRIED = 8
# Rounds of multipliers; with 8, gaps are 28 ppm larger, 1,000 find no more.
_MOST_ROUNDS = 64
# Work units an entry, and so many in all, or 16 a rank, for what a round does besides its searches.
_ROUND_WORK = 20
_ROUND_START = 100_000


def identity(
    volumes: Volumes | ArrayLike,
    levels: ArrayLike | Sequence[ArrayLike],
    *,
    objective: Objective = "sum",
    weights: ArrayLike | None = None,
    class_of_group: ArrayLike | None = None,
    class_of_rank: ArrayLike | None = None,
    time_budget: float = 0.01,
) -> RearrangementResult:
    """Leave group g on rank g; with classes, the k-th group of each on its k-th rank.

    Its bound is that no group keeps more than where it keeps most.

    Examples
    --------
    >>> identity([[0, 5], [4, 1]], [0, 1]).inter_node_volume
    9
    """
    started = time.perf_counter()
    problem = RearrangementProblem.prepare(volumes, levels, objective, weights, class_of_group, class_of_rank)
    bound = problem.bound(problem.rows(), np.zeros(problem.num_places, dtype=np.int64))
    return problem.result([problem.identity()], bound, "identity", started)


def greedy(
    volumes: Volumes | ArrayLike,
    levels: ArrayLike | Sequence[ArrayLike],
    *,
    objective: Objective = "sum",
    weights: ArrayLike | None = None,
    class_of_group: ArrayLike | None = None,
    class_of_rank: ArrayLike | None = None,
    time_budget: float = 0.01,
) -> RearrangementResult:
    """Take what a group would keep in a node from the largest on, wherever group and node are still free.

    Inside each node the same, and then, up to 64 ranks a node, the optimum.

    The objective decides what is reported and bounded, and whether identity is better, not how groups are placed. Never
    worse than :func:`identity`. O(entries) after a radix sort. For the sum it keeps at least half of what the best
    keeps, as greedy does for the intersection of two partition matroids (Korte & Hausmann, "An analysis of the greedy
    heuristic for independence systems", Annals of Discrete Mathematics 2, 1978).

    Examples
    --------
    >>> greedy([[0, 5], [4, 1]], [0, 1]).rank_of_group.tolist()
    [1, 0]
    """
    started = time.perf_counter()
    problem = RearrangementProblem.prepare(volumes, levels, objective, weights, class_of_group, class_of_rank)
    rows = problem.rows()
    found = problem.settled(problem.greedy(rows), work=0)
    bound = problem.bound(rows, np.zeros(problem.num_places, dtype=np.int64))
    return problem.result([found, problem.identity()], bound, "greedy", started)


def least_sum(
    volumes: Volumes | ArrayLike,
    levels: ArrayLike | Sequence[ArrayLike],
    *,
    objective: Objective = "sum",
    weights: ArrayLike | None = None,
    class_of_group: ArrayLike | None = None,
    class_of_rank: ArrayLike | None = None,
    time_budget: float = 0.01,
) -> RearrangementResult:
    """Minimise the weighted volume that crosses, exactly; then, inside each node, what moves, exactly.

    For the sum always ``OPTIMAL``; the second step is exact for the nodes that the first one chose: among several
    optima of the first it does not seek the one with the least intra-node volume. With the objective ``"max"`` the same
    groups are placed, and their largest send is reported and bounded.

    A transportation problem, solved by an auction in coarse steps and then by shortest augmenting paths; memory is that
    of the volumes. Deterministic. For the prices that prove the optimum see :class:`BoundCertificate`.

    References
    ----------
    Bertsekas & Castanon, "The auction algorithm for the transportation problem", Annals of Operations Research 20,
    1989.
    Jonker & Volgenant, "A shortest augmenting path algorithm for dense and sparse linear assignment problems",
    Computing 38, 1987.

    Examples
    --------
    >>> result = least_sum([[9, 8], [8, 0]], [0, 1])
    >>> result.rank_of_group.tolist(), result.value, result.status.value
    ([1, 0], 9, 'optimal')
    """
    started = time.perf_counter()
    problem = RearrangementProblem.prepare(volumes, levels, objective, weights, class_of_group, class_of_rank)
    rows = problem.rows()
    assignment = problem.greedy(rows)
    price, _ = problem.transport(rows, assignment, UNLIMITED)
    bound = problem.bound(rows, price)
    return problem.result([problem.settled(assignment), problem.identity()], bound, "sum", started)


class Found(NamedTuple):
    """Candidates, the first the best by the objective, and what was proven."""

    candidates: list[NDArray[np.int32]]
    bound: ProvenBound


def search(problem: RearrangementProblem, work: int) -> Found:
    """Return what `work` units find; more of them never find less."""
    if not problem.node_of_rank.any():  # one node: nothing crosses, and each group has but one place
        inside = problem.settled(problem.place_of_rank[problem.rank_order], work)
        return Found([inside, problem.identity()], problem.nothing_crosses())
    rows = problem.rows()
    assignment = problem.greedy(rows)
    # What costs next to nothing comes first: it is there whatever the budget.
    starts = [problem.settled(assignment, 0), problem.identity()]
    price, work = problem.transport(rows, assignment, work)
    bound = problem.bound(rows, price)
    if problem.objective == "sum":
        return Found([problem.settled(assignment, max(work, 0)), problem.identity()], bound)
    if work > 0:  # half-way to the least sum, the largest send may be anything
        starts.insert(0, problem.settled(assignment, 0))
    starts.sort(key=problem.value_of)  # ties to the first
    best = starts[0].copy()
    if work > 0 and problem.value_of(best) > bound.value:
        best, bound, work = _lower_sends(problem, best, bound, work)
        best = problem.resettled(best, max(work, 0))  # the test of what stays inside a node rests on it
    return Found([best, *starts], bound)


def _lower_sends(
    problem: RearrangementProblem, best: NDArray[np.int32], bound: ProvenBound, work: int
) -> tuple[NDArray[np.int32], ProvenBound, int]:
    """Swap, then count again with other multipliers, which gives new starts and new bounds, until `work` is spent."""
    swaps = SwapSearch(problem)
    rows = problem.rows()
    # Without swaps gaps are 333 ppm larger, without a node's bound 389.
    work = swaps.lower(best, bound.value, work - _ROUND_WORK * len(rows.kept))
    if work > 0:
        node_bound, spent = best_node_bound(problem, swaps, rows, _NODES_TRIED, problem.sends(best))
        work -= spent
        if node_bound is not None and node_bound.value > bound.value:
            bound = node_bound
    # Without other multipliers gaps are 111 ppm larger; most of the time goes here.
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
    return problem.result(found.candidates, found.bound, "auto", started)
