"""Micro-batches of items that share prefixes: a prefix counts once in every micro-batch that holds any of its items.

Prefixes are split into parts of at most `cap` tokens, in the two ways of :mod:`solvers.partitioning.prefixes`, and
parts are scheduled like any other samples. What counts is what comes out, as parts of one prefix may meet in a
micro-batch.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers.arguments import as_costs
from solvers.errors import InfeasibleError, SolverError
from solvers.groups import read_only
from solvers.packing._arguments import as_cap, as_choice, as_slots, check_bins, check_fits, slots_for
from solvers.packing._schedule_types import ScheduleResult
from solvers.packing.schedule import schedule_micro_batches
from solvers.partitioning.prefix_bound import PrefixProblem, Tokens, parts_bound, prepare, rooms_filled
from solvers.partitioning.prefixes import orders_of, pack_low, split_apart
from solvers.types import status_of

__all__ = ["prefix_schedule_bound", "schedule_with_prefixes"]

Ints = NDArray[np.int64]

_SYNCS = ("micro_batch", "step")

_CLOSE = 256
"""Within one part in so many of the bound nothing better is looked for."""

_BUDGET = 0.01
"""Seconds' worth of search for each way to split."""

_SHARES = (1, 2, 4)
"""Parts are filled up to the bound, and where slots count to a half and a quarter of it: so slots are lower."""

_MOST_PACKED = 2
"""Numbers of slots that prefixes are packed into; one, where the fewest are asked for."""

_STEADY = 8
"""Numbers of slots, one after another, before steps become larger."""


