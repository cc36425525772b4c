"""The loops behind sequence groups: one slot filled under a time, all slots peeled off, a few slots solved anew.

Items are positions in descending order of least rank-time. A solution is ``where``, int64[3, n], with the rows
:data:`GROUP`, :data:`DEGREE` and :data:`SLOT`: the group of every item in its slot, the degree of that group and the
slot; and the height of every slot, the time of its slowest group.

:func:`peel` fills slot after slot with :func:`_fill`, which gives one item after another to a group;
:func:`resolve` empties two or three slots and fills them otherwise, over and over. Both find the lowest slot that takes
all of some items with :func:`_squeeze`.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers._loops import draw

Ints = NDArray[np.int64]

# Above every time and score: times are below 2**58 (types.MOST_RANK_TIME), scores at most 8 * 2**32.
_NEVER = 2**62
# Bits of the time or room left, when groups are compared. A score then fits int64, and groups count as alike that
# differ by less than one part in 65,536.
_FINE = 16
# Groups of a slot beyond which an item takes the first that fits, found in a tree: the walk of best fit over all open
# groups would be most of the work there. The share of work for starts (_search.py) changes at the same number.
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


# Rows of `where`, and of what is like it; a place in one slot has only the first two.
GROUP, DEGREE, SLOT = range(3)
# Rows of the least that an item takes, over the degrees that hold it: rank-time, time with the overhead of a group,
# size.
RANK_TIME, TIME, SIZE = range(3)

# Here and below: records, where all that is known of one thing is needed at once. An array that is taken out of a tuple
# is counted by numba, which takes some nanoseconds: nothing beside a slot, much beside an item.
OF_DEGREE = np.dtype(
    [
        ("ranks", np.int64),
        ("room", np.int64),  # what a group of it holds
        ("overhead", np.int64),  # what a group of it costs in any case
        ("tree", np.int64),  # where its tree begins
        ("leaves", np.int64),  # as many as there may be groups of it, or more: a power of two
        ("shift", np.int64),  # the units in which what is left of its room is compared, see `scale`
        ("unit", np.int64),
    ]
)
"""What is known of a degree."""
_OPEN = np.dtype(
    [
        ("number", np.int64),  # in its slot
        ("degree", np.int64),
        ("time", np.int64),  # what is left of the time
        ("room", np.int64),  # and of the room
        ("leaf", np.int64),  # its vertex in the tree of its degree, where there are trees
    ]
)
"""A group that may take more items."""
_VERTEX = np.dtype(
    [
        ("time", np.int64),  # the most that a group below it has left
        ("room", np.int64),  # the same, perhaps of another group
        ("group", np.int64),  # of a leaf: where its group is among the open ones
    ]
)
"""A vertex of a tree over the groups of a degree; its children are 2 v and 2 v + 1."""
_CHOSEN = np.dtype(
    [
        ("slot", np.int64),  # which it is
        ("limit", np.int64),  # how tall it and those before it may be together, if no more are used
        ("height", np.int64),  # how tall the new one is
    ]
)
"""A slot that is solved anew."""


class Ranks(NamedTuple):
    """The ranks of a slot: numbers alone, as hot helpers take it."""

    num: int
    room: int  # what a rank holds


class Given(NamedTuple):
    """Items, degrees and ranks. Read-only."""

    times: Ints  # int64[D, n]
    sizes: Ints  # int64[D, n]
    least: Ints  # int64[3, n]: rows RANK_TIME, TIME, SIZE
    degrees: NDArray[np.void]  # OF_DEGREE[D], ascending
    ranks: Ranks


class Filling(NamedTuple):
    """Room to fill a slot, used again for every other. Writable."""

    groups: NDArray[np.void]  # _OPEN[most groups of a slot]: the open ones come first
    tree: NDArray[np.void]  # _VERTEX[2 * leaves of all degrees], or none where a slot has few groups


class Rule(NamedTuple):
    """How a slot is filled."""

    ceiling: int  # no group takes longer
    floor: int  # the least degree that a new group gets, if it can
    weight: int  # of time against room when groups are compared, in eighths
    spare: int  # so many items may find no place; one more ends it


class Scale(NamedTuple):
    """How groups are compared: the weight of a rule, and the units of its ceiling (see :func:`scale`)."""

    weight: int
    shift: int
    unit: int


class Charges(NamedTuple):
    """What is asked of the number of slots, and what each costs."""

    overhead: int
    least: int  # slots that there have to be
    multiple: int  # their number is a multiple of this
    most: int  # that may hold something


class Pool(NamedTuple):
    """The items of slots that are solved anew, and what is made of them. Writable."""

    items: Ints  # int64[n]
    left: Ints  # int64[n]: those that have no new slot yet
    offer: Ints  # int64[n]: those of them that a slot is offered, in this order
    place: Ints  # int64[2, n]: what became of each that was offered; rows GROUP, DEGREE
    spare: Ints  # int64[2, n]: the same of a try
    fresh: Ints  # int64[3, n]: where each item goes; rows as in `where`, but the slot is its number among those chosen


class Task(NamedTuple):
    """Which slots are solved anew: numbers alone."""

    size: int  # so many are chosen
    num_items: int  # that are in them
    surplus: int  # 1 if one of them is new, -1 if there have to come to be fewer; else 0


# --- which group an item joins ---------------------------------------------------------------------------------------


@helper
def _degree_for(item, rule, free, times, sizes, degrees):
    """Degree of a new group for an item: the least from the rule's floor on that holds it, else the next below; or -1.

    `free` ranks are left.
    """
    num_degrees = len(degrees)
    # Upwards from the floor first. Degrees below it are tried last, and only because few ranks are better than none.
    for turn in range(num_degrees):
        d = rule.floor + turn if rule.floor + turn < num_degrees else num_degrees - 1 - turn
        degree = degrees[d]
        if degree["ranks"] > free or sizes[d, item] > degree["room"]:
            continue
        if times[d, item] + degree["overhead"] <= rule.ceiling:
            return d
    return -1


@helper
def scale(largest):
    """Shift that leaves the bits by which groups are compared, and what one of these units is worth of the whole."""
    shift = 0
    while largest >> shift >= 1 << _FINE:
        shift += 1
    return shift, (1 << (2 * _FINE)) // max(1, largest >> shift)


scale_kernel = kernel(scale)


@helper
def _score(time, room, of_time, degree):
    """What would be left of a group: time and room in the same units, so that one number compares both."""
    of_room = 8 - of_time.weight
    return of_time.weight * ((time >> of_time.shift) * of_time.unit) + of_room * (
        (room >> degree["shift"]) * degree["unit"]
    )


@helper
def _choose_scanning(item, num_open, of_time, times, sizes, degrees, groups):
    """Best fit: which of the open groups has least left with the item; -1 if none has room."""
    best, least = -1, np.int64(_NEVER)
    for k in range(num_open):
        group = groups[k]
        d = group["degree"]
        time, room = group["time"] - times[d, item], group["room"] - sizes[d, item]
        if time >= 0 and room >= 0:
            score = _score(time, room, of_time, degrees[d])
            if score < least:
                best, least = k, score
    return best


@helper
def _first_fit(tree, base, leaves, time, room):
    """First leaf that has room for `time` and `room`; -1 if there is none."""
    # An inner vertex knows the most time and the most room below it, but these may be of two groups. So the walk may
    # have to come back up: to the next subtree to the right of where it failed.
    v = 1
    if tree[base + 1]["time"] < time or tree[base + 1]["room"] < room:
        return -1
    while v < leaves:
        v *= 2
        while tree[base + v]["time"] < time or tree[base + v]["room"] < room:
            while v % 2:  # a right child: its parent is done too
                v //= 2
                if v <= 1:
                    return -1
            v += 1
    return v


@helper
def _set_leaf(tree, base, leaf, time, room):
    """Say what is left of a group, and bring all vertices above it up to date."""
    tree[base + leaf]["time"] = time
    tree[base + leaf]["room"] = room
    v = leaf
    while v > 1:
        v //= 2
        below = base + 2 * v
        tree[base + v]["time"] = max(tree[below]["time"], tree[below + 1]["time"])
        tree[base + v]["room"] = max(tree[below]["room"], tree[below + 1]["room"])


@helper
def _choose_by_tree(item, of_time, times, sizes, degrees, counts, groups, tree):
    """Of every degree the first group that fits, and of these the one that has least left; -1 if there is none."""
    best, least = -1, np.int64(_NEVER)
    for d in range(len(counts)):
        if counts[d] == 0:
            continue
        degree = degrees[d]
        leaf = _first_fit(tree, degree["tree"], degree["leaves"], times[d, item], sizes[d, item])
        if leaf < 0:
            continue
        g = tree[degree["tree"] + leaf]["group"]
        score = _score(groups[g]["time"] - times[d, item], groups[g]["room"] - sizes[d, item], of_time, degree)
        if score < least:
            best, least = g, score
    return best


# --- a slot is filled ------------------------------------------------------------------------------------------------


@helper
def _make_filling(given):
    """Make room to fill a slot. Whether there are trees is decided by the problem, and by no slot of it."""
    most_groups, last = given.ranks.num // given.degrees[0]["ranks"], given.degrees[len(given.degrees) - 1]
    vertices = last["tree"] + 2 * last["leaves"] if most_groups > MANY_GROUPS else 0
    return Filling(np.empty(most_groups, dtype=_OPEN), np.empty(vertices, dtype=_VERTEX))


@helper
def _fill(given, filling, pool, count, rule, place):
    """Fill one slot from ``pool[:count]``, in this order, under a rule.

    An item joins the group that has least left with it; where none takes it, it opens one. ``place``, int64[2, n], is
    the group and degree of each, -1 where it stays out. Returns how many are in, the slowest group and the work done.
    """
    # Taken out once: in the loop over items, each would be counted for every one of them.
    times, sizes, least, degrees, ranks = given
    groups, tree = filling
    num_degrees = len(degrees)
    many = len(tree) > 0
    counts = np.zeros(num_degrees, dtype=np.int64)
    shift, unit = scale(rule.ceiling)
    of_time = Scale(rule.weight, shift, unit)
    # The least size still offered: a group with less room than that is closed, which keeps best fit's walk short.
    smallest = np.int64(_NEVER)
    if many:
        for v in range(len(tree)):
            tree[v]["time"] = tree[v]["room"] = -1
    else:
        for k in range(count):
            smallest = min(smallest, least[SIZE, pool[k]])
    num_groups, num_open, inside, work = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    free, height = ranks.num, np.int64(0)
    for k in range(count):
        item = pool[k]
        place[GROUP, k] = -1
        if many:
            at = _choose_by_tree(item, of_time, times, sizes, degrees, counts, groups, tree)
            work += num_degrees + 2
        else:
            at = _choose_scanning(item, num_open, of_time, times, sizes, degrees, groups)
            work += num_open + 2
        if at < 0:
            # No group takes the item. It may open one, as long as the slot has ranks for the smallest degree.
            d = np.int64(-1)
            if free >= degrees[0]["ranks"]:
                d = _degree_for(item, rule, free, times, sizes, degrees)
            elif num_open == 0:
                for j in range(k, count):
                    place[GROUP, j] = -1
                break
            if d < 0:
                # Where all items have to be in, the first that stays out ends the try.
                if k - inside >= rule.spare:
                    break
                continue
            counts[d] += 1
            at = num_open
            group, degree = groups[at], degrees[d]
            group["number"] = num_groups
            group["degree"] = d
            # The overhead of a group is charged before its first item.
            group["time"] = rule.ceiling - degree["overhead"]
            group["room"] = degree["room"]
            if many:
                group["leaf"] = degree["leaves"] + counts[d] - 1
                tree[degree["tree"] + group["leaf"]]["group"] = at
            free -= degree["ranks"]
            num_groups += 1
            num_open += 1
        group = groups[at]
        d = group["degree"]
        group["time"] -= times[d, item]
        group["room"] -= sizes[d, item]
        place[GROUP, k], place[DEGREE, k] = group["number"], d
        inside += 1
        # What time is left of the ceiling says how tall the group is.
        height = max(height, rule.ceiling - group["time"])
        if many:
            _set_leaf(tree, degrees[d]["tree"], group["leaf"], group["time"], group["room"])
        elif group["room"] < smallest:  # nothing fits it any more: the last open one takes its place
            num_open -= 1
            groups[at] = groups[num_open]
    return inside, height, work


@helper
def _squeeze(given, filling, pool, count, rule, place, spare):
    """Find, by halving, a low slot that takes all of ``pool[:count]``; return its height, or -1, and the work done.

    ``spare`` is room for a try that may fail.
    """
    least, num_ranks = given.least, given.ranks.num
    area = np.int64(0)
    for k in range(count):
        area += least[RANK_TIME, pool[k]]
    # Below the mean of the ranks nothing fits, so the halving begins there.
    low, height, work = area // num_ranks, np.int64(-1), np.int64(0)
    tall = rule.ceiling
    for _ in range(_HALVINGS):
        tried = Rule(tall, rule.floor, rule.weight, np.int64(0))
        inside, reached, more = _fill(given, filling, pool, count, tried, spare)
        work += more
        # Success is kept at what the slot really takes, which may be less than what was allowed.
        if inside == count:
            height = reached
            for k in range(count):
                place[GROUP, k], place[DEGREE, k] = spare[GROUP, k], spare[DEGREE, k]
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


# --- slot after slot -------------------------------------------------------------------------------------------------


@helper
def _full(given, item, density):
    """Time of a group of the least degree that holds an item, full of items like it, times `density` / 64."""
    times, sizes, degrees = given.times, given.sizes, given.degrees
    # The longest item left is the hardest to combine. A group full of its like says what height uses its room.
    d = 0
    while sizes[d, item] > degrees[d]["room"]:
        d += 1
    copies = degrees[d]["room"] * density // max(1, sizes[d, item])
    if sizes[d, item] == 0 or times[d, item] > _NEVER // max(1, copies):
        return np.int64(_NEVER)
    return times[d, item] * copies // 64


@kernel(turns=1000)
def peel(given, where, heights, density, floor, weight):
    """Slot after slot, each filled from all that is left: returns how many slots, and the work done.

    The longest item left says how tall a slot becomes: as a group full of items like it, times `density` / 64; but
    where all that is left fits one slot that is no taller, that ends it. `floor` is the least degree that a new group
    gets, `weight` that of time against room.
    """
    least, num_ranks, filling = given.least, given.ranks.num, _make_filling(given)
    n = least.shape[1]
    rest = np.empty(n, dtype=np.int64)
    left, num_slots, work = np.int64(n), np.int64(0), np.int64(n)
    for i in range(n):
        rest[i] = i
    place = np.empty((2, n), dtype=np.int64)
    spare = np.empty((2, n), dtype=np.int64)
    while left > 0:
        # No slot ends before its longest item, nor before the mean of the ranks if it has to take everything.
        area, longest = np.int64(0), np.int64(0)
        for k in range(left):
            area += least[RANK_TIME, rest[k]]
            longest = max(longest, least[TIME, rest[k]])
        low = max(longest, area // num_ranks)
        # A quarter above the least height: where more is needed, one more slot is mostly the better use of it.
        high = low + low // 4
        tallest = _full(given, rest[0], density)
        work += left
        height = np.int64(-1)
        # Everything may fit this slot. That is worth a try only if the slot is no taller than others are.
        if low <= tallest:
            rule = Rule(high, floor, weight, np.int64(0))
            height, more = _squeeze(given, filling, rest, left, rule, place, spare)
            work += more
        if height < 0:
            # Else a slot that is filled to its height, and what stays out goes on to the next.
            rule = Rule(max(longest, min(tallest, high)), floor, weight, left)
            _, height, more = _fill(given, filling, rest, left, rule, place)
            work += more
        stay = 0
        for k in range(left):
            if place[GROUP, k] >= 0:
                i = rest[k]
                where[GROUP, i], where[DEGREE, i], where[SLOT, i] = place[GROUP, k], place[DEGREE, k], num_slots
            else:
                rest[stay] = rest[k]
                stay += 1
        left = stay
        heights[num_slots] = height
        num_slots += 1
    return num_slots, work


# --- a few slots anew ------------------------------------------------------------------------------------------------


@helper
def _charge(num_slots, charges):
    """What so many slots that hold something cost, with those that have to be there besides."""
    return charges.overhead * (-(-max(num_slots, charges.least) // charges.multiple) * charges.multiple)


@helper
def _value(heights, num_slots, charges):
    value = _charge(num_slots, charges)
    for k in range(num_slots):
        value += heights[k]
    return value


@helper
def _make_pool(n):
    items, left, offer = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    place, spare = np.empty((2, n), dtype=np.int64), np.empty((2, n), dtype=np.int64)
    return Pool(items, left, offer, place, spare, np.empty((3, n), dtype=np.int64))


@helper
def _pick(state, num_slots, most, chosen):
    """Draw the slots to be solved anew: two or three, of which the last may be an empty one. Returns how many."""
    # Two slots mostly, three in one case of four: these have more ways, and take longer to put together.
    size = min(num_slots, 2 + (draw(state, 4) == 0))
    for j in range(size):
        chosen[j]["slot"] = draw(state, num_slots)
        k = 0
        while k < j:
            if chosen[k]["slot"] == chosen[j]["slot"]:
                chosen[j]["slot"] = draw(state, num_slots)
                k = 0
            else:
                k += 1
    # An empty slot in one case of 16, so that the number of slots may grow where that pays.
    if (size < 2 or draw(state, 16) == 0) and num_slots < most:
        chosen[size]["slot"] = num_slots
        return size + 1
    return size


@helper
def _limit(chosen, size, num_slots, num_ranks, heights, charges):
    """Set how tall 1, 2, .. ``size`` slots may be together if they are to replace those chosen with a gain."""
    held, before = 0, np.int64(0)
    for j in range(size):
        if chosen[j]["slot"] < num_slots:
            held += 1
            before += heights[chosen[j]["slot"]]
    for used in range(1, size + 1):
        after = num_slots - held + used
        # One less than the slots cost now: whatever keeps to it is a gain.
        limit = before + _charge(num_slots, charges) - _charge(after, charges) - 1
        if num_slots > charges.most:  # at any price fewer slots, and none for more
            limit = np.int64((_NEVER >> 2) // num_ranks if after < num_slots else -1)
        chosen[used - 1]["limit"] = limit


@helper
def _offer(state, way, slot, left, count, where, offer):
    """Choose which of the items left a slot is offered, and in which order; return how many these are.

    ``left[:count]`` are they, ``offer`` is filled with some of these. `way` 0: all; 1: most of them; 2: the slot's own
    and half of the others; 3: the slot's own before all others.
    """
    offered = 0
    # The ways differ in what they keep. Way 3 offers seven in eight of what the slot had before all else, and so
    # repairs it; ways 1 and 2 leave some items to the slots that follow.
    chance = 1 + draw(state, 3)
    if way == 3:
        for k in range(count):
            if where[SLOT, left[k]] == slot and draw(state, 8):
                offer[offered] = left[k]
                # Marked by its sign, so that the second loop passes it over and puts it back.
                left[k] = -1 - left[k]
                offered += 1
    for k in range(count):
        if left[k] < 0:
            left[k] = -1 - left[k]
        elif (way != 1 or draw(state, 16) >= chance) and (way != 2 or where[SLOT, left[k]] == slot or draw(state, 2)):
            offer[offered] = left[k]
            offered += 1
    return offered


@helper
def _ceiling(state, height, surplus, most):
    """How tall a slot may become, from how tall it was; in 1024ths of it."""
    # Where slots are too many, height is no matter: the slot may have to take all there is.
    if surplus < 0:
        return most
    # Drawn, and not computed: which heights go together is what the search has to find.
    if surplus > 0:  # one slot more than before
        share = 307 + draw(state, 820)
    elif draw(state, 64) == 0:  # fewer, perhaps
        share = 1024 + draw(state, 3072)
    else:
        share = 820 + draw(state, 410)
    return min(height // 1024 * share + height % 1024 * share // 1024, most)


@helper
def _keep(left, count, fresh, j, least):
    """Leave in ``left[:count]`` what slot `j` did not take; return how many, their rank-time and their size."""
    area, size = np.int64(0), np.int64(0)
    stay = 0
    for k in range(count):
        i = left[k]
        if fresh[SLOT, i] != j:
            left[stay] = i
            stay += 1
            area += least[RANK_TIME, i]
            size += least[SIZE, i]
    return stay, area, size


@helper
def _rebuild(state, given, filling, where, heights, chosen, pool, task):
    """Put the items of the chosen slots into as many new ones, or fewer: returns how many, 0 where that gains nothing.

    Also returns the work done.
    """
    size, count, surplus = task
    items, left, offer, place, spare, fresh = pool
    least, ranks, num_degrees = given.least, given.ranks, len(given.degrees)
    for k in range(count):
        left[k], fresh[SLOT, items[k]] = items[k], -1
    work, total, stay = 3 * count, np.int64(0), np.int64(count)
    way, weight, floor = draw(state, 4), draw(state, _WEIGHTS), draw(state, num_degrees)
    for j in range(size):
        last = j == size - 1
        # What is left of the limit. With nothing left, the items that remain would need height that is not there.
        allowed = chosen[min(size - 1, j)]["limit"] - total
        if allowed < 0:
            return 0, work
        # The last slot has to take all that is left, and is made as low as that allows.
        if last:
            for k in range(stay):
                offer[k] = left[k]
            offered, inside = stay, stay
            rule = Rule(allowed, floor, weight, np.int64(0))
            height, more = _squeeze(given, filling, offer, offered, rule, place, spare)
        else:
            offered = _offer(state, way, chosen[j]["slot"], left, stay, where, offer)
            tall = _ceiling(state, heights[chosen[j]["slot"]], surplus, allowed)
            rule = Rule(tall, floor, weight, np.int64(offered))
            inside, height, more = _fill(given, filling, offer, offered, rule, place)
        work += more + 2 * stay
        if height < 0 or inside == 0:
            return 0, work
        for k in range(offered):
            if place[GROUP, k] >= 0:
                i = offer[k]
                fresh[GROUP, i], fresh[DEGREE, i], fresh[SLOT, i] = place[GROUP, k], place[DEGREE, k], j
        stay, area, volume = _keep(left, stay, fresh, j, least)
        chosen[j]["height"] = height
        total += height
        # The slots used up to here hold everything: fewer than before, perhaps.
        if stay == 0:
            return (j + 1 if total <= chosen[j]["limit"] else 0), work
        # By their sums alone, the items left may be too much for the slots left. Most tries end here, long before the
        # last slot.
        room = (size - 1 - j) * ranks.num * ranks.room
        if area > (chosen[min(size - 1, j + 1)]["limit"] - total) * ranks.num or volume > room:
            return 0, work
        if draw(state, 2):
            weight = draw(state, _WEIGHTS)
        if draw(state, 2):
            floor = draw(state, num_degrees)
    return 0, work


@helper
def _drop(a, num_slots, where, heights):
    """Number the last slot `a`, which holds nothing."""
    for i in range(where.shape[1]):
        if where[SLOT, i] == num_slots - 1:
            where[SLOT, i] = a
    heights[a] = heights[num_slots - 1]


@kernel(turns=1000)
def resolve(given, where, heights, num_slots, charges, seed, budget, goal):
    """Solve a few slots anew, over and over, and keep what is better; in place. Returns how many slots, and the work.

    A solution of more slots than may hold something gets fewer first. Ends when the budget does or a value of `goal` is
    reached.
    """
    n, most, filling = where.shape[1], charges.most, _make_filling(given)
    # A generator of its own, with a seed that the caller counts up: the same plan on every rank.
    state = np.empty(1, dtype=np.int64)
    state[0] = seed
    chosen, pool = np.empty(_TRIED, dtype=_CHOSEN), _make_pool(n)
    items, fresh = pool.items, pool.fresh
    local = np.empty(n + 1, dtype=np.int64)  # of each slot, which of the chosen ones it is, or -1
    for k in range(n + 1):
        local[k] = -1
    value = _value(heights, num_slots, charges)
    work, idle = np.int64(0), 0
    while work < budget and idle < _PATIENCE * (n + 16) and (value > goal or num_slots > most):
        idle += 1
        size = _pick(state, num_slots, most, chosen)
        _limit(chosen, size, num_slots, given.ranks.num, heights, charges)
        for j in range(size):
            local[chosen[j]["slot"]] = j
        count = np.int64(0)
        for i in range(n):
            if local[where[SLOT, i]] >= 0:
                items[count] = i
                count += 1
        for j in range(size):
            local[chosen[j]["slot"]] = -1
        # Slots may be too many for what was asked. Then fewer come first, at any price.
        surplus = np.int64(-1) if num_slots > most else np.int64(chosen[size - 1]["slot"] == num_slots)
        used, more = _rebuild(state, given, filling, where, heights, chosen, pool, Task(size, count, surplus))
        # The pass over all items that makes the pool, a quarter of a unit for each.
        work += more + n // 4
        if used == 0:
            continue
        idle = 0
        for k in range(count):
            i = items[k]
            where[GROUP, i], where[DEGREE, i] = fresh[GROUP, i], fresh[DEGREE, i]
            where[SLOT, i] = chosen[fresh[SLOT, i]]["slot"]
        for j in range(used):
            num_slots = max(num_slots, chosen[j]["slot"] + 1)
            heights[chosen[j]["slot"]] = chosen[j]["height"]
        # A slot that is left empty takes the number of the last one, so that slots stay 0, 1, 2, ...
        for j in range(used, size):
            if chosen[j]["slot"] < num_slots:
                _drop(chosen[j]["slot"], num_slots, where, heights)
                num_slots -= 1
                for k in range(j + 1, size):
                    if chosen[k]["slot"] == num_slots:
                        chosen[k]["slot"] = chosen[j]["slot"]
        value = _value(heights, num_slots, charges)
    return num_slots, work
