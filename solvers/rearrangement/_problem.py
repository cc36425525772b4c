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

from solvers._sort import sort_descending
from solvers.arguments import INT64_MAX, as_int64, unknown
from solvers.errors import ArgumentError, InfeasibleError, UsageError
from solvers.groups import read_only
from solvers.rearrangement._kernels import count_entries, kept_in_places, measure, settle, weighted_sends
from solvers.rearrangement._transport import dual_value_kernel, solve_transport, take_largest
from solvers.rearrangement.types import OBJECTIVES, BoundCertificate, Objective, RearrangementResult
from solvers.rearrangement.volumes import Volumes, as_volumes
from solvers.types import status_of

UNLIMITED = 2**62
_SMALL_TOTAL = 2**60  # up to here the auction's prices, which may rise past any amount, stay clear of int64's end


class Rows(NamedTuple):
    """What each group, in class order, would keep off the network in each place, where that is not nothing."""

    offsets: NDArray[np.int64]
    places: NDArray[np.int32]
    kept: NDArray[np.int64]


class ProvenBound(NamedTuple):
    """A lower bound on the objective, the argument's name, and the numbers it can be recomputed from."""

    value: int
    name: str
    certificate: BoundCertificate


@dataclass(frozen=True, slots=True, eq=False)
class RearrangementProblem:
    """Checked volumes on a checked topology."""

    volumes: Volumes
    # int32[num_levels, m]: units of all levels numbered together, those of the first level, the nodes, from 0
    unit_of_rank: NDArray[np.int32]
    weights: NDArray[np.int64]  # int64[num_levels]
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
    # int64[num_units + 1]: unit u holds the places ``unit_places[unit_starts[u] : unit_starts[u + 1]]``
    unit_starts: NDArray[np.int64]
    unit_places: NDArray[np.int32]  # int32[num_levels * num_places]

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
        pairs = rank_class.astype(np.int64) * (int(units[0].max()) + 1) + units[0]
        _, first, place_of_rank, rooms = np.unique(pairs, return_index=True, return_inverse=True, return_counts=True)
        starts = np.concatenate([[0], np.cumsum(rooms)]).astype(np.int64)
        rank_of_slot = np.argsort(place_of_rank, kind="stable").astype(np.int32)
        slot_of_rank = np.empty(m, dtype=np.int32)
        slot_of_rank[rank_of_slot] = np.arange(m, dtype=np.int32)
        classes = np.arange(num_classes + 1)
        units_of_places = units[:, first].ravel()
        by_unit = np.argsort(units_of_places, kind="stable")
        return cls(
            volumes=checked,
            unit_of_rank=units,
            weights=worth,
            objective=objective,
            group_order=group_order,
            rank_order=rank_order,
            class_groups=np.searchsorted(group_class[group_order], classes),
            class_places=np.searchsorted(rank_class[first], classes),
            place_of_rank=place_of_rank.astype(np.int32),
            starts=starts,
            rank_of_slot=rank_of_slot,
            slot_of_rank=slot_of_rank,
            unit_starts=np.searchsorted(units_of_places[by_unit], np.arange(int(units.max()) + 2)),
            unit_places=(by_unit % len(first)).astype(np.int32),
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
        return self.volumes.total * int(self.weights.sum()) * factor <= _SMALL_TOTAL

    def arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
        """Return the volumes as kernels want them."""
        volumes = self.volumes
        return read_only(volumes.offsets), read_only(volumes.ranks), read_only(volumes.amounts)

    def rows(self, multiplier: NDArray[np.int64] | None = None) -> Rows:
        """What each group keeps in each place; what lies on rank r counted ``multiplier[r]``-fold. O(entries)."""
        offsets, ranks, amounts = self.arrays()
        if multiplier is not None:
            amounts = read_only(amounts * multiplier[ranks])
        size = count_entries(self.group_order, offsets, ranks, self.unit_of_rank, self.unit_starts, self.num_places)
        groups_of_class = np.diff(self.class_groups)
        span = np.repeat(np.stack([self.class_places[:-1], self.class_places[1:]], axis=1), groups_of_class, axis=0)
        out = (np.zeros(self.num_ranks + 1, dtype=np.int64), np.empty(size, np.int32), np.empty(size, np.int64))
        kept_in_places(
            self.group_order, offsets, ranks, amounts, self.unit_of_rank, self.weights,
            self.unit_starts, self.unit_places, np.ascontiguousarray(span), out,
        )  # fmt: skip
        filled = out[0][-1]
        return Rows(out[0], out[1][:filled], out[2][:filled])

    def _parts(
        self, rows: Rows
    ) -> Iterator[tuple[tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]], slice, slice]]:
        """One transportation problem a class, numbered from 0: its rows and starts, its groups, its places.

        Classes of which no group keeps anything anywhere are left out: nothing is to be won there, nor to be proven.
        """
        for k in np.flatnonzero(np.diff(rows.offsets[self.class_groups])).tolist():
            groups = slice(int(self.class_groups[k]), int(self.class_groups[k + 1]))
            places = slice(int(self.class_places[k]), int(self.class_places[k + 1]))
            entries = slice(int(rows.offsets[groups.start]), int(rows.offsets[groups.stop]))
            offsets = rows.offsets[groups.start : groups.stop + 1] - entries.start
            starts = self.starts[places.start : places.stop + 1] - self.starts[places.start]
            yield (offsets, rows.places[entries] - np.int32(places.start), rows.kept[entries], starts), groups, places

    def greedy(self, rows: Rows) -> NDArray[np.int32]:
        """Return a place for each group in class order: the largest amounts first."""
        assignment = np.empty(self.num_ranks, dtype=np.int32)
        order, _ = sort_descending(rows.kept, int(rows.kept.max(initial=0)))
        # Room is counted place by place, and each class finds as much of it as it has groups: all classes in one pass.
        take_largest(rows.offsets, rows.places, rows.kept, order, self.starts, assignment)
        return assignment

    def transport(self, rows: Rows, assignment: NDArray[np.int32], work: int) -> tuple[NDArray[np.int64], int]:
        """Improve `assignment`, in class order, in place; return the prices that prove most, and the work left."""
        price = np.zeros(self.num_places, dtype=np.int64)
        for arrays, groups, places in self._parts(rows):
            local = assignment[groups] - np.int32(places.start)
            part_price = price[places]
            work = solve_transport(*arrays, local, part_price, self.small, work)
            assignment[groups] = local + np.int32(places.start)
        return price, work

    def bound(self, rows: Rows, price: NDArray[np.int64], multiplier: NDArray[np.int64] | None = None) -> ProvenBound:
        """Return what `price` proves, by weak duality; see :class:`BoundCertificate`."""
        counted = np.ones(self.num_ranks, dtype=np.int64) if multiplier is None else multiplier
        limit = sum(int(dual_value_kernel(*arrays, price[places])) for arrays, _, places in self._parts(rows))
        everything = int((self.volumes.amounts * counted[self.volumes.ranks]).sum()) * int(self.weights.sum())
        value = max(0, everything - limit)
        if self.objective == "max":
            value = -(-value // int(counted.sum()))
        return ProvenBound(value, "dual", BoundCertificate(counted, price))

    def settled(self, assignment: NDArray[np.int32], work: int = UNLIMITED) -> NDArray[np.int32]:
        """Return a rank for each group, from a place for each in class order."""
        place_of_group = np.empty(self.num_ranks, dtype=np.int32)
        place_of_group[self.group_order] = assignment
        return settle(
            place_of_group, self.starts, self.rank_of_slot, self.slot_of_rank, self.arrays(), self.small, work
        )

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
        weighted_sends(rank_of_group, *self.arrays(), self.unit_of_rank, self.weights, sends)
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
        stopped_early: bool = False,
    ) -> RearrangementResult:
        """Build the result of the best of `candidates`, each a rank for each group; ties to the first."""
        measured = [_Measured.of(self, candidate) for candidate in candidates]
        best = min(measured, key=lambda one: (one.value(self), one.weighted(self), one.intra_node))
        value = best.value(self)
        num_nodes = int(self.unit_of_rank[0].max()) + 1
        node_send, node_receive = np.zeros((2, num_nodes), dtype=np.int64)
        np.add.at(node_send, self.unit_of_rank[0], best.rank_send)
        np.add.at(node_receive, self.unit_of_rank[0], best.rank_receive)
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
            status=status_of(value, bound.value, ended=not stopped_early),
            method=method,
            runtime_s=time.perf_counter() - started,
        )


class _Measured(NamedTuple):
    rank_of_group: NDArray[np.int32]
    crossing: NDArray[np.int64]
    rank_send: NDArray[np.int64]
    rank_receive: NDArray[np.int64]
    intra_node: int

    @classmethod
    def of(cls, problem: RearrangementProblem, rank_of_group: NDArray[np.int32]) -> "_Measured":
        crossing = np.zeros(len(problem.weights), dtype=np.int64)
        send, receive = np.zeros((2, problem.num_ranks), dtype=np.int64)
        inside = measure(rank_of_group, *problem.arrays(), problem.unit_of_rank, crossing, send, receive)
        return cls(rank_of_group, crossing, send, receive, int(inside))

    def weighted(self, problem: RearrangementProblem) -> int:
        return int((self.crossing * problem.weights).sum())

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