def schedule_with_prefixes(
    costs: ArrayLike, tokens: ArrayLike, num_ranks: int, cap: int, prefix: ArrayLike | Sequence[int | str | None],
    prefix_costs: ArrayLike, prefix_tokens: ArrayLike, *, sync: str = "micro_batch",
    num_slots: int | str | None = None, min_slots: int = 1, slots_multiple_of: int = 1, allow_empty: bool = False,
) -> ScheduleResult:  # fmt: skip
    """Cut a step into micro-batches of at most `cap` tokens, in each of which a prefix counts once.

    Parameters
    ----------
    costs, tokens : int64[n]
        Of each item besides its prefix.
    num_ranks : int
    cap : int
        Tokens of a micro-batch at most, prefixes included.
    prefix : int[n] or str[n]
        Items of equal keys share a prefix.
    prefix_costs, prefix_tokens : int64[n]
        Of each item's prefix, the same for all items of one.
    sync : str
        ``"micro_batch"``, the sum over slots of the slowest rank; or ``"step"``, the largest sum of a rank.
    num_slots : int or "fewest", optional
        K; by default the fastest of a few. ``"fewest"`` are the fewest that a packing was found for.
    min_slots, slots_multiple_of : int
        What K is at least, and a multiple of.
    allow_empty : bool
        Whether a micro-batch may hold nothing.

    Returns
    -------
    ScheduleResult
        Rank and slot of each item; costs and tokens of micro-batches, each prefix once in each; and a bound, named
        ``"parts"``, that holds for every number of slots. :func:`check_schedule` checks all but that proof.

    Raises
    ------
    InfeasibleError
        An item that exceeds the cap with its prefix, or fewer items than micro-batches.
    SolverError
        If no packing was found, which proves nothing.

    Notes
    -----
    Deterministic. A packing takes O(k m) and O(n log n), and each number of slots some 12 of them for each of up to 4
    orders. The bound is :func:`prefix_schedule_bound`.
    """
    started = time.perf_counter()
    asked = as_slots(num_slots, min_slots, slots_multiple_of)
    least = asked if isinstance(asked, int) else slots_for(1, min_slots, slots_multiple_of)
    check_bins(num_ranks, least)  # before anything of that size is made
    problem, held = _read(costs, tokens, num_ranks, cap, prefix, prefix_costs, prefix_tokens)
    as_choice("sync", sync, _SYNCS)
    n = len(problem.order)
    if not n:
        return _result(problem, held, _Schedule(np.empty(0, dtype=np.int64), least, 0), sync, 0, started)
    if n < num_ranks * least and not allow_empty:
        raise InfeasibleError(
            f"{num_ranks} ranks of {least} {{slots}} are {num_ranks * least} micro-batches, but there are {n} "
            f"{{items}}, short by {num_ranks * least - n}", remedy="{allow_empty=True} permits empty micro-batches",
        )  # fmt: skip
    bins = _bins(problem, held)
    low = parts_bound(problem, bins)
    needed = int(held.each.sum() + (held.once * bins).sum())
    fewest = slots_for(-(-needed // (cap * num_ranks)), least, slots_multiple_of)
    # With a micro-batch for each item all fit; more are never of use, and where none may be empty not to be had.
    most = slots_for(n, least, slots_multiple_of)
    most = most if allow_empty else n // num_ranks // slots_multiple_of * slots_multiple_of
    found = _best(problem, held, _Asked(sync, asked, fewest, most, slots_multiple_of, allow_empty), low)
    if found is None:
        raise SolverError(
            f"found no packing under {{cap}} = {cap} of all {{items}} with their prefixes: give more {{slots}} or a "
            "larger {cap}"
        )
    return _result(problem, held, found, sync, low, started)


def prefix_schedule_bound(
    costs: ArrayLike, tokens: ArrayLike, num_ranks: int, cap: int, prefix: ArrayLike | Sequence[int | str | None],
    prefix_costs: ArrayLike, prefix_tokens: ArrayLike,
) -> int:  # fmt: skip
    """Return what any schedule takes at least, whatever its slots: some rank's sum of micro-batches.

    On each rank a prefix counts once at least, and in all as often as its tokens need micro-batches.
    """
    problem, held = _read(costs, tokens, num_ranks, cap, prefix, prefix_costs, prefix_tokens)
    return parts_bound(problem, _bins(problem, held)) if len(problem.order) else 0


def _read(
    costs: ArrayLike, tokens: ArrayLike, num_ranks: int, cap: int, prefix: ArrayLike | Sequence[int | str | None],
    prefix_costs: ArrayLike, prefix_tokens: ArrayLike,
) -> tuple[PrefixProblem, Tokens]:  # fmt: skip
    problem = prepare(costs, num_ranks, False, prefix, prefix_costs)
    each, once = as_costs(tokens, "tokens")[0], as_costs(prefix_tokens, "prefix_tokens")[0]
    first = problem.order[problem.given.starts[:-1]]
    whole = each + once
    check_fits(whole, int(whole.max(initial=0)), cap, "tokens")
    return problem, Tokens(read_only(each[problem.order]), read_only(once[first]), as_cap(cap))


def _bins(problem: PrefixProblem, held: Tokens) -> Ints:
    """Return in how many micro-batches each prefix is at least: int64[k]."""
    return rooms_filled(np.add.reduceat(held.each, problem.given.starts[:-1]), held.once, held.most)


class _Asked(NamedTuple):
    """What a schedule has to keep."""

    sync: str
    num_slots: int | Literal["fewest"] | None
    fewest: int  # with fewer slots there is no schedule
    most: int
    multiple: int
    allow_empty: bool


class _Schedule(NamedTuple):
    """Items in micro-batches."""

    bin_of: Ints  # int64[n]: of each sorted item, ``rank * num_slots + slot``
    num_slots: int
    value: int


def _best(problem: PrefixProblem, held: Tokens, asked: _Asked, low: int) -> _Schedule | None:
    """Split prefixes in one way after another, and return the schedule that takes least."""
    best: _Schedule | None = None
    for share in _SHARES if asked.sync == "micro_batch" else _SHARES[:1]:
        best = _better(asked, best, _scheduled(problem, held, split_apart(problem, held, low // share), asked))
    found = 0
    for count in _numbers(asked, best):
        close = best is not None and best.value <= low + low // _CLOSE
        if found == (1 if asked.num_slots == "fewest" else _MOST_PACKED) or (close and asked.num_slots != "fewest"):
            break
        bins = problem.num_groups * count
        packings = (pack_low(problem, held, order, bins, problem.total // bins, problem.total)
                    for order in orders_of(problem))  # fmt: skip
        packed = next((each for each in packings if each is not None), None)
        if packed is not None:
            asked_so = asked._replace(num_slots=count)
            schedule = _scheduled(problem, held, problem.parts(packed), asked_so)
            best = _better(asked, best, schedule or _scheduled(problem, held, packed, asked_so))
            found += 1
    return best


def _better(asked: _Asked, best: _Schedule | None, found: _Schedule | None) -> _Schedule | None:
    """Return the schedule of the fewest slots, if that is what was asked for, and of these what takes least."""
    slots = asked.num_slots == "fewest"
    both = [each for each in (best, found) if each is not None]
    return min(both, key=lambda each: (each.num_slots if slots else 0, each.value), default=None)


def _numbers(asked: _Asked, best: _Schedule | None) -> Iterator[int]:
    """Yield numbers of slots to pack prefixes into, which is to be done for the first few that have room.

    The best's and more, or if there is none all there may be; those that are fewer where the fewest are asked for.
    """
    if isinstance(asked.num_slots, int):
        yield asked.num_slots
        return
    count, last = asked.fewest, asked.most
    if best is not None and asked.num_slots is None:
        count = best.num_slots
    elif best is not None:
        last = best.num_slots
    step, tried = asked.multiple, 0
    while count < last:
        yield count
        tried += 1
        step = step * 2 if tried > _STEADY else step
        count += step
    if asked.fewest <= last:
        yield last


def _scheduled(problem: PrefixProblem, held: Tokens, unit: Ints, asked: _Asked) -> _Schedule | None:
    """Schedule units, which are parts or several parts together; None if no schedule is found."""
    given, num_ranks, slots = problem.given, problem.num_groups, asked.num_slots
    if isinstance(slots, int) and slots < asked.fewest:
        return None
    total = int(problem.sums(unit, held.each, held.once, len(unit)).sum())
    count = num_ranks * max(asked.fewest, -(-total // (held.most * num_ranks)))
    while True:
        unit = unit if asked.allow_empty else _as_many(problem, unit, count)
        try:
            found = schedule_micro_batches(
                problem.of_parts(unit, given.costs, given.once), problem.of_parts(unit, held.each, held.once),
                num_ranks, held.most, sync=asked.sync, num_slots=slots, min_slots=asked.fewest,
                slots_multiple_of=asked.multiple, allow_empty=asked.allow_empty, time_budget=_BUDGET,
            )  # fmt: skip
            break
        except SolverError:
            if asked.allow_empty or count >= len(unit):
                return None
            count = min(len(unit), 2 * count)
    bin_of = (found.rank_of_item.astype(np.int64) * found.num_slots + found.slot_of_item)[unit]
    table = problem.sums(bin_of, given.costs, given.once, num_ranks * found.num_slots).reshape(num_ranks, -1)
    value = table.max(axis=0).sum() if asked.sync == "micro_batch" else table.sum(axis=1).max()
    return _Schedule(bin_of, found.num_slots, int(value))


def _as_many(problem: PrefixProblem, unit: Ints, count: int) -> Ints:
    """Halve units until there are so many, or each has one item: those first whose copies cost least."""
    order = np.argsort(unit, kind="stable")
    members = np.split(order, np.flatnonzero(np.diff(unit[order])) + 1)
    once = problem.given.once[problem.given.prefix_of]
    waiting = deque(sorted(range(len(members)), key=lambda u: int(once[members[u][0]])))
    while waiting and len(members) < count:
        u = waiting.popleft()
        if len(members[u]) > 1:
            members[u], half = np.array_split(members[u], 2)
            waiting += [u, len(members)]
            members.append(half)
    found = np.empty_like(unit)
    for u, items in enumerate(members):
        found[items] = u
    return found


def _result(
    problem: PrefixProblem, held: Tokens, found: _Schedule, sync: str, low: int, started: float
) -> ScheduleResult:
    """Return a schedule in the order in which items came."""
    rank, slot = (np.empty(len(found.bin_of), dtype=np.int32) for _ in range(2))
    rank[problem.order], slot[problem.order] = np.divmod(found.bin_of, found.num_slots)
    shape = problem.num_groups, found.num_slots
    costs = problem.sums(found.bin_of, problem.given.costs, problem.given.once, shape[0] * shape[1])
    tokens = problem.sums(found.bin_of, held.each, held.once, shape[0] * shape[1])
    return ScheduleResult(
        read_only(rank), read_only(slot), found.num_slots, read_only(costs.reshape(shape)),
        read_only(tokens.reshape(shape)), held.most, sync, found.value, -(-int(costs.sum()) // problem.num_groups),
        read_only(np.empty(0, dtype=np.int64)), lower_bound=low, bound_name="parts",
        status=status_of(found.value, low), runtime_s=time.perf_counter() - started,
    )  # fmt: skip
