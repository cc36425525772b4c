"""The check of sequence groups, from scratch, with no code of the solver: plain loops, exact numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from solvers.arguments import as_costs
from solvers.check import require, require_status
from solvers.grouping._request import SequenceRequest
from solvers.grouping.types import SequenceGroupsResult


@dataclass(frozen=True, slots=True, eq=False)
class _Given:
    """What was asked, in Python's integers: a row for each degree that the ranks have room for, ascending."""

    times: list[list[int]]
    sizes: list[list[int]]
    degrees: list[int]
    rooms: list[int]
    extra: list[int]
    asked: SequenceRequest

    @classmethod
    def read(cls, asked: SequenceRequest) -> _Given:
        every, cap = np.asarray(asked.degrees).tolist(), asked.cap
        listed = sorted(degree for degree in every if degree <= asked.num_ranks)
        place = [every.index(degree) for degree in listed]
        table = [as_costs(row, f"times[{d}]")[0].tolist() for d, row in enumerate(np.asarray(asked.times))]
        rows = np.asarray(asked.sizes)
        volumes = [as_costs(rows if rows.ndim == 1 else rows[d], "sizes")[0].tolist() for d in place]
        extra = [0 if asked.group_overhead is None else int(np.asarray(asked.group_overhead)[d]) for d in place]
        total = max(1, sum(map(max, zip(*volumes, strict=True))))  # more than that a group never holds
        rooms = [total if cap is None else min(degree * cap, total) for degree in listed]
        return cls([table[d] for d in place], volumes, listed, rooms, extra, asked)

    @property
    def num_items(self) -> int:
        return len(self.times[0])

    def permitted(self, item: int) -> list[int]:
        """Return the rows of the degrees that hold an item."""
        return [d for d, room in enumerate(self.rooms) if self.sizes[d][item] <= room]

    def fewest_slots(self) -> int:
        """Return how many slots there are at least, by the sum of sizes and as asked for."""
        volume = sum(min(self.sizes[d][item] for d in self.permitted(item)) for item in range(self.num_items))
        needed, asked = 1, self.asked
        if asked.cap is not None:
            needed = max(1, -(-volume // (asked.num_ranks * asked.cap)))
        return asked.num_slots or -(-max(needed, asked.min_slots) // asked.slots_multiple_of) * asked.slots_multiple_of


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
    asked = SequenceRequest(
        times, sizes, degrees, num_ranks, cap, overhead=overhead, group_overhead=group_overhead, num_slots=num_slots,
        min_slots=min_slots, slots_multiple_of=slots_multiple_of,
    )  # fmt: skip
    given = _Given.read(asked)
    _check_arrays(result, given.num_items)
    _check_slots(result, asked)
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
    _check_bound(result, given)


def _check_arrays(result: SequenceGroupsResult, n: int) -> None:
    counts = dict.fromkeys(("slot_of_item", "group_of_item"), n)
    counts |= dict.fromkeys(("degree_of_group", "slot_of_group", "first_rank_of_group"), result.num_groups)
    for name, count in counts.items():
        array = getattr(result, name)
        require(
            array.dtype == np.int32 and array.shape == (count,) and not array.flags.writeable,
            f"{name} must be read-only int32[{count}], got {array.dtype} of shape {array.shape}",
        )


def _check_slots(result: SequenceGroupsResult, asked: SequenceRequest) -> None:
    k = result.num_slots
    require(asked.num_slots in (None, k), f"num_slots = {asked.num_slots} was asked for, not {k}")
    require(k >= asked.min_slots, f"there are {k} slots, below min_slots = {asked.min_slots}")
    multiple = asked.slots_multiple_of
    require(k % multiple == 0, f"{k} slots are no multiple of slots_multiple_of = {multiple}")


def _check_ranks(result: SequenceGroupsResult, given: _Given) -> None:
    """Check that groups of a slot share no rank, and begin where those of larger degrees can end."""
    degrees, num_ranks = given.degrees, given.asked.num_ranks
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


def _check_bound(result: SequenceGroupsResult, given: _Given) -> None:
    """Recompute the bound by refuting what is one less, from every item's permitted degrees."""
    bound = result.lower_bound
    require_status(result.status, bound, result.makespan)
    require(result.bound_name in ("area", "longest"), f"lower_bound is by an unknown argument {result.bound_name!r}")
    below = bound - given.asked.overhead * given.fewest_slots() - 1
    if below < 0:
        return
    area: list[int | None] = []  # of each item, the least rank-time among the degrees that are no slower than that
    for item in range(given.num_items):
        may = [d for d in given.permitted(item) if given.times[d][item] + given.extra[d] <= below]
        area.append(min((given.times[d][item] * given.degrees[d] for d in may), default=None))
    proven = None in area or sum(work for work in area if work is not None) > given.asked.num_ranks * below
    require(proven, f"lower_bound = {bound}, but '{result.bound_name}' does not prove it")
