"""Exact relocation by CP-SAT, first across nodes, then inside: for small instances, and to judge other methods."""

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solvers._cp_sat import load_cp_model, reported_bound, solver_until
from solvers.errors import InfeasibleError, SolverError, TimeLimitError
from solvers.relocation._problem import RelocationProblem
from solvers.relocation.auto import Reference, assign_auto

_MAX_TOTAL = 2**52  # CP-SAT reports bounds as floats
_MOST_LITERALS = 2**20  # one for each item and rank: about ten seconds to build, which is no small instance


def _none_found(cap: int) -> TimeLimitError:
    return TimeLimitError(f"no assignment under {{cap}} = {cap} was found", "raise {cap}, {eps} or {time_budget}")


def _prices(problem: RelocationProblem) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Volume that crosses, and that moves inside, for every item and rank: int64[n, num_ranks] each."""
    n = len(problem.costs)
    lies = np.zeros((n, problem.num_ranks), dtype=np.int64)
    if problem.affinity.rows is None:
        lies[np.arange(n), problem.affinity.home] = problem.affinity.leave_node
    else:
        offsets, ranks, volumes = problem.affinity.rows
        lies[np.repeat(np.arange(n), np.diff(offsets)), ranks] = volumes
    of_node = np.add.reduceat(lies[:, problem.nodes.ranks], problem.nodes.start[:-1], axis=1)
    near = of_node[:, problem.nodes.of_rank]
    return lies.sum(axis=1, keepdims=True) - near, near - lies


def _build(cp_model: Any, problem: RelocationProblem, cap: int) -> tuple[Any, list[list[Any]]]:
    n, m = len(problem.costs), problem.num_ranks
    model = cp_model.CpModel()
    on = [[model.new_bool_var("") for _ in range(m)] for _ in range(n)]
    for i in range(n):
        model.add_exactly_one(on[i])
    for r in range(m):
        column = [on[i][r] for i in range(n)]
        model.add(cp_model.LinearExpr.weighted_sum(column, problem.costs.tolist()) <= min(cap, problem.total))
        if problem.sizes is not None:
            model.add(cp_model.LinearExpr.weighted_sum(column, problem.sizes.tolist()) <= int(problem.room[r]))
        if problem.equal_counts:
            model.add_linear_constraint(sum(column), n // m, -(-n // m))
    return model, on


def _minimize(
    cp_model: Any, model: Any, on: list[list[Any]], prices: NDArray[np.int64], start: NDArray[np.int32] | None,
    deadline: float,
) -> tuple[NDArray[np.int32] | None, int, bool]:  # fmt: skip
    """Return the assignment found, the proven least value, and whether it is known that there is none."""
    flat = [variable for row in on for variable in row]
    value = cp_model.LinearExpr.weighted_sum(flat, prices.ravel().tolist())
    model.minimize(value)
    model.clear_hints()
    if start is not None:
        for i, row in enumerate(on):
            for r, variable in enumerate(row):
                model.add_hint(variable, int(start[i] == r))
    solver = solver_until(cp_model, deadline)
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return None, 0, True
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, 0, False
    found = np.array([next(r for r, v in enumerate(row) if solver.boolean_value(v)) for row in on], dtype=np.int32)
    if status == cp_model.OPTIMAL:
        return found, int(prices[np.arange(len(found)), found].sum()), False
    return found, reported_bound(solver.best_objective_bound), False


def assign_exact(
    problem: RelocationProblem, cap: int, measure: Reference, seconds: float
) -> tuple[NDArray[np.int32], tuple[int, int] | None]:
    """Two searches, each for half of `seconds` by the clock, from what :func:`assign_auto` finds.

    Returns the assignment, and the proven least volume across nodes and, given what it crosses, inside them. n * m
    literals: for a few hundred items on a few ranks.
    """
    started = time.perf_counter()
    # 1. A start: the search within little work. CP-SAT improves it, and where the model is too large it is the answer.
    start: NDArray[np.int32] | None
    try:
        start, _ = assign_auto(problem, cap, measure, min(seconds, 0.05))
    except SolverError:
        start = None
    prices = _prices(problem) if 0 < len(problem.costs) * problem.num_ranks <= _MOST_LITERALS else None
    if prices is None or max(int(prices[0].sum()), problem.total, problem.total_size) > _MAX_TOTAL:
        if start is None:
            raise _none_found(cap)
        return start, None
    # 2. What crosses nodes, least.
    inter_prices, intra_prices = prices
    cp_model = load_cp_model()
    model, on = _build(cp_model, problem, cap)
    first, least_inter, infeasible = _minimize(cp_model, model, on, inter_prices, start, started + seconds / 2)
    if infeasible:
        raise InfeasibleError(f"no assignment keeps every load within {{cap}} = {cap} (proven by CP-SAT)")
    first = start if first is None else first
    if first is None:
        raise _none_found(cap)
    items = np.arange(len(first))
    # 3. What moves inside nodes, least, of all that cross no more than that.
    crossed = int(inter_prices[items, first].sum())
    if start is not None and int(inter_prices[items, start].sum()) == crossed:
        better = int(intra_prices[items, start].sum()) < int(intra_prices[items, first].sum())
        first = start if better else first
    flat = [variable for row in on for variable in row]
    model.add(cp_model.LinearExpr.weighted_sum(flat, inter_prices.ravel().tolist()) <= crossed)
    second, least_intra, _ = _minimize(cp_model, model, on, intra_prices, first, started + seconds)
    if second is None:
        return first, (least_inter, 0)
    return second, (least_inter, least_intra)
