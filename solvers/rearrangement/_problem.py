"""A rearrangement made ready for the solvers, and the result made from what they return.

Here is what all methods share before (checks, levels, classes, places) and after (what moves, the better of it and no
change, the certificate). In between, groups stand in *class order*: position i is group ``group_order[i]``, so that the
groups of one class, and the places they may take, are two contiguous ranges.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._jit import kernel
from solvers._sort import sort_descending
from solvers.arguments import INT64_MAX, as_int64, unknown
from solvers.errors import ArgumentError, InfeasibleError, UsageError
from solvers.groups import read_only
from solvers.rearrangement._transport import Rows, dual_value_kernel, solve_parts, solve_transport, take_largest
from solvers.rearrangement.types import OBJECTIVES, BoundCertificate, Objective, RearrangementResult
from solvers.rearrangement.volumes import Volumes, as_volumes
from solvers.types import status_of

# Work that no search spends.
UNLIMITED = 2**62
# Up to so many ranks in a place the optimum inside it is found at once; less moves 0.02 points more inside.
_TINY = 64
# Up to here the auction's prices, which may rise past any amount, stay clear of int64's end.
_SMALL_TOTAL = 2**60


class Entries(NamedTuple):
    """The volumes as kernels take them; all of it is read-only."""

    offsets: NDArray[np.int64]  # int64[m + 1]: group g has the entries ``offsets[g] .. offsets[g + 1] - 1``
    ranks: NDArray[np.int32]  # int32[k]: where each lies
    amounts: NDArray[np.int64]  # int64[k]


class Units(NamedTuple):
    """Units of all levels, numbered together: nodes first, from 0. Nobody writes to it once it is made."""

    of_rank: NDArray[np.int32]  # int32[num_levels, m]
    weights: NDArray[np.int64]  # int64[num_levels]: what crossing each level costs
    starts: NDArray[np.int64]  # int64[num_units + 1]: unit u holds the places ``places[starts[u] : starts[u + 1]]``
    places: NDArray[np.int32]  # int32[num_levels * num_places]


class ProvenBound(NamedTuple):
    """A lower bound on the objective, the argument's name, and the numbers it can be recomputed from."""

    value: int
    name: str
    certificate: BoundCertificate


# --- loops over the volumes -------------------------------------------------------------------------------------------


@kernel
def _count_entries(order, entries, units, num_places):
    """At most so many entries will :func:`_kept_in_places` make: O(entries)."""
    total = np.int64(0)
    for g in order:
        row = np.int64(0)
        for e in range(entries.offsets[g], entries.offsets[g + 1]):
            for level in range(len(units.of_rank)):
                u = units.of_rank[level, entries.ranks[e]]
                row += units.starts[u + 1] - units.starts[u]
        total += min(row, num_places)
    return total


@kernel
def _kept_in_places(order, entries, units, span, rows):
    """What group ``order[i]`` keeps off the network in each place, weighted by the levels that it then does not cross.

    Group i may take the places ``span[i, 0] .. span[i, 1] - 1``, those of its class. Fills `rows`.
    """
    offsets, ranks, amounts = entries
    row_starts, places, kept = rows
    unit_starts, unit_places = units.starts, units.places
    volume_of_unit = np.zeros(len(unit_starts) - 1, dtype=np.int64)
    touched_units = np.empty(len(volume_of_unit), dtype=np.int32)
    worth = np.zeros(len(unit_places), dtype=np.int64)
    seen_by = np.full(len(unit_places), -1, dtype=np.int64)
    filled = 0
    for i in range(len(order)):
        g = order[i]
        for level in range(len(units.of_rank)):
            # First what the group has in each unit, then what each place of these units keeps.
            touched = 0
            for e in range(offsets[g], offsets[g + 1]):
                u = units.of_rank[level, ranks[e]]
                if volume_of_unit[u] == 0 and amounts[e] > 0:
                    touched_units[touched] = u
                    touched += 1
                volume_of_unit[u] += amounts[e]
            for u in touched_units[:touched]:
                for k in range(unit_starts[u], unit_starts[u + 1]):
                    p = unit_places[k]
                    if span[i, 0] <= p < span[i, 1]:
                        if seen_by[p] != i:
                            seen_by[p] = i
                            worth[p] = 0
                            places[filled] = p
                            filled += 1
                        worth[p] += units.weights[level] * volume_of_unit[u]
                volume_of_unit[u] = 0
        for e in range(row_starts[i], filled):
            kept[e] = worth[places[e]]
        row_starts[i + 1] = filled


