"""The loops behind sequence groups: one slot filled under a time, all slots peeled off, a few slots solved anew.

Items are positions in descending order of least rank-time. What is given is in few arrays: ``times`` and ``sizes``,
int64[D, n]; ``least``, int64[3, n], the least rank-time, time and size of an item; ``shape``, int64[6, D + 1], of each
degree its ranks, what a group of it holds, what it costs in any case, where its tree begins, and the units in which its
room is compared; ``ranks``, int64[3], all
ranks, those of a node (0 where nodes bind nothing) and what a rank holds. A solution is ``where``, int64[3, n]: slot,
group in the slot and degree of every item; and the height of every slot, the time of its slowest group.
"""

import numpy as np

from solvers._jit import helper, kernel
from solvers._loops import draw

# Above every time and score: times are below 2**58 (types.MOST_RANK_TIME), scores at most 8 * 2**32.
_NEVER = 2**62
# Bits of the time or room left, when groups are compared. A score then fits int64, and groups count as alike that
# differ by less than one part in 65,536.
_FINE = 16
# Groups of a slot beyond which an item takes the first that fits, found in a tree: the walk of best fit over all open
# groups would be most of the work there. The tuning of _search.py begins at the same number.
MANY_GROUPS = 64
# Tries of a height. `peel` begins within a quarter of the least height, and ten halvings of that are below the part in
# 2,048 at which `_squeeze` ends anyway; the two more are for `resolve`, whose ceilings are wider.
_HALVINGS = 12
# Tries in vain for every item, after which a search has ended by itself. It saves time where the optimum cannot be
# proven, and costs nothing where budgets are short: they end first.
_PATIENCE = 64
# Weights of time against room, in eighths, that are drawn: 0 to 3, so that room counts more. The starts try 0 and 4;
# see the row *weights of time* of benchmarks/ablation.py, sequence_groups.
_WEIGHTS = 4
# Slots that are solved anew together, at most: three, and an empty one (see `_pick`).
_TRIED = 4


@helper
def packs(counts, shape, ranks):
    """Whether so many groups of each degree fit the nodes: best fit, in descending order of degree.

    A group of more ranks than a node has starts at a node; what it leaves of its last node is for smaller groups.
    """
    each = ranks[1]
    short = ranks[0] % each
    intact = short > 0
    left = np.zeros(each + 1, dtype=np.int64)  # nodes by ranks that are free in them
    # The last node may be shorter than all others. Its free ranks are counted like any node's, and `intact` remembers
    # whether a group of several nodes may still end in it.
    left[short] = 1
    left[each] = ranks[0] // each
    # Descending order: a small group finds room wherever a large one leaves some, not the other way round.
    for d in range(len(counts) - 1, -1, -1):
        degree = shape[0, d]
        whole, rest = degree // each, degree % each
        for _ in range(counts[d]):
            if degree > each:
                left[each] -= whole
                if left[each] < 0:
                    return False
                if rest and left[each] > 0:
                    left[each] -= 1
                    left[each - rest] += 1
                elif rest and intact and rest <= short:  # the last node, which follows the last whole one
                    left[short] -= 1
                    left[short - rest] += 1
                    intact = False
                elif rest:
                    return False
                continue
            # Best fit: the node with the fewest free ranks that are enough, so that intact nodes stay for larger
            # groups.
            free = degree
            while free <= each and left[free] == 0:
                free += 1
            if free > each:
                return False
            left[free] -= 1
            left[free - degree] += 1
    return True


packs_kernel = kernel(packs)


@helper
def _degree_for(item, ceiling, floor, free, times, sizes, shape, ranks, counts):
    """Degree of a new group for an item: the least from `floor` on that holds it, else the next below; or -1."""
    num_degrees = len(counts)
    # Upwards from `floor` first. Degrees below it are tried last, and only because few ranks are better than none.
    for turn in range(num_degrees):
        d = floor + turn if floor + turn < num_degrees else num_degrees - 1 - turn
        if shape[0, d] > free or sizes[d, item] > shape[1, d] or times[d, item] + shape[2, d] > ceiling:
            continue
        # The ranks may be there in number and still lie scattered over nodes.
        counts[d] += 1
        if ranks[1] == 0 or packs(counts, shape, ranks):
            return d
        counts[d] -= 1
    return -1


