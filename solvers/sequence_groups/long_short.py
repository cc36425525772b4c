"""Long and short: which items a few ranks share, one after another, before each runs the rest of its own.

All groups of a degree run after those of larger degrees, and groups are aligned, so the ranks of a group reach it at
the same time: a rank takes the sum of what the groups that it is in are given. Sharing costs rank-time, and evens out.
"""

import time
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._budget import work_units
from solvers._jit import kernel
from solvers.arguments import as_budget, as_costs, as_count, as_integer
from solvers.errors import ArgumentError, UsageError
from solvers.groups import group_loads, read_only
from solvers.partition import partition
from solvers.sequence_groups._problem import as_degrees, as_table
from solvers.sequence_groups.types import MOST_RANK_TIME
from solvers.sequence_groups.verify import require
from solvers.types import Proven, SolveStatus

__all__ = ["LongShortResult", "check_long_short", "long_short"]

Ints = NDArray[np.int64]
_HALVINGS = 24


@dataclass(frozen=True, slots=True, eq=False)
class LongShortResult(Proven):
    """Items that are shared and items that are not; of :class:`solvers.types.Proven`, too.

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
    """

    is_shared: NDArray[np.bool_]
    degree_of_item: NDArray[np.int32]
    first_rank_of_item: NDArray[np.int32]
    rank_of_item: NDArray[np.int32]
    loads: Ints


