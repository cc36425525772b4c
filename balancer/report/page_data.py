"""What the page shows of a run, added up step by step; its size does not grow with samples or ranks."""

import bisect
import heapq
import math
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from balancer.cuts.pipelines.plan import PipelinePlan
from balancer.layouts.step_plan import LaidOutStepPlan
from balancer.plan.balance_report import even_rank_time
from balancer.plan.dispatch_plan import DispatchPlan
from balancer.plan.gaps import Between
from balancer.plan.step_plan import StepPlan
from balancer.plan.stream import Stream
from balancer.problem.constraints import CONSTRAINTS
from balancer.problem.placement import Placement
from balancer.problem.topology import Topology
from solvers.pipeline import PipelineRun

__all__ = ["PageData", "PhaseData", "RankLoads", "StepPicture", "WorstStep", "ranks_a_bar"]

MOST_BARS = 128
"""Bars of a chart of ranks; if there are more ranks, neighbours are joined, the busiest standing for all."""
MOST_NODES = 32
"""Rows and columns of the heat map; if there are more nodes, neighbours are joined."""
MOST_WORST = 10
"""Steps in the table of the worst ones."""
BINS_AN_OCTAVE = 4
_MOST_HELD = 64  # steps near the median one, of which one will be drawn

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, order=True)
class WorstStep:
    """A step and what caps it; ordered by how uneven its plan is, earlier steps first."""

    ratio_after: float
    minus_step: int
    ratio_before: float
    ratio_bound: float
    cap_row: int | None
    cap_length: int

    @property
    def step(self) -> int:
        """Which step, from 0."""
        return -self.minus_step


