"""The loops behind cutting shares: each rank's samples into few micro-batches, and these made even. All ranks a call.

A *position* is a sample in an order that runs rank by rank; ``offsets[r] : offsets[r + 1]`` are those of rank r.
"""

import numpy as np

from solvers._jit import helper, kernel
from solvers._loops import copy, first_largest, largest_of, stable_order
from solvers.packing._schedule_kernels import fill_empty_bins
from solvers.packing.first_fit import fill_first_fit

__all__ = ["level_shares", "meet_targets", "pack_shares"]

_ALIKE = 5  # targets within 2**-5 of each other are of slots of one kind


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
        bins_of_rank[r] += largest_of(group) + 1
        group += np.int32(alone)


@kernel
def level_shares(costs, tokens, offsets, cap, targets, packed, slot_of_position):
    """Deal each rank's samples, the costliest first, over its slots under the cap and, as long as may be, `targets`.

    `targets`, int64[K], descend; those within a part in 32 are alike. A sample goes to a tall slot if it can, to the
    one with least room for it: so they fill up, with the costliest. Else it goes to the one of the lowest that is
    furthest below its target, or, if it raises all above theirs, least above: with targets of 0 that is LPT.

    `costs` descend within a rank; ties go to the slot of fewest samples, then to the lowest. A sample over the cap has
    a slot of its own. Where a sample finds no room, its rank keeps to the bins of `packed`, of which there are at most
    `num_slots`. Slots that would be empty get the cheapest samples of others. Slots are numbered by descending cost.
    O(n K + R K log K).
    """
    num_slots = len(targets)
    kinds = np.zeros(num_slots, dtype=np.int64)
    first_alike = targets[0]
    for k in range(1, num_slots):
        kinds[k] = kinds[k - 1]
        if targets[k] < first_alike - (first_alike >> _ALIKE):
            kinds[k] += 1
            first_alike = targets[k]
    left = np.empty(num_slots, dtype=np.int64)
    used = np.empty(num_slots, dtype=np.int64)
    counts = np.empty(num_slots, dtype=np.int64)
    for r in range(len(offsets) - 1):
        first, end = offsets[r], offsets[r + 1]
        slots = slot_of_position[first:end]
        copy(left, targets)
        if not _deal_under_cap(costs[first:end], tokens[first:end], cap, kinds, left, used, counts, slots):
            copy(slots, packed[first:end])
        if len(slots) >= num_slots:
            fill_empty_bins(slots, num_slots)
        _number_by_cost(costs[first:end], num_slots, slots)


@helper
def _number_by_cost(costs, num_slots, slots):
    """Number the slots by descending cost, those that hold nothing last. Returns whether any number changes."""
    loads = np.zeros(num_slots, dtype=np.int64)
    counts = np.zeros(num_slots, dtype=np.int64)
    number = np.empty(num_slots, dtype=np.int32)
    for i in range(len(slots)):
        loads[slots[i]] += costs[i]
        counts[slots[i]] += 1
    keys = np.empty(num_slots, dtype=np.int64)
    for k in range(num_slots):
        keys[k] = counts[k] == 0
    filled_first = stable_order(keys)
    for k in range(num_slots):
        keys[k] = -loads[filled_first[k]]
    order = filled_first[stable_order(keys)]
    changed = False
    for k in range(num_slots):
        number[order[k]] = k
        changed |= order[k] != k
    for i in range(len(slots)):
        slots[i] = number[slots[i]]
    return changed


