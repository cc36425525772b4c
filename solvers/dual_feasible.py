"""Dual feasible functions: they change sizes so that whatever fits one group still does, and sums give better bounds.

A set of items that fits under the cap fits after each of these changes, so a bound on the number of groups for the
changed sizes is one for the sizes themselves. They bound packings: :func:`solvers.bounds.groups_bound`.

=================== =============================================================================================
name                the function, and what it says
=================== =============================================================================================
``l2``              items over T - a, and all over T / 2, share no group with one another or with an item of at
                    least a; the items from a to T - a fill groups of their own  (Martello & Toth 1990)
``fekete_schepers`` the same after every size was changed by u^(k), k = 2..20, which rounds sizes to multiples of
                    1/k and changes no group that fits into one that does not  (Fekete & Schepers 2001)
``ccm1``            the same after every size was rounded to units of k, small ones down and the rest of large ones
                    down too  (Carlier, Clautiaux & Moukrim 2007)
=================== =============================================================================================

They compose, so one kernel applies the threshold a of ``l2`` after every one of them.
"""

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers.arguments import INT64_MAX

DUAL_FEASIBLE = ("l2", "fekete_schepers", "ccm1")
"""The functions by name, the simplest first."""

# Of u^(k): beyond, Fekete & Schepers saw no gain.
_LARGEST_K = 20
# Of cap / k in ccm1. A unit k below a 32nd of the cap rounds hardly anything, so that the mean says as much.
_LARGEST_QUOTIENT = 32
# Sizes that are tried as k in ccm1: its values change at multiples of k, so that a size is the k that favours it most.
_SIZES_AS_UNIT = 64


@helper
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
        # The threshold falls to ``sizes[j]``: items up to ``cap - sizes[j]`` stand alone no longer, they fill groups
        # now.
        while first_middle > 0 and sizes[first_middle - 1] <= cap - sizes[j]:
            first_middle -= 1
            full -= counts[first_middle]
            middle += values[first_middle] * counts[first_middle]
        best = max(best, full + middle // unit + (1 if middle % unit else 0))
    return best


@helper
def _fekete_schepers_values(sizes, cap, k, values):
    """u^(k) scaled by k * cap: where (k + 1) size / cap is whole the size stays, else it is rounded down."""
    for j in range(len(sizes)):
        scaled = (k + 1) * sizes[j]
        values[j] = k * sizes[j] if scaled % cap == 0 else cap * (scaled // cap)


@helper
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


@kernel(turns=200)
def _best_function(sizes, counts, cap, largest_k, largest_quotient, enough, most):
    """The most groups that one of the first ``most`` functions says, and which; stops once that is ``enough``."""
    best, which = threshold_bound(sizes, sizes, counts, cap, cap), 0
    values = np.empty(len(sizes), dtype=np.int64)
    for k in range(2, min(largest_k, most) + 1):
        if best >= enough:
            return best, which
        _fekete_schepers_values(sizes, cap, k, values)
        found = threshold_bound(sizes, values, counts, cap, k * cap)
        if found > best:
            best, which = found, 1
    first_small = 0
    while first_small < len(sizes) and sizes[first_small] > cap // 2:
        first_small += 1
    # Where cap // k stays the same, the smallest and the largest k of that range are the extremes.
    ends = 2 * (_LARGEST_QUOTIENT - 1)  # of the ranges in which cap // k is constant
    for i in range(min(ends + min(_SIZES_AS_UNIT, len(sizes) - first_small), most - largest_k)):
        if best >= enough:
            break
        k = (
            sizes[first_small + i - ends]
            if i >= ends
            else cap // (2 + i // 2)
            if i % 2 == 0
            else cap // (3 + i // 2) + 1
        )
        if 0 < k <= cap // 2 and cap // k <= largest_quotient:
            _ccm1_values(sizes, cap, k, values)
            found = threshold_bound(sizes, values, counts, cap, 2 * (cap // k))
            if found > best:
                best, which = found, 2
    return best, which


def runs_of_equal_sizes(sorted_sizes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct sizes, descending, and how many items have each. O(n)."""
    if len(sorted_sizes) == 0:
        return sorted_sizes, np.empty(0, dtype=np.int64)
    starts = np.flatnonzero(np.concatenate(([True], sorted_sizes[1:] != sorted_sizes[:-1])))
    return sorted_sizes[starts], np.diff(np.append(starts, len(sorted_sizes)))


def groups_needed(
    sizes: NDArray[np.int64], counts: NDArray[np.int64], total: int, cap: int, *, enough: int, work: int
) -> tuple[int, str]:
    """Return how many groups the functions say are needed at least, and the name of the one that does.

    `sizes` are distinct and descend, none over `cap`; `counts` says how many items have each, and `total`, which fits
    int64, is their sum. Stops at the first function that needs `enough`. At most `work` sizes are changed, over all
    functions; two are always tried. Those at whose parameters a sum could pass int64 are left out.

    References
    ----------
    Martello & Toth, "Lower bounds and reduction procedures for the bin packing problem", Discrete Applied Mathematics
    28(1), 1990. Fekete & Schepers, "New classes of fast lower bounds for bin packing problems", Mathematical
    Programming 91(1), 2001. Carlier, Clautiaux & Moukrim, "New reduction procedures and lower bounds for the
    two-dimensional bin packing problem with fixed orientation", Computers & Operations Research 34(8), 2007.
    """
    largest_k = min(_LARGEST_K, INT64_MAX // max(total, cap) - 1)  # no value of u^(k) is over (k + 1) size
    largest_quotient = INT64_MAX // (2 * max(1, int(counts.sum())))
    most = max(2, work // max(1, len(sizes)))
    groups, which = _best_function(sizes, counts, cap, largest_k, largest_quotient, enough, most)
    return int(groups), DUAL_FEASIBLE[which]
