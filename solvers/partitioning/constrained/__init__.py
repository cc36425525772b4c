"""Partition under constraints: which method takes which, and how each is run."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._budget import work_units
from solvers.arguments import as_budget
from solvers.bounds import Bound
from solvers.constraints import ConstrainedProblem, Constraints
from solvers.errors import SolverError, UsageError, as_words
from solvers.makespan_bounds import constrained_bound
from solvers.partitioning.constrained.exact import search_exact
from solvers.partitioning.constrained.greedy import greedy
from solvers.partitioning.constrained.infeasible import check_feasible, prove_infeasible
from solvers.partitioning.constrained.search import search
from solvers.partitioning.constrained.state import State
from solvers.types import PartitionResult, status_of

__all__ = ["CONSTRAINTS", "SUPPORTED", "solve_constrained", "supports"]

CONSTRAINTS = (
    "equal_counts",
    "caps",
    "min_items",
    "max_items",
    "allowed",
    "keep_together",
    "initial_loads",
    "speeds",
    "vector_costs",
)
"""Every constraint, by the name of its argument; ``caps`` come with ``sizes``; vector costs are costs int64[n, c]."""

_ALL = frozenset(CONSTRAINTS)
_PLAIN = frozenset({"equal_counts", "keep_together"})

SUPPORTED: Mapping[str, frozenset[str]] = {
    "auto": _ALL,
    "lpt": _ALL,
    "slack": _PLAIN,
    "multifit": _PLAIN,
    "karmarkar_karp": _PLAIN,
    "bldm": _PLAIN,
    "round_robin": _PLAIN,
    "exact": _ALL,
}
"""The constraints that each method takes, in any combination; but a method that takes only equal counts and
keep_together takes one of the two at a time: units are merged before it counts."""


def supports(method: str, names: tuple[str, ...]) -> bool:
    """Whether `method` takes these constraints together."""
    supported = SUPPORTED[method]
    return set(names) <= supported and (supported != _PLAIN or len(names) <= 1)


def _check_support(method: str, names: tuple[str, ...]) -> None:
    if supports(method, names):
        return
    missing = [name for name in names if name not in SUPPORTED[method]]
    what = as_words(missing) if missing else as_words(names, " together with ")
    able = ", ".join(other for other in SUPPORTED if supports(other, names))
    raise UsageError(f"{{method}} {method!r} does not support {what}", f"methods that do: {able}")


def solve_constrained(
    costs: ArrayLike,
    num_groups: int,
    method: str,
    time_budget: float,
    constraints: Constraints,
    plain: Callable[..., PartitionResult],
    stop_at: Fraction,
) -> PartitionResult:
    """Solve under constraints by `method`, whose unconstrained function is `plain`."""
    started = time.perf_counter()
    seconds = as_budget(time_budget)
    problem = constraints.check(costs, num_groups)
    _check_support(method, problem.names)
    state = State.from_problem(problem)
    if method == "lpt":
        assignment = _list_schedule(state)
        return _result(state, assignment, constrained_bound(problem, state.units), method, started)
    if method == "exact":
        assignment, bound = search_exact(state, seconds)
        return _result(state, assignment, bound, method, started)
    if method == "auto":
        found = search(state, work_units(seconds), stop_at)
        best = np.zeros(0, dtype=np.int64) if found.best is None else found.best  # never None: it would have raised
        return _result(state, best, found.bound, method, started)
    return _expand(state, plain(state.units.costs[:, 0], num_groups, time_budget=seconds), started)


def _list_schedule(state: State) -> NDArray[np.int64]:
    check_feasible(state)
    assignment, _ = greedy(state, np.arange(len(state.amounts)))
    if not state.feasible(assignment):
        prove_infeasible(state)
        raise SolverError(
            f"list scheduling found no assignment that keeps {as_words(state.problem.names)}, nor was it proven that "
            "there is none",
            "remedy: {method='auto'}",
        )
    return assignment


def _result(state: State, assignment: NDArray[np.int64], bound: Bound, method: str, started: float) -> PartitionResult:
    problem: ConstrainedProblem = state.problem
    groups = assignment[state.units.unit_of_item].astype(np.int32)
    loads = state.loads(assignment)
    makespan = problem.makespan(loads)
    loads = np.ascontiguousarray(loads if problem.vector else loads[:, 0])
    return PartitionResult(
        groups, loads, makespan, method, lower_bound=bound.value, bound_name=bound.name,
        status=status_of(makespan, bound.value, out_of_time=method == "exact"),
        runtime_s=time.perf_counter() - started,
    )  # fmt: skip


def _expand(state: State, result: PartitionResult, started: float) -> PartitionResult:
    """Turn a partition of units into one of items: the loads, the bound and the proof stay."""
    groups = result.group_of_item[state.units.unit_of_item]
    return replace(result, group_of_item=groups, runtime_s=time.perf_counter() - started)
