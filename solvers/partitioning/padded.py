"""Padded batches: a group costs its row count times the cost of its longest row. Solved exactly, in milliseconds.

In an optimal solution the sorted rows can be cut into contiguous runs: exchanging rows so that each group's rows are
neighbours never raises a group's longest row. Under a makespan B, the run that starts at row i may hold floor(B / g[i])
rows, and taking as many as fit is best, because it leaves the fewest for the groups that follow. So bisect B.

With at least k rows a group that still holds, if a run leaves k for each group that follows: let it end later than in
some solution. Runs that this leaves with fewer than k take the next k; they begin later than theirs did, which had as
many.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import ArrayLike

from solvers._jit import helper, kernel
from solvers._sort import sort_descending
from solvers.arguments import as_costs, as_count, as_flag
from solvers.constraints import check_enough_items
from solvers.groups import check_padded_overflow, padded_loads
from solvers.types import PartitionResult, SolveStatus


@helper
def _cover(rows, makespan, least, ends):
    """Cut `rows` (descending) into a run a group, none above `makespan`; their ends go to `ends`. Whether all fit.

    There are rows for `least` in every group, and `makespan` has room for so many of the longest.
    """
    n, num_groups = len(rows), len(ends)
    start = 0
    for group in range(num_groups):
        following = num_groups - 1 - group
        # As many rows as fit, but `least` are left for each group that follows.
        size = n - start - least * following
        if start < n and rows[start] > 0:
            size = min(size, makespan // rows[start])
        elif start < n:
            # Rows that cost nothing still are rows: an even share each, so that no group holds them all.
            size = (n - start + following) // (following + 1)
        start += size
        ends[group] = start
    return start == n


@kernel(turns=30)
def _smallest_makespan(rows, low, high, least, ends):
    """Bisect the smallest makespan from `low` to `high` that runs can keep; `high` they can. O(m) a step."""
    while low < high:
        middle = low + (high - low) // 2
        if _cover(rows, middle, least, ends):
            high = middle
        else:
            low = middle + 1
    _cover(rows, low, least, ends)  # the last step may have failed


def padded(
    costs: ArrayLike, num_groups: int, *, equal_counts: bool = False, min_items: int = 0, time_budget: float = 0.01
) -> PartitionResult:
    """Partition padded rows exactly: minimise the largest (number of rows) * (cost of the longest row).

    Parameters
    ----------
    costs : int64[n]
        Cost of each row as if nothing were padded: any non-negative, non-decreasing function of its length.
    num_groups : int
        At least 1; may exceed n.
    equal_counts : bool
        Exactly n/m rows a group, within one where m does not divide n.
    min_items : int
        A group holds at least so many rows; one costs nothing, as halves of a group weigh no more than it does.
    time_budget : float
        Not read: always solved to the end.

    Returns
    -------
    PartitionResult
        ``loads`` are padded loads; always ``OPTIMAL``.

    Raises
    ------
    TypeError, ValueError
        On arguments of the wrong kind, negative costs, or n times the largest cost past int64.
    InfeasibleError
        Fewer rows than groups have to hold.

    Notes
    -----
    O(m log(n * largest)) after the sort; O(n) memory.

    Examples
    --------
    >>> result = padded([8, 8, 1, 1, 1, 1], 2)
    >>> result.group_of_item.tolist(), result.loads.tolist()
    ([0, 0, 1, 1, 1, 1], [16, 4])
    """
    started = time.perf_counter()
    equal_counts = as_flag("equal_counts", equal_counts)
    num_groups, least = as_count("num_groups", num_groups), as_count("min_items", min_items, 0)
    unsorted, largest, total = as_costs(costs)
    check_padded_overflow(largest, len(unsorted))
    check_enough_items(len(unsorted), num_groups, least)
    order, rows = sort_descending(unsorted, largest)
    few, longer = divmod(len(rows), num_groups)
    if equal_counts:
        # The longest rows in the groups with fewer. It is optimal: some group holds the longest row and at least `few`;
        # and of the groups with one more, which hold longer * (few + 1) rows together, one has a row at least as long
        # as the longest of so many shortest ones.
        sizes = few + (np.arange(num_groups) >= num_groups - longer)
    else:
        ends = np.zeros(num_groups, dtype=np.int64)
        # No run costs less than its rows as if nothing were padded, and an even split costs no more than `high`.
        low = max(largest * max(least, 1), -(-total // num_groups))
        high = max(low, largest * (few + (longer > 0)))
        _smallest_makespan(rows, low, high, least, ends)
        sizes = np.diff(ends, prepend=0)
    groups = np.repeat(np.arange(num_groups, dtype=np.int32), sizes)
    group_of_item = np.empty(len(rows), dtype=np.int32)
    group_of_item[order] = groups
    loads = padded_loads(rows, groups, num_groups)
    makespan = int(loads.max())
    return PartitionResult(
        group_of_item, loads, makespan, "padded", lower_bound=makespan, bound_name="padded", status=SolveStatus.OPTIMAL,
        runtime_s=time.perf_counter() - started,
    )  # fmt: skip