def ranks_a_bar(num_ranks: int) -> int:
    """Return how many neighbours are joined in a chart of ranks."""
    return -(-num_ranks // MOST_BARS)


@dataclass(frozen=True, slots=True)
class RankLoads:
    """Load over mean load of ranks, the busiest first; where there are many, a bar stands for some neighbours."""

    loads: Floats  # float64[at most MOST_BARS]
    num_ranks: int
    cap: float = 0.0  # what the sample that caps the step costs, over the mean load; 0 if none does
    cap_bar: int = 0  # where its rank is
    bound: float | None = None  # proven: the busiest has no less

    @classmethod
    def of(cls, loads: Floats) -> "RankLoads":
        """Join neighbours of loads in order, the busiest standing for all of them."""
        return cls(loads[:: ranks_a_bar(len(loads))], len(loads))

    @property
    def ranks_a_bar(self) -> int:
        """How many ranks a bar stands for."""
        return ranks_a_bar(self.num_ranks)


@dataclass(slots=True)
class PhaseData:
    """One phase over all steps."""

    # float64[at most MOST_BARS]: sums over the steps of loads, ranks busiest first; and of mean loads, so that long
    # steps count for more, as they do in the ratios of a summary
    profile_before: Floats = field(default_factory=lambda: np.zeros(0))
    profile_after: Floats = field(default_factory=lambda: np.zeros(0))
    mean_before: float = 0.0
    mean_after: float = 0.0
    at_bound: float = 0.0  # the same sum at the proven bound
    # imbalance ratio of each step: before, after, at the bound
    ratios: list[tuple[float, ...]] = field(default_factory=list)
    # int64[]: items by length: bin b holds lengths from 2**(b / BINS_AN_OCTAVE); zeros are counted apart
    length_counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(64 * BINS_AN_OCTAVE, dtype=np.int64))
    zeros: int = 0  # items of length 0
    num_ranks: int = 0  # of a layout, replicas
    waits_once: bool = True  # in every step the busiest over the mean is the imbalance ratio
    worst: list[WorstStep] = field(default_factory=list)  # a heap of the most uneven steps

    def add(self, plan: DispatchPlan, shown: tuple[RankLoads, RankLoads], row_of_item: Ints, step: int) -> None:
        """Take in the next full step, its loads and its number; each item is of a row of the log."""
        means = [float(even_rank_time(plan, home)) / plan.num_ranks for home in (True, False)]
        self.profile_before = _added(self.profile_before, shown[0].loads * means[0])
        self.profile_after = _added(self.profile_after, shown[1].loads * means[1])
        self.mean_before, self.mean_after = self.mean_before + means[0], self.mean_after + means[1]
        self.num_ranks = shown[1].num_ranks
        ratios = plan.home_imbalance_ratio, plan.imbalance_ratio
        # Where ranks meet in every slot, a rank's sum over the step is not what the others wait for.
        self.waits_once &= all(
            math.isclose(one.loads[0], of, rel_tol=1e-6) for one, of in zip(shown, ratios, strict=True)
        )
        total, share = plan.perfect()
        bound = plan.lower_bound * share / total if total else 1.0
        self.at_bound += bound * means[1]
        self.ratios.append((*ratios, bound))
        there = plan.lengths[plan.lengths > 0]
        self.zeros += len(plan.lengths) - len(there)
        # 1e-9, or a power of two could fall into the bin below by rounding.
        bins = np.floor(BINS_AN_OCTAVE * np.log2(there) + 1e-9).astype(np.int64)
        self.length_counts += np.bincount(bins, minlength=len(self.length_counts))
        row, length = None, 0
        if plan.binding_sample is not None:
            row = int(row_of_item[plan.binding_sample])
            length = int(plan.lengths[plan.binding_sample])
        worst = WorstStep(ratios[1], -step, ratios[0], bound, row, length)
        # A heap: of a run of any length only the worst steps are held.
        heapq.heappush(self.worst, worst)
        if len(self.worst) > MOST_WORST:
            heapq.heappop(self.worst)

    def profiles(self) -> tuple[RankLoads, RankLoads]:
        """Return load over mean load of all steps, before and after, with the bound of the latter."""
        if not self.mean_before or not self.mean_after:  # all loads are 0
            even = np.ones_like(self.profile_before)
            return RankLoads(even, self.num_ranks), RankLoads(even, self.num_ranks, bound=1.0)
        before, after = self.profile_before / self.mean_before, self.profile_after / self.mean_after
        bound = self.at_bound / self.mean_after
        return RankLoads(before, self.num_ranks), RankLoads(after, self.num_ranks, bound=bound)


@dataclass(frozen=True, slots=True)
class StepPicture:
    """One step by rank: of each phase the loads before and after, and by how much its ratios fall, all together.

    With pipeline stages `pipelines` are the slowest replica's run before, and after, `between` is what runs in their
    gaps where encoders do, and `no_bubble` is what the mean replica would take without bubbles.
    """

    step: int
    saved: float
    phases: dict[str, tuple[RankLoads, RankLoads]]
    pipelines: dict[str, PipelineRun] = field(default_factory=dict)
    between: dict[str, Between] = field(default_factory=dict)
    no_bubble: float = 1.0


def asked_for(plan: DispatchPlan, encoder_slots: str = "") -> str:
    """Say what a plan was asked to do: cost, placement, constraints and micro-batches.

    An encoder's micro-batches have no cap of their own; `encoder_slots` says where it computes.
    """
    kept = plan.constraints
    said = [f"cost {plan.cost.in_words}"]
    said.append(f"{plan.placement} within {plan.eps:g}" if plan.placement == "relocate" else plan.placement)
    numbers = [name for name in kept.names() if CONSTRAINTS[name].value == "number"]
    said += [f"{name} {getattr(kept, name):,}" for name in numbers]
    said += [f"{cap.name} at most {cap.limit:,}" for cap in kept.caps]
    said += [name for name in kept.names() if CONSTRAINTS[name].value not in ("number", "caps")]
    if encoder_slots:
        said.append(encoder_slots)
    elif words := plan.cut.in_words():
        said.append(words)
    return ", ".join(said)


