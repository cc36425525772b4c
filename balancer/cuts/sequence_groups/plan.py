"""What comes out of sequence groups, and of long and short: samples that several ranks share, in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from balancer.errors import PlanError
from balancer.io.plan_rows import PlanStep
from balancer.plan.digest import digest_after
from balancer.plan.dispatch_plan import DispatchPlan
from balancer.plan.item_rows import ItemRows, OneEach
from balancer.plan.piece_rows import check_pieces, read_pieces
from balancer.plan.pieces import GroupTable, Pieces, SequenceGroup, Shares, least_rank_time
from balancer.plan.shared_plan import SharedPlan
from balancer.problem.cuts.sequence_groups import SequenceGroups
from balancer.problem.placement import Placement
from balancer.problem.problem import Problem
from solvers.arguments import INT64_MAX
from solvers.groups import members_by_group

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class GroupPlan(SharedPlan):
    """Samples in groups of ranks, a slot a group; loads are how long ranks are busy."""

    group_table: GroupTable = field(default_factory=GroupTable.none)

    @classmethod
    def from_table(cls, problem: Problem, table: GroupTable, num_slots: int) -> GroupPlan:
        """Place samples where their groups are."""
        group, num_ranks = table.group_of_sample, problem.topology.num_ranks
        lead, slot = table.first_rank[group], table.slot[group]
        target = Placement.by_slots(lead, slot, num_ranks, num_slots)
        return cls(problem, target, slot, num_slots, group_table=table)

    @classmethod
    def put_together(
        cls, problem: Problem, target: Placement, slots: NDArray[np.int32], num_slots: int, *beside: NDArray[np.int32]
    ) -> GroupPlan:
        """Place samples where the groups are that stand :attr:`beside`."""
        return cls.from_table(problem, GroupTable(*beside), num_slots)

    @classmethod
    def read(cls, where: str, rows: PlanStep) -> OneEach:
        """Tell which rows begin an item, and which ranks share it."""
        return read_pieces(where, rows)

    @classmethod
    def from_rows(cls, problem: Problem, rows: ItemRows) -> GroupPlan:
        """Place items in the groups that share the rows' pieces; PlanError if they cannot be there."""
        cut, topology, lengths = problem.cut, problem.topology, problem.batch.lengths
        table = GroupTable.none()
        if (given := rows.read.groups) is not None:
            table = replace(given, group_of_sample=given.group_of_sample[rows.order])
            check_pieces(rows, table, lengths, cut, topology)  # type: ignore[arg-type]  # which this class comes from
        broken = table.broken(problem.constraints, lengths, cut, topology.num_ranks, rows.num_slots)  # type: ignore[arg-type]
        if broken is not None:
            raise PlanError(f"{rows.where}: {broken}")
        return cls.from_table(problem, table, rows.num_slots)

    @property
    def beside(self) -> tuple[NDArray[np.int32], ...]:
        """The group of each sample, then degree, slot and first rank of each group."""
        table = self.group_table
        return table.group_of_sample, table.degree, table.slot, table.first_rank

    @classmethod
    def joined(cls, problem: Problem, parts: Sequence[tuple[Ints, int, DispatchPlan]]) -> GroupPlan:
        """Put plans of groups of ranks together, which have equally many slots."""
        slot, lead, degree = np.empty((3, len(problem.costs)), dtype=np.int32)
        for members, first, part in parts:
            group, in_group, in_slot, rank = part.beside
            slot[members], lead[members] = in_slot[group], rank[group] + first
            degree[members] = in_group[group]
        return cls.from_table(problem, GroupTable.from_samples(slot, lead, degree), parts[0][2].num_slots)

    @property
    def cut(self) -> SequenceGroups:
        """What was asked for."""
        return self.problem.cut  # type: ignore[return-value]  # which is what this class comes from

    def _sharing(self) -> tuple[GroupTable, Ints, SequenceGroups, int, int]:
        num_ranks = self.num_ranks
        return self.group_table, self.lengths, self.cut, num_ranks, self.num_slots

    def measure(self) -> tuple[Ints, int]:
        """Return how long each rank is busy, int64[num_ranks], and what the slots of a step take."""
        busy = self.slot_loads
        return busy.sum(axis=1), self.cut.makespan(busy)

    @property
    def slot_loads(self) -> Ints:
        """How long each rank is busy in each slot: int64[num_ranks, num_slots]."""
        problem = self.problem
        shape = problem.topology.num_ranks, self.num_slots
        return self.group_table.slot_loads(problem.cost, problem.batch.lengths, self.cut, *shape)

    def perfect(self, home: bool = False) -> tuple[int, int]:
        """Return the makespan of samples each alone on a rank, with what the fewest slots take besides."""
        if home:
            return DispatchPlan.perfect(self, home)
        slots, ranks = self.cut.fewest_slots(self.lengths, self.num_ranks), self.num_ranks
        return int(self.home_loads.sum()) + ranks * slots * self.cost.sharing.overhead, ranks

    @property
    def binding_sample(self) -> int | None:
        """None: a sample that is too much for one rank is shared."""
        return None

    def held_by_a_rank(self) -> tuple[Ints, int]:
        """Return what samples take of their ranks' time at least, and how much of it a rank has."""
        most = min(self.makespan, INT64_MAX)
        return least_rank_time(self.cost, self.lengths, self.cut, self.topology, most)

    @property
    def shares(self) -> Shares:
        """Each rank's share of each sample. O(shares)."""
        return Shares.of(*self._sharing())

    @property
    def pieces(self) -> Pieces:
        """What of each sample lies on which rank. O(p log p) for p pieces."""
        return Pieces.of_groups(*self._sharing())

    def group_of_pieces(self, pieces: Pieces) -> NDArray[np.int32]:
        """Return the number of the group that each piece is of: int32[p]."""
        return self.group_table.group_of_sample[pieces.sample]

    def busy(self, shares: Shares) -> NDArray[np.float64]:
        """Return for how long a rank is busy with each share: as the cost has it, with what sharing loses."""
        problem, degree = self.problem, self.group_table.degree_of_sample
        degrees = sorted({1, *degree.tolist()})
        times = problem.cost.degree_times(problem.batch.lengths, degrees, problem.topology.num_ranks).times
        slower = times[np.searchsorted(degrees, degree), np.arange(len(degree))] / np.maximum(times[0], 1)
        return np.asarray(slower[shares.sample])

    def groups(self, slot: int) -> list[SequenceGroup]:
        """Return the groups of ranks in a slot, by rank; a rank in none holds nothing in it."""
        table, batch = self.group_table, self.problem.batch
        loads = table.loads(self.cost, batch.lengths, self.cut, self.num_ranks).of_group
        members, offsets, _ = members_by_group(table.group_of_sample, len(table.degree))
        return [
            SequenceGroup(
                range(first := int(table.first_rank[g]), first + int(table.degree[g])),
                members[offsets[g] : offsets[g + 1]],
                int(loads[g]),
            )
            for g in np.flatnonzero(table.slot == self._checked(slot)).tolist()
        ]

    def digest(self) -> str:
        """SHA-256, in hex, of groups and pieces too."""
        pieces = self.pieces
        return digest_after(DispatchPlan.digest(self), narrow=self.beside, wide=(pieces.start, pieces.stop))
