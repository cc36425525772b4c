"""Lower bounds on the number of groups: what no packing can do with less, each with its reason.

=================== =============================================================================================
name                why no packing has fewer groups
=================== =============================================================================================
``volume``          a group holds at most the cap, so there are at least ceil(sum / cap), and one if there is an item
``counts``          a group holds at most max_items items, so there are at least ceil(n / max_items)
``l2``              dual feasible functions: see :mod:`solvers.dual_feasible`
``fekete_schepers``
``ccm1``
``search``          a branch and bound looked at everything that fewer groups could hold
=================== =============================================================================================

The bounds by size hold under every constraint: a constraint only takes packings away.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._sort import sort_descending
from solvers.arguments import INT64_MAX, as_costs, as_count
from solvers.bounds import Bound
from solvers.dual_feasible import groups_needed, runs_of_equal_sizes
from solvers.packing._arguments import as_cap, check_fits

__all__ = ["best_bound", "groups_bound", "groups_lower_bound"]

_WORK = 2**20  # sizes changed, over all functions that are tried: a few milliseconds


def best_bound(
    sorted_sizes: NDArray[np.int64], total: int, cap: int, max_items: int | None = None, enough: int | None = None
) -> Bound:
    """Return the best of this module's closed-form bounds.

    Parameters
    ----------
    sorted_sizes : int64[n]
        Descending, ``0 <= size <= cap``.
    total : int
        Their sum, which fits int64.
    cap : int
        At least 1.
    max_items : int, optional
        Bound only the packings with at most so many items a group.
    enough : int, optional
        Stop at the first bound that reaches it, such as the number of groups of a known packing.

    Returns
    -------
    Bound
        Ties go to the simpler argument: volume, counts, l2, fekete_schepers, ccm1.

    Notes
    -----
    O(n + 150 d) for d distinct sizes; past 7,000 of them, fewer functions are tried and it is O(n + d).
    """
    n = len(sorted_sizes)
    if n == 0:
        return Bound(0, "volume")
    best = Bound(max(1, -(-total // cap)), "volume")
    if max_items is not None and -(-n // max_items) > best.value:
        best = Bound(-(-n // max_items), "counts")
    if enough is not None and best.value >= enough:
        return best
    sizes, counts = runs_of_equal_sizes(sorted_sizes)
    value, name = groups_needed(sizes, counts, total, cap, enough=enough or INT64_MAX, work=_WORK)
    return Bound(value, name) if value > best.value else best


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
        Bound only the packings with at most so many items a group.

    Returns
    -------
    int
        Proven: no packing has fewer groups. O(n) after the sort.

    Raises
    ------
    TypeError, ValueError, InfeasibleError
        As :func:`solvers.packing.pack`.

    References
    ----------
    Martello & Toth, "Lower bounds and reduction procedures for the bin packing problem", Discrete Applied Mathematics
    28(1), 1990. Fekete & Schepers, "New classes of fast lower bounds for bin packing problems", Mathematical
    Programming 91(1), 2001. Carlier, Clautiaux & Moukrim, "New reduction procedures and lower bounds for the
    two-dimensional bin packing problem with fixed orientation", Computers & Operations Research 34(8), 2007.

    Examples
    --------
    >>> groups_lower_bound([6, 6, 6, 3, 3, 2], 10)
    3
    """
    return groups_bound(sizes, cap, max_items).value
