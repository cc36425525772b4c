"""Sequence groups: which ranks share which items, in which slot, so that the sum of the slots' times is small.

Told from top to bottom, after what a caller asks and gets (:func:`sequence_groups`):

1. What is asked is checked, and items are sorted by the least rank-time that each takes (:class:`SequenceProblem`).
2. A bound in closed form (:func:`closed_form`): a value that reaches it ends the search.
3. One slot is filled under a time (:func:`_fill`): an item joins the group that has least left with it, or opens one.
   Where a slot has more than 64 groups, they are found in a tree.
4. Slot after slot is *peeled* off all items that are left, the longest first (:func:`peel`). Three numbers say how, and
   are tried in many ways. The *density* sets a slot's height: so many 64ths of the time of a group that is full of the
   longest item left. The *floor* is the least degree that a new group gets, by its row. The *weight* says how much time
   counts, against room, when an item chooses among groups.
5. The best solutions are improved (:func:`resolve`): what matters is which items share a slot, so two or three slots
   are emptied and put together anew, under targets, orders and rules drawn at random.
6. Groups get their ranks, one after another in descending order of degree (:func:`_lay_out`).

A solution's *value* is the sum of its slots' times. All work is counted, and no clock is read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._budget import work_units
from solvers._jit import helper, kernel
from solvers._loops import draw
from solvers.arguments import as_budget, as_costs, as_count, as_int64, as_integer
from solvers.bounds import Bound
from solvers.errors import (
    ArgumentError,
    InfeasibilityCertificate,
    InfeasibleError,
    Named,
    TimeLimitError,
    UsageError,
    as_argument,
)
from solvers.groups import read_only
from solvers.types import Proven, status_of

Ints = NDArray[np.int64]

MOST_RANK_TIME = 2**58
"""Ranks times the sum of all items' largest times, with an item's share of every overhead, must be below it."""


# Sums of sizes times ranks below it leave int64 room for one item more, whose room is compared after the sum.
_MOST_SIZES = 2**60
# Above every time and score: times are below 2**58 (MOST_RANK_TIME), scores at most 8 * 2**32.
_NEVER = 2**62
# Bits of the time or room left, when groups are compared. A score then fits int64, and groups count as alike that
# differ by less than one part in 65,536.
_FINE = 16
# Groups of a slot beyond which an item takes the first that fits, found in a tree: the walk of best fit over all open
# groups would be most of the work there. The share of work for starts changes at the same number.
_MANY_GROUPS = 64
# Tries of a height. `peel` begins within a quarter of the least height, and ten halvings of that are below the part in
# 2,048 at which `_squeeze` ends anyway; the two more are for `resolve`, whose ceilings are wider.
_HALVINGS = 12
# Tries in vain for every item, after which a search has ended by itself. It saves time where the optimum cannot be
# proven, and costs nothing where budgets are short: they end first.
_PATIENCE = 64
# Weights of time against room, in eighths, that are drawn: 0 to 3, so that room counts more. The starts try 0 and 4;
# see the row *weights of time* of benchmarks/ablation.py, sequence groups.
_WEIGHTS = 4
# Slots that are solved anew together, at most: three, and an empty one (see `_pick`).
_TRIED = 4

# In 64ths of a group that is full of the longest item. Row *densities* of benchmarks/ablation.py, sequence groups:
# with many groups, steps are 203 +- 88 ppm longer with 64 alone.
_DENSITIES = (64, 56, 48, 40, 72, 32, 24, 96)
# Work units of an item that go into starts, and the parts of all work that they are at most and at least. Where there
# is much work for each item, slots solved anew are worth more than starts; where there is little, half as many starts
# lead to some steps that are longer by whole percents. Where slots have many groups, a fifth is the least and nothing
# is the most. Row *starts by items*: with a fifth alone steps are 197 +- 40 ppm longer (140 steps on which nothing was
# chosen).
_PEELED_ITEM = 240
_PEELING = 5, 20
# How many are improved, and each for how many hundredths of the work at most: the best alone gets what is left. The
# row *several improved* shows no gain, but steps of 64 items on 16 ranks are worse without all unsure rows at once.
# Without the round of two, steps are 97 +- 90 ppm longer.
_ROUNDS = ((4, 10), (2, 15), (1, 100))
# A step of these loops takes longer than a work unit, which is one of the local search of partitions.
_SCALE = 3, 4


@dataclass(frozen=True, slots=True, eq=False)
class SequenceGroupsResult(Proven):
    """Slots of groups of ranks that share items, with a certificate.

    Attributes
    ----------
    slot_of_item : int32[n], read-only
        The slot of each item, in the order in which the items were given.
    group_of_item : int32[n], read-only
        Its group. Groups are numbered over all slots, slot after slot, in each by their ranks.
    degree_of_group, slot_of_group, first_rank_of_group : int32[G], read-only
        A group holds ranks ``first_rank`` to ``first_rank + degree - 1``; none is empty. Ranks in no group of a slot
        hold nothing in it.
    group_times : int64[G], read-only
        The time of each group, its overhead included.
    slot_times : int64[K], read-only
        The overhead and the slowest group of each slot; in descending order.
    makespan : int
        The sum of `slot_times`.
    bound_name : str
        ``"longest"`` or ``"area"``: see ``closed_form``.
    lower_bound, status, method, runtime_s
        As of :class:`solvers.PartitionResult`.
    """

    slot_of_item: NDArray[np.int32]
    group_of_item: NDArray[np.int32]
    degree_of_group: NDArray[np.int32]
    slot_of_group: NDArray[np.int32]
    first_rank_of_group: NDArray[np.int32]
    group_times: NDArray[np.int64]
    slot_times: NDArray[np.int64]
    makespan: int
    method: str

    @property
    def num_slots(self) -> int:
        """K, the same on every rank; empty slots included."""
        return len(self.slot_times)

    @property
    def num_groups(self) -> int:
        """Groups of all slots."""
        return len(self.degree_of_group)


def sequence_groups(
    times: ArrayLike,
    sizes: ArrayLike,
    degrees: ArrayLike,
    num_ranks: int,
    cap: int | None,
    *,
    overhead: int = 0,
    group_overhead: ArrayLike | None = None,
    num_slots: int | None = None,
    min_slots: int = 1,
    slots_multiple_of: int = 1,
    time_budget: float = 0.1,
) -> SequenceGroupsResult:
    """Divide the ranks of every slot into groups and give every item to one, so that the slots' times sum to little.

    A slot takes as long as its slowest group, and a group as long as its items one after another. Long items belong on
    many ranks, where they are faster or fit at all; short ones on few, where they take less rank-time.

    Parameters
    ----------
    times : int64[D, n]
        Time of each item in a group of each degree, non-negative; it need not fall as the degree rises.
    sizes : int64[n] or int64[D, n]
        What each item takes of a group's room, at every degree or at each.
    degrees : int64[D]
        How many ranks a group may have; distinct, in any order. Those that the ranks have no place for are not used.
    num_ranks : int
    cap : int or None
        A group of degree d holds sizes of at most ``d * cap``. None: of any.
    overhead : int
        Charged in every slot, empty ones too.
    group_overhead : int64[D], optional
        Charged once in each group of a degree.
    num_slots : int, optional
        K; by default it is chosen.
    min_slots, slots_multiple_of : int
        What K has to be at least, and a multiple of.
    time_budget : float
        Seconds' worth of work, counted and not timed.

    Returns
    -------
    SequenceGroupsResult
        Groups, their ranks and items, and a proven lower bound in closed form. In each slot the groups lie one after
        another in descending order of degree. So where every degree divides the next, each group starts at a multiple
        of its degree: inside a node, if the degree divides the ranks of one. Other groups may reach over the end of a
        node.

    Raises
    ------
    TypeError, ValueError
        Arguments of the wrong type, shape or range, that contradict each other, or whose sums do not fit.
    InfeasibleError
        If an item is over the room of the largest group, or all are over that of the slots asked for.
    TimeLimitError
        If no solution of as few slots as asked for was found; there may be one.

    Notes
    -----
    Peels off slots, longest items first, in many ways (best fit under a time and the room of each degree), and improves
    the best by putting the items of two or three slots together anew. O(n * groups of a slot) a start; O(n log n) where
    a slot can have more than 64 groups.

    References
    ----------
    FlexSP (Wang et al. 2024, arXiv:2412.01523) has the problem, with a mixed-integer model of one slot.

    Examples
    --------
    >>> result = sequence_groups([[8, 2, 2, 1, 1], [5, 1, 1, 1, 1]], [8, 2, 2, 1, 1], [1, 2], 4, 4, overhead=1)
    >>> result.slot_times.tolist(), result.degree_of_group.tolist(), result.lower_bound
    ([6], [2, 1, 1], 6)
    >>> result.group_of_item.tolist(), result.first_rank_of_group.tolist()
    ([0, 1, 1, 2, 2], [0, 2, 3])
    """
    started = time.perf_counter()
    problem = SequenceProblem.of(
        times, sizes, degrees, num_ranks, cap, overhead=overhead, group_overhead=group_overhead, num_slots=num_slots,
        min_slots=min_slots, slots_multiple_of=slots_multiple_of,
    )  # fmt: skip
    work = work_units(as_budget(time_budget))
    bound = closed_form(problem)
    n = len(problem.order)
    nothing = np.zeros((3, 0), dtype=np.int64)
    found, ended = Solution(nothing, np.zeros(1, dtype=np.int64), 0), True
    if n:
        found, ended = _search(problem, bound.value, work)
    if (slots := problem.most_filled) < found.num_slots:
        raise TimeLimitError(
            f"none was found: no way to put the {n} {{items}} into {{num_slots}} = {slots} under {{cap}}, only into "
            f"{found.num_slots}",
            ("give more {num_slots}", "a larger {cap}", *([] if ended else ["more {time_budget}"])),
        )
    laid = _lay_out(problem, found)
    slot_times = np.full(problem.rules.slots_for(found.num_slots), problem.overhead, dtype=np.int64)
    np.maximum.at(slot_times, laid.slot_of_group, problem.overhead + laid.group_times)
    makespan = int(slot_times.sum())
    return SequenceGroupsResult(
        **laid._asdict(), slot_times=read_only(slot_times), makespan=makespan, lower_bound=bound.value,
        bound_name=bound.name, status=status_of(makespan, bound.value), method="peeling",
        runtime_s=time.perf_counter() - started,
    )  # fmt: skip


# --- what is asked ---------------------------------------------------------------------------------------------------

# Rows of `where`, and of what is like it; a place in one slot has only the first two.
GROUP, DEGREE, SLOT = range(3)
# Rows of the least that an item takes, over the degrees that hold it: rank-time, time with the overhead of a group,
# size.
RANK_TIME, TIME, SIZE = range(3)

# Here and below: records, where all that is known of one thing is needed at once. An array that is taken out of a tuple
# is counted by numba, which takes some nanoseconds: nothing beside a slot, much beside an item.
OF_DEGREE = np.dtype(
    [
        ("ranks", np.int64),
        ("room", np.int64),  # what a group of it holds
        ("overhead", np.int64),  # what a group of it costs in any case
        ("tree", np.int64),  # where its tree begins
        ("leaves", np.int64),  # as many as there may be groups of it, or more: a power of two
        ("shift", np.int64),  # the units in which what is left of its room is compared, see `_scale`
        ("unit", np.int64),
    ]
)
"""What is known of a degree."""


class Ranks(NamedTuple):
    """The ranks of a slot: numbers alone, as hot helpers take it."""

    num: int
    room: int  # what a rank holds


@dataclass(frozen=True, slots=True)
class Rules:
    """What is asked of the number of slots."""

    # The number of slots is a multiple of the second, at least the first
    least: int
    multiple: int
    most: int | None  # it is this, where it was given: then `least` is it too

    @classmethod
    def of(cls, num_slots: int | None, min_slots: int, slots_multiple_of: int) -> Rules:
        """Check them against each other. Raises ValueError or TypeError."""
        least, multiple = as_count("min_slots", min_slots), as_count("slots_multiple_of", slots_multiple_of)
        if num_slots is None:
            return cls(least, multiple, None)
        slots = as_count("num_slots", num_slots)
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
    def of(
        cls, times: ArrayLike, sizes: ArrayLike, degrees: ArrayLike, num_ranks: int, cap: int | None, *,
        overhead: int = 0, group_overhead: ArrayLike | None = None, num_slots: int | None = None, min_slots: int = 1,
        slots_multiple_of: int = 1,
    ) -> SequenceProblem:  # fmt: skip
        """Check and sort what :func:`sequence_groups` takes; errors name argument, entry and rule."""
        num_ranks, overhead = as_count("num_ranks", num_ranks), as_integer("overhead", overhead)
        all_degrees = as_degrees(degrees)
        all_times = as_table("times", times, len(all_degrees))
        all_sizes = as_table("sizes", sizes, len(all_degrees), all_times.shape[1])
        extra = _as_overheads(group_overhead, len(all_degrees))
        cap = None if cap is None else as_integer("cap", cap, 1)
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
        # Rooms differ by degree, and so do the units in which they are compared (see `_scale`).
        by_degree["shift"], by_degree["unit"] = np.array([_scale_kernel(room) for room in rooms]).T
        # Leaves for as many groups of the degree as the ranks have room for, and twice as many vertices.
        by_degree["leaves"] = leaves = [1 << (num_ranks // int(d) - 1).bit_length() for d in chosen]
        by_degree["tree"][1:] = 2 * np.cumsum(leaves[:-1])
        ranks = Ranks(num_ranks, min(cap, max(1, total)))
        table, volumes, least = (read_only(np.ascontiguousarray(a[:, order])) for a in (table, volumes, least))
        rules = Rules.of(num_slots, min_slots, slots_multiple_of)
        problem = cls(table, volumes, least, read_only(by_degree), ranks, order, num_ranks, overhead, rules)
        _check_slots(problem)
        return problem


def as_degrees(degrees: ArrayLike) -> Ints:
    """Return distinct degrees >= 1, or raise."""
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


# --- the bound -------------------------------------------------------------------------------------------------------


def _area(problem: SequenceProblem, height: int) -> int:
    """Sum of the least rank-times of all items in groups that take at most `height`, in which each has its place."""
    rooms, extra = problem.by_degree["room"][:, None], problem.by_degree["overhead"][:, None]
    may = (problem.sizes <= rooms) & (problem.times + extra <= height)
    rank_times = np.where(may, problem.times * problem.degrees[:, None], np.iinfo(np.int64).max)
    return int(rank_times.min(axis=0).sum())


def closed_form(problem: SequenceProblem) -> Bound:
    """Return the best bound in closed form. O(n) times the degrees, or log of the times as often.

    ``area``: no slot's groups run longer than those of all slots together, S, so every item takes at least its least
    rank-time (degree times time) among the degrees that hold it and take no longer than S; and the slots offer their
    ranks for S. The least S for which that is enough is the bound. ``longest``: some group runs an item at its fastest
    degree. To either, the overheads of the fewest slots that hold all sizes.
    """
    if not len(problem.order):
        return Bound(problem.overhead * problem.rules.slots_for(0), "longest")
    ranks, longest = problem.num_ranks, int(problem.least[TIME].max())
    low = max(longest, -(-int(problem.least[RANK_TIME].sum()) // ranks))
    # The area falls as S grows, for more degrees are quick enough. Where the first S is enough already, it is the
    # bound; else it is below the slowest item at its slowest degree, where all degrees count.
    high = (
        low
        if ranks * low >= _area(problem, low)
        else max(low, int((problem.times + problem.by_degree["overhead"][:, None]).max()))
    )
    while low < high:
        middle = (low + high) // 2
        if ranks * middle >= _area(problem, middle):
            high = middle
        else:
            low = middle + 1
    return Bound(low + problem.overhead * problem.fewest_slots, "longest" if low == longest else "area")


# --- which group an item joins ---------------------------------------------------------------------------------------


_OPEN = np.dtype(
    [
        ("number", np.int64),  # in its slot
        ("degree", np.int64),
        ("time", np.int64),  # what is left of the time
        ("room", np.int64),  # and of the room
        ("leaf", np.int64),  # its vertex in the tree of its degree, where there are trees
    ]
)
"""A group that may take more items."""
_VERTEX = np.dtype(
    [
        ("time", np.int64),  # the most that a group below it has left
        ("room", np.int64),  # the same, perhaps of another group
        ("group", np.int64),  # of a leaf: where its group is among the open ones
    ]
)
"""A vertex of a tree over the groups of a degree; its children are 2 v and 2 v + 1."""
_CHOSEN = np.dtype(
    [
        ("slot", np.int64),  # which it is
        ("limit", np.int64),  # how tall it and those before it may be together, if no more are used
        ("height", np.int64),  # how tall the new one is
    ]
)
"""A slot that is solved anew."""


class Given(NamedTuple):
    """Items, degrees and ranks. Read-only."""

    times: Ints  # int64[D, n]
    sizes: Ints  # int64[D, n]
    least: Ints  # int64[3, n]: rows RANK_TIME, TIME, SIZE
    degrees: NDArray[np.void]  # OF_DEGREE[D], ascending
    ranks: Ranks


class Filling(NamedTuple):
    """Room to fill a slot, used again for every other. Writable."""

    groups: NDArray[np.void]  # _OPEN[most groups of a slot]: the open ones come first
    tree: NDArray[np.void]  # _VERTEX[2 * leaves of all degrees], or none where a slot has few groups


class Rule(NamedTuple):
    """How a slot is filled."""

    ceiling: int  # no group takes longer
    floor: int  # the least degree that a new group gets, if it can
    weight: int  # of time against room when groups are compared, in eighths
    spare: int  # so many items may find no place; one more ends it


class Scale(NamedTuple):
    """How groups are compared: the weight of a rule, and the units of its ceiling (see :func:`_scale`)."""

    weight: int
    shift: int
    unit: int


class Charges(NamedTuple):
    """What is asked of the number of slots, and what each costs."""

    overhead: int
    least: int  # slots that there have to be
    multiple: int  # their number is a multiple of this
    most: int  # that may hold something


class Pool(NamedTuple):
    """The items of slots that are solved anew, and what is made of them. Writable."""

    items: Ints  # int64[n]
    left: Ints  # int64[n]: those that have no new slot yet
    offer: Ints  # int64[n]: those of them that a slot is offered, in this order
    place: Ints  # int64[2, n]: what became of each that was offered; rows GROUP, DEGREE
    spare: Ints  # int64[2, n]: the same of a try
    fresh: Ints  # int64[3, n]: where each item goes; rows as in `where`, but the slot is its number among those chosen


class Task(NamedTuple):
    """Which slots are solved anew: numbers alone."""

    size: int  # so many are chosen
    num_items: int  # that are in them
    surplus: int  # 1 if one of them is new, -1 if there have to come to be fewer; else 0


@helper
def _degree_for(item, rule, free, times, sizes, degrees):
    """Degree of a new group for an item: the least from the rule's floor on that holds it, else the next below; or -1.

    `free` ranks are left.
    """
    num_degrees = len(degrees)
    # Upwards from the floor first. Degrees below it are tried last, and only because few ranks are better than none.
    for turn in range(num_degrees):
        d = rule.floor + turn if rule.floor + turn < num_degrees else num_degrees - 1 - turn
        degree = degrees[d]
        if degree["ranks"] > free or sizes[d, item] > degree["room"]:
            continue
        if times[d, item] + degree["overhead"] <= rule.ceiling:
            return d
    return -1


@helper
def _scale(largest):
    """Shift that leaves the bits by which groups are compared, and what one of these units is worth of the whole."""
    shift = 0
    while largest >> shift >= 1 << _FINE:
        shift += 1
    return shift, (1 << (2 * _FINE)) // max(1, largest >> shift)


_scale_kernel = kernel(_scale)


@helper
def _score(time, room, of_time, degree):
    """What would be left of a group: time and room in the same units, so that one number compares both."""
    of_room = 8 - of_time.weight
    return of_time.weight * ((time >> of_time.shift) * of_time.unit) + of_room * (
        (room >> degree["shift"]) * degree["unit"]
    )


@helper
def _choose_scanning(item, num_open, of_time, times, sizes, degrees, groups):
    """Best fit: which of the open groups has least left with the item; -1 if none has room."""
    best, least = -1, np.int64(_NEVER)
    for k in range(num_open):
        group = groups[k]
        d = group["degree"]
        time, room = group["time"] - times[d, item], group["room"] - sizes[d, item]
        if time >= 0 and room >= 0:
            score = _score(time, room, of_time, degrees[d])
            if score < least:
                best, least = k, score
    return best


@helper
def _first_fit(tree, base, leaves, time, room):
    """First leaf that has room for `time` and `room`; -1 if there is none."""
    # An inner vertex knows the most time and the most room below it, but these may be of two groups. So the walk may
    # have to come back up: to the next subtree to the right of where it failed.
    v = 1
    if tree[base + 1]["time"] < time or tree[base + 1]["room"] < room:
        return -1
    while v < leaves:
        v *= 2
        while tree[base + v]["time"] < time or tree[base + v]["room"] < room:
            while v % 2:  # a right child: its parent is done too
                v //= 2
                if v <= 1:
                    return -1
            v += 1
    return v


@helper
def _set_leaf(tree, base, leaf, time, room):
    """Say what is left of a group, and bring all vertices above it up to date."""
    tree[base + leaf]["time"] = time
    tree[base + leaf]["room"] = room
    v = leaf
    while v > 1:
        v //= 2
        below = base + 2 * v
        tree[base + v]["time"] = max(tree[below]["time"], tree[below + 1]["time"])
        tree[base + v]["room"] = max(tree[below]["room"], tree[below + 1]["room"])


@helper
def _choose_by_tree(item, of_time, times, sizes, degrees, counts, groups, tree):
    """Of every degree the first group that fits, and of these the one that has least left; -1 if there is none."""
    best, least = -1, np.int64(_NEVER)
    for d in range(len(counts)):
        if counts[d] == 0:
            continue
        degree = degrees[d]
        leaf = _first_fit(tree, degree["tree"], degree["leaves"], times[d, item], sizes[d, item])
        if leaf < 0:
            continue
        g = tree[degree["tree"] + leaf]["group"]
        score = _score(groups[g]["time"] - times[d, item], groups[g]["room"] - sizes[d, item], of_time, degree)
        if score < least:
            best, least = g, score
    return best


# --- a slot is filled ------------------------------------------------------------------------------------------------


@helper
def _make_filling(given):
    """Make room to fill a slot. Whether there are trees is decided by the problem, and by no slot of it."""
    most_groups, last = given.ranks.num // given.degrees[0]["ranks"], given.degrees[len(given.degrees) - 1]
    vertices = last["tree"] + 2 * last["leaves"] if most_groups > _MANY_GROUPS else 0
    return Filling(np.empty(most_groups, dtype=_OPEN), np.empty(vertices, dtype=_VERTEX))


@helper
def _fill(given, filling, pool, count, rule, place):
    """Fill one slot from ``pool[:count]``, in this order, under a rule.

    An item joins the group that has least left with it; where none takes it, it opens one. ``place``, int64[2, n], is
    the group and degree of each, -1 where it stays out. Returns how many are in, the slowest group and the work done.
    """
    # Taken out once: in the loop over items, each would be counted for every one of them.
    times, sizes, least, degrees, ranks = given
    groups, tree = filling
    num_degrees = len(degrees)
    many = len(tree) > 0
    counts = np.zeros(num_degrees, dtype=np.int64)
    shift, unit = _scale(rule.ceiling)
    of_time = Scale(rule.weight, shift, unit)
    # The least size still offered: a group with less room than that is closed, which keeps best fit's walk short.
    smallest = np.int64(_NEVER)
    if many:
        for v in range(len(tree)):
            tree[v]["time"] = tree[v]["room"] = -1
    else:
        for k in range(count):
            smallest = min(smallest, least[SIZE, pool[k]])
    num_groups, num_open, inside, work = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    free, height = ranks.num, np.int64(0)
    for k in range(count):
        item = pool[k]
        place[GROUP, k] = -1
        if many:
            at = _choose_by_tree(item, of_time, times, sizes, degrees, counts, groups, tree)
            work += num_degrees + 2
        else:
            at = _choose_scanning(item, num_open, of_time, times, sizes, degrees, groups)
            work += num_open + 2
        if at < 0:
            # No group takes the item. It may open one, as long as the slot has ranks for the smallest degree.
            d = np.int64(-1)
            if free >= degrees[0]["ranks"]:
                d = _degree_for(item, rule, free, times, sizes, degrees)
            elif num_open == 0:
                for j in range(k, count):
                    place[GROUP, j] = -1
                break
            if d < 0:
                # Where all items have to be in, the first that stays out ends the try.
                if k - inside >= rule.spare:
                    break
                continue
            counts[d] += 1
            at = num_open
            group, degree = groups[at], degrees[d]
            group["number"] = num_groups
            group["degree"] = d
            # The overhead of a group is charged before its first item.
            group["time"] = rule.ceiling - degree["overhead"]
            group["room"] = degree["room"]
            if many:
                group["leaf"] = degree["leaves"] + counts[d] - 1
                tree[degree["tree"] + group["leaf"]]["group"] = at
            free -= degree["ranks"]
            num_groups += 1
            num_open += 1
        group = groups[at]
        d = group["degree"]
        group["time"] -= times[d, item]
        group["room"] -= sizes[d, item]
        place[GROUP, k], place[DEGREE, k] = group["number"], d
        inside += 1
        # What time is left of the ceiling says how tall the group is.
        height = max(height, rule.ceiling - group["time"])
        if many:
            _set_leaf(tree, degrees[d]["tree"], group["leaf"], group["time"], group["room"])
        elif group["room"] < smallest:  # nothing fits it any more: the last open one takes its place
            num_open -= 1
            groups[at] = groups[num_open]
    return inside, height, work


@helper
def _squeeze(given, filling, pool, count, rule, place, spare):
    """Find, by halving, a low slot that takes all of ``pool[:count]``; return its height, or -1, and the work done.

    ``spare`` is room for a try that may fail.
    """
    least, num_ranks = given.least, given.ranks.num
    area = np.int64(0)
    for k in range(count):
        area += least[RANK_TIME, pool[k]]
    # Below the mean of the ranks nothing fits, so the halving begins there.
    low, height, work = area // num_ranks, np.int64(-1), np.int64(0)
    tall = rule.ceiling
    for _ in range(_HALVINGS):
        tried = Rule(tall, rule.floor, rule.weight, np.int64(0))
        inside, reached, more = _fill(given, filling, pool, count, tried, spare)
        work += more
        # Success is kept at what the slot really takes, which may be less than what was allowed.
        if inside == count:
            height = reached
            for k in range(count):
                place[GROUP, k], place[DEGREE, k] = spare[GROUP, k], spare[DEGREE, k]
        # The ceiling itself is too low. Nothing below it can do either.
        elif height < 0:
            break
        else:
            low = tall
        # One part in 2,048 is less than one item changes: further halving would buy nothing.
        if height - low <= height >> 11:
            break
        tall = (low + height) // 2
    return height, work


# --- slot after slot -------------------------------------------------------------------------------------------------


@helper
def _full(given, item, density):
    """Time of a group of the least degree that holds an item, full of items like it, times `density` / 64."""
    times, sizes, degrees = given.times, given.sizes, given.degrees
    # The longest item left is the hardest to combine. A group full of its like says what height uses its room.
    d = 0
    while sizes[d, item] > degrees[d]["room"]:
        d += 1
    copies = degrees[d]["room"] * density // max(1, sizes[d, item])
    if sizes[d, item] == 0 or times[d, item] > _NEVER // max(1, copies):
        return np.int64(_NEVER)
    return times[d, item] * copies // 64


@kernel(turns=1000)
def peel(given, where, heights, density, floor, weight):
    """Slot after slot, each filled from all that is left: returns how many slots, and the work done.

    The longest item left says how tall a slot becomes: as a group full of items like it, times `density` / 64; but
    where all that is left fits one slot that is no taller, that ends it. `floor` is the least degree that a new group
    gets, `weight` that of time against room.
    """
    least, num_ranks, filling = given.least, given.ranks.num, _make_filling(given)
    n = least.shape[1]
    rest = np.empty(n, dtype=np.int64)
    left, num_slots, work = np.int64(n), np.int64(0), np.int64(n)
    for i in range(n):
        rest[i] = i
    place = np.empty((2, n), dtype=np.int64)
    spare = np.empty((2, n), dtype=np.int64)
    while left > 0:
        # No slot ends before its longest item, nor before the mean of the ranks if it has to take everything.
        area, longest = np.int64(0), np.int64(0)
        for k in range(left):
            area += least[RANK_TIME, rest[k]]
            longest = max(longest, least[TIME, rest[k]])
        low = max(longest, area // num_ranks)
        # A quarter above the least height: where more is needed, one more slot is mostly the better use of it.
        high = low + low // 4
        tallest = _full(given, rest[0], density)
        work += left
        height = np.int64(-1)
        # Everything may fit this slot. That is worth a try only if the slot is no taller than others are.
        if low <= tallest:
            rule = Rule(high, floor, weight, np.int64(0))
            height, more = _squeeze(given, filling, rest, left, rule, place, spare)
            work += more
        if height < 0:
            # Else a slot that is filled to its height, and what stays out goes on to the next.
            rule = Rule(max(longest, min(tallest, high)), floor, weight, left)
            _, height, more = _fill(given, filling, rest, left, rule, place)
            work += more
        stay = 0
        for k in range(left):
            if place[GROUP, k] >= 0:
                i = rest[k]
                where[GROUP, i], where[DEGREE, i], where[SLOT, i] = place[GROUP, k], place[DEGREE, k], num_slots
            else:
                rest[stay] = rest[k]
                stay += 1
        left = stay
        heights[num_slots] = height
        num_slots += 1
    return num_slots, work


# --- a few slots anew ------------------------------------------------------------------------------------------------


@helper
def _charge(num_slots, charges):
    """What so many slots that hold something cost, with those that have to be there besides."""
    return charges.overhead * (-(-max(num_slots, charges.least) // charges.multiple) * charges.multiple)


@helper
def _value(heights, num_slots, charges):
    value = _charge(num_slots, charges)
    for k in range(num_slots):
        value += heights[k]
    return value


@helper
def _make_pool(n):
    items, left, offer = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    place, spare = np.empty((2, n), dtype=np.int64), np.empty((2, n), dtype=np.int64)
    return Pool(items, left, offer, place, spare, np.empty((3, n), dtype=np.int64))


@helper
def _pick(state, num_slots, most, chosen):
    """Draw the slots to be solved anew: two or three, of which the last may be an empty one. Returns how many."""
    # Two slots mostly, three in one case of four: these have more ways, and take longer to put together.
    size = min(num_slots, 2 + (draw(state, 4) == 0))
    for j in range(size):
        chosen[j]["slot"] = draw(state, num_slots)
        k = 0
        while k < j:
            if chosen[k]["slot"] == chosen[j]["slot"]:
                chosen[j]["slot"] = draw(state, num_slots)
                k = 0
            else:
                k += 1
    # An empty slot in one case of 16, so that the number of slots may grow where that pays.
    if (size < 2 or draw(state, 16) == 0) and num_slots < most:
        chosen[size]["slot"] = num_slots
        return size + 1
    return size


@helper
def _limit(chosen, size, num_slots, num_ranks, heights, charges):
    """Set how tall 1, 2, .. ``size`` slots may be together if they are to replace those chosen with a gain."""
    held, before = 0, np.int64(0)
    for j in range(size):
        if chosen[j]["slot"] < num_slots:
            held += 1
            before += heights[chosen[j]["slot"]]
    for used in range(1, size + 1):
        after = num_slots - held + used
        # One less than the slots cost now: whatever keeps to it is a gain.
        limit = before + _charge(num_slots, charges) - _charge(after, charges) - 1
        if num_slots > charges.most:  # at any price fewer slots, and none for more
            limit = np.int64((_NEVER >> 2) // num_ranks if after < num_slots else -1)
        chosen[used - 1]["limit"] = limit


@helper
def _offer(state, way, slot, left, count, where, offer):
    """Choose which of the items left a slot is offered, and in which order; return how many these are.

    ``left[:count]`` are they, ``offer`` is filled with some of these. `way` 0: all; 1: most of them; 2: the slot's own
    and half of the others; 3: the slot's own before all others.
    """
    offered = 0
    # The ways differ in what they keep. Way 3 offers seven in eight of what the slot had before all else, and so
    # repairs it; ways 1 and 2 leave some items to the slots that follow.
    chance = 1 + draw(state, 3)
    if way == 3:
        for k in range(count):
            if where[SLOT, left[k]] == slot and draw(state, 8):
                offer[offered] = left[k]
                # Marked by its sign, so that the second loop passes it over and puts it back.
                left[k] = -1 - left[k]
                offered += 1
    for k in range(count):
        if left[k] < 0:
            left[k] = -1 - left[k]
        elif (way != 1 or draw(state, 16) >= chance) and (way != 2 or where[SLOT, left[k]] == slot or draw(state, 2)):
            offer[offered] = left[k]
            offered += 1
    return offered


@helper
def _ceiling(state, height, surplus, most):
    """How tall a slot may become, from how tall it was; in 1024ths of it."""
    # Where slots are too many, height is no matter: the slot may have to take all there is.
    if surplus < 0:
        return most
    # Drawn, and not computed: which heights go together is what the search has to find.
    if surplus > 0:  # one slot more than before
        share = 307 + draw(state, 820)
    elif draw(state, 64) == 0:  # fewer, perhaps
        share = 1024 + draw(state, 3072)
    else:
        share = 820 + draw(state, 410)
    return min(height // 1024 * share + height % 1024 * share // 1024, most)


@helper
def _keep(left, count, fresh, j, least):
    """Leave in ``left[:count]`` what slot `j` did not take; return how many, their rank-time and their size."""
    area, size = np.int64(0), np.int64(0)
    stay = 0
    for k in range(count):
        i = left[k]
        if fresh[SLOT, i] != j:
            left[stay] = i
            stay += 1
            area += least[RANK_TIME, i]
            size += least[SIZE, i]
    return stay, area, size


@helper
def _rebuild(state, given, filling, where, heights, chosen, pool, task):
    """Put the items of the chosen slots into as many new ones, or fewer: returns how many, 0 where that gains nothing.

    Also returns the work done.
    """
    size, count, surplus = task
    items, left, offer, place, spare, fresh = pool
    least, ranks, num_degrees = given.least, given.ranks, len(given.degrees)
    for k in range(count):
        left[k], fresh[SLOT, items[k]] = items[k], -1
    work, total, stay = 3 * count, np.int64(0), np.int64(count)
    way, weight, floor = draw(state, 4), draw(state, _WEIGHTS), draw(state, num_degrees)
    for j in range(size):
        last = j == size - 1
        # What is left of the limit. With nothing left, the items that remain would need height that is not there.
        allowed = chosen[j]["limit"] - total
        if allowed < 0:
            return 0, work
        # The last slot has to take all that is left, and is made as low as that allows.
        if last:
            for k in range(stay):
                offer[k] = left[k]
            offered, inside = stay, stay
            rule = Rule(allowed, floor, weight, np.int64(0))
            height, more = _squeeze(given, filling, offer, offered, rule, place, spare)
        else:
            offered = _offer(state, way, chosen[j]["slot"], left, stay, where, offer)
            tall = _ceiling(state, heights[chosen[j]["slot"]], surplus, allowed)
            rule = Rule(tall, floor, weight, np.int64(offered))
            inside, height, more = _fill(given, filling, offer, offered, rule, place)
        work += more + 2 * stay
        if height < 0 or inside == 0:
            return 0, work
        for k in range(offered):
            if place[GROUP, k] >= 0:
                i = offer[k]
                fresh[GROUP, i], fresh[DEGREE, i], fresh[SLOT, i] = place[GROUP, k], place[DEGREE, k], j
        stay, area, volume = _keep(left, stay, fresh, j, least)
        chosen[j]["height"] = height
        total += height
        # The slots used up to here hold everything: fewer than before, perhaps.
        if stay == 0:
            return (j + 1 if total <= chosen[j]["limit"] else 0), work
        # By their sums alone, the items left may be too much for the slots left. Most tries end here, long before the
        # last slot.
        room = (size - 1 - j) * ranks.num * ranks.room
        if area > (chosen[min(size - 1, j + 1)]["limit"] - total) * ranks.num or volume > room:
            return 0, work
        if draw(state, 2):
            weight = draw(state, _WEIGHTS)
        if draw(state, 2):
            floor = draw(state, num_degrees)
    return 0, work


@helper
def _drop(a, num_slots, where, heights):
    """Number the last slot `a`, which holds nothing."""
    for i in range(where.shape[1]):
        if where[SLOT, i] == num_slots - 1:
            where[SLOT, i] = a
    heights[a] = heights[num_slots - 1]


@kernel(turns=1000)
def resolve(given, where, heights, num_slots, charges, seed, budget, goal):
    """Solve a few slots anew, over and over, and keep what is better; in place. Returns how many slots, and the work.

    A solution of more slots than may hold something gets fewer first. Ends when the budget does or a value of `goal` is
    reached.
    """
    n, most, filling = where.shape[1], charges.most, _make_filling(given)
    # A generator of its own, with a seed that the caller counts up: the same plan on every rank.
    state = np.empty(1, dtype=np.int64)
    state[0] = seed
    chosen, pool = np.empty(_TRIED, dtype=_CHOSEN), _make_pool(n)
    items, fresh = pool.items, pool.fresh
    local = np.empty(n + 1, dtype=np.int64)  # of each slot, which of the chosen ones it is, or -1
    for k in range(n + 1):
        local[k] = -1
    value = _value(heights, num_slots, charges)
    work, idle = np.int64(0), 0
    while work < budget and idle < _PATIENCE * (n + 16) and (value > goal or num_slots > most):
        idle += 1
        size = _pick(state, num_slots, most, chosen)
        _limit(chosen, size, num_slots, given.ranks.num, heights, charges)
        for j in range(size):
            local[chosen[j]["slot"]] = j
        count = np.int64(0)
        for i in range(n):
            if local[where[SLOT, i]] >= 0:
                items[count] = i
                count += 1
        for j in range(size):
            local[chosen[j]["slot"]] = -1
        # Slots may be too many for what was asked. Then fewer come first, at any price.
        surplus = np.int64(-1) if num_slots > most else np.int64(chosen[size - 1]["slot"] == num_slots)
        used, more = _rebuild(state, given, filling, where, heights, chosen, pool, Task(size, count, surplus))
        # The pass over all items that makes the pool, a quarter of a unit for each.
        work += more + n // 4
        if used == 0:
            continue
        idle = 0
        for k in range(count):
            i = items[k]
            where[GROUP, i], where[DEGREE, i] = fresh[GROUP, i], fresh[DEGREE, i]
            where[SLOT, i] = chosen[fresh[SLOT, i]]["slot"]
        for j in range(used):
            num_slots = max(num_slots, chosen[j]["slot"] + 1)
            heights[chosen[j]["slot"]] = chosen[j]["height"]
        # A slot that is left empty takes the number of the last one, so that slots stay 0, 1, 2, ...
        for j in range(used, size):
            if chosen[j]["slot"] < num_slots:
                _drop(chosen[j]["slot"], num_slots, where, heights)
                num_slots -= 1
                for k in range(j + 1, size):
                    if chosen[k]["slot"] == num_slots:
                        chosen[k]["slot"] = chosen[j]["slot"]
        value = _value(heights, num_slots, charges)
    return num_slots, work


# --- many starts, the best improved ----------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Solution:
    """Group in its slot, degree and slot of the item at each position; how tall the first `num_slots` slots are."""

    where: NDArray[np.int64]  # int64[3, n]: rows GROUP, DEGREE, SLOT
    heights: NDArray[np.int64]
    num_slots: int

    def value(self, problem: SequenceProblem) -> int:
        """Return the sum of the slots' times."""
        return int(self.heights[: self.num_slots].sum()) + problem.overhead * problem.rules.slots_for(self.num_slots)


