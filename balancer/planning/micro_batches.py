"""Rank and slot of every sample, under a cap on each micro-batch: all at once, or ranks first where constraints bind.

Without constraints one search lays out all micro-batches of all ranks. Constraints are about what a rank holds, however
that is cut: then samples are partitioned over the ranks under the constraints, with room for K micro-batches, and each
rank's share is cut into K that are as even as possible (in lockstep: each up to what all ranks wait for anyway).
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import solvers
from balancer.cost import CostModel
from balancer.planning.lockstep_exchange import Shares, mend_shares
from balancer.problem.constraints import Cap, Constraints
from balancer.problem.cuts.micro_batches import MicroBatches
from balancer.problem.problem import Problem
from solvers.arguments import INT64_MAX
from solvers.bounds import Bound
from solvers.errors import InfeasibleError, SolverError
from solvers.makespan_bounds import makespan_bound
from solvers.packing import MOST_BINS, Priced, ScheduleResult, cut_shares, price_tokens, schedule_micro_batches

__all__ = ["Schedule", "cut_at_once", "make_schedule", "mended", "partition_ranks", "priced_by", "schedule_bound",
           "schedule_jointly"]  # fmt: skip

_MOST_TRIED = 4
"""Numbers of slots, where the number is free and the first have no room."""

_ROOMS = (Fraction(1), Fraction(7, 10), Fraction(7, 5))
"""Of the tokens of tall slots: where prices of a token are taken."""

_EVEN = 2.0**40
"""What a rank holds at each price, if it is full."""

_CLOSE = 256
"""Within one part in so many of what it must take, or takes without constraints, no better schedule is looked for."""

_ADDITIVE = CostModel()  # where there are micro-batches, costs add up


class Schedule(NamedTuple):
    """Where samples run, and a bound on what any schedule takes."""

    rank_of_sample: NDArray[np.int32]
    slot_of_sample: NDArray[np.int32]
    num_slots: int
    bound: Bound

    @classmethod
    def of(cls, joint: ScheduleResult) -> "Schedule":
        """Return the schedule that a solver found."""
        bound = Bound(joint.lower_bound, joint.bound_name)
        return cls(joint.rank_of_item, joint.slot_of_item, joint.num_slots, bound)

    def slot_loads(self, costs: NDArray[np.int64], num_ranks: int) -> NDArray[np.int64]:
        """Return the cost of each micro-batch: int64[num_ranks, K]."""
        return _ADDITIVE.slot_loads(costs, self.rank_of_sample, self.slot_of_sample, num_ranks, self.num_slots)


def make_schedule(problem: Problem, micro_batches: MicroBatches, time_budget: float) -> Schedule:
    """Lay out the micro-batches of a step."""
    if not len(problem.costs) and len(problem.batch.dropped) and not micro_batches.allow_empty:
        raise InfeasibleError(
            "all {count} samples are longer than {micro_batch_tokens} = {cap}, and {over_long='drop'} leaves them out",
            count=len(problem.batch.dropped), cap=micro_batches.max_tokens,
        )  # fmt: skip
    constrained = bool(problem.constraints.names())
    budget = time_budget / 2 if constrained else time_budget
    joint = schedule_jointly(problem, micro_batches, budget)
    schedule = Schedule.of(joint)
    if not constrained:
        return schedule
    given = isinstance(micro_batches.count, int)
    near = range(joint.num_slots, joint.num_slots + (1 if given else _MOST_TRIED) * micro_batches.multiple_of)
    found = _first_of(near[:: micro_batches.multiple_of], problem, micro_batches, joint, budget)
    if isinstance(found, Schedule):
        return found
    if _keeps(problem, joint):
        return schedule._replace(bound=max(_of_ranks(problem), schedule.bound, key=_value))
    if given:
        raise found
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
        if best is not None:
            return min(best, found, key=lambda one: _takes(problem, micro_batches, one, one.num_slots))
        best = found
        if _takes(problem, micro_batches, found, k) <= found.bound.value + found.bound.value // _CLOSE:
            break
    return best or failed or SolverError("there are fewer samples than micro-batches")


def _takes(problem: Problem, micro_batches: MicroBatches, found: Schedule | Shares, num_slots: int) -> int:
    ranks, num_ranks = found.rank_of_sample, problem.topology.num_ranks
    loads = _ADDITIVE.slot_loads(problem.costs, ranks, found.slot_of_sample, num_ranks, num_slots)
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
    return problem.constraints.violation(ranks, tokens, problem.batch.numbers) is None


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
    bound = max(_of_ranks(problem), Bound(model.lower_bound, model.bound_name), key=_value)
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
            shares = Shares(ranks, _cut(problem, micro_batches, ranks, model, time_budget))
        except SolverError as error:
            failed = error
            continue
        enough = model.value + model.value // _CLOSE
        takes = _takes(problem, micro_batches, shares, model.num_slots)
        if micro_batches.schedule == "lockstep" and takes > enough:
            heights = _heights(model)
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


def mended(
    problem: Problem, micro_batches: MicroBatches, limits: Constraints, shares: Shares, counted: NDArray[np.int64],
    targets: NDArray[np.int64], all_or_none: bool = False,
) -> Shares:  # fmt: skip
    """Swap samples between ranks whose shares fit slots of at most `targets`, int64[K], badly."""

    def cut(samples: NDArray[np.int64], ranks: NDArray[np.int32], num_ranks: int) -> NDArray[np.int32]:
        some = problem.costs[samples], problem.batch.lengths[samples], ranks, num_ranks
        return _cut_shares(*some, micro_batches, len(targets), targets)

    return mend_shares(problem, limits, shares, counted, targets, cut, all_or_none)


def _to_be_even(problem: Problem, micro_batches: MicroBatches, model: ScheduleResult) -> Iterator[NDArray[np.int64]]:
    """What may be made even over the ranks, int64[n] or int64[n, c]: their costs, or those beside tall slots.

    In lockstep a rank has more room for samples whose cost a token is high; at each of several prices of a token what
    it has room for is a sum.
    """
    if micro_batches.schedule == "lockstep":
        heights = _heights(model)
        priced = [priced_by(problem, micro_batches, heights, room) for room in _ROOMS]
        if priced[0].tall and all(one.most > 0 for one in priced):
            priced.append(Priced(problem.costs, int(heights.sum()), 0))  # no rank holds more than all slots
            yield np.stack([(one.costs * (_EVEN / one.most)).astype(np.int64) for one in priced], axis=1)
            yield priced[0].costs
    yield problem.costs


def schedule_bound(problem: Problem, micro_batches: MicroBatches, num_slots: int, time_budget: float) -> Bound:
    """Return the best bound on what any schedule takes, found by making one.

    Unless the number of slots is free, the bound is on schedules with `num_slots`.
    """
    if micro_batches.count is not None:
        micro_batches = replace(micro_batches, count=num_slots)
    joint = schedule_jointly(problem, micro_batches, time_budget)
    return max(_of_ranks(problem), Bound(joint.lower_bound, joint.bound_name), key=_value)


def schedule_jointly(problem: Problem, micro_batches: MicroBatches, time_budget: float) -> ScheduleResult:
    """Lay out all micro-batches of all ranks at once, whatever the constraints."""
    num_ranks, keywords = problem.topology.num_ranks, micro_batches.solver_keywords()
    lengths = problem.batch.lengths
    try:
        return schedule_micro_batches(problem.costs, lengths, num_ranks, time_budget=time_budget, **keywords)
    except SolverError as error:
        raise micro_batches.explained(error, lengths, num_ranks) from None


def _of_ranks(problem: Problem) -> Bound:
    """Return the bound on the largest sum of a rank: under every schedule a step takes at least that."""
    keywords = problem.constraints.solver_keywords(problem.batch.lengths)
    return makespan_bound(problem.costs, problem.topology.num_ranks, **keywords)


def _value(bound: Bound) -> int:
    return bound.value


def _with_room(problem: Problem, micro_batches: MicroBatches, num_slots: int) -> Constraints:
    """Return the constraints, and those without which no rank's share can fit its micro-batches."""
    given, lengths, cap = problem.constraints, problem.batch.lengths, micro_batches.max_tokens
    room = Cap("the tokens of its micro-batches", np.minimum(lengths, cap), min(num_slots * cap, INT64_MAX))
    least = given.min_samples_per_rank if micro_batches.allow_empty else max(num_slots, given.min_samples_per_rank)
    return replace(given, caps=(*given.caps, room), min_samples_per_rank=least)


