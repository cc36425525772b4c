"""Totals of a run of plans, phase by phase: the numbers behind the table and the JSON."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import partial
from typing import Any, cast

import numpy as np

from balancer.cost import Sharing
from balancer.layouts.step_plan import LaidOutStepPlan
from balancer.plan.balance_report import even_rank_time, ratio_of
from balancer.plan.dispatch_plan import DispatchPlan
from balancer.plan.pieces import GroupTable
from balancer.plan.reasons import Reasons
from balancer.plan.step_plan import PhasePlan, StepPlan
from balancer.plan.stream import Traffic
from balancer.report.across import joined
from solvers.types import SolveStatus

JSON_VERSION = 2
"""Of the documents that ``--json`` prints; it rises when a name in them changes its meaning or goes."""


def allowed_gap(eps: float, stop_at: float) -> float:
    """Return the gap that relocation may have: that of the groups it begins with, and `eps` beyond them."""
    return (1 + eps) * (1 + stop_at) - 1


@dataclass(slots=True)
class PhaseSummary:
    """Sums over the steps of one phase; constant memory.

    Ratios over many steps are of rank-time: what all ranks spend until the slowest is done, over what they would spend
    if all were even. So a long step counts for more than a short one.
    """

    cost: str = ""
    model: str = ""  # whose FLOPs the cost is, where that is known
    steps: int = 0
    spent_before: int | Fraction = 0
    spent_after: int | Fraction = 0
    spent_at_bound: int | Fraction = 0
    worked_before: int | Fraction = 0
    worked_after: int | Fraction = 0
    fewest_slots: int = 0
    most_slots: int = 0
    sync: str | None = None
    groups: dict[str, int] = field(default_factory=dict)
    shared_items: int = 0
    shared_volume: int = 0
    items_volume: int = 0
    loss_assumed: bool = False
    gap_sum: float = 0.0
    gap_max: float = 0.0
    proven_optimal_steps: int = 0
    proven_within_steps: int = 0  # proven to `stop_at`, optimal ones included
    within_eps_steps: int = 0
    eps: float = 0.0
    stop_at: float = 0.0
    placement: str = "any"
    fell_back: Reasons = field(default_factory=Reasons)
    volume: int = 0
    inter_node_volume: int = 0
    intra_node_volume: int = 0
    inter_node_bound: int = 0
    largest_send: int = 0
    capped_steps: int = 0
    several_nodes: bool = False
    cap_row: int = -1
    cap_length: int = 0
    cap_step: int = -1
    cap_ratio: float = 0.0
    holder: str = "rank"
    num_stages: int = 0
    follows: bool = False
    of_several: bool = False
    items: int = 0
    idle_ranks: int = 0
    most_idle_ranks: int = 0
    most_dummy_ranks: int = 0
    prompts: int = 0
    prompt_copies: int = 0

    def add(
        self, plan: DispatchPlan, row_of_item: Callable[[int], int], step: int, before_slots: bool = False,
        single: bool = False,
    ) -> None:  # fmt: skip
        """Take in the next step.

        Parameters
        ----------
        plan : DispatchPlan
        row_of_item : callable
            From an item to the row of the log that it is of.
        step : int
            Its number, among all steps.
        before_slots : bool
            For an encoder that computes before the first micro-batch: ignore the micro-batches of its plan.
        single : bool
            It is the only phase: also add up what moves, in elements (else streams do, in bytes).
        """
        gap = plan.gap
        if not self.steps:  # the same in all steps
            self.cost, self.model, self.holder = str(plan.cost), plan.cost.model, plan.cut.holder
        ranks, worked = plan.num_ranks, even_rank_time(plan)
        self.spent_before += plan.home_makespan * ranks
        self.spent_after += plan.makespan * ranks
        self.spent_at_bound += plan.lower_bound * ranks
        self.worked_before += even_rank_time(plan, home=True)
        self.worked_after += worked
        if plan.group_table is not None:
            self._add_groups(plan, plan.group_table)
            if plan.cut.own_slots:
                self._add_shared(plan, plan.group_table)
        if plan.cut.meets and not before_slots:
            self.sync, self.num_stages = plan.cut.meets, plan.cut.num_stages
            # 0 stands for no step yet.
            self.fewest_slots = min(self.fewest_slots or plan.num_slots, plan.num_slots)
            self.most_slots = max(self.most_slots, plan.num_slots)
        self.gap_sum += gap
        self.gap_max = max(self.gap_max, gap)
        self.proven_optimal_steps += gap == 0
        self.proven_within_steps += plan.status in (SolveStatus.OPTIMAL, SolveStatus.WITHIN)
        self.within_eps_steps += gap <= allowed_gap(plan.eps, float(plan.stop_at))
        self.stop_at = max(self.stop_at, float(plan.stop_at))
        self.eps, self.placement = max(self.eps, plan.eps), plan.placement
        if plan.fell_back:
            self.fell_back.add(plan.fell_back)
        if plan.constraints.prefix is not None:
            self.prompts += len(plan.prompt_copies)
            self.prompt_copies += int(plan.prompt_copies.sum())
        if single:
            self.several_nodes |= plan.topology.num_nodes > 1
            self._add_traffic(plan)
        if plan.binding_sample is not None and not self.follows:
            self.capped_steps += 1
            # Of all steps that one sample caps, the worst is named: its row is what a reader can look up.
            ratio = ratio_of(plan.lower_bound * ranks, worked)
            if ratio > self.cap_ratio:
                self.cap_ratio, self.cap_step = ratio, step
                self.cap_row = row_of_item(plan.binding_sample)
                self.cap_length = int(plan.lengths[plan.binding_sample])
        self.steps += 1

    def _add_groups(self, plan: DispatchPlan, table: GroupTable) -> None:
        """Count the groups of each degree."""
        self.loss_assumed = plan.cost.sharing == Sharing()
        for degree, count in zip(*np.unique(table.degree, return_counts=True), strict=True):
            self.groups[str(degree)] = self.groups.get(str(degree), 0) + int(count)

    def _add_shared(self, plan: DispatchPlan, table: GroupTable) -> None:
        """Count the items that ranks share, and their elements."""
        shared = table.degree_of_sample > 1
        self.shared_items += int(shared.sum())
        self.shared_volume += int(plan.lengths[shared].sum())
        self.items_volume += int(plan.lengths.sum())

    def add_items(self, phase: PhasePlan) -> None:
        """Count the items of a step, and the ranks that get none."""
        idle = len(phase.idle_ranks)
        self.items += phase.plan.num_samples
        self.idle_ranks += idle
        self.most_idle_ranks = max(self.most_idle_ranks, idle)
        if phase.items.phase.every_rank_nonempty:
            self.most_dummy_ranks = max(self.most_dummy_ranks, idle)

    def join(self, later: "PhaseSummary", steps_before: int) -> None:
        """Take in all steps of another summary, which come after so many of all phases' steps."""
        if later.cap_ratio > self.cap_ratio:
            self.cap_ratio, self.cap_step = later.cap_ratio, steps_before + later.cap_step
            self.cap_row, self.cap_length = later.cap_row, later.cap_length
        self.fewest_slots = min(self.fewest_slots or later.fewest_slots, later.fewest_slots or self.fewest_slots)
        self.fell_back.join(later.fell_back.stored())
        self.sync, self.placement = later.sync or self.sync, later.placement
        self.cost, self.model, self.holder = later.cost, later.model, later.holder
        self.several_nodes |= later.several_nodes
        self.loss_assumed |= later.loss_assumed
        self.follows |= later.follows
        for degree, count in later.groups.items():
            self.groups[degree] = self.groups.get(degree, 0) + count
        _join(self, later, _LARGEST_OF_PHASE, ("fewest_slots", "cap_ratio", "cap_step", "cap_row", "cap_length"))

    @property
    def groups_by_degree(self) -> dict[str, int]:
        """How many sequence groups there are of each degree, ascending."""
        return {degree: self.groups[degree] for degree in sorted(self.groups, key=int)}

    def _add_traffic(self, plan: DispatchPlan) -> None:
        traffic = plan.traffic
        self.volume += traffic.total
        self.inter_node_volume += traffic.inter_node
        self.intra_node_volume += traffic.intra_node
        self.largest_send = max(self.largest_send, traffic.largest_send)
        if self.several_nodes:
            self.inter_node_bound += plan.inter_node_bound

    @property
    def ratio_before(self) -> float:
        """Imbalance ratio as the samples lay; 1.0 where all loads are 0."""
        return ratio_of(self.spent_before, self.worked_before)

    @property
    def ratio_after(self) -> float:
        """Imbalance ratio of the plans."""
        return ratio_of(self.spent_after, self.worked_after)

    @property
    def ratio_bound(self) -> float:
        """The imbalance ratio at the proven lower bound: no plan has a smaller one."""
        return ratio_of(self.spent_at_bound, self.worked_after)

    @property
    def shared_fraction(self) -> float:
        """Share of the elements that are of items that ranks share."""
        return self.shared_volume / self.items_volume if self.items_volume else 0.0

    def _share(self, volume: int) -> float:
        return volume / self.volume if self.volume else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object, by the names of the table; an infinite gap is null."""
        document: dict[str, Any] = {
            "imbalance_ratio_before": self.ratio_before,
            "imbalance_ratio_after": self.ratio_after,
            "imbalance_ratio_best_possible": self.ratio_bound,
            "waiting_before": waiting(self.ratio_before),
            "waiting_after": waiting(self.ratio_after),
            "waiting_best_possible": waiting(self.ratio_bound),
            "gap_mean": _finite(self.gap_sum / self.steps if self.steps else 0.0),
            "gap_largest": _finite(self.gap_max),
            "steps_proven_optimal": self.proven_optimal_steps,
            "steps_proven_within": self.proven_within_steps,
            "stop_at": self.stop_at,
            "steps_within_eps": self.within_eps_steps,
            "eps": self.eps,
            "placement": self.placement,
            "fell_back": dict(self.fell_back.counted()),
            "capped_steps": self.capped_steps,
            "capping_sample": None,
        }
        if self.of_several:
            document["items"] = self.items
            document["idle_ranks_mean"] = self.idle_ranks / self.steps if self.steps else 0.0
            document["idle_ranks_most"], document["dummy_ranks_most"] = self.most_idle_ranks, self.most_dummy_ranks
        else:
            document["crosses_nodes"] = self._share(self.inter_node_volume)
            document["must_cross_nodes"] = self._share(self.inter_node_bound)
            document["moves_within_nodes"] = self._share(self.intra_node_volume)
            document["largest_send"] = self.largest_send
        if self.sync is not None:
            document["sync"] = self.sync
            document["micro_batches_fewest"], document["micro_batches_most"] = self.fewest_slots, self.most_slots
        if self.num_stages:
            document["pipeline_stages"] = self.num_stages
        if self.follows:
            document["in_pipeline"] = True
        if self.groups:
            document["groups_of_degree"] = self.groups_by_degree
        if self.items_volume:
            document["shared_items"], document["shared_fraction"] = self.shared_items, self.shared_fraction
        if self.prompts:
            document["copies_of_a_prompt"] = self.prompt_copies / self.prompts
        if self.capped_steps:
            document["capping_sample"] = {
                "step": self.cap_step,
                "row": self.cap_row,
                "length": self.cap_length,
                "imbalance_ratio_best_possible": self.cap_ratio,
            }
        return document


def _priced(plan: StepPlan) -> tuple[int, int]:
    """Return what a step takes before and after, in units of cost, as ranks do not wait between encoders."""
    *encoders, last = (phase.plan for phase in plan.phases.values())
    before, after = (
        int(np.sum([loads(each) for each in encoders], axis=0).max())
        for loads in (lambda each: each.home_loads, lambda each: each.loads)
    )
    return before + int(last.home_makespan), after + int(last.makespan)


def waiting(ratio: float) -> float:
    """Return the share of rank-time that is waiting, at an imbalance ratio; a bound may be under 1."""
    return max(0.0, 1 - 1 / ratio) if ratio else 0.0


def as_range(fewest: int, most: int) -> str:
    """Show a range, or one number where both ends are equal."""
    return f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"


_LARGEST_OF_PHASE = (
    "stop_at",
    "most_slots",
    "num_stages",
    "gap_max",
    "eps",
    "largest_send",
    "most_idle_ranks",
    "most_dummy_ranks",
)


def _join(mine: Any, later: Any, largest: Sequence[str], beside: Sequence[str] = ()) -> None:
    """Add up the numbers of two summaries, but take the larger of some, and leave those `beside` as they are."""
    for name, value in ((each.name, getattr(later, each.name)) for each in fields(mine)):
        if name in largest:
            setattr(mine, name, max(getattr(mine, name), value))
        elif isinstance(value, int | float | Fraction) and not isinstance(value, bool) and name not in beside:
            setattr(mine, name, getattr(mine, name) + value)


def _stored(value: Any) -> Any:
    """Return a summary, or what stands in one, as JSON has it."""
    if isinstance(value, PhaseSummary | StreamSummary | RunSummary):
        return {each.name: _stored(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, dict):
        return {name: _stored(part) for name, part in value.items()}
    if isinstance(value, Reasons):
        return value.stored()
    return str(value) if isinstance(value, Fraction) or value == math.inf else value


def _restored(kind: Any, stored: Mapping[str, Any]) -> Any:
    """Return the summary that was stored; what is none raises TypeError, ValueError or AttributeError."""
    summary = kind()
    for name, value in stored.items():
        held = getattr(summary, name)
        if isinstance(held, Reasons):
            held.join(value)
        elif isinstance(held, float):
            setattr(summary, name, float(value))
        elif isinstance(value, dict) and name != "groups":
            part = StreamSummary if name == "streams" else PhaseSummary
            setattr(summary, name, {key: _restored(part, of) for key, of in value.items()})
        # JSON has no fractions and no infinity, so both were stored as text.
        elif isinstance(held, int) and isinstance(value, str):
            setattr(summary, name, Fraction(value))
        else:
            setattr(summary, name, value)
    return summary


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@dataclass(slots=True)
class StreamSummary:
    """What one stream moves over the steps, in bytes."""

    total: int = 0
    inter_node: int = 0
    intra_node: int = 0
    largest_send: int = 0
    largest_receive: int = 0
    bounded: bool = False
    inter_node_bound: int = 0

    def add(self, traffic: Traffic, least: int | None = None) -> None:
        """Take in the next step, with what crosses nodes at least, if that is known."""
        self.bounded |= least is not None
        self.inter_node_bound += least or 0
        self.total += traffic.total
        self.inter_node += traffic.inter_node
        self.intra_node += traffic.intra_node
        self.largest_send = max(self.largest_send, traffic.largest_send)
        self.largest_receive = max(self.largest_receive, traffic.largest_receive)

    def join(self, later: "StreamSummary") -> None:
        """Take in all steps of another summary."""
        self.bounded |= later.bounded
        _join(self, later, ("largest_send", "largest_receive"))

    @property
    def inter_node_fraction(self) -> float:
        """Share of the bytes that crosses nodes."""
        return self.inter_node / self.total if self.total else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object; the largest ones are of one rank in one step, across nodes."""
        return {
            "bytes": self.total,
            "crosses_nodes_bytes": self.inter_node,
            "within_nodes_bytes": self.intra_node,
            "crosses_nodes": self.inter_node_fraction,
            "largest_send_bytes": self.largest_send,
            "largest_receive_bytes": self.largest_receive,
            **({"must_cross_nodes_bytes": self.inter_node_bound} if self.bounded else {}),
        }


