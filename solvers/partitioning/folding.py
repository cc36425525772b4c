"""Folding: with two items a group, the largest goes with the smallest, the second largest with the second smallest."""

import numpy as np

from solvers.partitioning._problem import Assignment, PartitionProblem


def assign_folded(problem: PartitionProblem) -> Assignment:
    """Return the optimum with equal counts where m < n <= 2 m.

    Add zeros up to 2 m items, c[0] >= ... >= c[2m-1]. Folding has makespan c[i] + c[2m-1-i] for some i < m. In any
    assignment of two to a group, either two of the i + 1 largest share a group, which holds at least 2 c[i], or they
    have i + 1 different partners; all partners below c[2m-1-i] number i at most, so one partner is at least c[2m-1-i].
    Either way some load is at least c[i] + c[2m-1-i]. (A group of one item has a zero for its second.)
    """
    n, m = len(problem.sorted_costs), problem.num_groups
    positions = np.arange(n, dtype=np.int32)
    return np.where(positions < m, positions, 2 * m - 1 - positions).astype(np.int32)