@kernel
def _weighted_sends(rank_of_group, entries, units, sends):
    """What leaves each rank, each element counted with the weights of the levels that it crosses."""
    sends[:] = 0
    for g in range(len(rank_of_group)):
        target = rank_of_group[g]
        for e in range(entries.offsets[g], entries.offsets[g + 1]):
            source = entries.ranks[e]
            for level in range(len(units.of_rank)):
                if units.of_rank[level, source] != units.of_rank[level, target]:
                    sends[source] += units.weights[level] * entries.amounts[e]


@kernel
def _measure(rank_of_group, entries, units, crossing, rank_send, rank_receive):
    """What crosses each level, and what each rank sends to and receives from other nodes.

    Returns what moves between ranks of one node.
    """
    ranks, amounts, of_rank = entries.ranks, entries.amounts, units.of_rank
    inside = np.int64(0)
    for g in range(len(rank_of_group)):
        target = rank_of_group[g]
        for e in range(entries.offsets[g], entries.offsets[g + 1]):
            source = ranks[e]
            for level in range(len(of_rank)):
                if of_rank[level, source] != of_rank[level, target]:
                    crossing[level] += amounts[e]
            if of_rank[0, source] != of_rank[0, target]:
                rank_send[source] += amounts[e]
                rank_receive[target] += amounts[e]
            elif source != target:
                inside += amounts[e]
    return inside


