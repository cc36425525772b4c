"""The border of this room: what is given, checked and sorted once."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers.arguments import as_costs, as_count, as_int64, as_integer
from solvers.errors import ArgumentError, InfeasibilityCertificate, InfeasibleError, Named, UsageError, as_argument
from solvers.grouping._kernels import OF_DEGREE, RANK_TIME, SIZE, Ranks, scale_kernel
from solvers.grouping._request import SequenceRequest
from solvers.grouping.types import MOST_RANK_TIME
from solvers.groups import read_only

Ints = NDArray[np.int64]
# Sums of sizes times ranks below it leave int64 room for one item more, whose room is compared after the sum.
_MOST_SIZES = 2**60


@dataclass(frozen=True, slots=True)
class Rules:
    """What is asked of the number of slots."""

    # The number of slots is a multiple of the second, at least the first
    least: int
    multiple: int
    most: int | None  # it is this, where it was given: then `least` is it too

    @classmethod
    def of(cls, asked: SequenceRequest) -> "Rules":
        """Check them against each other. Raises ValueError or TypeError."""
        least, multiple = as_count("min_slots", asked.min_slots), as_count("slots_multiple_of", asked.slots_multiple_of)
        if asked.num_slots is None:
            return cls(least, multiple, None)
        slots = as_count("num_slots", asked.num_slots)
        if slots < least:
            raise UsageError(
                f"{{num_slots}} = {slots} contradicts {{min_slots}} = {least}: give {{num_slots}} >= {least}"
            )
        if slots % multiple:
            raise UsageError(
                f"{{num_slots}} = {slots} contradicts {{slots_multiple_of}} = {multiple}: give a multiple, such as "
                f"{slots - slots % multiple + multiple}"
            )
        return cls(slots, 1, slots)

    def slots_for(self, used: int) -> int:
        """Return the least number of slots of which `used` may hold something."""
        return -(-max(used, self.least) // self.multiple) * self.multiple


@dataclass(frozen=True, slots=True, eq=False)
class SequenceProblem:
    """Checked items, in stable descending order of the least rank-time that each takes, then of size."""

    # int64[D, n], read-only: by usable degree, ascending, and position
    times: Ints
    sizes: Ints
    # int64[3, n], read-only: of each item, over the degrees that hold it, rows RANK_TIME, TIME, SIZE: the least
    # rank-time, the least time with the overhead of a group, and the least size
    least: Ints
    by_degree: NDArray[np.void]  # OF_DEGREE[D], read-only
    ranks: Ranks
    order: Ints  # int64[n]: the item at each position
    num_ranks: int
    overhead: int
    rules: Rules

    @property
    def degrees(self) -> Ints:
        """Usable degrees, ascending."""
        return self.by_degree["ranks"]

    @property
    def fewest_slots(self) -> int:
        """How many slots there are at least: so many as the sum of sizes needs, and as asked for."""
        room = self.num_ranks * self.ranks.room
        return self.rules.slots_for(max(1, -(-int(self.least[SIZE].sum()) // room)))

    @property
    def most_filled(self) -> int:
        """How many slots may hold something."""
        return max(1, len(self.order)) if self.rules.most is None else self.rules.most

    @classmethod
    def of(cls, asked: SequenceRequest) -> "SequenceProblem":
        """Check and sort. Raises TypeError, ValueError or InfeasibleError that name argument, entry and rule."""
        num_ranks, overhead = as_count("num_ranks", asked.num_ranks), as_integer("overhead", asked.overhead)
        all_degrees = as_degrees(asked.degrees)
        all_times = as_table("times", asked.times, len(all_degrees))
        all_sizes = as_table("sizes", asked.sizes, len(all_degrees), all_times.shape[1])
        extra = _as_overheads(asked.group_overhead, len(all_degrees))
        cap = None if asked.cap is None else as_integer("cap", asked.cap, 1)
        # Kernels take degrees ascending; callers give them in any order, with a row of `times` for each.
        usable = [d for d in np.argsort(all_degrees).tolist() if all_degrees[d] <= num_ranks]
        if not usable:
            raise ArgumentError("degrees", f"hold one that is <= {{num_ranks}} = {num_ranks}", all_degrees.tolist())
        chosen, table, volumes, extra = all_degrees[usable], all_times[usable], all_sizes[usable], extra[usable]
        _check_sums(table, volumes, extra, num_ranks, overhead)
        total = int(volumes.max(axis=0).sum())
        # Where nothing caps sizes, the cap is all of them, so that kernels need no second case.
        cap = max(1, total) if cap is None else cap
        rooms = np.array([min(int(d) * cap, max(1, total)) for d in chosen], dtype=np.int64)
        fits = volumes <= rooms[:, None]
        _check_fits(fits, volumes, chosen, cap)
        # Degrees that do not hold an item must not be its least.
        never = np.iinfo(np.int64).max
        least = np.stack([
            np.where(fits, table * chosen[:, None], never).min(axis=0, initial=never),
            np.where(fits, table + extra[:, None], never).min(axis=0, initial=never),
            np.where(fits, volumes, never).min(axis=0, initial=never),
        ])  # fmt: skip
        order = np.lexsort((-least[SIZE], -least[RANK_TIME]))
        by_degree = np.zeros(len(chosen), dtype=OF_DEGREE)
        by_degree["ranks"], by_degree["room"], by_degree["overhead"] = chosen, rooms, extra
        # Rooms differ by degree, and so do the units in which they are compared (see `scale`).
        by_degree["shift"], by_degree["unit"] = np.array([scale_kernel(room) for room in rooms]).T
        # Leaves for as many groups of the degree as the ranks have room for, and twice as many vertices.
        by_degree["leaves"] = leaves = [1 << (num_ranks // int(d) - 1).bit_length() for d in chosen]
        by_degree["tree"][1:] = 2 * np.cumsum(leaves[:-1])
        ranks = Ranks(num_ranks, min(cap, max(1, total)))
        table, volumes, least = (read_only(np.ascontiguousarray(a[:, order])) for a in (table, volumes, least))
        rules = Rules.of(asked)
        problem = cls(table, volumes, least, read_only(by_degree), ranks, order, num_ranks, overhead, rules)
        _check_slots(problem)
        return problem


def as_degrees(degrees: ArrayLike) -> Ints:
    array = as_int64("degrees", degrees)
    if not len(array):
        raise ArgumentError("degrees", "hold at least one", "none")
    for where, degree in enumerate(array.tolist()):
        if degree < 1:
            raise ArgumentError("degrees", "be >= 1", degree, where)
        if degree in array[:where]:
            raise ArgumentError("degrees", "be distinct", degree, where)
    return array


def as_table(name: str, values: ArrayLike, num_degrees: int, num_items: int | None = None, like: str = "times") -> Ints:
    """Return int64[D, n]; given how many items there are, one row will do for all degrees."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        rule = f"be rows of integers, one for each of {num_degrees} {{degrees}}"
        raise ArgumentError(name, rule, str(error)) from None
    one = num_items is not None and array.ndim == 1
    if not one and (array.ndim != 2 or len(array) != num_degrees):
        rule = f"have the shape ({num_degrees}, n), a row for each of {{degrees}}"
        raise ArgumentError(name, rule + (", or (n,)" if num_items is not None else ""), array.shape)
    rows = [as_costs(array, name)[0]] * num_degrees if one else [
        as_costs(row, f"{name}[{d}]")[0] for d, row in enumerate(array)
    ]  # fmt: skip
    if num_items is not None and len(rows[0]) != num_items:
        words = f"{as_argument(like)} and {as_argument(name)}"
        raise UsageError(f"{words} must be of as many {{items}}, got {num_items} and {len(rows[0])}")
    return np.array(rows, dtype=np.int64).reshape(num_degrees, -1)


