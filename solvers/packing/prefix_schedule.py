"""Micro-batches of items that share prefixes: a prefix counts once in every micro-batch that holds any of its items.

Two ways, of which the schedule that a step takes least time with is kept, for as few slots as have room and a few more.
Micro-batches are packed as groups under a cap on tokens, and dealt to slots and ranks by load: few copies, and heights
that tall items set. Or items go to ranks first, and each rank's are packed into its micro-batches: even sums.
"""

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from solvers._jit import kernel
from solvers._loops import stable_order, sum_of
from solvers.arguments import as_costs
from solvers.errors import InfeasibleError, SolverError
from solvers.groups import read_only
from solvers.packing._arguments import as_cap, as_choice, as_slots, check_bins, check_fits, slots_for
from solvers.packing._schedule_types import ScheduleResult
from solvers.prefixes._pack import Makespans, Packed, best_pack, least_packed, orders_of, try_pack
from solvers.prefixes._problem import Ints, Prefixes, PrefixProblem, Tokens, prepare
from solvers.prefixes.bounds import bins_by_tokens, parts_bound
from solvers.types import status_of

__all__ = ["prefix_schedule_bound", "schedule_with_prefixes"]

_SYNCS = ("micro_batch", "step")

# benchmarks/ablation.py, prefix_slots, says what these buy
_MOST_TRIED = 4
"""Numbers of slots, from the first that has room on."""

_CLOSE = 256
"""Within one part in so many of the bound nothing better is looked for."""

