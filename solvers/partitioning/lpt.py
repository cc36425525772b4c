"""LPT, longest processing time first: each item in turn to the least loaded group (Graham 1969)."""

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers.groups import read_only


def lpt_in_order(costs: NDArray[np.int64], num_groups: int, equal_counts: bool) -> NDArray[np.int32]:
    """Give each of descending costs to the least loaded group that is not full; returns int32[n].

    Ties go to the lowest group. Costs of zero, which no load can steer, go to the groups that hold the fewest items.
    The largest load is at most 4/3 - 1/(3m) times the optimum where counts are free. O(n log m).

    References
    ----------
    Graham, "Bounds on multiprocessing timing anomalies", SIAM Journal on Applied Mathematics 17(2), 1969.

    Examples
    --------
    >>> lpt_in_order(np.array([5, 4, 3, 3, 3]), 2, equal_counts=False)
    array([0, 1, 1, 0, 1], dtype=int32)
    """
    n = len(costs)
    if equal_counts:
        return _placed(costs, np.zeros(num_groups, dtype=np.int64), *divmod(n, num_groups))
    positive = n if n == 0 or costs[-1] else int(np.count_nonzero(costs))
    groups = _placed(costs[:positive], np.zeros(num_groups, dtype=np.int64), n, 0)
    if positive < n:  # the same rule, with the number of items in place of the load
        counts = np.bincount(groups, minlength=num_groups).astype(np.int64)
        groups = np.append(groups, _placed(np.ones(n - positive, dtype=np.int64), counts, n, 0))
    return groups


def _placed(costs: NDArray[np.int64], loads: NDArray[np.int64], quota: int, longer: int) -> NDArray[np.int32]:
    """Place items in groups that hold `loads` before, and take `quota` items, or one more in `longer` of them."""
    groups = np.empty(len(costs), dtype=np.int32)
    _place(read_only(costs), loads, np.argsort(loads, kind="stable"), quota, longer, groups)
    return groups


@kernel
def _place(costs, loads, heap, quota, longer, group_of_item):
    """Place items as :func:`_placed` says; `heap` has the groups, the least loaded first: what is sorted is a heap."""
    counts, size = np.zeros(len(loads), dtype=np.int64), len(heap)
    for i in range(len(costs)):
        g = heap[0]
        while counts[g] > quota or (counts[g] == quota and longer == 0):  # it is full, and leaves the heap
            size -= 1
            heap[0] = heap[size]
            _sink(loads, heap, size)
            g = heap[0]
        longer -= counts[g] == quota
        counts[g] += 1
        loads[g] += costs[i]
        group_of_item[i] = g
        _sink(loads, heap, size)


@helper
def _sink(loads, heap, size):
    """Let the group at the root of the heap, two groups below each, sink to its place. O(log size)."""
    g, at, child = heap[0], 0, 1
    while child < size:
        if child + 1 < size and _before(loads, heap[child + 1], heap[child]):
            child += 1
        if _before(loads, g, heap[child]):
            break
        heap[at] = heap[child]
        at, child = child, 2 * child + 1
    heap[at] = g


@helper
def _before(loads, g, h):
    return loads[g] < loads[h] or (loads[g] == loads[h] and g < h)
