"""What schedules of micro-batches are made of: all laid out at once, or ranks first, and each rank's share cut.

A slot is *tall* if its longest samples make it so much costlier than an even share that only its cap on tokens limits
what else it holds. Tokens in tall slots get a *price* (:mod:`solvers.packing.prices`): what a sample costs beyond it
has to find room in the other slots, and this is a sum that a partition can make even.

Shares that fit their slots badly are mended: a rank swaps samples with another until both fit. That what ranks hold is
even, at any price of a token, does not say that it fills their tall slots: of two long samples on a rank a tall slot
may hold one, and the other makes all its slots longer. It shows when the shares are cut.
"""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import solvers
from balancer.cost import CostModel
from balancer.problem.constraints import Constraints
from balancer.problem.cuts.micro_batches import MicroBatches
from balancer.problem.problem import Problem
from solvers.arguments import INT64_MAX
from solvers.bounds import Bound, makespan_bound
from solvers.errors import SolverError
from solvers.groups import group_loads, members_by_group
from solvers.packing import Priced, ScheduleResult, cut_shares, price_tokens, schedule_micro_batches

ROOMS = (Fraction(1), Fraction(7, 10), Fraction(7, 5))
"""Parts of the tokens of tall slots at which prices of a token are taken: at each, another sum may be even."""

_ADDITIVE = CostModel()  # where there are micro-batches, costs add up

_ROUNDS = 32
"""Swaps that are made at most, one a round; most mends end after a few."""

_TRIED = 32
"""Swaps that are cut in a round, all in one call."""

_CUT_AT_ONCE = 4096
"""Samples of them, about: fewer are tried where ranks hold many."""

_TRIED_ALONE = 8
"""Of them, where some do not fit."""

_LOOKED_AT = 2**18
"""Swaps that those are chosen from, about: with the ranks that have most room."""

Ints = NDArray[np.int64]

CutShares = Callable[[Ints, NDArray[np.int32], int], NDArray[np.int32]]
"""Of samples and their ranks, so many: the slot of each, those of a rank in descending order of cost."""


class Shares(NamedTuple):
    """Rank and slot of every sample."""

    rank_of_sample: NDArray[np.int32]
    slot_of_sample: NDArray[np.int32]


class Schedule(NamedTuple):
    """Where samples run, and a bound on what any schedule takes."""

    rank_of_sample: NDArray[np.int32]
    slot_of_sample: NDArray[np.int32]
    num_slots: int
    bound: Bound
    fell_back: str = ""  # why its samples were not relocated from home alone, where that was asked for

    @classmethod
    def from_result(cls, joint: ScheduleResult) -> "Schedule":
        """Return the schedule that a solver found."""
        bound = Bound(joint.lower_bound, joint.bound_name)
        return cls(joint.rank_of_item, joint.slot_of_item, joint.num_slots, bound)

    def slot_loads(self, costs: NDArray[np.int64], num_ranks: int) -> NDArray[np.int64]:
        """Return the cost of each micro-batch: int64[num_ranks, K]."""
        return _ADDITIVE.slot_loads(costs, self.rank_of_sample, self.slot_of_sample, num_ranks, self.num_slots)


def schedule_bound(problem: Problem, micro_batches: MicroBatches, num_slots: int, time_budget: float) -> Bound:
    """Return the best bound on what any schedule takes, found by making one.

    Unless the number of slots is free, the bound is on schedules with `num_slots`.
    """
    if micro_batches.count is not None:
        micro_batches = replace(micro_batches, count=num_slots)
    joint = schedule_jointly(problem, micro_batches, time_budget)
    return max(ranks_bound(problem), Bound(joint.lower_bound, joint.bound_name), key=by_value)


def schedule_jointly(problem: Problem, micro_batches: MicroBatches, time_budget: float) -> ScheduleResult:
    """Lay out all micro-batches of all ranks at once, whatever the constraints."""
    num_ranks, keywords = problem.topology.num_ranks, micro_batches.solver_keywords()
    lengths = problem.batch.lengths
    try:
        limits = None if problem.limits is None else problem.limits.for_solver()
        return schedule_micro_batches(
            problem.costs, lengths, num_ranks, time_budget=time_budget, limits=limits, **keywords
        )
    except SolverError as error:
        raise micro_batches.explained(error, lengths, num_ranks) from None


