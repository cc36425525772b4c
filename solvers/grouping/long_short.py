"""Long and short: which items a few ranks share, one after another, before each runs the rest of its own.

All groups of a degree run after those of larger degrees, and groups are aligned, so the ranks of a group reach it at
the same time: a rank's time is the sum over the groups that it is in. Sharing costs rank-time, and evens ranks out.

Told in the order in which it happens. A *target* is a time by which all ranks are to end. Items are placed under it,
the longest first: each at the least degree at which some group has time and room, in the fullest such group
(:func:`_place`). The least target that this meets is found by halving (:func:`_halve`). What is shared then stays so,
and :func:`solvers.partition` divides the rest anew. The bound is in closed form (:func:`_bound`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._budget import work_units
from solvers._jit import helper, kernel
from solvers._loops import copy
from solvers.arguments import as_budget, as_costs, as_count, as_int64, as_integer, as_labels
from solvers.errors import ArgumentError, UsageError
from solvers.grouping.sequence_groups import MOST_RANK_TIME, as_degrees, as_table
from solvers.groups import group_loads, read_only
from solvers.partitioning import partition
from solvers.types import Proven, status_of

Ints = NDArray[np.int64]
_NONE = 1 << 62  # longer than anything takes: no way was found that keeps the caps
_MOST_HELD = 2.0**62  # of all items


@dataclass(frozen=True, slots=True, eq=False)
class LongShortResult(Proven):
    """Items that are shared and items that are not, with a certificate.

    Attributes
    ----------
    is_shared : bool[n], read-only
    degree_of_item, first_rank_of_item : int32[n], read-only
        An item is on ranks ``first_rank`` to ``first_rank + degree - 1``.
    rank_of_item : int32[n], read-only
        The rank of an item that is not shared, -1 of one that is.
    loads : int64[group_size], read-only
        What each rank takes, the overhead included if any item is shared.
    makespan : int
        The largest load.
    bound_name : str
        ``"area"`` or ``"longest"``: see :func:`long_short`.
    lower_bound, status, method, runtime_s
        As of :class:`solvers.PartitionResult`.
    """

    is_shared: NDArray[np.bool_]
    degree_of_item: NDArray[np.int32]
    first_rank_of_item: NDArray[np.int32]
    rank_of_item: NDArray[np.int32]
    loads: Ints
    makespan: int
    method: str


@helper
def _parts(amount, whole):
    """Return how many 1024th parts of a whole an amount is, rounded; both below 2**58."""
    return amount // (whole >> 10) if whole >> 48 else (amount << 10) // max(1, whole)


class Sharing(NamedTuple):
    """What is given; nothing of it is written. Level d is a group of ``ranks[d]`` ranks, level 0 one rank."""

    table: NDArray[np.int64]  # int64[D + 1, n]: time of an item at each level, items longest first
    shares: NDArray[np.int64]  # int64[q, D + 1, n]: what a rank then holds of it
    caps: NDArray[np.int64]  # int64[q]: what it may hold
    ranks: NDArray[np.int64]  # int64[D + 1]


class Placed(NamedTuple):
    """Where items are, and what ranks have so far; all of it is written."""

    level: NDArray[np.int64]  # int64[n]
    first: NDArray[np.int64]  # int64[n]: the first rank of its group
    loads: NDArray[np.int64]  # int64[g]
    held: NDArray[np.int64]  # int64[q, g]


# --- items placed under a target -------------------------------------------------------------------------------------


@helper
def _filled(given, held, d, i, start):
    """Return in how many 1024ths ranks are full with an item at a level, from `start` on; -1: too full. O(q ranks)."""
    most = 0
    for q in range(len(given.caps)):
        for r in range(start, start + given.ranks[d]):
            holds = held[q, r] + given.shares[q, d, i]
            if holds > given.caps[q]:
                return -1
            most = max(most, _parts(holds, given.caps[q]))
    return most


@helper
def _best_group(even, target, given, placed, d, i):
    """The first rank of the best group of a level for an item, -1 if none has time and room. O(g q)."""
    loads, table = placed.loads, given.table
    best, rated = -1, -1
    for start in range(0, len(loads), given.ranks[d]):
        load = loads[start]
        for r in range(start + 1, start + given.ranks[d]):
            load = max(load, loads[r])
        # Best fit by time: the busiest group that still ends in time, so that emptier ones keep room for what fits
        # nowhere else. Time is compared first, as rooms take longer.
        if load + table[d, i] > target or not (even or load > rated):
            continue
        filled = _filled(given, placed.held, d, i, start)
        # 1024ths of what is used, turned around, so that the least full rates most and every rating is above -1.
        rating = 1100 - max(filled, _parts(load + table[d, i], target)) if even else load
        if filled >= 0 and rating > rated:
            best, rated = start, rating
    return best


@helper
def _place_by(even, levels, target, given, placed):
    """Place items in order at one of the first `levels`: each in the busiest group, or the least full one if `even`."""
    loads, held, ranks = placed.loads, placed.held, given.ranks
    loads[:] = 0
    held[:] = 0
    for i in range(given.table.shape[1]):
        best = -1
        # Few ranks first: a shared item takes more rank-time, so none is shared more widely than it has to be.
        for d in range(levels):
            best = _best_group(even, target, given, placed, d, i)
            if best >= 0:
                placed.level[i], placed.first[i] = d, best
                for r in range(best, best + ranks[d]):
                    loads[r] += given.table[d, i]
                    for q in range(len(given.caps)):
                        held[q, r] += given.shares[q, d, i]
                break
        if best < 0:
            return -1
    most = 0
    for load in loads:
        most = max(most, load)
    return most


@helper
def _place(levels, target, given, placed):
    """Place all items under a target; return the largest load, or -1 if one had no place. O(n g D) for either way."""
    most = _place_by(False, levels, target, given, placed)
    if most < 0 and len(given.caps) > 0:
        # Only where something is capped, and only where the other way fails: filling groups one by one packs time
        # better, and the least full group leaves room for more.
        most = _place_by(True, levels, target, given, placed)
    return most


@helper
def _make_placed(level, first, given):
    most = given.ranks[len(given.ranks) - 1]
    return Placed(
        level, first, np.zeros(most, dtype=np.int64), np.zeros((len(given.caps), most), dtype=np.int64)
    )  # fmt: skip


# --- the least target ------------------------------------------------------------------------------------------------


@helper
def _on_all(given):
    """Return what all items take on all ranks, and whether these have room; if not, more than they take anyhow."""
    table, shares, caps = given.table, given.shares, given.caps
    top, known, taken, most = table.shape[0] - 1, True, 0, 1
    for q in range(len(caps)):
        room = caps[q]
        for i in range(table.shape[1]):
            room -= shares[q, top, i]
        known &= room >= 0
    for i in range(table.shape[1]):
        taken += table[top, i]
        longest = table[top, i]
        for d in range(top):
            longest = max(longest, table[d, i])
        most += longest
    return (taken if known else most), known


@kernel
def _halve(given, least, work, level, first):
    """Halve a target down to `least`; return the smallest makespan found, with its places in `level` and `first`.

    `_NONE` if none was found that keeps the caps.
    """
    n, levels = given.table.shape[1], len(given.ranks)
    placed = _make_placed(np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64), given)
    # What is always there: all items on all ranks. Where even that breaks a cap, nothing is known yet: then targets
    # rise from the bound by steps that double, until one is met. Far above it nothing would spread items over ranks.
    high, known = _on_all(given)
    low, step = least - 1, max(1, least >> 7)
    level[:] = levels - 1
    first[:] = 0
    # One part in 16,384 is less than dividing the rest anew gains.
    while high - low > (max(1, high >> 14) if known else 1) and (work > 0 or not known):
        target = (low + high) // 2 if known else min(high - 1, low + step)
        step *= 2
        work -= n * given.ranks[levels - 1] * levels
        most = _place(levels, target, given, placed)
        if most >= 0:
            known, high = True, most
            copy(level, placed.level)
            copy(first, placed.first)
        else:
            low = target
    return high if known else _NONE


@kernel(turns=200)
def _halve_enough(given, starts, enough, overhead, level, first, taken):
    """Let each group of items end by `enough`, all of them whole, else some shared; -1 in `taken` where that fails."""
    for g in range(len(starts) - 1):
        here = slice(starts[g], starts[g + 1])
        mine = Sharing(given.table[:, here], given.shares[:, :, here], given.caps, given.ranks)
        placed = _make_placed(level[here], first[here], given)
        taken[g] = _place(np.int64(1), enough, mine, placed)
        if taken[g] < 0:  # whole items end too late, or do not fit: share those that find no place
            taken[g] = _place(len(given.ranks), enough - overhead, mine, placed)
            if taken[g] >= 0 and placed.level.max() > 0:
                taken[g] += overhead  # of sharing at all, once


def long_short(
    alone: ArrayLike,
    shared: ArrayLike,
    group_size: int,
    *,
    degrees: ArrayLike | None = None,
    overhead: int = 0,
    time_budget: float = 0.0002,
) -> LongShortResult:
    """Share the items that have to be among all ranks of a group, or some, so that all end together.

    Parameters
    ----------
    alone : int64[n]
        Time of each item on one rank, non-negative.
    shared : int64[n] or int64[D, n]
        Time of each item on the ranks of a group of each degree: no less than ``alone / degree``.
    group_size : int
        Ranks.
    degrees : int64[D], optional
        On how many ranks an item may be shared: at least 2, each dividing the next, the largest `group_size`. By
        default on all.
    overhead : int
        Charged once if any item is shared.
    time_budget : float
        Seconds' worth of work, counted and not timed.

    Returns
    -------
    LongShortResult

    Raises
    ------
    TypeError, ValueError
        Arguments of the wrong type, shape or range, whose sums do not fit, or a shared item in less than no loss.

    Notes
    -----
    Halves a target. Items, longest first, go where they fit under it, on as few ranks as possible: an item is shared if
    it is too long for fewer ranks, or finds no place there. Then :func:`solvers.partition` divides the items anew that
    are not shared. O(n * group_size * D) a try.

    The bound: let k be the longest item that is not on all ranks. Longer ones are, one after another; then comes k at
    its quickest other degree (``longest``), and the rank-time of k and all that are shorter (``area``). The least of
    that over all k is the bound. With several degrees also the least target at which each item takes its least
    rank-time among the degrees that are quick enough, and ranks have time for all (``area``). O(n D log).

    References
    ----------
    Long and short subsequences of encoders: MegaScale-Omni (2026, arXiv:2605.08962).

    Examples
    --------
    >>> result = long_short([40, 5, 5, 5, 5], [11, 2, 2, 2, 2], 4)
    >>> result.is_shared.tolist(), result.makespan, result.lower_bound
    ([True, False, False, False, False], 16, 16)
    """
    started = time.perf_counter()
    table, ranks, extra = _prepare(alone, shared, group_size, degrees, overhead)
    order = np.argsort(-table[0], kind="stable")
    ordered = read_only(table[:, order])
    given = Sharing(ordered, *_no_caps(ordered.shape), ranks)
    bound, name, (makespan, level, first) = _solved(given, extra, time_budget)
    degree_of_item, first_rank = _places(order, ranks[level], first)
    is_shared = degree_of_item > 1
    loads = _loads(ordered, ranks, level, first) + (extra if is_shared.any() else 0)
    return LongShortResult(
        read_only(is_shared), read_only(degree_of_item), read_only(first_rank),
        read_only(np.where(is_shared, np.int32(-1), first_rank)), read_only(loads), makespan=makespan,
        lower_bound=bound, bound_name=name,
        status=status_of(makespan, bound), method="halving",
        runtime_s=time.perf_counter() - started,
    )  # fmt: skip


def long_short_groups(
    alone: ArrayLike,
    shared: ArrayLike,
    group_of_item: ArrayLike,
    num_groups: int,
    group_size: int,
    *,
    degrees: ArrayLike | None = None,
    overhead: int = 0,
    enough: int = 0,
    shares: ArrayLike | None = None,
    caps: ArrayLike | None = None,
    time_budget: float = 0.0002,
) -> tuple[NDArray[np.int32], NDArray[np.int32], Ints]:
    """Share items in each of many groups of ranks that all wait for the slowest.

    Parameters
    ----------
    alone, shared, group_size, degrees, overhead
        As of :func:`long_short`, items of all groups.
    group_of_item : int32[n]
        From 0 to ``num_groups - 1``.
    num_groups : int
    enough : int
        A time by which no group has to end.
    shares : int64[q, D + 1, n], optional
        What one rank holds of an item, of each of q quantities: of a whole one, then of one that is shared by each
        degree, ascending.
    caps : int64[q], optional
        What a rank holds at most of each quantity.
    time_budget : float
        Of each group that is searched, as of :func:`long_short`.

    Returns
    -------
    degree_of_item, first_rank_of_item : int32[n]
        Ranks are counted from 0 in each group.
    makespan_of_group : int64[num_groups]
        -1 where nothing was found that keeps the caps. Where all items fit if all ranks share them, something is.

    Raises
    ------
    TypeError, ValueError
        As :func:`long_short` does, or a group out of range.

    Notes
    -----
    A group ends by `enough` with no item shared, if it can; else it shares the items that find no place, longest first.
    All other groups are searched as :func:`long_short` searches. An item is placed where there is time and room.

    Examples
    --------
    >>> degree, first, makespan = long_short_groups([40, 5, 9, 8], [11, 2, 3, 2], [0, 0, 1, 1], 2, 4, enough=16)
    >>> degree.tolist(), makespan.tolist()
    ([4, 1, 1, 1], [16, 9])
    """
    num_groups, enough = as_count("num_groups", num_groups), as_integer("enough", enough)
    group = as_labels("group_of_item", group_of_item, num_groups)
    sizes = np.bincount(group, minlength=num_groups)
    table, ranks, extra = _prepare(alone, shared, group_size, degrees, overhead, int(sizes.max()))
    if len(group) != table.shape[1]:
        raise ArgumentError("group_of_item", f"have one entry for each of {table.shape[1]} items", len(group))
    held, limits = _as_shares(shares, caps, table.shape)
    # Group by group, in each the longest first: the kernel walks every group as one slice.
    order = np.lexsort((-table[0], group))
    ordered, held = read_only(table[:, order]), read_only(held[:, :, order])
    starts = read_only(np.concatenate([[0], sizes.cumsum()]))
    level, first = np.zeros((2, len(order)), dtype=np.int64)
    taken = np.zeros(num_groups, dtype=np.int64)
    given = Sharing(ordered, held, limits, ranks)
    _halve_enough(given, starts, enough, extra, level, first, taken)
    # The few groups that could not end by `enough` decide the step, so that each gets a search of its own.
    for g in np.flatnonzero(taken < 0).tolist():
        mine = slice(starts[g], starts[g + 1])
        part = Sharing(read_only(ordered[:, mine]), read_only(held[:, :, mine]), limits, ranks)
        taken[g], level[mine], first[mine] = _solved(part, extra, time_budget)[2]
    taken[taken >= _NONE] = -1
    return *_places(order, ranks[level], first), taken


def _no_caps(shape: tuple[int, ...]) -> tuple[Ints, Ints]:
    """Return shares and caps of no quantity."""
    return read_only(np.zeros((0, *shape), dtype=np.int64)), read_only(np.zeros(0, dtype=np.int64))


def _keeps_caps(given: Sharing, level: Ints, first: Ints) -> bool:
    """Whether every rank has room for what it gets."""
    if not len(given.caps):
        return True
    num_ranks, item = int(given.ranks[-1]), np.arange(len(level))
    held = np.zeros((len(given.caps), num_ranks), dtype=np.int64)
    for place in range(num_ranks):
        mine = item[(first <= place) & (place < first + given.ranks[level])]
        held[:, place] = given.shares[:, level[mine], mine].sum(axis=1)
    return bool((held <= given.caps[:, None]).all())


def _as_shares(shares: ArrayLike | None, caps: ArrayLike | None, shape: tuple[int, ...]) -> tuple[Ints, Ints]:
    """Return what ranks hold of items and at most, or raise."""
    if shares is None and caps is None:
        return _no_caps(shape)
    limits = np.minimum(as_int64("caps", [] if caps is None else caps), int(_MOST_HELD))
    held = np.asarray([] if shares is None else shares)
    if held.dtype.kind not in "iu" or held.shape != (len(limits), *shape):
        rule = f"be integers of shape {(len(limits), *shape)}: a table for each of {{caps}}, by degree and item"
        raise ArgumentError("shares", rule, f"{held.dtype} of {held.shape}")
    if len(limits) and limits.min() < 0:
        where = int(np.argmin(limits))
        raise ArgumentError("caps", "be >= 0", int(limits[where]), where)
    if held.size and (held.min() < 0 or held.max(axis=1).sum(axis=1, dtype=np.float64).max() >= _MOST_HELD):
        wrong = held.min() if held.min() < 0 else held.max()
        raise ArgumentError("shares", "be >= 0, and their sums below 2**62", int(wrong))
    return held.astype(np.int64), read_only(limits)


def _places(order: Ints, degree: Ints, first: Ints) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return degrees and first ranks by item, given them in `order`."""
    degree_of_item, first_rank = np.empty((2, len(order)), dtype=np.int32)
    degree_of_item[order], first_rank[order] = degree, first
    return degree_of_item, first_rank


