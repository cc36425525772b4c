"""Lower bounds on the makespan: what no assignment can beat, each with its reason.

All are computed on the costs sorted in descending order, ``c[0] >= c[1] >= ...``, in O(n) together.

=============== ========================================================================================="""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._jit import kernel
from solvers._sort import sort_descending
from solvers.arguments import as_costs, as_count

__all__ = ["Bound", "best_bound", "lifted_bound", "makespan_bound", "makespan_lower_bound"]


_MOST_STEPS = 1_000_000  # of the lifted bound: about a millisecond


class Bound(NamedTuple):
    """A proven lower bound and the argument that proves it."""

    value: int
    name: str


@kernel
def _pigeonhole(sorted_costs, num_groups):
    n = len(sorted_costs)
    best = 0
    window = np.int64(0)
    for k in range(1, (n - 1) // num_groups + 1):
        window = np.int64(0)
        for i in range(k * num_groups - k, k * num_groups + 1):
            window += sorted_costs[i]
        best = max(best, window)
    return best


@kernel
def _lifted(sorted_costs, num_groups):
    n = len(sorted_costs)
    sums = np.zeros(n + 1, dtype=np.int64)
    for i in range(n):
        sums[i + 1] = sums[i] + sorted_costs[i]
    best = np.int64(0)
    for largest in range(num_groups + 1, n + 1):
        each, more = largest // num_groups, largest % num_groups
        for groups in range(1, num_groups + 1):
            items = groups * each + min(groups, more)
            weight = sums[largest] - sums[largest - items]
            best = max(best, (weight + groups - 1) // groups)
    return best


def lifted_bound(sorted_costs: NDArray[np.int64], num_groups: int) -> Bound:
    """Return the lifted bound, or a bound of 0 where computing it would take more than a few milliseconds.

    `sorted_costs` descend and their sum fits int64. O(n m) time.

    References
    ----------
    Haouari, Gharbi & Jemmali, "Tight bounds for the identical parallel machine-scheduling problem", International
    Transactions in Operational Research 13, 2006.
    """
    if not num_groups < len(sorted_costs) <= _MOST_STEPS // num_groups:
        return Bound(0, "lifted")
    return Bound(int(_lifted(sorted_costs, num_groups)), "lifted")


def best_bound(sorted_costs: NDArray[np.int64], total: int, num_groups: int, equal_counts: bool = False) -> Bound:
    """Return the best of this module's closed-form bounds.

    Parameters
    ----------
    sorted_costs : int64[n]
        Descending, non-negative.
    total : int
        Their sum, which fits int64.
    num_groups : int
        At least 1.
    equal_counts : bool
        Whether groups hold exactly n/m items (within one where m does not divide n).

    Returns
    -------
    Bound
        Ties go to the simpler argument: mean, largest, pigeonhole, filler.

    Notes
    -----
    O(n): the windows of the pigeonhole bound have k + 1 items for k up to n/m, so O((n/m)^2) in all, which is
    below n for n <= m^2; for fewer groups only the first sqrt(n) windows are summed (each is a bound by itself).
    """
    n = len(sorted_costs)
    if n == 0:
        return Bound(0, "mean")
    best = Bound(-(-total // num_groups), "mean")
    if (largest := int(sorted_costs[0])) > best.value:
        best = Bound(largest, "largest")
    if n > num_groups:
        windows = min(n, num_groups * (1 + int(n**0.5)) + 1)
        if (pigeonhole := int(_pigeonhole(sorted_costs[:windows], num_groups))) > best.value:
            best = Bound(pigeonhole, "pigeonhole")
    if equal_counts and n // num_groups > 1:
        filler = largest + int(sorted_costs[n - n // num_groups + 1 :].sum())
        if filler > best.value:
            best = Bound(filler, "filler")
    return best


def makespan_bound(costs: ArrayLike, num_groups: int, equal_counts: bool = False, **constraints: Any) -> Bound:
    """As :func:`makespan_lower_bound`, with the name of the argument that proves it."""
    from solvers.constrained_bounds import constrained_bound  # which stand on the plain ones
    from solvers.constraints import Constraints, is_vector

    given = Constraints(equal_counts, **constraints)
    if is_vector(costs) or given.beyond_counts:
        return constrained_bound(given.check(costs, num_groups))
    num_groups = as_count("num_groups", num_groups)
    array, largest, total = as_costs(costs)
    return best_bound(sort_descending(array, largest)[1], total, num_groups, bool(equal_counts))


def makespan_lower_bound(
    costs: ArrayLike,
    num_groups: int,
    equal_counts: bool = False,
    *,
    sizes: ArrayLike | None = None,
    caps: ArrayLike | None = None,
    min_items: int = 0,
    max_items: int | None = None,
    allowed: ArrayLike | Sequence[Sequence[int] | None] | None = None,
    keep_together: ArrayLike | Sequence[int | str | None] | None = None,
    initial_loads: ArrayLike | None = None,
    speeds: ArrayLike | None = None,
    objective: str = "sum",
) -> int:
    """Lower bound on the makespan of every partition of `costs` into `num_groups` groups.

    Parameters
    ----------
    costs : int64[n] or int64[n, c]
        Non-negative integers.
    num_groups : int
        At least 1.
    equal_counts : bool
        Bound only the partitions whose groups hold n/m items (within one where m does not divide n).
    sizes, caps, min_items, max_items, allowed, keep_together, initial_loads, speeds, objective
        Bound only the partitions under these constraints, as given to :func:`solvers.partition`.

    Returns
    -------
    int
        Proven: no such partition has a smaller makespan. O(n) after the sort.

    Raises
    ------
    TypeError, ValueError
        As :func:`solvers.partition`.

    References
    ----------
    Dell'Amico & Martello, "Optimal scheduling of tasks on identical parallel processors", ORSA Journal on
    Computing 7(2), 1995.

    Examples
    --------
    >>> makespan_lower_bound([5, 4, 3, 3, 3], 2)
    9
    """
    return makespan_bound(
        costs,
        num_groups,
        equal_counts,
        sizes=sizes,
        caps=caps,
        min_items=min_items,
        max_items=max_items,
        allowed=allowed,
        keep_together=keep_together,
        initial_loads=initial_loads,
        speeds=speeds,
        objective=objective,
    ).value
