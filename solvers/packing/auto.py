"""The default method: first fit and best fit decreasing, then search while the budget lasts."""

import time

from numpy.typing import ArrayLike

from solvers._budget import work_units
from solvers.arguments import as_budget
from solvers.packing._problem import PackingProblem
from solvers.packing.exact import assign_better, search
from solvers.packing.types import PackingResult

# Work units of an item in first fit and best fit together; they stand for 150 nanoseconds.
_WORK_OF_FITTING = 60


def auto(sizes: ArrayLike, cap: int, *, max_items: int | None = None, time_budget: float = 0.01) -> PackingResult:
    """Pack by first fit decreasing and best fit decreasing; where neither is proven optimal, search for better.

    Parameters
    ----------
    sizes, cap, max_items
        As for :func:`solvers.packing.pack`, and so are the errors.
    time_budget : float
        Seconds' worth of work. The two fits always run; the search runs with what they leave.

    Returns
    -------
    PackingResult
        Never more groups than :func:`first_fit_decreasing` or :func:`best_fit_decreasing`; ``method`` names the one
        that found it.

    Notes
    -----
    Deterministic: the budget is counted in work and no clock is read (see :mod:`solvers._budget`). O(n) memory.

    Examples
    --------
    >>> result = auto([6, 5, 4, 3, 3, 3], 12)  # the two fits need three groups
    >>> result.num_groups, result.lower_bound, result.method
    (2, 2, 'exact')
    """
    started = time.perf_counter()
    work = work_units(as_budget(time_budget))
    problem = PackingProblem.prepare(sizes, cap, max_items)
    fitted, method, bound = assign_better(problem)
    work = max(work - _WORK_OF_FITTING * len(fitted), 0)
    assignment, bound, _ = search(problem, fitted, bound, work)
    if assignment is not fitted:
        method = "exact"
    return problem.result(assignment, method, started, bound=bound)