def _prepare(
    alone: ArrayLike,
    shared: ArrayLike,
    group_size: int,
    degrees: ArrayLike | None,
    overhead: int,
    most: int | None = None,
) -> tuple[Ints, Ints, int]:
    """Return times by degree, 1 first, the degrees, and the overhead; or raise. So many items are in a group."""
    size = as_count("group_size", group_size)
    overhead = as_integer("overhead", overhead)
    single, longest, _ = as_costs(alone, "alone")
    given = np.array([size], dtype=np.int64) if degrees is None else as_degrees(degrees)
    chain = sorted(given.tolist())
    nested = all(b % a == 0 for a, b in pairwise(chain)) and chain[-1] == size and chain[0] >= min(2, size)
    if not nested:
        rule = f"be >= 2, each divide the next, and end at {{group_size}} = {size}"
        raise ArgumentError("degrees", rule, given.tolist())
    rows = as_table("shared", shared, len(chain), len(single), "alone")[np.argsort(given)]
    together = (len(single) if most is None else most) * (int(rows.max(initial=longest)) * size) + overhead
    if together >= MOST_RANK_TIME:
        raise UsageError(f"{{group_size}} times all {{alone}} and {{shared}} must be below 2**58, got up to {together}")
    quick = rows * np.array([chain]).T < single
    if quick.any():
        d, i = (int(at) for at in np.argwhere(quick)[0])
        rule = f"take at least {{alone}}[{i}] / {chain[d]} = {single[i]} / {chain[d]} on {chain[d]} ranks"
        raise ArgumentError("shared", rule, int(rows[d, i]), i)
    # On one rank there is nothing to share.
    rows, chain = (rows[:0], []) if size == 1 else (rows, chain)
    return np.vstack([single[None], rows]), read_only(np.array([1, *chain], dtype=np.int64)), overhead