def partition_ranks(
    problem: Problem, constraints: Constraints, time_budget: float, costs: NDArray[np.int64] | None = None
) -> NDArray[np.int32]:
    """Partition over the ranks under constraints; where there are several costs, the largest of a rank's counts."""
    keywords = constraints.solver_keywords(problem.batch.lengths)
    costs, num_ranks = problem.costs if costs is None else costs, problem.topology.num_ranks
    if costs.ndim > 1:
        keywords["objective"] = "max"
    try:
        return solvers.partition(costs, num_ranks, "auto", time_budget, **keywords).group_of_item
    except SolverError as error:
        raise error.in_words(constraints.wording(error, problem.batch.numbers)) from None


def _heights(model: ScheduleResult) -> NDArray[np.int64]:
    """Return what the slots of a schedule take, the tallest first: int64[K]."""
    heights: NDArray[np.int64] = np.sort(model.slot_loads.max(axis=0))[::-1]
    return heights


def priced_by(
    problem: Problem, micro_batches: MicroBatches, heights: NDArray[np.int64], room: Fraction = _ROOMS[0]
) -> Priced:
    """Return what a rank may hold if its slots are at most `heights` high: int64[K], descending."""
    rests = np.cumsum(heights.astype(object)[::-1])[::-1].tolist()
    num_ranks, cap = problem.topology.num_ranks, micro_batches.max_tokens
    return price_tokens(problem.costs, problem.batch.lengths, rests, num_ranks, cap, room)


