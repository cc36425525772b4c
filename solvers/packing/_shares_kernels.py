"""The loops behind cutting shares: each rank's samples into few micro-batches, and these made even. All ranks a call.

A *position* is a sample in an order that runs rank by rank; ``offsets[r] : offsets[r + 1]`` are those of rank r.
"""

import numpy as np

from solvers._exchange import Window, best_exchange, exchange, items_of, may_grow, members_of
from solvers._jit import helper, kernel
from solvers._loops import copy, first_largest, largest_of, stable_order

# Targets within 2**-5 of each other are of slots of one kind: what tells them apart is less than one sample.
_ALIKE = 5


@helper
def _first_fit(sizes, cap, room, group_of_position):
    """``room[v]`` is the largest room in the tree below v, whose leaves are the groups; those not yet open have `cap`.

    The tree has a leaf more than there are open groups, so its root always has room enough.
    """
    leaves = len(room) // 2
    room[:] = cap
    for i in range(len(sizes)):
        # Left wherever the left side has room: the lowest group in which the item fits.
        vertex = 1
        while vertex < leaves:
            vertex *= 2
            vertex += np.int64(room[vertex] < sizes[i])
        group_of_position[i] = vertex - leaves
        room[vertex] -= sizes[i]
        while vertex > 1:
            vertex //= 2
            largest = max(room[2 * vertex], room[2 * vertex + 1])
            if room[vertex] == largest:
                break
            room[vertex] = largest


@kernel
def pack_shares(tokens, offsets, cap, bin_of_position, bins_of_rank):
    """First fit decreasing on every rank: `tokens` descend within one, so that those over the cap come first.

    Each of these has a bin of its own, the first ones. O(n log K).
    """
    for r in range(len(bins_of_rank)):
        first, end = offsets[r], offsets[r + 1]
        alone = np.int64(0)
        # Over-long samples come first, as tokens descend, and are alone. The bins of all others follow theirs.
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
        # The tree has a leaf for each bin that first fit may open.
        most = min(n, 2 * (total // cap) + 3)  # of two bins in a row, one is more than half full
        leaves = 1
        while leaves < most:
            leaves *= 2
        group = bin_of_position[first:end]
        _first_fit(tokens[first:end], cap, np.empty(2 * leaves, dtype=np.int64), group)
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
    # Slots of like targets are of one kind: among them the emptiest or the fullest is chosen.
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
        # Dealing may fail under the cap where first fit did not: its bins are the answer then.
        if not _deal_under_cap(costs[first:end], tokens[first:end], cap, kinds, left, used, counts, slots):
            copy(slots, packed[first:end])
        if len(slots) >= num_slots:
            fill_empty_bins(slots, num_slots)
        _number_by_cost(costs[first:end], num_slots, slots)


@helper
def fill_empty_bins(bin_of_item, num_bins):
    """Give each empty bin an item of a bin with several, the cheapest first. There are no fewer items than bins."""
    counts = np.zeros(num_bins, dtype=np.int64)
    for b in bin_of_item:
        counts[b] += 1
    item = len(bin_of_item) - 1
    for b in range(num_bins):
        # Items ascend in cost from the last: the cheapest of a bin that keeps another.
        if counts[b] == 0:
            while counts[bin_of_item[item]] < 2:
                item -= 1
            counts[bin_of_item[item]] -= 1
            bin_of_item[item] = b
            counts[b] = 1
            item -= 1


fill_empty_bins_kernel = kernel(fill_empty_bins)


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
    # Empty slots last, then by descending cost: two stable sorts.
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
            # A slot that the sample would raise above its target is the last resort: of the kind after all.
            kind = kinds[k] if costs[i] <= left[k] else np.int64(len(left))
            # Among tall slots the one with least room, so that they fill up one after the other. Among the lowest,
            # the emptiest: LPT.
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
    are above theirs becomes least. None is emptied; slots stay numbered by descending cost. `costs` descend within a
    rank. An exchange walks the items of the rank once, and K times those of the slot; a rank makes a few, and no more
    than it has items.
    """
    num_slots = len(targets)
    above = np.empty(num_slots, dtype=np.int64)
    used = np.empty(num_slots, dtype=np.int64)
    for r in range(len(offsets) - 1):
        first, end = offsets[r], offsets[r + 1]
        c, t, slots = costs[first:end], tokens[first:end], slot_of_position[first:end]
        left, numbered = len(slots), False
        while not numbered:
            for k in range(num_slots):
                above[k] = -targets[k]
            used[:] = 0
            for i in range(len(slots)):
                above[slots[i]] += c[i]
                used[slots[i]] += t[i]
            members = members_of(slots, num_slots, len(slots) // num_slots)
            # Only the slot most above its target gives: what other slots are above theirs shows when it is done.
            while left > 0 and largest_of(above) > 0:
                worst = first_largest(above)
                give, other, take, moved = _best_exchange(c, t, members, cap, above, used, worst)
                if give < 0:
                    break
                leaving, entering = exchange(members, slots, worst, give, other, take)
                volume = t[leaving] - (t[entering] if entering >= 0 else 0)
                above[worst] -= moved
                above[other] += moved
                used[worst] -= volume
                used[other] += volume
                left -= 1
            # Numbering anew changes which slot has which target, so that some may be above theirs again.
            numbered = not _number_by_cost(c, num_slots, slots) or left == 0


@helper
def _best_exchange(costs, tokens, members, cap, above, used, worst):
    """The exchange of slot `worst` with another after which the larger excess of the two is least: first slot met.

    Returns which of its items goes (-1: nothing helps), the other slot, which of its items comes back, and what goes.
    """
    best_give, best_other, best_take, best_moved, least = np.int64(-1), 0, np.int64(-1), np.int64(0), above[worst]
    given = items_of(members, worst)
    for other in range(len(above)):
        if other == worst:
            continue
        # The two become alike half way between them; nothing outside the window would be better than the best so far.
        difference = above[worst] - above[other]
        low, high, aim = above[worst] - least + 1, least - above[other] - 1, difference // 2
        if low > high:
            continue
        window = Window(low, high, aim, difference - aim, cap - used[worst], cap - used[other])
        may_move = len(given) > 1 and may_grow(members, other)
        moved, give, take, _ = best_exchange(costs, tokens, given, items_of(members, other), window, may_move)
        if give >= 0:
            best_give, best_other, best_take, best_moved = give, other, take, moved
            least = max(above[worst] - moved, above[other] + moved)
    return best_give, best_other, best_take, best_moved
