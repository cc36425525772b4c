"""Items to groups, the largest load as small as possible: the methods by name, and the function that runs them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from solvers._units import merge
from solvers.arguments import as_budget, as_share, unknown
from solvers.constraints import ConstrainedProblem, Constraints, is_vector
from solvers.errors import SolverError, UsageError, as_words
from solvers.groups import group_loads
from solvers.partitioning.auto import Found, Search, auto, closed_bound, coarser, is_plain
from solvers.partitioning.exact import exact
from solvers.partitioning.infeasible import check_feasible, prove_infeasible
from solvers.partitioning.karmarkar_karp import kk_in_order
from solvers.partitioning.prefixes import partition_with_prefixes
from solvers.types import PartitionResult, status_of

Method = Callable[[ConstrainedProblem, float, Fraction], Found]
"""What a method is: it takes a checked problem, seconds' worth of work, and the gap that is small enough."""


def _lpt(problem: ConstrainedProblem, seconds: float, stop_at: Fraction) -> Found:
    """The longest item first, each to the least loaded group that has room for it: one pass, and no search."""
    coarse = problem if is_plain(problem) else coarser(problem)
    search = Search(coarse, 0, stop_at, proves=coarse is problem)
    if not search.list_schedule():
        prove_infeasible(problem, merge(problem))
        raise SolverError(
            f"list scheduling found no assignment that keeps {as_words(problem.names)}, nor was it proven that there "
            "is none",
            "remedy: {method='auto'}",
        )
    return search.found() if coarse is problem else Found(search.found().group_of_unit, closed_bound(problem))


def _karmarkar_karp(problem: ConstrainedProblem, seconds: float, stop_at: Fraction) -> Found:
    """Largest differencing: for one cost and no rule but keep_together."""
    if others := [name for name in problem.names if name != "keep_together"]:
        able = ", ".join(name for name in PARTITIONERS if name != "karmarkar_karp")
        raise UsageError(f"{{method}} 'karmarkar_karp' does not support {as_words(others)}", f"methods that do: {able}")
    search = Search(problem, 0, stop_at)
    groups = np.empty(len(search.order), dtype=np.int64)
    groups[search.order] = kk_in_order(search.ordered, problem.num_groups)
    return Found(groups, search.bound)


PARTITIONERS: dict[str, Method] = {"auto": auto, "lpt": _lpt, "karmarkar_karp": _karmarkar_karp, "exact": exact}
"""Every method for additive costs, by name; the command line, the errors and the tests derive their lists from it."""

USES_CLOCK = frozenset({"exact"})
"""Methods whose result depends on the time of day; plan with them on one rank and broadcast."""


