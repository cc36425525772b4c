"""Items that share prefixes, in groups of equal counts: parts are dealt to groups, and then exchange items.

With equal counts a part fits only where as many items are missing, so that the one search finds little to do: where
groups have four prefixes each its plans are 20 to 80 % over the bound, and with exchanges 1 %. The fullest group
exchanges items of one prefix for as many of another's, while its load falls. What an exchange leaves is the larger of
the two loads, copies of prefixes charged exactly. Of the items that a prefix has in the fullest group, the largest or
the smallest go; of the other's, those next to each other, in order of cost, that make both loads most alike.
"""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers._loops import first_largest, resort, stable_order
from solvers.bounds import Bound, goal_above
from solvers.groups import read_only
from solvers.partitioning.prefix_bound import PrefixProblem, parts_at

Ints = NDArray[np.int64]

_BELOW = 8  # part of the bound by which prefixes are split into more parts, if the fewest make no good groups
_EMPTIEST = 12  # groups that the fullest one tries; more only where none of them takes anything

# Places in the best exchange: what it leaves, with which group, how many items, and where these stand in both rows
_VALUE, _OTHER, _SIZE, _FROM, _BACK = range(5)


@kernel
def _deal(given, begins, order, places, group_of, loads):
    """Deal parts, in this order, each to the least loaded group with places for all of it, else for most of it.

    Part k has items ``begins[k]`` to ``begins[k + 1] - 1``; `places` are of groups. O(parts m).
    """
    for k in order:
        at, end = begins[k], begins[k + 1]
        p = given.prefix_of[at]
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


