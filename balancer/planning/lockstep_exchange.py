"""Shares that fit their slots badly are mended: a rank swaps samples with another until both fit.

That what ranks hold is even, at any price of a token, does not say that it fills their tall slots: of two long samples
on a rank a tall slot may hold one, and the other makes all its slots longer. It shows when the shares are cut.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from balancer.problem.constraints import Constraints
from balancer.problem.problem import Problem
from solvers.errors import SolverError
from solvers.groups import group_loads, members_by_group

__all__ = ["CutShares", "Shares", "mend_shares"]

_ROUNDS = 64
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
    def of(cls, problem: Problem, kept: Constraints, ranks: NDArray[np.int32], counted: Ints) -> "_Units":
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


def mend_shares(
    problem: Problem, kept: Constraints, shares: Shares, counted: Ints, targets: Ints, cut: CutShares,
    all_or_none: bool = False,
) -> Shares:  # fmt: skip
    """Swap samples, or those that stay together, between the rank most above its targets and others, while it helps.

    `shares` keep to `kept`, and go on to. `counted`, int64[n], is what of each sample's cost the slots beside the tall
    ones have to hold; `targets`, int64[K], what the slots of each rank should cost at most, descending. With
    `all_or_none` it is of no use unless all are brought below their targets: then nothing is done that is too little.
    O(n) a round, beside the swaps that are looked at and those that are cut.
    """
    num_ranks, num_slots = problem.topology.num_ranks, len(targets)
    ranks, slots = shares.rank_of_sample.copy(), shares.slot_of_sample.copy()
    units = _Units.of(problem, kept, ranks, counted)
    above = _above(problem.costs, ranks, slots, num_ranks, targets)
    for left in range(_ROUNDS, 0, -1):
        worst = int(np.argmax(above))
        if above[worst] <= 0 or (all_or_none and np.count_nonzero(above > 0) > left):
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
    ranks = np.concatenate([ranks + np.int32(2 * k) for k, (_, ranks) in enumerate(parts)])
    try:
        slots = cut(samples, ranks, 2 * len(swaps))
    except SolverError:  # one of them does not fit
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
