"""The plain searches in the order in which they pay, until one is optimal: what `auto` runs, and others start from."""

from dataclasses import replace

from solvers._budget import cost_of_dual_feasible, cost_of_karmarkar_karp, cost_of_lpt, cost_of_slack
from solvers.bounds import Bound, dual_feasible_bound, subset_sum_bound
from solvers.partition._problem import Assignment, PartitionProblem
from solvers.partition.bin_completion import close_gap
from solvers.partition.bldm import assign_bldm
from solvers.partition.folding import assign_folded
from solvers.partition.karmarkar_karp import assign_karmarkar_karp
from solvers.partition.lower_target import lower_target
from solvers.partition.lpt import assign_lpt
from solvers.partition.pattern_search import PatternSearch
from solvers.partition.refine import refine
from solvers.partition.regroup import regroup
from solvers.partition.resplit import resplit
from solvers.partition.slack import assign_slack

__all__ = ["assign_auto", "improve"]

_QUANTUM = 200_000  # work units of search before the first for patterns, which get half of it; then twice as much
_MANY_A_GROUP = 16  # items: from here on, differencing two groups evens them out nearly always
_ROUNDS = 12  # of the last searches, each with twice the bin completion of the one before


def improve(problem: PartitionProblem, assignment: Assignment, work: int) -> int:
    """Improve `assignment` in place, cheap searches first, until it is optimal, stuck, or `work` is spent.

    Returns the work left. Never makes the assignment worse, and more work never ends in a worse one.
    """
    makespan = problem.makespan_of(assignment)
    many = len(assignment) >= _MANY_A_GROUP * problem.num_groups
    searches = (_swaps, resplit, _exchanges, refine) if many else (_swaps, _exchanges, refine, resplit)
    while work > 0 and makespan > problem.bound.value:
        before = makespan
        for search in searches:
            if work > 0 and makespan > problem.bound.value:
                work = search(problem, assignment, work)
                makespan = problem.makespan_of(assignment)
        if makespan == before:
            break
    return work


def _swaps(problem: PartitionProblem, assignment: Assignment, work: int) -> int:
    return lower_target(problem, assignment, work, keep_counts=True)


def _exchanges(problem: PartitionProblem, assignment: Assignment, work: int) -> int:
    return work if problem.equal_counts else lower_target(problem, assignment, work, keep_counts=False)


def assign_auto(problem: PartitionProblem, work: int) -> tuple[Assignment, Bound, bool]:
    """Return the best assignment that `work` buys, the best bound proven, and whether the work ran out.

    LPT always runs, and SLACK where the budget covers it (with equal counts, LPT alone); nothing is searched before.
    The better is improved first, then the other, then what Karmarkar-Karp (with equal counts, BLDM) gives, until one
    is optimal. What gap is left, the lifted and subset-sum bounds, groups solved anew, patterns, and at last bin
    completion try to close.
    """
    if problem.equal_counts and problem.num_groups < len(problem.sorted_costs) <= 2 * problem.num_groups:
        return assign_folded(problem), problem.bound, False
    starts = [assign_lpt(problem)]
    work -= cost_of_lpt(len(starts[0]))
    price = 0 if problem.equal_counts else cost_of_slack(len(starts[0]))
    if work <= price:  # and no search from LPT either, or else a little more budget could end worse
        return starts[0], problem.bound, True
    work -= price
    if not problem.equal_counts:
        starts.append(assign_slack(problem))
    starts.sort(key=problem.makespan_of)  # ties to LPT
    best, reached = starts[0].copy(), problem.makespan_of(starts[0])
    differencing = assign_bldm if problem.equal_counts else assign_karmarkar_karp
    price = 0 if problem.equal_counts else cost_of_karmarkar_karp(len(best), problem.num_groups)
    differenced = False
    while work > 0 and reached > problem.bound.value:
        if not starts:
            if differenced:
                break
            if work <= price:  # and nothing instead, or else a little more budget could end worse
                return best, problem.bound, True
            work -= price
            starts, differenced = [differencing(problem)], True
        candidate = starts.pop(0)
        work = improve(problem, candidate, work)
        if (makespan := problem.makespan_of(candidate)) < reached:
            best, reached = candidate, makespan
    # The lifted bound takes at most a third of the work left, and is not taken from it: a budget that just affords it
    # must not search less than one that just does not. So, too, regrouping goes by the bound that all budgets have.
    proven = problem
    if reached > problem.bound.value and work > 3 * len(best) * problem.num_groups:
        proven = problem.with_lifted_bound()
        proven = replace(proven, bound=subset_sum_bound(proven.sorted_costs, proven.bound, reached))
    if reached > proven.bound.value and work > 3 * cost_of_dual_feasible(len(best)):
        better = dual_feasible_bound(proven.sorted_costs, proven.num_groups, proven.bound, reached)
        proven = replace(proven, bound=better)
    if not problem.equal_counts and work > 0 and reached > proven.bound.value:
        return _close(proven, problem, best, work)
    return best, proven.bound, work <= 0


def _close(
    proven: PartitionProblem, problem: PartitionProblem, best: Assignment, work: int
) -> tuple[Assignment, Bound, bool]:
    """Close the gap by solving groups anew, by patterns where there are few enough, and at last by bin completion."""
    reached, bound = problem.makespan_of(best), proven.bound
    patterns = PatternSearch.of(problem, reached)
    quantum, seed = _QUANTUM, 1
    while work > 0 and reached > bound.value and patterns is not None and not patterns.solved:
        work += regroup(problem, best, min(quantum, work), seed) - min(quantum, work)
        reached = problem.makespan_of(best)
        if work > 0 and reached > bound.value:
            work += patterns.raise_bound(reached, min(quantum // 2, work)) - min(quantum // 2, work)
            bound = max(bound, patterns.as_bound(), key=lambda b: b.value)
        quantum, seed = 2 * quantum, seed + 1
    for turn in range(_ROUNDS):
        if patterns is not None and patterns.solved and work > 0 and reached > bound.value:
            best, work = patterns.search(best, reached, turn, work)
            reached = problem.makespan_of(best)
        if work > 0 and reached > bound.value:
            work = regroup(problem, best, work, seed + turn)
            reached = problem.makespan_of(best)
        if work > 0 and reached > bound.value:
            share = min(work, quantum)
            best, closed, left = close_gap(replace(problem, bound=bound), best, share)
            work, reached, bound = work + left - share, problem.makespan_of(best), closed or bound
            if left > 0 and reached > bound.value:  # not for bin completion
                break
        quantum *= 2
    return best, bound, work <= 0
