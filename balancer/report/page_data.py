"""What the page shows of a run, added up step by step; its size does not grow with samples or ranks."""

import heapq
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from balancer.plan.balance_report import even_rank_time
from balancer.plan.dispatch_plan import DispatchPlan
from balancer.plan.gaps import Between
from balancer.plan.step_plan import StepPlan
from balancer.plan.stream import Stream
from balancer.problem.constraints import CONSTRAINTS
from balancer.problem.topology import Topology
from solvers.pipeline import PipelineRun

__all__ = ["PageData", "PhaseData", "StepPicture", "WorstStep", "coarse"]

MOST_POINTS = 128
"""Points of a curve over ranks; if there are more, neighbours are joined, the busiest standing for all."""
MOST_ROWS = 64
"""Rows of the timeline."""
MOST_NODES = 32
"""Rows and columns of the heat map; if there are more nodes, neighbours are joined."""
MOST_WORST = 10
"""Steps in the table of the worst ones."""
BINS_AN_OCTAVE = 4

Floats = NDArray[np.float64]


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


@dataclass(slots=True)
class PhaseData:
    """One phase over all steps."""

    # float64[at most MOST_POINTS]: sums over the steps of loads, ranks busiest first; and of mean loads, so that long
    # steps count for more, as they do in the ratios of a summary
    profile_before: Floats = field(default_factory=lambda: np.zeros(0))
    profile_after: Floats = field(default_factory=lambda: np.zeros(0))
    mean_before: float = 0.0
    mean_after: float = 0.0
    at_bound: float = 0.0  # the same sum at the proven bound
    # imbalance ratio of each step: before, after, at the bound
    ratios: list[tuple[float, float, float]] = field(default_factory=list)
    # int64[]: items by length: bin b holds lengths from 2**(b / BINS_AN_OCTAVE); zeros are counted apart
    length_counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(64 * BINS_AN_OCTAVE, dtype=np.int64))
    zeros: int = 0  # items of length 0
    worst: list[WorstStep] = field(default_factory=list)  # a heap of the most uneven steps

    def add(self, plan: DispatchPlan, row_of_item: NDArray[np.int64], step: int) -> None:
        """Take in the next full step and its number; each item is of a row of the log."""
        before, after = relative_loads(plan)
        means = [float(even_rank_time(plan, home)) / plan.num_ranks for home in (True, False)]
        self.profile_before = _added(self.profile_before, coarse(np.sort(before)[::-1], MOST_POINTS) * means[0])
        self.profile_after = _added(self.profile_after, coarse(np.sort(after)[::-1], MOST_POINTS) * means[1])
        self.mean_before, self.mean_after = self.mean_before + means[0], self.mean_after + means[1]
        total, share = plan.perfect()
        bound = plan.lower_bound * share / total if total else 1.0
        self.at_bound += bound * means[1]
        self.ratios.append((plan.home_imbalance_ratio, plan.imbalance_ratio, bound))
        there = plan.lengths[plan.lengths > 0]
        self.zeros += len(plan.lengths) - len(there)
        bins = np.floor(BINS_AN_OCTAVE * np.log2(there) + 1e-9).astype(np.int64)
        self.length_counts += np.bincount(bins, minlength=len(self.length_counts))
        row, length = None, 0
        if plan.binding_sample is not None:
            row = int(row_of_item[plan.binding_sample])
            length = int(plan.lengths[plan.binding_sample])
        worst = WorstStep(plan.imbalance_ratio, -step, plan.home_imbalance_ratio, bound, row, length)
        heapq.heappush(self.worst, worst)
        if len(self.worst) > MOST_WORST:
            heapq.heappop(self.worst)

    def profiles(self) -> tuple[Floats, Floats, float]:
        """Return load over mean load, ranks busiest first: before, after, and at the bound; of all steps."""
        if not self.mean_before or not self.mean_after:  # all loads are 0
            return np.ones_like(self.profile_before), np.ones_like(self.profile_after), 1.0
        bound = self.at_bound / self.mean_after
        return self.profile_before / self.mean_before, self.profile_after / self.mean_after, bound


@dataclass(frozen=True, slots=True)
class StepPicture:
    """One step by rank: of each phase, load over mean load before and after.

    Where there are many ranks, each row stands for `ranks_a_row` consecutive ones, and the busiest of them. With
    pipeline stages `pipelines` are the slowest replica's run before, and after, `between` is what runs in their gaps
    where encoders do, and `no_bubble` is what the mean replica would take without bubbles.
    """

    step: int
    ranks_a_row: int
    phases: dict[str, tuple[Floats, Floats]]
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
    return "before the first micro-batch" if plan.encoders_first else "in the micro-batches of the samples, lockstep"


