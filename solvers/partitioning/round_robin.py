"""Round robin: item i to group i mod m, the baseline that looks at no cost."""

import numpy as np
from numpy.typing import ArrayLike

from solvers.partitioning._problem import Assignment, PartitionProblem, solve
from solvers.types import PartitionResult


def assign_round_robin(problem: PartitionProblem) -> Assignment:
    """Round robin on a prepared problem; its counts are always within one."""
    return problem.order % np.int32(problem.num_groups)


def round_robin(
    costs: ArrayLike, num_groups: int, *, equal_counts: bool = False, time_budget: float = 0.01
) -> PartitionResult:
    """Partition by dealing: item i, in the order given, to group i mod m.

    Parameters
    ----------
    costs, num_groups
        As for :func:`solvers.partition`, and so are the errors.
    equal_counts : bool
        Changes only the bound: the counts are within one anyway.
    time_budget : float
        Not read.

    Returns
    -------
    PartitionResult
        With no guarantee but its own lower bound. O(n) after the sort for the bound.

    Examples
    --------
    >>> round_robin([5, 4, 3, 3, 3], 2).loads.tolist()
    [11, 7]
    """
    return solve(costs, num_groups, equal_counts, "round_robin", assign_round_robin)