@dataclass(slots=True)
class RunSummary:
    """Steps, samples, one :class:`PhaseSummary` a phase and one :class:`StreamSummary` a stream.

    Plans are judged by full steps. A short one, such as an epoch's last, is uneven as it lies, and is summed up apart;
    by them a log is judged that has no others. The first step begins at `first_row` of the log, unless steps say
    themselves which rows they have.
    """

    first_row: int = 0
    steps: int = 0
    samples: int = 0
    short_steps: int = 0
    short_samples: int = 0
    # What full steps take where costs have one unit, as joint balancing is told: the largest sum of a rank's encoders,
    # and then the last phase
    priced_before: int = 0
    priced_after: int = 0
    full: dict[str, PhaseSummary] = field(default_factory=dict)
    short: dict[str, PhaseSummary] = field(default_factory=dict)
    streams: dict[str, StreamSummary] = field(default_factory=dict)
    across: list[dict[str, Any]] = field(default_factory=list)  # of epochs whose samples run early or late; of no part

    @property
    def phases(self) -> dict[str, PhaseSummary]:
        """What plans are judged by: full steps, if there are any."""
        return self.full or self.short

    @property
    def full_steps(self) -> int:
        """Steps that plans are judged by."""
        return self.steps - self.short_steps or self.steps

    def add_step(self, plan: StepPlan, short: bool = False) -> None:
        """Take in the next step, which may be `short` of samples."""
        single, *others, last = plan.is_single, *plan.phases
        early, phases = plan.encoders_first, self.short if short else self.full
        if plan.setup.settings.mode != "separate" and not isinstance(plan, LaidOutStepPlan) and not (single or short):
            before, after = _priced(plan)
            self.priced_before += before
            self.priced_after += after
        for name, phase in plan.phases.items():
            if (summary := phases.get(name)) is None:
                follows = plan.encoders_in_pipeline and name != last
                summary = phases[name] = PhaseSummary(of_several=not single, follows=follows)
            summary.add(phase.plan, partial(self._row_of, plan, phase), self.steps, early and name in others, single)
            if not single:
                summary.add_items(phase)
        for name in plan.stream_names if not single else ():
            self.streams.setdefault(name, StreamSummary()).add(plan.traffic_of(name), plan.least_inter_node(name))
        self.steps += 1
        self.samples += plan.num_samples
        self.short_steps += short
        self.short_samples += plan.num_samples * short

    def join(self, later: "RunSummary") -> None:
        """Take in all steps of another summary, which come after these."""
        for mine, theirs in ((self.full, later.full), (self.short, later.short)):
            for name, phase in theirs.items():
                mine.setdefault(name, PhaseSummary(of_several=phase.of_several)).join(phase, self.steps)
        for name, stream in later.streams.items():
            self.streams.setdefault(name, StreamSummary()).join(stream)
        _join(self, later, (), ("first_row",))

    def stored(self) -> dict[str, Any]:
        """Return all of it as JSON has it; the same for the same steps, whoever planned them."""
        return {name: value for name, value in _stored(self).items() if name != "across"}

    def add_epoch(self, found: dict[str, Any]) -> None:
        """Take in what was found for an epoch whose samples run early or late."""
        self.across.append(found)

    @classmethod
    def restored(cls, stored: Mapping[str, Any]) -> "RunSummary":
        """Read back what :meth:`stored` gave."""
        return cast(RunSummary, _restored(cls, stored))

    def in_order(self, names: Iterable[str]) -> "RunSummary":
        """Return it with phases, and their streams, in the order of these names; parts read back have another."""
        place = list(names)
        full, short = ({name: of[name] for name in place if name in of} for of in (self.full, self.short))
        streams = sorted(self.streams, key=lambda each: (place.index(each.rpartition(":")[0]), each))
        return replace(self, full=full, short=short, streams={name: self.streams[name] for name in streams})

    def _row_of(self, plan: StepPlan, phase: PhasePlan, item: int) -> int:
        return int(plan.batch.rows_of(phase.items.sample_of_item[item], self.first_row + self.samples))

    @property
    def costs(self) -> dict[str, str]:
        """What each phase is priced by, in words."""
        named = {name: f" of {phase.model}" if phase.model else "" for name, phase in self.phases.items()}
        return {name: f"{phase.cost}{named[name]}" for name, phase in self.phases.items()}

    @property
    def in_slots(self) -> bool:
        """Whether ranks of some phase meet in every micro-batch or along a pipeline."""
        return any(phase.sync not in (None, "step") for phase in self.phases.values())

    @property
    def in_pipeline(self) -> bool:
        """Whether the last phase is planned for pipeline stages."""
        return any(phase.num_stages for phase in self.phases.values())

    @property
    def inter_node_bytes(self) -> int:
        """What all streams together move from one node to another; of a single phase, a byte an element."""
        alone = sum(phase.inter_node_volume for phase in self.phases.values())
        return sum(stream.inter_node for stream in self.streams.values()) + alone

    @property
    def costs_by_name(self) -> dict[str, str]:
        """The cost of each phase."""
        return {name: phase.cost for name, phase in self.phases.items()}

    def as_json(self, runtime_s: float) -> dict[str, Any]:
        """Return a JSON object, with the run's seconds as given; `phases` are of full steps, if there are any."""
        models = {name: phase.model for name, phase in self.phases.items() if phase.model}
        document: dict[str, Any] = {
            "version": JSON_VERSION,
            "steps": self.steps,
            "samples": self.samples,
            "runtime_s": runtime_s,
            "cost": self.costs_by_name,
            **({"models": models} if models else {}),
            "fell_back_steps": sum(len(phase.fell_back) for phase in self.phases.values()),
            "phases": {name: phase.as_json() for name, phase in self.phases.items()},
        }
        if self.short_steps:
            document["short_steps"] = {
                "steps": self.short_steps,
                "samples": self.short_samples,
                "phases": {name: phase.as_json() for name, phase in self.short.items()},
            }
        if self.streams:
            document["streams"] = {name: stream.as_json() for name, stream in self.streams.items()}
        if self.across:
            document["across_steps"] = joined(self.across)
        return document
