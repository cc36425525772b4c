"""The dispatch plan: which sample runs on which rank, in which order, and the proof of how good that is. Pure data."""

import functools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from balancer.cost import CostModel
from balancer.plan.digest import digest_after, placements_digest
from balancer.plan.exchange import RankExchange
from balancer.plan.gaps import Between, DeviceOp, GapTable, between_both, ops_in_turn
from balancer.plan.pieces import GroupTable, Pieces, PiecesOnRank, SequenceGroup, Shares, least_rank_time, segments
from balancer.plan.stream import Stream, Traffic
from balancer.problem.batch import GlobalBatch, kept_samples
from balancer.problem.constraints import Constraints
from balancer.problem.micro_batches import MicroBatches
from balancer.problem.phases import SINGLE_PHASE, Phase, PhaseItems, default_own
from balancer.problem.pipeline_stages import PipelineStages
from balancer.problem.placement import Placement
from balancer.problem.problem import Problem, work_of_slots
from balancer.problem.ragged import offsets_of
from balancer.problem.sequence_groups import LongShort, SequenceGroups
from balancer.problem.settings import PlanSettings
from balancer.problem.setup import Setup
from balancer.problem.topology import Topology
from solvers.arguments import INT64_MAX, as_index
from solvers.bounds import Bound
from solvers.errors import UsageError
from solvers.groups import group_loads, members_by_group, read_only
from solvers.pipeline import MultiplexResult, PipelineRun
from solvers.relocation import plain_inter_bound, relocation_bound
from solvers.types import Record, SolveStatus, relative_gap

__all__ = ["DispatchPlan", "Slots"]

