"""Mixed costs: a group costs the sum of its items' costs plus its count times its longest row, as in audio encoders.

There, rows are padded through a convolution and packed behind it. The optimum has no known simple structure; starts,
local search and bounds come close (:mod:`solvers.partitioning._mixed_starts`, ``_mixed_refine``, ``_mixed_bounds``).
"""

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._budget import work_units
from solvers.arguments import INT64_MAX, as_budget, as_costs
from solvers.bounds import Bound
from solvers.errors import Named, UsageError
from solvers.groups import mixed_loads
from solvers.partitioning._mixed_bounds import cover_bound, prefix_blocks, prefix_bound, quota_bound
from solvers.partitioning._mixed_refine import refine_mixed
from solvers.partitioning._mixed_starts import best_fill
from solvers.partitioning._problem import Assignment, PartitionProblem, scatter
from solvers.partitioning.lpt import assign_lpt
from solvers.partitioning.padded import assign_equal_counts
from solvers.types import PartitionResult, status_of

# A start so many times as far from the bound as the best is not worth a search: exchanges end far from where others
# began.
_HOPELESS = 4
# Work of the bound where no budget limits it: under a second.
_MOST_BOUND_WORK = 1 << 28


@dataclass(frozen=True, slots=True)
class _MixedProblem:
    """The items in descending order, and the additive problem that bounds this one: u + g an item."""

    additive: PartitionProblem
    costs: NDArray[np.int64]
    rows: NDArray[np.int64]

    @classmethod
    def prepare(cls, costs: ArrayLike, row_costs: ArrayLike, num_groups: int, equal_counts: bool) -> "_MixedProblem":
        fixed, _, total = as_costs(costs)
        rows, longest, _ = as_costs(row_costs, "row_costs")
        if len(fixed) != len(rows):
            raise UsageError(
                f"{{costs}} and {{row_costs}} must have one entry an item, got {len(fixed)} and {len(rows)}"
            )
        if total + longest * len(rows) > INT64_MAX:
            raise UsageError(
                f"mixed costs must fit int64: {len(rows)} rows of the largest row cost {longest} and the costs' sum "
                f"{total} would cost {total + longest * len(rows)}"
            )
        additive = PartitionProblem.prepare(fixed + rows, num_groups, equal_counts)
        order = additive.order
        problem = cls(additive, fixed[order], rows[order])
        problem._check_order()
        return problem

    def _check_order(self) -> None:
        wrong = (np.diff(self.costs) > 0) | (np.diff(self.rows) > 0)
        if wrong.any():
            at = int(np.argmax(wrong))
            i, j = (int(item) for item in self.additive.order[at : at + 2])
            raise UsageError(
                "{costs} and {row_costs} must rise together, as functions of one length do: "
                f"{{one}} and {{other}} cost {self.costs[at]} and {self.costs[at + 1]}, their rows {self.rows[at]} and "
                f"{self.rows[at + 1]}",
                one=Named("item", i),
                other=Named("item", j),
            )

    @property
    def num_groups(self) -> int:
        return self.additive.num_groups

    @property
    def equal_counts(self) -> bool:
        return self.additive.equal_counts

    def loads(self, assignment: Assignment) -> NDArray[np.int64]:
        return mixed_loads(self.costs, self.rows, assignment, self.num_groups)

    def makespan_of(self, assignment: Assignment) -> int:
        return int(self.loads(assignment).max())

    def quick_bound(self) -> Bound:
        """Bounds that hold for u + g, and those of the counts: O(n), whatever the budget."""
        bound = self.additive.bound
        if self.equal_counts and len(self.costs):
            bound = max(bound, *quota_bound(self.costs, self.rows, self.num_groups), key=lambda b: b.value)
        return bound

    def best_bound(self, quick: Bound, makespan: int, work: int) -> Bound:
        """The best bound that `work` units buy, more never a worse one; `makespan` is one that is reached."""
        best = quick
        if len(self.costs) == 0 or makespan <= best.value:
            return best
        if (cover := cover_bound(self.costs, self.rows, self.num_groups, best.value, makespan)).value > best.value:
            best = cover
        blocks = prefix_blocks(len(self.costs), self.num_groups, min(work, _MOST_BOUND_WORK))
        # Fewer blocks than groups say less than the cover; and lines of the envelope must fit int64.
        if blocks >= self.num_groups and best.value < makespan and self.rows[0] * len(self.rows) < INT64_MAX // 4:
            prefix = prefix_bound(self.costs, self.rows, self.num_groups, quick.value, makespan, blocks)
            if prefix.value > best.value:
                best = prefix
        return best

    def always(self) -> list[Assignment]:
        """What every budget affords: contiguous runs, and LPT as if no row were padded by another."""
        lpt = assign_lpt(self.additive)
        if self.equal_counts:
            runs = assign_equal_counts(len(self.costs), self.num_groups)
        else:
            high, low = self.makespan_of(lpt), self.additive.bound.value
            found, _ = best_fill(self.costs, self.rows, self.num_groups, low, high, INT64_MAX, contiguous=True)
            runs = lpt if found is None else found
        return [runs, lpt]


