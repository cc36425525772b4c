"""Long and short: which items a few ranks share, one after another, before each runs the rest of its own.

All groups of a degree run after those of larger degrees, and groups are aligned, so the ranks of a group reach it at
the same time: a rank takes the sum of what the groups that it is in are given. Sharing costs rank-time, and evens out.
"""

import time
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._budget import work_units
from solvers._jit import helper, kernel
from solvers.arguments import as_budget, as_costs, as_count, as_int64, as_integer, as_labels
from solvers.errors import ArgumentError, UsageError
from solvers.grouping._problem import as_degrees, as_table
from solvers.grouping.types import MOST_RANK_TIME
from solvers.groups import group_loads, read_only
from solvers.partitioning import partition
from solvers.types import Proven, status_of

Ints = NDArray[np.int64]
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


@helper
def _filled(held, shares, caps, d, i, start, stop):
    """Return in how many 1024ths ranks are full with an item's shares at a level, `start` to `stop`; -1: too full."""
    most = 0
    for q in range(len(caps)):
        for r in range(start, stop):
            holds = held[q, r] + shares[q, d, i]
            if holds > caps[q]:
                return -1
            most = max(most, _parts(holds, caps[q]))
    return most


@helper
def _place_by(even, target, table, shares, caps, ranks, floor, loads, held, level, first):
    """Place items as `_place_under` does, in the group that is busiest, or if `even` in that which is least full."""
    loads[:] = 0
    held[:] = 0
    for i in range(table.shape[1]):
        best, chosen = -1, -1
        for d in range(floor[i], len(ranks)):
            for start in range(0, len(loads), ranks[d]):
                load = loads[start]
                for r in range(start + 1, start + ranks[d]):
                    load = max(load, loads[r])
                if load + table[d, i] > target or not (even or load > chosen):
                    continue
                filled = _filled(held, shares, caps, d, i, start, start + ranks[d])
                rating = 1100 - max(filled, _parts(load + table[d, i], target)) if even else load
                if filled >= 0 and rating > chosen:
                    best, chosen = start, rating
            if best >= 0:
                level[i], first[i] = d, best
                for r in range(best, best + ranks[d]):
                    loads[r] += table[d, i]
                    for q in range(len(caps)):
                        held[q, r] += shares[q, d, i]
                break
        if best < 0:
            return -1
    most = 0
    for load in loads:
        most = max(most, load)
    return most


@helper
def _place_under(target, table, shares, caps, ranks, floor, loads, held, level, first):
    """Place items in order, each at the least level from its `floor` up that has time and room, in the busiest group.

    Where that leaves some no room, in the one that is least full. Changes `loads` and `held`, by rank, and `level` and
    `first`, by item. Returns the largest load, or -1 if one had no place.
    """
    most = _place_by(False, target, table, shares, caps, ranks, floor, loads, held, level, first)
    if most < 0 and len(caps) > 0:
        most = _place_by(True, target, table, shares, caps, ranks, floor, loads, held, level, first)
    return most


@helper
def _on_all(table, shares, caps):
    """Return what all items take on all ranks, and whether these have room; if not, more than they take anyhow."""
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
def _share(table, shares, caps, ranks, least, work, level, first):
    """Halve a target down to `least`, then put one item after another on more ranks; return the smallest makespan.

    `level` and `first` are those of that makespan; `_NONE` if none was found that keeps the caps.
    """
    n, top = table.shape[1], len(ranks) - 1
    loads, floor = np.zeros(ranks[top], dtype=np.int64), np.zeros(n, dtype=np.int64)
    held = np.zeros((len(caps), ranks[top]), dtype=np.int64)
    trial = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    a_try = n * ranks[top] * len(ranks)
    high, known = _on_all(table, shares, caps)
    level[:], first[:] = top, 0
    low, step, met = least - 1, max(1, least >> 7), False
    while high - low > 1 and (work > 0 or not known):  # steps that double, up to the first that is met, then halves
        target = (low + high) // 2 if met else min(high - 1, low + step)
        step *= 2
        work -= a_try
        most = _place_under(target, table, shares, caps, ranks, floor, loads, held, trial[0], trial[1])
        if most >= 0:
            met, known, high = True, True, most
            level[:], first[:] = trial[0], trial[1]
        else:
            low = target
    if not known:
        return _NONE
    i = since = 0
    while since < n and high > least and work > 0:
        raised = floor[i]
        for d in range(top + 1):
            work -= a_try
            if d == raised:
                continue
            floor[i] = d
            most = _place_under(high - 1, table, shares, caps, ranks, floor, loads, held, trial[0], trial[1])
            if most >= 0:
                high, raised, since = most, d, 0
                level[:], first[:] = trial[0], trial[1]
        floor[i] = raised
        since += 1
        i = (i + 1) % n
    return high


