"""CP-SAT under any combination of constraints."""

import math
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solvers._budget import work_units
from solvers._cp_sat import load_cp_model, solver_until
from solvers.bounds import Bound
from solvers.errors import InfeasibleError, SolverError, TimeLimitError, as_words
from solvers.partitioning.constrained.search import Search, search
from solvers.partitioning.constrained.state import State
from solvers.partitioning.exact import trusted_bound

Ints = NDArray[np.int64]

# Building the model in Python takes so long for each unit and group: twice what plain partitions need, as every literal
# stands in several rows. A model that takes the budget to build is not built.
_SECONDS_PER_LITERAL = 8e-6
# Of any linear expression, speeds included: CP-SAT refuses sums near the end of int64.
_MAX_TOTAL = 2**55


def search_exact(state: State, seconds: float) -> tuple[Ints, Bound]:
    """Return the best assignment and bound: the search of ``auto`` first, worth a quarter, then CP-SAT.

    Raises
    ------
    InfeasibleError
        Where there is no assignment.
    TimeLimitError
        Where none was found in time, nor proven impossible.
    """
    try:
        # A quarter for the search of `auto`: its makespan cuts off most of what CP-SAT would have to look at.
        found: Search | None = search(state, work_units(seconds / 4))
    except InfeasibleError:
        raise
    except SolverError:
        found = None
    best = None if found is None else found.best
    bound = Bound(0, "mean") if found is None else found.bound
    literals = int(state.allowed.sum(axis=1)[state.mask_of_unit].sum())
    largest = int(state.amounts.sum(axis=0).max() + state.held_before.sum(axis=0).max())
    fits = literals * _SECONDS_PER_LITERAL < seconds and largest * int(state.problem.speeds.max()) < _MAX_TOTAL
    if fits and (found is None or found.makespan > found.bound.value):
        best, proven = _run(state, best, bound.value, time.perf_counter() + 0.75 * seconds)
        bound = proven if proven.value > bound.value else bound
    if best is None:
        raise TimeLimitError(
            f"no assignment that keeps {as_words(state.problem.names)} was found in {seconds:g} s, nor was it proven "
            "that there is none",
            ["remedy: a larger {time_budget}", "or looser constraints"],
        )
    return best, bound


def _run(state: State, start: Ints | None, floor: int, deadline: float) -> tuple[Ints | None, Bound]:
    cp_model = load_cp_model()
    model, literal = _build(cp_model, state, start, floor)
    solver = solver_until(cp_model, deadline)
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        raise InfeasibleError(
            f"no assignment of {len(state.problem.costs)} {{items}} to {state.problem.num_groups} {{groups}} keeps "
            f"{as_words(state.problem.names)} together: CP-SAT searched all"
        )
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        reported = solver.best_objective_bound if status == cp_model.UNKNOWN else 0.0
        most = state.makespan(start) if start is not None else math.inf
        return start, trusted_bound(reported, most)
    found = np.array([next(g for g, v in row.items() if solver.boolean_value(v)) for row in literal], dtype=np.int64)
    makespan = state.makespan(found)
    if status == cp_model.OPTIMAL:
        return found, Bound(makespan, "cp_sat")
    return found, trusted_bound(solver.best_objective_bound, makespan)


def _build(cp_model: Any, state: State, start: Ints | None, floor: int) -> tuple[Any, list[dict[int, Any]]]:
    """One literal for each unit and group that it may be in; every limit a linear constraint."""
    problem, c = state.problem, state.components
    m, amounts = problem.num_groups, state.amounts.tolist()
    model = cp_model.CpModel()
    literal = [
        {g: model.new_bool_var("") for g in np.flatnonzero(state.allowed[k]).tolist()}
        for k in state.mask_of_unit.tolist()
    ]
    for u, row in enumerate(literal):
        model.add_exactly_one(row.values())
        if start is not None:
            for g, variable in row.items():
                model.add_hint(variable, int(start[u] == g))
    most = int((state.amounts[:, :c].sum(axis=0) + problem.initial.max(axis=0)).max())
    times = [model.new_int_var(0, most, "") for _ in range(c)]
    for g in range(m):
        members = [(row[g], amounts[u]) for u, row in enumerate(literal) if g in row]
        for k in range(c):
            held = sum(variable * amount[k] for variable, amount in members)
            model.add(held + int(problem.initial[g, k]) <= int(problem.speeds[g]) * times[k])
        for d in range(c, state.amounts.shape[1]):
            total = sum(amount[d] for _, amount in members)
            # A limit that all possible members together keep anyway is no row.
            if total > state.upper[g, d] or state.lower[g, d] > 0:
                held = sum(variable * amount[d] for variable, amount in members)
                model.add_linear_constraint(held, int(state.lower[g, d]), int(state.upper[g, d]))
    if problem.objective == "sum" or c == 1:
        objective = sum(times)
    else:
        objective = model.new_int_var(0, most, "")
        model.add_max_equality(objective, times)
    model.add(objective >= floor)
    if start is not None:
        model.add(objective <= state.makespan(start))
    model.minimize(objective)
    return model, literal
