"""Whole shares: each sample on one rank, and ranks that meet once a step. What all other cuts begin with."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from balancer.errors import PlanError
from balancer.io.plan_rows import PlanStep
from balancer.plan.digest import placements_digest
from balancer.plan.gaps import Between, DeviceOp, GapTable
from balancer.plan.pieces import GroupTable, Pieces, SequenceGroup, Shares
from balancer.plan.placed.item_rows import ItemRows, OneEach, RowsBeside
from balancer.plan.stream import Stream, Traffic
from balancer.problem.cuts import PipelineStages
from balancer.problem.placement import Placement
from balancer.problem.problem import Problem, work_of_slots
from solvers.arguments import INT64_MAX
from solvers.context import MeasuredLayout
from solvers.groups import read_only
from solvers.pipeline import MultiplexResult, PipelineRun
from solvers.relocation import crossing_bound
from solvers.types import Record

Ints = NDArray[np.int64]

_NO_STAGES = "the plan has no pipeline stages: plan with MicroBatches(..., stages=PipelineStages(...))"


@functools.lru_cache(maxsize=4)
def _first_slot(count: int) -> NDArray[np.int32]:
    """Return the slots of samples that are all in the first: int32[count], read-only; most steps have the same."""
    return read_only(np.zeros(count, dtype=np.int32))


@dataclass(frozen=True, slots=True, eq=False)
class WholeShares(Record):
    """Samples on ranks, in slots, of which there is one; another cut overrides what differs.

    Equal where ranks, slots and samples are, whatever the constraints.
    """

    problem: Problem = field(compare=False)
    target: Placement  # where samples run; of those that ranks share, on the first rank of their group
    slot_of_sample: NDArray[np.int32] = field(default_factory=lambda: _first_slot(0))  # int32[n], read-only
    num_slots: int = 1

    def __post_init__(self) -> None:
        if len(self.slot_of_sample) != len(self.problem.batch.lengths):
            object.__setattr__(self, "slot_of_sample", _first_slot(len(self.problem.batch.lengths)))
        Record.__post_init__(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WholeShares) or Record.__eq__(self, other) is not True:
            return False
        mine, others = self.problem, other.problem
        return all(getattr(mine, name) == getattr(others, name) for name in ("topology", "cost", "batch", "cut"))

    __hash__ = None

    # From what others hold of it, and for them

    @classmethod
    def put_together(
        cls, problem: Problem, target: Placement, slots: NDArray[np.int32], num_slots: int, *beside: NDArray[np.int32]
    ) -> "WholeShares":
        """Place samples by rank and position, slot, and what is :attr:`beside` these."""
        return cls(problem, target, slots, num_slots)

    @classmethod
    def read(cls, where: str, rows: PlanStep) -> OneEach:
        """Tell which rows of a plan file begin an item: all; `where` is for errors."""
        return OneEach(rows, rows)

    @classmethod
    def from_rows(cls, problem: Problem, rows: ItemRows) -> "WholeShares":
        """Place samples as the rows of a plan file do; PlanError if they cannot be there."""
        return cls(problem, checked_target(problem, rows), rows.slot, rows.num_slots)

    def broken(self) -> str:
        """Say what of the problem is not kept to that rows do not show; nothing if all is."""
        return ""

    names_beside: ClassVar[tuple[str, ...]] = ()
    """What else a plan file may have rows of, by name."""

    @property
    def rows_beside(self) -> Mapping[str, RowsBeside]:
        """What else a plan file has a row of, by name."""
        return {}

    @property
    def beside(self) -> tuple[NDArray[np.int32], ...]:
        """What says where samples are besides ranks, positions and slots: nothing where they are whole."""
        return ()

    @classmethod
    def joined(cls, problem: Problem, parts: Sequence[tuple[Ints, int, "WholeShares"]]) -> "WholeShares":
        """Put plans of groups of ranks together: of each which samples it is of, its first rank, and it."""
        ranks = np.empty(len(problem.costs), dtype=np.int32)
        for members, first, part in parts:
            ranks[members] = part.target.rank_of_sample + first
        return cls(problem, Placement.by_sample_order(ranks, problem.topology.num_ranks))

    # What it takes

    def measured(self) -> tuple[Ints, int]:
        """Return the load of each rank, int64[num_ranks], and what a step takes."""
        loads = self._loads()
        return loads, self.problem.constraints.makespan(loads)

    def _loads(self) -> Ints:
        """Add up the samples of each rank, and what it has already."""
        return self.problem.loads(self.target.rank_of_sample)

    @property
    def slot_loads(self) -> Ints:
        """Cost of each micro-batch: int64[num_ranks, num_slots]."""
        problem = replace(self.problem, work=None)
        return problem.slot_loads(self.target.rank_of_sample, self.slot_of_sample, self.num_slots)

    def home_makespan(self, home_loads: Ints) -> int:
        """Return what the step takes where samples lie before dispatch."""
        return self.problem.constraints.makespan(home_loads)

    def ideal(self, loads: Ints, home_loads: Ints, home: bool = False) -> tuple[int, int]:
        """Return the makespan of perfectly even ranks, of pipelines without bubbles, as a fraction: before or after."""
        speeds, total = self.problem.constraints.rank_speeds, int((home_loads if home else loads).sum())
        if (
            not self.problem.cost.additive
        ):  # what is padded differs; with one mean no ratio rises unless its makespan does
            total = min(int(home_loads.sum()), int(loads.sum()))
        return total, len(loads) if speeds is None else int(speeds.sum())

    def binding_sample(self, loads: Ints) -> int | None:
        """Return the largest sample if it costs more than a fair share of the total load."""
        costs = self.problem.whole_costs
        if len(costs) == 0:
            return None
        costs = costs if costs.ndim == 1 else costs.sum(axis=1)
        largest = int(costs.argmax())
        fair_share = -(-int(loads.sum()) // len(loads))
        return largest if costs[largest] > fair_share else None

    # What crosses nodes at least

    def least_crossing(self, makespan: int) -> int:
        """Return how many elements cross nodes in any plan with no larger makespan, of plain additive costs."""
        problem = self.problem
        home, node, lengths = problem.batch.home.rank_of_sample, problem.topology.node_of_rank, problem.batch.lengths
        costs, most = self.held_by_a_rank(makespan)
        return crossing_bound(costs, lengths, home, node, most)

    def held_by_a_rank(self, makespan: int) -> tuple[Ints, int]:
        """Return a cost of samples, and how much of it a rank holds at most in a step of no more than `makespan`."""
        return self.problem.costs, min(makespan, INT64_MAX)

    # What lies where

    @property
    def group_table(self) -> GroupTable | None:
        """Which ranks share which samples, where they do."""
        return None

    @property
    def shares(self) -> Shares:
        """Each rank's share of each sample."""
        return Shares(np.arange(len(self.slot_of_sample)), self.target, self.problem.batch.lengths)

    def busy(self, shares: Shares) -> NDArray[np.float64]:
        """Return for how long a rank is busy with each share, over how long its sample takes alone: float64[s]."""
        return np.ones(len(shares.sample))

    @property
    def pieces(self) -> Pieces:
        """What of each sample lies on which rank."""
        return Pieces.whole(self.target, self.problem.batch.lengths)

    def group_of_pieces(self, pieces: Pieces) -> NDArray[np.int32]:
        """Return the number of the group that each piece is of, -1 where there are no groups: int32[p]."""
        return np.full(len(pieces.sample), -1, dtype=np.int32)

    def put_out(self, outputs: Ints) -> Pieces:
        """Return where a phase's outputs are, of which each item has so many."""
        return Pieces.whole(self.target, outputs)

    def samples_on(self, rank: int) -> Ints:
        """Return the samples that run on a rank, in dispatch order."""
        return self.target.samples_on_rank(rank)

    def groups(self, slot: int) -> list[SequenceGroup]:
        """Return the groups of ranks that share samples in a slot, by rank, with samples that are kept."""
        raise ValueError("the plan has no sequence groups: plan with cut=SequenceGroups(...)")

    def layouts_beside(self) -> Iterator[tuple[int, Ints, Mapping[str, MeasuredLayout]]]:
        """Yield of packs that ranks share tokens, layers of each kind, and what this layout and others' rules take."""
        return iter(())

    def rank_sets(self) -> list[range]:
        """Return all sets of ranks that a plan with these settings can need as a group of several."""
        return []

    @property
    def stream(self) -> Stream:
        """What dispatch moves."""
        batch = self.problem.batch
        return Stream("", batch.home, self.target, batch.lengths, batch.lengths)

    @property
    def traffic(self) -> Traffic:
        """What dispatch moves, in elements."""
        batch, topology = self.problem.batch, self.problem.topology
        return Traffic.from_ranks(batch.home.rank_of_sample, self.target.rank_of_sample, batch.lengths, topology)

    def inverse(self) -> "WholeShares":
        """Return where samples are after the way back: whole, each at its home."""
        problem = self.problem
        batch = replace(problem.batch, home=self.target)
        return WholeShares(Problem(batch, problem.topology, problem.cost, problem.costs), problem.batch.home)

    def digest(self) -> str:
        """SHA-256, in hex, of topology, placements and slots."""
        slots = self.slot_of_sample if self.num_slots > 1 else None
        return placements_digest(self.problem.topology, self.problem.batch.home, self.target, slots)

    # What runs when

    @property
    def stages(self) -> PipelineStages:
        """What each stage of pipelines takes."""
        raise ValueError(_NO_STAGES)

    @property
    def work_of_slots(self) -> Ints:
        """Each micro-batch's work in each module of pipelines: int64[num_ranks, num_slots, M]; M = 0 without."""
        return self.of_slots(np.zeros((len(self.slot_of_sample), 0), dtype=np.int64))

    def of_slots(self, work: Ints) -> Ints:
        """Add up what samples have, int64[n, M], by slot of each rank: int64[num_ranks, num_slots, M]."""
        num_ranks = self.problem.topology.num_ranks
        return work_of_slots(work, self.target.rank_of_sample, self.slot_of_sample, num_ranks, self.num_slots)

    @property
    def gaps(self) -> GapTable | None:
        """What runs in the gaps of pipelines, where encoders do."""
        return None

    def between(self, rank: int, home: bool = False) -> Between | None:
        """Return what runs in the gaps of a rank's pipeline, and when; None if nothing runs in gaps."""
        return None

    def makespans(self, home: bool = False) -> Ints:
        """Return when the pipeline of each rank ends, before or after dispatch: int64[num_ranks]."""
        raise ValueError(_NO_STAGES)

    def run(self, rank: int, home: bool = False) -> PipelineRun:
        """Run the pipeline of one rank exactly, before or after dispatch."""
        raise ValueError(_NO_STAGES)

    def device_ops(self, rank: int, device: int) -> list[DeviceOp]:
        """Return all that one device of a rank's pipeline runs, in turn."""
        raise ValueError(_NO_STAGES)

    def gap_run(self, rank: int) -> MultiplexResult:
        """Run a rank's pipeline with what runs in its gaps."""
        raise ValueError("no encoders run in gaps: plan with cut=MicroBatches.in_gaps(layout.times)")