def _as_overheads(group_overhead: ArrayLike | None, num_degrees: int) -> Ints:
    if group_overhead is None:
        return np.zeros(num_degrees, dtype=np.int64)
    array, _, _ = as_costs(group_overhead, "group_overhead")
    if len(array) != num_degrees:
        raise UsageError(f"{{group_overhead}} and {{degrees}} must be as many, got {len(array)} and {num_degrees}")
    return array


def _check_sums(times: Ints, sizes: Ints, extra: Ints, num_ranks: int, overhead: int) -> None:
    """Raise UsageError where a sum that a search may form does not fit."""
    items = times.shape[1]
    together = sum(map(int, times.max(axis=0))) + items * (int(extra.max()) + overhead)
    if num_ranks * together >= MOST_RANK_TIME:
        raise UsageError(
            f"{{num_ranks}} * (sum of the largest {{times}} of all {{items}}, and overheads) must be below 2**58, got "
            f"{num_ranks} * {together}: measure times in larger units"
        )
    volume = sum(map(int, sizes.max(axis=0)))
    if num_ranks * volume >= _MOST_SIZES:
        raise UsageError(f"{{num_ranks}} * (sum of {{sizes}}) must be below 2**60, got {num_ranks} * {volume}")


def _check_slots(problem: SequenceProblem) -> None:
    """Raise InfeasibleError where the items are over the room of the slots asked for."""
    slots, needed, n = problem.rules.most, problem.fewest_slots, len(problem.order)
    if slots is not None and slots < needed:
        total, room = int(problem.least[SIZE].sum()), problem.num_ranks * problem.ranks.room
        raise InfeasibleError(
            f"{{num_slots}} = {slots} is too few: the {n} {{items}} are of size {total}, and a slot of "
            f"{problem.num_ranks} ranks holds {room}",
            InfeasibilityCertificate("num_slots", range(n), range(slots), total, slots * room),
            f"the least {{num_slots}} that may do is {needed}",
        )


def _check_fits(fits: NDArray[np.bool_], sizes: Ints, degrees: Ints, cap: int) -> None:
    outside = ~fits.any(axis=0)
    if outside.any():
        item = int(np.argmax(outside))
        most, size = int(degrees[-1]) * cap, int(sizes[-1, item])
        raise InfeasibleError(
            f"no {{group}} can hold {{item}}: its size {size} is over {most}, {{cap}} = {cap} on each of {degrees[-1]} "
            f"ranks, the largest of {{degrees}} that can be, by {size - most}",
            InfeasibilityCertificate("cap", [item], [], size, most),
            item=Named("item", item),
        )  # fmt: skip