@helper
def _fewest_busy(times, loads, first):
    """Give items in order to the rank that is free first; return the largest load."""
    loads[:] = 0
    for i in range(len(times)):
        first[i] = np.argmin(loads)
        loads[first[i]] += times[i]
    return loads.max()


@helper
def _held_whole(shares, caps, first, held):
    """Whether ranks have room for whole items, each on its rank."""
    held[:] = 0
    for i in range(len(first)):
        for q in range(len(caps)):
            held[q, first[i]] += shares[q, 0, i]
            if held[q, first[i]] > caps[q]:
                return False
    return True


@kernel
def _share_enough(table, shares, caps, ranks, starts, enough, overhead, level, first, taken):
    """Let each group of items end by `enough`, all of them whole, else some shared; -1 in `taken` where that fails."""
    loads, most = np.zeros(ranks[-1], dtype=np.int64), starts[0]
    held = np.zeros((len(caps), ranks[-1]), dtype=np.int64)
    for g in range(len(starts) - 1):
        most = max(most, starts[g + 1] - starts[g])
    floor = np.zeros(most, dtype=np.int64)
    for g in range(len(starts) - 1):
        mine = slice(starts[g], starts[g + 1])
        level[mine] = 0
        taken[g] = _fewest_busy(table[0, mine], loads, first[mine])
        if taken[g] > enough or not _held_whole(shares[:, :, mine], caps, first[mine], held):
            taken[g] = _place_under(
                enough - overhead, table[:, mine], shares[:, :, mine], caps, ranks, floor, loads, held, level[mine],
                first[mine],
            )  # fmt: skip
            if taken[g] >= 0 and level[mine].max() > 0:
                taken[g] += overhead


@helper
def _refuted(target, table, ranks):
    """Return why not all items end by `target`, some of them shared: a place in `_REASONS`; 0 if nothing says so."""
    n, top = table.shape[1], len(ranks) - 1
    room = ranks[top] * target
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


@kernel
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
    Halves a target: items, longest first, go where they fit under it, on as few ranks as possible, so that those are
    shared that are too long or find no place. Then one item after another has to be on more ranks, and stays there if
    that ends sooner; and :func:`solvers.partition` has another look at those that are not shared.
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
    found = _solved(ordered, _Room.unlimited(ordered.shape), ranks, extra, time_budget)
    bound, name, makespan, level, first = found
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
        As :func:`long_short` does, or a group that is none.

    Notes
    -----
    A group ends by `enough` where it can with no item shared, or else with those shared, longest first, that find no
    place. What is not so is found as :func:`long_short` finds it; an item is placed where there is time and room.

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
    order = np.lexsort((-table[0], group))
    ordered, held = read_only(table[:, order]), read_only(held[:, :, order])
    starts = read_only(np.concatenate([[0], sizes.cumsum()]))
    level, first = np.zeros((2, len(order)), dtype=np.int64)
    taken = np.zeros(num_groups, dtype=np.int64)
    _share_enough(ordered, held, limits, ranks, starts, enough, extra, level, first, taken)
    for g in np.flatnonzero(taken < 0).tolist():
        mine = slice(starts[g], starts[g + 1])
        room = _Room(read_only(held[:, :, mine]), limits)
        found = _solved(read_only(ordered[:, mine]), room, ranks, extra, time_budget)
        taken[g], level[mine], first[mine] = found[2:]
    taken[taken >= _NONE] = -1
    return *_places(order, ranks[level], first), taken


