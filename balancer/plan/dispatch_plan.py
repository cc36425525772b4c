"""The dispatch plan: which sample runs on which rank, in which order, and the proof of how good that is. Pure data."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer.cost import CostModel
from balancer.plan.exchange import RankExchange
from balancer.plan.gaps import Between, DeviceOp, GapTable
from balancer.plan.pieces import GroupTable, Pieces, PiecesOnRank, SequenceGroup, Shares
from balancer.plan.placed import WholeShares
from balancer.plan.stream import Stream, Traffic
from balancer.problem.constraints import Constraints
from balancer.problem.cuts import WHOLE_SHARES, Cut
from balancer.problem.phases import SINGLE_PHASE, PhaseItems
from balancer.problem.placement import Placement
from balancer.problem.problem import Problem
from balancer.problem.ragged import offsets_of
from balancer.problem.settings import PlanSettings
from balancer.problem.topology import Topology
from solvers.arguments import as_index, as_share
from solvers.bounds import Bound
from solvers.groups import group_loads
from solvers.partitioning import partition
from solvers.pipeline import MultiplexResult, PipelineRun
from solvers.types import STOP_AT, Record, SolveStatus, relative_gap, status_of


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DispatchPlan(Record):
    """A plan for one phase of one step: a problem, its samples placed, and the proof; arrays are read-only.

    Attributes
    ----------
    placed : WholeShares
        The problem, and where and when its samples run: of the class that its cut has in ``balancer.plan.placed``.
    home_loads, loads : int64[num_ranks]
        Load of each rank in cost units, before and after; where ranks share samples, how long they are busy.
    makespan : int
        Cost units until the last rank is done: the largest load; where ranks have speeds, the largest load over speed,
        rounded up; with micro-batches, the time of their schedule; where encoders run in gaps, in 1e-10 s.
    lower_bound : int
        Proven: no placement under the same constraints has a smaller makespan.
    bound_name : str
        The name of the bound; see :mod:`solvers.bounds`.
    status : SolveStatus
        ``OPTIMAL`` if and only if the gap is 0, ``WITHIN`` if it is `stop_at` at most.
    method : str
        The partition method asked for.
    placement : str
        How samples came to ranks: a name in :data:`balancer.problem.settings.PLACEMENTS`.
    eps : float
        How much larger relocation was allowed to make the makespan, as a fraction of it.
    stop_at : float or Fraction
        The gap that was asked for.
    fell_back : str
        Why samples were not relocated from their homes, where that was asked for; else empty.
    binding_sample : int or None
        The costliest sample, as an index into `lengths`, where its cost alone exceeds the mean load; else None.
    runtime_s : float
        Seconds that planning took; not part of the digest nor of equality.
    """

    placed: WholeShares
    home_loads: NDArray[np.int64]
    loads: NDArray[np.int64]
    makespan: int
    lower_bound: int
    bound_name: str
    status: SolveStatus
    method: str
    placement: str = field(default="any", compare=False)
    eps: float = field(default=0.0, compare=False)
    stop_at: float | Fraction = field(default=float(STOP_AT), compare=False)
    fell_back: str = field(default="", compare=False)
    binding_sample: int | None = field(default=None, compare=False)
    runtime_s: float = field(default=0.0, compare=False)

    @classmethod
    def from_placed(
        cls,
        placed: WholeShares,
        prove: Callable[[int], Bound],
        settings: PlanSettings,
        *,
        placement: str,
        status: SolveStatus | None = None,
        fell_back: str = "",
        started: float | None = None,
    ) -> DispatchPlan:
        """Make the finished plan of samples that are placed; every plan is made here.

        `prove` returns the best lower bound on any plan's makespan, given this plan's, and that decides the status; of
        the `status` with which the solver ended only ``TIME_LIMIT`` counts. `placement` says how samples came to ranks,
        which is not always what the settings ask for; `started` when planning began, by ``time.perf_counter``.
        """
        problem = placed.problem
        home = problem.loads(problem.batch.home.rank_of_sample)
        loads, makespan = placed.measured()
        bound = prove(makespan)
        stop_at, out_of_time = as_share("stop_at", settings.stop_at), status is SolveStatus.TIME_LIMIT
        return cls(
            placed,
            home,
            loads,
            makespan,
            bound.value,
            bound.name,
            status_of(makespan, bound.value, stop_at, out_of_time=out_of_time),
            settings.method,
            placement,
            float(settings.eps),
            settings.stop_at,  # type: ignore[arg-type] # text has become a number in the settings
            fell_back,
            placed.binding_sample(loads),
            0.0 if started is None else time.perf_counter() - started,
        )

    # What was given.

    @property
    def problem(self) -> Problem:
        """What the plan solves."""
        return self.placed.problem

    @property
    def topology(self) -> Topology:
        """Ranks and nodes."""
        return self.problem.topology

    @property
    def cost(self) -> CostModel:
        """What samples cost."""
        return self.problem.cost

    @property
    def constraints(self) -> Constraints:
        """What the plan keeps to."""
        return self.problem.constraints

    @property
    def cut(self) -> Cut:
        """How the step is cut."""
        return self.problem.cut

    @property
    def micro_batches(self) -> Cut | None:
        """How the step is cut into slots; None of whole shares."""
        return None if self.cut == WHOLE_SHARES else self.cut

    @property
    def work(self) -> NDArray[np.int64] | None:
        """With pipeline stages, each sample's work in each of their modules, of which encoders may be some."""
        return self.problem.work

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Elements (tokens, frames, patches) of each sample: int64[n]."""
        return self.problem.batch.lengths

    @property
    def home(self) -> Placement:
        """Where the samples lie before dispatch."""
        return self.problem.batch.home

    # Where and when samples run.

    @property
    def target(self) -> Placement:
        """Where the samples run; one that ranks share, on the first of its group."""
        return self.placed.target

    @property
    def slot_of_sample(self) -> NDArray[np.int32]:
        """The micro-batch that each sample is in: int32[n], 0 without them. A rank's samples are in order of slots."""
        return self.placed.slot_of_sample

    @property
    def num_slots(self) -> int:
        """Micro-batches a step, the same on every rank."""
        return self.placed.num_slots

    @property
    def group_table(self) -> GroupTable | None:
        """Which ranks share which samples, where they do; what lies where is told by :attr:`pieces`."""
        return self.placed.group_table

    @property
    def gaps(self) -> GapTable | None:
        """What runs in the gaps of the pipelines, where encoders do."""
        return self.placed.gaps

    @property
    def num_samples(self) -> int:
        """Samples in the step."""
        return len(self.lengths)

    @property
    def num_ranks(self) -> int:
        """Ranks, empty ones included."""
        return self.topology.num_ranks

    @property
    def rank_of_sample(self) -> NDArray[np.int32]:
        """The rank that each sample runs on: int32[n]."""
        return self.target.rank_of_sample

    @property
    def last(self) -> DispatchPlan:
        """The plan of the last phase, as a step plan has one: this one."""
        return self

    @property
    def items_before(self) -> dict[str, PhaseItems]:
        """The items of the phases before the last: there are none."""
        return {}

    def samples_on_rank(self, rank: int) -> NDArray[np.int64]:
        """Samples of the global batch that run on `rank`, shared or not, in dispatch order: int64[k]."""
        return self.placed.samples_on(rank)

    def samples_in_slot(self, rank: int, slot: int) -> NDArray[np.int64]:
        """Samples of the global batch in one micro-batch, in dispatch order: int64[k]."""
        samples = self.samples_on_rank(rank)
        found: NDArray[np.int64] = samples[self.slot_of_sample[samples] == self._checked(slot)]
        return found

    def empty_ranks(self, slot: int) -> NDArray[np.int32]:
        """Ranks that hold nothing in a slot: int32[], ascending. In what is collective they must run a dummy.

        Of several phases, ``plan[phase].empty_ranks(slot)``. Without micro-batches all is slot 0.

        Examples
        --------
        >>> from balancer import MicroBatches, orchestrate
        >>> batch = {"patches": [64, 0, 64, 0], "tokens": [90, 80, 90, 80]}
        >>> plan = orchestrate(batch, {"vision": "patches", "llm": "tokens"}, 2, cut=MicroBatches(100))
        >>> [plan["vision"].empty_ranks(slot).tolist() for slot in range(plan.num_slots)]
        [[], [0, 1]]
        """
        return self.shares.idle_ranks(self._checked(slot), self.slot_of_sample)

    def _checked(self, slot: int) -> int:
        return as_index("slot", slot, self.num_slots)

    # What lies where. Each of these is computed when asked for.

    @property
    def shares(self) -> Shares:
        """Each rank's share of each sample; whole samples where none is shared. O(shares)."""
        return self.placed.shares

    @property
    def pieces(self) -> Pieces:
        """What of each sample lies on which rank; whole samples where none is shared. O(p log p) for p pieces."""
        return self.placed.pieces

    def put_out(self, outputs: NDArray[np.int64]) -> Pieces:
        """Return where a phase's outputs are, of which each item has so many: whole, or in pieces where it is shared.

        A rank's are slot by slot, and in each in the order of their items. O(p) for p pieces.
        """
        return self.placed.put_out(outputs)

    def groups(self, slot: int) -> list[SequenceGroup]:
        """Return the groups of ranks that share samples in a slot, by rank; a rank in none holds nothing in it."""
        return self.placed.groups(self._checked(slot))

    def pieces_on_rank(self, rank: int, slot: int | None = None) -> PiecesOnRank:
        """Return what a rank holds, in a slot or in all of them, in order. Positions begin anew in each slot."""
        return self.pieces.on_rank(rank, self.slot_of_sample, None if slot is None else self._checked(slot))

    def cu_seqlens(self, rank: int, slot: int) -> NDArray[np.int32]:
        """Return where shares of samples begin and end in a rank's packed slot, padding included: int32[k + 1]."""
        shares = self.shares
        mine = shares.in_slot(rank, self._checked(slot), self.slot_of_sample)
        return offsets_of(shares.lengths[mine]).astype(np.int32)

    def process_groups(self) -> list[range]:
        """Return all sets of ranks that a plan with these settings can need as a group of several."""
        return self.placed.rank_sets()

    @property
    def stream(self) -> Stream:
        """What dispatch moves: samples, or, where they are shared, segments of them."""
        return self.placed.stream

    @property
    def equal_counts(self) -> bool:
        """Whether a constraint gives every rank the same number of samples, within one."""
        return self.constraints.equal_counts

    @property
    def slot_loads(self) -> NDArray[np.int64]:
        """Cost of each micro-batch, int64[num_ranks, num_slots]; computed when asked for."""
        return self.placed.slot_loads

    @property
    def shares_prompts(self) -> bool:
        """Whether samples begin with prompts that a rank computes once."""
        return self.constraints.prefix is not None

    @property
    def prompt_copies(self) -> NDArray[np.int64]:
        """On how many ranks, in how many micro-batches, each shared prompt is computed: int64[k], by ascending key.

        O(n log n).
        """
        shared = self.constraints.prefix
        return np.empty(0, dtype=np.int64) if shared is None else shared.copies(self._bin_of_sample)

    @property
    def _bin_of_sample(self) -> NDArray[np.int64]:
        """The rank of each sample, or its micro-batch, all ranks' numbered on: where a shared prompt counts once."""
        return self.rank_of_sample * np.int64(self.num_slots) + self.slot_of_sample

    def unique_tokens(self) -> NDArray[np.int64]:
        """Tokens that each rank computes, those of a shared prompt once: int64[num_ranks]. O(n log n)."""
        shared, ranks = self.constraints.prefix, self.rank_of_sample
        if shared is None:
            return group_loads(self.lengths, ranks, self.num_ranks)
        own = self.lengths - shared.lengths + shared.once(shared.lengths, self._bin_of_sample)
        return group_loads(own, ranks, self.num_ranks)

    def makespan_of_whole_prompts(self) -> int:
        """Return what a step takes if all samples of a prompt run on one rank, by LPT; O(n log n)."""
        shared, problem = self.constraints.prefix, self.problem
        if shared is None or problem.prompts is None:
            return self.makespan
        sums = np.zeros(int(shared.keys.max(initial=-1)) + 1, dtype=np.int64)
        np.add.at(sums, shared.keys, problem.costs)
        once = np.zeros_like(sums)
        once[shared.keys] = problem.prompts
        return partition(sums + once, self.num_ranks, "lpt").makespan

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

    def _ratio(self, makespan: int, perfect: tuple[int, int]) -> float:
        total, share = perfect
        return makespan * share / total if total else 1.0  # of integers, so that equal loads give 1.0

    def perfect(self, home: bool = False) -> tuple[int, int]:
        """Return the makespan of perfectly even ranks, of pipelines without bubbles, as a fraction: before or after."""
        return self.placed.ideal(self.loads, self.home_loads, home)

    @property
    def home_makespan(self) -> int:
        """:attr:`makespan` of the placement before dispatch."""
        return self.placed.home_makespan(self.home_loads)

    def pipeline_makespans(self, home: bool = False) -> NDArray[np.int64]:
        """Return when the pipeline of each rank ends, int64[num_ranks]; `home` as for :meth:`pipeline_run`.

        What runs in gaps does so in none at home, but before the pipeline, evenly on all its devices.
        """
        return self.placed.makespans(home)

    @property
    def work_of_slots(self) -> NDArray[np.int64]:
        """With pipeline stages, each micro-batch's work in each of their modules: int64[num_ranks, num_slots, M]."""
        return self.placed.work_of_slots

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
        return self.placed.run(rank, home)

    def between(self, rank: int, home: bool = False) -> Between | None:
        """Return what runs in the gaps of :meth:`pipeline_run`, and when, in 1e-10 s: None if plans have none there."""
        return self.placed.between(rank, home)

    def gap_run(self, rank: int) -> MultiplexResult:
        """Run the pipeline of one rank with the encoders in its gaps, exactly; ValueError if none run there.

        Tasks are those of :attr:`gaps` whose samples are on the rank, in order.
        """
        return self.placed.gap_run(rank)

    def device_ops(self, rank: int, device: int) -> list[DeviceOp]:
        """Return all that one device of a rank's pipeline runs, in turn: forwards, backwards, and what is in its gaps.

        Returns
        -------
        list of DeviceOp
            Each with its ``slot``, and whether it is a ``backward``; then an op of the pipeline with its ``stage``, and
            what is in a gap with its ``sample`` of the global batch, which ``part`` it is of how many ``parts``, and
            its ``pieces``, each of a module and an item, from a start to a stop. All say which ``kind`` of backward
            there is, and whether it does ``recompute``.

        Raises
        ------
        ValueError
            If the plan has no pipeline stages, or not so many ranks or devices.
        """
        return self.placed.device_ops(rank, device)

    @property
    def traffic(self) -> Traffic:
        """What dispatch moves, in elements."""
        return self.placed.traffic

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
        kept = self.constraints
        plain = self.cost.additive and kept.rank_speeds is None and kept.initial_loads is None
        return self.placed.least_crossing(self.makespan) if plain else 0

    def exchange(self, rank: int) -> RankExchange:
        """What `rank` sends and receives to go from home to target; built when asked for. O(ranks + its samples).

        If ranks share samples, it has segments of samples (see :attr:`stream`) instead of samples.
        """
        return self.stream.exchange(rank)

    def inverse(self) -> DispatchPlan:
        """Return the plan of the way back: each sample from where it runs to its home, with the loads exchanged.

        Raises
        ------
        ValueError
            Where samples are shared: use ``plan.stream.inverse()``.
        """
        placed = self.placed.inverse()
        bound = Bound(self.lower_bound, self.bound_name)
        if self.constraints.names() or self.micro_batches:  # that bound does not hold for homes of any kind
            bound = self.cost.lower_bound(self.problem.costs, self.num_ranks)
        makespan = int(self.home_loads.max())
        status = status_of(makespan, bound.value)
        return DispatchPlan(placed, self.loads, self.home_loads, makespan, bound.value, bound.name, status, self.method)

    def to_pandas(self) -> Any:
        """Return a row a sample as a pandas DataFrame, as plan files have them; needs the extra ``pandas``."""
        from balancer.plan.rows import as_table, data_frame  # those who plan at run time need no files

        return data_frame(lambda: as_table(self))

    def _repr_html_(self) -> str:
        from balancer.plan.shown import Ratios, as_html

        what = f"{self.num_samples:,} samples on {self.num_ranks:,} ranks"
        return as_html("Plan of a step", what, {SINGLE_PHASE: Ratios.from_plan(self)})

    def digest(self) -> str:
        """SHA-256, in hex, of topology, placements, slots and turns: equal where plans are the same.

        Not of runtime, paths or versions; and not of lengths and costs, which are the plan's input.
        """
        return self.placed.digest()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a plan file that holds all of this plan; :func:`balancer.load_plan` reads it. Atomic, and no pickle.

        Raises
        ------
        InputError
            If the path cannot be written.
        PlanError
            If samples do not lie at home in their order, which a plan file cannot tell.
        """
        from balancer.plan.only_phase import as_only_phase  # those who plan at run time need no files
        from balancer.plan.rows import save

        setup, batch, items = as_only_phase(self)
        save(path, setup, batch, {SINGLE_PHASE: (items, self)}, self.digest())

    def __repr__(self) -> str:
        return (
            f"<DispatchPlan: {self.num_samples} samples on {self.num_ranks} ranks, cost {self.cost}, "
            f"imbalance {self.home_imbalance_ratio:.4g} -> {self.imbalance_ratio:.6g}, gap {self.gap:.3g}>"
        )
