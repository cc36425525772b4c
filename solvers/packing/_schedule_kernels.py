"""The loops behind micro-batch schedules: filling bins under a cap, and levelling them by swaps.

A *bin* is a micro-batch that has no rank yet. Items are positions in the order of descending cost. An item that must
lie alone (an over-long one in its own micro-batch) comes with ``cap + 1`` tokens: nothing fits beside it, not even an
item of no tokens, and no swap can move it.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._exchange import Members, Window, best_exchange, exchange, items_of, may_grow, members_of
from solvers._jit import helper, kernel
from solvers._loops import first_largest, first_smallest

# Above every key, cost and room.
_NEVER = 2**63 - 1
_NONE = -1
"""Stands for a bin or a leaf where there is none."""


class Samples(NamedTuple):
    """What is scheduled, by descending cost; read-only."""

    costs: NDArray[np.int64]  # int64[n]
    tokens: NDArray[np.int64]  # int64[n]


class Filling(NamedTuple):
    """Bins while they are filled; all of it is written."""

    bin_of_item: NDArray[np.int32]  # int32[n], -1 of what has no bin yet
    loads: NDArray[np.int64]  # int64[bins]: cost
    used: NDArray[np.int64]  # int64[bins]: tokens


class Measures(NamedTuple):
    """How full bins are: the larger of two numbers, in 2**-20 of what a bin is to hold; see :func:`deal`."""

    ceilings: NDArray[np.int64]  # int64[b]: costs above which a bin is the last resort
    load_units: NDArray[np.int64]  # int64[b]
    token_unit: int
    base: int  # cost of a token that is not counted
    cap: int  # tokens of a bin


class Tree(NamedTuple):
    """Bins as leaves, f of them, from number f on; vertex v is above 2v and 2v + 1. All of it is written."""

    keys: NDArray[np.int64]  # int64[2f]: the least key below: how full the bin is that is least full
    room: NDArray[np.int64]  # int64[2f]: the most room under the cap
    below: NDArray[np.int64]  # int64[2f]: the most room under a ceiling


@kernel
def fill_densest(samples, candidates, bins, height, cap, filling):
    """Best fit over `bins` in the order of `candidates`; what fits nowhere stays unplaced (-1). Returns the work done.

    No bin exceeds `height` in cost or `cap` in tokens. O(candidates * bins); bins with no room left are left out.
    """
    costs, tokens, loads, used = samples.costs, samples.tokens, filling.loads, filling.used
    # A bin with less room than the least sample left takes nothing more, and is passed over from then on.
    smallest = np.int64(_NEVER)
    for item in candidates:
        if filling.bin_of_item[item] < 0:
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
        if filling.bin_of_item[item] >= 0:
            continue
        work += size
        # Best fit: the fullest bin that has room in tokens and in cost.
        best, fullest = _NONE, np.int64(-1)
        for k in range(size):
            b = open_bins[k]
            if used[b] > fullest and used[b] + tokens[item] <= cap and loads[b] + costs[item] <= height:
                best, fullest = k, used[b]
        if best == _NONE:
            continue
        b = open_bins[best]
        filling.bin_of_item[item] = b
        loads[b] += costs[item]
        used[b] += tokens[item]
        if smallest > cap - used[b]:  # nothing fits it any more
            size -= 1
            open_bins[best] = open_bins[size]
    return work


@helper
def _key(load, used, measures, k):
    """How full the k-th bin is, with that in it."""
    return max((load - measures.base * used) // measures.load_units[k], used // measures.token_unit)


@helper
def _make_tree(bins, measures, filling):
    """Build the tree; bins over the cap are there, but no item finds them. O(bins)."""
    leaves = 1
    while leaves < len(bins):
        leaves *= 2
    tree = Tree(
        np.full(2 * leaves, _NEVER, dtype=np.int64), np.full(2 * leaves, -1, dtype=np.int64),
        np.full(2 * leaves, -_NEVER, dtype=np.int64),
    )  # fmt: skip
    for k in range(len(bins)):
        load, used = filling.loads[bins[k]], filling.used[bins[k]]
        tree.room[leaves + k] = measures.cap - used
        tree.below[leaves + k] = measures.ceilings[k] - load
        if used <= measures.cap:
            tree.keys[leaves + k] = _key(load, used, measures, k)
    for v in range(leaves - 1, 0, -1):
        _renew(tree, v)
    return tree


@kernel
def deal(samples, candidates, bins, measures, filling):
    """Deal the unplaced items over `bins`, each to the bin that is least full, in two measures at once.

    How full a bin is: the larger of its tokens in `token_unit` and of its cost above ``base * tokens`` in the bin's
    load unit. The units are what the bins are to hold, divided by 2**20. Bins that an item would take over their
    ceiling are the last resort, bins over the cap are none. Returns whether all items found a bin; the first that finds
    none ends it. The bins are the leaves of a tree that knows below each vertex the least key, the most room under the
    cap and the most room under a ceiling: O(n log bins), where it need not look at many.
    """
    tree = _make_tree(bins, measures, filling)
    stack = np.empty(128, dtype=np.int64)  # two vertices a level
    for item in candidates:
        if filling.bin_of_item[item] >= 0:
            continue
        cost, tokens = samples.costs[item], samples.tokens[item]
        k = _least_full(tree, tokens, cost, stack)
        if k == _NONE:
            k = _least_full(tree, tokens, -_NEVER, stack)  # over its ceiling
        if k == _NONE:
            return False
        b = bins[k]
        filling.bin_of_item[item] = b
        filling.loads[b] += cost
        filling.used[b] += tokens
        # Only the bin's own path to the root changes: O(log bins).
        v = len(tree.keys) // 2 + k
        tree.keys[v] = _key(filling.loads[b], filling.used[b], measures, k)
        tree.room[v] -= tokens
        tree.below[v] -= cost
        while v > 1:
            v //= 2
            _renew(tree, v)
    return True


@helper
def _renew(tree, v):
    """Bring a vertex up to date with the two below it."""
    tree.keys[v] = min(tree.keys[2 * v], tree.keys[2 * v + 1])
    tree.room[v] = max(tree.room[2 * v], tree.room[2 * v + 1])
    tree.below[v] = max(tree.below[2 * v], tree.below[2 * v + 1])


@helper
def _least_full(tree, tokens, cost, stack):
    """Return the leaf of least key, ties to the lowest, with room for `tokens` and `cost`; _NONE if there is none."""
    keys, room, below, leaves = tree.keys, tree.room, tree.below, len(tree.keys) // 2
    best, best_key = np.int64(_NONE), np.int64(_NEVER)
    size = 1
    stack[0] = 1
    while size:
        size -= 1
        v = stack[size]
        # Three maxima of a subtree may be of three bins, so it may still hold none with all of them: then the search
        # goes back.
        if room[v] < tokens or below[v] < cost or keys[v] > best_key:
            continue
        if keys[v] == best_key:  # only a lower leaf would be better
            lowest = v
            while lowest < leaves:
                lowest *= 2
            if best < 0 or lowest - leaves > best:
                continue
        if v >= leaves:
            best, best_key = v - leaves, keys[v]
            continue
        # The emptier side first. What it finds rules out most of the other.
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
        # Items ascend in cost from the last: the cheapest of a bin that keeps another.
        if counts[b] == 0:
            while counts[bin_of_item[item]] < 2:
                item -= 1
            counts[bin_of_item[item]] -= 1
            bin_of_item[item] = b
            counts[b] = 1
            item -= 1


fill_empty_bins_kernel = kernel(fill_empty_bins)


class Bins(NamedTuple):
    """What bins hold, and the groups and classes of bins that are levelled."""

    members: Members  # of bins
    used: NDArray[np.int64]  # int64[bins], writable: tokens of each
    loads: NDArray[np.int64]  # int64[groups], writable: cost of each
    sums: NDArray[np.int64]  # int64[classes], writable: cost of each
    tops: NDArray[np.int64]  # int64[classes], writable: its largest group


class Levels(NamedTuple):
    """How bins make groups and classes, and what a bin may hold; all of it int64 but for the flag."""

    width: int  # neighbouring bins that are a group
    span: int  # neighbouring groups that are a class
    cap: int  # tokens of a bin
    may_empty: bool


class Move(NamedTuple):
    """Item number `give` of bin `source` for item number `take` of bin `target`; _NONE for a source: none helps."""

    source: np.int64
    give: np.int64
    target: np.int64
    take: np.int64
    moved: np.int64  # cost that goes over, net


@helper
def _bins_of(samples, bin_of_item, levels, num_bins):
    num_groups = num_bins // levels.width
    num_classes = num_groups // levels.span
    loads, sums = np.zeros(num_groups, dtype=np.int64), np.zeros(num_classes, dtype=np.int64)
    used, tops = np.zeros(num_bins, dtype=np.int64), np.zeros(num_classes, dtype=np.int64)
    for item in range(len(bin_of_item)):
        b, cost = bin_of_item[item], samples.costs[item]
        used[b] += samples.tokens[item]
        loads[b // levels.width] += cost
        sums[b // levels.width // levels.span] += cost
    for g in range(num_groups):
        tops[g // levels.span] = max(tops[g // levels.span], loads[g])
    return Bins(members_of(bin_of_item, num_bins, 0), used, loads, sums, tops)


@helper
def _best_move(samples, bins, levels, g, least, limit):
    """The exchange of group g with another that leaves least, and the work, little more than `limit`.

    Group `least` of its class is looked at first. Of groups of one class, what the larger of the two then has counts;
    of others, that they stay within their tops.
    """
    members, used, loads = bins.members, bins.used, bins.loads
    width, span, num_groups = levels.width, levels.span, len(loads)
    first, mean, work = g // span * span, bins.sums[g // span] // span, np.int64(0)
    # A group gives what it has above the mean of its class, and no more: the class gains nothing below it.
    excess = loads[g] - mean
    result, none = loads[g], np.int64(_NONE)
    best = Move(none, none, none, none, np.int64(0))
    for turn in range(num_groups):
        same = turn < span  # a class's own groups first: there the aim is the middle of the two, elsewhere the mean
        h = first + (least + turn) % span if same else (first + turn) % num_groups
        aim, high = excess, bins.tops[h // span] - loads[h]
        if same:
            aim, high = min((loads[g] - loads[h]) // 2, excess), result - loads[h] - 1
        for b in range(g * width, (g + 1) * width):
            given = items_of(members, b)
            for c in range(h * width, (h + 1) * width):
                # The window closes as better exchanges are found, so that bins with nothing better are passed over.
                low = loads[g] - result + 1  # less would not be better than the best so far
                if low > high:
                    continue
                # A move empties a bin if it held nothing else, which rules may forbid; a swap never does.
                may_move = may_grow(members, c) and (levels.may_empty or len(given) > 1)
                window = Window(low, high, aim, aim, levels.cap - used[b], levels.cap - used[c])
                d, i, j, steps = best_exchange(
                    samples.costs, samples.tokens, given, items_of(members, c), window, may_move
                )
                work += steps
                if i >= 0:
                    best = Move(np.int64(b), i, np.int64(c), j, d)
                    result = max(loads[g] - d, loads[h] + d) if same else loads[g] - d
                    high = min(high, result - loads[h] - 1) if same else high
        # A quarter of the excess left is good enough: the rest is the next exchange's, which begins anew.
        if result <= mean + excess // 4 or work >= limit:
            break
    return best, work


@kernel(turns=60)
def level(samples, bin_of_item, num_bins, levels, work):
    """Lower the largest group of every class by moves and swaps of items under the cap, in place.

    The objective is the sum over the classes of their largest group: ``"micro_batch"`` has bins as groups and slots
    as classes, ``"pipeline"`` has one class of bins, ``"step"`` has one class of ranks. Returns the work left; positive
    if it ended by itself.
    """
    bins = _bins_of(samples, bin_of_item, levels, num_bins)
    loads, sums, span = bins.loads, bins.sums, levels.span
    num_classes, idle, k = len(sums), 0, -1
    while idle < num_classes and work > 0:  # until no class has got better since its last turn
        k = (k + 1) % num_classes
        idle += 1
        while work > 0:
            of_class = loads[k * span : (k + 1) * span]
            least = first_smallest(of_class)
            g = k * span + first_largest(of_class)
            bins.tops[k] = loads[g]
            work -= 2 * span
            if loads[g] <= -(-sums[k] // span):
                break  # as even as integers can be
            move, spent = _best_move(samples, bins, levels, g, least, work)
            work -= spent
            if move.source < 0:
                break
            leaving, entering = exchange(bins.members, bin_of_item, move.source, move.give, move.target, move.take)
            volume = samples.tokens[leaving] - (samples.tokens[entering] if entering >= 0 else 0)
            bins.used[move.source] -= volume
            bins.used[move.target] += volume
            h = move.target // levels.width
            loads[g] -= move.moved
            loads[h] += move.moved
            sums[k] -= move.moved
            sums[h // span] += move.moved
            idle = 0
    return work
