"""Items that share prefixes into groups: packed at a target, or, under equal counts, dealt out and exchanged."""

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from solvers._budget import work_units
from solvers.arguments import as_budget
from solvers.prefixes._exchange import exchanged
from solvers.prefixes._pack import best_pack, deal_counts
from solvers.prefixes._problem import Ints, PrefixProblem, prepare
from solvers.prefixes.bounds import parts_at, parts_bound
from solvers.types import PartitionResult, status_of

__all__ = ["partition_with_prefixes", "prefix_bound"]


def partition_with_prefixes(
    costs: ArrayLike, num_groups: int, prefix: ArrayLike | Sequence[int | str | None] | None,
    prefix_costs: ArrayLike | None, *, equal_counts: bool = False, time_budget: float = 0.01,
) -> PartitionResult:  # fmt: skip
    """Put items into groups, where the prefix that several items share counts once in every group that has any of them.

    See :func:`solvers.partition`, which has these arguments too. O(k m) and O(n log n) times the digits of the result.
    """
    started, budget = time.perf_counter(), as_budget(time_budget)
    problem = prepare(costs, num_groups, equal_counts, prefix, prefix_costs)
    low = parts_bound(problem)
    group, loads = _groups_of(problem, low, work_units(budget)) if len(problem.order) else _none(problem)
    group_of_item = np.empty(len(group), dtype=np.int32)
    group_of_item[problem.order] = group
    makespan = int(loads.max())
    return PartitionResult(
        group_of_item, loads, makespan, "auto", lower_bound=low, bound_name="parts",
        status=status_of(makespan, low), runtime_s=time.perf_counter() - started,
    )  # fmt: skip


def _none(problem: PrefixProblem) -> tuple[Ints, Ints]:
    return np.empty(0, dtype=np.int64), np.zeros(problem.num_groups, dtype=np.int64)


def _groups_of(problem: PrefixProblem, low: int, work: int) -> tuple[Ints, Ints]:
    """Return the group of each sorted item, and loads."""
    if problem.most_items >= len(problem.order):
        return best_pack(problem, low)
    # Each prefix in as many parts as it has at least at the bound: benchmarks/shared_prompts.py, starts, has then a gap
    # of 3.1 % on average; with prefixes whole 3.8
    return exchanged(problem, deal_counts(problem, parts_at(problem, low))[0], low, work)


def prefix_bound(
    costs: ArrayLike, num_groups: int, prefix: ArrayLike | Sequence[int | str | None], prefix_costs: ArrayLike,
    *, equal_counts: bool = False,
) -> int:  # fmt: skip
    """Return the lower bound on the makespan by itself; arguments as of :func:`solvers.partition`."""
    return parts_bound(prepare(costs, num_groups, equal_counts, prefix, prefix_costs))
