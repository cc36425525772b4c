"""The loops behind cutting shares: each rank's samples into few micro-batches, and these made even. All ranks a call.

A *position* is a sample in an order that runs rank by rank; ``offsets[r] : offsets[r + 1]`` are those of rank r.
"""

import numpy as np

from solvers._jit import kernel
from solvers.packing._schedule_kernels import fill_empty_bins
from solvers.packing.first_fit import fill_first_fit

__all__ = ["level_shares", "pack_shares"]


@kernel
def pack_shares(tokens, offsets, cap, bin_of_position, bins_of_rank):
    """First fit decreasing on every rank: `tokens` descend within one, so that those over the cap come first.

    Each of these has a bin of its own, the first ones. O(n log K).
    """
    for r in range(len(bins_of_rank)):
        first, end = offsets[r], offsets[r + 1]
        alone = np.int64(0)
        while first < end and tokens[first] > cap:
            bin_of_position[first] = alone
            alone += 1
            first += 1
        bins_of_rank[r] = alone
        n = end - first
        if n == 0:
            continue
        total = np.int64(0)
        for i in range(first, end):
            total += tokens[i]
        most = min(n, 2 * (total // cap) + 3)  # of two bins in a row, one is more than half full
        leaves = 1
        while leaves < most:
            leaves *= 2
        group = bin_of_position[first:end]
        fill_first_fit(tokens[first:end], cap, n, np.empty(2 * leaves, dtype=np.int64), group)
        bins_of_rank[r] += group.max() + 1
        group += np.int32(alone)


@kernel
def level_shares(costs, tokens, offsets, cap, num_slots, packed, slot_of_position):
    """LPT under the cap on every rank: the costliest sample first, to the slot of least cost that has room.

    `costs` descend within a rank; ties go to the slot of fewest samples, then to the lowest. A sample over the cap has
    a slot of its own. Where a sample finds no room, its rank keeps to the bins of `packed`, of which there are at most
    `num_slots`, and gives their cheapest samples to slots that would be empty. Slots are numbered by descending cost.
    O(n K + R K log K).
    """
    loads = np.empty(num_slots, dtype=np.int64)
    used = np.empty(num_slots, dtype=np.int64)
    counts = np.empty(num_slots, dtype=np.int64)
    number = np.empty(num_slots, dtype=np.int32)
    for r in range(len(offsets) - 1):
        first, end = offsets[r], offsets[r + 1]
        slots = slot_of_position[first:end]
        if not _lpt_under_cap(costs[first:end], tokens[first:end], cap, loads, used, counts, slots):
            slots[:] = packed[first:end]
            if len(slots) >= num_slots:
                fill_empty_bins(slots, num_slots)
            loads[:] = 0
            counts[:] = 0
            for i in range(len(slots)):
                loads[slots[i]] += costs[first + i]
                counts[slots[i]] += 1
        order = np.argsort((counts == 0).astype(np.int64), kind="mergesort")  # those that hold nothing come last
        order = order[np.argsort(-loads[order], kind="mergesort")]
        for k in range(num_slots):
            number[order[k]] = k
        for i in range(len(slots)):
            slots[i] = number[slots[i]]


@kernel
def _lpt_under_cap(costs, tokens, cap, loads, used, counts, slots):
    """Return whether every sample found room."""
    loads[:] = 0
    used[:] = 0
    counts[:] = 0
    alone = 0
    for i in range(len(costs)):
        if tokens[i] > cap:
            slots[i] = alone
            loads[alone] = costs[i]
            counts[alone] = 1
            alone += 1
    for i in range(len(costs)):
        if tokens[i] > cap:
            continue
        best = -1
        for k in range(alone, len(loads)):
            if tokens[i] > cap - used[k]:
                continue
            if best < 0 or loads[k] < loads[best] or (loads[k] == loads[best] and counts[k] < counts[best]):
                best = k
        if best < 0:
            return False
        slots[i] = best
        loads[best] += costs[i]
        used[best] += tokens[i]
        counts[best] += 1
    return True
