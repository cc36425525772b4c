"""Starts: prefixes into groups of a given room, each whole where it fits, else split over the widest gaps.

Groups are kept in ascending order of load, so the fullest that has room is found by halving, and the emptiest is first.
A split costs one more copy, so the items of cheap prefixes come last, and fill what the others leave open.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from solvers._jit import helper, kernel
from solvers._loops import first_largest, numbers
from solvers.groups import read_only
from solvers.prefixes._problem import Ints, PrefixProblem

_MOST_GREEDY_STARTS = 24  # greedy sums tried for one gap, each without so many of the largest
_SHARES_LAST = (0, 10, 20, 50)  # per cent of all cost whose prefixes, the cheapest, come last
_FINE = 4000  # bisection ends at 1/4000 of the bound


class Packed(NamedTuple):
    """Items in groups. Writable."""

    group_of: Ints  # int64[n]
    loads: Ints  # int64[m]


class Makespans(NamedTuple):
    """Among which makespans the least is sought that packing reaches."""

    low: int  # proven
    high: int
    fine: int  # how far from the least it may be


@helper
def rise(sorted_groups, place_of, loads, g):
    """Restore the ascending order after the load of `g` has grown."""
    k = place_of[g]
    while k + 1 < len(sorted_groups) and loads[sorted_groups[k + 1]] < loads[g]:
        sorted_groups[k] = sorted_groups[k + 1]
        place_of[sorted_groups[k]] = k
        k += 1
    sorted_groups[k] = g
    place_of[g] = k


@helper
def _fullest_with_room(sorted_groups, loads, most):
    """Return where the last group of at most this load stands, or -1."""
    low, high = 0, len(sorted_groups)
    while low < high:
        middle = (low + high) // 2
        if loads[sorted_groups[middle]] <= most:
            low = middle + 1
        else:
            high = middle
    return low - 1


@helper
def _fill_gap(costs, tokens, rest, size, room, room_tokens, chosen):
    """Mark in `chosen` which of ``rest[:size]``, descending, fill most of the room; return their cost, -1 if none fits.

    Greedy from each of the first items on, the best of these. O(24 size).
    """
    best, begin = np.int64(-1), 0
    # A large item may leave a gap that nothing fills: without it smaller ones may fill the room exactly.
    for start in range(min(size, _MOST_GREEDY_STARTS)):
        left, left_tokens, taken = room, room_tokens, 0
        for k in range(start, size):
            if costs[rest[k]] <= left and tokens[rest[k]] <= left_tokens:
                left -= costs[rest[k]]
                left_tokens -= tokens[rest[k]]
                taken += 1
        if taken > 0 and room - left > best:
            best, begin = room - left, start
        if left == 0:
            break
    left, left_tokens = room, room_tokens
    for k in range(size):
        chosen[k] = 0
        if best >= 0 and k >= begin and costs[rest[k]] <= left and tokens[rest[k]] <= left_tokens:
            left -= costs[rest[k]]
            left_tokens -= tokens[rest[k]]
            chosen[k] = 1
    return best


@helper
def _try_pack(given, tokens, makespan, order, begin, packed):
    """Pack all prefixes in this order so that no load is above `makespan`; False if that did not work out.

    Groups have `begin`, ascending, before anything is in them.
    """
    group_of, loads = packed.group_of, packed.loads
    sorted_groups, place_of = numbers(len(loads)), numbers(len(loads))
    rest, chosen = np.empty(len(group_of), dtype=np.int64), np.empty(len(group_of), dtype=np.int64)
    held = np.zeros(len(loads), dtype=np.int64)  # tokens
    loads[:] = begin
    for p in order:
        # `rest` are the items of the prefix that are in no group yet, and `cost` and `needed` are theirs.
        size, cost = given.starts[p + 1] - given.starts[p], given.sums[p]
        needed = np.int64(0)
        for k in range(size):
            rest[k] = given.starts[p] + k
            needed += tokens.each[rest[k]]
        while size > 0:
            at = _fullest_with_room(sorted_groups, loads, makespan - cost - given.once[p])
            while at >= 0 and held[sorted_groups[at]] + needed + tokens.once[p] > tokens.most:
                at -= 1
            # All that is left, whole, where it fits: the fullest such group keeps the others' gaps wide.
            if at >= 0:
                g, taken = sorted_groups[at], cost
                for k in range(size):
                    chosen[k] = 1
            # Else as much of it as fills the widest gap, or the widest that has room for tokens.
            else:
                g, taken = sorted_groups[0], np.int64(-1)
                for gap in range(len(loads)):
                    g = sorted_groups[gap]
                    room, room_tokens = makespan - loads[g] - given.once[p], tokens.most - held[g] - tokens.once[p]
                    if room_tokens >= 0:
                        taken = _fill_gap(given.costs, tokens.each, rest, size, room, room_tokens, chosen)
                    if taken >= 0 or room < 0 or tokens.most == 0:
                        break
                if taken < 0:
                    return False
            # What was chosen goes there; what is left pays for another copy of the prefix in the next group.
            kept = 0
            held[g] += tokens.once[p]
            for k in range(size):
                if chosen[k] == 1:
                    group_of[rest[k]] = g
                    held[g] += tokens.each[rest[k]]
                    needed -= tokens.each[rest[k]]
                else:
                    rest[kept] = rest[k]
                    kept += 1
            size, cost = kept, cost - taken
            loads[g] += taken + given.once[p]
            rise(sorted_groups, place_of, loads, g)
    return True


@kernel
def try_pack(given, tokens, makespan, order, begin, packed):
    """Pack at one makespan: see above."""
    return _try_pack(given, tokens, makespan, order, begin, packed)


@helper
def least_packed(given, tokens, order, begin, sought, packed):
    """Return the least makespan that packing reaches, by doubling and bisection, and leave the groups so.

    -1 if the highest one is not reached either.
    """
    low, high = sought.low, sought.high
    # By doubling first: it is mostly next to the bound, and a low makespan that fails is found to fail early.
    proven, reached, step = low, low, max(1, low // 256)
    while not _try_pack(given, tokens, reached, order, begin, packed):
        if reached >= high:
            return np.int64(-1)
        proven = reached + 1
        reached = min(high, reached + step)
        step *= 2
    while proven < reached and reached - proven > sought.fine:
        middle = proven + (reached - proven) // 2
        if _try_pack(given, tokens, middle, order, begin, packed):
            reached = middle
        else:
            proven = middle + 1
    # The last one tried may have failed half way, and its groups are what is there.
    _try_pack(given, tokens, reached, order, begin, packed)
    return reached


@kernel
def _least_of_all(given, tokens, order, begin, sought, packed):
    """Pack all prefixes into all groups at the least makespan that is reached."""
    return least_packed(given, tokens, order, begin, sought, packed)


def orders_of(problem: PrefixProblem) -> Iterator[Ints]:
    """Yield orders of prefixes: the largest first, but for the cheapest, which come last."""
    given = problem.given
    size = given.sums + given.once
    cheapest = np.argsort(given.once, kind="stable")
    done = np.cumsum(given.sums[cheapest].astype(object))
    for share in _SHARES_LAST:
        last = np.zeros(len(size), dtype=np.bool_)
        last[cheapest[(done * 100 <= int(done[-1]) * share).astype(np.bool_)]] = True
        if not share or last.any():  # else it is the first order again
            yield read_only(np.lexsort((-size, last)))


def best_pack(problem: PrefixProblem, low: int) -> tuple[Ints, Ints]:
    """Return the group of each item, and loads, of the best of a few orders of prefixes. O(k m log) each, or less."""
    given = problem.given
    tokens, begin = problem.no_tokens, read_only(np.zeros(problem.num_groups, dtype=np.int64))
    best = Packed(np.zeros(len(given.costs), dtype=np.int64), np.full(problem.num_groups, problem.total + 1))
    sought = Makespans(low, max(low, problem.total), low // _FINE)  # at the sum of all costs everything fits
    for order in orders_of(problem):
        packed = Packed(np.zeros(len(given.costs), dtype=np.int64), np.zeros(problem.num_groups, dtype=np.int64))
        _least_of_all(given, tokens, order, begin, sought, packed)
        best = min(best, packed, key=lambda each: int(each.loads.max()))
        if best.loads.max() == low:
            break
    return best


@kernel
def _deal_counts(given, parts, order, places, group_of, loads):
    """Deal parts, `parts` in this order, each to the least loaded group with places for all of it, else for most of it.

    A part has ``prefix, first item, items``; `places` are of groups. O(parts m).
    """
    for k in order:
        p, at, end = parts[k, 0], parts[k, 1], parts[k, 1] + parts[k, 2]
        # A part is split only where no group has places for all of it: then most of it goes where most places are.
        while at < end:
            best = -1
            for g in range(len(loads)):
                if places[g] >= end - at and (best < 0 or loads[g] < loads[best]):
                    best = g
            if best < 0:
                best = first_largest(places)
            # Another part of the prefix may be there already, which has paid for its copy.
            fresh = True
            for i in range(given.starts[p], given.starts[p + 1]):
                fresh = fresh and group_of[i] != best
            if fresh:
                loads[best] += given.once[p]
            for _ in range(min(places[best], end - at)):
                group_of[at] = best
                loads[best] += given.costs[at]
                places[best] -= 1
                at += 1


def deal_counts(problem: PrefixProblem, parts_of: Ints) -> tuple[Ints, Ints]:
    """Return groups of equal counts, and loads, where each prefix is in so many parts of as many items each."""
    given, m, n = problem.given, problem.num_groups, len(problem.given.costs)
    prefix = np.repeat(np.arange(len(parts_of)), parts_of)
    index = np.arange(len(prefix)) - np.repeat(np.cumsum(parts_of) - parts_of, parts_of)
    size = np.diff(given.starts)[prefix]
    ends = [given.starts[prefix] + size * (index + k) // parts_of[prefix] for k in (0, 1)]
    parts = np.stack([prefix, ends[0], ends[1] - ends[0]], axis=1)
    sums = np.concatenate([[0], np.cumsum(given.costs)])
    order = np.argsort(-(sums[ends[1]] - sums[ends[0]] + given.once[prefix]), kind="stable")
    places = np.full(m, n // m, dtype=np.int64)
    places[: n % m] += 1
    group_of, loads = np.full(n, -1, dtype=np.int64), np.zeros(m, dtype=np.int64)
    _deal_counts(given, read_only(parts), read_only(order), places, group_of, loads)
    return group_of, loads
