"""A partition problem made ready for the solvers, and the result made from what they return.

Every solver sees only the costs in stable descending order and returns a group for each *position* of that order. Here
is what all share before (checks, sorting, bounds) and after (loads, certificate).
"""

import time
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._jit import kernel
from solvers._loops import largest_of
from solvers._sort import sort_descending
from solvers.arguments import as_costs, as_count
from solvers.bounds import Bound, best_bound, goal_above
from solvers.groups import largest_load
from solvers.types import STOP_AT, PartitionResult, status_of

Assignment = NDArray[np.int32]  # the group of each position in the sorted order


@kernel
def _give_back(order, sorted_costs, assignment, group_of_item, loads):
    """Fill in the group of each item and the load of each group. Returns the largest load."""
    for i in range(len(order)):
        group_of_item[order[i]] = assignment[i]
        loads[assignment[i]] += sorted_costs[i]
    return largest_of(loads)


@dataclass(frozen=True, slots=True)
class PartitionProblem:
    """Checked costs with their sorted order and their lower bound."""

    order: NDArray[np.int32]  # int32[n]: items in stable descending order of cost
    sorted_costs: NDArray[np.int64]  # int64[n]: ``costs[order]``
    total: int  # sum of the costs; fits int64
    num_groups: int  # at least 1
    equal_counts: bool  # whether groups must hold exactly n/m items (within one where m does not divide n)
    bound: Bound  # the best lower bound that is proven so far
    stop_at: Fraction = Fraction(0)  # the gap that is small enough: no search goes on below it

    @property
    def goal(self) -> int:
        """The makespan that is small enough: the bound, or `stop_at` of it more."""
        return goal_above(self.bound, self.stop_at)

    @classmethod
    def prepare(
        cls, costs: ArrayLike, num_groups: int, equal_counts: bool, stop_at: Fraction = Fraction(0)
    ) -> "PartitionProblem":
        """Check and sort. Raises TypeError or ValueError that name the argument, the item and the rule."""
        num_groups = as_count("num_groups", num_groups)
        array, largest, total = as_costs(costs)
        order, sorted_costs = sort_descending(array, largest)
        bound = best_bound(sorted_costs, total, num_groups, equal_counts)
        return cls(order, sorted_costs, total, num_groups, bool(equal_counts), bound, stop_at)

    def makespan_of(self, assignment: Assignment) -> int:
        """Return the largest load of `assignment`."""
        return int(largest_load(self.sorted_costs, assignment, self.num_groups))

    def result(
        self,
        assignment: Assignment,
        method: str,
        started: float,
        *,
        bound: Bound | None = None,
        stop_at: Fraction = STOP_AT,
        out_of_time: bool = False,
    ) -> PartitionResult:
        """Build the result of `assignment`, with `bound` instead of the closed-form one where it is better."""
        group_of_item = np.empty(len(assignment), dtype=np.int32)
        loads = np.zeros(self.num_groups, dtype=np.int64)
        makespan = int(_give_back(self.order, self.sorted_costs, assignment, group_of_item, loads))
        # Ties to the closed form: its proof can be recomputed, that of a search cannot.
        best = self.bound if bound is None or bound.value <= self.bound.value else bound
        return PartitionResult(
            group_of_item, loads, makespan, method, lower_bound=best.value, bound_name=best.name,
            status=status_of(makespan, best.value, stop_at, out_of_time=out_of_time),
            runtime_s=time.perf_counter() - started,
        )  # fmt: skip