Slots = tuple[NDArray[np.int32], int]
"""The slot of each sample, and how many slots there are."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DispatchPlan(Record):
    """A plan for one phase of one step; arrays are read-only.

    Attributes
    ----------
    topology : Topology
    cost : CostModel
    lengths : int64[n]
        Elements (tokens, frames, patches) of each sample.
    home, target : Placement
        Where the samples lie before dispatch, and where they run.
    home_loads, loads : int64[num_ranks]
        Load of each rank in cost units, before and after.
    makespan : int
        Cost units until the last rank is done: the largest load; where ranks have speeds, the largest load over speed,
        rounded up; with micro-batches, the time of their schedule; where encoders run in gaps, in 1e-10 s.
    lower_bound : int
        Proven: no placement under the same constraints has a smaller makespan.
    bound_name : str
        The name of the bound; see :mod:`solvers.bounds`.
    status : SolveStatus
    method : str
        The partition method asked for.
    constraints : Constraints
        What the plan keeps to.
    micro_batches : MicroBatches, SequenceGroups or None
        How the step is cut into slots, where it is.
    slot_of_sample : int32[n]
        The micro-batch that each sample is in; 0 without micro-batches. A rank's samples are in order of slots.
    num_slots : int
        Micro-batches a step, the same on every rank.
    work : int64[n, M] or None
        With pipeline stages, each sample's work in each of their modules, of which encoders may be some.
    group_table : GroupTable or None
        Which ranks share which samples, where they do: then `target` has each sample on the first rank of its group,
        loads are how long ranks are busy, and what lies where is told by :attr:`pieces`.
    gaps : GapTable or None
        What runs in the gaps of the pipelines, where encoders do.
    placement : str
        How samples came to ranks: a name in :data:`balancer.problem.settings.PLACEMENTS`.
    eps : float
        How much larger relocation was allowed to make the makespan, as a fraction of it.
    fell_back : str
        Why samples were not relocated from their homes, where that was asked for; else empty.
    binding_sample : int or None
        The costliest sample, as an index into `lengths`, where its cost alone exceeds the mean load; else None.
    dropped : int64[d]
        Samples of the global batch that ``over_long="drop"`` leaves out, ascending. All other arrays are of the samples
        that are kept, in order.
    dropped_lengths : int64[d]
        Their lengths.
    runtime_s : float
        Seconds that planning took; not part of the digest nor of equality.
    """

    topology: Topology
    cost: CostModel
    lengths: NDArray[np.int64]
    home: Placement
    target: Placement
    home_loads: NDArray[np.int64]
    loads: NDArray[np.int64]
    makespan: int
    lower_bound: int
    bound_name: str
    status: SolveStatus
    method: str
    constraints: Constraints = field(default_factory=Constraints, compare=False)
    micro_batches: MicroBatches | SequenceGroups | None = None
    slot_of_sample: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    num_slots: int = 1
    work: NDArray[np.int64] | None = field(default=None, compare=False)
    group_table: GroupTable | None = None
    gaps: GapTable | None = None
    placement: str = field(default="any", compare=False)
    eps: float = field(default=0.0, compare=False)
    fell_back: str = field(default="", compare=False)
    binding_sample: int | None = field(default=None, compare=False)
    dropped: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    dropped_lengths: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    runtime_s: float = field(default=0.0, compare=False)

    def __post_init__(self) -> None:
        if len(self.slot_of_sample) != len(self.lengths):
            object.__setattr__(self, "slot_of_sample", _first_slot(len(self.lengths)))
        Record.__post_init__(self)

    @classmethod
    def of(
        cls,
        problem: Problem,
        target: Placement | None,
        prove: Callable[[int], Bound],
        settings: PlanSettings,
        *,
        placement: str,
        slots: Slots | None = None,
        groups: GroupTable | None = None,
        gaps: GapTable | None = None,
        status: SolveStatus | None = None,
        fell_back: str = "",
        started: float | None = None,
    ) -> "DispatchPlan":
        """Make the finished plan of a problem whose placement is known; every plan is made here.

        Without a target it is that of `groups`. `prove` returns the best lower bound on any plan's makespan, given this
        plan's, and that decides whether the `status` with which the solver ended is OPTIMAL. `placement` says how
        samples came to ranks, which is not always what the settings ask for; `started` when planning began, by
        ``time.perf_counter``.
        """
        costs, cost, num_ranks, kept = problem.costs, problem.cost, problem.topology.num_ranks, problem.constraints
        slot_of_sample, num_slots = slots or (_first_slot(len(costs)), 1)
        if isinstance(problem.micro_batches, SequenceGroups):
            groups = groups or GroupTable.none()
            lead = groups.first_rank[groups.group_of_sample]
            target = Placement.by_slots(lead, slot_of_sample, num_ranks, num_slots)
        if target is None:
            raise ValueError("target must be given unless ranks share samples")
        loads, makespan = _measured(problem, target, (slot_of_sample, num_slots), groups, gaps)
        bound = prove(makespan)
        if makespan == bound.value:
            status = SolveStatus.OPTIMAL
        elif status is None or status is SolveStatus.OPTIMAL:
            status = SolveStatus.FEASIBLE
        return cls(
            topology=problem.topology,
            cost=cost,
            lengths=problem.batch.lengths,
            home=problem.batch.home,
            target=target,
            home_loads=kept.with_initial(cost.loads(costs, problem.batch.home.rank_of_sample, num_ranks)),
            loads=loads,
            makespan=makespan,
            lower_bound=bound.value,
            bound_name=bound.name,
            status=status,
            method=settings.method,
            constraints=kept,
            micro_batches=problem.micro_batches,
            slot_of_sample=slot_of_sample,
            num_slots=num_slots,
            work=problem.work,
            group_table=groups,
            gaps=gaps,
            placement=placement,
            eps=float(settings.eps),
            fell_back=fell_back,
            binding_sample=_binding_sample(costs, loads) if groups is None and problem.work is None else None,
            dropped=problem.batch.dropped,
            dropped_lengths=problem.batch.dropped_lengths,
            runtime_s=0.0 if started is None else time.perf_counter() - started,
        )

    @property
    def num_samples(self) -> int:
        """Samples in the step, without those left out."""
        return len(self.lengths)

    @property
    def batch_size(self) -> int:
        """Samples of the global batch, with those left out."""
        return len(self.lengths) + len(self.dropped)

    @property
    def kept(self) -> NDArray[np.int64]:
        """Which samples of the global batch the plan is of: int64[n], all but :attr:`dropped`."""
        return kept_samples(len(self.lengths), self.dropped)

    @property
    def num_ranks(self) -> int:
        """Ranks, empty ones included."""
        return self.topology.num_ranks

    @property
    def rank_of_sample(self) -> NDArray[np.int32]:
        """The rank that each sample runs on: int32[n]."""
        return self.target.rank_of_sample

    def samples_on_rank(self, rank: int) -> NDArray[np.int64]:
        """Samples of the global batch that run on `rank`, shared or not, in dispatch order: int64[k]."""
        return self._in_batch(self._samples_on(rank))

    def samples_in_slot(self, rank: int, slot: int) -> NDArray[np.int64]:
        """Samples of the global batch in one micro-batch, in dispatch order: int64[k]."""
        samples = self._samples_on(rank)
        return self._in_batch(samples[self.slot_of_sample[samples] == self._checked(slot)])

    def _samples_on(self, rank: int) -> NDArray[np.int64]:
        if self.group_table is None:
            return self.target.samples_on_rank(rank)
        shares = self.shares
        return shares.sample[shares.place.samples_on_rank(rank)]

    def empty_ranks(self, slot: int) -> NDArray[np.int32]:
        """Ranks that hold nothing in a slot, though they take part in what is collective: int32[], ascending."""
        shares = self.shares
        busy = shares.place.rank_of_sample[self.slot_of_sample[shares.sample] == self._checked(slot)]
        return np.setdiff1d(np.arange(self.num_ranks, dtype=np.int32), busy)

    def _checked(self, slot: int) -> int:
        return as_index("slot", slot, self.num_slots)

    # Where ranks share samples. Each of these is computed when asked for.

    @property
    def shares(self) -> Shares:
        """Each rank's share of each sample; whole samples where none is shared. O(shares)."""
        if (shared := self._shared()) is None:
            return Shares(np.arange(self.num_samples), self.target, self.lengths)
        return Shares.of(*shared)

    @property
    def pieces(self) -> Pieces:
        """What of each sample lies on which rank; whole samples where none is shared. O(p log p) for p pieces."""
        shared = self._shared()
        return Pieces.whole(self.target, self.lengths) if shared is None else Pieces.of_groups(*shared)

    def put_out(self, outputs: NDArray[np.int64]) -> Pieces:
        """Return where a phase's outputs are, of which each item has so many: whole, or in pieces where it is shared.

        A rank's are slot by slot, and in each in the order of their items. O(p) for p pieces.
        """
        if self.group_table is None:
            return Pieces.whole(self.target, outputs)
        return self.pieces.put_out(self.lengths, outputs, self.slot_of_sample)

    def _shared(self) -> tuple[GroupTable, NDArray[np.int64], SequenceGroups, int, int] | None:
        if self.group_table is None or not isinstance(self.micro_batches, SequenceGroups):
            return None
        return self.group_table, self.lengths, self.micro_batches, self.num_ranks, self.num_slots

    def groups(self, slot: int) -> list[SequenceGroup]:
        """Return the groups of ranks that share samples in a slot, by rank; a rank in none holds nothing in it."""
        slot, table = self._checked(slot), self.group_table
        if table is None or not isinstance(self.micro_batches, SequenceGroups):
            raise ValueError("the plan has no sequence groups: plan with sequence_groups=SequenceGroups(...)")
        loads = table.loads(self.cost, self.lengths, self.micro_batches, self.num_ranks).of_group
        members, offsets, _ = members_by_group(table.group_of_sample, len(table.degree))
        return [
            SequenceGroup(
                range(first := int(table.first_rank[g]), first + int(table.degree[g])),
                self._in_batch(members[offsets[g] : offsets[g + 1]]),
                int(loads[g]),
            )
            for g in np.flatnonzero(table.slot == slot).tolist()
        ]

    def pieces_on_rank(self, rank: int, slot: int | None = None) -> PiecesOnRank:
        """Return what a rank holds, in a slot or in all of them, in order. Positions begin anew in each slot."""
        pieces = self.pieces
        mine = pieces.place.samples_on_rank(rank)
        slots = self.slot_of_sample[pieces.sample[mine]]
        if slot is not None:
            mine = mine[slots == self._checked(slot)]
            slots = np.full(len(mine), slot)
        sizes = pieces.stop[mine] - pieces.start[mine]
        ends = np.cumsum(sizes)
        first = np.searchsorted(slots, slots)  # of each piece's slot
        position = ends - sizes - (ends - sizes)[first] if len(mine) else sizes
        return PiecesOnRank(self._in_batch(pieces.sample[mine]), pieces.start[mine], pieces.stop[mine], position)

    def cu_seqlens(self, rank: int, slot: int) -> NDArray[np.int32]:
        """Return where shares of samples begin and end in a rank's packed slot, padding included: int32[k + 1]."""
        shares = self.shares
        mine = shares.place.samples_on_rank(rank)
        mine = mine[self.slot_of_sample[shares.sample[mine]] == self._checked(slot)]
        return offsets_of(shares.lengths[mine]).astype(np.int32)

    def process_groups(self) -> list[range]:
        """Return all sets of ranks that a plan with these settings can need as a group of several."""
        cut = self.micro_batches
        return list(cut.rank_sets(self.topology)) if isinstance(cut, SequenceGroups) else []

    @property
    def stream(self) -> Stream:
        """What dispatch moves: samples, or, where they are shared, segments of them."""
        if self.group_table is None:
            return Stream("", self.home, self.target, self.lengths, self.lengths)
        return segments("", Pieces.whole(self.home, self.lengths), self.pieces, self.lengths).stream

    def _in_batch(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.kept[samples] if len(self.dropped) else samples

    @property
    def equal_counts(self) -> bool:
        """Whether a constraint gives every rank the same number of samples, within one."""
        return self.constraints.equal_counts

    @property
    def slot_loads(self) -> NDArray[np.int64]:
        """Cost of each micro-batch, int64[num_ranks, num_slots]; computed when asked for."""
        if (shared := self._shared()) is not None:
            table, lengths, cut, num_ranks, num_slots = shared
            return table.slot_loads(self.cost, lengths, cut, num_ranks, num_slots)
        costs = self.cost.sample_costs(self.lengths)
        return self.cost.slot_loads(costs, self.rank_of_sample, self.slot_of_sample, self.num_ranks, self.num_slots)

    @property
    def gap(self) -> float:
        """``(makespan - lower_bound) / lower_bound``: 0.0 is proven optimal; infinite if only the bound is 0."""
        return relative_gap(self.makespan, self.lower_bound)

    @property
    def imbalance_ratio(self) -> float:
        """Makespan over that of perfect evenness; 1.0 is perfect, and also what all-zero loads have.

        Where ranks have no speeds and meet once a step, that is largest load over mean load; where rows are padded
        together, over the smaller mean of before and after, so that it rises only if the makespan does. With pipeline
        stages it is over that of stages that never wait, so that 1 - 1 / ratio is the bubble; with ``pipeline_stages``
        alone over that of equal micro-batches, the bubble included in both.
        """
        return self._ratio(self.makespan, self.perfect())

    @property
    def home_imbalance_ratio(self) -> float:
        """:attr:`imbalance_ratio` of the placement before dispatch, which has no micro-batches: ranks meet once.

        Before a pipeline each rank's samples are cut, as they lie, into as many micro-batches of equally many.
        """
        return self._ratio(self.home_makespan, self.perfect(home=True))

    @property
    def home_makespan(self) -> int:
        """:attr:`makespan` of the placement before dispatch."""
        if self._piped is None:
            return self.constraints.makespan(self.home_loads)
        return int(self.pipeline_makespans(home=True).max())

    def pipeline_makespans(self, home: bool = False) -> NDArray[np.int64]:
        """Return when the pipeline of each rank ends, int64[num_ranks]; `home` as for :meth:`pipeline_run`.

        What runs in gaps does so in none at home: encoders before the pipeline, evenly on all its devices, generators
        behind it.
        """
        stages, work = self._stages_and_work()
        if self.gaps is not None and not home:
            return np.array([self.gap_run(rank).makespan for rank in range(self.num_ranks)], dtype=np.int64)
        return stages.makespans(self._of_slots(work, home)) + (self._around_home().sum(axis=0) if home else 0)

    def _around_home(self) -> NDArray[np.int64]:
        """How long encoders and generators that run in gaps take each rank's devices at home: int64[2, num_ranks]."""
        if self.gaps is None:
            return np.zeros((2, self.num_ranks), dtype=np.int64)
        tasks = self.gaps.tasks
        spent, rank = tasks.forward + tasks.backward, self.home.rank_of_sample[tasks.sample]
        both = [group_loads(spent * (tasks.late == late), rank, self.num_ranks) for late in (False, True)]
        return -(-np.stack(both) // self._stages_and_work()[0].num_devices)

    @property
    def work_of_slots(self) -> NDArray[np.int64]:
        """With pipeline stages, each micro-batch's work in each of their modules: int64[num_ranks, num_slots, M]."""
        return self._of_slots(np.zeros((self.num_samples, 0), dtype=np.int64) if self.work is None else self.work)

    def pipeline_run(self, rank: int, home: bool = False) -> PipelineRun:
        """Run the pipeline of one rank, a replica, exactly: when each stage computes which micro-batch, and holds what.

        Parameters
        ----------
        rank : int
        home : bool
            Before dispatch: as :attr:`home_imbalance_ratio` cuts its samples.

        Raises
        ------
        ValueError
            If the plan has no pipeline stages.
        """
        stages, work = self._stages_and_work()
        rank = as_index("rank", rank, self.num_ranks)
        tokens = self._of_slots(self.lengths[:, None], home)
        run = stages.run_of(self._of_slots(work, home), rank, tokens[rank, :, 0])
        if self.gaps is None:
            return run
        if home:
            return between_both(run, *self._around_home()[:, rank].tolist())
        names = ("makespan", "forward_start", "forward_end", "backward_start", "backward_end", "busy", "idle")
        among = self.gap_run(rank)
        return replace(run, **{name: getattr(among, name) for name in names})

    def between(self, rank: int, home: bool = False) -> Between | None:
        """Return what runs in the gaps of :meth:`pipeline_run`, and when, in 1e-10 s: None if plans have none there."""
        if self.gaps is None:
            return None
        if home:
            run, (ahead, behind) = self.pipeline_run(rank, home), self._around_home()[:, rank].tolist()
            return Between.around(len(run.busy), ahead, behind, run.makespan)
        mine = np.flatnonzero(self.rank_of_sample[self.gaps.tasks.sample] == rank)
        return Between.of(self.gap_run(rank), self.gaps.tasks.of(mine))

    def gap_run(self, rank: int) -> MultiplexResult:
        """Run the pipeline of one rank with the encoders in its gaps, exactly; ValueError if none run there.

        Tasks are those of :attr:`gaps` whose samples are on the rank, in order.
        """
        if self.gaps is None:
            raise ValueError("no encoders run in gaps: plan with micro_batches=MicroBatches.in_gaps(layout.times)")
        (stages, work), rank = self._stages_and_work(), as_index("rank", rank, self.num_ranks)
        return self.gaps.run(stages, self._of_slots(work), rank, self.rank_of_sample, self.slot_of_sample)

    def device_ops(self, rank: int, device: int) -> list[DeviceOp]:
        """Return all that one device of a rank's pipeline runs, in turn: forwards, backwards, and what is in its gaps.

        Returns
        -------
        list of DeviceOp
            Each with its ``slot``, and whether it is a ``backward``; then an op of the pipeline with its ``stage``, and
            what is in a gap with its ``sample`` of the global batch, which ``part`` it is of how many ``parts``, and
            whether it ``generates``, forward and backward in one.

        Raises
        ------
        ValueError
            If the plan has no pipeline stages, or not so many ranks or devices.
        """
        stages, _ = self._stages_and_work()
        rank, device = as_index("rank", rank, self.num_ranks), as_index("device", device, stages.num_devices)
        between = {}
        if self.gaps is not None:
            mine = self.rank_of_sample[self.gaps.tasks.sample] == rank
            between = self.gaps.on_device(device, mine, self.slot_of_sample, self.kept)
        return ops_in_turn(stages.order(self.num_slots), device, between)

    def _of_slots(self, work: NDArray[np.int64], home: bool = False) -> NDArray[np.int64]:
        """Add up what samples have, int64[n, M], by slot of each rank, int64[num_ranks, num_slots, M]."""
        ranks, slots = self.rank_of_sample, self.slot_of_sample
        if home:
            ranks, counts = self.home.rank_of_sample, np.diff(self.home.offsets)
            places = self.home.position_of_sample.astype(np.int64)
            slots = (places * self.num_slots // counts[ranks]).astype(np.int32)
        return work_of_slots(work, ranks, slots, self.num_ranks, self.num_slots)

    @property
    def _piped(self) -> tuple[PipelineStages, NDArray[np.int64]] | None:
        cut = self.micro_batches
        return None if cut is None or cut.stages is None or self.work is None else (cut.stages, self.work)

    def _stages_and_work(self) -> tuple[PipelineStages, NDArray[np.int64]]:
        if self._piped is None:
            raise ValueError("the plan has no pipeline stages: plan with MicroBatches(..., stages=PipelineStages(...))")
        return self._piped

    def _ratio(self, makespan: int, perfect: tuple[int, int]) -> float:
        total, share = perfect
        return makespan * share / total if total else 1.0  # of integers, so that equal loads give 1.0

    def perfect(self, home: bool = False) -> tuple[int, int]:
        """Return the makespan of perfectly even ranks, of pipelines without bubbles, as a fraction: before or after."""
        loads, micro_batches = (self.home_loads, None) if home else (self.loads, self.micro_batches)
        if self._piped is not None:
            stages, work = self._piped
            busy, devices = stages.perfect(work.sum(axis=0), self.num_ranks, self.num_slots)
            tasks = () if self.gaps is None else (self.gaps.tasks.forward, self.gaps.tasks.backward)
            return busy + sum(int(each.sum()) for each in tasks), devices
        speeds = self.constraints.rank_speeds
        total = int(loads.sum())
        if not self.cost.additive:  # what is padded differs; with one mean no ratio rises unless its makespan does
            total = min(int(self.home_loads.sum()), int(self.loads.sum()))
        if isinstance(micro_batches, SequenceGroups):  # of samples each alone on a rank
            slots = micro_batches.fewest_slots(self.lengths, self.num_ranks)
            return int(self.home_loads.sum()) + self.num_ranks * slots * self.cost.sharing.overhead, self.num_ranks
        if micro_batches is not None:
            return micro_batches.perfect(total, self.num_ranks, self.num_slots)
        return total, self.num_ranks if speeds is None else int(speeds.sum())

    @property
    def traffic(self) -> Traffic:
        """What dispatch moves, in elements."""
        if self.group_table is not None:
            return self.stream.traffic(self.topology)
        return Traffic.of(self.home.rank_of_sample, self.target.rank_of_sample, self.lengths, self.topology)

    @property
    def inter_node_volume(self) -> int:
        """Elements that dispatch moves from one node to another."""
        return self.traffic.inter_node

    @property
    def intra_node_volume(self) -> int:
        """Elements that dispatch moves between ranks of one node."""
        return self.traffic.intra_node

    @property
    def inter_node_bound(self) -> int:
        """Elements that must cross nodes in any plan with no larger makespan: proven, 0 if nothing is.

        With micro-batches: in any with as many of them. Known for plain additive costs; O(n log n), computed when asked
        for.
        """
        plain = self.cost.additive and self.constraints.rank_speeds is None
        if not plain or self.constraints.initial_loads is not None:
            return 0
        costs, home = self.cost.sample_costs(self.lengths), self.home.rank_of_sample
        most, node = min(self.makespan, INT64_MAX), self.topology.node_of_rank
        if self.group_table is not None and isinstance(self.micro_batches, SequenceGroups):
            costs, most = least_rank_time(self.cost, self.lengths, self.micro_batches, self.topology, most)
            bound = relocation_bound(costs, home, node, self.lengths, most, divisible=True)
            size = self.micro_batches.size if isinstance(self.micro_batches, LongShort) else 0
            if size and not any(ranks % size for ranks in self.topology.node_sizes):  # an item is whole in its group
                room = min(most * size, INT64_MAX)
                bound = max(bound, relocation_bound(costs, home // size, node[::size], self.lengths, room))
            return bound
        full = 0
        if isinstance(cut := self.micro_batches, MicroBatches):
            tokens, room = np.minimum(self.lengths, cut.max_tokens), min(cut.max_tokens * self.num_slots, INT64_MAX)
            taken = cut.taken_tokens(costs, self.lengths, self.makespan, self.num_slots)
            full = relocation_bound(taken, home, node, self.lengths, room)
            if self._piped is not None:
                stages, work = self._piped
                costs, most = stages.held_by_a_rank(work, self.makespan, self.num_ranks, self.num_slots)
            else:
                costs, most = cut.held_by_a_rank(costs, tokens, self.makespan, self.num_ranks, self.num_slots)
        arrays = read_only(costs), read_only(self.lengths), read_only(home), read_only(node)
        if (bound := int(plain_inter_bound(*arrays, self.topology.num_nodes, most))) >= 0:
            return max(full, bound)
        return max(full, relocation_bound(costs, home, node, self.lengths, most))

    def exchange(self, rank: int) -> RankExchange:
        """What `rank` sends and receives to go from home to target; built when asked for. O(ranks + its samples).

        Where samples are shared, it is of segments of samples (see :attr:`stream`), in place of samples.
        """
        return self.stream.exchange(rank)

    def inverse(self) -> "DispatchPlan":
        """Return the plan of the way back: each sample from where it runs to its home, with the loads exchanged.

        Raises
        ------
        ValueError
            Where samples are shared: use ``plan.stream.inverse()``.
        """
        if self.group_table is not None:
            raise ValueError("the way back of samples that are shared is plan.stream.inverse(), of their segments")
        bound = Bound(self.lower_bound, self.bound_name)
        if self.constraints.names() or self.micro_batches:  # that bound does not hold for homes of any kind
            bound = self.cost.lower_bound(self.cost.sample_costs(self.lengths), self.num_ranks)
        makespan = int(self.home_loads.max())
        optimal = makespan == bound.value
        return DispatchPlan(
            self.topology,
            self.cost,
            self.lengths,
            home=self.target,
            target=self.home,
            home_loads=self.loads,
            loads=self.home_loads,
            makespan=makespan,
            lower_bound=bound.value,
            bound_name=bound.name,
            status=SolveStatus.OPTIMAL if optimal else SolveStatus.FEASIBLE,
            method=self.method,
            dropped=self.dropped,
            dropped_lengths=self.dropped_lengths,
        )

    def digest(self) -> str:
        """SHA-256, in hex, of topology, placements, slots, turns and dropped samples: equal where plans are the same.

        Not of runtime, paths or versions; and not of lengths and costs, which are the plan's input.
        """
        slots = self.slot_of_sample if self.num_slots > 1 else None
        digest = placements_digest(self.topology, self.home, self.target, slots, self.dropped)
        if (gaps := self.gaps) is not None:
            return digest_after(digest, wide=(gaps.tasks.sample, gaps.device, gaps.forward_turn, gaps.backward_turn))
        if (table := self.group_table) is None:
            return digest
        pieces = self.pieces
        groups = table.group_of_sample, table.degree, table.slot, table.first_rank
        return digest_after(digest, narrow=groups, wide=(pieces.start, pieces.stop))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a plan file that holds all of this plan; :func:`balancer.load_plan` reads it. Atomic, and no pickle.

        Raises
        ------
        InputError
            If the path cannot be written.
        PlanError
            If samples do not lie at home in their order, which a plan file cannot tell.
        """
        from balancer.plan.rows import save  # those who plan at run time need no files

        setup, batch, items = self.alone()
        save(path, setup, batch, {SINGLE_PHASE: (items, self)}, self.digest())

    def alone(self, bytes_per_element: int = 1) -> tuple[Setup, GlobalBatch, PhaseItems]:
        """Return setup, batch and items of the step plan whose only phase, ``"all"``, is this plan."""
        kept, lengths = self.constraints, self.lengths
        phase = Phase(
            SINGLE_PHASE, "length", self.cost, bytes_in=bytes_per_element, equal_counts=kept.equal_counts,
            max_tokens_per_rank=kept.max_tokens_per_rank, min_samples_per_rank=kept.min_samples_per_rank,
            max_samples_per_rank=kept.max_samples_per_rank,
            initial_loads=None if kept.initial_loads is None else tuple(kept.initial_loads.tolist()),
            rank_speeds=None if kept.rank_speeds is None else tuple(kept.rank_speeds.tolist()),
        )  # fmt: skip
        settings = PlanSettings(self.method, self.placement, eps=self.eps, micro_batches=self.micro_batches)
        own = default_own(lengths, ())
        items = PhaseItems(phase, self.cost, None, (), np.arange(len(lengths)), lengths, lengths, own)
        batch = GlobalBatch(lengths, self.home, dropped=self.dropped, dropped_lengths=self.dropped_lengths)
        return Setup(self.topology, (phase,), settings), batch, items

    def __repr__(self) -> str:
        return (
            f"<DispatchPlan: {self.num_samples} samples on {self.num_ranks} ranks, cost {self.cost}, "
            f"imbalance {self.home_imbalance_ratio:.4g} -> {self.imbalance_ratio:.6g}, gap {self.gap:.3g}>"
        )


@functools.lru_cache(maxsize=4)
def _first_slot(count: int) -> NDArray[np.int32]:
    """Return the slots of samples that are all in the first: int32[count], read-only; most steps have the same."""
    return read_only(np.zeros(count, dtype=np.int32))


def _measured(
    problem: Problem, target: Placement, slots: Slots, groups: GroupTable | None, gaps: GapTable | None
) -> tuple[NDArray[np.int64], int]:
    """Return the load of each rank, and what a step takes."""
    cut, kept, num_ranks = problem.micro_batches, problem.constraints, problem.topology.num_ranks
    slot_of_sample, num_slots = slots
    if isinstance(cut, SequenceGroups) and groups is not None:
        busy = groups.slot_loads(problem.cost, problem.batch.lengths, cut, num_ranks, num_slots)
        return busy.sum(axis=1), cut.makespan(busy)
    loads = kept.with_initial(problem.cost.loads(problem.costs, target.rank_of_sample, num_ranks))
    if cut is None:
        return loads, kept.makespan(loads)
    table = problem.slot_loads(target.rank_of_sample, slot_of_sample, num_slots)
    if problem.timed is None or cut.stages is None:
        return loads, cut.makespan(table)
    if gaps is None:
        raise UsageError(
            "encoders run in gaps where and when they were scheduled to: other placements have none for them",
            "use the strategy 'orchestrated'",
        )
    ranks = target.rank_of_sample
    return loads, max(gaps.run(cut.stages, table, r, ranks, slot_of_sample).makespan for r in range(num_ranks))


def _binding_sample(costs: NDArray[np.int64], loads: NDArray[np.int64]) -> int | None:
    """Return the largest sample if it costs more than a fair share of the plan's total load."""
    if len(costs) == 0:
        return None
    costs = costs if costs.ndim == 1 else costs.sum(axis=1)
    largest = int(costs.argmax())
    fair_share = -(-int(loads.sum()) // len(loads))
    return largest if costs[largest] > fair_share else None
