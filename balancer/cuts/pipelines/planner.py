"""Pipelines of a step: which samples run in which slot of which replica, and which rank is which replica."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import solvers
from balancer.cuts.micro_batches.near_home import takes_longer, to_nodes
from balancer.cuts.near_home import place
from balancer.cuts.pipelines.gap_plan import GapPlan
from balancer.cuts.pipelines.plan import PipelinePlan
from balancer.cuts.pipelines.timed import asked_of, scheduled
from balancer.plan.gaps import GapTable
from balancer.problem.cuts.pipelines import Pipelines
from balancer.problem.placement import Placement
from balancer.problem.problem import Problem
from balancer.problem.settings import PlanSettings
from balancer.problem.step_times import TimedStep
from solvers.arguments import as_share
from solvers.bounds import Bound
from solvers.errors import InfeasibleError, SolverError
from solvers.pipeline import MultiplexedResult, PipelineRequest, PipelineResult, TaskRequest, multiplexed_lower_bound
from solvers.pipeline.parts import held_by_replica, schedule_parts
from solvers.pipeline.solver import PipelineProblem, pipeline_lower_bound
from solvers.types import SolveStatus

_MOST_TRIED = 4
"""Numbers of slots, where the number is free."""

_PARTS_OF_BUDGET = (10, 1)
"""Of searches in gaps, as ``configure`` has them: under caps a short one may find what fits, and a long one not."""


def plan_pipelines(problem: Problem, cut: Pipelines, settings: PlanSettings) -> PipelinePlan:
    """Plan replica and slot of every sample; then give whole replicas to the ranks where least crosses nodes."""
    found = _fastest(problem, cut, settings.time_budget)
    replicas, slots = found.replica_of_item, found.slot_of_item
    status: SolveStatus | None = found.status
    fell_back, placement = "", settings.placement
    if placement == "relocate":
        placement, moved = "rearrange", _near_home(problem, cut, found, settings)
        if isinstance(moved, str):
            fell_back = moved
        else:
            replicas, slots, status, fell_back = moved
    # Replicas are alike, so that any of them may have any schedule: no time changes.
    ranks = place(problem, replicas, placement, 0).rank_of_sample
    target = Placement.by_slots(ranks, slots, problem.topology.num_ranks, found.num_slots)
    bound = Bound(found.lower_bound, found.bound_name)
    plan = PipelinePlan(problem, target, slots, found.num_slots)
    return plan.finished(bound, settings, status=status, fell_back=fell_back)


def plan_in_gaps(problem: Problem, cut: Pipelines, settings: PlanSettings) -> GapPlan:
    """Plan replica and slot of every sample, and what of encoders runs in which gap, within the layout's memory."""
    if problem.timed is None:
        raise ValueError("gaps are planned from the times of a step")
    step, result = _fitting(problem.timed, settings.time_budget)
    problem = replace(problem, timed=step)
    placement = "rearrange" if settings.placement == "relocate" else settings.placement
    ranks = place(problem, result.replica_of_item, placement, 0).rank_of_sample
    target = Placement.by_slots(ranks, result.slot_of_item, problem.topology.num_ranks, result.num_slots)
    bound = Bound(result.lower_bound, result.bound_name)
    gaps = GapTable.from_schedule(step.tasks, result)
    alone = problem.topology.num_nodes == 1 or placement == settings.placement
    plan = GapPlan(problem, target, result.slot_of_item, result.num_slots, gaps=gaps)
    fell_back = "" if alone else "encoders in gaps are scheduled for all replicas together"
    return plan.finished(bound, settings, status=result.status, fell_back=fell_back)


def _fitting(timed: TimedStep, time_budget: float) -> tuple[TimedStep, MultiplexedResult]:
    """Schedule a step in the layout's number of slots, or in more where that does not fit: then each holds less."""
    step, room = timed, np.array(timed.times.room)
    while step is timed or step.times.slots * step.times.replicas <= step.items.num_samples:
        tried = [scheduled(step.times, step.items, room, time_budget / part) for part in _PARTS_OF_BUDGET]
        results = [each.result for each in tried if each is not None]
        best = min(results, key=lambda each: each.makespan, default=None)
        if isinstance(best, MultiplexedResult):
            return step, best
        # Twice as many slots hold half as much each, so that less is in flight at once.
        step = timed.in_slots(2 * step.times.slots)
    raise SolverError(
        "no schedule with encoders in the gaps of the pipeline was found that fits the memory of the layout",
        ("judge layouts by more steps: configure --steps", "give more {time_budget}"),
    )


def _near_home(
    problem: Problem, cut: Pipelines, found: PipelineResult, settings: PlanSettings
) -> tuple[NDArray[np.int32], NDArray[np.int32], SolveStatus | None, str] | str:
    """Divide samples among nodes by where they lie, and plan the pipelines of each; or say why that was not done.

    What a node may hold is a sum, with room for what `eps` allows and for what the found plan is over its bound: less
    is taken where pipelines do not end in time. They aim at the ramp of the whole step, and stop when they do.
    """
    topology, num_slots = problem.topology, found.num_slots
    sizes, eps = topology.node_sizes, as_share("eps", settings.eps)
    # One node: nothing crosses, whoever has what.
    if len(sizes) == 1:
        return found.replica_of_item, found.slot_of_item, found.status, ""
    if len(set(sizes)) > 1:
        return "pipelines are planned by nodes only where all have as many replicas"
    longest, least = int((1 + eps) * found.makespan), 0
    whole = PipelineProblem.from_request(PipelineRequest(num_slots=num_slots, **_keywords(problem, cut)))
    costs, most = held_by_replica(whole, longest)
    tokens, fewest = np.minimum(problem.batch.lengths, cut.tokens), 0 if cut.allow_empty else num_slots
    for node in to_nodes(problem, costs, most, tokens, num_slots * cut.tokens, fewest):
        with contextlib.suppress(SolverError):
            replicas, slots, _ = schedule_parts(whole, node, len(sizes), longest, settings.time_budget)
            takes = cut.makespan(problem.slot_loads(replicas, slots, num_slots))
            if takes <= longest:
                return replicas, slots, None, ""
            least = min(least or takes, takes)
    if not least:
        return "the samples of a node were not found to fit its pipelines"
    return takes_longer("by nodes, pipelines would take", least, found.makespan, eps)


