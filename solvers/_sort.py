"""Stable sorting by radix: faster than comparing where keys are what lengths give, and the same on every machine.

NumPy's fast unstable sorts order equal costs differently from one processor to the next. Here the item
number is part of the key, ``key << bits | number`` in one int64, so that there are no equal keys and every pass moves
one word.
"""

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers._loops import copy
from solvers.groups import read_only

# Up to so many keys insertion is faster: counting clears and sums up 2,048 counters for every digit.
_FEW = 64


@helper
def insertion_sort(keys, size):
    """Sort ``keys[:size]`` in place. O(size^2), and O(size) where they are nearly sorted."""
    for i in range(1, size):
        key = keys[i]
        j = i
        while j > 0 and keys[j - 1] > key:
            keys[j] = keys[j - 1]
            j -= 1
        keys[j] = key


@helper
def radix_sort(keys, scratch, counts, low_bit, high_bit):
    """Sort non-negative int64 `keys` in place by their bits ``low_bit .. high_bit - 1``, stably.

    `scratch` is as long as `keys`; `counts` is int64[2^k] and sets the digit, k bits. O(n * bits / k).
    """
    n = len(keys)
    buckets = len(counts)
    digit_bits = 0
    while 1 << (digit_bits + 1) <= buckets:
        digit_bits += 1
    source, target = keys, scratch
    for shift in range(low_bit, high_bit, digit_bits):
        mask = (1 << min(digit_bits, high_bit - shift)) - 1
        counts[:] = 0
        # Count, sum up, and put in place: three passes over the keys or counters for each digit.
        for i in range(n):
            counts[(source[i] >> shift) & mask] += 1
        start = 0
        for b in range(mask + 1):
            count = counts[b]
            counts[b] = start
            start += count
        for i in range(n):
            b = (source[i] >> shift) & mask
            target[counts[b]] = source[i]
            counts[b] += 1
        source, target = target, source
    # After an odd number of passes the keys lie in the scratch.
    if ((high_bit - low_bit + digit_bits - 1) // digit_bits) % 2:
        copy(keys, scratch)


@kernel
def _sort_packed(costs, largest, item_bits, cost_bits, digit_bits, order, sorted_costs):
    n = len(costs)
    keys = np.empty(n, dtype=np.int64)
    for i in range(n):  # ascending in (largest - cost) is descending in cost, ties in item order
        keys[i] = (largest - costs[i]) << item_bits | i
    # Counters would take longer to clear than so few keys take to sort.
    if n <= _FEW:
        insertion_sort(keys, n)
    else:
        counts = np.empty(1 << digit_bits, dtype=np.int64)
        radix_sort(keys, np.empty(n, dtype=np.int64), counts, item_bits, item_bits + cost_bits)
    item_mask = (1 << item_bits) - 1
    for i in range(n):
        order[i] = keys[i] & item_mask
        sorted_costs[i] = largest - (keys[i] >> item_bits)


def sort_descending(costs: NDArray[np.int64], largest: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Stable descending order of non-negative, contiguous costs, none above `largest`; and the costs in that order.

    O(n * bits of `largest` / 11); falls back to ``numpy.argsort(kind="stable")`` where cost and item number
    together need more than 63 bits.
    """
    n = len(costs)
    item_bits = max(1, (n - 1).bit_length()) if n else 1
    cost_bits = max(1, int(largest).bit_length())
    # Cost and number do not fit one word: NumPy's stable sort, slower and the same.
    if item_bits + cost_bits > 63:
        order = np.argsort(-costs, kind="stable").astype(np.int32)
        return order, costs[order]
    passes = -(-cost_bits // 11)  # 2,048 counters stay in the first-level cache
    # Digits of like width: as many passes as 11 bits need, each with as few counters as that allows.
    order = np.empty(n, dtype=np.int32)
    sorted_costs = np.empty(n, dtype=np.int64)
    _sort_packed(read_only(costs), int(largest), item_bits, cost_bits, -(-cost_bits // passes), order, sorted_costs)
    return order, sorted_costs