def _dealt(problem: PrefixProblem, part: Ints) -> Ints:
    """Deal parts to groups of equal counts, the costliest first."""
    m, n = problem.num_groups, len(part)
    costs = problem.of_parts(part, problem.given.costs, problem.given.once)
    begins = np.searchsorted(part, np.arange(len(costs) + 1)).astype(np.int64)
    places = np.full(m, n // m, dtype=np.int64)
    places[: n % m] += 1
    group_of = np.full(n, -1, dtype=np.int64)
    order = read_only(np.argsort(-costs, kind="stable"))
    _deal(problem.given, read_only(begins), order, places, group_of, np.zeros(m, dtype=np.int64))
    return group_of


@helper
def _list_parts(given, row, count, begins, sums):
    """Fill where each part of a row begins, and sums of the costs before each item; return how many, and the load."""
    parts, once = 0, np.int64(0)
    for k in range(count):
        if k == 0 or given.prefix_of[row[k]] != given.prefix_of[row[k - 1]]:
            begins[parts] = k
            parts += 1
            once += given.once[given.prefix_of[row[k]]]
        sums[k + 1] = sums[k] + given.costs[row[k]]
    begins[parts] = count
    return parts, once + sums[count]


@helper
def _has(given, row, count, p):
    """Whether a row has items of a prefix, by halving."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if row[middle] < given.starts[p]:
            low = middle + 1
        else:
            high = middle
    return low < count and row[low] < given.starts[p + 1]


@helper
def _sort(row, count):
    """Sort a row of which few items are out of place."""
    for k in range(1, count):
        item, at = row[k], k
        while at > 0 and row[at - 1] > item:
            row[at] = row[at - 1]
            at -= 1
        row[at] = item


@helper
def _consider(sums, places, loads, saved, best):
    """Judge exchanges of a part of the fullest group and one of another; return whether one is the best, and the work.

    Of both: sums of costs before each item of the row, where the part begins and ends, the load with a copy of what
    comes, and what the copy of the part has cost, if all of it goes.
    """
    begin, end, other_begin, other_end = places
    a, b = end - begin, other_end - other_begin
    # As many go as come back: all that the smaller part has, then half as many, and so on, the largest or the smallest.
    size, work, better = min(a, b), np.int64(16), False
    while size > 0:
        here = loads[0] - (saved[0] if size == a else 0)
        there = loads[1] - (saved[1] if size == b else 0)
        for at in (begin, end - size):
            gone = sums[0, at + size] - sums[0, at]
            wanted = (there - here) // 2 + gone  # that comes back, so that both loads are alike
            # Sums of neighbours descend, so that the one nearest to what is wanted is found by halving.
            low, high = other_begin, other_end - size
            while low < high:
                middle = (low + high) // 2
                if sums[1, middle + size] - sums[1, middle] <= wanted:
                    high = middle
                else:
                    low = middle + 1
            for back in (low, max(other_begin, low - 1)):
                comes = sums[1, back + size] - sums[1, back]
                value = max(here - gone + comes, there + gone - comes)
                if value < best[_VALUE]:
                    best[_VALUE], best[_SIZE], best[_FROM], best[_BACK] = value, size, at, back
                    better = True
        work += 10
        size //= 2
    return better, work


@kernel
def _exchange(given, rows, counts, loads, low, work):
    """Let the fullest group exchange while it can, until the makespan is `low` or the work is spent.

    The rows of groups are ascending: items of a prefix stand side by side, the largest first.
    """
    m, most = rows.shape
    order, place = stable_order(loads), np.empty(m, dtype=np.int64)
    for k in range(m):
        place[order[k]] = k
    begins, sums = np.empty((2, most + 1), dtype=np.int64), np.zeros((2, most + 1), dtype=np.int64)
    best = np.zeros(5, dtype=np.int64)
    while work > 0:
        g = order[m - 1]
        if loads[g] <= low:
            break
        best[_VALUE], best[_SIZE] = loads[g], 0
        parts, _ = _list_parts(given, rows[g], counts[g], begins[0], sums[0])
        # The emptiest groups first: they have most to offer, and mostly it is one of them.
        for k in range(m - 1):
            if k >= _EMPTIEST and best[_SIZE] > 0:
                break
            h = order[k]
            others, _ = _list_parts(given, rows[h], counts[h], begins[1], sums[1])
            work -= counts[h]
            for i in range(parts):
                p = given.prefix_of[rows[g, begins[0, i]]]
                there = loads[h] + (0 if _has(given, rows[h], counts[h], p) else given.once[p])
                for j in range(others):
                    q = given.prefix_of[rows[h, begins[1, j]]]
                    here = loads[g] + (0 if _has(given, rows[g], counts[g], q) else given.once[q])
                    places = begins[0, i], begins[0, i + 1], begins[1, j], begins[1, j + 1]
                    saved = (given.once[p], given.once[q]) if p != q else (np.int64(0), np.int64(0))
                    better, spent = _consider(sums, places, (here, there), saved, best)
                    best[_OTHER] = h if better else best[_OTHER]
                    work -= spent
        if best[_SIZE] == 0:
            break
        h = best[_OTHER]
        for k in range(best[_SIZE]):
            a, b = best[_FROM] + k, best[_BACK] + k
            rows[g, a], rows[h, b] = rows[h, b], rows[g, a]
        for changed in (g, h):
            _sort(rows[changed], counts[changed])
            _, loads[changed] = _list_parts(given, rows[changed], counts[changed], begins[0], sums[0])
            resort(order, place, loads, changed)


def even_groups(problem: PrefixProblem, low: int, work: int, stop_at: Fraction) -> Ints:
    """Return groups of equal counts: the group of each sorted item. O(parts m), and the work.

    Each prefix begins in as many parts as it has at least at the bound, of as many items each; and if what comes out is
    not close enough to the bound, in those that it would have below it.
    """
    best, least, goal = np.empty(0, dtype=np.int64), problem.total + 1, goal_above(Bound(low, "parts"), stop_at)
    for target in (low, low - low // _BELOW):
        if least > goal:
            found = _exchanged(problem, parts_at(problem, target), goal, work)
            makespan = int(problem.loads(found).max())
            if makespan < least:
                best, least = found, makespan
    return best


def _exchanged(problem: PrefixProblem, parts: Ints, goal: int, work: int) -> Ints:
    """Split each prefix into so many parts, give these to groups, and let groups exchange items."""
    given, m = problem.given, problem.num_groups
    place = np.arange(len(given.costs)) - given.starts[given.prefix_of]  # of an item among those of its prefix
    size = np.diff(given.starts)
    part = (np.cumsum(parts) - parts)[given.prefix_of] + ((place + 1) * parts[given.prefix_of] - 1) // size[
        given.prefix_of
    ]
    group_of = _dealt(problem, part)
    counts = np.bincount(group_of, minlength=m).astype(np.int64)
    held = np.arange(problem.most_items) < counts[:, None]
    rows = np.full(held.shape, -1, dtype=np.int64)
    rows[held] = np.argsort(group_of, kind="stable")
    _exchange(given, rows, counts, problem.loads(group_of), goal, work)
    group_of[rows[held]] = np.repeat(np.arange(m), counts)
    return group_of
