"""Rank and slot of every sample, under a cap on each micro-batch: all at once, or ranks first where constraints bind.

Without constraints one search lays out all micro-batches of all ranks. A constraint is about what a rank holds, however
that is cut; then samples are partitioned over the ranks under the constraints and with room for K micro-batches, and
each rank's share is cut into K that are as even as they can be, or in lockstep as even as where all ranks wait anyway.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import solvers
from balancer.constraints import Cap
from balancer.micro_batches import MicroBatches
from balancer.problem import Problem
from solvers.bounds import Bound, makespan_bound
from solvers.errors import SolverError
from solvers.packing import ScheduleResult, schedule_micro_batches

__all__ = ["Schedule", "make_schedule", "schedule_bound"]

_MOST_TRIED = 4
"""Numbers of slots, where the number is free and the first have no room."""


class Schedule(NamedTuple):
    """Where samples run, and a bound on what any schedule takes."""

    rank_of_sample: NDArray[np.int32]
    slot_of_sample: NDArray[np.int32]
    num_slots: int
    bound: Bound


def make_schedule(problem: Problem, micro_batches: MicroBatches, time_budget: float) -> Schedule:
    """Lay out the micro-batches of a step.

    Raises
    ------
    InfeasibleError, SolverError
        No schedule keeps to the rules, or none was found.
    """
    constrained = bool(problem.constraints.names())
    budget = time_budget / 2 if constrained else time_budget
    joint = _jointly(problem, micro_batches, budget)
    bound = Bound(joint.lower_bound, joint.bound_name)
    if not constrained:
        return Schedule(joint.rank_of_item, joint.slot_of_item, joint.num_slots, bound)
    bound = max(_of_ranks(problem), bound, key=_value)
    tries = 1 if isinstance(micro_batches.count, int) else _MOST_TRIED
    failed: SolverError | None = None
    for k in range(joint.num_slots, joint.num_slots + tries * micro_batches.multiple_of, micro_batches.multiple_of):
        try:
            ranks = _partition(problem, micro_batches, k, budget)
            model = joint if joint.num_slots == k else _jointly(problem, replace(micro_batches, count=k), budget)
            return Schedule(ranks, _cut(problem, micro_batches, ranks, model, budget), k, bound)
        except SolverError as error:
            failed = failed or type(error)(f"with {k} micro-batches a rank: {error}")
    raise failed or AssertionError  # there was at least one try


def schedule_bound(problem: Problem, micro_batches: MicroBatches, time_budget: float) -> Bound:
    """Return the best bound on what any schedule takes; that on micro-batches comes with a schedule."""
    joint = _jointly(problem, micro_batches, time_budget)
    return max(_of_ranks(problem), Bound(joint.lower_bound, joint.bound_name), key=_value)


def _jointly(problem: Problem, micro_batches: MicroBatches, time_budget: float) -> ScheduleResult:
    """Lay out all micro-batches of all ranks at once, whatever the constraints."""
    num_ranks, keywords = problem.topology.num_ranks, micro_batches.solver_keywords()
    return schedule_micro_batches(problem.costs, problem.batch.lengths, num_ranks, time_budget=time_budget, **keywords)


def _of_ranks(problem: Problem) -> Bound:
    """Return the bound on the largest sum of a rank: under every schedule a step takes at least that."""
    keywords = problem.constraints.solver_keywords(problem.batch.lengths)
    return makespan_bound(problem.costs, problem.topology.num_ranks, **keywords)


def _value(bound: Bound) -> int:
    return bound.value


def _partition(problem: Problem, micro_batches: MicroBatches, num_slots: int, time_budget: float) -> NDArray[np.int32]:
    """Partition over the ranks under the constraints, and so that each rank's share may fit its micro-batches."""
    given, lengths, cap = problem.constraints, problem.batch.lengths, micro_batches.max_tokens
    room = Cap("the tokens of its micro-batches", np.minimum(lengths, cap), num_slots * cap)
    least = given.min_samples_per_rank if micro_batches.allow_empty else max(num_slots, given.min_samples_per_rank)
    constraints = replace(given, caps=(*given.caps, room), min_samples_per_rank=least)
    keywords = constraints.solver_keywords(lengths)
    try:
        num_ranks = problem.topology.num_ranks
        return solvers.partition(problem.costs, num_ranks, "auto", time_budget, **keywords).group_of_item
    except SolverError as error:
        raise constraints.in_domain_words(error, problem.batch.first_sample) from None


def _cut(
    problem: Problem, micro_batches: MicroBatches, ranks: NDArray[np.int32], model: ScheduleResult, time_budget: float
) -> NDArray[np.int32]:
    """Cut each rank's share into micro-batches: int32[n] of slots.

    Those of a rank are to be even; in lockstep they may be as high as the slots of `model`, where all ranks wait for
    the longest samples anyway, and what they have above that is to be even.
    """
    num_ranks, num_slots = problem.topology.num_ranks, model.num_slots
    heights = model.slot_loads.max(axis=0)
    head_start = heights.max() - heights if micro_batches.schedule == "lockstep" else None
    lengths, cap = problem.batch.lengths, micro_batches.max_tokens
    alone = np.where(lengths > cap, len(lengths), 1)  # of which a micro-batch takes n
    sizes, caps = np.stack((np.minimum(lengths, cap), alone), axis=1), [cap, max(1, len(lengths))]
    slots = np.empty(len(ranks), dtype=np.int32)
    for rank in range(num_ranks):
        mine = np.flatnonzero(ranks == rank)
        try:
            slots[mine] = solvers.partition(
                problem.costs[mine], num_slots, "auto", time_budget / num_ranks, sizes=sizes[mine], caps=caps,
                min_items=int(not micro_batches.allow_empty), initial_loads=head_start,
            ).group_of_item  # fmt: skip
        except SolverError as error:
            what = f"no way was found to cut the {len(mine)} samples of rank {rank} into micro-batches of {cap}"
            raise type(error)(what) from None
    return slots
