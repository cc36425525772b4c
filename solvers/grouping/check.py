"""The checks of sequence groups and of long and short, from scratch: plain loops, exact numbers, no code of solvers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from solvers.arguments import as_costs
from solvers.check import require, require_status
from solvers.grouping.long_short import LongShortResult
from solvers.grouping.sequence_groups import SequenceGroupsResult

# --- sequence groups -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Groups:
    """What was asked, in Python's integers: a row for each degree that the ranks have room for, ascending."""

    times: list[list[int]]
    sizes: list[list[int]]
    degrees: list[int]
    extra: list[int]
    num_ranks: int
    cap: int | None

    @classmethod
    def read(
        cls, times: ArrayLike, sizes: ArrayLike, degrees: ArrayLike, num_ranks: int, cap: int | None,
        group_overhead: ArrayLike | None,
    ) -> _Groups:  # fmt: skip
        every, rows = np.asarray(degrees).tolist(), np.asarray(sizes)
        listed = sorted(degree for degree in every if degree <= num_ranks)
        place = [every.index(degree) for degree in listed]
        table = [as_costs(row, f"times[{d}]")[0].tolist() for d, row in enumerate(np.asarray(times))]
        volumes = [as_costs(rows if rows.ndim == 1 else rows[d], "sizes")[0].tolist() for d in place]
        extra = [0 if group_overhead is None else int(np.asarray(group_overhead)[d]) for d in place]
        return cls([table[d] for d in place], volumes, listed, extra, num_ranks, cap)

    def permitted(self, item: int) -> list[int]:
        """Return the rows of the degrees that hold an item."""
        return [d for d, degree in enumerate(self.degrees)
                if self.cap is None or self.sizes[d][item] <= degree * self.cap]  # fmt: skip


