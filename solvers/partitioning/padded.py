"""Padded batches: a group costs its row count times the cost of its longest row. Solved exactly, in milliseconds.

In an optimal solution the sorted rows can be cut into contiguous runs: exchanging rows so that each group's rows are
neighbours never raises a group's longest row. Under a bound B, the run that starts at row i may hold floor(B / g[i])
rows, and taking as many as fit is best, because it leaves the fewest for the groups that follow. So bisect B.

With at least k rows a group that still holds, if a run leaves k for each group behind it: let it end later than in some
solution. Runs that this leaves with fewer than k take the next k; they begin later than theirs did, which had as many.
"""

import time

import numpy as np
from numpy.typing import ArrayLike

from solvers._jit import helper, kernel
from solvers.arguments import as_count
from solvers.constraints import check_enough_items
from solvers.groups import check_padded_overflow, padded_loads
from solvers.partitioning._problem import Assignment, PartitionProblem, scatter
from solvers.types import PartitionResult, SolveStatus


@helper
def _run_end(rows, i, bound, behind, least):
    """Where the run that starts at row i ends: as many rows as fit, `least` left for each of the groups `behind` it."""
    room = len(rows) - i - least * behind
    return i + (room if rows[i] == 0 else min(room, bound // rows[i]))


@helper
def _runs_needed(rows, bound, limit, num_groups, least):
    """How many runs cover `rows` (descending) with count times longest <= bound; stops counting past `limit`."""
    n = len(rows)
    i = 0
    runs = 0
    while i < n and runs <= limit:
        runs += 1
        stop = _run_end(rows, i, bound, max(num_groups - runs, 0), least)
        if stop - i < least and runs <= num_groups:
            return limit + 1
        i = stop
    return runs


@kernel
def _smallest_bound(rows, num_groups, mean, least):
    """The smallest B that `num_groups` runs can keep. No run costs less than its rows, so it is `mean` or more.

    Runs needed go nearly as 1 / B. So what the mean needs tells where to look, and a range that grows from there around
    the answer is a few thousandths of the whole to halve.
    """
    low = max(rows[0] * max(least, 1), mean)
    high = rows[0] * ((len(rows) + num_groups - 1) // num_groups)  # the even split keeps it
    if low >= high:
        return high
    spare = low // num_groups
    excess = _runs_needed(rows, low, 2 * num_groups, num_groups, least) - num_groups
    guess = low + spare * max(0, min(excess, (high - 1 - low) // max(spare, 1)))
    step = spare // 4 + 1
    if _runs_needed(rows, guess, num_groups, num_groups, least) <= num_groups:
        high = guess
        while high > low and _runs_needed(rows, max(low, high - step), num_groups, num_groups, least) <= num_groups:
            high = max(low, high - step)
            step *= 2
        low = max(low, high - step + 1)
    else:
        low = guess + 1
        while high - low > step and _runs_needed(rows, low + step, num_groups, num_groups, least) > num_groups:
            low += step + 1
            step *= 2
        high = min(high, low + step) if high - low > step else high
    while low < high:
        middle = low + (high - low) // 2
        if _runs_needed(rows, middle, num_groups, num_groups, least) <= num_groups:
            high = middle
        else:
            low = middle + 1
    return low


@kernel
def _cut(rows, bound, num_groups, least, group_of_position, loads):
    """Cut into runs under `bound`. Rows of cost zero at the start of a run are dealt over the groups left."""
    n = len(rows)
    i = 0
    group = 0
    while i < n and rows[i] > 0:
        stop = _run_end(rows, i, bound, num_groups - group - 1, least)
        group_of_position[i:stop] = group
        loads[group] = (stop - i) * rows[i]
        i = stop
        group += 1
    for k in range(i, n):
        group_of_position[k] = group + (k - i) % (num_groups - group)


def assign_equal_counts(num_rows: int, num_groups: int) -> Assignment:
    """Contiguous runs of equal counts, the longest rows in the groups with fewer: optimal for padded rows.

    Some group holds the longest row and at least floor(n/m) rows; and of the groups with one row more, which hold
    r * ceil(n/m) rows together, one has a row at least as long as the r * ceil(n/m)-th shortest.
    """
    fewer, longer = divmod(num_rows, num_groups)
    counts = np.full(num_groups, fewer)
    counts[num_groups - longer :] += 1
    return np.repeat(np.arange(num_groups, dtype=np.int32), counts)


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
    problem = PartitionProblem.prepare(costs, num_groups, equal_counts)
    rows, num_groups = problem.sorted_costs, problem.num_groups
    check_padded_overflow(int(rows[0]) if len(rows) else 0, len(rows))
    least = as_count("min_items", min_items, 0)
    check_enough_items(len(rows), num_groups, least)
    if problem.equal_counts:
        assignment = assign_equal_counts(len(rows), num_groups)
        loads = padded_loads(rows, assignment, num_groups)
        makespan = int(loads.max())
    else:
        assignment = np.empty(len(rows), dtype=np.int32)
        loads = np.zeros(num_groups, dtype=np.int64)
        mean = -(-problem.total // num_groups)
        makespan = int(_smallest_bound(rows, num_groups, mean, least)) if len(rows) else 0
        _cut(rows, makespan, num_groups, least, assignment, loads)
    group_of_item = np.empty(len(rows), dtype=np.int32)
    scatter(problem.order, assignment, group_of_item)
    return PartitionResult(
        group_of_item, loads, makespan, "padded", lower_bound=makespan, bound_name="padded", status=SolveStatus.OPTIMAL,
        runtime_s=time.perf_counter() - started,
    )  # fmt: skip