_FINE = 256
"""Heights are bisected to one part in so many: what is left is less than a small item."""


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
    given = as_slots(num_slots, min_slots, slots_multiple_of)
    asked = given if isinstance(given, int) else slots_for(1, min_slots, slots_multiple_of)
    check_bins(num_ranks, asked)  # before anything of that size is made
    problem, held = _read(costs, tokens, num_ranks, cap, prefix, prefix_costs, prefix_tokens)
    as_choice("sync", sync, _SYNCS)
    n = len(problem.order)
    if not n:
        nothing = _Schedule(np.empty(0, dtype=np.int64), np.arange(num_ranks * asked).reshape(num_ranks, asked), 0)
        return _result(problem, held, sync, nothing, 0, started)
    if n < num_ranks * asked and not allow_empty:
        raise InfeasibleError(
            f"{num_ranks} ranks of {asked} {{slots}} are {num_ranks * asked} micro-batches, but there are {n} "
            f"{{items}}, short by {num_ranks * asked - n}", remedy="{allow_empty=True} permits empty micro-batches",
        )  # fmt: skip
    bins = bins_by_tokens(problem, held)
    low = parts_bound(problem, bins)
    enough, of_ranks = low + low // _CLOSE, best_pack(problem, low)[0]
    # With a micro-batch for each item all of them fit; more are never of use, and where none may be empty not to be had
    most = slots_for(n, asked, slots_multiple_of) if allow_empty else n // num_ranks
    needed = int(held.each.sum() + (held.once * bins).sum())
    fewest = slots_for(-(-needed // (cap * num_ranks)), asked, slots_multiple_of)
    best: _Schedule | None = None
    tried = 0
    for count in [given] if isinstance(given, int) else _numbers(fewest, slots_multiple_of, most):
        for found in _schedules(problem, held, of_ranks, count, sync, allow_empty, enough):
            best = found if best is None or found.value < best.value else best
        tried += best is not None
        if best is not None and (tried == _MOST_TRIED or best.value <= enough or given == "fewest"):
            break
    if best is None:
        raise SolverError(
            f"found no packing under {{cap}} = {cap} of all {{items}} with their prefixes: give more {{slots}} or a "
            "larger {cap}"
        )
    return _result(problem, held, sync, best, low, started)


def prefix_schedule_bound(
    costs: ArrayLike, tokens: ArrayLike, num_ranks: int, cap: int, prefix: ArrayLike | Sequence[int | str | None],
    prefix_costs: ArrayLike, prefix_tokens: ArrayLike,
) -> int:  # fmt: skip
    """Return what any schedule takes at least, whatever its slots: some rank's sum of micro-batches.

    On each rank a prefix counts once at least, and in all as often as its tokens need micro-batches.
    """
    problem, held = _read(costs, tokens, num_ranks, cap, prefix, prefix_costs, prefix_tokens)
    return parts_bound(problem, bins_by_tokens(problem, held)) if len(problem.order) else 0


class _Schedule(NamedTuple):
    """Items in micro-batches, and these on ranks."""

    bin_of: Ints  # int64[n]: of each sorted item
    place: Ints  # int64[R, K]: which micro-batch each rank has in each slot
    value: int


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


def _numbers(fewest: int, multiple: int, most: int) -> Iterator[int]:
    """Yield numbers of slots, from the fewest that may have room on; ever larger steps, and the most at the end."""
    most -= most % multiple
    count, step, tried = fewest, multiple, 0
    while count < most:
        yield count
        tried += 1
        step = step * 2 if tried > 2 * _MOST_TRIED else step
        count += step
    if fewest <= most:
        yield most


def _schedules(
    problem: PrefixProblem, held: Tokens, of_ranks: Ints, num_slots: int, sync: str, allow_empty: bool,
    enough: int,
) -> Iterator[_Schedule]:  # fmt: skip
    """Yield schedules of so many slots, until one takes no more than is enough."""
    num_ranks = problem.num_groups
    every = np.arange(num_slots * num_ranks)
    for order in orders_of(problem):
        bin_of = _least_high(problem, held, order, num_slots)
        if bin_of is None or not (allow_empty or _fill_empty(problem, bin_of, every)):
            continue
        costs = _sums(problem, bin_of, problem.given.costs, problem.given.once, len(every))
        found = _Schedule(bin_of, place := _dealt(costs, num_slots, num_ranks), _value(costs[place], sync))
        yield found
        if found.value <= enough:
            return
    bin_of = _packed_by_rank(problem, held, of_ranks, num_slots)
    of_rank = every.reshape(num_ranks, num_slots)
    if bin_of is not None and (allow_empty or all(_fill_empty(problem, bin_of, own) for own in of_rank)):
        costs = _sums(problem, bin_of, problem.given.costs, problem.given.once, len(every))
        # Each rank's by cost, so that what meets in a slot is alike
        place = np.take_along_axis(of_rank, np.argsort(-costs[of_rank], axis=1, kind="stable"), axis=1)
        yield _Schedule(bin_of, place, _value(costs[place], sync))


def _value(table: Ints, sync: str) -> int:
    """Return what a step takes from what each rank takes in each slot."""
    return int(table.max(axis=0).sum() if sync == "micro_batch" else table.sum(axis=1).max())


def _least_high(problem: PrefixProblem, held: Tokens, order: Ints, num_slots: int) -> Ints | None:
    """Return the micro-batch of each sorted item: all as high as an item of theirs must be, or one height, the least.

    What an item takes alone, its slot takes on all ranks: so slots of such items may be filled up to that.
    """
    given, num_ranks = problem.given, problem.num_groups
    tall = _heights_of_items(problem, num_slots)
    group_of, loads = np.zeros(len(given.costs), dtype=np.int64), np.zeros(num_slots * num_ranks, dtype=np.int64)
    packed = Packed(group_of, loads)

    def fits(height: int) -> bool:
        heights = np.maximum(tall, height).repeat(num_ranks)
        # Micro-batches of lower slots begin with the difference as load, so that one height is the limit for all.
        begin = read_only(heights[0] - heights)
        return bool(try_pack(given, held, int(heights[0]), order, begin, packed))

    low, high = problem.total // (num_slots * num_ranks), problem.total
    # Steps that double, as the least height is mostly near the mean; then halves.
    reached, step = low, max(1, low // 64)
    while not fits(reached):
        # All of it in one micro-batch would be lower than that: it is the tokens that do not fit.
        if reached >= high:
            return None
        low, reached, step = reached + 1, min(high, reached + step), step * 2
    while reached - low > low // _FINE:
        middle = low + (reached - low) // 2
        low, reached = (low, middle) if fits(middle) else (middle + 1, reached)
    return group_of if fits(reached) else None


def _heights_of_items(problem: PrefixProblem, num_slots: int) -> Ints:
    """Return how high each slot is at least, if items go to slots by what they cost alone: int64[num_slots]."""
    alone = np.sort(problem.given.costs + problem.given.once[problem.given.prefix_of])[::-1]
    tall = alone[:: problem.num_groups][:num_slots]
    return np.append(tall, np.zeros(num_slots - len(tall), dtype=np.int64))


@kernel
def _pack_ranks(given, tokens, first_prefix, num_slots, group_of):
    """Pack the items of each rank into micro-batches of the least height; False if some rank's are too many.

    Prefixes ``first_prefix[r]`` to ``first_prefix[r + 1] - 1`` are those of rank r, a prefix on two ranks being two.
    """
    loads, begin = np.zeros(num_slots, dtype=np.int64), np.zeros(num_slots, dtype=np.int64)
    for r in range(len(first_prefix) - 1):
        p, end = first_prefix[r], first_prefix[r + 1]
        i, stop = given.starts[p], given.starts[end]
        if i == stop:
            continue
        mine = Prefixes(given.costs[i:stop], given.prefix_of[i:stop], given.starts[p : end + 1] - i,
                        given.once[p:end], given.sums[p:end])  # fmt: skip
        held = Tokens(tokens.each[i:stop], tokens.once[p:end], tokens.most)
        size = mine.sums + mine.once
        total = sum_of(size)
        copies = np.int64(0)
        for q in range(end - p):
            copies += mine.once[q] * (mine.starts[q + 1] - mine.starts[q])
        fine = total // num_slots // _FINE
        order, low = stable_order(-size), total // num_slots
        sought, packed = Makespans(low, total + copies, fine), Packed(group_of[i:stop], loads)
        if least_packed(mine, held, order, begin, sought, packed) < 0:
            return False
    return True


def _packed_by_rank(problem: PrefixProblem, held: Tokens, of_ranks: Ints, num_slots: int) -> Ints | None:
    """Return the micro-batch of each sorted item, rank by rank; None if the items of some rank do not fit."""
    given, num_ranks = problem.given, problem.num_groups
    # A prefix on two ranks counts on both, so it is two prefixes from here on.
    pair = of_ranks * len(given.once) + given.prefix_of
    order = np.argsort(pair, kind="stable")
    pairs, first = np.unique(pair[order], return_index=True)
    rank, prefix = pairs // len(given.once), pairs % len(given.once)
    starts = np.append(first, len(order)).astype(np.int64)
    costs = given.costs[order]
    prefix_of = np.repeat(np.arange(len(pairs)), np.diff(starts))
    parts = Prefixes(*map(read_only, (
        costs, prefix_of, starts, given.once[prefix], np.add.reduceat(costs, first),
    )))  # fmt: skip
    tokens = Tokens(read_only(held.each[order]), read_only(held.once[prefix]), held.most)
    first_prefix = np.searchsorted(rank, np.arange(num_ranks + 1)).astype(np.int64)
    slot = np.zeros(len(order), dtype=np.int64)
    if not _pack_ranks(parts, tokens, read_only(first_prefix), num_slots, slot):
        return None
    bin_of = np.empty(len(order), dtype=np.int64)
    bin_of[order] = of_ranks[order] * num_slots + slot
    return bin_of


def _fill_empty(problem: PrefixProblem, bin_of: Ints, bins: Ints) -> bool:
    """Give every empty one of these micro-batches some items of the one that has most; nothing grows by that.

    Those of its cheapest prefix, or half of them if it has no other. False if there are fewer items than micro-batches.
    """
    given = problem.given
    counts = np.bincount(bin_of, minlength=int(bins[-1]) + 1)[bins]
    for empty in np.flatnonzero(counts == 0).tolist():
        full = int(counts.argmax())
        if counts[full] < 2:
            return False
        there = np.flatnonzero(bin_of == bins[full])
        prefix = given.prefix_of[there]
        moved = there[prefix == prefix[given.once[prefix].argmin()]]
        moved = moved if len(moved) < len(there) else there[: len(there) // 2]
        bin_of[moved] = bins[empty]
        counts[full], counts[empty] = counts[full] - len(moved), len(moved)
    return True


def _sums(problem: PrefixProblem, bin_of: Ints, each: Ints, once: Ints, num_bins: int) -> Ints:
    """Add up what sorted items have, and once in each micro-batch what its prefixes have: int64[num_bins]."""
    sums = np.zeros(num_bins, dtype=np.int64)
    np.add.at(sums, bin_of, each)
    held = np.unique(bin_of * len(once) + problem.given.prefix_of)
    np.add.at(sums, held // max(1, len(once)), once[held % max(1, len(once))])
    return sums


def _dealt(costs: Ints, num_slots: int, num_ranks: int) -> Ints:
    """Deal micro-batches to slots by cost, and within each to ranks, the largest to the rank that has least."""
    place, sums = np.empty((num_ranks, num_slots), dtype=np.int64), np.zeros(num_ranks, dtype=np.int64)
    for k, bins in enumerate(np.argsort(-costs, kind="stable").reshape(num_slots, num_ranks)):
        emptiest = np.argsort(sums, kind="stable")
        place[emptiest, k] = bins
        sums[emptiest] += costs[bins]
    return place


def _result(
    problem: PrefixProblem, held: Tokens, sync: str, found: _Schedule, low: int, started: float
) -> ScheduleResult:
    """Return a schedule in the order in which items came."""
    num_ranks, num_slots = found.place.shape
    at = np.empty(found.place.size, dtype=np.int64)
    at[found.place.reshape(-1)] = np.arange(len(at))
    rank, slot = (np.empty(len(found.bin_of), dtype=np.int32) for _ in range(2))
    rank[problem.order], slot[problem.order] = np.divmod(at[found.bin_of], num_slots)
    costs = _sums(problem, found.bin_of, problem.given.costs, problem.given.once, len(at))
    tokens = _sums(problem, found.bin_of, held.each, held.once, len(at))
    return ScheduleResult(
        read_only(rank), read_only(slot), num_slots, read_only(costs[found.place]), read_only(tokens[found.place]),
        held.most, sync, found.value, -(-int(costs.sum()) // num_ranks), read_only(np.empty(0, dtype=np.int64)),
        lower_bound=low, bound_name="parts", status=status_of(found.value, low),
        runtime_s=time.perf_counter() - started,
    )  # fmt: skip
