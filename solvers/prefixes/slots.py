"""Micro-batches of items that share prefixes: a prefix counts once in every micro-batch that holds any of its items.

Two ways, of which the schedule that a step takes least time with is kept, for as few slots as have room and a few more.
Micro-batches are packed as groups under a cap on tokens, and dealt to slots and ranks by load: few copies, and heights
that tall items set. Or items go to ranks first, and each rank's are packed into its micro-batches: even sums.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._jit import kernel
from solvers._loops import stable_order, sum_of
from solvers.arguments import as_costs
from solvers.errors import InfeasibleError, SolverError
from solvers.groups import read_only
from solvers.prefixes._pack import best_pack, least_packed, orders_of, try_pack
from solvers.prefixes._problem import Ints, Prefixes, PrefixProblem, Tokens, prepare
from solvers.prefixes.bounds import bins_by_tokens, parts_bound

__all__ = ["PrefixSchedule", "prefix_schedule_bound", "schedule_with_prefixes"]

_MOST_TRIED = 4
"""Numbers of slots, from the first that has room on."""

_CLOSE = 256
"""Within one part in so many of the bound nothing better is looked for."""

_FINE = 256
"""Heights are bisected to one part in so many: what is left is less than a small item."""


class PrefixSchedule(NamedTuple):
    """Micro-batches, and a bound on what any schedule takes."""

    rank_of_item: NDArray[np.int32]
    slot_of_item: NDArray[np.int32]
    num_slots: int
    value: int
    lower_bound: int


def schedule_with_prefixes(
    costs: ArrayLike, tokens: ArrayLike, num_ranks: int, cap: int, prefix: ArrayLike | Sequence[int | str | None],
    prefix_costs: ArrayLike, prefix_tokens: ArrayLike, *, objective: str = "lockstep", num_slots: int | None = None,
    min_slots: int = 1, slots_multiple_of: int = 1, allow_empty: bool = False,
) -> PrefixSchedule:  # fmt: skip
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
    objective : str
        ``"lockstep"``, the sum over slots of the slowest rank; or ``"step"``, the largest sum of a rank.
    num_slots : int, optional
        K; by default the fastest of a few.
    min_slots, slots_multiple_of : int
        What K is at least, and a multiple of.
    allow_empty : bool
        Whether a micro-batch may hold nothing.

    Returns
    -------
    PrefixSchedule
        Rank and slot of each item, and the bound.

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
    problem, held = _read(costs, tokens, num_ranks, cap, prefix, prefix_costs, prefix_tokens)
    bins = bins_by_tokens(problem, held)
    low = parts_bound(problem, bins)
    if not len(problem.order):
        none = np.empty(0, dtype=np.int32)
        return PrefixSchedule(none, none, num_slots or slots_multiple_of * -(-min_slots // slots_multiple_of), 0, 0)
    best: PrefixSchedule | None = None
    most = max(len(problem.order), min_slots + slots_multiple_of) if allow_empty else len(problem.order) // num_ranks
    of_ranks, tried = best_pack(problem, low)[0], 0
    for count in _numbers(problem, held, bins, num_slots, min_slots, slots_multiple_of, most):
        for found in _schedules(problem, held, of_ranks, count, objective, allow_empty, low):
            if best is None or found.value < best.value:
                best = found
        tried += best is not None
        if best is not None and (tried == _MOST_TRIED or best.value <= low + low // _CLOSE):
            break
    if best is None:
        asked = num_slots or slots_multiple_of * -(-min_slots // slots_multiple_of)
        if most < asked:
            raise InfeasibleError(
                f"{num_ranks} ranks of {asked} {{slots}} are {num_ranks * asked} micro-batches, but there are "
                f"{len(problem.order)} {{items}}, short by {num_ranks * asked - len(problem.order)}",
                remedy="{allow_empty=True} permits empty micro-batches",
            )  # fmt: skip
        raise SolverError(
            f"found no packing under {{cap}} = {cap} of all {{items}} with their prefixes: give more {{slots}} or a "
            "larger {cap}"
        )
    return best


def prefix_schedule_bound(
    costs: ArrayLike, tokens: ArrayLike, num_ranks: int, cap: int, prefix: ArrayLike | Sequence[int | str | None],
    prefix_costs: ArrayLike, prefix_tokens: ArrayLike,
) -> int:  # fmt: skip
    """Return what any schedule takes at least, whatever its slots: some rank's sum of micro-batches.

    On each rank a prefix counts once at least, and in all as often as its tokens need micro-batches.
    """
    problem, held = _read(costs, tokens, num_ranks, cap, prefix, prefix_costs, prefix_tokens)
    return parts_bound(problem, bins_by_tokens(problem, held)) if len(problem.order) else 0


def _read(
    costs: ArrayLike, tokens: ArrayLike, num_ranks: int, cap: int, prefix: ArrayLike | Sequence[int | str | None],
    prefix_costs: ArrayLike, prefix_tokens: ArrayLike,
) -> tuple[PrefixProblem, Tokens]:  # fmt: skip
    problem = prepare(costs, num_ranks, False, prefix, prefix_costs)
    each, once = as_costs(tokens, "tokens")[0], as_costs(prefix_tokens, "prefix_tokens")[0]
    first = problem.order[problem.given.starts[:-1]]
    held = Tokens(read_only(each[problem.order]), read_only(once[first]), cap)
    if len(each) and (whole := each + once).max() > cap:
        item = int(whole.argmax())
        raise InfeasibleError(
            f"no micro-batch can hold {{item}}: with its prefix {{tokens[i] =}} {whole[item]} is over {{cap}} = {cap} "
            f"by {whole[item] - cap}", item=item,
        )  # fmt: skip
    return problem, held


def _numbers(
    problem: PrefixProblem, held: Tokens, bins: Ints, given: int | None, least: int, multiple: int, most: int
) -> Iterator[int]:
    """Yield numbers of slots, from the fewest that may have room on; ever larger steps where none is found to."""
    if given is not None:
        if given <= most:
            yield given
        return
    tokens = int(held.each.sum() + (held.once * bins).sum())
    fewest = max(least, -(-tokens // (held.most * problem.num_groups)), 1)
    count = multiple * -(-fewest // multiple)
    step, tried = multiple, 0
    while count <= most:
        yield count
        tried += 1
        step = step * 2 if tried > 2 * _MOST_TRIED else step
        count += step


def _schedules(
    problem: PrefixProblem, held: Tokens, of_ranks: Ints, num_slots: int, objective: str, allow_empty: bool, low: int
) -> Iterator[PrefixSchedule]:
    """Yield schedules of so many slots, until one is close to the bound."""
    num_ranks = problem.num_groups
    for order in orders_of(problem):
        bins = _least_high(problem, held, order, num_slots)
        if bins is None:
            continue
        if not allow_empty:
            _fill_empty(problem, bins, np.arange(num_slots * num_ranks))
        loads = _loads(problem, bins, num_slots * num_ranks)
        found = _as_schedule(problem, bins, *_dealt(loads, num_slots, num_ranks), loads, num_slots, objective, low)
        yield found
        if found.value <= low + low // _CLOSE:
            return
    if (bins := _packed_by_rank(problem, held, of_ranks, num_slots)) is not None:
        if not allow_empty:
            for own in np.arange(num_slots * num_ranks).reshape(num_ranks, num_slots):
                if not _fill_empty(problem, bins, own):
                    return
        loads = _loads(problem, bins, num_slots * num_ranks)
        # A rank's micro-batches by load, so that slots are even
        slot = np.empty((num_ranks, num_slots), dtype=np.int32)
        by_load = np.argsort(-loads.reshape(num_ranks, num_slots), axis=1, kind="stable")
        np.put_along_axis(slot, by_load, np.arange(num_slots, dtype=np.int32)[None, :], axis=1)
        rank = np.arange(num_ranks, dtype=np.int32).repeat(num_slots)
        yield _as_schedule(problem, bins, rank, slot.ravel(), loads, num_slots, objective, low)


def _least_high(problem: PrefixProblem, held: Tokens, order: Ints, num_slots: int) -> Ints | None:
    """Return the micro-batch of each sorted item: all as high as an item of theirs must be, or one height, the least.

    What an item takes alone, its slot takes on all ranks: so slots of such items may be filled up to that.
    """
    given, num_ranks = problem.given, problem.num_groups
    alone = np.sort(given.costs + given.once[given.prefix_of])[::-1]
    tall = alone[::num_ranks][:num_slots]
    tall = np.append(tall, np.zeros(num_slots - len(tall), dtype=np.int64))
    group_of, loads = np.zeros(len(given.costs), dtype=np.int64), np.zeros(num_slots * num_ranks, dtype=np.int64)

    def fits(height: int) -> bool:
        heights = np.maximum(tall, height).repeat(num_ranks)
        begin = read_only(heights[0] - heights)
        return bool(try_pack(given, held, int(heights[0]), order, begin, group_of, loads))

    low, high = problem.total // (num_slots * num_ranks), problem.total
    reached, step = low, max(1, low // 64)
    while not fits(reached):
        if reached >= high:
            return None
        low, reached, step = reached + 1, min(high, reached + step), step * 2
    while reached - low > low // _FINE:
        middle = low + (reached - low) // 2
        low, reached = (low, middle) if fits(middle) else (middle + 1, reached)
    return group_of if fits(reached) else None


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
        if least_packed(mine, held, order, begin, low, total + copies, fine, group_of[i:stop], loads) < 0:
            return False
    return True


def _packed_by_rank(problem: PrefixProblem, held: Tokens, of_ranks: Ints, num_slots: int) -> Ints | None:
    """Return the micro-batch of each sorted item, rank by rank; None if the items of some rank do not fit."""
    given, num_ranks = problem.given, problem.num_groups
    pair = of_ranks * len(given.once) + given.prefix_of
    order = np.argsort(pair, kind="stable")
    pairs, first = np.unique(pair[order], return_index=True)
    rank, prefix = pairs // len(given.once), pairs % len(given.once)
    sums = np.add.reduceat(given.costs[order], first)
    parts = Prefixes(*map(read_only, (
        given.costs[order], np.repeat(np.arange(len(pairs)), np.diff(np.append(first, len(order)))),
        np.append(first, len(order)).astype(np.int64), given.once[prefix], sums,
    )))  # fmt: skip
    tokens = Tokens(read_only(held.each[order]), read_only(held.once[prefix]), held.most)
    first_prefix = np.searchsorted(rank, np.arange(num_ranks + 1)).astype(np.int64)
    slot = np.zeros(len(order), dtype=np.int64)
    if not _pack_ranks(parts, tokens, read_only(first_prefix), num_slots, slot):
        return None
    bins = np.empty(len(order), dtype=np.int64)
    bins[order] = of_ranks[order] * num_slots + slot
    return bins


def _fill_empty(problem: PrefixProblem, bins_of: Ints, bins: Ints) -> bool:
    """Give every empty one of these micro-batches some items of the one that has most; nothing grows by that.

    Those of its cheapest prefix, or half of them if it has no other. False if there are fewer items than micro-batches.
    """
    given = problem.given
    counts = np.bincount(bins_of, minlength=int(bins[-1]) + 1)[bins]
    for empty in np.flatnonzero(counts == 0).tolist():
        full = int(counts.argmax())
        if counts[full] < 2:
            return False
        there = np.flatnonzero(bins_of == bins[full])
        prefix = given.prefix_of[there]
        moved = there[prefix == prefix[given.once[prefix].argmin()]]
        moved = moved if len(moved) < len(there) else there[: len(there) // 2]
        bins_of[moved] = bins[empty]
        counts[full], counts[empty] = counts[full] - len(moved), len(moved)
    return True


def _loads(problem: PrefixProblem, bins_of: Ints, num_bins: int) -> Ints:
    """Add up costs, those of a prefix once in each micro-batch that has any of its items: int64[num_bins]."""
    given = problem.given
    loads = np.zeros(num_bins, dtype=np.int64)
    np.add.at(loads, bins_of, given.costs)
    held = np.unique(bins_of * len(given.once) + given.prefix_of)
    np.add.at(loads, held // len(given.once), given.once[held % len(given.once)])
    return loads


def _dealt(loads: Ints, num_slots: int, num_ranks: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Deal micro-batches to slots by load, and within each to ranks: the largest to the rank that has least."""
    rank, slot = (np.empty(len(loads), dtype=np.int32) for _ in range(2))
    sums = np.zeros(num_ranks, dtype=np.int64)
    for k, bins in enumerate(np.argsort(-loads, kind="stable").reshape(num_slots, num_ranks)):
        emptiest = np.argsort(sums, kind="stable")
        rank[bins], slot[bins] = emptiest, k
        sums[emptiest] += loads[bins]
    return rank, slot


def _as_schedule(
    problem: PrefixProblem, bins_of: Ints, rank: NDArray[np.int32], slot: NDArray[np.int32], loads: Ints,
    num_slots: int, objective: str, low: int,
) -> PrefixSchedule:  # fmt: skip
    """Return the schedule of micro-batches, given rank and slot of each, in the order in which items came."""
    table = np.zeros((problem.num_groups, num_slots), dtype=np.int64)
    table[rank, slot] = loads
    value = table.max(axis=0).sum() if objective == "lockstep" else table.sum(axis=1).max()
    rank_of, slot_of = np.empty(len(bins_of), dtype=np.int32), np.empty(len(bins_of), dtype=np.int32)
    rank_of[problem.order], slot_of[problem.order] = rank[bins_of], slot[bins_of]
    return PrefixSchedule(rank_of, slot_of, num_slots, int(value), low)
