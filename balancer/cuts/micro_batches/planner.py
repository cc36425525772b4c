"""Micro-batches of a step: rank and slot of every sample, under a cap on each micro-batch, near home if asked for.

Without constraints one search lays out all micro-batches of all ranks. Constraints are about what a rank holds, however
that is cut. Where they only count or add up, finished micro-batches are dealt to ranks that keep them. Else, or where
that takes longer, samples are partitioned over the ranks under the constraints, with room for K micro-batches, and each
rank's share is cut into K that are as even as possible (where ranks wait in every slot: each up to what all wait for
anyway).
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer.cuts.micro_batches.dealing import deal
from balancer.cuts.micro_batches.near_home import relocate_schedule
from balancer.cuts.micro_batches.plan import MicroBatchPlan
from balancer.cuts.micro_batches.schedules import (
    ROOMS,
    Schedule,
    Shares,
    by_value,
    cut_slots,
    heights_of,
    mended,
    partition_ranks,
    priced_by,
    ranks_bound,
    schedule_bound,
    schedule_jointly,
)
from balancer.cuts.near_home import place, place_slots, why_not_relocate
from balancer.cuts.whole_shares import closed_form_bound
from balancer.problem.constraints import Cap, Constraints, Prompts
from balancer.problem.cuts.micro_batches import DEALT, MicroBatches
from balancer.problem.placement import Placement
from balancer.problem.problem import Problem
from balancer.problem.settings import PlanSettings
from solvers.arguments import INT64_MAX
from solvers.bounds import Bound
from solvers.errors import InfeasibleError, SolverError
from solvers.packing import MOST_BINS, Priced, ScheduleResult, prefix_schedule_bound, schedule_with_prefixes

_MOST_TRIED = 4
"""Numbers of slots, where the number is free and the first have no room."""

_EVEN = 2.0**40
"""What a rank holds at each price, if it is full."""

_CLOSE = 256
"""Within one part in so many of what it must take, or takes without constraints, no better schedule is looked for."""

_LOSS = 1000
"""Micro-batches are dealt to ranks if that takes at most one part in so many longer."""


def plan_slots(problem: Problem, micro_batches: MicroBatches, settings: PlanSettings) -> MicroBatchPlan:
    """Plan rank and slot of every sample; where none is relocated, ranks may exchange all their micro-batches."""
    shared, num_ranks = problem.constraints.prefix, problem.topology.num_ranks
    if shared is not None:
        found = _with_prompts(problem, shared, micro_batches)
    else:
        found = _schedule(problem, micro_batches, settings.time_budget)
    placement, fell_back = settings.placement, ""
    if placement == "relocate" and num_ranks > 1 and (why := why_not_relocate(problem)):
        placement, fell_back = "rearrange", why
    elif placement == "relocate" and num_ranks > 1:
        moved = relocate_schedule(problem, micro_batches, found, settings.eps, settings.time_budget)
        if isinstance(moved, str):
            placement, fell_back = "rearrange", moved
        else:
            found, fell_back = moved, moved.fell_back
    if placement != "relocate":
        ranks = _place_slots(problem, micro_batches, found, placement)
        found = found._replace(rank_of_sample=ranks)
    if shared is not None:
        target = shared.side_by_side(found.rank_of_sample, num_ranks, found.slot_of_sample)
    else:
        target = Placement.by_slots(found.rank_of_sample, found.slot_of_sample, num_ranks, found.num_slots)
    plan = MicroBatchPlan(problem, target, found.slot_of_sample, found.num_slots)
    return plan.finished(found.bound, settings, fell_back=fell_back)


def slots_bound(plan: MicroBatchPlan, settings: PlanSettings, search: bool) -> Bound:
    """Return the best bound on micro-batches that were not planned here."""
    problem = plan.problem
    if (shared := problem.constraints.prefix) is not None:
        return Bound(prefix_schedule_bound(*_of_prompts(problem, shared, plan.cut)), "parts")
    bound = closed_form_bound(problem)
    # A plan that meets the closed form needs no schedule to prove it.
    if plan.makespan == bound.value or not search:
        return bound
    return schedule_bound(problem, plan.cut, plan.num_slots, settings.time_budget)


def _of_prompts(problem: Problem, shared: Prompts, cut: MicroBatches) -> tuple[Any, ...]:
    """Return what solvers take of samples that share prompts: costs and tokens, of samples besides them and of them."""
    own = problem.batch.lengths - shared.lengths
    return problem.costs, own, problem.topology.num_ranks, cut.tokens, shared.keys, problem.prompts, shared.lengths


def _with_prompts(problem: Problem, shared: Prompts, cut: MicroBatches) -> Schedule:
    """Lay out micro-batches, in each of which a prompt counts once."""
    try:
        found = schedule_with_prefixes(
            *_of_prompts(problem, shared, cut), sync=cut.sync, num_slots=cut.count, min_slots=cut.at_least,
            slots_multiple_of=cut.multiple_of, allow_empty=cut.allow_empty,
        )  # fmt: skip
    except SolverError as error:
        raise cut.explained(error, problem.batch.lengths, problem.topology.num_ranks) from None
    return Schedule.from_result(found)


def _place_slots(problem: Problem, micro_batches: MicroBatches, found: Schedule, placement: str) -> NDArray[np.int32]:
    """Lay finished micro-batches on ranks: those of each slot by themselves, where no rank's sum counts.

    Where ranks wait in every slot, and along a pipeline, a step takes the same whichever rank computes which of a
    slot's micro-batches.
    """
    ranks = found.rank_of_sample
    if micro_batches.sync == "step" or problem.constraints.names():
        return place(problem, ranks, placement, 0).rank_of_sample
    return place_slots(problem, found.slot_of_sample, ranks, found.num_slots, placement)


def _schedule(problem: Problem, micro_batches: MicroBatches, time_budget: float) -> Schedule:
    """Lay out the micro-batches of a step."""
    constrained = bool(problem.constraints.names())
    # Half for the schedule without constraints, which is the model of the other and its bound.
    budget = time_budget / 2 if constrained else time_budget
    joint = schedule_jointly(problem, micro_batches, budget)
    schedule = Schedule.from_result(joint)
    if not constrained:
        return schedule
    dealt = _dealt(problem, micro_batches, schedule)
    if (
        dealt is not None
        and _takes(problem, micro_batches, dealt, dealt.num_slots) <= joint.value + joint.value // _LOSS
    ):
        return dealt
    try:
        found = _under_constraints(problem, micro_batches, joint, schedule, budget)
    except SolverError:
        if dealt is None:
            raise
        return dealt
    if dealt is None:
        return found
    return min(dealt, found, key=lambda one: _takes(problem, micro_batches, one, one.num_slots))


def _dealt(problem: Problem, micro_batches: MicroBatches, schedule: Schedule) -> Schedule | None:
    """Deal the micro-batches of a schedule that was made without constraints to ranks that keep to them, or None."""
    # Slots that keep to limits are even also where ranks wait once a step.
    is_even = micro_batches.sync != "step" or problem.limits is not None
    if not is_even or not set(problem.constraints.names()) <= set(DEALT):
        return None
    ranks = deal(problem, micro_batches, *schedule[:3])
    if ranks is None or not _keeps_limits(problem, ranks, schedule):
        return None
    return schedule._replace(rank_of_sample=ranks, bound=max(ranks_bound(problem), schedule.bound, key=by_value))


def _keeps_limits(problem: Problem, ranks: NDArray[np.int32], schedule: Schedule) -> bool:
    """Whether micro-batches keep to their limits, after single samples may have moved."""
    lengths, num_ranks = problem.batch.lengths, problem.topology.num_ranks
    return problem.limits is None or (
        problem.limits.violation(lengths, ranks, schedule.slot_of_sample, num_ranks, schedule.num_slots) is None
    )


def _under_constraints(
    problem: Problem, micro_batches: MicroBatches, joint: ScheduleResult, schedule: Schedule, budget: float
) -> Schedule:
    """Partition samples over the ranks under the constraints, and cut each rank's share."""
    if problem.limits is not None and not problem.limits.only_add_up:
        raise SolverError("no micro-batches were found that keep to {cut.limits}, and ranks to what is asked of them")
    given = isinstance(micro_batches.count, int)
    near = range(joint.num_slots, joint.num_slots + (1 if given else _MOST_TRIED) * micro_batches.multiple_of)
    found = _first_of(near[:: micro_batches.multiple_of], problem, micro_batches, joint, budget)
    if isinstance(found, Schedule):
        return found
    # No partition was found that fits, but the schedule without constraints happens to keep them.
    if _keeps(problem, joint):
        return schedule._replace(bound=max(ranks_bound(problem), schedule.bound, key=by_value))
    if given:
        raise found
    # Before many more numbers are tried: the constraints may rule out all of them.
    _check_any_number(problem, micro_batches, budget)
    later = _first_of(_further(problem, micro_batches, joint.num_slots), problem, micro_batches, joint, budget)
    if isinstance(later, Schedule):
        return later
    raise found.as_kind(SolverError)


