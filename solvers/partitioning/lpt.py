"""LPT: the longest item first, each to the least loaded group (Graham 1969).

A group's load and number are packed into one integer, its *key*: ``load << bits | group``. So one comparison finds the
least load, ties to the lowest group.
"""

import heapq

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers._loops import copy, largest_of, smallest_of
from solvers.groups import read_only

# Up to so many nearly sorted keys insertion sort is faster than radix sort: together they halve the time of small
# batches.
_FEW_GROUPS = 64
# Bits of a digit of radix sort: its table of 512 counts stays in the fastest cache.
_DIGIT_BITS = 9
# A round of less than 1/8 of the groups costs more to sort than a heap.
_SHORT_ROUND = 8


@kernel
def _by_rounds(costs, keys, bits, quota, longer, group_of_position):
    """Positive costs, in the order in which they are placed; ``(largest load) << bits`` fits int64.

    Keep the keys sorted. The next items go to keys 0, 1, 2, ... in this order for as long as the next key is below
    every key that this round has raised, which is mostly the whole round: loads differ by less than one item. Then sort
    anew, which is quick, as the keys differ little: two to four times faster than a heap. When rounds become short, a
    heap takes over. A group takes `quota` items, and `longer` of them one more: a full group leaves.
    """
    n, size = len(costs), len(keys)
    scratch = np.empty(size, dtype=np.int64)
    digits = np.empty(1 << _DIGIT_BITS, dtype=np.int64)
    counts = np.zeros(size, dtype=np.int64)
    mask = (1 << bits) - 1  # the group in a key
    i = 0
    while i < n:
        lowest_raised = np.int64(2**63 - 1)
        turn, kept = 0, 0  # keys that this round looked at, and those of them that can take more
        while turn < size and i < n and keys[turn] < lowest_raised:
            key = keys[turn]
            turn += 1
            g = key & mask
            if counts[g] == quota and longer == 0:  # full, and nobody may take one item more
                continue
            longer -= counts[g] == quota
            counts[g] += 1
            group_of_position[i] = g
            key += costs[i] << bits
            i += 1
            if counts[g] <= quota and (counts[g] < quota or longer > 0):
                keys[kept] = key
                kept += 1
                lowest_raised = min(lowest_raised, key)
        if kept < turn:  # close the gap that full groups left
            for k in range(size - turn):
                keys[kept + k] = keys[turn + k]
            size -= turn - kept
        if size <= _FEW_GROUPS:
            _insertion_sort(keys, size)
        else:
            _radix_sort(keys[:size], scratch[:size], digits, mask)
        if turn * _SHORT_ROUND < size:
            break
    while i < n:  # a sorted array is a heap
        g = keys[0] & mask
        if counts[g] > quota or (counts[g] == quota and longer == 0):  # full: the heap shrinks by its root
            size -= 1
            _sift_down(keys, size, keys[size])
            continue
        longer -= counts[g] == quota
        counts[g] += 1
        group_of_position[i] = g
        _sift_down(keys, size, keys[0] + (costs[i] << bits))
        i += 1


@helper
def _insertion_sort(keys, size):
    """Sort ``keys[:size]`` in place. O(size) where they are nearly sorted."""
    for i in range(1, size):
        key = keys[i]
        j = i
        while j > 0 and keys[j - 1] > key:
            keys[j] = keys[j - 1]
            j -= 1
        keys[j] = key


@helper
def _radix_sort(keys, scratch, counts, mask):
    """Sort keys in place by the bits in which they differ, from the lowest digit to the highest."""
    base = smallest_of(keys) & ~mask
    spread = largest_of(keys) - base
    source, target, shift = keys, scratch, 0
    while spread >> shift:
        counts[:] = 0
        for i in range(len(keys)):
            counts[((source[i] - base) >> shift) & (len(counts) - 1)] += 1
        start = 0
        for b in range(len(counts)):
            start, counts[b] = start + counts[b], start
        for i in range(len(keys)):
            b = ((source[i] - base) >> shift) & (len(counts) - 1)
            target[counts[b]] = source[i]
            counts[b] += 1
        source, target = target, source
        shift += _DIGIT_BITS
    if (shift // _DIGIT_BITS) % 2:  # after an odd number of passes the keys lie in the scratch
        copy(keys, scratch)


@helper
def _sift_down(keys, size, key):
    """Replace the root of the heap ``keys[:size]``, four keys below each, by `key`. O(log size)."""
    vertex = 0
    child = 1
    while child + 3 < size:  # arithmetic on comparisons instead of branches: nothing to mispredict but the end
        a, b, c, d = keys[child], keys[child + 1], keys[child + 2], keys[child + 3]
        left, right = np.int64(b < a), np.int64(d < c)
        best_left, best_right = min(a, b), min(c, d)
        go_right = np.int64(best_right < best_left)
        best = min(best_left, best_right)
        # The key has found its place: nothing below is smaller.
        if best >= key:
            keys[vertex] = key
            return
        keys[vertex] = best
        vertex = child + left + go_right * (2 + right - left)
        child = 4 * vertex + 1
    if child < size:  # the last vertex may have one to three children
        smallest = child
        for other in range(child + 1, size):
            if keys[other] < keys[smallest]:
                smallest = other
        if keys[smallest] < key:
            keys[vertex] = keys[smallest]
            vertex = smallest
    keys[vertex] = key


def _by_heap(costs: NDArray[np.int64], loads: list[int], quota: int, longer: int) -> list[int]:
    """As :func:`_by_rounds`, for loads that do not fit one integer with their group: in Python's integers."""
    heap = [(load, g) for g, load in enumerate(loads)]
    heapq.heapify(heap)
    counts, groups = [0] * len(loads), []
    for cost in costs.tolist():
        load, g = heapq.heappop(heap)
        while counts[g] > quota or (counts[g] == quota and longer == 0):
            load, g = heapq.heappop(heap)
        longer -= counts[g] == quota
        counts[g] += 1
        groups.append(g)
        heapq.heappush(heap, (load + cost, g))
    return groups


def lpt_in_order(costs: NDArray[np.int64], num_groups: int, equal_counts: bool) -> NDArray[np.int32]:
    """Give each of descending costs to the least loaded group that is not full; returns int32[n].

    Costs of zero, which no load can steer, go to the groups that hold the fewest items. The largest load is at most
    4/3 - 1/(3m) times the optimum where counts are free. O(n log m).

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
    if len(costs) == 0:
        return np.zeros(0, dtype=np.int32)
    bits = max(1, (len(loads) - 1).bit_length())
    total, most = int(costs.sum()), quota + (longer > 0)
    # No load gets above an even share and one item (Graham), but with quotas one group may hold the largest items.
    free = most >= len(costs)
    largest = int(loads.max()) + (total // len(loads) + int(costs[0]) if free else min(total, most * int(costs[0])))
    if largest.bit_length() + bits > 63:
        return np.array(_by_heap(costs, loads.tolist(), quota, longer), dtype=np.int32)
    groups = np.empty(len(costs), dtype=np.int32)
    keys = np.sort(loads << bits | np.arange(len(loads)))
    _by_rounds(read_only(costs), keys, bits, quota, longer, groups)
    return groups