@dataclass(slots=True)
class PageData:
    """What the page shows in addition to a :class:`balancer.report.summary.RunSummary`."""

    asked_step: int | None = None  # the step to draw by rank; by default the one in which the plan saves most
    phases: dict[str, PhaseData] = field(default_factory=dict)
    following: set[str] = field(default_factory=set)  # encoders in the pipelines of the last phase
    # what the plan of each phase was asked to do, in words; it may hold column names, which users chose
    asked: dict[str, str] = field(default_factory=dict)
    picture: StepPicture | None = None
    # float64[k, k]: what moves from node to node over all steps, within a node not counted: bytes, or elements
    # where there is one phase. Each row and column stands for `nodes_a_row` nodes.
    traffic: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    num_nodes: int = 0
    num_ranks: int = 0
    of_bytes: bool = False
    laid_out: bool = False  # phases run on other ranks than the last
    _steps: int = field(default=0, init=False)
    _rows: int = field(default=0, init=False)
    _most_saved: float = field(default=-np.inf, init=False)

    @property
    def nodes_a_row(self) -> int:
        """Nodes per row of the heat map."""
        return -(-self.num_nodes // MOST_NODES)

    def add(self, plan: StepPlan, short: bool = False) -> None:
        """Take in the next step; a `short` one only where it is asked for, or the first. O(items + ranks log ranks)."""
        plans = {name: phase.plan for name, phase in plan.phases.items()}
        if short and self._steps:  # a log of one short step has no other to show
            if self._steps == self.asked_step:
                self._draw(plans)
            self._pass_over(plan)
            return
        rows = plan.batch.kept + self._rows
        if plan.encoders_in_pipeline:
            self.following = set(list(plan.phases)[:-1])
        for name, phase in plan.phases.items():
            self.asked.setdefault(name, asked_for(phase.plan, _encoder_slots(plan, name)))
            self.phases.setdefault(name, PhaseData()).add(phase.plan, rows[phase.items.sample_of_item], self._steps)
        self.of_bytes, self.num_ranks = not plan.is_single, plan.num_ranks
        self.laid_out = plan.setup.layout is not None
        self._add_traffic(list(plan.streams.values()), plan.topology)
        self._maybe_draw(plans)
        self._pass_over(plan)

    def _pass_over(self, plan: StepPlan) -> None:
        self._steps += 1
        self._rows += plan.batch_size

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

    def _maybe_draw(self, plans: dict[str, DispatchPlan]) -> None:
        """Keep this step as the one to draw, if it was asked for or the plan saves more than in any before."""
        counted = [plan for name, plan in plans.items() if name not in self.following]
        saved = sum(plan.home_imbalance_ratio - plan.imbalance_ratio for plan in counted)
        wanted = saved > self._most_saved if self.asked_step is None else self._steps == self.asked_step
        if not wanted:
            return
        self._most_saved = saved
        self._draw(plans)

    def _draw(self, plans: dict[str, DispatchPlan]) -> None:
        """Keep this step as the one to draw."""
        rows = {}
        for name, plan in plans.items():
            before, after = relative_loads(plan)
            rows[name] = coarse(before, MOST_ROWS), coarse(after, MOST_ROWS)
        last = list(plans.values())[-1]
        self.picture = StepPicture(
            self._steps,
            -(-self.num_ranks // MOST_ROWS),
            rows,
            *_slowest_pipelines(last),
            _of(last.perfect()),
        )


def _of(fraction: tuple[int, int]) -> float:
    return fraction[0] / fraction[1] or 1.0


def _slowest_pipelines(plan: DispatchPlan) -> tuple[dict[str, PipelineRun], dict[str, Between]]:
    """Return the run of the replica that takes longest, before and after, if there are pipeline stages.

    And what runs in its gaps.
    """
    runs: dict[str, PipelineRun] = {}
    boxes: dict[str, Between] = {}
    for name, home in (("before", True), ("after", False)) if plan.cut.num_stages else ():
        slowest = int(np.argmax(plan.pipeline_makespans(home)))
        runs[name] = plan.pipeline_run(slowest, home)
        if (between := plan.between(slowest, home)) is not None:
            boxes[name] = between
    return runs, boxes


def relative_loads(plan: DispatchPlan) -> tuple[Floats, Floats]:
    """Return load over mean load of each rank, before and after; of time, where ranks have speeds.

    Of pipelines, what each takes over what the mean one would without bubbles.
    """
    if plan.cut.num_stages:
        perfect, share = plan.perfect()
        both = [plan.pipeline_makespans(home) * share / perfect if perfect else np.ones(plan.num_ranks)
                for home in (True, False)]  # fmt: skip
        return both[0], both[1]
    speeds = plan.constraints.rank_speeds
    weights = np.ones(plan.num_ranks) if speeds is None else np.asarray(speeds, dtype=np.float64)
    found = []
    for loads in (plan.home_loads, plan.loads):
        mean = float(loads.sum()) / float(weights.sum())
        found.append(loads / weights / mean if mean else np.ones(plan.num_ranks))
    return found[0], found[1]


def coarse(values: Floats, most: int) -> Floats:
    """Join neighbours, the largest standing for all of them, so that at most so many are left."""
    width = -(-len(values) // most)
    largest: Floats = np.maximum.reduceat(values, np.arange(0, len(values), width))
    return largest


def _added(sums: Floats, values: Floats) -> Floats:
    return values if not len(sums) else sums + values