def _check_any_number(problem: Problem, micro_batches: MicroBatches, time_budget: float) -> None:
    """Raise InfeasibleError where the constraints rule out all numbers of slots, by more than their room."""
    least = 0 if micro_batches.allow_empty else micro_batches.slots_for(1)
    try:
        least = max(least, problem.constraints.min_samples_per_rank)
        partition_ranks(problem, replace(problem.constraints, min_samples_per_rank=least), time_budget)
    except InfeasibleError as error:
        raise error.within("with any number of micro-batches a rank") from None
    except SolverError:
        return  # which proves nothing


def _first_of(
    numbers: Iterable[int], problem: Problem, micro_batches: MicroBatches, joint: ScheduleResult, time_budget: float
) -> Schedule | SolverError:
    """Return a schedule with the first of these numbers of slots that one is found for, or why none is.

    Where it takes much longer than it must, that with the next number that one is found for, if it takes less.
    """
    failed: SolverError | None = None
    best: Schedule | None = None
    for k in numbers:
        try:
            found = _ranks_first(problem, micro_batches, joint, k, time_budget)
        except SolverError as error:
            failed = failed or error.within(f"with {k} micro-batches a rank")
            continue
        # The second that was found: one number more is worth a look, and no third one.
        if best is not None:
            return min(best, found, key=lambda one: _takes(problem, micro_batches, one, one.num_slots))
        best = found
        if _takes(problem, micro_batches, found, k) <= found.bound.value + found.bound.value // _CLOSE:
            break
    return best or failed or SolverError("there are fewer samples than micro-batches")