def _encoder_slots(plan: StepPlan, phase: str) -> str:
    """Say where an encoder computes if there are micro-batches; nothing of the last phase."""
    if phase == list(plan.phases)[-1] or not plan[phase].cut.meets:
        return ""
    if plan.encoders_in_pipeline:
        return f"{'in the gaps' if plan.setup.in_gaps else 'stages'} of the last phase's pipeline"
    return "before the first micro-batch" if plan.encoders_first else "in the micro-batches of the samples"


@dataclass(slots=True)
class PageData:
    """What the page shows in addition to a :class:`balancer.report.summary.RunSummary`."""

    phases: dict[str, PhaseData] = field(default_factory=dict)
    following: set[str] = field(default_factory=set)  # encoders in the pipelines of the last phase
    # what the plan of each phase was asked to do, in words; it may hold column names, which users chose
    asked: dict[str, str] = field(default_factory=dict)
    # float64[k, k]: what moves from node to node over all steps, within a node not counted: bytes, or elements
    # where there is one phase. Each row and column stands for `nodes_a_row` nodes.
    traffic: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    num_nodes: int = 0
    num_ranks: int = 0
    of_bytes: bool = False
    laid_out: bool = False  # phases run on other ranks than the last
    _steps: int = field(default=0, init=False)
    _rows: int = field(default=0, init=False)
    _saved: list[float] = field(default_factory=list, init=False)  # by each full step, ascending
    _held: list[StepPicture] = field(default_factory=list, init=False)

    @property
    def nodes_a_row(self) -> int:
        """Nodes per row of the heat map."""
        return -(-self.num_nodes // MOST_NODES)

    @property
    def median_saved(self) -> float:
        """What the plan of the median full step saves, as :class:`StepPicture` counts it."""
        return self._saved[(len(self._saved) - 1) // 2]

    @property
    def picture(self) -> StepPicture | None:
        """The step to draw: one that saves what the median step does, or next to it."""
        return min(self._held, key=self._from_median, default=None)

    def _from_median(self, picture: StepPicture) -> tuple[float, int]:
        return abs(picture.saved - self.median_saved), picture.step

    def add(self, plan: StepPlan, short: bool = False) -> None:
        """Take in the next step; a `short` one only where it is the first. O(items + ranks log ranks)."""
        plans = {name: phase.plan for name, phase in plan.phases.items()}
        if short and self._steps:  # a log of one short step has no other to show
            self._pass_over(plan)
            return
        rows, shown = np.arange(plan.num_samples) + self._rows, dict[str, tuple[RankLoads, RankLoads]]()
        if plan.encoders_in_pipeline:
            self.following = set(list(plan.phases)[:-1])
        for name, phase in plan.phases.items():
            self.asked.setdefault(name, asked_for(phase.plan, _encoder_slots(plan, name)))
            shown[name] = loads_of(phase.plan)
            of_items = rows[phase.items.sample_of_item]
            self.phases.setdefault(name, PhaseData()).add(phase.plan, shown[name], of_items, self._steps)
        self.of_bytes, self.num_ranks = not plan.is_single, plan.num_ranks
        self.laid_out = isinstance(plan, LaidOutStepPlan)
        self._add_traffic(list(plan.streams.values()), plan.topology)
        self._hold(plans, shown)
        self._pass_over(plan)

    def _pass_over(self, plan: StepPlan) -> None:
        self._steps += 1
        self._rows += plan.num_samples

    def _add_traffic(self, streams: list[Stream], topology: Topology) -> None:
        self.num_nodes = topology.num_nodes
        size = -(-self.num_nodes // self.nodes_a_row)
        if not len(self.traffic):
            self.traffic = np.zeros((size, size))
        for stream in streams:
            source = topology.node_of_rank[stream.source.rank_of_sample]
            target = topology.node_of_rank[stream.target.rank_of_sample]
            crosses = source != target
            cell = source[crosses].astype(np.int64) // self.nodes_a_row * size + target[crosses] // self.nodes_a_row
            volumes = np.bincount(cell, weights=stream.bytes_of_item[crosses], minlength=size * size)
            self.traffic += volumes.reshape(size, size)

    def _hold(self, plans: dict[str, DispatchPlan], shown: dict[str, tuple[RankLoads, RankLoads]]) -> None:
        """Hold this step if it is of those so far that are nearest to the median one."""
        ratios = [phase.ratios[-1] for name, phase in self.phases.items() if name not in self.following]
        saved = sum(before - after for before, after, _ in ratios)
        # In order, so that the median of all steps so far can be read off.
        bisect.insort(self._saved, saved)
        furthest = max(self._held, key=self._from_median, default=None)
        if furthest is not None and len(self._held) == _MOST_HELD:
            if abs(saved - self.median_saved) >= self._from_median(furthest)[0]:
                return
            self._held.remove(furthest)
        self._held.append(self._drawn(plans, shown, saved))

    def _drawn(
        self, plans: dict[str, DispatchPlan], shown: dict[str, tuple[RankLoads, RankLoads]], saved: float
    ) -> StepPicture:
        last = list(plans.values())[-1]
        return StepPicture(self._steps, saved, shown, *_slowest_pipelines(last), _of(last.perfect()))


def _of(fraction: tuple[int, int]) -> float:
    return fraction[0] / fraction[1] or 1.0


def _slowest_pipelines(plan: DispatchPlan) -> tuple[dict[str, PipelineRun], dict[str, Between]]:
    """Return the run of the replica that takes longest, before and after, if there are pipeline stages.

    And what runs in its gaps.
    """
    runs: dict[str, PipelineRun] = {}
    boxes: dict[str, Between] = {}
    if not isinstance(plan, PipelinePlan):
        return runs, boxes
    for name, home in (("before", True), ("after", False)):
        slowest = int(np.argmax(plan.pipeline_makespans(home)))
        runs[name] = plan.pipeline_run(slowest, home)
        if (between := plan.between(slowest, home)) is not None:
            boxes[name] = between
    return runs, boxes


def loads_of(plan: DispatchPlan) -> tuple[RankLoads, RankLoads]:
    """Return load over mean load of ranks, before and after; of time, where ranks have speeds.

    Of pipelines, what each takes over what the mean one would without bubbles.
    """
    if isinstance(plan, PipelinePlan):
        perfect, share = plan.perfect()
        times = (plan.pipeline_makespans(home) * share / perfect if perfect else np.ones(plan.num_ranks)
                 for home in (True, False))  # fmt: skip
        before, after = (RankLoads.of(np.sort(time)[::-1]) for time in times)
        return before, after
    return _by_load(plan, plan.home_loads, plan.home), _by_load(plan, plan.loads, plan.target)


def _by_load(plan: DispatchPlan, loads: Ints, placement: Placement) -> RankLoads:
    """Put ranks in order, and find what the sample that caps the step costs of its rank's load."""
    speeds = plan.constraints.rank_speeds
    weights = np.ones(len(loads)) if speeds is None else np.asarray(speeds, dtype=np.float64)
    mean = float(loads.sum()) / float(weights.sum())
    relative = loads / weights / mean if mean else np.ones(len(loads))
    order = np.argsort(-relative, kind="stable")
    shown = RankLoads.of(relative[order])
    cap = plan.binding_sample
    if cap is None or plan.cut.shares or not plan.cost.additive:
        return shown
    rank = int(placement.rank_of_sample[cap])
    bar = int(np.flatnonzero(order == rank)[0]) // shown.ranks_a_bar
    cost = float(plan.problem.whole_costs[cap].sum() / weights[rank] / mean)
    return replace(shown, cap=min(cost, float(shown.loads[bar])), cap_bar=bar)


def _added(sums: Floats, values: Floats) -> Floats:
    return values if not len(sums) else sums + values
