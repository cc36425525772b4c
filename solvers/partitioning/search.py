"""The search: one state and one operation for every rule, told from top to bottom.

A *unit* is an item, or several that stay together. Units and groups have amounts in several *dimensions*: one or more
costs first, then the capped quantities, last the number of items. A rule is a limit on what a group holds of a
dimension, and a makespan is a limit on its costs. So to keep rules, to mend broken ones and to lower a makespan is one
operation, :func:`bring_under`. It takes a group that holds too much of a dimension and tries three moves, each larger
than the one before:

* *swap*: one unit of this group for a smaller one of any group, or two units for one;
* *trade*: up to two of its units for up to two of a group that has much room;
* *divide*: all its units and those of a few other groups, divided anew, depth first.

A move is made only if no group is over a limit afterwards that it was not over before, nor further over one that it
was. So stopped at any time, the result is no worse than the start. Divide over all groups is an exhaustive search: it
finds a plan under the limits, or proves that there is none.

Two starts come before it, :func:`greedy` and :func:`resemble`. Every function counts its *work*: a unit of work is
about 2.5 nanoseconds on a server core, and no clock is read, so that all ranks of a job find the same plan.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers._loops import draw, first_at_most, numbers

FAR = 2**61
"""No limit. Sums of rooms fit int64: :func:`divide` keeps them at FAR at most, and :func:`divide_some` adds at most
four to a room below 0. With 2^62 they would not fit, and then a plan would seem impossible that is not."""
NOBODY = -1
"""No unit where a unit stands, no group where a group does."""

# How far each move looks.
_PARTNERS = 64  # units that one unit may be swapped for: where 64 had no room, more seldom do
_GROUPS = 6  # groups that one trade looks at
_WINDOW = 24  # units of a group that a trade looks at, all pairs of them
_PAIRS = 24  # pairs of the other group that one pair may be traded for
_DIVIDED = 5  # groups that are divided anew at once, at most
_NODES = 2_000  # of the tree that one division looks at

# Groups without room are asked again after one unit for every so many of them. After one unit for each of them, plans
# under two caps are 1 % longer.
_SELDOM = 8


class State(NamedTuple):
    """Units, limits and groups: all that the search reads and writes."""

    amounts: NDArray[np.int64]  # int64[u, d]: what a unit has of each dimension
    by_amount: NDArray[np.int64]  # int64[d, u]: units by descending amount, ties by their number
    values: NDArray[np.int64]  # int64[d, u]: these amounts
    mask: NDArray[np.int64]  # int64[u]: the row of `allowed` of each unit
    allowed: NDArray[np.bool_]  # bool[k, m]: distinct sets of groups that units may be in
    lower: NDArray[np.int64]  # int64[m]: the fewest items of a group
    scale: NDArray[np.float64]  # float64[d]: one over what an average group has
    group: NDArray[np.int64]  # int64[u], written: the group of each unit, NOBODY if it is in none
    held: NDArray[np.int64]  # int64[m, d], written: what groups hold, initial loads included
    head: NDArray[np.int64]  # int64[m], written: one unit of each group
    near: NDArray[np.int64]  # int64[u, 2], written: the units before and after it in a list of its group


@helper
def put(s, unit, g):
    """Put a unit that is in no group into group `g`."""
    first = s.head[g]
    s.near[unit, 0], s.near[unit, 1] = NOBODY, first
    if first >= 0:
        s.near[first, 0] = unit
    s.head[g] = unit
    s.group[unit] = g
    for d in range(s.held.shape[1]):
        s.held[g, d] += s.amounts[unit, d]


@helper
def take(s, unit):
    """Take a unit out of its group."""
    g, before, after = s.group[unit], s.near[unit, 0], s.near[unit, 1]
    if before >= 0:
        s.near[before, 1] = after
    else:
        s.head[g] = after
    if after >= 0:
        s.near[after, 0] = before
    s.group[unit] = NOBODY
    for d in range(s.held.shape[1]):
        s.held[g, d] -= s.amounts[unit, d]


@kernel
def lay_out(s, group, before):
    """Begin anew with unit i in ``group[i]`` (NOBODY: in none); `before` is what groups hold without units."""
    for g in range(len(s.head)):
        s.head[g] = NOBODY
        for d in range(s.held.shape[1]):
            s.held[g, d] = before[g, d]
    for unit in range(len(group) - 1, -1, -1):
        s.group[unit] = NOBODY
        if group[unit] >= 0:
            put(s, unit, group[unit])


# The rules --------------------------------------------------------------------------------------------------------


@helper
def keeps(s, upper, g, h, a, b, x, y):
    """Whether units a and b may go from `g` to `h`, and x and y from `h` to `g`. Nothing else asks for the rules."""
    good = s.allowed[s.mask[a], h]
    if b >= 0:
        good &= s.allowed[s.mask[b], h]
    if x >= 0:
        good &= s.allowed[s.mask[x], g]
    if y >= 0:
        good &= s.allowed[s.mask[y], g]
    last = s.held.shape[1] - 1
    for d in range(last + 1 if good else 0):
        goes = s.amounts[a, d]  # what `h` gets more, in the end
        if b >= 0:
            goes += s.amounts[b, d]
        if x >= 0:
            goes -= s.amounts[x, d]
        if y >= 0:
            goes -= s.amounts[y, d]
        # Whoever gets more must stay under its limit; who gets less may be over one still.
        if goes > 0:
            good &= s.held[h, d] + goes <= upper[h, d]
            if d == last:
                good &= s.held[g, d] - goes >= s.lower[g]
        elif goes < 0:
            good &= s.held[g, d] - goes <= upper[g, d]
            if d == last:
                good &= s.held[h, d] + goes >= s.lower[h]
        if not good:
            break
    return good


@helper
def exchange(s, g, h, a, b, x, y):
    """Move units a and b from `g` to `h`, and x and y from `h` to `g`."""
    for unit in (a, b, x, y):
        if unit >= 0:
            to = h if s.group[unit] == g else g
            take(s, unit)
            put(s, unit, to)


# Swap -------------------------------------------------------------------------------------------------------------


@helper
def swap(s, upper, g, d, need, room):
    """Swap one or two units of `g` for one of another group, such that `g` has `need` less of dimension `d`, or more.

    No group has more than `room` of it. Returns whether it did, and the work.
    """
    values, units = s.values[d], s.by_amount[d]
    count, dims, work = len(units), s.held.shape[1], np.int64(0)
    fixed = s.held[g, dims - 1] <= s.lower[g]  # it may not have fewer items
    for pairs in (False, True):
        if pairs and fixed:
            break
        a = s.head[g]
        while a >= 0:
            b = s.near[a, 1] if pairs else NOBODY
            while b >= 0 or not pairs:
                work += 4
                given = s.amounts[a, d] + (s.amounts[b, d] if pairs else 0)
                # Partners are all units that are small enough, the largest first: one binary search finds them.
                if given >= need and given - values[0] <= room:
                    work += 30
                    at = first_at_most(values, 0, given - need)
                    for k in range(at, min(at + _PARTNERS, count)):
                        goes = given - values[k]
                        if goes > room:
                            break
                        work += 4
                        h = s.group[units[k]]
                        if h != g and s.held[h, d] + goes <= upper[h, d]:
                            work += 8 * dims
                            if keeps(s, upper, g, h, a, b, units[k], NOBODY):
                                exchange(s, g, h, a, b, units[k], NOBODY)
                                return True, work + 20 * dims
                if not pairs:
                    break
                # Pairs of a group of hundreds are too many: a swap costs no more than a few looks at every unit.
                if work > 20 * count:
                    return False, work
                b = s.near[b, 1]
            a = s.near[a, 1]
    return False, work


# Trade ------------------------------------------------------------------------------------------------------------


@helper
def sort_descending(keys, other, count):
    """Sort ``keys[:count]`` by descending key, and `other` with them, in place (Shell 1959)."""
    gap = 1
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap:
        for i in range(gap, count):
            key, of, k = keys[i], other[i], i
            while k >= gap and keys[k - gap] < key:
                keys[k], other[k] = keys[k - gap], other[k - gap]
                k -= gap
            keys[k], other[k] = key, of
        gap //= 3


@helper
def choices(s, g, d, skip, out, keys):
    """None, one or two units of a window of `g`, by descending amount of `d`. Returns how many choices there are.

    A choice of units a and b is packed as ``a * 2^31 + b + 1``; of a alone as ``a * 2^31``; of none as NOBODY.
    """
    members, few = np.empty(_WINDOW, dtype=np.int64), 0
    for _ in range(2):  # the window begins after `skip` units, and goes on with the first ones
        unit = s.head[g]
        while unit >= 0 and few < min(_WINDOW, s.held[g, s.held.shape[1] - 1]):
            if skip <= 0:
                members[few] = unit
                few += 1
            skip -= 1
            unit = s.near[unit, 1]
        skip = min(skip, 0)
    out[0], keys[0], count = NOBODY, 0, 1
    for i in range(few):
        for j in range(i + 1):
            out[count] = members[i] << 31
            keys[count] = s.amounts[members[i], d]
            if j < i and members[j] != members[i]:  # a small group comes round in its own window
                out[count] += members[j] + 1
                keys[count] += s.amounts[members[j], d]
            count += 1
    sort_descending(keys, out, count)
    return count


@helper
def unpack(choice):
    """The two units of a choice."""
    return (choice >> 31, (choice & (2**31 - 1)) - 1) if choice >= 0 else (NOBODY, NOBODY)


@helper
def scarcest(s, upper, g, h, d, need):
    """The dimension that leaves least choice for a trade; `g` must give between low and high of it to `h`, net."""
    where, low, high, narrow = d, need, upper[h, d] - s.held[h, d], np.inf
    for e in range(s.held.shape[1] - 1):
        least, most = s.held[g, e] - upper[g, e], upper[h, e] - s.held[h, e]
        if e == d:
            least = need
        elif least > 0:  # the group is over this limit too: it may stay over it, but not get more
            least = np.int64(0)
        width = (max(most, 0) - float(least)) * s.scale[e]
        if width < narrow:
            where, low, high, narrow = e, least, most, width
    return where, low, high


@helper
def trade(s, upper, g, d, need, turn, start, by_room):
    """Trade up to two units of `g` for up to two of another group, such that `g` has `need` less of `d`, or more.

    It looks at groups in the order of `by_room`, from place `start` on. Returns whether it did, and the work.
    """
    size = 1 + _WINDOW * (_WINDOW + 1) // 2
    given, mine = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
    taken, theirs = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
    last, m = s.held.shape[1] - 1, len(s.head)
    count, by, work, tried = 0, -1, np.int64(0), 0
    for place in range(m):
        h = by_room[(start + place) % m]
        work += 3
        if h == g or upper[h, d] - s.held[h, d] < need:
            continue
        tried += 1
        if tried > _GROUPS:
            break
        # Sort the choices of both groups by what is scarcest: so a window of them is all that can fit.
        e, low, high = scarcest(s, upper, g, h, d, need)
        if e != by:
            by = e
            count = choices(s, g, e, turn * 7 % (1 + max(0, s.held[g, last] - _WINDOW)), given, mine)
            work += 20 * count
        others = choices(s, h, e, turn * 7 % (1 + max(0, s.held[h, last] - _WINDOW)), taken, theirs)
        work += 20 * others + 4 * count
        for i in range(count):
            a, b = unpack(given[i])
            if a < 0:
                continue
            has = s.amounts[a, d] + (s.amounts[b, d] if b >= 0 else 0)
            if has < need:
                continue
            at = first_at_most(theirs[:others], 0, mine[i] - low)
            work += 20
            for k in range(at, min(at + _PAIRS, others)):
                if mine[i] - theirs[k] > high:
                    break
                work += 6
                x, y = unpack(taken[k])
                back = (s.amounts[x, d] if x >= 0 else 0) + (s.amounts[y, d] if y >= 0 else 0)
                if has - back < need:
                    continue
                work += 8 * (last + 1)
                if keeps(s, upper, g, h, a, b, x, y):
                    exchange(s, g, h, a, b, x, y)
                    return True, work + 20 * (last + 1)
    return False, work


# Divide -----------------------------------------------------------------------------------------------------------


@helper
def divide(s, upper, groups, work):
    """Divide the units of `groups` anew such that all are under their limits: depth first, the largest unit first.

    Largest by the first cost, whatever dimension is over its limit. Returns 1 and does so; 0 if there
    is no way; -1 if `work` did not suffice to know; and the work spent.
    """
    k, dims = len(groups), s.held.shape[1]
    last = dims - 1
    count = 0
    for g in groups:
        unit = s.head[g]
        while unit >= 0:
            count += 1
            unit = s.near[unit, 1]
    # Take all units out: what is held without them, and what is left to place.
    units, keys = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    held, left = np.empty((k, dims), dtype=np.int64), np.zeros(dims, dtype=np.int64)
    count = 0
    for i in range(k):
        for d in range(dims):
            held[i, d] = s.held[groups[i], d]
        unit = s.head[groups[i]]
        while unit >= 0:
            units[count], keys[count] = unit, s.amounts[unit, 0]
            count += 1
            for d in range(dims):
                held[i, d] -= s.amounts[unit, d]
                left[d] += s.amounts[unit, d]
            unit = s.near[unit, 1]
    sort_descending(keys, units, count)
    small = np.empty((count + 1, dims), dtype=np.int64)  # the least amount of the units from each place on
    for d in range(dims):
        small[count, d] = FAR
        for at in range(count - 1, -1, -1):
            small[at, d] = min(small[at + 1, d], s.amounts[units[at], d])
    choice = np.full(count + 1, -1, dtype=np.int64)  # where in `groups` the unit of each depth is
    depth, spent = 0, np.int64(20 * count)
    while depth >= 0:
        if depth == count:
            enough = True
            for i in range(k):
                enough = enough and held[i, last] >= s.lower[groups[i]]
            if enough:
                for at in range(count):
                    take(s, units[at])
                    put(s, units[at], groups[choice[at]])
                return 1, spent
            depth -= 1
        unit, i = units[depth], choice[depth]
        if i >= 0:  # the search comes back: the unit leaves this group, for the next one
            for d in range(dims):
                held[i, d] -= s.amounts[unit, d]
                left[d] += s.amounts[unit, d]
        elif spent > work:
            return -1, spent
        else:
            # A new node. Could all that is left fit, were it sand? Room that is too small for any unit is none.
            spent += 4 * k * dims
            fits = True
            for d in range(dims):
                room, short = np.int64(0), np.int64(0)
                for j in range(k):
                    free = upper[groups[j], d] - held[j, d]
                    if free >= small[depth, d]:
                        room = min(room + free, FAR)
                    if d == last:
                        short += max(0, s.lower[groups[j]] - held[j, d])
                fits = fits and left[d] <= room and short <= left[d]
            if not fits:
                depth -= 1
                continue
        i += 1
        while i < k:
            g = groups[i]
            fits = s.allowed[s.mask[unit], g]
            for d in range(dims):
                fits = fits and held[i, d] + s.amounts[unit, d] <= upper[g, d]
            # Of equal units, the later one is in no earlier group: all other ways are the same but for names.
            if fits and depth > 0 and s.mask[unit] == s.mask[units[depth - 1]] and i < choice[depth - 1]:
                same = True
                for d in range(dims):
                    same = same and s.amounts[unit, d] == s.amounts[units[depth - 1], d]
                fits = not same
            # Of groups that are alike by now, and that units may be in, only the first is tried.
            for j in range(i if fits and len(s.allowed) == 1 else 0):
                same = s.allowed[0, groups[j]] and s.lower[g] == s.lower[groups[j]]
                for d in range(dims):
                    same = same and held[i, d] == held[j, d] and upper[g, d] == upper[groups[j], d]
                if same:
                    fits = False
                    break
            if fits:
                break
            i += 1
        if i == k:
            choice[depth] = -1
            depth -= 1
            continue
        choice[depth] = i
        for d in range(dims):
            held[i, d] += s.amounts[unit, d]
            left[d] -= s.amounts[unit, d]
        depth += 1
        choice[depth] = -1
    return 0, spent


@kernel
def divide_all(s, upper, work):
    """Divide over all groups: as :func:`divide`, and so an exhaustive search."""
    return divide(s, upper, numbers(len(s.head)), work)


@helper
def divide_some(s, upper, g, d, attempt, seed):
    """Divide `g` and one to four others, drawn, that have room for what it has too much. Returns done and work."""
    m = len(s.head)
    count = min(m, 2 + attempt % (_DIVIDED - 1))
    groups = np.full(count, g, dtype=np.int64)
    room, size = upper[g, d] - s.held[g, d], 1
    for _ in range(20 * count):
        if size == count:
            break
        h = draw(seed, m)
        fresh = s.held[h, d] <= upper[h, d]
        for other in groups[:size]:
            fresh = fresh and other != h
        if fresh and (s.held[h, d] < upper[h, d] or size + 1 < count):
            room += upper[h, d] - s.held[h, d]
            groups[size] = h
            size += 1
    if size < count or room < 0:
        return False, np.int64(100 * count)
    verdict, work = divide(s, upper, groups, 4 * _NODES * count * s.held.shape[1])
    return verdict == 1, work + 100 * count


# The operation ----------------------------------------------------------------------------------------------------


@kernel
def bring_under(s, upper, first, last, attempts, seed, work):
    """Bring every group under its limits in dimensions `first` to `last` - 1.

    `attempts` is how often a group that swaps and trades do not help is divided anew. Returns whether all are under
    their limits, and the work that is left: negative if more was spent than there was.
    """
    m = len(s.head)
    by_room, rooms = np.empty(m, dtype=np.int64), np.empty(m, dtype=np.int64)
    turn = 0
    for d in range(first, last):
        for g in range(m):
            rooms[g] = upper[g, d] - s.held[g, d]
            by_room[g] = g
        # Sorted once: moves change few groups, and each move asks for the room that there is by then.
        sort_descending(rooms, by_room, m)
        work -= 40 * m
        for g in range(m):
            attempt = 0
            while s.held[g, d] > upper[g, d]:
                need = s.held[g, d] - upper[g, d]
                done = False
                # All that is too much at once, or else an eighth of that, and so on.
                while not done and need > 0 and work > 0:
                    if need <= rooms[0]:  # who takes loses room; who gives was over its limit
                        done, spent = swap(s, upper, g, d, need, rooms[0])
                        work -= spent
                    if not done and need <= rooms[0]:
                        done, spent = trade(s, upper, g, d, need, turn, 0, by_room)
                        work -= spent
                    need //= 8
                    turn += 1
                while not done and attempt < attempts and work > 0:
                    # All that is too much, a fourth, a sixteenth, and all again: small steps where no large one goes.
                    need = max(1, (s.held[g, d] - upper[g, d]) >> (2 * (attempt % 3)))
                    done, spent = trade(s, upper, g, d, need, turn, draw(seed, m), by_room)
                    work -= spent
                    if not done:
                        done, spent = divide_some(s, upper, g, d, attempt, seed)
                        work -= spent
                    attempt += 1
                    turn += 1
                if not done:
                    return False, work
    return True, work


# Starts -----------------------------------------------------------------------------------------------------------


@helper
def is_before(keys, groups, a, b):
    """Whether place a of a heap of groups comes before b: the least key first, ties to the lower group."""
    return keys[a] < keys[b] or (keys[a] == keys[b] and groups[a] < groups[b])


@helper
def sift_down(keys, groups, size, k):
    """Let what stands at place `k` of a heap of `size` groups, four below each, sink to where it belongs."""
    while 4 * k + 1 < size:
        best = 4 * k + 1
        for other in range(best + 1, min(best + 4, size)):
            if is_before(keys, groups, other, best):
                best = other
        if not is_before(keys, groups, best, k):
            break
        keys[k], keys[best] = keys[best], keys[k]
        groups[k], groups[best] = groups[best], groups[k]
        k = best


@helper
def sift_up(keys, groups, k):
    """Let what stands at place `k` of a heap of groups rise to where it belongs."""
    while k > 0 and is_before(keys, groups, k, (k - 1) // 4):
        above = (k - 1) // 4
        keys[k], keys[above] = keys[above], keys[k]
        groups[k], groups[above] = groups[above], groups[k]
        k = above


@helper
def fullness(s, weight, g, unit):
    """The largest weighted amount of a group, with a unit more (NOBODY: as it is)."""
    most = 0.0
    for d in range(s.held.shape[1]):
        if weight[g, d] > 0.0:
            amount = s.held[g, d] + (s.amounts[unit, d] if unit >= 0 else 0)
            most = max(most, amount * weight[g, d])
    return most


@kernel(turns=30)
def greedy(s, order, upper, weight, kind, slack, most_failed):
    """Put each unit of `order` that is in no group where it is finished first, by `weight`, and where it has room.

    There is a heap of each kind of group, 0, 1, ..., the least full group first. Groups of one kind have the same masks
    and weights; where there would be too many kinds, the caller puts all groups into one. `slack` is how many items
    there are beyond those that groups lack to their fewest. Returns how many units fit nowhere, and stay out, and the
    work; with more than `most_failed` of them it ends. O(log m) a unit and kind where the least full groups have room.
    """
    m, dims = s.held.shape
    last, work = dims - 1, np.int64(40 * m)
    kinds = 0
    for g in range(m):
        kinds = max(kinds, kind[g] + 1)
    first, size = np.zeros(kinds + 1, dtype=np.int64), np.zeros(kinds, dtype=np.int64)
    for g in range(m):
        first[kind[g] + 1] += 1
    for k in range(kinds):
        first[k + 1] += first[k]
    groups, keys = np.empty(m, dtype=np.int64), np.empty(m)
    parked, roomiest = numbers(m), np.full(dims, FAR, dtype=np.int64)
    waiting, since, failed = m, 0, 0
    for unit in order:
        if failed > most_failed:
            break
        if s.group[unit] >= 0:
            continue
        # Rooms only become smaller: what is larger than the largest was when last asked fits nowhere.
        fits = True
        for d in range(dims):
            fits = fits and s.amounts[unit, d] <= roomiest[d]
        if not fits:
            failed += 1
            work += 4 * dims
            continue
        where, looked = -1, False
        while where < 0:
            # Groups that had no room come back once in a while, or when no other has any.
            if since <= 0 or looked:
                for i in range(waiting):
                    g = parked[i]
                    k, at = kind[g], first[kind[g]]
                    groups[at + size[k]], keys[at + size[k]] = g, fullness(s, weight, g, NOBODY)
                    sift_up(keys[at:], groups[at:], size[k])
                    size[k] += 1
                work += 30 * waiting
                waiting, since = 0, 1 + waiting // _SELDOM
            least = np.inf
            work += kinds
            for k in range(kinds):
                at = first[k]
                if size[k] == 0 or (kinds > 1 and not s.allowed[s.mask[unit], groups[at]]):
                    continue
                while size[k] > 0:
                    work += 20 + 6 * dims
                    g = groups[at]
                    # Items that a group lacks to its fewest are kept for it: others may have no more than the slack.
                    wanted = min(max(s.lower[g] - s.held[g, last], 0), s.amounts[unit, last])
                    fits = s.amounts[unit, last] - wanted <= slack and s.allowed[s.mask[unit], g]
                    for d in range(dims):
                        fits = fits and s.held[g, d] + s.amounts[unit, d] <= upper[g, d]
                    if fits:
                        ends = fullness(s, weight, g, unit)
                        if ends < least:
                            least, where = ends, k
                        break
                    if not s.allowed[s.mask[unit], g]:  # it has room, and the next unit may be in it
                        since = 0
                    if s.held[g, last] < upper[g, last]:  # else it is full, and never asked again
                        parked[waiting] = g
                        waiting += 1
                    size[k] -= 1
                    groups[at], keys[at] = groups[at + size[k]], keys[at + size[k]]
                    sift_down(keys[at:], groups[at:], size[k], 0)
            if looked:
                break
            looked = True
        since -= 1
        work += 30 + 4 * dims
        if where < 0:
            failed += 1
            work += 2 * m * dims
            for d in range(dims):
                roomiest[d] = 0
                for g in range(m):
                    roomiest[d] = max(roomiest[d], min(upper[g, d] - s.held[g, d], FAR))
            continue
        at = first[where]
        g = groups[at]
        slack -= s.amounts[unit, last] - min(max(s.lower[g] - s.held[g, last], 0), s.amounts[unit, last])
        put(s, unit, g)
        keys[at] = fullness(s, weight, g, NOBODY)
        sift_down(keys[at:], groups[at:], size[where], 0)
    return failed, work


@helper
def point(s, upper, g, soft, direction):
    """Set ``direction[:, g]``: the room of a group as shares of its limits, a vector of length one."""
    square = soft
    for d in range(len(s.scale)):
        direction[d, g] = 1.0 - s.held[g, d] / max(upper[g, d], 1) if upper[g, d] < FAR else 0.0
        square += direction[d, g] * direction[d, g]
    for d in range(len(s.scale)):
        direction[d, g] /= np.sqrt(square)


@kernel(turns=30)
def resemble(s, order, upper, costs, first, last):
    """Put each unit of `order` that is in no group where its amounts resemble the room most, by the cosine of both.

    For several limits that bind: a unit that is expensive for its tokens goes where tokens are scarce. Dimensions
    before `costs` may be overdrawn. Only groups `first` to `last` - 1 are looked at. Returns how many units fit
    nowhere, and stay out, and the work. O(last - first) a unit.
    """
    dims = s.held.shape[1]
    failed, work = 0, np.int64(40 * (last - first))
    # A group that is nearly full has hardly a direction. Where no cap binds, the cosine is softened for that: without,
    # a sum of costs ends 4 % over the bound.
    soft = 1.0 if dims - costs == 1 else 1e-12  # the number of items alone is no cap
    direction, likeness = np.empty((dims, last)), np.empty(last)
    for g in range(first, last):
        point(s, upper, g, soft, direction)
    for unit in order:
        if s.group[unit] >= 0:
            continue
        most, where = -np.inf, NOBODY
        for d in range(dims):
            amount = s.amounts[unit, d] * s.scale[d]
            for g in range(first, last):
                likeness[g] = amount * direction[d, g] + (likeness[g] if d else 0.0)
        for g in range(first, last):
            if likeness[g] <= most or not s.allowed[s.mask[unit], g]:
                continue
            fits = True
            for d in range(costs, dims):
                fits = fits and s.held[g, d] + s.amounts[unit, d] <= upper[g, d]
            if fits:
                most, where = likeness[g], g
        work += (last - first) * (1 + dims // 2) + 20 * dims
        if where < 0:
            failed += 1
        else:
            put(s, unit, where)
            point(s, upper, where, soft, direction)
    return failed, work
