"""The dispatch plan: which sample runs on which rank, in which order, and the proof of how good that is. Pure data.

A plan is what was placed: this class has whole shares, where each sample is on one rank and ranks wait once a step.
What comes out of another cut is a subclass, in the room of that cut in :mod:`balancer.cuts`, with what differs.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from balancer.cost import CostModel
from balancer.errors import PlanError
from balancer.io.plan_rows import PlanStep
from balancer.plan.digest import placements_digest
from balancer.plan.exchange import RankExchange
from balancer.plan.gaps import Between, GapTable
from balancer.plan.item_rows import ItemRows, OneEach, RowsBeside, checked_target
from balancer.plan.pieces import GroupTable, Pieces, PiecesOnRank, SequenceGroup, Shares
from balancer.plan.stream import Stream, Traffic
from balancer.problem.constraints import Constraints
from balancer.problem.cuts import WHOLE_SHARES, Cut
from balancer.problem.phases import SINGLE_PHASE
from balancer.problem.placement import Placement
from balancer.problem.problem import Problem
from balancer.problem.ragged import offsets_of
from balancer.problem.settings import PlanSettings
from balancer.problem.topology import Topology
from solvers.arguments import INT64_MAX, as_index, as_share
from solvers.bounds import Bound
from solvers.groups import group_loads, read_only
from solvers.relocation import crossing_bound
from solvers.types import STOP_AT, Record, SolveStatus, relative_gap, status_of

Ints = NDArray[np.int64]
Ranks = NDArray[np.int32]

_NO_LOADS = read_only(np.zeros(0, dtype=np.int64))


@functools.lru_cache(maxsize=4)
def _first_slot(count: int) -> Ranks:
    """Return the slots of samples that are all in the first: int32[count], read-only; most steps have the same."""
    return read_only(np.zeros(count, dtype=np.int32))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DispatchPlan(Record):
    """A plan for one phase of one step: a problem, its samples placed, and the proof; arrays are read-only.

    Planners place samples, with the first four fields and those of a subclass, and :meth:`finished` fills in the rest.
    Plans are equal where ranks, slots, samples and proofs are, whatever the constraints.

    Attributes
    ----------
    problem : Problem
        What it solves.
    target : Placement
        Where the samples run; one that ranks share, on the first of its group.
    slot_of_sample : int32[n]
        The micro-batch that each sample is in, 0 without them. A rank's samples are in order of slots.
    num_slots : int
        Micro-batches a step, the same on every rank.
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
    runtime_s : float
        Seconds that planning took; not part of the digest nor of equality.
    """

    problem: Problem = field(compare=False)
    target: Placement
    slot_of_sample: NDArray[np.int32] = field(default_factory=lambda: _first_slot(0))
    num_slots: int = 1
    home_loads: NDArray[np.int64] = field(default_factory=lambda: _NO_LOADS)
    loads: NDArray[np.int64] = field(default_factory=lambda: _NO_LOADS)
    makespan: int = 0
    lower_bound: int = 0
    bound_name: str = ""
    status: SolveStatus = SolveStatus.FEASIBLE
    method: str = "auto"
    placement: str = field(default="any", compare=False)
    eps: float = field(default=0.0, compare=False)
    stop_at: float | Fraction = field(default=float(STOP_AT), compare=False)
    fell_back: str = field(default="", compare=False)
    runtime_s: float = field(default=0.0, compare=False)

    def __post_init__(self) -> None:
        if len(self.slot_of_sample) != len(self.problem.batch.lengths):
            object.__setattr__(self, "slot_of_sample", _first_slot(len(self.problem.batch.lengths)))
        Record.__post_init__(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DispatchPlan) or Record.__eq__(self, other) is not True:
            return False
        mine, others = self.problem, other.problem
        return all(getattr(mine, name) == getattr(others, name) for name in ("topology", "cost", "batch", "cut"))

    __hash__ = None

    # How a plan is made: from samples in their places, from the rows of a file, from what another rank sent.

    def measured(self) -> Self:
        """Return the same with its loads and its makespan."""
        return replace(self, **self._loads())

    def _loads(self) -> dict[str, Any]:
        home_loads = self.problem.loads(self.problem.batch.home.rank_of_sample)
        loads, makespan = self.measure()
        return {"home_loads": home_loads, "loads": loads, "makespan": makespan}

    def finished(
        self, bound: Bound, settings: PlanSettings, *, status: SolveStatus | None = None, fell_back: str = ""
    ) -> Self:
        """Return the same, measured, with a lower bound on any plan's makespan beside it, which decides the status.

        Of the `status` with which a solver ended only ``TIME_LIMIT`` counts.
        """
        found = {"makespan": self.makespan} if len(self.loads) else self._loads()
        stop_at, out_of_time = as_share("stop_at", settings.stop_at), status is SolveStatus.TIME_LIMIT
        return replace(
            self, **found, lower_bound=bound.value, bound_name=bound.name,
            status=status_of(found["makespan"], bound.value, stop_at, out_of_time=out_of_time), method=settings.method,
            eps=float(settings.eps), stop_at=settings.stop_at,  # type: ignore[arg-type] # text has become a number there
            fell_back=fell_back,
        )  # fmt: skip

    @classmethod
    def read(cls, where: str, rows: PlanStep) -> OneEach:
        """Tell which rows of a plan file begin an item: all; `where` is for errors."""
        return OneEach(rows, rows)

    @classmethod
    def from_rows(cls, problem: Problem, rows: ItemRows) -> Self:
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

    @classmethod
    def put_together(
        cls, problem: Problem, target: Placement, slots: Ranks, num_slots: int, *beside: Ranks
    ) -> DispatchPlan:
        """Place samples by rank and position, slot, and what is :attr:`beside` these."""
        return cls(problem, target, slots, num_slots)

    @property
    def beside(self) -> tuple[Ranks, ...]:
        """What says where samples are besides ranks, positions and slots: nothing where they are whole."""
        return ()

    @classmethod
    def joined(cls, problem: Problem, parts: Sequence[tuple[Ints, int, DispatchPlan]]) -> DispatchPlan:
        """Put plans of groups of ranks together: of each which samples it is of, its first rank, and it."""
        ranks = np.empty(len(problem.costs), dtype=np.int32)
        for members, first, part in parts:
            ranks[members] = part.rank_of_sample + first
        return cls(problem, Placement.by_sample_order(ranks, problem.topology.num_ranks))

    # What a step takes. A cut overrides what differs.

    def measure(self) -> tuple[Ints, int]:
        """Return the load of each rank, int64[num_ranks], and what a step takes."""
        loads = self.problem.loads(self.rank_of_sample)
        return loads, self.constraints.makespan(loads)

    @property
    def slot_loads(self) -> Ints:
        """Cost of each micro-batch, int64[num_ranks, num_slots]; computed when asked for."""
        problem = replace(self.problem, work=None)
        return problem.slot_loads(self.rank_of_sample, self.slot_of_sample, self.num_slots)

    @property
    def home_makespan(self) -> int:
        """:attr:`makespan` of the placement before dispatch."""
        return self.constraints.makespan(self.home_loads)

    def perfect(self, home: bool = False) -> tuple[int, int]:
        """Return the makespan of perfectly even ranks, of pipelines without bubbles, as a fraction: before or after."""
        speeds, total = self.constraints.rank_speeds, int((self.home_loads if home else self.loads).sum())
        if not self.cost.additive:  # what is padded differs; with one mean no ratio rises unless its makespan does
            total = min(int(self.home_loads.sum()), int(self.loads.sum()))
        return total, len(self.loads) if speeds is None else int(speeds.sum())

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
        return _ratio(self.makespan, self.perfect())

    @property
    def home_imbalance_ratio(self) -> float:
        """:attr:`imbalance_ratio` of the placement before dispatch, which has no micro-batches: ranks wait once.

        Before a pipeline each rank's samples are cut, as they lie, into as many micro-batches of equally many.
        """
        return _ratio(self.home_makespan, self.perfect(home=True))

    @property
    def binding_sample(self) -> int | None:
        """The costliest sample, as an index into `lengths`, where its cost alone exceeds the mean load; else None."""
        return self.costliest(self.loads)

    def costliest(self, loads: Ints) -> int | None:
        """Return the costliest sample if it costs more than a fair share of the total load."""
        costs = self.problem.whole_costs
        if len(costs) == 0:
            return None
        costs = costs if costs.ndim == 1 else costs.sum(axis=1)
        largest = int(costs.argmax())
        fair_share = -(-int(loads.sum()) // len(loads))
        return largest if costs[largest] > fair_share else None

    # What was given.

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
    def lengths(self) -> Ints:
        """Elements (tokens, frames, patches) of each sample: int64[n]."""
        return self.problem.batch.lengths

    @property
    def home(self) -> Placement:
        """Where the samples lie before dispatch."""
        return self.problem.batch.home

    @property
    def num_samples(self) -> int:
        """Samples in the step."""
        return len(self.lengths)

    @property
    def num_ranks(self) -> int:
        """Ranks, empty ones included."""
        return self.topology.num_ranks

    # Where and when samples run.

    @property
    def rank_of_sample(self) -> Ranks:
        """The rank that each sample runs on: int32[n]."""
        return self.target.rank_of_sample

    def samples_on_rank(self, rank: int) -> Ints:
        """Samples of the global batch that run on `rank`, shared or not, in dispatch order: int64[k]."""
        return self.target.samples_on_rank(rank)

    def samples_in_slot(self, rank: int, slot: int) -> Ints:
        """Samples of the global batch in one micro-batch, in dispatch order: int64[k]."""
        samples = self.samples_on_rank(rank)
        found: Ints = samples[self.slot_of_sample[samples] == self._checked(slot)]
        return found

    def empty_ranks(self, slot: int) -> Ranks:
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

    @property
    def group_table(self) -> GroupTable | None:
        """Which ranks share which samples, where they do; what lies where is told by :attr:`pieces`."""
        return None

    @property
    def gaps(self) -> GapTable | None:
        """What runs in the gaps of the pipelines, where encoders do."""
        return None

    def between(self, rank: int, home: bool = False) -> Between | None:
        """Return what runs in the gaps of a rank's pipeline, and when, in 1e-10 s: None if plans have none there."""
        return None

    def groups(self, slot: int) -> list[SequenceGroup]:
        """Return the groups of ranks that share samples in a slot, by rank; a rank in none holds nothing in it."""
        raise ValueError("the plan has no sequence groups: plan with cut=SequenceGroups(...)")

    # What lies where. Each of these is computed when asked for.

    @property
    def shares(self) -> Shares:
        """Each rank's share of each sample; whole samples where none is shared. O(shares)."""
        return Shares(np.arange(self.num_samples), self.target, self.lengths)

    def busy(self, shares: Shares) -> NDArray[np.float64]:
        """Return for how long a rank is busy with each share, over how long its sample takes alone: float64[s]."""
        return np.ones(len(shares.sample))

    @property
    def pieces(self) -> Pieces:
        """What of each sample lies on which rank; whole samples where none is shared. O(p log p) for p pieces."""
        return Pieces.whole(self.target, self.lengths)

    def group_of_pieces(self, pieces: Pieces) -> Ranks:
        """Return the number of the group that each piece is of, -1 where there are no groups: int32[p]."""
        return np.full(len(pieces.sample), -1, dtype=np.int32)

    def put_out(self, outputs: Ints) -> Pieces:
        """Return where a phase's outputs are, of which each item has so many: whole, or in pieces where it is shared.

        A rank's are slot by slot, and in each in the order of their items. O(p) for p pieces.
        """
        return Pieces.whole(self.target, outputs)

    def pieces_on_rank(self, rank: int, slot: int | None = None) -> PiecesOnRank:
        """Return what a rank holds, in a slot or in all of them, in order. Positions begin anew in each slot."""
        return self.pieces.on_rank(rank, self.slot_of_sample, None if slot is None else self._checked(slot))

    def cu_seqlens(self, rank: int, slot: int) -> NDArray[np.int32]:
        """Return where shares of samples begin and end in a rank's packed slot, padding included: int32[k + 1]."""
        shares = self.shares
        mine = shares.in_slot(rank, self._checked(slot), self.slot_of_sample)
        return offsets_of(shares.lengths[mine]).astype(np.int32)

    # Prompts that samples share.

    @property
    def prompt_copies(self) -> Ints:
        """On how many ranks, in how many micro-batches, each shared prompt is computed: int64[k], by ascending key.

        O(n log n).
        """
        shared = self.constraints.prefix
        return np.empty(0, dtype=np.int64) if shared is None else shared.copies(self._bin_of_sample)

    @property
    def _bin_of_sample(self) -> Ints:
        """The rank of each sample, or its micro-batch, all ranks' numbered on: where a shared prompt counts once."""
        return self.rank_of_sample * np.int64(self.num_slots) + self.slot_of_sample

    def unique_tokens(self) -> Ints:
        """Tokens that each rank computes, those of a shared prompt once: int64[num_ranks]. O(n log n)."""
        shared, ranks = self.constraints.prefix, self.rank_of_sample
        if shared is None:
            return group_loads(self.lengths, ranks, self.num_ranks)
        own = self.lengths - shared.lengths + shared.once(shared.lengths, self._bin_of_sample)
        return group_loads(own, ranks, self.num_ranks)

    # What dispatch moves.

    @property
    def stream(self) -> Stream:
        """What dispatch moves: samples, or, where they are shared, segments of them."""
        return Stream("", self.home, self.target, self.lengths, self.lengths)

    @property
    def traffic(self) -> Traffic:
        """What dispatch moves, in elements."""
        return Traffic.from_ranks(self.home.rank_of_sample, self.rank_of_sample, self.lengths, self.topology)

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
        return self.least_crossing() if plain else 0

    def least_crossing(self) -> int:
        """Return how many elements cross nodes in any plan with no larger makespan, of plain additive costs."""
        costs, most = self.held_by_a_rank()
        return crossing_bound(costs, self.lengths, self.home.rank_of_sample, self.topology.node_of_rank, most)

    def held_by_a_rank(self) -> tuple[Ints, int]:
        """Return a cost of samples, and how much of it a rank holds at most in a step that takes no longer."""
        return self.problem.costs, min(self.makespan, INT64_MAX)

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
        problem, bound = self.problem, Bound(self.lower_bound, self.bound_name)
        if self.constraints.names() or self.cut != WHOLE_SHARES:  # that bound does not hold for homes of any kind
            bound = self.cost.lower_bound(problem.costs, self.num_ranks)
        makespan = int(self.home_loads.max())
        back = Problem(replace(problem.batch, home=self.target), self.topology, self.cost, problem.costs)
        return DispatchPlan(
            back, self.home, home_loads=self.loads, loads=self.home_loads, makespan=makespan, lower_bound=bound.value,
            bound_name=bound.name, status=status_of(makespan, bound.value), method=self.method,
        )  # fmt: skip

    # How it is kept and shown. Those who plan at run time need no files, and load nothing for them.

    def digest(self) -> str:
        """SHA-256, in hex, of topology, placements, slots and turns: equal where plans are the same.

        Not of runtime, paths or versions; and not of lengths and costs, which are the plan's input.
        """
        slots = self.slot_of_sample if self.num_slots > 1 else None
        return placements_digest(self.topology, self.home, self.target, slots)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a plan file that holds all of this plan; :func:`balancer.load_plan` reads it. Atomic, and no pickle.

        Raises
        ------
        InputError
            If the path cannot be written.
        PlanError
            If samples do not lie at home in their order, or costs were given one a sample: a plan file tells neither.
        """
        if self.problem.is_given:
            raise PlanError(
                "a plan file tells costs by their name, and not one number a sample: keep rank_of_sample and "
                "slot_of_sample of this plan, or pickle it"
            )
        from balancer.plan.only_phase import as_only_phase
        from balancer.plan.rows import save

        setup, batch, items = as_only_phase(self)
        save(path, setup, batch, {SINGLE_PHASE: (items, self)}, self.digest())

    def to_pandas(self) -> Any:
        """Return a row a sample as a pandas DataFrame, as plan files have them; needs the extra ``pandas``."""
        from balancer.plan.rows import as_table, data_frame

        of_rows = replace(self, problem=replace(self.problem, is_given=False))  # rows tell no costs
        return data_frame(lambda: as_table(of_rows))

    def _repr_html_(self) -> str:
        from balancer.plan.shown import Ratios, as_html

        what = f"{self.num_samples:,} samples on {self.num_ranks:,} ranks"
        return as_html("Plan of a step", what, {SINGLE_PHASE: Ratios.from_plan(self)})

    def __repr__(self) -> str:
        cost = "given" if self.problem.is_given else self.cost
        return (
            f"<DispatchPlan: {self.num_samples} samples on {self.num_ranks} ranks, cost {cost}, "
            f"imbalance {self.home_imbalance_ratio:.4g} -> {self.imbalance_ratio:.6g}, gap {self.gap:.3g}>"
        )


def _ratio(makespan: int, perfect: tuple[int, int]) -> float:
    total, share = perfect
    return makespan * share / total if total else 1.0  # of integers, so that equal loads give 1.0
