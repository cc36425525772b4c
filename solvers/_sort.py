"""Stable descending order, the same on every machine."""

import numpy as np
from numpy.typing import NDArray


def sort_descending(costs: NDArray[np.int64], largest: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Stable descending order of non-negative costs, none above `largest`; and the costs in that order.

    NumPy's fast sorts order equal costs differently from one processor to the next. So the item number is part of the
    key, ``cost << bits | number`` in one int64, and there are no equal keys. O(n log n); where cost and number together
    need more than 63 bits, by NumPy's stable sort, which takes longer.
    """
    item_bits = max(1, (len(costs) - 1).bit_length()) if len(costs) else 1
    if item_bits + int(largest).bit_length() > 63:
        order = np.argsort(-costs, kind="stable")
    else:
        keys = np.int64(largest) - costs  # ascending in what is missing is descending in cost
        keys <<= item_bits
        keys |= np.arange(len(costs))
        keys.sort()
        order = keys & ((1 << item_bits) - 1)
    return order.astype(np.int32), costs[order]
