"""Equal counts: first the portfolio, then exchanges of items for as many others, as under any constraint."""

import numpy as np
from numpy.typing import NDArray

from solvers.bounds import Bound, goal_above
from solvers.constraints import Constraints
from solvers.partitioning._problem import Assignment, PartitionProblem
from solvers.partitioning.bldm import assign_bldm
from solvers.partitioning.constrained.search import Search, exhaust_small, lower_targets, shake
from solvers.partitioning.constrained.state import State
from solvers.partitioning.portfolio import assign_auto

# Work units an item and group that the portfolio gets at first: enough for its starts and a pass of each exchange.
# With 20, steps are 4 +- 6 ppm worse, with 80 11 +- 6 ppm better (benchmarks/constants.py).
_FIRST = 40
# Times as many once the exchanges are stuck. Row *the portfolio again* of benchmarks/ablation.py, equal, leaves it
# out. Any value from 8 to 32 does as well.
_MORE = 16


def assign_even(problem: PartitionProblem, work: int) -> tuple[Assignment, Bound]:
    """Return the best assignment with equal counts that `work` buys, and the best bound."""
    price = _FIRST * len(problem.sorted_costs)  # of differencing
    share = _FIRST * (len(problem.sorted_costs) + problem.num_groups)
    best, bound = assign_auto(problem, min(share, work))
    work -= share
    if work <= 0 or problem.makespan_of(best) <= goal_above(bound, problem.stop_at):
        return best, bound
    state = State.from_problem(Constraints(equal_counts=True).check(problem.sorted_costs, problem.num_groups))
    found = Search(state, work, problem.stop_at)
    _take(found, best, bound)
    exhaust_small(found)
    if found.work <= price:  # and nothing instead, or else a little more budget could end worse
        return _result(found, best, bound)
    if not found.done:
        _take(found, assign_bldm(problem), bound)
        found.work -= price
    lower_targets(found)
    share *= _MORE
    if not found.done:
        _take(found, *assign_auto(problem, min(share, found.work)))
        found.work -= share
    shake(found)
    return _result(found, best, bound)


def _result(found: Search, best: Assignment, bound: Bound) -> tuple[Assignment, Bound]:
    units = best if found.best is None else found.best[found.state.units.unit_of_item]
    return units.astype(np.int32), max(bound, found.bound, key=lambda one: one.value)


def _take(found: Search, assignment: NDArray[np.int32], bound: Bound) -> None:
    """Offer an assignment of items to the search, and its bound."""
    units = np.empty(len(assignment), dtype=np.int64)
    units[found.state.units.unit_of_item] = assignment
    found.offer(units)
    found.bound = max(found.bound, bound, key=lambda one: one.value)