def _cut(
    problem: Problem, micro_batches: MicroBatches, ranks: NDArray[np.int32], model: ScheduleResult, time_budget: float
) -> NDArray[np.int32]:
    """Cut each rank's share into micro-batches: int32[n] of slots.

    Those of a rank are to be even; in lockstep they may be as high as the slots of `model`, where all ranks wait for
    the longest samples anyway. All shares are cut at once, quickly; where one of them does not fit so, one by one.
    """
    heights = _heights(model)
    targets = heights if micro_batches.schedule == "lockstep" else None
    try:
        return cut_at_once(problem, micro_batches, ranks, model.num_slots, targets)
    except SolverError:
        head_starts = None if targets is None else heights[0] - heights
        return _cut_one_by_one(problem, micro_batches, ranks, model.num_slots, head_starts, time_budget)


def cut_at_once(
    problem: Problem,
    micro_batches: MicroBatches,
    ranks: NDArray[np.int32],
    num_slots: int,
    targets: NDArray[np.int64] | None,
) -> NDArray[np.int32]:
    """Cut all shares by :func:`solvers.packing.cut_shares`: int32[n] of slots. SolverError where one does not fit."""
    lengths, num_ranks = problem.batch.lengths, problem.topology.num_ranks
    return _cut_shares(problem.costs, lengths, ranks, num_ranks, micro_batches, num_slots, targets)


def _cut_shares(
    costs: NDArray[np.int64],
    lengths: NDArray[np.int64],
    ranks: NDArray[np.int32],
    num_ranks: int,
    micro_batches: MicroBatches,
    num_slots: int,
    targets: NDArray[np.int64] | None,
) -> NDArray[np.int32]:
    if targets is not None:  # whose sums with costs are to fit int64
        targets = np.minimum(targets, max(0, INT64_MAX - 1 - int(costs.sum())) // num_slots)
    return cut_shares(
        costs, lengths, ranks, num_ranks, micro_batches.max_tokens, num_slots=num_slots,
        allow_empty=micro_batches.allow_empty, over_long="own", targets=targets,
    ).slot_of_item  # fmt: skip


def _cut_one_by_one(
    problem: Problem,
    micro_batches: MicroBatches,
    ranks: NDArray[np.int32],
    num_slots: int,
    head_starts: NDArray[np.int64] | None,
    time_budget: float,
) -> NDArray[np.int32]:
    """Cut with a search for each rank; slot k counts as holding ``head_starts[k]`` already."""
    num_ranks = problem.topology.num_ranks
    lengths, cap = problem.batch.lengths, micro_batches.max_tokens
    alone = np.where(lengths > cap, len(lengths), 1)  # of which a micro-batch takes n
    sizes, caps = np.stack((np.minimum(lengths, cap), alone), axis=1), [cap, max(1, len(lengths))]
    slots = np.empty(len(ranks), dtype=np.int32)
    for rank in range(num_ranks):
        mine = np.flatnonzero(ranks == rank)
        try:
            slots[mine] = solvers.partition(
                problem.costs[mine], num_slots, "auto", time_budget / num_ranks, sizes=sizes[mine], caps=caps,
                min_items=int(not micro_batches.allow_empty), initial_loads=head_starts,
            ).group_of_item  # fmt: skip
        except SolverError as error:
            what = f"no way was found to cut the {len(mine)} samples of rank {rank} into micro-batches of {cap}"
            # Other shares might do, unless these samples are on one rank in any case.
            raise (type(error) if _inseparable(problem, mine) else SolverError)(what) from None
    return slots


def _inseparable(problem: Problem, samples: NDArray[np.int64]) -> bool:
    """Whether these samples are on one rank in every plan."""
    keys = problem.constraints.keep_together
    return problem.topology.num_ranks == 1 or (keys is not None and len(np.unique(keys[samples])) == 1)
