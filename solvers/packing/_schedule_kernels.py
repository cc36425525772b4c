"""The loops behind micro-batch schedules: filling bins under a cap, and levelling them by swaps.

A *bin* is a micro-batch that has no rank yet. Items are positions in the order of descending cost. An item that must
lie alone (an over-long one in its own micro-batch) comes with ``cap + 1`` tokens: nothing fits beside it, not even an
item of no tokens, and no swap can move it.
"""

import numpy as np

from solvers._jit import helper, kernel
from solvers._loops import first_largest, first_smallest

__all__ = [
    "deal",
    "fill_densest",
    "fill_empty_bins",
    "fill_empty_bins_kernel",
    "level",
]

_NEVER = 2**63 - 1
_LIST = 4  # room that a bin's list of items has beyond twice its size


@kernel
def fill_densest(costs, tokens, candidates, bins, height, cap, bin_of_item, loads, used):
    """Best fit over `bins` in the order of `candidates`; what fits nowhere stays unplaced (-1). Returns the work done.

    No bin exceeds `height` in cost or `cap` in tokens. O(candidates * bins); bins with no room left are left out.
    """
    smallest = np.int64(_NEVER)
    for item in candidates:
        if bin_of_item[item] < 0:
            smallest = min(smallest, tokens[item])
    open_bins = bins.copy()
    size = 0
    for b in bins:
        if smallest <= cap - used[b]:
            open_bins[size] = b
            size += 1
    work = len(candidates)
    for item in candidates:
        if size == 0:
            break
        if bin_of_item[item] >= 0:
            continue
        work += size
        best, fullest = -1, np.int64(-1)
        for k in range(size):
            b = open_bins[k]
            if used[b] > fullest and used[b] + tokens[item] <= cap and loads[b] + costs[item] <= height:
                best, fullest = k, used[b]
        if best < 0:
            continue
        b = open_bins[best]
        bin_of_item[item] = b
        loads[b] += costs[item]
        used[b] += tokens[item]
        if smallest > cap - used[b]:
            size -= 1
            open_bins[best] = open_bins[size]
    return work


