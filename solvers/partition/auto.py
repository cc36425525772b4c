"""The method for who does not want to choose: several, in the order in which they pay, until one is optimal."""

import time

from numpy.typing import ArrayLike

from solvers._budget import cost_of_karmarkar_karp, work_units
from solvers.arguments import as_budget
from solvers.partition._problem import Assignment, PartitionProblem
from solvers.partition.bldm import assign_bldm
from solvers.partition.karmarkar_karp import assign_karmarkar_karp
from solvers.partition.lpt import assign_lpt
from solvers.partition.refine import refine
from solvers.types import PartitionResult

__all__ = ["assign_auto", "auto"]


def assign_auto(problem: PartitionProblem, work: int) -> tuple[Assignment, bool]:
    """Return the best assignment that `work` buys, and whether the work ran out before the search ended."""
    best = assign_lpt(problem)
    left = refine(problem, best, work)
    makespan = problem.makespan_of(best)
    if makespan == problem.bound.value or left <= 0:
        return best, left <= 0
    if problem.equal_counts:
        second = assign_bldm(problem)
    else:
        left -= cost_of_karmarkar_karp(len(problem.sorted_costs), problem.num_groups)
        if left <= 0:
            return best, True
        second = assign_karmarkar_karp(problem)
    left = refine(problem, second, left)
    return (second if problem.makespan_of(second) < makespan else best), left <= 0


def auto(
    costs: ArrayLike, num_groups: int, *, equal_counts: bool = False, time_budget: float = 0.01
) -> PartitionResult:
    """Partition by LPT and local search, then by differencing and local search; the better, ties to the first.

    Parameters
    ----------
    costs : int64[n]
        Non-negative integers.
    num_groups : int
        At least 1; may exceed n.
    equal_counts : bool
        Exactly n/m items a group, within one where m does not divide n.
    time_budget : float
        Seconds' worth of work. LPT always runs; what follows runs while the budget lasts and the gap is not 0.

    Returns
    -------
    PartitionResult
        Never worse than :func:`lpt`; with a budget that covers it, never worse than :func:`karmarkar_karp` either.

    Raises
    ------
    TypeError, ValueError
        On arguments of the wrong kind, negative costs, or a sum of costs past int64.

    Notes
    -----
    Deterministic: the budget is counted in work and no clock is read (see :mod:`solvers._budget`). O(n + m) memory.

    Examples
    --------
    >>> result = auto([5, 4, 3, 3, 3], 2)
    >>> result.makespan, result.lower_bound, result.status.value
    (9, 9, 'optimal')
    """
    started = time.perf_counter()
    work = work_units(as_budget(time_budget))
    problem = PartitionProblem.prepare(costs, num_groups, equal_counts)
    assignment, stopped_early = assign_auto(problem, work)
    return problem.result(assignment, "auto", started, stopped_early=stopped_early)