def ranks_bound(problem: Problem) -> Bound:
    """Return the bound on the largest sum of a rank: under every schedule a step takes at least that."""
    keywords = problem.constraints.solver_keywords(problem.batch.lengths)
    return makespan_bound(problem.costs, problem.topology.num_ranks, **keywords)


def by_value(bound: Bound) -> int:
    """Return what bounds are compared by."""
    return bound.value


def partition_ranks(
    problem: Problem, constraints: Constraints, time_budget: float, costs: NDArray[np.int64] | None = None
) -> NDArray[np.int32]:
    """Partition over the ranks under constraints; where there are several costs, the largest of a rank's counts."""
    keywords = constraints.solver_keywords(problem.batch.lengths)
    costs, num_ranks = problem.costs if costs is None else costs, problem.topology.num_ranks
    if costs.ndim > 1:
        keywords["objective"] = "max"
    try:
        return solvers.partition(costs, num_ranks, "auto", time_budget, stop_at=0, **keywords).group_of_item
    except SolverError as error:
        raise error.in_words(constraints.wording(error)) from None


def heights_of(model: ScheduleResult) -> NDArray[np.int64]:
    """Return what the slots of a schedule take, the tallest first: int64[K]."""
    heights: NDArray[np.int64] = np.sort(model.slot_loads.max(axis=0))[::-1]
    return heights


def priced_by(
    problem: Problem, micro_batches: MicroBatches, heights: NDArray[np.int64], room: Fraction = ROOMS[0]
) -> Priced:
    """Return what a rank may hold if its slots are at most `heights` high: int64[K], descending."""
    rests = np.cumsum(heights.astype(object)[::-1])[::-1].tolist()
    num_ranks, cap = problem.topology.num_ranks, micro_batches.tokens
    return price_tokens(problem.costs, problem.batch.lengths, rests, num_ranks, cap, room)


def cut_slots(
    problem: Problem, micro_batches: MicroBatches, ranks: NDArray[np.int32], model: ScheduleResult, time_budget: float
) -> NDArray[np.int32]:
    """Cut each rank's share into micro-batches: int32[n] of slots.

    Those of a rank are to be even; where ranks wait in every slot they may be as high as the slots of `model`, in which
    all wait for the longest samples anyway. All shares are cut at once, quickly; where one of them does not fit so, one
    by one.
    """
    heights = heights_of(model)
    targets = heights if micro_batches.sync == "micro_batch" else None
    if problem.limits is None:  # else one by one, which keeps them all
        with contextlib.suppress(SolverError):
            return cut_at_once(problem, micro_batches, ranks, model.num_slots, targets)
    head_starts = None if targets is None else heights[0] - heights
    return _cut_one_by_one(problem, micro_batches, ranks, model.num_slots, head_starts, time_budget)