class _Room(NamedTuple):
    """What a rank holds of items at each level, and at most: int64[q, D + 1, n] and int64[q]."""

    shares: NDArray[np.int64]
    caps: Ints

    @classmethod
    def unlimited(cls, shape: tuple[int, ...]) -> "_Room":
        return cls(read_only(np.zeros((0, *shape), dtype=np.int64)), read_only(np.zeros(0, dtype=np.int64)))

    def keeps(self, level: Ints, first: Ints, ranks: Ints) -> bool:
        """Whether every rank has room for what it gets."""
        if not len(self.caps):
            return True
        held, item = np.zeros((len(self.caps), int(ranks[-1])), dtype=np.int64), np.arange(len(level))
        for place in range(int(ranks[-1])):
            mine = item[(first <= place) & (place < first + ranks[level])]
            held[:, place] = self.shares[:, level[mine], mine].sum(axis=1)
        return bool((held <= self.caps[:, None]).all())


def _as_shares(shares: ArrayLike | None, caps: ArrayLike | None, shape: tuple[int, ...]) -> tuple[Ints, Ints]:
    """Return what ranks hold of items and at most, or raise."""
    if shares is None and caps is None:
        return _Room.unlimited(shape)
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
    rows, chain = (rows[:0], []) if size == 1 else (rows, chain)
    return np.vstack([single[None], rows]), read_only(np.array([1, *chain], dtype=np.int64)), overhead


def _bound(table: Ints, ranks: Ints, overhead: int) -> tuple[int, str, int]:
    """Return the lower bound, which argument proves it, and what is proven where no item is shared."""
    longest, area = int(table[0].max(initial=0)), -(-int(table[0].sum()) // int(ranks[-1]))
    whole = max(longest, area), "area" if area >= longest else "longest"
    if len(ranks) == 1:
        return *whole, whole[0]
    least, reason = _least_target(table, ranks)
    return *min(whole, (int(least) + overhead, _REASONS[reason])), whole[0]


def _solved(table: Ints, room: _Room, ranks: Ints, overhead: int, budget: float) -> tuple[int, str, int, Ints, Ints]:
    """Return the bound, which it is, the makespan, and degree's number and first rank of items, given longest first."""
    bound, name, whole = _bound(table, ranks, overhead)
    found = _shared(table, room, ranks, overhead, bound, budget)
    if whole < found[0]:
        found = min(found, _unshared(table, room, ranks, budget), key=itemgetter(0))
    return bound, name, *found


def _loads(table: Ints, ranks: Ints, level: Ints, first: Ints) -> Ints:
    loads = np.zeros(int(ranks[-1]), dtype=np.int64)
    for d, degree in enumerate(ranks.tolist()):
        here = level == d
        sums = group_loads(table[d][here], (first[here] // degree).astype(np.int32), len(loads) // degree)
        loads += np.repeat(sums, degree)
    return loads


_Found = tuple[int, Ints, Ints]  # makespan; degree's number and first rank of each item


def _unshared(table: Ints, room: _Room, ranks: Ints, budget: float) -> _Found:
    found = partition(table[0], int(ranks[-1]), time_budget=budget / 4)
    level, first = np.zeros(table.shape[1], dtype=np.int64), found.group_of_item.astype(np.int64)
    return (found.makespan if room.keeps(level, first, ranks) else _NONE), level, first


def _shared(table: Ints, room: _Room, ranks: Ints, overhead: int, bound: int, budget: float) -> _Found:
    """Share items, longest first, and then partition those anew that are not shared."""
    level, first = np.zeros((2, table.shape[1]), dtype=np.int64)
    if len(ranks) == 1 or not len(level):
        return _unshared(table, room, ranks, budget)
    work = work_units(as_budget(budget))
    best = int(_share(table, *room, ranks, max(0, bound - overhead), work, level, first))
    best += overhead * bool(level.any())
    mine = np.flatnonzero(level == 0)
    top = len(ranks) - 1
    if best > bound and len(mine) and ((level == 0) | (level == top)).all():  # before them, ranks are alike
        found = partition(table[0][mine], int(ranks[-1]), time_budget=budget / 4)
        again = found.makespan + int(table[top][level == top].sum()) + overhead * bool(level.any())
        anew = first.copy()
        anew[mine] = found.group_of_item
        if again < best and room.keeps(level, anew, ranks):
            first, best = anew, again
    return best, level, first