def pipeline_bound(plan: PipelinePlan, settings: PlanSettings, search: bool) -> Bound:
    """Return the best bound on what pipelines of so many slots take, whatever the caps, with no search."""
    problem, cut, num_slots = plan.problem, plan.cut, plan.num_slots
    if problem.timed is not None:
        times, items, work, tasks = problem.timed
        asked = PipelineRequest(**asked_of(times, items) | {"work": work})
        beside = TaskRequest(tasks.sample, tasks.forward, tasks.backward, times.num_devices)
        return multiplexed_lower_bound(asked, beside)
    keywords = _keywords(problem, cut) | {"allow_empty": True, "in_flight_cap": None, "sizes": None, "cap": None}
    return pipeline_lower_bound(PipelineRequest(num_slots=num_slots, **keywords))


def _fastest(problem: Problem, cut: Pipelines, time_budget: float) -> PipelineResult:
    """Return the schedule with the number of slots asked for, or with the fastest of some: few, and twice as many."""
    best: PipelineResult | None = None
    failed: SolverError | None = None
    free = not isinstance(cut.count, int)
    for num_slots in _numbers(problem, cut):
        try:
            found = _scheduled(problem, cut, num_slots, time_budget / _MOST_TRIED if free else time_budget)
        except SolverError as error:
            failed = error  # of the most slots tried
            if best is not None:
                break
            continue
        # More slots fill the pipeline better, until their overheads weigh more: the first that is no faster ends it.
        if best is not None and found.makespan >= best.makespan:
            break
        best = found
        if cut.count == "fewest":
            break
    if best is not None:
        return best
    lengths = problem.batch.lengths
    raise cut.explained(
        failed or SolverError("there are fewer samples than micro-batches"), lengths, problem.topology.num_ranks
    )


def _numbers(problem: Problem, cut: Pipelines) -> Iterator[int]:
    """Yield numbers of slots to try: the one asked for, or the fewest that hold all, and twice as many each time."""
    if isinstance(cut.count, int):
        yield cut.count
        return
    num_ranks, samples = problem.topology.num_ranks, len(problem.costs)
    tokens = int(np.minimum(problem.batch.lengths, cut.tokens).sum())
    slots = cut.slots_for(max(1, -(-tokens // (num_ranks * cut.tokens))))
    most = samples if cut.allow_empty else samples // num_ranks
    for _ in range(_MOST_TRIED):
        yield slots
        more = min(2 * slots, most - most % cut.multiple_of)
        if more <= slots:
            return
        slots = more


def _scheduled(problem: Problem, cut: Pipelines, num_slots: int, time_budget: float) -> PipelineResult:
    keywords = _keywords(problem, cut) | {"time_budget": time_budget}
    try:
        return solvers.schedule_pipeline(num_slots=num_slots, **keywords)
    except SolverError as error:
        cells = num_slots * problem.topology.num_ranks
        if isinstance(error, InfeasibleError) and len(problem.costs) < cells:
            raise
        own = int((problem.batch.lengths > cut.tokens).sum())
        if own and isinstance(error, InfeasibleError):  # whose numbers are not those of the samples
            error = InfeasibleError(
                f"{own} {{items}} over {{cap}} = {cut.tokens} take a micro-batch each, and the others find no "
                f"place in what is left of {cells}",
                None,
                "give more {cut.count}, or a larger {cap}",
            )  # fmt: skip
        raise error.within(f"with {num_slots} micro-batches a rank") from None


def _keywords(problem: Problem, cut: Pipelines) -> dict[str, Any]:
    """Return the arguments of :func:`solvers.schedule_pipeline`, without the number of slots."""
    return {
        "work": problem.work,
        "num_replicas": problem.topology.num_ranks,
        **_room(problem, cut),
        "slots_multiple_of": cut.multiple_of,
        "allow_empty": cut.allow_empty,
        **cut.stages.solver_keywords(),
    }


def _room(problem: Problem, cut: Pipelines) -> dict[str, Any]:
    """Return the room that each sample takes in a micro-batch, and the cap. A sample over the cap takes all the room.

    Samples of length 0 must not join it either. So each of them takes a part of an element, so small that all of them
    together take less than one.
    """
    lengths, cap = problem.batch.lengths, cut.tokens
    if cut.over_long != "own" or not (lengths > cap).any():
        return {"sizes": lengths, "cap": cap}
    nothing = lengths == 0
    parts = int(nothing.sum()) + 1
    # A cap of whole elements, and the small parts of them on top: all samples of no length fit beside any full
    # micro-batch, and beside none that is over the cap.
    cap = cap * parts + parts - 1
    sizes = np.minimum(
        lengths.astype(object) * parts, cap
    )  # as Python's integers: the solver refuses what is too large
    return {"sizes": np.where(nothing, 1, sizes), "cap": cap}