def _search(problem: _MixedProblem, target: int, work: int) -> Assignment:
    """Return the best assignment that `work` buys."""
    starts = problem.always()
    if len(problem.costs) == 0:
        return starts[0]
    high = min(problem.makespan_of(start) for start in starts)
    filled, work = best_fill(
        problem.costs, problem.rows, problem.num_groups, target, high, work, equal_counts=problem.equal_counts
    )
    if filled is not None:
        starts.insert(0, filled)
    starts.sort(key=problem.makespan_of)
    best, reached = starts[0].copy(), problem.makespan_of(starts[0])
    farthest = target + _HOPELESS * (reached - target)
    for start in starts:
        if work <= 0 or reached <= target or problem.makespan_of(start) > farthest:
            break
        work = int(
            refine_mixed(problem.costs, problem.rows, start, problem.num_groups, target, problem.equal_counts, work)
        )
        if (makespan := problem.makespan_of(start)) < reached:
            best, reached = start, makespan
    return best


def mixed_bound(costs: ArrayLike, row_costs: ArrayLike, num_groups: int, equal_counts: bool = False) -> Bound:
    """Best lower bound on the makespan of mixed costs, at least as good as any that :func:`mixed` returns.

    Arguments and errors are those of :func:`mixed`.
    """
    problem = _MixedProblem.prepare(costs, row_costs, num_groups, equal_counts)
    makespan = min(problem.makespan_of(start) for start in problem.always())
    return problem.best_bound(problem.quick_bound(), makespan, _MOST_BOUND_WORK)


def mixed(
    costs: ArrayLike,
    row_costs: ArrayLike,
    num_groups: int,
    *,
    equal_counts: bool = False,
    time_budget: float = 0.01,
) -> PartitionResult:
    """Partition under mixed costs: minimise the largest sum(costs in S) + len(S) * max(row_costs in S) of a group S.

    As for an audio encoder: a convolution over rows padded to the longest, and a transformer over packed rows.

    Parameters
    ----------
    costs : int64[n]
        The cost of each item in any group; non-negative.
    row_costs : int64[n]
        The cost of each row of a group whose longest item this is; non-negative. Both must be non-decreasing functions
        of one length, so that they have the same order.
    num_groups : int
        At least 1; may exceed n.
    equal_counts : bool
        Exactly n/m items a group, within one where m does not divide n.
    time_budget : float
        Seconds' worth of work for the search, counted and not timed. Contiguous runs and LPT on ``costs + row_costs``
        always run. The bound takes up to a third more.

    Returns
    -------
    PartitionResult
        ``loads`` are the mixed loads. Never worse than the best contiguous runs, nor than LPT.

    Raises
    ------
    TypeError, ValueError
        On arguments of the wrong kind, negative costs, costs whose orders contradict each other, or the sum of `costs`
        and n times the largest row past int64.

    Notes
    -----
    Deterministic, and anytime: a larger budget never gives a larger makespan, nor a smaller bound. O(n + m) memory.

    Examples
    --------
    >>> result = mixed([8, 8, 1, 1, 1, 1], [8, 8, 1, 1, 1, 1], 2)
    >>> result.group_of_item.tolist(), result.loads.tolist()
    ([0, 0, 1, 1, 1, 1], [32, 8])
    """
    started = time.perf_counter()
    work = work_units(as_budget(time_budget))
    problem = _MixedProblem.prepare(costs, row_costs, num_groups, equal_counts)
    quick = problem.quick_bound()
    assignment = _search(problem, quick.value, work)
    loads = problem.loads(assignment)
    makespan = int(loads.max())
    bound = problem.best_bound(quick, makespan, work // 3)
    group_of_item = np.empty(len(assignment), dtype=np.int32)
    scatter(problem.additive.order, assignment, group_of_item)
    return PartitionResult(
        group_of_item, loads, makespan, "mixed", lower_bound=bound.value, bound_name=bound.name,
        status=status_of(makespan, bound.value), runtime_s=time.perf_counter() - started,
    )  # fmt: skip
