"""The optimum by OR-Tools' CP-SAT, under every rule: the search of `auto` first, then one integer program.

OR-Tools is the extra ``exact``. CP-SAT reads a clock, so two ranks may find different plans: plan on one of them.
"""

import math
import os
import time
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solvers._budget import work_units
from solvers.bounds import Bound
from solvers.constraints import ConstrainedProblem
from solvers.errors import InfeasibleError, SolverError, TimeLimitError, UsageError, as_words, not_installed
from solvers.partitioning.auto import Found, Search, auto

# Building the model in Python takes so long for each unit and group. A model that takes the budget to build is not
# built.
_SECONDS_PER_LITERAL = 8e-6
# Of any linear expression, speeds included: CP-SAT refuses sums near the end of int64.
_MAX_TOTAL = 2**55
# CP-SAT reports its bound as a float, which holds integers exactly up to 2**53. Half of that leaves room to round up.
_SURE_FLOAT = 2**52


def exact(problem: ConstrainedProblem, seconds: float, stop_at: Fraction) -> Found:
    """Find the optimum, or the best plan and bound that `seconds` by the clock allow.

    A literal for each unit and group that it may be in, so it is meant for a few hundred units, and up to six a group;
    beyond that local search is better and faster. What CP-SAT cannot load in the time, or at all (sums from 2^55 on),
    the search alone solves.

    Raises
    ------
    InfeasibleError
        Where there is no plan.
    TimeLimitError
        Where none was found in time, nor proven impossible.
    """
    started = time.perf_counter()
    if not _fits(problem, seconds):
        return auto(problem, seconds, stop_at)
    # A quarter for the search of `auto`: its makespan cuts off most of what CP-SAT would have to look at.
    search = Search(problem, work_units(seconds / 4), Fraction(0))
    try:
        search.run()
    except InfeasibleError:
        raise
    except SolverError:  # none was found: CP-SAT may find one
        search.best = None
    if not search.close:
        _solve(search, started + seconds)
    if search.best is None:
        raise TimeLimitError(
            f"no assignment that keeps {as_words(problem.names)} was found in {seconds:g} s, nor was it proven that "
            "there is none",
            ["remedy: a larger {time_budget}", "or looser constraints"],
        )
    return Found(search.best, search.bound)


def _fits(problem: ConstrainedProblem, seconds: float) -> bool:
    """Whether CP-SAT can load the problem, and soon enough."""
    literals = int(problem.masks.sum(axis=1)[problem.mask_of_item].sum())
    largest = (int(problem.costs.sum()) + int(problem.initial.max(initial=0))) * int(problem.speeds.max())
    sizes = int(problem.sizes.sum(axis=0).max(initial=0))
    return literals * _SECONDS_PER_LITERAL < seconds and max(largest, sizes) < _MAX_TOTAL


def _solve(search: Search, deadline: float) -> None:
    """Let CP-SAT improve the best and the bound of `search`."""
    cp_model = load_cp_model()
    model, literal = _build(cp_model, search)
    solver = solver_until(cp_model, deadline)
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        raise InfeasibleError(
            f"no assignment of {len(search.problem.costs)} {{items}} to {search.problem.num_groups} {{groups}} keeps "
            f"{as_words(search.problem.names)} together: CP-SAT searched all"
        )
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        best = np.array([next(g for g, v in row.items() if solver.boolean_value(v)) for row in literal], dtype=np.int64)
        makespan = search.problem.makespan(_loads(search, best))
        if makespan < search.makespan:
            search.best, search.makespan = best, makespan
    proven = search.makespan if status == cp_model.OPTIMAL else reported_bound(solver.best_objective_bound)
    if status != cp_model.MODEL_INVALID and proven > search.bound.value:
        search.bound = Bound(min(proven, search.makespan), "cp_sat")


def _loads(search: Search, group_of_unit: NDArray[np.int64]) -> NDArray[np.int64]:
    loads = search.problem.initial.copy()
    np.add.at(loads, group_of_unit, search.units.costs)
    return loads


