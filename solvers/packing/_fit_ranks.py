"""Each rank's samples into its micro-batches under several limits: first fit, the largest first."""

import numpy as np
from numpy.typing import NDArray

from solvers._jit import kernel
from solvers.groups import members_by_group, read_only
from solvers.packing._shares_kernels import fill_empty_bins_kernel
from solvers.packing.limits import BatchLimits

Ints = NDArray[np.int64]


@kernel
def _first_fit(amounts, caps, kind, order, offsets, num_slots, slot_of_item):
    """Put the items of each rank, ``order[offsets[r]:offsets[r + 1]]``, into its first slot of their kind with room.

    Returns whether all fit.
    """
    held = np.zeros((num_slots, amounts.shape[1]), dtype=np.int64)
    of = np.empty(num_slots, dtype=np.int64)  # the kind of each slot
    for r in range(len(offsets) - 1):
        held[:] = 0
        of[:] = -1
        for i in range(offsets[r], offsets[r + 1]):
            item, where = order[i], -1
            for k in range(num_slots):
                fits = of[k] == kind[item] or of[k] < 0
                for d in range(len(caps)):
                    fits = fits and held[k, d] + amounts[item, d] <= caps[d]
                if fits:
                    where = k
                    break
            if where < 0:
                return False
            of[where], slot_of_item[item] = kind[item], where
            for d in range(len(caps)):
                held[where, d] += amounts[item, d]
    return True


def fit_ranks(
    tokens: Ints, cap: int, limits: BatchLimits, ranks: NDArray[np.int32], num_ranks: int, num_slots: int,
    allow_empty: bool,
) -> NDArray[np.int32] | None:  # fmt: skip
    """Return the micro-batch of each sample on its rank: int32[n]; None if those of some rank do not fit. O(n K)."""
    n = len(tokens)
    amounts = np.column_stack([tokens, limits.sizes, np.ones(n, dtype=np.int64)])
    caps = np.array([cap, *limits.caps, limits.most_items or n], dtype=np.int64)
    share = (amounts / np.maximum(caps, 1)).max(axis=1)
    largest = np.argsort(-share, kind="stable").astype(np.int32)
    members, offsets, _ = members_by_group(ranks[largest], num_ranks)
    if not allow_empty and np.diff(offsets).min() < num_slots:
        return None
    order, slots = largest[members], np.zeros(n, dtype=np.int32)
    if not _first_fit(read_only(amounts), caps, limits.classes(n), order, read_only(offsets), num_slots, slots):
        return None
    for rank in range(num_ranks) if not allow_empty else ():
        mine = order[offsets[rank] : offsets[rank + 1]]
        held = slots[mine]
        if len(np.unique(held)) < num_slots:  # a sample alone keeps to all limits
            fill_empty_bins_kernel(held, num_slots)
            slots[mine] = held
    return slots
