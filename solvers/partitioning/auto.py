"""The default method: a portfolio of searches, and under equal counts a search that keeps them."""

import time
from fractions import Fraction

from numpy.typing import ArrayLike

from solvers._budget import work_units
from solvers.arguments import as_budget, as_share
from solvers.partitioning._problem import PartitionProblem
from solvers.partitioning.even_counts import assign_even
from solvers.partitioning.portfolio import assign_auto
from solvers.types import PartitionResult


def auto(
    costs: ArrayLike,
    num_groups: int,
    *,
    equal_counts: bool = False,
    time_budget: float = 0.01,
    stop_at: float | str | Fraction = "0.1%",
) -> PartitionResult:
    """Partition by a portfolio: several starts, local search on each, then proofs and searches that close the gap.

    Their order is in :mod:`solvers.partitioning.portfolio`, for equal counts in
    :mod:`solvers.partitioning.even_counts`.

    Parameters
    ----------
    costs, num_groups
        As for :func:`solvers.partition`, and so are the errors.
    equal_counts : bool
        Exactly n/m items a group, within one where m does not divide n.
    time_budget : float
        Seconds' worth of work. Sorting and LPT always run, 10 to 15 ns per item; then SLACK, as much, and the rest
        while the budget lasts and the gap is not 0.
    stop_at : float, str or Fraction
        The gap that is small enough, ``0.001`` or ``"0.1%"``: the search ends as soon as it has proven it, and with
        equal counts also where mixing groups anew was in vain some turns in a row. 0: it goes on until the result is
        proven optimal, or the work is spent.

    Returns
    -------
    PartitionResult
        With ``stop_at=0`` never worse than :func:`lpt`, and with a budget that covers it, never worse than
        :func:`karmarkar_karp` either.

    Notes
    -----
    Deterministic: the budget is counted in work and no clock is read (see :mod:`solvers._budget`). O(n + m) memory.

    Examples
    --------
    >>> result = auto([5, 4, 3, 3, 3], 2)
    >>> result.makespan, result.lower_bound, result.status.value
    (9, 9, 'optimal')
    """
    started = time.perf_counter()
    work = work_units(as_budget(time_budget))
    problem = PartitionProblem.prepare(costs, num_groups, equal_counts, as_share("stop_at", stop_at))
    assignment, bound = (assign_even if problem.equal_counts else assign_auto)(problem, work)
    return problem.result(assignment, "auto", started, bound=bound, stop_at=problem.stop_at)