@kernel
def _place_under(target, table, degrees, loads, level, group):
    """Place items in order, each at the least degree that has a group with time for it, the fullest such group.

    Changes `loads`, by rank, and `level` and `group`, by item. Returns whether all had a place.
    """
    for r in range(len(loads)):
        loads[r] = 0
    for i in range(table.shape[1]):
        best, fullest = -1, np.int64(-1)
        for d in range(len(degrees)):
            for g in range(len(loads) // degrees[d]):
                load = loads[g * degrees[d]]
                for r in range(g * degrees[d] + 1, (g + 1) * degrees[d]):
                    load = max(load, loads[r])
                if load > fullest and load + table[d, i] <= target:
                    best, fullest = g, load
            if best >= 0:
                level[i], group[i] = d, best
                for r in range(best * degrees[d], (best + 1) * degrees[d]):
                    loads[r] += table[d, i]
                break
        if best < 0:
            return False
    return True


def long_short(
    alone: ArrayLike,
    shared: ArrayLike,
    group_size: int,
    *,
    degrees: ArrayLike | None = None,
    overhead: int = 0,
    time_budget: float = 0.001,
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
    shared that are too long or find no place; then :func:`solvers.partition` has another look at those that are not.

    The bound is over all choices. Let k be the longest item that is not shared. Then all longer ones are, and with the
    overhead, if there are any, the makespan is at least the mean of the least rank-times (``area``), the time of k or
    of a longer item at its fastest (``longest``) and, where all share, the sum of those and k (``chain``).

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
    work = work_units(as_budget(time_budget))
    order = np.argsort(-table[0], kind="stable")
    ordered = read_only(np.ascontiguousarray(table[:, order]))
    bound, name = _bound(ordered, ranks, extra)
    found = [_unshared(ordered, ranks, time_budget), *_halve(ordered, ranks, extra, bound, work, time_budget)]
    makespan, level, first = min(found, key=lambda each: each[0])
    degree_of_item, first_rank = np.empty(len(order), np.int32), np.empty(len(order), np.int32)
    degree_of_item[order], first_rank[order] = ranks[level], first
    is_shared = degree_of_item > 1
    loads = _loads(ordered, ranks, level, first) + (extra if is_shared.any() else 0)
    return LongShortResult(
        read_only(is_shared), read_only(degree_of_item), read_only(first_rank),
        read_only(np.where(is_shared, np.int32(-1), first_rank)), read_only(loads), makespan=makespan,
        lower_bound=bound, bound_name=name,
        status=SolveStatus.OPTIMAL if makespan == bound else SolveStatus.FEASIBLE, method="halving",
        runtime_s=time.perf_counter() - started,
    )  # fmt: skip


def _prepare(
    alone: ArrayLike, shared: ArrayLike, group_size: int, degrees: ArrayLike | None, overhead: int
) -> tuple[Ints, Ints, int]:
    """Return times by degree, 1 first, the degrees, and the overhead; or raise."""
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
    for d, degree in enumerate(chain):
        quick = rows[d].astype(object) * degree < single
        if quick.any():
            i = int(np.argmax(quick))
            rule = f"take at least {{alone}}[{i}] / {degree} = {single[i]} / {degree} on {degree} ranks"
            raise ArgumentError("shared", rule, int(rows[d, i]), i)
    together = len(single) * (int(rows.max(initial=longest)) * size) + overhead
    if together >= MOST_RANK_TIME:
        raise UsageError(f"{{group_size}} times all {{alone}} and {{shared}} must be below 2**58, got up to {together}")
    rows, chain = (rows[:0], []) if size == 1 else (rows, chain)
    return np.vstack([single[None], rows]), read_only(np.array([1, *chain], dtype=np.int64)), overhead


def _bound(table: Ints, ranks: Ints, overhead: int) -> tuple[int, str]:
    """Return the least, over how many of the longest items are shared, of what that many cost. Times descend."""
    size, n = int(ranks[-1]), table.shape[1]
    alone = np.append(table[0], 0)
    rest = np.append(np.cumsum(table[0][::-1])[::-1], 0)  # of the items from k on
    if len(ranks) == 1:
        ahead = fastest = chain = np.full(n + 1, 2**61)
        ahead[0] = fastest[0] = chain[0] = 0
    else:
        quickest = table[1:].min(axis=0)
        ahead = np.append(0, np.cumsum((table[1:] * ranks[1:, None]).min(axis=0)))
        fastest = np.append(0, np.maximum.accumulate(quickest))
        chain = np.append(0, np.cumsum(quickest)) if len(ranks) == 2 else np.zeros(n + 1, dtype=np.int64)
    parts = np.stack([-(-(ahead + rest) // size), np.maximum(fastest, alone), chain + alone])
    value = parts.max(axis=0)
    value[1:] += overhead
    k = int(value.argmin())
    return int(value[k]), ("area", "longest", "chain")[int(parts[:, k].argmax())]


def _loads(table: Ints, ranks: Ints, level: Ints, first: Ints) -> Ints:
    loads = np.zeros(int(ranks[-1]), dtype=np.int64)
    for d, degree in enumerate(ranks.tolist()):
        here = level == d
        sums = group_loads(table[d][here], (first[here] // degree).astype(np.int32), len(loads) // degree)
        loads += np.repeat(sums, degree)
    return loads


_Found = tuple[int, Ints, Ints]  # makespan; degree's number and first rank of each item


def _unshared(table: Ints, ranks: Ints, budget: float) -> _Found:
    found = partition(table[0], int(ranks[-1]), time_budget=budget / 4)
    return found.makespan, np.zeros(table.shape[1], dtype=np.int64), found.group_of_item.astype(np.int64)


def _halve(table: Ints, ranks: Ints, overhead: int, bound: int, work: int, budget: float) -> list[_Found]:
    """Return what targets that were met come to, the last also with what is not shared partitioned anew."""
    n, size = table.shape[1], int(ranks[-1])
    if n == 0 or len(ranks) == 1:
        return []
    low, high = max(0, bound - overhead) - 1, int(table[0].sum())
    tries = max(4, min(_HALVINGS, work // (2 * n * size * len(ranks))))
    loads, level, group = np.empty(size, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    found: list[_Found] = []
    step = max(1, bound >> 7)
    for _ in range(tries):  # steps that double, up to the first that is met, then halves
        target = (low + high) // 2 if found else min(high, low + step)
        step *= 2
        if _place_under(target, table, ranks, loads, level, group):
            high = int(loads.max())
            found.append((high + overhead * bool(level.any()), level.copy(), group * ranks[level]))
        else:
            low = target
        if high - low <= 1:
            break
    again = []
    for _, places, firsts in found[-2:]:
        mine = np.flatnonzero(places == 0)
        base = _loads(table, ranks, places, firsts)
        base -= group_loads(table[0][mine], firsts[mine].astype(np.int32), size)
        uneven = None if base.min() == base.max() else base
        parted = partition(table[0][mine], size, time_budget=budget / 4, initial_loads=uneven)
        moved = firsts.copy()
        moved[mine] = parted.group_of_item
        again.append((int(_loads(table, ranks, places, moved).max()) + overhead * bool(places.any()), places, moved))
    return found + again


def check_long_short(
    alone: ArrayLike,
    shared: ArrayLike,
    result: LongShortResult,
    *,
    group_size: int,
    degrees: ArrayLike | None = None,
    overhead: int = 0,
) -> None:
    """Check what is shared against the items it was made from, in plain loops; return nothing if all holds.

    Parameters
    ----------
    alone, shared, group_size, degrees, overhead
        As given to :func:`long_short`.
    result : LongShortResult

    Raises
    ------
    CertificateError
        Naming the first violated rule.
    TypeError, ValueError
        If the times themselves are unusable.
    """
    single = as_costs(alone, "alone")[0].tolist()
    listed = [group_size] if degrees is None else np.asarray(degrees).tolist()
    rows = np.asarray(shared)
    times = dict(zip(listed, [rows.tolist()] if rows.ndim == 1 else rows.tolist(), strict=True)) | {1: single}
    loads = [0] * group_size
    require(len(result.degree_of_item) == len(single), f"every item has one place: {len(single)} items")
    places = zip(result.degree_of_item.tolist(), result.first_rank_of_item.tolist(), strict=True)
    for i, (degree, first) in enumerate(places):
        require(degree in times, f"item {i} is on {degree} ranks, which is none of {sorted(times)}")
        require(first % degree == 0 and 0 <= first < group_size, f"item {i} of degree {degree} starts at rank {first}")
        require(bool(result.is_shared[i]) == (degree > 1), f"item {i} is on {degree} ranks, is_shared says otherwise")
        require(result.rank_of_item[i] == (first if degree == 1 else -1), f"rank_of_item is wrong for item {i}")
        for rank in range(first, first + degree):
            loads[rank] += times[degree][i]
    extra = overhead if result.is_shared.any() else 0
    loads = [load + extra for load in loads]
    require(loads == result.loads.tolist(), f"loads are {loads}, not {result.loads.tolist()}")
    require(max(loads) == result.makespan, f"makespan is {max(loads)}, not {result.makespan}")
    proven = None
    order = sorted(range(len(single)), key=lambda i: -single[i])
    wide = {degree: row for degree, row in times.items() if degree > 1}
    for k in range(len(order) + 1 if wide else 1):
        longer, rest = order[:k], [single[i] for i in order[k:]]
        area = sum(min(d * row[i] for d, row in wide.items()) for i in longer) + sum(rest)
        value = max([-(-area // group_size), *rest[:1], *(min(row[i] for row in wide.values()) for i in longer)])
        if set(wide) == {group_size}:
            value = max(value, sum(wide[group_size][i] for i in longer) + max(rest, default=0))
        value += overhead if k else 0
        proven = value if proven is None else min(proven, value)
    require(result.lower_bound <= (proven or 0), f"lower_bound = {result.lower_bound}, but {proven} is proven at most")
    optimal = result.lower_bound == result.makespan
    require((result.status is SolveStatus.OPTIMAL) == optimal, f"status is {result.status.value}")
