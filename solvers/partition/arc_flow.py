"""Exact partition by an arc-flow model and HiGHS: for costs that are narrow and groups that hold few items."""

import time
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._budget import work_units
from solvers.arguments import as_budget
from solvers.bounds import Bound
from solvers.partition._problem import Assignment, PartitionProblem
from solvers.partition.bin_completion import assign_counts, distinct_costs
from solvers.partition.portfolio import assign_auto
from solvers.types import PartitionResult

__all__ = ["arc_flow"]

_MOST_ARCS = 200_000  # beyond, HiGHS takes minutes for the root
_SURE = 1e-6  # how far from whole a number may be that HiGHS calls whole


def _load_scipy() -> Any:
    try:
        from scipy import optimize, sparse
    except ImportError as error:  # pragma: no cover - SciPy is a dependency; this is for broken installs
        raise ImportError("method 'arc_flow' needs SciPy: pip install scipy") from error
    return optimize, sparse


def _arcs(values: NDArray[np.int64], counts: NDArray[np.int64], cap: int) -> list[tuple[int, int, int]]:
    """All (from, to, value) by which a group can be filled up to `cap`, items in descending order of cost.

    A group is a path from 0: an arc of value v goes from a sum that larger items, or others of this value, can make.
    """
    reached = {0}
    arcs = set()
    for v, (value, count) in enumerate(zip(values.tolist(), counts.tolist(), strict=True)):
        ends = set(reached)
        front = reached
        for _ in range(count):
            front = {s + value for s in front if s + value <= cap}
            if not front:
                break
            arcs |= {(s - value, s, v) for s in front}
            ends |= front
            if len(arcs) > _MOST_ARCS:
                return []
        reached = ends
    return sorted(arcs)


def _solve(
    values: NDArray[np.int64], counts: NDArray[np.int64], num_groups: int, cap: int, deadline: float
) -> tuple[NDArray[np.int64] | None, bool]:
    """Return how many items of each value each group gets under `cap`, or None; and if there is no way."""
    arcs = _arcs(values, counts, cap)
    if not arcs:
        return None, False
    optimize, sparse = _load_scipy()
    tails, heads, labels = np.array(arcs).T
    sums = np.unique(np.concatenate([tails, heads]))
    tail, head = np.searchsorted(sums, tails), np.searchsorted(sums, heads)
    column = np.arange(len(arcs))
    ones = np.ones(len(arcs))
    shape = (len(sums), len(arcs))
    into = sparse.csr_array((ones, (head, column)), shape=shape)
    out = sparse.csr_array((ones, (tail, column)), shape=shape)
    kinds = sparse.csr_array((ones, (labels, column)), shape=(len(values), len(arcs)))
    constraints = [
        optimize.LinearConstraint((into - out)[1:], 0, np.inf),  # a path may end anywhere
        optimize.LinearConstraint(out[:1], 0, num_groups),
        optimize.LinearConstraint(kinds, counts, counts),
    ]
    limit = max(1e-3, deadline - time.perf_counter())
    found = optimize.milp(
        np.zeros(len(arcs)),
        constraints=constraints,
        integrality=np.ones(len(arcs)),
        bounds=optimize.Bounds(0, counts[labels]),
        options={"time_limit": limit},
    )
    if found.status == 2:
        return None, True
    if found.x is None or np.abs(found.x - np.round(found.x)).max() > _SURE:
        return None, False
    return _paths(arcs, np.round(found.x).astype(np.int64), len(values), num_groups), False


def _paths(
    arcs: list[tuple[int, int, int]], flow: NDArray[np.int64], num_values: int, num_groups: int
) -> NDArray[np.int64]:
    """Take the flow apart into groups."""
    leaving: dict[int, list[tuple[int, int]]] = {}
    for (tail, head, v), amount in zip(arcs, flow.tolist(), strict=True):
        leaving.setdefault(tail, []).extend([(head, v)] * amount)
    used = np.zeros((num_groups, num_values), dtype=np.int64)
    for g in range(num_groups):
        at = 0
        while leaving.get(at):
            at, v = leaving[at].pop()
            used[g, v] += 1
    return used


def _close(problem: PartitionProblem, best: Assignment, bound: Bound, deadline: float) -> tuple[Assignment, Bound]:
    """Bisect the makespan between `bound` and what `best` reaches, as long as time and the size of the model allow."""
    values, counts = distinct_costs(problem)
    unit = int(np.gcd.reduce(values))
    target = bound.value
    while bound.value < (reached := problem.makespan_of(best)) and time.perf_counter() < deadline:
        target = min(max(target, bound.value), reached - 1)
        used, refuted = _solve(values // unit, counts, problem.num_groups, target // unit, deadline)
        if used is not None and np.array_equal(used.sum(axis=0), counts):
            best = assign_counts(used, problem)
        elif refuted:
            bound = Bound((target // unit + 1) * unit, "arc_flow")
            target = bound.value + (reached - bound.value) // 4
        else:
            break
    return best, bound


def arc_flow(
    costs: ArrayLike, num_groups: int, *, equal_counts: bool = False, time_budget: float = 0.01
) -> PartitionResult:
    """Partition by what :func:`auto` finds in half the time, and an arc-flow model for the gap that it leaves.

    Parameters
    ----------
    costs, num_groups
        As for :func:`solvers.partition`, and so are the errors.
    equal_counts : bool
        Exactly n/m items a group, within one where m does not divide n: as by :func:`auto`, for the model does not
        count items.
    time_budget : float
        Seconds by the clock. When they end, the best assignment and the best bound found are returned.

    Returns
    -------
    PartitionResult
        Never worse than :func:`auto` in half the budget. Two runs may differ: plan on one rank and broadcast. Where
        the model would have more than 200,000 arcs (costs are divided by what divides all of them), it is not built.

    Notes
    -----
    A group is a path through the sums that items in descending order can make; a target makespan is a flow of at most m
    that takes every item along. Targets are refuted or met by HiGHS (:func:`scipy.optimize.milp`), which calculates in
    floating point: the bound ``arc_flow`` is as sure as that.

    References
    ----------
    Valerio de Carvalho, "Exact solution of bin-packing problems using column generation and branch-and-bound", Annals
    of Operations Research 86, 1999; for the makespan: Mrad & Souayah, "An arc-flow model for the makespan minimization
    problem on identical parallel machines", IEEE Access 6, 2018.

    Examples
    --------
    >>> arc_flow([8, 7, 6, 5, 4], 2, time_budget=5).makespan
    15
    """
    started = time.perf_counter()
    seconds = as_budget(time_budget)
    problem = PartitionProblem.prepare(costs, num_groups, equal_counts)
    best, bound, stopped_early = assign_auto(problem, work_units(seconds / 2))
    if not problem.equal_counts and problem.makespan_of(best) > bound.value:
        best, bound = _close(replace(problem, bound=bound), best, bound, started + seconds)
        stopped_early = True
    return problem.result(best, "arc_flow", started, bound=bound, stopped_early=stopped_early)
