"""Exact partition by CP-SAT, which reads a clock, and proves what bounds cannot."""

import time
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from solvers._budget import work_units
from solvers._cp_sat import load_cp_model, reported_bound, solver_until
from solvers.arguments import as_budget
from solvers.bounds import Bound
from solvers.partitioning._problem import Assignment, PartitionProblem
from solvers.partitioning.lpt import assign_lpt
from solvers.partitioning.portfolio import assign_auto, improve
from solvers.types import PartitionResult

# Building the model in Python takes so long for each item and group. A model that takes the budget is not built.
_SECONDS_PER_LITERAL = 4e-6
# CP-SAT refuses sums near the end of int64.
_MAX_TOTAL = 2**60


def _relabel_by_first_item(assignment: Assignment, num_groups: int) -> Assignment:
    """Number the groups by their first position, so that position i lies in a group <= i."""
    used, first = np.unique(assignment, return_index=True)
    label = np.zeros(num_groups, dtype=np.int32)
    label[used[np.argsort(first)]] = np.arange(len(used), dtype=np.int32)
    return label[assignment]


def _build_model(cp_model: Any, problem: PartitionProblem, start: Assignment, incumbent: int) -> tuple[Any, Any]:
    """One literal for each position and group, groups interchangeable: position i lies in a group <= i."""
    costs, num_groups = problem.sorted_costs.tolist(), problem.num_groups
    n = len(costs)
    model = cp_model.CpModel()
    # Groups are alike, so their numbers are settled by first items: without that, each solution is there m! times.
    literal = [[model.new_bool_var("") for _ in range(min(i + 1, num_groups))] for i in range(n)]
    makespan = model.new_int_var(problem.bound.value, incumbent, "makespan")
    for i in range(n):
        model.add_exactly_one(literal[i])
        for g, variable in enumerate(literal[i]):
            model.add_hint(variable, int(start[i] == g))
    for g in range(num_groups):
        members = [(literal[i][g], costs[i]) for i in range(g, n)]
        model.add(sum(variable * cost for variable, cost in members) <= makespan)
        if problem.equal_counts:
            model.add_linear_constraint(sum(variable for variable, _ in members), n // num_groups, -(-n // num_groups))
    model.minimize(makespan)
    return model, literal


def _search(problem: PartitionProblem, start: Assignment, incumbent: int, deadline: float) -> tuple[Assignment, Bound]:
    """Return the best assignment and bound that CP-SAT finds before `deadline`; at worst those it was given."""
    cp_model = load_cp_model()
    start = _relabel_by_first_item(start, problem.num_groups)
    model, literal = _build_model(cp_model, problem, start, incumbent)
    solver = solver_until(cp_model, deadline)
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        reported = solver.best_objective_bound if status == cp_model.UNKNOWN else 0.0
        return start, trusted_bound(reported, incumbent)
    found = np.array([next(g for g, v in enumerate(row) if solver.boolean_value(v)) for row in literal], dtype=np.int32)
    makespan = problem.makespan_of(found)
    if status == cp_model.OPTIMAL:
        return found, Bound(makespan, "cp_sat")
    return found, trusted_bound(solver.best_objective_bound, makespan)


def trusted_bound(reported: float, makespan: float) -> Bound:
    """Return the bound that CP-SAT reported, as far as a float's digits can be trusted."""
    return Bound(int(min(makespan, reported_bound(reported))), "cp_sat")


def exact(
    costs: ArrayLike, num_groups: int, *, equal_counts: bool = False, time_budget: float = 0.01
) -> PartitionResult:
    """Partition by CP-SAT with symmetry breaking, from LPT improved by local search.

    Parameters
    ----------
    costs, num_groups
        As for :func:`solvers.partition`, and so are the errors.
    equal_counts : bool
        Exactly n/m items a group, within one where m does not divide n.
    time_budget : float
        Seconds by the clock. When they end, the best assignment and the best bound found are returned.

    Returns
    -------
    PartitionResult
        Never worse than the start, and with a bound at least the closed-form one. ``TIME_LIMIT`` where the gap is not
        closed. What CP-SAT cannot load in the time, or at all (sums from 2^60 on), :func:`auto` solves. Two runs may
        differ: plan on one rank and broadcast.

    Notes
    -----
    n * m literals, so meant for n/m up to about 6 and a few hundred items; beyond that local search is better and
    faster (10 s of CP-SAT can leave 26 to 1,300 ppm where it closes the gap in under a millisecond).

    Examples
    --------
    >>> exact([8, 7, 6, 5, 4], 2, time_budget=5).makespan
    15
    """
    started = time.perf_counter()
    seconds = as_budget(time_budget)
    problem = PartitionProblem.prepare(costs, num_groups, equal_counts)
    literals = len(problem.sorted_costs) * problem.num_groups
    if literals * _SECONDS_PER_LITERAL >= seconds or problem.total >= _MAX_TOTAL:  # not for CP-SAT
        assignment, bound = assign_auto(problem, work_units(seconds))
        return problem.result(assignment, "exact", started, bound=bound, out_of_time=True)
    assignment = assign_lpt(problem)
    improve(problem, assignment, work_units(seconds / 4))
    incumbent = problem.makespan_of(assignment)
    bound = problem.bound
    if incumbent > problem.bound.value:
        deadline = time.perf_counter() + 0.75 * seconds  # the start was counted work, worth a quarter
        assignment, bound = _search(problem, assignment, incumbent, deadline)
    return problem.result(assignment, "exact", started, bound=bound, out_of_time=True)