@helper
def _first_fit(tree, base, leaves, time, size):
    """First leaf below which there is room for `time` and `size`; -1 if there is none."""
    # An inner vertex knows the most time and the most room below it, but these may be of two groups. So the walk may
    # have to come back up: to the next subtree to the right of where it failed.
    v = 1
    if tree[0, base + 1] < time or tree[1, base + 1] < size:
        return -1
    while v < leaves:
        v *= 2
        while tree[0, base + v] < time or tree[1, base + v] < size:
            while v % 2:  # a right child: its parent is done too
                v //= 2
                if v <= 1:
                    return -1
            v += 1
    return v - leaves


@helper
def _set_leaf(tree, base, leaves, leaf, time, size):
    v = leaves + leaf
    tree[0, base + v] = time
    tree[1, base + v] = size
    while v > 1:
        v //= 2
        tree[0, base + v] = max(tree[0, base + 2 * v], tree[0, base + 2 * v + 1])
        tree[1, base + v] = max(tree[1, base + 2 * v], tree[1, base + 2 * v + 1])


@helper
def scale(largest):
    """Shift that leaves the bits by which groups are compared, and what one of these units is worth of the whole."""
    shift = 0
    while largest >> shift >= 1 << _FINE:
        shift += 1
    return shift, (1 << (2 * _FINE)) // max(1, largest >> shift)


scale_kernel = kernel(scale)


@helper
def _choose_scanning(item, num_open, weight, clock, times, sizes, shape, groups):
    """Best fit: the place in the list of open groups of the one that has least left; -1 if none has room."""
    best, least = -1, np.int64(_NEVER)
    for k in range(num_open):
        g = groups[3, k]
        d = groups[0, g]
        time, room = groups[1, g] - times[d, item], groups[2, g] - sizes[d, item]
        if time >= 0 and room >= 0:
            # Left of the time and of the room in the same units, so that one number compares both.
            score = weight * ((time >> clock[0]) * clock[1]) + (8 - weight) * ((room >> shape[4, d]) * shape[5, d])
            if score < least:
                best, least = k, score
    return best


@helper
def _choose_by_tree(item, weight, clock, times, sizes, shape, counts, groups, tree):
    """Of every degree the first group that fits, and of these the one that has least left; -1 if there is none."""
    best, least = -1, np.int64(_NEVER)
    for d in range(len(counts)):
        if counts[d] == 0:
            continue
        base = shape[3, d]
        leaves = (shape[3, d + 1] - base) // 2
        leaf = _first_fit(tree, base, leaves, times[d, item], sizes[d, item])
        if leaf < 0:
            continue
        g = tree[2, base + leaf]
        time, room = groups[1, g] - times[d, item], groups[2, g] - sizes[d, item]
        score = weight * ((time >> clock[0]) * clock[1]) + (8 - weight) * ((room >> shape[4, d]) * shape[5, d])
        if score < least:
            best, least = g, score
    return best