@helper
def _key(load, used, base, load_unit, token_unit):
    return max((load - base * used) // load_unit, used // token_unit)


@kernel
def deal(costs, tokens, candidates, bins, ceilings, load_units, token_unit, base, cap, bin_of_item, loads, used):
    """Deal the unplaced items over `bins`, each to the bin that is least full, in two measures at once.

    How full a bin is: the larger of its tokens in `token_unit` and of its cost above ``base * tokens`` in the bin's
    load unit. The units are what the bins are to hold, divided by 2**20. Bins that an item would take over their
    ceiling are the last resort, bins over the cap are none. Returns whether all items found a bin; the first that finds
    none ends it. The bins are the leaves of a tree that knows below each vertex the least key, the most room under the
    cap and the most room under a ceiling: O(n log bins), where it need not look at many.
    """
    size = len(bins)
    leaves = 1
    while leaves < size:
        leaves *= 2
    keys = np.full(2 * leaves, _NEVER, dtype=np.int64)
    room = np.full(2 * leaves, -1, dtype=np.int64)
    below = np.full(2 * leaves, -_NEVER, dtype=np.int64)
    stack = np.empty(128, dtype=np.int64)  # two vertices a level
    for k in range(size):
        b = bins[k]
        room[leaves + k] = cap - used[b]
        below[leaves + k] = ceilings[k] - loads[b]
        if used[b] <= cap:
            keys[leaves + k] = _key(loads[b], used[b], base, load_units[k], token_unit)
    for v in range(leaves - 1, 0, -1):
        _renew(keys, room, below, v)
    for item in candidates:
        if bin_of_item[item] >= 0:
            continue
        c, t = costs[item], tokens[item]
        k = _least_full(keys, room, below, t, c, leaves, stack)
        if k < 0:
            k = _least_full(keys, room, below, t, -_NEVER, leaves, stack)
        if k < 0:
            return False
        b = bins[k]
        bin_of_item[item] = b
        loads[b] += c
        used[b] += t
        v = leaves + k
        keys[v] = _key(loads[b], used[b], base, load_units[k], token_unit)
        room[v] -= t
        below[v] -= c
        while v > 1:
            v //= 2
            _renew(keys, room, below, v)
    return True


@helper
def _renew(keys, room, below, v):
    keys[v] = min(keys[2 * v], keys[2 * v + 1])
    room[v] = max(room[2 * v], room[2 * v + 1])
    below[v] = max(below[2 * v], below[2 * v + 1])


@helper
def _least_full(keys, room, below, tokens, cost, leaves, stack):
    """Return the leaf of least key, ties to the lowest, with room for `tokens` and `cost`; -1 if there is none."""
    best, best_key = np.int64(-1), np.int64(_NEVER)
    size = 1
    stack[0] = 1
    while size:
        size -= 1
        v = stack[size]
        if room[v] < tokens or below[v] < cost or keys[v] > best_key:
            continue
        if keys[v] == best_key:
            lowest = v
            while lowest < leaves:
                lowest *= 2
            if best < 0 or lowest - leaves > best:
                continue
        if v >= leaves:
            best, best_key = v - leaves, keys[v]
            continue
        first, second = 2 * v, 2 * v + 1
        if keys[second] < keys[first]:
            first, second = second, first
        stack[size] = second
        stack[size + 1] = first  # is looked at next
        size += 2
    return best


@helper
def fill_empty_bins(bin_of_item, num_bins):
    """Give each empty bin an item of a bin with several, the cheapest first. There are no fewer items than bins."""
    counts = np.zeros(num_bins, dtype=np.int64)
    for b in bin_of_item:
        counts[b] += 1
    item = len(bin_of_item) - 1
    for b in range(num_bins):
        if counts[b] == 0:
            while counts[bin_of_item[item]] < 2:
                item -= 1
            counts[bin_of_item[item]] -= 1
            bin_of_item[item] = b
            counts[b] = 1
            item -= 1


fill_empty_bins_kernel = kernel(fill_empty_bins)


@helper
def _lists(bin_of_item, num_bins):
    """Items by bin with room to grow: members, start[num_bins + 1], sizes."""
    sizes = np.zeros(num_bins, dtype=np.int64)
    for b in bin_of_item:
        sizes[b] += 1
    start = np.zeros(num_bins + 1, dtype=np.int64)
    for b in range(num_bins):
        start[b + 1] = start[b] + 2 * sizes[b] + _LIST
    members = np.empty(start[num_bins], dtype=np.int32)
    sizes[:] = 0
    for item in range(len(bin_of_item)):
        b = bin_of_item[item]
        members[start[b] + sizes[b]] = item
        sizes[b] += 1
    return members, start, sizes


@helper
def _best_pair(costs, tokens, given, taken, room_given, room_taken, low, high, ideal, may_move):
    """Best exchange of an item of `given` for one of `taken` (or for nothing): d = difference of costs nearest `ideal`.

    ``low <= d <= high``; tokens may grow by `room_given` and `room_taken`. Returns d (0 if none), i, j.
    """
    best, best_i, best_j = np.int64(0), -1, -1
    distance = np.int64(_NEVER)
    last = len(taken) + (1 if may_move else 0)
    for i in range(len(given)):
        c, t = costs[given[i]], tokens[given[i]]
        for j in range(last):
            d, grows = c, t
            if j < len(taken):
                d -= costs[taken[j]]
                grows -= tokens[taken[j]]
            if low <= d <= high and grows <= room_taken and -grows <= room_given:
                off = abs(d - ideal)
                if off < distance:
                    best, best_i, best_j, distance = d, i, j, off
    return best, best_i, best_j


@helper
def _exchange(members, start, sizes, bin_of_item, used, tokens, b, i, c, j):
    """Item i of bin b goes to bin c and item j of bin c, if there is one, to bin b."""
    leaving = members[start[b] + i]
    bin_of_item[leaving] = c
    used[b] -= tokens[leaving]
    used[c] += tokens[leaving]
    if j < sizes[c]:
        entering = members[start[c] + j]
        bin_of_item[entering] = b
        used[c] -= tokens[entering]
        used[b] += tokens[entering]
        members[start[b] + i] = entering
        members[start[c] + j] = leaving
    else:
        sizes[b] -= 1
        members[start[b] + i] = members[start[b] + sizes[b]]
        members[start[c] + sizes[c]] = leaving
        sizes[c] += 1


@helper
def _best_exchange(
    costs, tokens, members, start, sizes, used, loads, tops, g, least, width, span, cap, mean, may_empty, limit
):
    """Find the exchange of group g with another that leaves least; `least` of its class is looked at first.

    Of groups of one class, what the larger of the two then has counts; of others, that they stay within their tops.
    Returns the bins and their items, what goes from g, and the work, little more than `limit`; bins of -1 where nothing
    helps.
    """
    num_groups, first, excess, work = len(loads), g // span * span, loads[g] - mean, 0
    good = mean + excess // 4
    result, best_b, best_i, best_c, best_j, best_d = loads[g], -1, -1, -1, -1, np.int64(0)
    for turn in range(num_groups):
        h = first + (least + turn) % span if turn < span else (first + turn) % num_groups
        same = turn < span
        low, high, ideal = loads[g] - result + 1, tops[h // span] - loads[h], excess
        if same:
            difference = loads[g] - loads[h]
            if difference < 2 or loads[h] + (difference + 1) // 2 >= result:
                continue
            high, ideal = result - loads[h] - 1, min(difference // 2, excess)
        if low > high:
            continue
        for b in range(g * width, (g + 1) * width):
            given = members[start[b] : start[b] + sizes[b]]
            for c in range(h * width, (h + 1) * width):
                taken = members[start[c] : start[c] + sizes[c]]
                may_move = sizes[c] < start[c + 1] - start[c] and (may_empty or sizes[b] > 1)
                work += sizes[b] * (sizes[c] + 1)
                room_b, room_c = cap - used[b], cap - used[c]
                d, i, j = _best_pair(costs, tokens, given, taken, room_b, room_c, low, high, ideal, may_move)
                if d <= 0:
                    continue
                after = max(loads[g] - d, loads[h] + d) if same else loads[g] - d
                if after < result:
                    result, best_b, best_i, best_c, best_j, best_d = after, b, i, c, j, d
                    low = loads[g] - result + 1
                    if same:
                        high = result - loads[h] - 1
        if result <= good or work >= limit:
            break
    return best_b, best_i, best_c, best_j, best_d, work


@kernel
def level(costs, tokens, bin_of_item, num_bins, width, num_classes, cap, may_empty, work):
    """Lower the largest group of every class by moves and swaps of items under the cap, in place.

    `width` neighbouring bins are a group, and the groups, in `num_classes` runs of equal length, are classes. The
    objective is the sum over the classes of their largest group: lockstep has bins as groups and slots as classes,
    pipeline has one class of bins, step has one class of ranks. Returns the work left; positive if it ended by itself.
    """
    num_groups = num_bins // width
    span = num_groups // num_classes
    members, start, sizes = _lists(bin_of_item, num_bins)
    used = np.zeros(num_bins, dtype=np.int64)
    loads = np.zeros(num_groups, dtype=np.int64)
    sums = np.zeros(num_classes, dtype=np.int64)
    for item in range(len(costs)):
        b = bin_of_item[item]
        used[b] += tokens[item]
        loads[b // width] += costs[item]
        sums[b // width // span] += costs[item]
    tops = np.zeros(num_classes, dtype=np.int64)
    for g in range(num_groups):
        tops[g // span] = max(tops[g // span], loads[g])
    idle = 0
    k = -1
    while idle < num_classes and work > 0:
        k = (k + 1) % num_classes
        idle += 1
        while work > 0:
            first = k * span
            g = first + first_largest(loads[first : first + span])
            least = first_smallest(loads[first : first + span])
            tops[k] = loads[g]
            work -= 2 * span
            if loads[g] <= -(-sums[k] // span):
                break
            move_b, move_i, move_c, move_j, move_d, spent = _best_exchange(
                costs, tokens, members, start, sizes, used, loads, tops, g, least, width, span, cap, sums[k] // span,
                may_empty, work,
            )  # fmt: skip
            work -= spent
            if move_b < 0:
                break
            _exchange(members, start, sizes, bin_of_item, used, tokens, move_b, move_i, move_c, move_j)
            h = move_c // width
            loads[g] -= move_d
            loads[h] += move_d
            if h // span != k:
                sums[k] -= move_d
                sums[h // span] += move_d
            idle = 0
    return work