@helper
def _deal_under_cap(costs, tokens, cap, kinds, left, used, counts, slots):
    """Return whether every sample found room; `left` is what slots are below their targets."""
    used[:] = 0
    counts[:] = 0
    alone = 0
    for i in range(len(costs)):
        if tokens[i] > cap:
            slots[i] = alone
            left[alone] -= costs[i]
            counts[alone] = 1
            alone += 1
    for i in range(len(costs)):
        if tokens[i] > cap:
            continue
        best, best_kind = -1, np.int64(len(left))
        for k in range(alone, len(left)):
            if tokens[i] > cap - used[k]:
                continue
            kind = kinds[k] if costs[i] <= left[k] else np.int64(len(left))
            if best >= 0 and kind == best_kind < kinds[-1]:
                better = used[k] > used[best]
            elif best >= 0 and kind == best_kind:
                better = left[k] > left[best] or (left[k] == left[best] and counts[k] < counts[best])
            else:
                better = best < 0 or kind < best_kind
            if better:
                best, best_kind = k, kind
        if best < 0:
            return False
        slots[i] = best
        left[best] -= costs[i]
        used[best] += tokens[i]
        counts[best] += 1
    return True


@kernel
def meet_targets(costs, tokens, offsets, cap, targets, slot_of_position):
    """Bring the slots of every rank under `targets`, int64[K], descending, where exchanges do it.

    The slot that is most above its target gives another an item, or swaps one for a cheaper, such that what the two
    are above theirs becomes least. None is emptied; slots stay numbered by descending cost. An exchange looks at every
    pair of an item there and one elsewhere; a rank makes a few, and no more than it has items.
    """
    num_slots = len(targets)
    above = np.empty(num_slots, dtype=np.int64)
    used = np.empty(num_slots, dtype=np.int64)
    counts = np.empty(num_slots, dtype=np.int64)
    for r in range(len(offsets) - 1):
        first, end = offsets[r], offsets[r + 1]
        c, t, slots = costs[first:end], tokens[first:end], slot_of_position[first:end]
        left, numbered = len(slots), False
        while not numbered:
            for k in range(num_slots):
                above[k] = -targets[k]
            used[:] = 0
            counts[:] = 0
            for i in range(len(slots)):
                above[slots[i]] += c[i]
                used[slots[i]] += t[i]
                counts[slots[i]] += 1
            while left > 0 and largest_of(above) > 0:
                give, take = _best_exchange(c, t, cap, slots, above, used, counts, first_largest(above))
                if give < 0:
                    break
                other = slots[take] if take < len(slots) else take - len(slots)
                _exchange(c, t, slots, above, used, counts, give, other, take)
                left -= 1
            numbered = not _number_by_cost(c, num_slots, slots) or left == 0


@helper
def _best_exchange(costs, tokens, cap, slots, above, used, counts, worst):
    """Return the item that slot `worst` gives and the item it takes; n + slot for none; -1 where nothing helps.

    The largest of the two slots' excess becomes as small as can be; ties go to the first that is met.
    """
    n, best_give, best_take, least = len(slots), -1, -1, above[worst]
    for give in range(n):
        if slots[give] != worst or tokens[give] > cap:
            continue
        if counts[worst] > 1:
            for slot in range(len(above)):
                if slot != worst and used[slot] + tokens[give] <= cap:
                    after = max(above[worst] - costs[give], above[slot] + costs[give])
                    if after < least:
                        best_give, best_take, least = give, n + slot, after
        for take in range(n):
            slot = slots[take]
            moved = costs[give] - costs[take]
            after = max(above[worst] - moved, above[slot] + moved)
            if moved <= 0 or after >= least or slot == worst:
                continue
            more = tokens[give] - tokens[take]
            if used[slot] + more <= cap and used[worst] - more <= cap:
                best_give, best_take, least = give, take, after
    return best_give, best_take


@helper
def _exchange(costs, tokens, slots, above, used, counts, give, other, take):
    """Move item `give` to slot `other`, and item `take`, where it is one, the other way."""
    worst = slots[give]
    cost, volume, count = costs[give], tokens[give], 1
    if take < len(slots):
        cost, volume, count = cost - costs[take], volume - tokens[take], 0
        slots[take] = worst
    slots[give] = other
    above[worst] -= cost
    above[other] += cost
    used[worst] -= volume
    used[other] += volume
    counts[worst] -= count
    counts[other] += count
