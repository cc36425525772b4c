"""SLACK: LPT on blocks of m items, the block with the largest spread first (Della Croce & Scatamacchia 2020)."""

import numpy as np
from numpy.typing import ArrayLike

from solvers._jit import kernel
from solvers.partitioning._problem import Assignment, PartitionProblem, scatter, solve
from solvers.partitioning.lpt import assign_in_order
from solvers.types import PartitionResult


@kernel
def _block_spreads(sorted_costs, num_groups, negative_spreads):
    """Last minus first cost of each block of m positive costs; a last, short block is filled up with zeros."""
    for block in range(len(negative_spreads)):
        last = (block + 1) * num_groups - 1
        negative_spreads[block] = -sorted_costs[block * num_groups]
        if last < len(sorted_costs):
            negative_spreads[block] += sorted_costs[last]


@kernel
def _list_blocks(sorted_costs, block_order, num_groups, positive, positions, costs):
    """Positions and their costs block by block in the order given, then those of cost zero."""
    k = 0
    for block in block_order:
        for position in range(block * num_groups, min((block + 1) * num_groups, positive)):
            positions[k] = position
            costs[k] = sorted_costs[position]
            k += 1
    for position in range(positive, len(positions)):
        positions[position] = position
        costs[position] = 0


def assign_slack(problem: PartitionProblem) -> Assignment:
    """SLACK on a prepared problem; with quotas where the problem asks for equal counts."""
    n, num_groups, positive = len(problem.sorted_costs), problem.num_groups, problem.num_positive
    negative_spreads = np.empty(-(-positive // num_groups), dtype=np.int64)
    _block_spreads(problem.sorted_costs, num_groups, negative_spreads)
    # The most uneven block first: later, evener ones have the most to choose from when they level what it left.
    by_spread = np.argsort(negative_spreads, kind="stable")
    positions, costs = np.empty(n, dtype=np.int32), np.empty(n, dtype=np.int64)
    _list_blocks(problem.sorted_costs, by_spread, num_groups, positive, positions, costs)
    assignment = np.empty(n, dtype=np.int32)
    scatter(positions, assign_in_order(problem, costs), assignment)
    return assignment


def slack(
    costs: ArrayLike, num_groups: int, *, equal_counts: bool = False, time_budget: float = 0.01
) -> PartitionResult:
    """Partition by LPT with slack: the most uneven block of items is placed first.

    The sorted items are cut into blocks of m; the blocks go by descending spread (first minus last item); then each
    item to the least loaded group. Nearly always much better than :func:`lpt` where n/m is large.

    Parameters
    ----------
    costs, num_groups
        As for :func:`solvers.partition`, and so are the errors.
    equal_counts : bool
        Exactly n/m items a group, within one where m does not divide n: full groups take no more.
    time_budget : float
        Not read: one pass, whatever the budget.

    Returns
    -------
    PartitionResult

    Notes
    -----
    O(n log m) time after the sort and O(n + m) memory.

    References
    ----------
    Della Croce & Scatamacchia, "The Longest Processing Time rule for identical parallel machines revisited", Journal
    of Scheduling 23, 2020.

    Examples
    --------
    >>> slack([9, 5, 5, 4, 4, 3], 2).loads.tolist()
    [16, 14]
    """
    return solve(costs, num_groups, equal_counts, "slack", assign_slack)
