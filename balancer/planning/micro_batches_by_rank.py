"""Micro-batches cut after ranks are decided: every rank cuts its own share, by :func:`solvers.packing.cut_shares`.

It is what trainers do that accumulate gradients and plan no micro-batches. :mod:`balancer.planning.micro_batches` plans
rank and slot together.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from balancer.plan.dispatch_plan import DispatchPlan
from balancer.plan.placed import placed
from balancer.planning.found import Claim
from balancer.planning.planner import replay_plan
from balancer.planning.step import Step, encoder_problem, of_items, plan_phase
from balancer.problem.constraints import Constraints
from balancer.problem.cuts import WHOLE_SHARES
from balancer.problem.cuts.micro_batches import PACKING, MicroBatches
from balancer.problem.phases import PhaseItems
from balancer.problem.placement import Placement
from balancer.problem.problem import Problem
from solvers.errors import SolverError
from solvers.packing import SharesResult, cut_shares


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


def _of_ranks(step: Step) -> MicroBatches | None:
    cut = step.settings.cut
    return cut if isinstance(cut, MicroBatches) else None  # strategies of whole samples see no sequence groups


def _in_shares(
    step: Step, problem: Problem, micro_batches: MicroBatches, rank_of_sample: NDArray[np.int32], fell_back: str = ""
) -> DispatchPlan:
    cut = _cut(step, problem, micro_batches, rank_of_sample)
    target = Placement.by_slots(rank_of_sample, cut.slot_of_item, step.topology.num_ranks, cut.num_slots)
    problem = replace(problem, cut=micro_batches)
    return replay_plan(placed(problem, target, cut.slot_of_item, cut.num_slots), step.settings, Claim(fell_back))


def _cut(step: Step, problem: Problem, micro_batches: MicroBatches, rank_of_sample: NDArray[np.int32]) -> SharesResult:
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