# --- the problem ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class RearrangementProblem:
    """Checked volumes on a checked topology."""

    volumes: Volumes
    units: Units
    objective: Objective
    group_order: NDArray[np.int32]  # int32[m]: groups by class
    rank_order: NDArray[np.int32]  # int32[m]: ranks by class: position i of both is one way to put groups on ranks
    # int64[num_classes + 1]: where the groups and the places of each class start
    class_groups: NDArray[np.int64]
    class_places: NDArray[np.int64]
    place_of_rank: NDArray[np.int32]  # int32[m]
    # int64[num_places + 1]: place p has the ranks ``rank_of_slot[starts[p] : starts[p + 1]]``
    starts: NDArray[np.int64]
    rank_of_slot: NDArray[np.int32]  # int32[m]
    slot_of_rank: NDArray[np.int32]  # int32[m]

    @classmethod
    def prepare(
        cls,
        volumes: Volumes | ArrayLike,
        levels: ArrayLike | Sequence[ArrayLike],
        objective: str,
        weights: ArrayLike | None,
        class_of_group: ArrayLike | None,
        class_of_rank: ArrayLike | None,
    ) -> "RearrangementProblem":
        """Check everything. Raises TypeError, ValueError or InfeasibleError that name the argument and the rule."""
        checked = as_volumes(volumes)
        m = checked.num_ranks
        if objective not in OBJECTIVES:
            raise unknown("objective", objective, OBJECTIVES)
        units = _units(levels, m)
        worth = _weights(weights, len(units))
        if checked.total * int(worth.sum()) > INT64_MAX:
            raise UsageError(
                "the sum of {volumes} times the sum of {weights} must fit int64, "
                f"got {checked.total} * {int(worth.sum())}"
            )
        group_class, rank_class, num_classes = _classes(class_of_group, class_of_rank, m)
        group_order = np.argsort(group_class, kind="stable").astype(np.int32)
        rank_order = np.argsort(rank_class, kind="stable").astype(np.int32)
        # A place is a class and a node; places are numbered by class, so that those of a class are a range.
        pairs = rank_class.astype(np.int64) * (int(units[0].max()) + 1) + units[0]
        _, first, place_of_rank, rooms = np.unique(pairs, return_index=True, return_inverse=True, return_counts=True)
        starts = np.concatenate([[0], np.cumsum(rooms)]).astype(np.int64)
        rank_of_slot = np.argsort(place_of_rank, kind="stable").astype(np.int32)
        slot_of_rank = np.empty(m, dtype=np.int32)
        slot_of_rank[rank_of_slot] = np.arange(m, dtype=np.int32)
        classes = np.arange(num_classes + 1)
        units_of_places = units[:, first].ravel()
        # The places of each unit: of a node its classes, of a rack those of its nodes.
        by_unit = np.argsort(units_of_places, kind="stable")
        return cls(
            volumes=checked,
            units=Units(
                units,
                worth,
                np.searchsorted(units_of_places[by_unit], np.arange(int(units.max()) + 2)),
                (by_unit % len(first)).astype(np.int32),
            ),
            objective=objective,
            group_order=group_order,
            rank_order=rank_order,
            class_groups=np.searchsorted(group_class[group_order], classes),
            class_places=np.searchsorted(rank_class[first], classes),
            place_of_rank=place_of_rank.astype(np.int32),
            starts=starts,
            rank_of_slot=rank_of_slot,
            slot_of_rank=slot_of_rank,
        )

    def with_objective(self, objective: Objective) -> "RearrangementProblem":
        """Return the same problem under another objective."""
        return replace(self, objective=objective)

    @property
    def num_ranks(self) -> int:
        """Number of ranks, and of groups."""
        return len(self.place_of_rank)

    @property
    def num_places(self) -> int:
        """Number of places: pairs of a class and a node."""
        return len(self.starts) - 1

    @property
    def small(self) -> bool:
        """Whether sums of weighted volumes stay far enough from the end of int64 for every kernel."""
        return self.fits(1)

    def fits(self, factor: int) -> bool:
        """Whether sums of weighted volumes, each counted `factor`-fold, stay far enough from the end of int64."""
        return self.volumes.total * int(self.units.weights.sum()) * factor <= _SMALL_TOTAL

    @property
    def node_of_rank(self) -> NDArray[np.int32]:
        """int32[m]: numbered from 0."""
        nodes: NDArray[np.int32] = self.units.of_rank[0]
        return nodes

    @property
    def entries(self) -> Entries:
        """The volumes as kernels take them."""
        volumes = self.volumes
        return Entries(read_only(volumes.offsets), read_only(volumes.ranks), read_only(volumes.amounts))

    def rows(self, multiplier: NDArray[np.int64] | None = None) -> Rows:
        """What each group keeps in each place; what lies on rank r counted ``multiplier[r]``-fold. O(entries)."""
        entries = self.entries
        if multiplier is not None:
            entries = entries._replace(amounts=read_only(entries.amounts * multiplier[entries.ranks]))
        size = _count_entries(self.group_order, entries, self.units, self.num_places)
        groups_of_class = np.diff(self.class_groups)
        span = np.repeat(np.stack([self.class_places[:-1], self.class_places[1:]], axis=1), groups_of_class, axis=0)
        rows = Rows(np.zeros(self.num_ranks + 1, dtype=np.int64), np.empty(size, np.int32), np.empty(size, np.int64))
        _kept_in_places(self.group_order, entries, self.units, np.ascontiguousarray(span), rows)
        filled = rows.offsets[-1]
        return Rows(rows.offsets, rows.places[:filled], rows.kept[:filled])

    def _parts(self, rows: Rows) -> Iterator[tuple[Rows, NDArray[np.int64], slice, slice]]:
        """One transportation problem a class, numbered from 0: its rows, its starts, its groups, its places.

        Classes of which no group keeps anything anywhere are left out: nothing is to be won there, nor to be proven.
        """
        for k in np.flatnonzero(np.diff(rows.offsets[self.class_groups])).tolist():
            groups = slice(int(self.class_groups[k]), int(self.class_groups[k + 1]))
            places = slice(int(self.class_places[k]), int(self.class_places[k + 1]))
            entries = slice(int(rows.offsets[groups.start]), int(rows.offsets[groups.stop]))
            offsets = rows.offsets[groups.start : groups.stop + 1] - entries.start
            starts = self.starts[places.start : places.stop + 1] - self.starts[places.start]
            part = Rows(offsets, rows.places[entries] - np.int32(places.start), rows.kept[entries])
            yield part, starts, groups, places

    def greedy(self, rows: Rows) -> NDArray[np.int32]:
        """Return a place for each group in class order: the largest amounts first."""
        assignment = np.empty(self.num_ranks, dtype=np.int32)
        order, _ = sort_descending(rows.kept, int(rows.kept.max(initial=0)))
        # Room is counted place by place, and each class finds as much of it as it has groups: all classes in one pass.
        take_largest(rows, order, self.starts, assignment)
        return assignment

    def transport(self, rows: Rows, assignment: NDArray[np.int32], work: int) -> tuple[NDArray[np.int64], int]:
        """Improve `assignment`, in class order, in place; return the prices that prove most, and the work left."""
        price = np.zeros(self.num_places, dtype=np.int64)
        for part, starts, groups, places in self._parts(rows):
            local = assignment[groups] - np.int32(places.start)
            part_price = price[places]
            work = solve_transport(part, starts, local, part_price, self.small, work)
            assignment[groups] = local + np.int32(places.start)
        return price, work

    def bound(self, rows: Rows, price: NDArray[np.int64], multiplier: NDArray[np.int64] | None = None) -> ProvenBound:
        """Return what `price` proves, by weak duality; see :class:`BoundCertificate`."""
        counted = np.ones(self.num_ranks, dtype=np.int64) if multiplier is None else multiplier
        limit = sum(
            int(dual_value_kernel(part, starts, price[places])) for part, starts, _, places in self._parts(rows)
        )
        everything = int((self.volumes.amounts * counted[self.volumes.ranks]).sum()) * int(self.units.weights.sum())
        value = max(0, everything - limit)
        if self.objective == "max":
            value = -(-value // int(counted.sum()))
        return ProvenBound(value, "dual", BoundCertificate(counted, price))

    def nothing_crosses(self) -> ProvenBound:
        """Return the bound that needs no proof: 0."""
        ones, zeros = np.ones(self.num_ranks, dtype=np.int64), np.zeros(self.num_places, dtype=np.int64)
        return ProvenBound(0, "dual", BoundCertificate(ones, zeros))

    def settled(self, assignment: NDArray[np.int32], work: int = UNLIMITED) -> NDArray[np.int32]:
        """Return a rank for each group, from a place for each in class order."""
        place_of_group = np.empty(self.num_ranks, dtype=np.int32)
        place_of_group[self.group_order] = assignment
        return _settle(self, place_of_group, work)

    def resettled(self, rank_of_group: NDArray[np.int32], work: int = UNLIMITED) -> NDArray[np.int32]:
        """Return a rank for each group in the node where `rank_of_group` has it, so that most stays where it is."""
        return self.settled(self.place_of_rank[rank_of_group[self.group_order]], work)

    def identity(self) -> NDArray[np.int32]:
        """Return the rank of each group where nothing is rearranged: the k-th group of a class on its k-th rank."""
        rank_of_group = np.empty(self.num_ranks, dtype=np.int32)
        rank_of_group[self.group_order] = self.rank_order
        return rank_of_group

    def sends(self, rank_of_group: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return what each rank sends, each element counted with the weights of the levels that it crosses."""
        sends = np.empty(self.num_ranks, dtype=np.int64)
        _weighted_sends(rank_of_group, self.entries, self.units, sends)
        return sends

    def value_of(self, rank_of_group: NDArray[np.int32]) -> int:
        """Return the value of the objective."""
        sends = self.sends(rank_of_group)
        return int(sends.sum() if self.objective == "sum" else sends.max())

    def result(
        self,
        candidates: Sequence[NDArray[np.int32]],
        bound: ProvenBound,
        method: str,
        started: float,
        *,
        out_of_time: bool = False,
    ) -> RearrangementResult:
        """Build the result of the best of `candidates`, each a rank for each group; ties to the first."""
        measured = [_Measured.of(self, candidate) for candidate in candidates]
        best = min(measured, key=lambda one: (one.value(self), one.weighted(self), one.intra_node))
        value = best.value(self)
        num_nodes = int(self.node_of_rank.max()) + 1
        node_send, node_receive = np.zeros((2, num_nodes), dtype=np.int64)
        np.add.at(node_send, self.node_of_rank, best.rank_send)
        np.add.at(node_receive, self.node_of_rank, best.rank_receive)
        return RearrangementResult(
            rank_of_group=best.rank_of_group,
            objective=self.objective,
            value=value,
            crossing_volume=best.crossing,
            inter_node_volume=int(best.crossing[0]),
            intra_node_volume=best.intra_node,
            max_rank_send=int(best.rank_send.max()),
            max_rank_receive=int(best.rank_receive.max()),
            max_node_send=int(node_send.max()),
            max_node_receive=int(node_receive.max()),
            lower_bound=bound.value,
            bound_name=bound.name,
            certificate=bound.certificate,
            status=status_of(value, bound.value, out_of_time=out_of_time),
            method=method,
            runtime_s=time.perf_counter() - started,
        )


def _settle(problem: RearrangementProblem, place_of_group: NDArray[np.int32], work: int) -> NDArray[np.int32]:
    """Inside each place, groups to ranks so that most stays where it is; in large places as far as `work` allows.

    The same problem again, in which each rank is a place for one group.
    """
    starts, num_groups, rooms = problem.starts, len(place_of_group), np.diff(problem.starts)
    groups = np.argsort(place_of_group, kind="stable")
    first = np.repeat(starts[:-1], rooms)  # slot of the place that each of them is in
    rows = _rows_inside(problem, groups, first, np.repeat(rooms, rooms))
    slot_of_group = (np.arange(num_groups) - first).astype(np.int32)
    price, ones = np.empty(num_groups, dtype=np.int64), np.arange(num_groups + 1)
    if (rooms <= _TINY).all():  # in one call
        solve_parts(starts, starts, rows, ones, slot_of_group, price, False, UNLIMITED)
    else:
        for p, room in enumerate(rooms.tolist()):
            inside = slice(starts[p], starts[p + 1])
            entries = slice(rows.offsets[starts[p]], rows.offsets[starts[p + 1]])
            part = Rows(
                rows.offsets[starts[p] : starts[p + 1] + 1] - entries.start, rows.places[entries], rows.kept[entries]
            )
            if room <= _TINY:
                solve_transport(part, ones[: room + 1], slot_of_group[inside], price[inside], False, UNLIMITED)
                continue
            order = np.argsort(-part.kept, kind="stable").astype(np.int32)
            take_largest(part, order, ones[: room + 1], slot_of_group[inside])
            if work > 0:
                here = slot_of_group[inside], price[inside]
                work = solve_transport(part, ones[: room + 1], *here, problem.small, work)
    rank_of_group = np.empty(num_groups, dtype=np.int32)
    rank_of_group[groups] = problem.rank_of_slot[first + slot_of_group]
    return rank_of_group


def _rows_inside(
    problem: RearrangementProblem, groups: NDArray[np.int64], first: NDArray[np.int64], room: NDArray[np.int64]
) -> Rows:
    """What each of `groups` has on the ``room`` slots from ``first`` on, as rows."""
    offsets, ranks, amounts = problem.entries
    sizes = np.diff(offsets)[groups]
    ends = np.cumsum(sizes)
    entries = np.repeat(offsets[groups] - ends + sizes, sizes) + np.arange(int(ends[-1]))
    row = np.repeat(np.arange(len(groups)), sizes)
    slots, kept = problem.slot_of_rank[ranks[entries]] - first[row], amounts[entries]
    stays = (slots >= 0) & (slots < room[row]) & (kept > 0)
    counts = np.bincount(row[stays], minlength=len(groups))
    return Rows(np.concatenate(([0], np.cumsum(counts))), slots[stays].astype(np.int32), kept[stays])


class _Measured(NamedTuple):
    rank_of_group: NDArray[np.int32]
    crossing: NDArray[np.int64]
    rank_send: NDArray[np.int64]
    rank_receive: NDArray[np.int64]
    intra_node: int

    @classmethod
    def of(cls, problem: RearrangementProblem, rank_of_group: NDArray[np.int32]) -> "_Measured":
        crossing = np.zeros(len(problem.units.weights), dtype=np.int64)
        send, receive = np.zeros((2, problem.num_ranks), dtype=np.int64)
        inside = _measure(rank_of_group, problem.entries, problem.units, crossing, send, receive)
        return cls(rank_of_group, crossing, send, receive, int(inside))

    def weighted(self, problem: RearrangementProblem) -> int:
        return int((self.crossing * problem.units.weights).sum())

    def value(self, problem: RearrangementProblem) -> int:
        return self.weighted(problem) if problem.objective == "sum" else problem.value_of(self.rank_of_group)


def _units(levels: ArrayLike | Sequence[ArrayLike], m: int) -> NDArray[np.int32]:
    """Levels with their units numbered together, each level's from 0 in ascending order of label."""
    try:
        nested = np.ndim(levels) == 2  # type: ignore[arg-type]
    except ValueError:  # rows of different lengths: the check below names the one
        nested = True
    rows: list[Any] = list(levels) if nested else [levels]  # type: ignore[arg-type]
    if not rows:
        raise ArgumentError("levels", "hold at least one level, {node_of_rank}", "none")
    units = np.empty((len(rows), m), dtype=np.int32)
    offset = 0
    for level, row in enumerate(rows):
        name = "node_of_rank" if not nested else f"levels[{level}]"
        labels = as_int64(name, row)
        if len(labels) != m:
            raise ArgumentError(name, f"have {m} entries, one a rank", len(labels))
        names, units[level] = np.unique(labels, return_inverse=True)
        if level:
            _, first, inner = np.unique(units[level - 1], return_index=True, return_inverse=True)
            if (split := units[level] != units[level][first[inner]]).any():
                rank = int(np.argmax(split))
                raise ArgumentError(
                    "levels",
                    f"go from small units to large ones: ranks {first[inner[rank]]} and {rank} share a unit of "
                    f"{{levels}}[{level - 1}], but not of {{levels}}[{level}]",
                )
        units[level] += offset
        offset += len(names)
    return units


def _weights(weights: ArrayLike | None, num_levels: int) -> NDArray[np.int64]:
    if weights is None:
        return np.ones(num_levels, dtype=np.int64)
    array = as_int64("weights", weights)
    if len(array) != num_levels:
        raise ArgumentError("weights", f"have {num_levels} entries, one a level", len(array))
    if (array < 1).any():
        level = int(np.argmax(array < 1))
        raise ArgumentError("weights", "be >= 1", array[level], level)
    return array.copy()


def _classes(
    class_of_group: ArrayLike | None, class_of_rank: ArrayLike | None, m: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], int]:
    """Classes numbered from 0, and how many there are."""
    if class_of_group is None and class_of_rank is None:
        return np.zeros(m, dtype=np.int32), np.zeros(m, dtype=np.int32), 1
    if class_of_group is None or class_of_rank is None:
        given, missing = ("rank", "group") if class_of_group is None else ("group", "rank")
        raise UsageError(f"{{class_of_{given}}} was given without {{class_of_{missing}}}", "give both or neither")
    groups, ranks = as_int64("class_of_group", class_of_group), as_int64("class_of_rank", class_of_rank)
    for name, array in (("class_of_group", groups), ("class_of_rank", ranks)):
        if len(array) != m:
            raise ArgumentError(name, f"have {m} entries", len(array))
    names, labels = np.unique(np.concatenate([groups, ranks]), return_inverse=True)
    have = np.bincount(labels[:m], minlength=len(names)), np.bincount(labels[m:], minlength=len(names))
    if (unequal := have[0] != have[1]).any():
        k = int(np.argmax(unequal))
        raise InfeasibleError(f"class {names[k]} has {have[0][k]} groups but {have[1][k]} ranks")
    return labels[:m].astype(np.int32), labels[m:].astype(np.int32), len(names)
