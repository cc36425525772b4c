"""Lower bounds on the number of groups: what no packing can do with less, each with its reason.

=================== =============================================================================================
name                why no packing has fewer groups
=================== =============================================================================================
``volume``          a group holds at most the cap, so there are at least ceil(sum / cap), and one if there is an item
``counts``          a group holds at most max_items items, so there are at least ceil(n / max_items)
``l2``              items over cap - a, and all over cap / 2, share no group with one another or with an item of at
                    least a; the items from a to cap - a fill groups of their own  (Martello & Toth 1990)
``fekete_schepers`` the same after every size was changed by u^(k), k = 2..20, which rounds sizes to multiples of
                    1/k and changes no group that fits into one that does not  (Fekete & Schepers 2001)
``ccm1``            the same after every size was rounded to units of k, small ones down and the rest of large ones
                    down too  (Carlier, Clautiaux & Moukrim 2007)
``search``          a branch and bound looked at everything that fewer groups could hold
=================== =============================================================================================

The bounds by size hold under every constraint: a constraint only takes packings away. A function that changes no group
that fits into one that does not is called dual feasible; they compose, so one kernel applies
the threshold a of ``l2`` after every one of them.
"""

import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._jit import kernel
from solvers._sort import sort_descending
from solvers.arguments import INT64_MAX, as_costs, as_count
from solvers.bounds import Bound
from solvers.packing._arguments import as_cap, check_fits

__all__ = ["best_bound", "groups_bound", "groups_lower_bound", "runs_of_equal_sizes", "threshold_bound"]

_LARGEST_K = 20  # of u^(k): beyond, Fekete & Schepers saw no gain
_LARGEST_QUOTIENT = 32  # of cap / k in ccm1
_SIZES_AS_UNIT = 64  # how many of the sizes themselves are tried as k in ccm1
_WORK = 2**20  # sizes changed, over all functions that are tried: about ten milliseconds


@kernel
def threshold_bound(sizes, values, counts, cap, unit):
    """The best over all thresholds a of (items over cap - a) + ceil(values of items from a to cap - a / unit). O(d).

    ``sizes`` descend strictly; ``counts[j]`` items (perhaps 0) have ``sizes[j]``. ``values`` are the sizes changed by
    a dual feasible function scaled so that it takes the cap to ``unit``; their sum fits int64.
    """
    first_small = 0
    full = 0  # items that stand alone: over cap / 2 at first, over cap - a from then on
    while first_small < len(sizes) and sizes[first_small] > cap - sizes[first_small]:
        full += counts[first_small]
        first_small += 1
    best = full
    first_middle = first_small
    middle = np.int64(0)
    for j in range(first_small, len(sizes)):
        middle += values[j] * counts[j]
        while first_middle > 0 and sizes[first_middle - 1] <= cap - sizes[j]:
            first_middle -= 1
            full -= counts[first_middle]
            middle += values[first_middle] * counts[first_middle]
        best = max(best, full + middle // unit + (1 if middle % unit else 0))
    return best


@kernel
def _fekete_schepers_values(sizes, cap, k, values):
    """u^(k) scaled by k * cap: where (k + 1) size / cap is whole the size stays, else it is rounded down."""
    for j in range(len(sizes)):
        scaled = (k + 1) * sizes[j]
        values[j] = k * sizes[j] if scaled % cap == 0 else cap * (scaled // cap)


@kernel
def _ccm1_values(sizes, cap, k, values):
    """f_2^k of Carlier, Clautiaux & Moukrim, which takes the cap to 2 floor(cap / k)."""
    for j in range(len(sizes)):
        size, rest = sizes[j], cap - sizes[j]
        if size > rest:
            values[j] = 2 * (cap // k - rest // k)
        elif size == rest:
            values[j] = cap // k
        else:
            values[j] = 2 * (size // k)


def runs_of_equal_sizes(sorted_sizes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct sizes, descending, and how many items have each. O(n)."""
    if len(sorted_sizes) == 0:
        return sorted_sizes, np.empty(0, dtype=np.int64)
    starts = np.flatnonzero(np.concatenate(([True], sorted_sizes[1:] != sorted_sizes[:-1])))
    return sorted_sizes[starts], np.diff(np.append(starts, len(sorted_sizes)))


def _units(sizes: NDArray[np.int64], cap: int) -> list[int]:
    """Candidates for k in ccm1: both ends of each range in which cap // k is constant, and sizes, largest first."""
    ends = [k for q in range(2, _LARGEST_QUOTIENT + 1) for k in (cap // q, cap // (q + 1) + 1)]
    small = sizes[(sizes > 0) & (sizes <= cap // 2)][:_SIZES_AS_UNIT].tolist()
    return [k for k in dict.fromkeys(ends + small) if 0 < k <= cap // 2]


def _bounds_by_size(
    sizes: NDArray[np.int64], counts: NDArray[np.int64], total: int, num_items: int, cap: int
) -> Iterator[Bound]:
    """From the cheapest to the dearest. Parameters at which a sum could pass int64 are left out."""
    yield Bound(int(threshold_bound(sizes, sizes, counts, cap, cap)), "l2")
    values = np.empty_like(sizes)
    for k in range(2, min(_LARGEST_K, INT64_MAX // max(total, cap) - 1) + 1):  # no value is over (k + 1) size
        _fekete_schepers_values(sizes, cap, k, values)
        yield Bound(int(threshold_bound(sizes, values, counts, cap, k * cap)), "fekete_schepers")
    for k in _units(sizes, cap):
        if 2 * (cap // k) * num_items <= INT64_MAX:
            _ccm1_values(sizes, cap, k, values)
            yield Bound(int(threshold_bound(sizes, values, counts, cap, 2 * (cap // k))), "ccm1")


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
    for bound in itertools.islice(_bounds_by_size(sizes, counts, total, n, cap), max(2, _WORK // len(sizes))):
        if bound.value > best.value:
            best = bound
        if enough is not None and best.value >= enough:
            break
    return best


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