def cut_at_once(
    problem: Problem,
    micro_batches: MicroBatches,
    ranks: NDArray[np.int32],
    num_slots: int,
    targets: NDArray[np.int64] | None,
    num_ranks: int | None = None,
) -> NDArray[np.int32]:
    """Cut all shares by :func:`solvers.packing.cut_shares`: int32[n] of slots. SolverError where one does not fit."""
    lengths, num_ranks = problem.batch.lengths, num_ranks or problem.topology.num_ranks
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
        costs, lengths, ranks, num_ranks, micro_batches.tokens, num_slots=num_slots,
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
    lengths, cap = problem.batch.lengths, micro_batches.tokens
    # A second quantity, n in each micro-batch: an over-long sample takes all of it, so that it lies alone.
    alone = np.where(lengths > cap, len(lengths), 1)
    sizes, caps = np.stack((np.minimum(lengths, cap), alone), axis=1), [cap, max(1, len(lengths))]
    most_items = None
    if problem.limits is not None:
        limits = problem.limits.for_solver()
        sizes, caps, most_items = np.hstack((sizes, limits.sizes)), [*caps, *limits.caps.tolist()], limits.most_items
    slots = np.empty(len(ranks), dtype=np.int32)
    for rank in range(num_ranks):
        mine = np.flatnonzero(ranks == rank)
        try:
            slots[mine] = solvers.partition(
                problem.costs[mine], num_slots, "auto", time_budget / num_ranks, sizes=sizes[mine], caps=caps,
                min_items=int(not micro_batches.allow_empty), max_items=most_items, initial_loads=head_starts,
                stop_at=0,
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


def mended(
    problem: Problem, micro_batches: MicroBatches, limits: Constraints, shares: Shares, counted: NDArray[np.int64],
    targets: NDArray[np.int64],
) -> Shares:  # fmt: skip
    """Swap samples between ranks whose shares fit slots of at most `targets`, int64[K], badly.

    `counted`, int64[n], is the part of each cost that slots beside the tall ones must hold.
    """

    def cut(samples: NDArray[np.int64], ranks: NDArray[np.int32], num_ranks: int) -> NDArray[np.int32]:
        some = problem.costs[samples], problem.batch.lengths[samples], ranks, num_ranks
        return _cut_shares(*some, micro_batches, len(targets), targets)

    return _swapped(problem, limits, shares, counted, targets, cut)


class _Swap(NamedTuple):
    """What two ranks hold after a swap, and by how much their slots are above the targets."""

    give: int
    take: int
    samples: Ints
    ranks: NDArray[np.int32]
    slots: NDArray[np.int32]
    above: tuple[int, int]


class _Units(NamedTuple):
    """Samples that move together."""

    samples: Ints  # unit by unit
    offsets: Ints
    rank: NDArray[np.int32]
    costs: Ints  # as far as they count beside tall slots
    amounts: Ints  # int64[c, units], of what is capped on a rank
    limits: Ints
    allowed: NDArray[np.bool_] | None  # bool[units, R]

    @classmethod
    def from_problem(cls, problem: Problem, kept: Constraints, ranks: NDArray[np.int32], counted: Ints) -> "_Units":
        keys, caps = kept.keep_together, kept.all_caps(problem.batch.lengths)
        codes = np.arange(len(ranks)) if keys is None else np.unique(keys, return_inverse=True)[1]
        of, num = codes.astype(np.int32), int(codes.max(initial=-1)) + 1
        samples, offsets, _ = members_by_group(of, num)
        limits = np.array([cap.limit for cap in caps], dtype=np.int64)
        amounts = np.array([group_loads(cap.amounts, of, num) for cap in caps])
        allowed, first = kept.allowed_ranks, offsets[:-1]
        if allowed is not None:
            allowed = np.logical_and.reduceat(allowed[samples], first, axis=0)
        return cls(samples, offsets, ranks[samples[first]], group_loads(counted, of, num), amounts, limits, allowed)

    def of_rank(self, rank: int) -> Ints:
        return np.flatnonzero(self.rank == rank)

    def samples_of(self, units: Ints) -> Ints:
        spans = [self.samples[self.offsets[unit] : self.offsets[unit + 1]] for unit in units.tolist()]
        return np.concatenate(spans)


def _swapped(
    problem: Problem, kept: Constraints, shares: Shares, counted: Ints, targets: Ints, cut: CutShares
) -> Shares:
    """Swap samples, or those that stay together, between the rank most above its targets and others, while it helps.

    `shares` keep to `kept`, and go on to. `counted`, int64[n], is what of each sample's cost the slots beside the tall
    ones have to hold; `targets`, int64[K], what the slots of each rank should cost at most, descending.
    O(n) a round, beside the swaps that are looked at and those that are cut.
    """
    num_ranks, num_slots = problem.topology.num_ranks, len(targets)
    ranks, slots = shares.rank_of_sample.copy(), shares.slot_of_sample.copy()
    units = _Units.from_problem(problem, kept, ranks, counted)
    above = _above(problem.costs, ranks, slots, num_ranks, targets)
    for _ in range(_ROUNDS):
        worst = int(np.argmax(above))
        if above[worst] <= 0:
            break
        swaps = _promising(units, worst, above, num_slots)
        best = _best(problem, units, swaps, targets, cut)
        if best is None or max(best.above) >= above[worst]:
            break
        other = int(units.rank[best.take])
        units.rank[[best.give, best.take]] = other, worst
        ranks[best.samples], slots[best.samples] = np.array([worst, other], np.int32)[best.ranks], best.slots
        above[[worst, other]] = best.above
    return Shares(ranks, slots)


def _above(costs: Ints, ranks: NDArray[np.int32], slots: NDArray[np.int32], num_ranks: int, targets: Ints) -> Ints:
    """Return by how much the slots of each rank are above their targets, at most: int64[R]. Negative: below."""
    bins = (ranks * np.int64(len(targets)) + slots).astype(np.int32)
    loads = group_loads(costs, bins, num_ranks * len(targets)).reshape(num_ranks, -1)
    above: Ints = (-np.sort(-loads, axis=1) - targets).max(axis=1)
    return above


def _promising(units: _Units, worst: int, above: Ints, num_slots: int) -> list[tuple[int, int]]:
    """Return swaps of what `worst` holds that would leave least above if all fitted slots as it does now."""
    give = units.of_rank(worst)
    take = _of_others(units, worst, above, _LOOKED_AT // max(1, len(give)))
    other = units.rank[take]
    less = units.costs[give][:, None] - units.costs[take]  # spread over the slots but one
    half, change = above // 2, less // (2 * max(1, num_slots - 1))  # whose sums fit int64
    after = np.maximum(half[worst] - change, half[other] + change)
    counts = np.diff(units.offsets)
    # As many samples for as many, so that limits on counts stay kept.
    may = (less > 0) & (counts[give][:, None] == counts[take]) & (after < half[worst])
    if units.allowed is not None:
        may &= units.allowed[give][:, other] & units.allowed[take, worst]
    for amounts, limit in zip(units.amounts, units.limits, strict=True):
        more, held = amounts[take] - amounts[give][:, None], group_loads(amounts, units.rank, len(above))
        may &= (more <= limit - held[worst]) & (-more <= limit - held[other])
    where = np.flatnonzero(may)
    pair = 2 * len(units.samples) // len(above)
    most = min(_TRIED, max(2, _CUT_AT_ONCE // max(1, pair)))
    first = where[np.argsort(after.ravel()[where], kind="stable")[:most]]
    return [(int(give[k // len(take)]), int(take[k % len(take)])) for k in first]


def _of_others(units: _Units, worst: int, above: Ints, most: int) -> Ints:
    """Return what the ranks with most room hold: of as many ranks as hold `most`, or one."""
    ranks = np.argsort(above, kind="stable")
    ranks = ranks[ranks != worst]
    held = np.cumsum(np.bincount(units.rank, minlength=len(above))[ranks])
    chosen = np.zeros(len(above), dtype=np.bool_)
    chosen[ranks[: max(1, int(np.searchsorted(held, most, side="right")))]] = True
    return np.flatnonzero(chosen[units.rank])


def _best(problem: Problem, units: _Units, swaps: list[tuple[int, int]], targets: Ints, cut: CutShares) -> _Swap | None:
    """Return the swap after which the two ranks are least above their targets; None if none can be cut."""
    if not swaps:
        return None
    parts = [_after(units, give, take) for give, take in swaps]
    samples = np.concatenate([samples for samples, _ in parts])
    # Each swap is two ranks of its own in one call of the cutter: a call for each would take longer than the cutting.
    ranks = np.concatenate([ranks + np.int32(2 * k) for k, (_, ranks) in enumerate(parts)])
    try:
        slots = cut(samples, ranks, 2 * len(swaps))
    except SolverError:  # one of them does not fit
        # The call says that one does not fit, and not which. The most promising are asked one by one.
        alone = swaps[:_TRIED_ALONE] if len(swaps) > 1 else []
        tried = [_best(problem, units, [swap], targets, cut) for swap in alone]
        return min((one for one in tried if one is not None), key=lambda one: max(one.above), default=None)
    above = _above(problem.costs[samples], ranks, slots, 2 * len(swaps), targets).reshape(-1, 2)
    k = int(np.argmin(above.max(axis=1)))
    mine = ranks // 2 == k
    return _Swap(*swaps[k], samples[mine], ranks[mine] % 2, slots[mine], (int(above[k, 0]), int(above[k, 1])))


def _after(units: _Units, give: int, take: int) -> tuple[Ints, NDArray[np.int32]]:
    """Return what the two ranks of a swap then hold, and which of them: 0, that of `give`, or 1."""
    held = [units.of_rank(int(units.rank[unit])) for unit in (give, take)]
    held = [
        np.append(mine[mine != gone], new) for mine, gone, new in zip(held, (give, take), (take, give), strict=True)
    ]
    first, second = (np.sort(units.samples_of(mine)) for mine in held)
    return np.append(first, second), np.repeat(np.array([0, 1], dtype=np.int32), (len(first), len(second)))