def _takes(problem: Problem, micro_batches: MicroBatches, found: Schedule | Shares, num_slots: int) -> int:
    ranks, num_ranks = found.rank_of_sample, problem.topology.num_ranks
    loads = problem.cost.slot_loads(problem.costs, ranks, found.slot_of_sample, num_ranks, num_slots)
    return micro_batches.makespan(loads)


def _further(problem: Problem, micro_batches: MicroBatches, first: int) -> list[int]:
    """Numbers of slots that are tried where those from `first` on have no room: many more, and some fewer."""
    samples, step = len(problem.costs), micro_batches.multiple_of
    num_ranks = problem.topology.num_ranks
    most = min(micro_batches.slots_for(samples), MOST_BINS // num_ranks)
    if not micro_batches.allow_empty:
        most = samples // num_ranks
    most -= most % step
    k, more = first + _MOST_TRIED * step, []
    while k < most:
        more.append(k)
        k = 2 * k - first  # a multiple as well
    fewer = range(first - step, 0, -step) if micro_batches.count is None else ()
    return [*more, *([most] if most > first else []), *[k for k in fewer if k >= micro_batches.at_least][:_MOST_TRIED]]


def _keeps(problem: Problem, found: ScheduleResult) -> bool:
    """Whether a schedule that was made without the constraints keeps to them."""
    ranks = found.rank_of_item
    tokens = problem.cost.tokens(problem.batch.lengths, ranks, problem.topology.num_ranks)
    return problem.constraints.violation(ranks, tokens) is None


def _ranks_first(
    problem: Problem, micro_batches: MicroBatches, joint: ScheduleResult, num_slots: int, time_budget: float
) -> Schedule:
    """Partition over the ranks, and cut what each of them gets into `num_slots` micro-batches."""
    numbered = replace(micro_batches, count=num_slots)
    model = joint if joint.num_slots == num_slots else schedule_jointly(problem, numbered, time_budget)
    limits = _with_room(problem, micro_batches, num_slots)
    shares = _best_cut(problem, micro_batches, limits, model, time_budget)
    held = micro_batches.slots_for(int(shares.slot_of_sample.max(initial=0)) + 1)  # those behind hold nothing
    if micro_batches.count is None:  # of `joint`, which says something of all numbers of slots
        model = joint
    elif model.num_slots != held:
        model = schedule_jointly(problem, replace(micro_batches, count=held), time_budget)
    bound = max(ranks_bound(problem), Bound(model.lower_bound, model.bound_name), key=by_value)
    return Schedule(*shares, held, bound)


def _best_cut(
    problem: Problem, micro_batches: MicroBatches, limits: Constraints, model: ScheduleResult, time_budget: float
) -> Shares:
    """Return rank and slot of every sample, of the best of several ways to say what of the ranks shall be even."""
    best: Shares | None = None
    least, failed = 0, SolverError("")
    for counted in _to_be_even(problem, micro_batches, model):
        try:
            ranks = partition_ranks(problem, limits, time_budget, counted)
            shares = Shares(ranks, cut_slots(problem, micro_batches, ranks, model, time_budget))
        except SolverError as error:
            failed = error
            continue
        enough = model.value + model.value // _CLOSE
        takes = _takes(problem, micro_batches, shares, model.num_slots)
        # Sums alone do not say that shares fill tall slots. Swaps between ranks mend what shows when they are cut.
        if micro_batches.sync == "micro_batch" and takes > enough and problem.limits is None:
            heights = heights_of(model)
            counted = priced_by(problem, micro_batches, heights).costs
            shares = mended(problem, micro_batches, limits, shares, counted, heights)
            takes = _takes(problem, micro_batches, shares, model.num_slots)
        if best is None or takes < least:
            best, least = shares, takes
        if least <= enough:
            break
    if best is None:
        raise failed
    return best


def _to_be_even(problem: Problem, micro_batches: MicroBatches, model: ScheduleResult) -> Iterator[NDArray[np.int64]]:
    """What may be made even over the ranks, int64[n] or int64[n, c]: their costs, or those beside tall slots.

    Where ranks wait in every slot, a rank has more room for samples whose cost a token is high; at each of several
    prices of a token what it has room for is a sum.
    """
    if micro_batches.sync == "micro_batch":
        heights = heights_of(model)
        priced = [priced_by(problem, micro_batches, heights, room) for room in ROOMS]
        if priced[0].tall and all(one.most > 0 for one in priced):
            priced.append(Priced(problem.costs, int(heights.sum()), 0))  # no rank holds more than all slots
            # Several prices at once, as components of a cost, each scaled so that a full rank holds as much: no rank
            # may be full at any of them.
            yield np.stack([(one.costs * (_EVEN / one.most)).astype(np.int64) for one in priced], axis=1)
            yield priced[0].costs
    yield problem.costs


def _with_room(problem: Problem, micro_batches: MicroBatches, num_slots: int) -> Constraints:
    """Return the constraints, and those without which no rank's share can fit its micro-batches."""
    given, lengths, cap = problem.constraints, problem.batch.lengths, micro_batches.tokens
    room = Cap("the tokens of its micro-batches", np.minimum(lengths, cap), min(num_slots * cap, INT64_MAX))
    least = given.min_samples_per_rank if micro_batches.allow_empty else max(num_slots, given.min_samples_per_rank)
    caps, most = [*given.caps, room], given.max_samples_per_rank
    if problem.limits is not None:
        limits = problem.limits.for_solver()
        for name, amounts, limit in zip(problem.limits.names, limits.sizes.T, limits.caps.tolist(), strict=True):
            caps.append(Cap(f"{name} of its micro-batches", np.ascontiguousarray(amounts),
                            min(num_slots * limit, INT64_MAX)))  # fmt: skip
        if limits.most_items is not None:
            most = min(most or INT64_MAX, num_slots * limits.most_items)
    return replace(given, caps=tuple(caps), min_samples_per_rank=least, max_samples_per_rank=most)
