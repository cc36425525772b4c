"""A packing problem made ready for the packers, and the result made from what they return.

Here is what all packers share before (checks, sorting) and after (loads, certificate).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._sort import sort_descending
from solvers.arguments import as_costs, as_count
from solvers.bounds import Bound, groups_bound
from solvers.groups import group_loads
from solvers.packing._arguments import as_cap, check_fits
from solvers.packing.types import PackingResult
from solvers.types import status_of

Assignment = NDArray[np.int32]  # the group of each item, or of each position in the sorted order


@dataclass(frozen=True, slots=True)
class PackingProblem:
    """Checked sizes with their sorted order."""

    sizes: NDArray[np.int64]  # int64[n]: in the order given
    order: NDArray[np.int32]  # int32[n]: items in stable descending order of size
    sorted_sizes: NDArray[np.int64]  # int64[n]: ``sizes[order]``
    total: int  # sum of the sizes; fits int64
    cap: int  # at least as large as every size
    max_items: int  # the most items that a group may hold; where the caller set no limit, max(n, 1), which none exceeds

    @classmethod
    def prepare(cls, sizes: ArrayLike, cap: int, max_items: int | None) -> "PackingProblem":
        """Check and sort. Raises TypeError, ValueError or InfeasibleError that name argument, item and rule."""
        cap = as_cap(cap)
        array, largest, total = as_costs(sizes, "sizes")
        # Where nothing limits counts, a limit that none exceeds does, so that kernels need no second case.
        at_most = max(len(array), 1)
        if max_items is not None:
            at_most = min(at_most, as_count("max_items", max_items))
        check_fits(array, largest, cap)
        order, sorted_sizes = sort_descending(array, largest)
        return cls(array, order, sorted_sizes, total, cap, at_most)

    @property
    def most_groups(self) -> int:
        """No first fit or best fit opens more groups.

        Of two groups that are not full by count, the first item of the later one did not fit the earlier one, so
        together they exceed the cap; q of them, each counted twice, therefore weigh more than q * cap / 2.
        """
        return min(len(self.sizes), 2 * self.total // self.cap + 1 + len(self.sizes) // self.max_items)

    def bound(self, enough: int | None = None) -> Bound:
        """Return the best closed-form lower bound, or the first that reaches `enough`."""
        return groups_bound(self.sorted_sizes, self.total, self.cap, self.max_items, enough)

    def by_item(self, group_of_position: Assignment) -> Assignment:
        """Carry an assignment of sorted positions over to the items."""
        group_of_item = np.empty_like(group_of_position)
        group_of_item[self.order] = group_of_position
        return group_of_item

    def result(
        self,
        group_of_item: Assignment,
        method: str,
        started: float,
        *,
        bound: Bound | None = None,
        out_of_time: bool = False,
    ) -> PackingResult:
        """Build the result of `group_of_item`; `bound` is the best one known, by default the closed-form one."""
        num_groups = num_groups_of(group_of_item)
        loads = group_loads(self.sizes, group_of_item, num_groups)
        best = self.bound(enough=num_groups) if bound is None else bound
        return PackingResult(
            group_of_item, loads, self.cap, method, lower_bound=best.value, bound_name=best.name,
            status=status_of(num_groups, best.value, out_of_time=out_of_time),
            runtime_s=time.perf_counter() - started,
        )  # fmt: skip


def num_groups_of(assignment: Assignment) -> int:
    """Return the number of groups of an assignment that leaves none empty."""
    return int(assignment.max()) + 1 if len(assignment) else 0


def solve(
    sizes: ArrayLike,
    cap: int,
    max_items: int | None,
    method: str,
    assign: Callable[[PackingProblem], Assignment],
) -> PackingResult:
    """Prepare, assign (items, in the order given), certify: the body of every one-pass packer."""
    started = time.perf_counter()
    problem = PackingProblem.prepare(sizes, cap, max_items)
    return problem.result(assign(problem), method, started)