def _build(cp_model: Any, search: Search) -> tuple[Any, list[dict[int, Any]]]:
    """One literal for each unit and group that it may be in; every limit a linear constraint."""
    problem, units, best = search.problem, search.units, search.best
    c, m = search.components, problem.num_groups
    model = cp_model.CpModel()
    # Where all groups are alike, the costliest unit is in the first group, the next in one of the first two, and so on:
    # without that, each plan is there m! times.
    order = np.argsort(-units.costs.sum(axis=1), kind="stable")
    last = np.full(len(order), m - 1)
    if _are_alike(problem):
        last[order] = np.minimum(np.arange(len(order)), m - 1)
        best = None if best is None else named_in_order(best, order)
    allowed = [np.flatnonzero(units.masks[k][: g + 1]) for k, g in zip(units.mask_of_unit, last, strict=True)]
    literal = [{g: model.new_bool_var("") for g in groups.tolist()} for groups in allowed]
    for u, row in enumerate(literal):
        model.add_exactly_one(row.values())
        if best is not None:
            for g, variable in row.items():
                model.add_hint(variable, int(best[u] == g))
    costs, sizes, items = units.costs.tolist(), units.sizes.tolist(), units.items.tolist()
    most = int((units.costs.sum(axis=0) + problem.initial.max(axis=0)).max())
    times = [model.new_int_var(0, most, "") for _ in range(c)]
    for g in range(m):
        members = [(row[g], u) for u, row in enumerate(literal) if g in row]
        for k in range(c):
            held = sum(variable * costs[u][k] for variable, u in members)
            model.add(held + int(problem.initial[g, k]) <= int(problem.speeds[g]) * times[k])
        for q in range(units.sizes.shape[1]):
            model.add(sum(variable * sizes[u][q] for variable, u in members) <= int(problem.caps[g, q]))
        if problem.least_items > 0 or problem.most_items < len(problem.costs):
            count = sum(variable * items[u] for variable, u in members)
            model.add_linear_constraint(count, problem.least_items, problem.most_items)
    if c == 1 or problem.objective == "sum":
        objective = sum(times)
    else:
        objective = model.new_int_var(0, most, "")
        model.add_max_equality(objective, times)
    model.add(objective >= search.bound.value)
    if best is not None:
        model.add(objective <= search.makespan)
    model.minimize(objective)
    return model, literal


def _are_alike(problem: ConstrainedProblem) -> bool:
    """Whether groups are the same but for their numbers."""
    alike = (problem.caps == problem.caps[:1]).all() and (problem.initial == problem.initial[:1]).all()
    return bool(alike and problem.masks.all() and (problem.speeds == problem.speeds[0]).all())


def named_in_order(groups: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number groups anew, by which of their units comes first in `order`."""
    number: dict[int, int] = {}
    for g in groups[order].tolist():
        number.setdefault(g, len(number))
    return np.array([number[g] for g in groups.tolist()], dtype=np.int64)


def load_cp_model() -> Any:
    """Import CP-SAT's model, which takes a second or two: only where it is used."""
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise UsageError(not_installed("{method} 'exact'", "OR-Tools", "exact")) from None
    return cp_model


def solver_until(cp_model: Any, deadline: float) -> Any:
    """Return a solver that ends when ``time.perf_counter()`` is past `deadline`."""
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(1e-3, deadline - time.perf_counter())
    # CP-SAT gives each of eight workers a strategy of its own; more workers than cores would only take turns.
    solver.parameters.num_workers = min(8, os.cpu_count() or 1)
    return solver


def reported_bound(reported: float) -> int:
    """Return the lower bound that CP-SAT reported, rounded up; 0 where a float's digits cannot be trusted."""
    # An integer bound may come as one that is a little too large by rounding.
    return math.ceil(reported - 1e-6) if 0 < reported < _SURE_FLOAT else 0
