"""The lower bound on the number of groups; :mod:`solvers.group_bounds` lists all of them with their proofs."""

from numpy.typing import ArrayLike

from solvers._sort import sort_descending
from solvers.arguments import as_costs, as_count
from solvers.bounds import Bound
from solvers.group_bounds import best_bound
from solvers.packing._arguments import as_cap, check_fits

__all__ = ["groups_bound", "groups_lower_bound"]


def groups_bound(sizes: ArrayLike, cap: int, max_items: int | None = None) -> Bound:
    """As :func:`groups_lower_bound`, with the name of the argument that proves it."""
    cap = as_cap(cap)
    array, largest, total = as_costs(sizes, "sizes")
    if max_items is not None:
        max_items = as_count("max_items", max_items)
    check_fits(array, largest, cap)
    return best_bound(sort_descending(array, largest)[1], total, cap, max_items)


def groups_lower_bound(sizes: ArrayLike, cap: int, max_items: int | None = None) -> int:
    """Lower bound on the number of groups of every packing of `sizes` under `cap`.

    Parameters
    ----------
    sizes : int64[n]
        Non-negative integers.
    cap : int
        At least 1.
    max_items : int, optional
        Bound only the packings with at most this number of items per group.

    Returns
    -------
    int
        Proven: no packing has fewer groups; see :mod:`solvers.dual_feasible`. O(n) after the sort.

    Raises
    ------
    TypeError, ValueError, InfeasibleError
        As :func:`solvers.packing.pack`.

    Examples
    --------
    >>> groups_lower_bound([6, 6, 6, 3, 3, 2], 10)
    3
    """
    return groups_bound(sizes, cap, max_items).value
