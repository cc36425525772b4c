"""Long and short: which items a few ranks share, one after another, before each runs the rest of its own.

All groups of a degree run after those of larger degrees, and groups are aligned, so the ranks of a group reach it at
the same time: a rank's time is the sum over the groups that it is in. Sharing costs rank-time, and evens ranks out.
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
from solvers.grouping._problem import as_degrees, as_table
from solvers.grouping.types import MOST_RANK_TIME
from solvers.groups import group_loads, read_only
from solvers.partitioning import partition
from solvers.types import Proven, status_of

Ints = NDArray[np.int64]
# What refutes a target, by the number that `_refuted` returns; 0: nothing does.
_REASONS = ("", "longest", "area", "chain")
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
        ``"area"``, ``"longest"`` or ``"chain"``: see :func:`long_short`.
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


class Busy(NamedTuple):
    """What ranks have so far; all of it is written."""

    loads: NDArray[np.int64]  # int64[g]
    held: NDArray[np.int64]  # int64[q, g]


class Chosen(NamedTuple):
    """Where items are; all of it is written."""

    level: NDArray[np.int64]  # int64[n]
    first: NDArray[np.int64]  # int64[n]: the first rank of its group


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
def _best_group(even, target, given, busy, d, i):
    """The first rank of the best group of a level for an item, -1 if none has time and room. O(g q)."""
    loads, table = busy.loads, given.table
    best, rated = -1, -1
    for start in range(0, len(loads), given.ranks[d]):
        load = loads[start]
        for r in range(start + 1, start + given.ranks[d]):
            load = max(load, loads[r])
        # Best fit by time: the busiest group that still ends in time, so that emptier ones keep room for what fits
        # nowhere else. Time is compared first, as rooms take longer.
        if load + table[d, i] > target or not (even or load > rated):
            continue
        filled = _filled(given, busy.held, d, i, start)
        # 1024ths of what is used, turned around, so that the least full rates most and every rating is above -1.
        rating = 1100 - max(filled, _parts(load + table[d, i], target)) if even else load
        if filled >= 0 and rating > rated:
            best, rated = start, rating
    return best


@helper
def _place_by(even, target, given, floor, busy, chosen):
    """Place items as `_place_under` does: each in the busiest group, or in the least full one if `even`."""
    loads, ranks = busy.loads, given.ranks
    loads[:] = 0
    busy.held[:] = 0
    for i in range(given.table.shape[1]):
        best = -1
        # Few ranks first: a shared item takes more rank-time, so none is shared more widely than it has to be.
        for d in range(floor[i], len(ranks)):
            best = _best_group(even, target, given, busy, d, i)
            if best >= 0:
                chosen.level[i], chosen.first[i] = d, best
                for r in range(best, best + ranks[d]):
                    loads[r] += given.table[d, i]
                    for q in range(len(given.caps)):
                        busy.held[q, r] += given.shares[q, d, i]
                break
        if best < 0:
            return -1
    most = 0
    for load in loads:
        most = max(most, load)
    return most


@helper
def _place_under(target, given, floor, busy, chosen):
    """Place items in order, each at the least level from its `floor` up that has time and room, in the busiest group.

    Where that leaves some no room, in the one that is least full. Returns the largest load, or -1 if one had no place.
    O(n g D) for each of the two ways.
    """
    most = _place_by(False, target, given, floor, busy, chosen)
    if most < 0 and len(given.caps) > 0:
        # Only where something is capped, and only where the other way fails: filling groups one by one packs time
        # better.
        most = _place_by(True, target, given, floor, busy, chosen)
    return most


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


@helper
def _make_busy(given):
    most = given.ranks[len(given.ranks) - 1]
    return Busy(np.zeros(most, dtype=np.int64), np.zeros((len(given.caps), most), dtype=np.int64))


@helper
def _keep(chosen, trial):
    copy(chosen.level, trial.level)
    copy(chosen.first, trial.first)


@kernel
def _share(given, least, work, chosen):
    """Halve a target down to `least`, then put one item after another on more ranks; return the smallest makespan.

    `chosen` is that makespan's; `_NONE` if none was found that keeps the caps.
    """
    n, top = given.table.shape[1], len(given.ranks) - 1
    floor, busy = np.zeros(n, dtype=np.int64), _make_busy(given)
    trial = Chosen(np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64))
    a_try = n * given.ranks[top] * len(given.ranks)
    # What is always there: all items on all ranks. Where even that breaks a cap, nothing is known yet, and the search
    # goes on until something is found.
    high, known = _on_all(given)
    chosen.level[:] = top
    chosen.first[:] = 0
    # Steps that double, up to the first that is met, then halves: near the bound, where the optimum mostly is.
    low, step, met = least - 1, max(1, least >> 7), False
    while high - low > 1 and (work > 0 or not known):
        target = (low + high) // 2 if met else min(high - 1, low + step)
        step *= 2
        work -= a_try
        most = _place_under(target, given, floor, busy, trial)
        if most >= 0:
            met, known, high = True, True, most
            _keep(chosen, trial)
        else:
            low = target
    if not known:
        return _NONE
    # Which items are shared need not be the longest: each in turn has to be on more ranks, or fewer, while that helps.
    i = since = 0
    while since < n and high > least and work > 0:
        raised = floor[i]
        for d in range(top + 1):
            work -= a_try
            if d == raised:
                continue
            floor[i] = d
            most = _place_under(high - 1, given, floor, busy, trial)
            if most >= 0:
                high, raised, since = most, d, 0
                _keep(chosen, trial)
        floor[i] = raised
        since += 1
        i = (i + 1) % n
    return high


@helper
def _fewest_busy(times, loads, first):
    """Give items in order to the rank that is free first; return the largest load."""
    loads[:] = 0
    for i in range(len(times)):
        # Items come longest first: LPT, ties to the lowest rank.
        first[i] = np.argmin(loads)
        loads[first[i]] += times[i]
    return loads.max()


@helper
def _held_whole(given, first, held):
    """Whether ranks have room for whole items, each on its rank. O(n q)."""
    held[:] = 0
    for i in range(len(first)):
        for q in range(len(given.caps)):
            held[q, first[i]] += given.shares[q, 0, i]
            if held[q, first[i]] > given.caps[q]:
                return False
    return True


@kernel(turns=200)
def _share_enough(given, starts, enough, overhead, chosen, taken):
    """Let each group of items end by `enough`, all of them whole, else some shared; -1 in `taken` where that fails."""
    busy, most = _make_busy(given), starts[0]
    for g in range(len(starts) - 1):
        most = max(most, starts[g + 1] - starts[g])
    floor = np.zeros(most, dtype=np.int64)
    for g in range(len(starts) - 1):
        here = slice(starts[g], starts[g + 1])
        mine = Sharing(given.table[:, here], given.shares[:, :, here], given.caps, given.ranks)
        placed = Chosen(chosen.level[here], chosen.first[here])
        placed.level[:] = 0
        # Most groups end in time with all items whole: LPT is enough to see that, and it shares nothing.
        taken[g] = _fewest_busy(mine.table[0], busy.loads, placed.first)
        # Whole items end too late, or do not fit: share those that find no place.
        if taken[g] > enough or not _held_whole(mine, placed.first, busy.held):
            taken[g] = _place_under(enough - overhead, mine, floor, busy, placed)
            # The overhead is of sharing at all, once.
            if taken[g] >= 0 and placed.level.max() > 0:
                taken[g] += overhead


@helper
def _refuted(target, table, ranks):
    """Return why not all items end by `target`, some of them shared: a place in `_REASONS`; 0 if nothing says so."""
    n, top = table.shape[1], len(ranks) - 1
    room = ranks[top] * target
    # Each item has to be quick enough at some degree, and takes at least the least rank-time among those.
    area = 0  # of all items, each at its least rank-time among the degrees that are quick enough
    for i in range(n):
        least = -1
        for d in range(top + 1):
            if table[d, i] <= target and (least < 0 or ranks[d] * table[d, i] < least):
                least = ranks[d] * table[d, i]
        if least < 0:
            return 1
        area += least
    if area > room:
        return 2
    # The longest item that is not on all ranks comes after all before it, which are: one sum for each that it may be.
    chain = 0
    for k in range(n):  # the first that is not on all ranks: it comes after all before it, which are
        least, quickest = ranks[top] * table[top, k], -1
        for d in range(top):
            if table[d, k] <= target:
                least = min(least, ranks[d] * table[d, k])
                quickest = table[d, k] if quickest < 0 else min(quickest, table[d, k])
        if quickest >= 0 and chain + quickest <= target and area <= room:
            return 0
        chain += table[top, k]
        area += ranks[top] * table[top, k] - least
    return 0 if chain <= target else 3


@kernel(turns=200)
def _least_target(table, ranks):
    """Return the least target that is not refuted, and why the one below is."""
    low, high = -1, 0
    for i in range(table.shape[1]):
        high += table[len(ranks) - 1, i]
    reason = 1
    while high - low > 1:
        middle = (low + high) // 2
        why = _refuted(middle, table, ranks)
        if why:
            low, reason = middle, why
        else:
            high = middle
    return high, reason


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
    it is too long for fewer ranks, or finds no place there. Then one item after another is put on more ranks, and stays
    there if that ends sooner. Last, :func:`solvers.partition` divides the items anew that are not shared.
    O(n * group_size * D) a try.

    The bound is the least target that nothing refutes. If items are shared, all end by a target less the overhead. Each
    item then takes the least rank-time among the degrees at which it is quick enough: there must be one (``longest``),
    and ranks for all (``area``). And let k be the longest item that is not on all ranks: longer ones are, one after
    another, and k comes on top (``chain``).

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
    bound, name, makespan, level, first = _solved(given, extra, time_budget)
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
    _share_enough(given, starts, enough, extra, Chosen(level, first), taken)
    # The few groups that could not end by `enough` decide the step, so that each gets a search of its own.
    for g in np.flatnonzero(taken < 0).tolist():
        mine = slice(starts[g], starts[g + 1])
        part = Sharing(read_only(ordered[:, mine]), read_only(held[:, :, mine]), limits, ranks)
        taken[g], level[mine], first[mine] = _solved(part, extra, time_budget)[2:]
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


def _bound(table: Ints, ranks: Ints, overhead: int) -> tuple[int, str, int]:
    """Return the lower bound, which argument proves it, and what is proven where no item is shared."""
    longest, area = int(table[0].max(initial=0)), -(-int(table[0].sum()) // int(ranks[-1]))
    whole = max(longest, area), "area" if area >= longest else "longest"
    if len(ranks) == 1:
        return *whole, whole[0]
    least, reason = _least_target(table, ranks)
    # Sharing none is always allowed, so the bound is the lesser of the two.
    return *min(whole, (int(least) + overhead, _REASONS[reason])), whole[0]


def _solved(given: Sharing, overhead: int, budget: float) -> tuple[int, str, int, Ints, Ints]:
    """Return the bound, its name, the makespan, and level and first rank of each item; items come longest first."""
    bound, name, whole = _bound(given.table, given.ranks, overhead)
    if len(given.ranks) == 1 or not given.table.shape[1]:
        return bound, name, *_unshared(given, budget)
    found = _shared(given, overhead, bound, budget)
    if whole < found[0]:  # few items, or sharing that is dear: to share none may be better
        found = min(found, _unshared(given, budget), key=itemgetter(0))
    return bound, name, *found


def _loads(table: Ints, ranks: Ints, level: Ints, first: Ints) -> Ints:
    loads = np.zeros(int(ranks[-1]), dtype=np.int64)
    for d, degree in enumerate(ranks.tolist()):
        here = level == d
        sums = group_loads(table[d][here], (first[here] // degree).astype(np.int32), len(loads) // degree)
        loads += np.repeat(sums, degree)
    return loads


_Found = tuple[int, Ints, Ints]  # makespan; level and first rank of each item


def _unshared(given: Sharing, budget: float) -> _Found:
    """Share none."""
    # Searched partitions are worth 7 +- 2 ppm beside LPT (docs/benchmarks/searches.md): a quarter of the budget is
    # enough.
    found = partition(given.table[0], int(given.ranks[-1]), time_budget=budget / 4, stop_at=0)
    level, first = np.zeros(given.table.shape[1], dtype=np.int64), found.group_of_item.astype(np.int64)
    return (found.makespan if _keeps_caps(given, level, first) else _NONE), level, first


def _shared(given: Sharing, overhead: int, bound: int, budget: float) -> _Found:
    """Share items, longest first, and then partition those anew that are not shared."""
    level, first = np.zeros((2, given.table.shape[1]), dtype=np.int64)
    work = work_units(as_budget(budget))
    best = int(_share(given, max(0, bound - overhead), work, Chosen(level, first)))
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