def checked_target(problem: Problem, rows: ItemRows) -> Placement:
    """Return where rows place whole samples; PlanError if that is nowhere, or not what the problem asks for."""
    num_ranks, num_slots = problem.topology.num_ranks, rows.num_slots
    if num_slots > problem.cut.slots_for(max(1, len(rows.order))) or num_slots * num_ranks >= 2**31:
        raise PlanError(f"{rows.where}: {len(rows.order)} samples cannot be in {num_slots} micro-batches a rank")
    try:
        target = Placement.checked(rows.rank, num_ranks, rows.position)
    except ValueError as error:
        raise PlanError(f"{rows.where}: {error}") from None
    lengths, ranks = problem.batch.lengths, target.rank_of_sample
    tokens = problem.cost.tokens(lengths, ranks, num_ranks)
    broken = problem.constraints.violation(ranks, tokens)
    if not broken and rows.slot.min(initial=0) < 0:
        broken = f"slot must be >= 0, got {rows.slot.min()}"
    if problem.constraints.prefix is not None and not broken:  # a prompt counts once a micro-batch
        shared = problem.constraints.prefix
        lengths = lengths - shared.lengths + shared.once(shared.lengths, ranks * np.int64(num_slots) + rows.slot)
    broken = broken or problem.cut.violation(lengths, ranks, rows.slot, num_ranks, num_slots)
    if problem.limits is not None and not broken:
        broken = problem.limits.violation(lengths, ranks, rows.slot, num_ranks, num_slots)
    if broken := broken or _out_of_order(target, rows.slot):
        raise PlanError(f"{rows.where}: {broken}")
    return target


def _out_of_order(target: Placement, slots: NDArray[np.int32]) -> str:
    """Say if the samples of a rank do not stand in order of their slots."""
    ordered, rank = slots[target.samples], target.rank_of_sample[target.samples]
    unordered = ((ordered[1:] < ordered[:-1]) & (rank[1:] == rank[:-1])).any()
    return "a rank's samples must stand in order of their slots" if unordered else ""