@helper
def _fill(pool, count, spare, ceiling, floor, weight, least, times, sizes, shape, ranks, groups, tree, place):
    """Fill one slot from ``pool[:count]``, in this order; no group takes longer than `ceiling`.

    An item joins the group that has least left with it, in time (`weight` 8), in room (0) or in both; where none takes
    it, it opens one of a degree from `floor` on. More than `spare` items that find no place end it. ``place``,
    int64[2, n], is the group and degree of each, -1 where it stays out. Returns how many are in, the slowest group and
    the work done.
    """
    num_degrees = len(times)
    # Decided by the problem alone and not by this slot: the wrapper made room for one way or the other.
    many = ranks[0] // shape[0, 0] > MANY_GROUPS
    counts = np.zeros(num_degrees, dtype=np.int64)
    clock = scale(ceiling)
    # The least size still offered: a group with less room than that is closed, which keeps best fit's walk short.
    smallest = np.int64(_NEVER)
    if many:
        for v in range(tree.shape[1]):
            tree[0, v] = tree[1, v] = -1
    else:
        for k in range(count):
            smallest = min(smallest, least[2, pool[k]])
    num_groups, num_open, inside, work = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    free, height = ranks[0], np.int64(0)
    for k in range(count):
        item = pool[k]
        place[0, k] = -1
        if many:
            g = _choose_by_tree(item, weight, clock, times, sizes, shape, counts, groups, tree)
            work += num_degrees + 2
        else:
            spot = _choose_scanning(item, num_open, weight, clock, times, sizes, shape, groups)
            g = groups[3, spot] if spot >= 0 else -1
            work += num_open + 2
        if g < 0:
            # No group takes the item. It may open one, as long as the slot has ranks for the smallest degree.
            d = np.int64(-1)
            if free >= shape[0, 0]:
                d = _degree_for(item, ceiling, floor, free, times, sizes, shape, ranks, counts)
            elif num_open == 0:
                for j in range(k, count):
                    place[0, j] = -1
                break
            if d < 0:
                # `spare` is 0 where all items have to be in: the first that stays out ends the try.
                if k - inside >= spare:
                    break
                continue
            g, spot = num_groups, num_open
            # The overhead of a group is charged before its first item.
            groups[0, g], groups[1, g], groups[2, g], groups[3, spot] = d, ceiling - shape[2, d], shape[1, d], g
            if many:
                tree[2, shape[3, d] + counts[d] - 1] = g
                groups[3, g] = counts[d] - 1
            free -= shape[0, d]
            num_groups += 1
            num_open += 1
        d = groups[0, g]
        groups[1, g] -= times[d, item]
        groups[2, g] -= sizes[d, item]
        place[0, k], place[1, k] = g, d
        inside += 1
        # What time is left of the ceiling says how tall the group is.
        height = max(height, ceiling - groups[1, g])
        if many:
            base = shape[3, d]
            _set_leaf(tree, base, (shape[3, d + 1] - base) // 2, groups[3, g], groups[1, g], groups[2, g])
        elif groups[2, g] < smallest:  # nothing fits it any more
            num_open -= 1
            groups[3, spot] = groups[3, num_open]
    return inside, height, work


@helper
def _squeeze(pool, count, ceiling, floor, weight, least, times, sizes, shape, ranks, groups, tree, place, spare):
    """Find, by halving, a low slot that takes all of ``pool[:count]``; return its height, or -1, and the work done."""
    area = np.int64(0)
    for k in range(count):
        area += least[0, pool[k]]
    # Below the mean of the ranks nothing fits, so the halving begins there.
    low, height, work = area // ranks[0], np.int64(-1), np.int64(0)
    tall = ceiling
    for _ in range(_HALVINGS):
        inside, reached, more = _fill(
            pool, count, np.int64(0), tall, floor, weight, least, times, sizes, shape, ranks, groups, tree, spare
        )
        work += more
        # Success is kept at what the slot really takes, which may be less than what was allowed.
        if inside == count:
            height = reached
            for k in range(count):
                place[0, k], place[1, k] = spare[0, k], spare[1, k]
        # The ceiling itself is too low. Nothing below it can do either.
        elif height < 0:
            break
        else:
            low = tall
        # One part in 2,048 is less than one item changes: further halving would buy nothing.
        if height - low <= height >> 11:
            break
        tall = (low + height) // 2
    return height, work


@helper
def _full(item, density, times, sizes, shape):
    """Time of a group of the least degree that holds an item, full of items like it, times `density` / 64."""
    # The longest item left is the hardest to combine. A group full of its like says what height uses its room.
    d = 0
    while sizes[d, item] > shape[1, d]:
        d += 1
    copies = shape[1, d] * density // max(1, sizes[d, item])
    if sizes[d, item] == 0 or times[d, item] > _NEVER // max(1, copies):
        return np.int64(_NEVER)
    return times[d, item] * copies // 64


@kernel
def peel(kept, ways, weight, least, times, sizes, shape, ranks, groups, tree, where, heights):
    """Slot after slot, each filled from all that is left: returns how many slots, and the work done.

    The first `kept` slots stay as they are. The longest item left says how tall a slot becomes: as a group full of
    items like it, times a density / 64; but where all that is left fits one slot that is no taller, that ends it.
    ``ways``, int64[2, s], are the density and the least degree of new groups of each slot, the last those of all
    further ones.
    """
    n = times.shape[1]
    rest = np.empty(n, dtype=np.int64)
    left, num_slots, work = np.int64(0), np.int64(kept), np.int64(n)
    for i in range(n):
        if kept == 0 or where[0, i] >= kept:
            rest[left] = i
            left += 1
    place = np.empty((2, n), dtype=np.int64)
    spare = np.empty((2, n), dtype=np.int64)
    while left > 0:
        # No slot ends before its longest item, nor before the mean of the ranks if it has to take everything.
        area, longest = np.int64(0), np.int64(0)
        for k in range(left):
            area += least[0, rest[k]]
            longest = max(longest, least[1, rest[k]])
        low = max(longest, area // ranks[0])
        # A quarter above the least height: where more is needed, one more slot is mostly the better use of it.
        high = low + low // 4
        density, floor = ways[0, min(num_slots, ways.shape[1] - 1)], ways[1, min(num_slots, ways.shape[1] - 1)]
        tallest = _full(rest[0], density, times, sizes, shape)
        work += left
        height = np.int64(-1)
        # Everything may fit this slot. That is worth a try only if the slot is no taller than others are.
        if low <= tallest:
            height, more = _squeeze(
                rest, left, high, floor, weight, least, times, sizes, shape, ranks, groups, tree, place, spare
            )
            work += more
        if height < 0:
            # Else a slot that is filled to its height, and what stays out goes on to the next.
            ceiling = max(longest, min(tallest, high))
            _, height, more = _fill(
                rest, left, left, ceiling, floor, weight, least, times, sizes, shape, ranks, groups, tree, place
            )
            work += more
        stay = 0
        for k in range(left):
            if place[0, k] >= 0:
                where[0, rest[k]], where[1, rest[k]], where[2, rest[k]] = num_slots, place[0, k], place[1, k]
            else:
                rest[stay] = rest[k]
                stay += 1
        left = stay
        heights[num_slots] = height
        num_slots += 1
    return num_slots, work


@helper
def _charge(num_slots, rules):
    """What so many slots that hold something cost, with those that have to be there besides."""
    return rules[0] * (-(-max(num_slots, rules[1]) // rules[2]) * rules[2])


@helper
def _value(heights, num_slots, rules):
    value = _charge(num_slots, rules)
    for k in range(num_slots):
        value += heights[k]
    return value


@helper
def _pick(state, num_slots, most, chosen):
    """Draw the slots to be solved anew: two or three, of which the last may be an empty one. Returns how many."""
    # Two slots mostly, three in one case of four: these have more ways, and take longer to put together.
    size = min(num_slots, 2 + (draw(state, 4) == 0))
    for j in range(size):
        chosen[j] = draw(state, num_slots)
        k = 0
        while k < j:
            if chosen[k] == chosen[j]:
                chosen[j] = draw(state, num_slots)
                k = 0
            else:
                k += 1
    # An empty slot in one case of 16, so that the number of slots may grow where that pays.
    if (size < 2 or draw(state, 16) == 0) and num_slots < most:
        chosen[size] = num_slots
        return size + 1
    return size


@helper
def _offer(state, way, slot, pool, spots, count, where, order):
    """Choose which of the items left a slot is offered, and in which order; return how many these are.

    ``spots[:count]`` are their places in the pool, ``order`` is filled with some of these. `way` 0: all; 1: most of
    them; 2: the slot's own and half of the others; 3: the slot's own before all others.
    """
    offered = 0
    # The ways differ in what they keep. Way 3 offers seven in eight of what the slot had before all else, and so
    # repairs it; ways 1 and 2 leave some items to the slots that follow.
    chance = 1 + draw(state, 3)
    if way == 3:
        for k in range(count):
            if where[0, pool[spots[k]]] == slot and draw(state, 8):
                order[offered] = spots[k]
                # Marked by its sign, so that the second loop passes it over and puts it back.
                spots[k] = -1 - spots[k]
                offered += 1
    for k in range(count):
        if spots[k] < 0:
            spots[k] = -1 - spots[k]
        elif (way != 1 or draw(state, 16) >= chance) and (
            way != 2 or where[0, pool[spots[k]]] == slot or draw(state, 2)
        ):
            order[offered] = spots[k]
            offered += 1
    return offered


@helper
def _limits(chosen, size, num_slots, most, num_ranks, heights, rules, limits):
    """Set how tall 1, 2, .. ``size`` slots may be together if they are to replace those chosen with a gain."""
    held, before = 0, np.int64(0)
    for j in range(size):
        if chosen[j] < num_slots:
            held += 1
            before += heights[chosen[j]]
    for used in range(1, size + 1):
        after = num_slots - held + used
        # One less than the slots cost now: whatever keeps to it is a gain.
        limits[used] = before + _charge(num_slots, rules) - _charge(after, rules) - 1
        if num_slots > most:  # at any price fewer slots, and none for more
            limits[used] = (_NEVER >> 2) // num_ranks if after < num_slots else -1


@helper
def _ceiling(state, height, surplus, most):
    """How tall a slot may become, from how tall it was; in 1024ths of it."""
    # Drawn, and not computed: which heights go together is what the search has to find.
    if surplus > 0:  # one slot more than before
        share = 307 + draw(state, 820)
    elif surplus < 0 or draw(state, 64) == 0:  # fewer
        share = 1024 + draw(state, 3072)
    else:
        share = 820 + draw(state, 410)
    return min(height // 1024 * share + height % 1024 * share // 1024, most)


@helper
def _keep(spots, count, fresh, j, pool, least):
    """Leave in `spots` what slot `j` did not take; return how many, their rank-time and their size."""
    area, size = np.int64(0), np.int64(0)
    stay = 0
    for k in range(count):
        i = spots[k]
        if fresh[0, i] != j:
            spots[stay] = i
            stay += 1
            area += least[0, pool[i]]
            size += least[2, pool[i]]
    return stay, area, size


@helper
def _rebuild(
    state, chosen, size, limits, surplus, least, times, sizes, shape, ranks, groups, tree, where, heights, pool, count,
    scratch, fresh, place, spare, built,
):  # fmt: skip
    """Put the items of the chosen slots into as many new ones, or fewer: returns how many, 0 where that gains nothing.

    ``fresh``, int64[3, n], says where each goes, and ``built`` how tall the slots are. Also returns the work done.
    """
    # Positions within the pool, not items: so that one array says of each where it goes.
    spots, order, offer = scratch[0], scratch[1], scratch[2]
    for k in range(count):
        spots[k], fresh[0, k] = k, -1
    work, total, left = 3 * count, np.int64(0), np.int64(count)
    way, weight, floor = draw(state, 4), draw(state, _WEIGHTS), draw(state, len(times))
    for j in range(size):
        last = j == size - 1
        # What is left of the limit. With nothing left, the items that remain would need height that is not there.
        allowed = limits[min(size, j + 1)] - total
        if allowed < 0:
            return 0, work
        offered, inside = left, left
        if not last:
            offered = _offer(state, way, chosen[j], pool, spots, left, where, order)
        for k in range(offered):
            order[k] = spots[k] if last else order[k]
            offer[k] = pool[order[k]]
        # The last slot has to take all that is left, and is made as low as that allows.
        if last:
            built[j], more = _squeeze(
                offer, offered, allowed, floor, weight, least, times, sizes, shape, ranks, groups, tree, place, spare
            )
        else:
            tall = _ceiling(state, heights[chosen[j]], surplus, allowed)
            inside, built[j], more = _fill(
                offer, offered, offered, tall, floor, weight, least, times, sizes, shape, ranks, groups, tree, place
            )
        work += more + 2 * left
        if built[j] < 0 or inside == 0:
            return 0, work
        for k in range(offered):
            if place[0, k] >= 0:
                fresh[0, order[k]], fresh[1, order[k]], fresh[2, order[k]] = j, place[0, k], place[1, k]
        left, area, volume = _keep(spots, left, fresh, j, pool, least)
        total += built[j]
        # The slots used up to here hold everything: fewer than before, perhaps.
        if left == 0:
            return (j + 1 if total <= limits[j + 1] else 0), work
        # By their sums alone, the items left may be too much for the slots left. Most tries end here, long before the
        # last slot.
        room = (size - 1 - j) * ranks[0] * ranks[2]
        if area > (limits[min(size, j + 2)] - total) * ranks[0] or volume > room:
            return 0, work
        if draw(state, 2):
            weight = draw(state, _WEIGHTS)
        if draw(state, 2):
            floor = draw(state, len(times))
    return 0, work


@helper
def _drop(a, num_slots, where, heights):
    """Number the last slot `a`, which holds nothing."""
    for i in range(where.shape[1]):
        if where[0, i] == num_slots - 1:
            where[0, i] = a
    heights[a] = heights[num_slots - 1]


@kernel
def resolve(
    seed, budget, goal, most, rules, least, times, sizes, shape, ranks, groups, tree, where, heights, num_slots,
):  # fmt: skip
    """Solve a few slots anew, over and over, and keep what is better; in place. Returns how many slots, and the work.

    `rules` are the overhead of a slot, the least number of slots and what it is a multiple of; `most` slots may hold
    something; a solution of more gets fewer first. Ends when the budget does or a value of `goal` is reached.
    """
    n = times.shape[1]
    # A generator of its own, with a seed that the caller counts up: the same plan on every rank.
    state = np.full(1, seed, dtype=np.int64)
    few = np.zeros((3, _TRIED + 1), dtype=np.int64)
    chosen, limits, built = few[0], few[1], few[2]
    large = np.empty((11, n), dtype=np.int64)
    pool, fresh, scratch, place, spare = large[0], large[1:4], large[4:7], large[7:9], large[9:11]
    local = np.full(n + 1, -1, dtype=np.int64)
    value = _value(heights, num_slots, rules)
    work, idle = np.int64(0), 0
    while work < budget and idle < _PATIENCE * (n + 16) and (value > goal or num_slots > most):
        idle += 1
        size = _pick(state, num_slots, most, chosen)
        _limits(chosen, size, num_slots, most, ranks[0], heights, rules, limits)
        for j in range(size):
            local[chosen[j]] = j
        count = np.int64(0)
        for i in range(n):
            if local[where[0, i]] >= 0:
                pool[count] = i
                count += 1
        for j in range(size):
            local[chosen[j]] = -1
        # Slots may be too many for what was asked. Then fewer come first, at any price.
        surplus = np.int64(-1) if num_slots > most else np.int64(chosen[size - 1] == num_slots)
        used, more = _rebuild(
            state, chosen, size, limits, surplus, least, times, sizes, shape, ranks, groups, tree, where, heights, pool,
            count, scratch, fresh, place, spare, built,
        )  # fmt: skip
        # The pass over all items that makes the pool, a quarter of a unit for each.
        work += more + n // 4
        if used == 0:
            continue
        idle = 0
        for k in range(count):
            where[0, pool[k]], where[1, pool[k]], where[2, pool[k]] = chosen[fresh[0, k]], fresh[1, k], fresh[2, k]
        for j in range(used):
            num_slots = max(num_slots, chosen[j] + 1)
            heights[chosen[j]] = built[j]
        # A slot that is left empty takes the number of the last one, so that slots stay 0, 1, 2, ...
        for j in range(used, size):
            if chosen[j] < num_slots:
                _drop(chosen[j], num_slots, where, heights)
                num_slots -= 1
                for k in range(j + 1, size):
                    if chosen[k] == num_slots:
                        chosen[k] = chosen[j]
        value = _value(heights, num_slots, rules)
    return num_slots, work
