"""Lower bounds on the number of groups under a cap, each with its proof.

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
from numpy.typing import NDArray

from solvers.arguments import INT64_MAX
from solvers.bounds import Bound
from solvers.dual_feasible import groups_needed, runs_of_equal_sizes

# Sizes changed, over all functions that are tried: a few milliseconds, as for makespans (`bounds._MOST_CHANGED`).
_WORK = 2**20


def best_bound(
    sorted_sizes: NDArray[np.int64], total: int, cap: int, max_items: int | None = None, enough: int | None = None
) -> Bound:
    """Return the best of this module's closed-form bounds.

    `sorted_sizes` descend, none over `cap`, and `total` is their sum, which fits int64. With `max_items` only packings
    with at most so many items a group are bounded. It stops at the first bound that is `enough`, such as the number of
    groups of a known packing. Ties go to the simpler argument: volume, counts, l2, fekete_schepers, ccm1.

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
