"""Strategies, by name: what trainers do about imbalance in a multimodal batch, to compare :func:`orchestrate` with.

A strategy takes a step and returns its plan. Where the settings are of sequence groups, those in :data:`STRATEGIES`
compute whole samples all the same; and of encoders whose items ranks share, all but ``orchestrated`` compute whole
items. With micro-batches all but ``orchestrated`` decide ranks first, as without them; then every rank cuts its own
share, as trainers do that accumulate gradients and plan no micro-batches. By every strategy an encoder computes an item
in the slot of its sample, or before the first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.cuts.rooms import placed
from balancer.layouts.setup import LaidOutSetup
from balancer.plan.dispatch_plan import DispatchPlan
from balancer.plan.step_plan import StepPlan
from balancer.planner import replay_plan
from balancer.problem.constraints import Constraints
from balancer.problem.cuts import WHOLE_SHARES, Cut, as_cut
from balancer.problem.cuts.context_shards import ContextShards
from balancer.problem.cuts.in_slots import PACKING, InSlots
from balancer.problem.cuts.sequence_groups import SequenceGroups
from balancer.problem.phases import Columns, Phase, PhaseItems
from balancer.problem.placement import Placement
from balancer.problem.problem import Problem
from balancer.problem.settings import PlanSettings
from balancer.problem.setup import Setup, as_phases, as_topology
from balancer.problem.topology import Topology
from balancer.step_planner import Step, encoder_problem, finished, make_step, of_items, plan_phase, plan_step
from solvers.errors import InfeasibleError, SolverError, UsageError
from solvers.packing import SharesResult, cut_shares


def as_sampled(step: Step) -> StepPlan:
    """Compute every phase where the samples lie: nothing is balanced, nothing moves."""
    started = time.perf_counter()
    return finished(step, _together(step, keep_last(step, step.home)), "as_sampled", started)


def llm_only(step: Step) -> StepPlan:
    """Balance the last phase alone; the encoders compute an item where its sample then is."""
    started = time.perf_counter()
    last = step.items[-1]
    volumes = _brought_in(last)
    for items in step.items[:-1]:
        np.add.at(volumes, items.sample_of_item, items.lengths * items.phase.bytes_in)
    plan = balance_last(step, replace(step.problem(last), volumes=volumes))
    return finished(step, _together(step, plan), "llm_only", started)


def orchestrated(step: Step) -> StepPlan:
    """Plan as :func:`balancer.orchestrate` does, each sample on one rank."""
    return plan_step(step)


def static_degree(step: Step) -> StepPlan:
    """Share all samples of a step among groups of one degree, whichever is fastest for this step."""
    started, best = time.perf_counter(), None
    cut = _groups_of(step)
    possible = [degree for degree in cut.degrees if degree <= step.topology.num_ranks] or cut.degrees
    for degree in possible:
        try:
            plan = plan_step(_with(step, replace(cut, degrees=(degree,))))
        # A degree may be too small for the longest sample.
        except InfeasibleError:
            continue
        if best is None or _last(plan).makespan < _last(best).makespan:
            best = plan
    if best is None:  # which the largest says best
        best = plan_step(_with(step, replace(cut, degrees=(max(possible),))))
    return replace(best, strategy="static_degree", runtime_s=time.perf_counter() - started)


def sequence_groups(step: Step) -> StepPlan:
    """Plan as :func:`balancer.orchestrate` does with sequence groups."""
    _groups_of(step)
    return plan_step(step)


def context_shards(step: Step) -> StepPlan:
    """Plan as :func:`balancer.orchestrate` does with context shards."""
    if not isinstance(step.settings.cut, ContextShards):
        raise UsageError("strategy 'context_shards' needs {context_shards}")
    return plan_step(step)


STRATEGIES: dict[str, Callable[[Step], StepPlan]] = {
    strategy.__name__: strategy for strategy in (as_sampled, llm_only, orchestrated)
}
"""From a step to its plan of whole samples, by name; all but the last are what most trainers do."""

SHARING: dict[str, Callable[[Step], StepPlan]] = {
    strategy.__name__: strategy for strategy in (static_degree, sequence_groups, context_shards)
}
"""Those whose ranks share samples; they need the settings of sequence groups, or of context shards."""


def strategies_for(setup: Setup) -> tuple[str, ...]:
    """Return the names of the strategies that plans with this setup can be compared by."""
    # The others leave a phase on the ranks of another, which with layouts are other replicas, and fill no gaps.
    if isinstance(setup, LaidOutSetup) or setup.in_gaps:
        return ("orchestrated",)
    return (*STRATEGIES, *setup.settings.cut.strategies)


def _groups_of(step: Step) -> SequenceGroups:
    cut = step.settings.cut
    if not isinstance(cut, SequenceGroups):
        raise UsageError("strategies that share samples need {sequence_groups}")
    return cut


def _last(plan: StepPlan) -> DispatchPlan:
    return list(plan.phases.values())[-1].plan


def _with(step: Step, cut: Cut) -> Step:
    """Return the step with other slots."""
    setup = replace(step.setup, settings=replace(step.settings, cut=cut))
    return replace(step, setup=setup)


def _without_layouts(step: Step, strategy: str) -> Step:
    """Return the step, or raise UsageError if each of its phases has replicas of its own."""
    if isinstance(step.setup, LaidOutSetup):
        raise UsageError(
            f"strategy {strategy!r} cannot be combined with {{layouts}}: it leaves a phase on ranks of another, which "
            "are other replicas", "use 'orchestrated'",
        )  # fmt: skip
    return step


def _of_whole_items(step: Step) -> Step:
    """Return the step with each item of encoders on one rank; caps that shares would keep to, whole items need not."""
    setup = step.setup
    if all(phase.sequence_parallel is None for phase in setup.phases):
        return step
    whole: dict[str, Any] = {"sequence_parallel": None, "share_multiple_of": 1}
    whole |= {"max_tokens_per_rank": None, "max_samples_per_rank": None, "caps": {}}
    phases = [phase if phase.sequence_parallel is None else replace(phase, **whole) for phase in setup.phases]
    bare = [items if items.phase.sequence_parallel is None else replace(items, phase=phase, cap_amounts=())
            for items, phase in zip(step.items, phases, strict=True)]  # fmt: skip
    return replace(step, setup=replace(setup, phases=tuple(phases)), items=tuple(bare))


def _of_whole_samples(step: Step) -> Step:
    """Return the step with each sample on one rank; a cap becomes one on micro-batches, which longer ones exceed."""
    return _with(step, step.settings.cut.of_whole_samples()) if step.settings.cut.shares else step


def plan_with(
    strategy: str,
    batch: Columns,
    phases: Sequence[Phase] | Mapping[str, str],
    num_ranks: Topology | int | None = None,
    ranks_per_node: int | None = None,
    *,
    topology: Topology | None = None,
    home_rank: ArrayLike | None = None,
    **planned: Any,
) -> StepPlan:
    """Plan a step by a strategy; arguments as :func:`balancer.orchestrate` takes them, cuts and settings by keyword.

    Strategies are those of :data:`STRATEGIES` and :data:`SHARING`. Those that leave a phase where it lies ignore its
    constraints, and all other systems' ignore `mode` and let every rank cut micro-batches from its own share.

    Examples
    --------
    >>> batch = {"patches": [64, 0, 256, 64], "tokens": [90, 40, 80, 30]}
    >>> for strategy in ("as_sampled", "orchestrated"):
    ...     plan = plan_with(strategy, batch, {"vision": "patches", "llm": "tokens"}, 2)
    ...     print(plan["vision"].loads.tolist(), plan["llm"].loads.tolist())
    [64, 320] [130, 110]
    [128, 256] [120, 120]
    """
    settings = PlanSettings(cut=as_cut(planned.pop("cut", None)), **planned)
    setup = Setup(as_topology(num_ranks, ranks_per_node, topology), as_phases(phases), settings)
    return chosen(strategy)(make_step(setup, batch, home_rank))


def chosen(strategy: str) -> Callable[[Step], StepPlan]:
    """Return the strategy of that name, or raise ValueError saying which there are."""
    known = STRATEGIES | SHARING
    if not isinstance(strategy, str) or strategy not in known:
        raise ValueError(f"unknown strategy {strategy!r:.80}; known strategies are {', '.join(known)}")
    plan = known[strategy]
    if strategy in SHARING:
        return plan
    if strategy == "orchestrated":
        return lambda step: plan(_of_whole_samples(step))
    return lambda step: plan(_of_whole_items(_of_whole_samples(_without_layouts(step, strategy))))


def _together(step: Step, last: DispatchPlan) -> dict[str, DispatchPlan]:
    """Compute every item where the last phase computes its sample, and in its slot."""
    plans = {items.phase.name: follow(step, items, last) for items in step.items[:-1]}
    return plans | {step.items[-1].phase.name: last}


def _brought_in(items: PhaseItems) -> NDArray[np.int64]:
    """Return the bytes that each sample brings the last phase from home."""
    return items.own.sums() * items.phase.bytes_in


# Micro-batches cut after ranks are decided: every rank cuts its own share.


def keep_last(step: Step, samples: Placement) -> DispatchPlan:
    """Compute the last phase where its samples are, whatever the constraints say; with micro-batches, cut.

    A rank that has fewer samples than there are micro-batches leaves the last ones empty, allowed or not.
    """
    micro_batches = _of_ranks(step)
    problem = replace(step.problem(step.items[-1]), constraints=Constraints(), cut=WHOLE_SHARES)
    if micro_batches is None:
        return replay_plan(placed(problem, samples), step.settings)
    return _in_shares(step, problem, replace(micro_batches, allow_empty=True), samples.rank_of_sample)


def balance_last(step: Step, problem: Problem) -> DispatchPlan:
    """Balance the last phase over the ranks and, with micro-batches, let every rank cut its share.

    Where no micro-batch may be empty and a rank gets fewer samples than micro-batches, ranks are balanced anew, so that
    each gets enough.
    """
    items, micro_batches = step.items[-1], _of_ranks(step)
    problem = replace(problem, cut=WHOLE_SHARES)
    plan = plan_phase(step, items, problem)
    if micro_batches is None:
        return plan
    num_ranks, samples = step.topology.num_ranks, len(problem.costs)
    # More samples on poor ranks may make other ranks need more slots, so that the number is settled only in the end.
    while not micro_batches.allow_empty:
        slots = _cut(step, problem, replace(micro_batches, allow_empty=True), plan.rank_of_sample).num_slots
        if slots * num_ranks > samples or slots <= int(np.diff(plan.target.offsets).min()):
            break  # it cannot be, which the next cut says, or it is
        problem = replace(problem, constraints=replace(problem.constraints, min_samples_per_rank=slots))
        plan = plan_phase(step, items, problem)
    free = replace(problem, constraints=Constraints())
    return _in_shares(step, free, micro_batches, plan.rank_of_sample, plan.fell_back)


def follow(step: Step, items: PhaseItems, last: DispatchPlan) -> DispatchPlan:
    """Compute every item of a phase on the rank of its sample in the last phase, and in its slot or before all."""
    target = last.target.lifted(items.sample_of_item)
    slots = last.slot_of_sample[items.sample_of_item]
    if last.cut.encoders == "step":
        slots = np.zeros_like(slots)
    problem = replace(encoder_problem(step, items, last.num_slots), constraints=Constraints())
    return replay_plan(placed(problem, target, slots, last.num_slots), step.settings)


def _of_ranks(step: Step) -> InSlots | None:
    cut = step.settings.cut
    return cut if isinstance(cut, InSlots) else None  # strategies of whole samples see no sequence groups


def _in_shares(
    step: Step, problem: Problem, micro_batches: InSlots, rank_of_sample: NDArray[np.int32], fell_back: str = ""
) -> DispatchPlan:
    cut = _cut(step, problem, micro_batches, rank_of_sample)
    target = Placement.by_slots(rank_of_sample, cut.slot_of_item, step.topology.num_ranks, cut.num_slots)
    problem = replace(problem, cut=micro_batches)
    return replay_plan(placed(problem, target, cut.slot_of_item, cut.num_slots), step.settings, fell_back=fell_back)


def _cut(step: Step, problem: Problem, micro_batches: InSlots, rank_of_sample: NDArray[np.int32]) -> SharesResult:
    with of_items(step, step.items[-1]):
        try:
            return cut_shares(
                problem.costs, problem.batch.lengths, rank_of_sample, step.topology.num_ranks, micro_batches.tokens,
                num_slots=micro_batches.count, min_slots=micro_batches.at_least,
                slots_multiple_of=micro_batches.multiple_of, allow_empty=micro_batches.allow_empty,
                over_long=micro_batches.over_long,
            )  # fmt: skip
        except SolverError as error:
            raise error.in_words(PACKING) from None