@kernel
def _least_by_area(table, ranks, overhead, low):
    """Return the least target from `low` on at which items have a quick degree each, and ranks for the rank-times."""
    n, levels, size = table.shape[1], len(ranks), ranks[len(ranks) - 1]
    high = overhead
    for i in range(n):
        high += table[levels - 1, i]
    low -= 1
    while high - low > 1:
        target = (low + high) // 2
        area, quick = 0, True
        for i in range(n):
            least = ranks[0] * table[0, i] if table[0, i] <= target else -1
            for d in range(1, levels):
                taken = ranks[d] * table[d, i]
                if table[d, i] + overhead <= target and (least < 0 or taken < least):
                    least = taken
            quick &= least >= 0
            area += max(0, least)
        if quick and area <= size * target:
            high = target
        else:
            low = target
    return high


def _bound(table: Ints, ranks: Ints, overhead: int) -> tuple[int, str]:
    """Return the lower bound, and which argument proves it; items come longest first."""
    shared = np.append(0, np.cumsum(table[-1] if len(ranks) > 1 else 0 * table[0]))  # of the first k, on all ranks
    left = -(-(table[0].sum() - np.append(0, np.cumsum(table[0]))) // ranks[-1])  # and the others, spread evenly
    longest = np.append(table[:-1].min(axis=0) if len(ranks) > 1 else table[0], 0)
    bounds = shared + np.maximum(longest, left) + overhead * (np.arange(len(shared)) > 0)
    k = int(np.argmin(bounds)) if len(ranks) > 1 else 0
    found = int(bounds[k])
    if len(ranks) > 2 and (by_area := int(_least_by_area(table, ranks, overhead, found))) > found:
        return by_area, "area"  # of one degree this proves no more
    return found, "longest" if longest[k] > left[k] else "area"


_Found = tuple[int, Ints, Ints]  # makespan; level and first rank of each item


def _solved(given: Sharing, overhead: int, budget: float) -> tuple[int, str, _Found]:
    """Return the bound, its name, and what was found; items come longest first."""
    bound, name = _bound(given.table, given.ranks, overhead)
    if len(given.ranks) == 1 or not given.table.shape[1]:
        return bound, name, _unshared(given, budget)
    found = _shared(given, overhead, bound, budget)
    whole = max(int(given.table[0, 0]), -(-int(given.table[0].sum()) // int(given.ranks[-1])))
    if whole < found[0]:  # few items, or sharing that is dear: to share none may be better
        found = min(found, _unshared(given, budget), key=itemgetter(0))
    return bound, name, found


def _unshared(given: Sharing, budget: float) -> _Found:
    """Share none."""
    # Searched partitions are worth 7 +- 2 ppm beside LPT (that row of benchmarks/ablation.py): a quarter of the budget
    # is enough.
    found = partition(given.table[0], int(given.ranks[-1]), time_budget=budget / 4, stop_at=0)
    level, first = np.zeros(given.table.shape[1], dtype=np.int64), found.group_of_item.astype(np.int64)
    return (found.makespan if _keeps_caps(given, level, first) else _NONE), level, first


def _shared(given: Sharing, overhead: int, bound: int, budget: float) -> _Found:
    """Share items, longest first, and then partition those anew that are not shared."""
    level, first = np.zeros((2, given.table.shape[1]), dtype=np.int64)
    best = int(_halve(given, max(0, bound - overhead), work_units(as_budget(budget)), level, first))
    best += overhead * bool(level.any())
    mine = np.flatnonzero(level == 0)
    table, top = given.table, len(given.ranks) - 1
    if best > bound and len(mine) and ((level == 0) | (level == top)).all():  # before them, ranks are alike
        found = partition(table[0][mine], int(given.ranks[-1]), time_budget=budget / 4, stop_at=0)
        again = found.makespan + int(table[top][level == top].sum()) + overhead * bool(level.any())
        anew = first.copy()
        anew[mine] = found.group_of_item
        if again < best and _keeps_caps(given, level, anew):
            first, best = anew, again
    return best, level, first


def _loads(table: Ints, ranks: Ints, level: Ints, first: Ints) -> Ints:
    loads = np.zeros(int(ranks[-1]), dtype=np.int64)
    for d, degree in enumerate(ranks.tolist()):
        here = level == d
        sums = group_loads(table[d][here], (first[here] // degree).astype(np.int32), len(loads) // degree)
        loads += np.repeat(sums, degree)
    return loads