def check_sequence_groups(
    times: ArrayLike,
    sizes: ArrayLike,
    result: SequenceGroupsResult,
    *,
    degrees: ArrayLike,
    num_ranks: int,
    cap: int | None,
    overhead: int = 0,
    group_overhead: ArrayLike | None = None,
    num_slots: int | None = None,
    min_slots: int = 1,
    slots_multiple_of: int = 1,
) -> None:
    """Check sequence groups against the items and rules they were made from; return nothing if all holds.

    Parameters
    ----------
    times, sizes, degrees, num_ranks, cap, overhead, group_overhead, num_slots, min_slots, slots_multiple_of
        As given to :func:`solvers.sequence_groups`.
    result : SequenceGroupsResult

    Raises
    ------
    CertificateError
        Naming the first violated rule.
    TypeError, ValueError
        If times or sizes themselves are unusable.

    Examples
    --------
    >>> import solvers
    >>> result = solvers.sequence_groups([[4, 2], [2, 1]], [4, 2], [1, 2], 4, 4)
    >>> check_sequence_groups([[4, 2], [2, 1]], [4, 2], result, degrees=[1, 2], num_ranks=4, cap=4)
    """
    given = _Groups.read(times, sizes, degrees, num_ranks, cap, group_overhead)
    k, n = result.num_slots, len(given.times[0])
    _check_arrays(result, n)
    require(num_slots in (None, k), f"num_slots = {num_slots} was asked for, not {k}")
    require(k >= min_slots, f"there are {k} slots, below min_slots = {min_slots}")
    require(k % slots_multiple_of == 0, f"{k} slots are no multiple of slots_multiple_of = {slots_multiple_of}")
    _check_ranks(result, given)
    members: dict[int, list[int]] = {}
    for item, group in enumerate(result.group_of_item.tolist()):
        require(0 <= group < result.num_groups, f"item {item} is in group {group}, outside 0..{result.num_groups - 1}")
        slot = int(result.slot_of_group[group])
        require(
            slot == result.slot_of_item[item], f"item {item} is in slot {result.slot_of_item[item]}, its group {slot}"
        )
        members.setdefault(group, []).append(item)
    heights = [overhead] * result.num_slots
    for group, degree in enumerate(result.degree_of_group.tolist()):
        require(group in members, f"group {group} is empty")
        d = given.degrees.index(degree)
        held = sum(given.sizes[d][item] for item in members[group])
        require(cap is None or held <= degree * cap, f"group {group} holds {held}, over degree {degree} * cap = {cap}")
        spent = given.extra[d] + sum(given.times[d][item] for item in members[group])
        require(spent == result.group_times[group], f"group {group} takes {spent}, not {result.group_times[group]}")
        slot = int(result.slot_of_group[group])
        heights[slot] = max(heights[slot], overhead + spent)
    require(heights == result.slot_times.tolist(), f"slot_times are {heights}, not {result.slot_times.tolist()}")
    require(heights == sorted(heights, reverse=True), "slots must be in descending order of their times")
    require(sum(heights) == result.makespan, f"makespan is {sum(heights)}, not {result.makespan}")
    require_status(result.status, result.lower_bound, result.makespan)
    require(result.bound_name in ("area", "longest"), f"lower_bound is by an unknown argument {result.bound_name!r}")
    volume = sum(min(given.sizes[d][item] for d in given.permitted(item)) for item in range(n))
    fewest = max(1, 0 if cap is None else -(-volume // (num_ranks * cap)), min_slots)
    fewest = num_slots or -(-fewest // slots_multiple_of) * slots_multiple_of
    below = result.lower_bound - overhead * fewest - 1
    proven = below < 0 or _takes_longer(given, below, n)
    require(proven, f"lower_bound = {result.lower_bound}, but '{result.bound_name}' does not prove it")


def _check_arrays(result: SequenceGroupsResult, n: int) -> None:
    counts = dict.fromkeys(("slot_of_item", "group_of_item"), n)
    counts |= dict.fromkeys(("degree_of_group", "slot_of_group", "first_rank_of_group"), result.num_groups)
    for name, count in counts.items():
        array = getattr(result, name)
        require(
            array.dtype == np.int32 and array.shape == (count,) and not array.flags.writeable,
            f"{name} must be read-only int32[{count}], got {array.dtype} of shape {array.shape}",
        )


def _check_ranks(result: SequenceGroupsResult, given: _Groups) -> None:
    """Check that groups of a slot share no rank, and begin where those of larger degrees can end."""
    degrees, num_ranks = given.degrees, given.num_ranks
    used: set[tuple[int, int]] = set()
    place = list(zip(result.slot_of_group.tolist(), result.first_rank_of_group.tolist(), strict=True))
    require(place == sorted(place), "groups must be numbered slot by slot, in each by first rank")
    for group, (slot, first) in enumerate(place):
        degree = int(result.degree_of_group[group])
        require(degree in degrees, f"group {group} has degree {degree}, which is none of {degrees}")
        require(0 <= slot < result.num_slots, f"group {group} is in slot {slot}, outside 0..{result.num_slots - 1}")
        last = first + degree - 1
        require(first >= 0 and last < num_ranks, f"group {group} is on ranks {first} to {last} of {num_ranks}")
        step = math.gcd(*(each for each in degrees if each >= degree))
        require(first % step == 0, f"group {group} of degree {degree} starts at rank {first}, no multiple of {step}")
        for rank in range(first, last + 1):
            require((slot, rank) not in used, f"rank {rank} is in two groups of slot {slot}")
            used.add((slot, rank))


def _takes_longer(given: _Groups, height: int, n: int) -> bool:
    """Whether slots of this height together have too few ranks for the least rank-times, or none quick enough."""
    area = 0
    for item in range(n):
        may = [d for d in given.permitted(item) if given.times[d][item] + given.extra[d] <= height]
        if not may:
            return True
        area += min(given.times[d][item] * given.degrees[d] for d in may)
    return area > given.num_ranks * height


# --- long and short --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Items:
    """What was asked, in Python's integers; `fits` says of each item what it takes at each degree that caps allow."""

    times: dict[int, list[int]]
    size: int
    overhead: int
    held: list[dict[int, list[int]]]  # of each quantity, what a rank holds of each item, by degree
    caps: list[int]

    @classmethod
    def read(
        cls, alone: ArrayLike, shared: ArrayLike, size: int, degrees: ArrayLike | None, overhead: int,
        shares: ArrayLike | None = None, caps: ArrayLike | None = None,
    ) -> _Items:  # fmt: skip
        single = as_costs(alone, "alone")[0].tolist()
        listed = [size] if degrees is None else np.asarray(degrees).tolist()
        rows = np.asarray(shared)
        times = dict(zip(listed, [rows.tolist()] if rows.ndim == 1 else rows.tolist(), strict=True)) | {1: single}
        ascending = sorted(times)
        tables = [] if shares is None else np.asarray(shares).tolist()
        held = [dict(zip(ascending, table, strict=True)) for table in tables]
        return cls(times, size, overhead, held, [] if caps is None else np.asarray(caps).tolist())

    @property
    def num_items(self) -> int:
        return len(self.times[1])

    def fits(self, item: int, target: int, extra: int) -> dict[int, int]:
        """What an item takes at each degree at which it ends by `target`, given what sharing takes besides."""
        return {
            degree: row[item] for degree, row in self.times.items()
            if row[item] + (extra if degree > 1 else 0) <= target
            and all(held[degree][item] <= cap for held, cap in zip(self.held, self.caps, strict=True))
        }  # fmt: skip

    def check_places(self, degree: list[int], first: list[int], num_ranks: int) -> None:
        """Raise unless every item is on an aligned group of ranks of a degree."""
        require(len(degree) == len(first) == self.num_items, f"every item has one place: {self.num_items} items")
        for i, (d, start) in enumerate(zip(degree, first, strict=True)):
            require(d in self.times, f"item {i} is on {d} ranks, which is none of {sorted(self.times)}")
            require(start % d == 0 and 0 <= start < num_ranks, f"item {i} of degree {d} starts at rank {start}")

    def loads(self, degree: list[int], first: list[int], num_ranks: int) -> list[int]:
        """Add up what each rank takes; the overhead in groups where any item is shared."""
        loads = [0] * num_ranks
        sharing = {start // self.size for d, start in zip(degree, first, strict=True) if d > 1}
        for i, (d, start) in enumerate(zip(degree, first, strict=True)):
            for rank in range(start, start + d):
                loads[rank] += self.times[d][i]
        return [load + self.overhead * (rank // self.size in sharing) for rank, load in enumerate(loads)]


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
    given = _Items.read(alone, shared, group_size, degrees, overhead)
    degree, first = result.degree_of_item.tolist(), result.first_rank_of_item.tolist()
    given.check_places(degree, first, group_size)
    named = result.bound_name in ("longest", "area")
    require(named, f"lower_bound is by an unknown argument {result.bound_name!r}")
    require(
        len(result.is_shared) == len(result.rank_of_item) == len(degree),
        f"is_shared and rank_of_item have one entry for each of {len(degree)} items",
    )
    for i, d in enumerate(degree):
        require(bool(result.is_shared[i]) == (d > 1), f"item {i} is on {d} ranks, is_shared says otherwise")
        require(result.rank_of_item[i] == (first[i] if d == 1 else -1), f"rank_of_item is wrong for item {i}")
    loads = given.loads(degree, first, group_size)
    require(loads == result.loads.tolist(), f"loads are {loads}, not {result.loads.tolist()}")
    require(max(loads) == result.makespan, f"makespan is {max(loads)}, not {result.makespan}")
    _require_bound(given, result.lower_bound, result.bound_name, group_size)
    require_status(result.status, result.lower_bound, result.makespan)


def check_long_short_groups(
    alone: ArrayLike,
    shared: ArrayLike,
    degree_of_item: ArrayLike,
    first_rank_of_item: ArrayLike,
    *,
    num_ranks: int,
    group_size: int,
    makespan: int,
    lower_bound: int = 0,
    degrees: ArrayLike | None = None,
    overhead: int = 0,
    shares: ArrayLike | None = None,
    caps: ArrayLike | None = None,
) -> None:
    """Check who shares which items in many groups of ranks, and what is proven of that, in plain loops.

    Parameters
    ----------
    alone, shared, group_size, degrees, overhead, shares, caps
        As given to :func:`long_short_groups`.
    degree_of_item, first_rank_of_item : int[n]
        Ranks are counted over all groups.
    num_ranks : int
        Ranks of all groups.
    makespan : int
        What the slowest rank takes.
    lower_bound : int
        What no plan undercuts, whichever group has which items.

    Raises
    ------
    CertificateError
        Naming the first violated rule.
    TypeError, ValueError
        If the times themselves are unusable.

    Examples
    --------
    >>> check_long_short_groups(
    ...     [40, 9, 8], [11, 3, 2], [4, 1, 1], [0, 4, 5], num_ranks=8, group_size=4, makespan=11, lower_bound=11
    ... )
    """
    given = _Items.read(alone, shared, group_size, degrees, overhead, shares, caps)
    degree, first = np.asarray(degree_of_item).tolist(), np.asarray(first_rank_of_item).tolist()
    require(num_ranks % group_size == 0, f"{num_ranks} ranks are no groups of {group_size}")
    given.check_places(degree, first, num_ranks)
    for q, (held, cap) in enumerate(zip(given.held, given.caps, strict=True)):
        amounts = [0] * num_ranks
        for i, (d, start) in enumerate(zip(degree, first, strict=True)):
            for rank in range(start, start + d):
                amounts[rank] += held[d][i]
        most = max(amounts)
        require(most <= cap, f"rank {amounts.index(most)} holds {most} of quantity {q}, cap {cap}")
    slowest = max(given.loads(degree, first, num_ranks))
    require(slowest == makespan, f"makespan is {slowest}, not {makespan}")
    require(lower_bound <= makespan, f"lower_bound = {lower_bound} exceeds makespan = {makespan}")
    _require_bound(given, lower_bound, "lower_bound", num_ranks)


def _require_bound(given: _Items, bound: int, name: str, num_ranks: int) -> None:
    """Raise unless something proves that nothing ends before the bound."""
    if bound <= 0 or _no_place(given, bound - 1, num_ranks):
        return
    proven = num_ranks == given.size and bound <= _of_one_group(given)
    require(proven, f"lower_bound = {bound}, but '{name}' does not prove it")


def _no_place(given: _Items, target: int, num_ranks: int) -> bool:
    """Whether items cannot all end by `target` for one that is too long, or for lack of rank-time."""
    needed = forced = 0
    for i in range(given.num_items):
        fits = given.fits(i, target, given.overhead)
        if not fits:
            return True
        least = min(degree * taken for degree, taken in fits.items())
        needed += least
        forced += 0 if 1 in fits else least
    if forced:  # in so many groups at least some item is shared
        needed += -(-forced // (given.size * (target - given.overhead))) * given.size * given.overhead
    return needed > num_ranks * target


def _of_one_group(given: _Items) -> int:
    """Return what one group takes at least: the least over which item is the longest that is not on all ranks."""
    alone, size = given.times[1], given.size
    order = sorted(range(given.num_items), key=lambda i: -alone[i])
    found, before, left = [], 0, sum(alone)
    for k, i in enumerate([*order, None]):
        partly = [0] if i is None else [row[i] for degree, row in given.times.items() if degree < size or size == 1]
        found.append(before + max(min(partly), -(-left // size)) + given.overhead * (k > 0))
        if i is not None:
            before, left = before + given.times[size][i], left - alone[i]
    return found[0] if size == 1 else min(found)
