"""The searches without constraints, the most profitable first, until one is optimal: `auto` runs them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from solvers._budget import cost_of_dual_feasible, cost_of_karmarkar_karp, cost_of_lpt, cost_of_slack
from solvers.arguments import INT64_MAX
from solvers.bounds import Bound
from solvers.partitioning._problem import Assignment, PartitionProblem
from solvers.partitioning.bin_completion import close_gap
from solvers.partitioning.bldm import assign_bldm
from solvers.partitioning.folding import assign_folded
from solvers.partitioning.karmarkar_karp import assign_karmarkar_karp
from solvers.partitioning.lower_target import lower_target
from solvers.partitioning.lpt import assign_lpt
from solvers.partitioning.pattern_search import PatternSearch
from solvers.partitioning.refine import refine
from solvers.partitioning.regroup import regroup
from solvers.partitioning.resplit import resplit
from solvers.partitioning.slack import assign_slack

# Work units of each search in its first turn: 50 microseconds. Turns double, so that where the first ones are in vain
# they cost little. Any value from 5,000 to 80,000 does as well (benchmarks/constants.py).
_QUANTUM = 20_000
# Items a group: from here on SLACK is better nearly always, and enough. LPT waits until it is asked for. With 8,
# steps are 3.5 +- 3.5 ppm worse; 32 does the same.
_MANY_A_GROUP = 16


def improve(problem: PartitionProblem, assignment: Assignment, work: int) -> tuple[int, int]:
    """Improve `assignment` in place, cheap searches first, until it is optimal, stuck, or `work` is spent.

    Returns the makespan reached and the work left. Never makes the assignment worse; more work never ends in a worse
    one.
    """
    makespan = problem.makespan_of(assignment)
    while work > 0 and makespan > problem.goal:
        before = makespan
        # Ordered by what they take: each is asked only for what the ones before left. Rows of
        # docs/benchmarks/searches.md.
        for search in (_swaps, _exchanges, refine, resplit):
            if work > 0 and makespan > problem.goal:
                work = search(problem, assignment, work)
                makespan = problem.makespan_of(assignment)
        if makespan == before:
            break
    return makespan, work


def _swaps(problem: PartitionProblem, assignment: Assignment, work: int) -> int:
    return lower_target(problem, assignment, work, keep_counts=True)


def _exchanges(problem: PartitionProblem, assignment: Assignment, work: int) -> int:
    return work if problem.equal_counts else lower_target(problem, assignment, work, keep_counts=False)


def _starts(problem: PartitionProblem) -> Iterator[Assignment]:
    """LPT and SLACK, the better first. With many items a group that is SLACK, nearly always: LPT waits to be asked."""
    if problem.equal_counts:
        yield assign_lpt(problem)
    elif len(problem.sorted_costs) >= _MANY_A_GROUP * problem.num_groups:
        yield assign_slack(problem)
        yield assign_lpt(problem)
    else:
        yield from sorted((assign_lpt(problem), assign_slack(problem)), key=problem.makespan_of)


def assign_auto(problem: PartitionProblem, work: int) -> tuple[Assignment, Bound]:
    """Return the best assignment that `work` buys, and the best bound proven.

    LPT is always paid for, and SLACK where the budget covers it (with equal counts, LPT alone); nothing is searched
    before. Each is improved, the better first, then what Karmarkar-Karp (with equal counts, BLDM) gives, until one is
    optimal. What gap is left, late bounds, groups solved anew, patterns and bin completion try to close.
    """
    num_items = len(problem.sorted_costs)
    if problem.equal_counts and problem.num_groups < num_items <= 2 * problem.num_groups:
        return assign_folded(problem), problem.bound
    work -= cost_of_lpt(num_items)
    price = 0 if problem.equal_counts else cost_of_slack(num_items)
    if work <= price:  # and no search from LPT either, or else a little more budget could end worse
        return assign_lpt(problem), problem.bound
    best, reached, work = improve_starts(problem, work - price)
    best, reached, work = _with_differencing(problem, best, reached, work)
    if work > 0 and reached > problem.goal:
        return _Closing.from_assignment(problem, best, work).run()
    return best, problem.bound


def _with_differencing(
    problem: PartitionProblem, best: Assignment, reached: int, work: int
) -> tuple[Assignment, int, int]:
    """Return the better of `best` and what differencing gives, its makespan, and the work left.

    Where the work does not buy it, none is left, or else a little more budget could end worse.
    """
    if work <= 0 or reached <= problem.goal:
        return best, reached, work
    price = 0 if problem.equal_counts else cost_of_karmarkar_karp(len(problem.sorted_costs), problem.num_groups)
    if work <= price:
        return best, reached, 0
    candidate = assign_bldm(problem) if problem.equal_counts else assign_karmarkar_karp(problem)
    makespan, work = improve(problem, candidate, work - price)
    return (candidate, makespan, work) if makespan < reached else (best, reached, work)


def improve_starts(problem: PartitionProblem, work: int) -> tuple[Assignment, int, int]:
    """Return the best that is had from LPT and SLACK, its makespan, and the work left."""
    reached = INT64_MAX + 1
    for candidate in _starts(problem):  # to the end, work or none, or else more of it could end worse than LPT
        makespan, work = improve(problem, candidate, work)
        if makespan < reached:
            best, reached = candidate, makespan
        if reached <= problem.goal:
            break
    return best, reached, work


@dataclass(slots=True)
class _Closing:
    """What closes the gap that exchanges leave: searches that take turns, each time with twice the work.

    What they do with one budget is the beginning of what they do with a larger one: a turn's share never depends on
    how much work is left, unless it is the last.
    """

    problem: PartitionProblem
    best: Assignment
    reached: int
    work: int
    late_bounds: int  # work units that they take; 0 once they are taken
    dual_feasible: int  # the same of the dual feasible bound
    patterns: PatternSearch | None

    @classmethod
    def from_assignment(cls, problem: PartitionProblem, best: Assignment, work: int) -> "_Closing":
        reached = problem.makespan_of(best)
        late, dual = problem.cost_of_late_bounds(reached), cost_of_dual_feasible(len(best))
        return cls(problem, best, reached, work, late, dual, PatternSearch.from_problem(problem, reached))

    def run(self) -> tuple[Assignment, Bound]:
        """Return the best assignment and bound."""
        quantum, turn = _QUANTUM, 0
        searches = self._raise_bound, self._regroup, self._use_patterns, self._complete_bins
        if self.problem.equal_counts:  # which these searches do not keep
            self._raise_bound(self.work // 3, 0)
            return self.best, self.problem.bound
        before = self.work + 1
        while 0 < self.work < before and self.reached > self.problem.goal:
            before = self.work  # where no search is for such a problem, none takes any
            for search in searches:
                if self.work > 0 and self.reached > self.problem.goal:
                    search(quantum, turn)
                    self.reached = self.problem.makespan_of(self.best)
            quantum, turn = 2 * quantum, turn + 1
        return self.best, self.problem.bound

    def _raise_bound(self, quantum: int, turn: int) -> None:
        if 0 < self.late_bounds <= quantum:
            self.work -= self.late_bounds
            self.late_bounds = 0
            self.problem = self.problem.with_late_bounds(self.reached)
            self.patterns = PatternSearch.from_problem(
                self.problem, self.reached
            )  # which begins with many times the work
        if 0 < self.dual_feasible <= quantum and self.reached > self.problem.goal:
            self.work -= self.dual_feasible
            self.dual_feasible = 0
            self.problem = self.problem.with_dual_feasible_bound(self.reached)

    def _regroup(self, quantum: int, turn: int) -> None:
        share = min(quantum, self.work)
        self.work += regroup(self.problem, self.best, share, quantum // 2, turn + 1) - share

    def _use_patterns(self, quantum: int, turn: int) -> None:
        """Raise the bound until the linear program has nothing more to say."""
        share = min(3 * quantum, self.work)  # most, because it proves where nothing else does
        if self.patterns is None or self.patterns.solved or 3 * quantum < self.patterns.least_work:
            return
        left = self.patterns.raise_bound(self.reached, share)
        bound = max(self.problem.bound, self.patterns.as_bound(), key=lambda bound: bound.value)
        self.problem = replace(self.problem, bound=bound)
        self.work += left - share

    def _complete_bins(self, quantum: int, turn: int) -> None:
        share = min(quantum, self.work)
        self.best, bound, left = close_gap(self.problem, self.best, share)
        self.problem = replace(self.problem, bound=bound or self.problem.bound)
        self.work += left - share