def _starts(num_degrees: int) -> Iterator[tuple[int, int, int]]:
    """Densities, least degrees of new groups and weights of time for peeling: those that do well come first."""
    # Degrees that are worth a try, each once: the smallest, those next to it, the middle one and the largest. Documents
    # on 1,024 ranks and more take 1.7 % longer without the middle one.
    last = num_degrees - 1
    floors = dict.fromkeys((0, min(2, last), min(1, last), last // 2, last))
    for weight in (0, 4):
        for density in _DENSITIES:
            for floor in floors:
                yield density, floor, weight


def _search(problem: SequenceProblem, goal: int, work: int) -> tuple[Solution, bool]:
    """Return the best solution found, and whether the search ended by itself; a value of `goal` ends it.

    The solution may have more slots than the rules permit.
    """
    p, n, seed = problem, len(problem.order), 0
    work = work * _SCALE[0] // _SCALE[1]
    given = Given(p.times, p.sizes, p.least, p.by_degree, p.ranks)
    charges = Charges(p.overhead, p.rules.least, p.rules.multiple, p.most_filled)

    def rank(found: Solution) -> tuple[int, int]:
        """What is smaller is better: slots too many, then the value."""
        return max(0, found.num_slots - p.most_filled), found.value(p)

    fifth, least = (work // part for part in _PEELING)
    starts = _PEELED_ITEM * n
    many = p.num_ranks // int(p.degrees[0]) > _MANY_GROUPS
    enough = max(fifth, starts) if many else min(fifth, max(least, starts))
    peeled: list[Solution] = []
    done = 0
    for density, floor, weight in _starts(len(p.degrees)):
        start = Solution(np.zeros((3, n), dtype=np.int64), np.zeros(n + 1, dtype=np.int64), 0)
        start.num_slots, spent = peel(given, start.where, start.heights, density, floor, weight)
        peeled.append(start)
        done += int(spent)
        # The first start is paid for by every budget: there has to be a solution.
        if done >= enough:
            break
    peeled.sort(key=rank)
    # Starts of different numbers of slots lead to different solutions: the best of each number comes before second
    # ones.
    first = {each.num_slots: each for each in reversed(peeled)}  # the best of each number of slots
    alive = sorted(first.values(), key=rank)
    alive += [each for each in peeled if first[each.num_slots] is not each]
    alive = alive[: _ROUNDS[0][0]]
    for count, share in _ROUNDS:
        alive = sorted(alive, key=rank)[:count]
        for each in alive:
            if min(map(rank, alive)) > (0, goal) and work > done:
                seed += 1
                each.num_slots, spent = resolve(
                    given, each.where, each.heights, each.num_slots, charges, seed,
                    min(work - done, work * share // 100), goal,
                )  # fmt: skip
                done += int(spent)
    return min(alive, key=rank), done < work


# --- which ranks a group is ------------------------------------------------------------------------------------------


class _Laid(NamedTuple):
    """Groups of all slots, numbered slot by slot and in each by first rank; slots in descending order of height."""

    slot_of_item: NDArray[Any]
    group_of_item: NDArray[Any]
    degree_of_group: NDArray[Any]
    slot_of_group: NDArray[Any]
    first_rank_of_group: NDArray[Any]
    group_times: NDArray[Any]


def _lay_out(problem: SequenceProblem, found: Solution) -> _Laid:
    """Number the groups, and give them ranks."""
    n = len(problem.order)
    number = found.where[SLOT] * (n + 1) + found.where[GROUP]
    _, label, inverse = np.unique(number, return_index=True, return_inverse=True)
    slot, degree = found.where[SLOT, label], found.where[DEGREE, label]
    times = problem.by_degree["overhead"][degree]
    np.add.at(times, inverse, problem.times[degree[inverse], np.arange(n)])
    heights = np.zeros(found.num_slots, dtype=np.int64)
    np.maximum.at(heights, slot, times)
    place = np.empty(found.num_slots, dtype=np.int64)
    place[np.argsort(-heights, kind="stable")] = np.arange(found.num_slots)
    slot, ranks = place[slot], problem.degrees[degree]
    # Large groups first: where each degree divides the next, all groups then begin at a multiple of their degree. Of
    # equal ones the slower first, so that the order does not hang on the search.
    order = np.lexsort((-times, -ranks, slot))
    slot, ranks = slot[order], ranks[order]
    before = np.cumsum(ranks) - ranks
    firsts = before - before[np.searchsorted(slot, slot)]
    number_of_label = np.empty(len(order), dtype=np.int64)
    number_of_label[order] = np.arange(len(order))
    by_item = np.empty(n, dtype=np.int64)
    by_item[problem.order] = number_of_label[inverse]
    parts = (part.astype(np.int32) for part in (slot[by_item], by_item, ranks, slot, firsts))
    return _Laid(*map(read_only, (*parts, times[order])))
