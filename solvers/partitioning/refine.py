"""Local search: move an item, or swap two, between the largest group and another, until the bound is reached.

For a group with load L and another with load K < L, giving an item of cost a for one of cost b changes both by d = a
- b; the larger of the two becomes smaller for 0 < d < L - K, least for d nearest to (L - K) / 2. Both groups are kept
sorted, so that the best pair is found by walking both once and not by trying all pairs. (A move is a swap with
nothing, b = 0.)
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._exchange import Window, best_exchange, exchange, items_of, may_grow, members_of
from solvers._jit import kernel
from solvers._loops import first_largest, first_smallest
from solvers._sort import sort_descending
from solvers.arguments import as_costs
from solvers.bounds import best_bound
from solvers.groups import group_loads
from solvers.partitioning.lpt import lpt_in_order

Assignment = NDArray[np.int32]  # the group of each position in the sorted order


@dataclass(frozen=True, slots=True)
class PartitionProblem:
    """Checked costs with their sorted order and their lower bound."""

    sorted_costs: NDArray[np.int64]  # int64[n], in descending order
    num_groups: int  # at least 1
    equal_counts: bool  # whether groups must hold exactly n/m items (within one where m does not divide n)
    goal: int  # a lower bound: a makespan that is small enough

    @classmethod
    def prepare(cls, costs: ArrayLike, num_groups: int, equal_counts: bool) -> "PartitionProblem":
        """Check and sort. Raises TypeError or ValueError that name the argument, the item and the rule."""
        array, largest, total = as_costs(costs)
        _, sorted_costs = sort_descending(array, largest)
        return cls(
            sorted_costs, num_groups, equal_counts, best_bound(sorted_costs, total, num_groups, equal_counts).value
        )

    def lpt(self) -> Assignment:
        """LPT; with quotas where the problem asks for equal counts."""
        return lpt_in_order(self.sorted_costs, self.num_groups, self.equal_counts)

    def makespan_of(self, assignment: Assignment) -> int:
        """Return the largest load of `assignment`."""
        return int(group_loads(self.sorted_costs, assignment, self.num_groups).max())


@kernel(turns=10)
def _refine(costs, group_of_position, loads, target, equal_counts, work):
    """Improve in place. Returns the work left: positive if the search ended by itself."""
    num_groups = len(loads)
    longer = len(costs) // num_groups + 1  # a group with this many items may give one to a group with one less
    members = members_of(group_of_position, num_groups, longer)
    while work > 0:
        # Only the largest group counts: the makespan falls once it has given. Two walks of all loads a step.
        g = first_largest(loads)
        least = first_smallest(loads)
        work -= num_groups
        if loads[g] <= target:
            break
        best, best_h, best_i, best_j = np.int64(0), np.int64(-1), np.int64(0), np.int64(0)
        best_makespan = loads[g]
        given = items_of(members, g)
        for turn in range(num_groups):
            h = (least + turn) % num_groups  # the emptiest group first, then all in turn
            difference = loads[g] - loads[h]
            if difference < 2 or loads[h] + (difference + 1) // 2 >= best_makespan:
                continue  # not even the ideal exchange would be the best
            longer_gives = members.size[g] == longer and members.size[h] == longer - 1
            may_move = may_grow(members, h) and (not equal_counts or longer_gives)
            aim = difference // 2  # what evens the two, and so does one more where the difference is odd
            # No sizes count here: costs stand for them, and rooms are what the window permits anyway.
            window = Window(np.int64(1), difference - 1, aim, difference - aim, np.int64(0), difference)
            d, i, j, _ = best_exchange(costs, costs, given, items_of(members, h), window, may_move)
            work -= members.size[g] + members.size[h]
            makespan = max(loads[g] - d, loads[h] + d)
            if d > 0 and makespan < best_makespan:
                best, best_h, best_i, best_j, best_makespan = d, h, i, j, makespan
                if makespan <= target:
                    break
            if work <= 0:
                break
        if best_h < 0:
            break
        exchange(members, group_of_position, g, best_i, best_h, best_j)
        loads[g] -= best
        loads[best_h] += best
    return work


def refine(problem: PartitionProblem, assignment: Assignment, work: int) -> int:
    """Improve `assignment` in place by moves and swaps, keeping equal counts where the problem asks for them.

    Never makes it worse. Returns the work left, positive if the search ended by itself: at the bound, or where no move
    or swap helps. One step walks the largest group and, until one fits, each other group: O(n + m) at most, mostly far
    less.
    """
    loads = group_loads(problem.sorted_costs, assignment, problem.num_groups)
    left = _refine(problem.sorted_costs, assignment, loads, problem.goal, problem.equal_counts, work)
    return int(left)
