"""Micro-batches of a step: rank and slot of every sample, near home where that is asked for."""

import numpy as np
from numpy.typing import NDArray

from balancer.plan.placed import PlacedSlots
from balancer.planning.found import Found, closed_form_bound
from balancer.planning.micro_batches import Schedule, make_schedule, schedule_bound
from balancer.planning.micro_batches_near_home import relocate_schedule
from balancer.planning.ranks import place, place_slots
from balancer.problem.cuts.micro_batches import MicroBatches
from balancer.problem.placement import Placement
from balancer.problem.problem import Problem
from balancer.problem.settings import PlanSettings
from solvers.bounds import Bound

__all__ = ["plan_slots", "slots_bound"]


def plan_slots(problem: Problem, micro_batches: MicroBatches, settings: PlanSettings) -> Found:
    """Plan rank and slot of every sample; where none is relocated, ranks may exchange all their micro-batches."""
    found = make_schedule(problem, micro_batches, settings.time_budget)
    placement, fell_back = settings.placement, ""
    if placement == "relocate" and problem.topology.num_ranks > 1:
        moved = relocate_schedule(problem, micro_batches, found, settings.eps, settings.time_budget)
        if isinstance(moved, str):
            placement, fell_back = "rearrange", moved
        else:
            found = moved
    if placement != "relocate":
        ranks = _place_slots(problem, micro_batches, found, placement, settings)
        found = found._replace(rank_of_sample=ranks)
    target = Placement.by_slots(found.rank_of_sample, found.slot_of_sample, problem.topology.num_ranks, found.num_slots)
    return Found(
        PlacedSlots(problem, target, found.slot_of_sample, found.num_slots), lambda _: found.bound, fell_back=fell_back
    )


def slots_bound(placed: PlacedSlots, makespan: int, settings: PlanSettings, search: bool) -> Bound:
    """Return the best bound on micro-batches that were not planned here."""
    problem = placed.problem
    bound = closed_form_bound(problem)
    if makespan == bound.value or not search:
        return bound
    return schedule_bound(problem, placed.cut, placed.num_slots, settings.time_budget)


def _place_slots(
    problem: Problem, micro_batches: MicroBatches, found: Schedule, placement: str, settings: PlanSettings
) -> NDArray[np.int32]:
    """Lay finished micro-batches on ranks: those of each slot by themselves, where no rank's sum counts.

    In lockstep and along a pipeline a step takes the same whichever rank computes which of a slot's micro-batches.
    """
    budget, objective, ranks = settings.time_budget, settings.objective, found.rank_of_sample
    if micro_batches.schedule == "step" or problem.constraints.names():
        return place(problem, ranks, placement, 0, budget, objective).rank_of_sample
    return place_slots(problem, found.slot_of_sample, ranks, found.num_slots, budget, placement, objective)