def partition(
    costs: ArrayLike,
    num_groups: int,
    method: str = "auto",
    time_budget: float = 0.01,
    *,
    equal_counts: bool = False,
    sizes: ArrayLike | None = None,
    caps: ArrayLike | None = None,
    min_items: int = 0,
    max_items: int | None = None,
    allowed: ArrayLike | Sequence[Sequence[int] | None] | None = None,
    keep_together: ArrayLike | Sequence[int | str | None] | None = None,
    initial_loads: ArrayLike | None = None,
    speeds: ArrayLike | None = None,
    objective: str = "sum",
    stop_at: float | str | Fraction = "0.1%",
    prefix: ArrayLike | Sequence[int | str | None] | None = None,
    prefix_costs: ArrayLike | None = None,
) -> PartitionResult:
    """Put items into groups so that the largest load is as small as possible (P||Cmax, multiway number partitioning).

    Parameters
    ----------
    costs : int64[n] or int64[n, c]
        Non-negative integers whose sum fits int64. Integral floats are accepted. With c components the loads are
        int64[m, c] and `objective` makes one makespan of them.
    num_groups : int
        At least 1; may exceed n, and then some groups are empty.
    method : str
        A name in :data:`PARTITIONERS`.
    time_budget : float
        Seconds' worth of work, counted and not timed, except for methods in :data:`USES_CLOCK`.
    equal_counts : bool
        Exactly n/m items a group, within one where m does not divide n.
    sizes, caps, min_items, max_items, allowed, keep_together, initial_loads, speeds, objective
        Constraints, alone or in any combination: see :class:`solvers.Constraints` for shapes and rules.
        ``"karmarkar_karp"`` takes keep_together alone.
    stop_at : float, str or Fraction
        Of ``"auto"``: the gap that is small enough, ``0.001`` or ``"0.1%"``: less than cost models and steps vary. The
        search ends as soon as it has proven it, or after some turns in vain, as no bound may prove it. 0: it goes on
        until the result is proven optimal, or the work is spent. A status ``within`` says that no more than this gap
        is left, by whatever method.
    prefix, prefix_costs : array[n], optional
        Items that share a prefix, and what computing it once on a group costs; with ``"auto"`` and equal_counts alone.

    Returns
    -------
    PartitionResult
        Groups, loads, makespan, and a proven lower bound.

    Raises
    ------
    TypeError
        Costs or counts of the wrong type.
    ValueError
        An unknown method, a negative cost, costs of the wrong shape, a sum past int64, a budget that is not positive,
        a constraint of the wrong shape or sign, or one that the method does not take.
    InfeasibleError
        Proven: no assignment keeps all constraints. The certificate says which, for which items, and by how much.
    SolverError
        No assignment that keeps them was found, nor was it proven that there is none.

    Notes
    -----
    Deterministic for all methods but those in :data:`USES_CLOCK`. O(n log n) time and O(n + m) memory, plus the budget.
    ``"auto"`` is at most 0.1 % over ``"lpt"`` and ``"karmarkar_karp"`` where the budget covers these.

    Examples
    --------
    >>> result = partition([5, 4, 3, 3, 3], 2)
    >>> result.group_of_item.tolist(), result.loads.tolist(), result.gap
    ([0, 0, 1, 1, 1], [9, 9], 0.0)
    >>> partition([9, 4, 4, 1], 2, sizes=[3, 2, 2, 1], caps=5, speeds=[2, 1]).loads.tolist()
    [13, 5]
    >>> partition([3, 3, 3, 1], 2, prefix=["a", "a", "a", "b"], prefix_costs=[4, 4, 4, 4]).loads.tolist()
    [10, 12]
    """
    started = time.perf_counter()
    solver = PARTITIONERS.get(method) if isinstance(method, str) else None
    if solver is None:
        raise unknown("method", method, PARTITIONERS)
    seconds, share = as_budget(time_budget), as_share("stop_at", stop_at)
    constraints = Constraints(
        equal_counts, sizes, caps, min_items, max_items, allowed, keep_together, initial_loads, speeds, objective
    )
    if prefix is not None or prefix_costs is not None:
        _refuse_beside_prefixes(is_vector(costs), constraints, method)
        return partition_with_prefixes(
            costs, num_groups, prefix, prefix_costs, equal_counts=equal_counts, time_budget=time_budget, stop_at=share
        )
    problem = constraints.check(costs, num_groups)
    if problem.names:  # else any groups will do
        check_feasible(problem, merge(problem))
    return _result(problem, solver(problem, seconds, share), method, share, started)


def _result(
    problem: ConstrainedProblem, found: Found, method: str, stop_at: Fraction, started: float
) -> PartitionResult:
    """Turn groups of units into those of items, and add up their loads from scratch."""
    keys, groups = problem.key_of_item, found.group_of_unit.astype(np.int32)
    if keys is not None:
        groups = groups[keys]
    loads = problem.initial.copy()
    for k, column in enumerate(problem.costs.T):
        loads[:, k] += group_loads(column, groups, problem.num_groups)
    makespan = problem.makespan(loads)
    status = status_of(makespan, found.bound.value, stop_at, out_of_time=method in USES_CLOCK)
    return PartitionResult(
        groups, np.ascontiguousarray(loads if problem.vector else loads[:, 0]), makespan, method,
        lower_bound=found.bound.value, bound_name=found.bound.name, status=status,
        runtime_s=time.perf_counter() - started,
    )  # fmt: skip


def _refuse_beside_prefixes(vector: bool, constraints: Constraints, method: str) -> None:
    """Raise UsageError for what groups with shared prefixes cannot keep to."""
    if vector:
        raise UsageError("{prefix} is for {costs} of one number an {item}")
    if others := [name for name in constraints.names() if name != "equal_counts"]:
        raise UsageError(f"{{prefix}} cannot be combined with {{{others[0]}}}", "leave one of them out")
    if method != "auto":
        raise UsageError("{prefix} is for {method} 'auto', not for {given!r}", given=method)
