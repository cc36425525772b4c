"""What the largest item proves: its replica cannot be as the others are, and they cannot take all else off it.

Of the replica that runs the item in its slot k, and of the mean of the others, real loads make a linear program again:
the first is as long as its longest path, the others as long as the cut of the mean replica says, and what the two have
sums to what there is. Solved for one slot, it is nearly solved for the next. A bound is what is proven for all slots.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._budget import work_units
from solvers.groups import read_only
from solvers.pipeline._fluid import Besides, empty_basis, solve_fluid
from solvers.pipeline._problem import PipelineProblem
from solvers.pipeline._profile import Profile, cut_of
from solvers.pipeline.bounds import outlier_bounds, priced
from solvers.pipeline.types import OutlierCut, PipelineCut

_PART = 0.15
"""Of a budget that goes into it, at most: a makespan gets as much longer as a search of 0.85 of the time leaves it."""
_PIVOTS = 20
"""About as many, for every slot and every share, are needed; where there is no room for them, none are begun."""
_SLACK = 5e-4
"""Of the bound that is given up so that slots after the first take less."""


class OutlierProof(NamedTuple):
    """A bound, and the cut that proves it."""

    value: int
    cut: OutlierCut


class _Program:
    """The linear program of one slot after another, each from where the last one ended.

    In units of the profile's program, in which what a replica has counts as many times as there are replicas.
    """

    def __init__(self, problem: PipelineProblem, profile: Profile, own: NDArray[np.int64]) -> None:
        program, replicas = profile.program, problem.num_replicas
        totals, all_of = program.totals, np.maximum(1, problem.items.sum(axis=1))
        left = profile.ratios * ((all_of - own) / all_of)  # of everything but the item
        self._order, self._program, self._ratios = problem.order, program, read_only(left * replicas)
        self._own = np.rint(own / all_of * profile.ratios * totals * replicas).astype(np.int64)
        share, rest = profile.share * left, np.empty(0)
        if replicas > 1:
            prices, constant = priced(profile.cut, program.unit, program.fixed, program.hop, problem.order)
            others = prices.min(axis=0).astype(np.float64) * totals / (replicas - 1)
            rest = np.append(others, float(constant)) / 2.0**profile.cut.bits
            share = np.vstack([share, left * (replicas - 1)])
        else:
            share = share * replicas
        self._share, self._rest = share.ravel(), read_only(rest)
        self._basis = empty_basis(len(self._share), program.graph.shape[1])
        self._middle = self._basis
        self.work = ((len(self._share) + 2) ** 2 + 4 * program.graph.shape[1]) / 5  # measured

    def solve(self, slot: int, enough: float, most_pivots: int) -> tuple[float, int]:
        """Solve for the item in a slot; return what is proven, and how many pivots it took."""
        middle = self._program.num_slots // 2
        if slot == middle - 1:  # slots from the middle down begin from where the middle ended, too
            self._basis = self._middle
        placed = np.zeros((self._program.num_slots, len(self._own)), dtype=np.int64)
        placed[slot] = self._own
        besides, share = Besides(read_only(placed), self._rest), self._share.copy()
        solved = solve_fluid(self._program, self._ratios, besides, enough, most_pivots, share, self._basis)
        if slot == middle:
            self._middle = self._basis.copied()
        return float(solved.proven), int(solved.pivots)

    def cut(self) -> tuple[PipelineCut, int]:
        """Return the paths in the item's replica, and the weight of the others."""
        return cut_of(self._basis, self._order)


def outlier_proof(
    problem: PipelineProblem, profile: Profile, proven: int, seconds: float
) -> tuple[OutlierProof | None, float]:
    """Return what is proven by the item that takes longest, and how much of a budget in seconds it took.

    None where that is not more than is `proven` already, or where it would take too much of the budget.
    """
    stages, replicas, slots = problem.merged, problem.num_replicas, problem.num_slots
    totals = problem.items.sum(axis=1)
    if not totals.any():
        return None, 0.0
    item = int(np.argmax(stages.unit.sum(axis=1) @ problem.items))
    own = problem.items[:, item]
    if (profile.share * (totals / replicas) >= own).all(axis=1).any():
        return None, 0.0  # it fits into the profile
    program = _Program(problem, profile, own)
    allowed = int(_PART * work_units(seconds) / program.work)
    if allowed < _PIVOTS * profile.share.size * slots:
        return None, 0.0
    left, rate, wanted = allowed, 0.0, 0.0
    best, which = np.zeros(slots, dtype=object), np.zeros(slots, dtype=np.int64)
    cuts: list[tuple[PipelineCut, int]] = []
    # from the middle up, then down: what solves one slot nearly solves the next
    for slot in sorted(range(slots), key=lambda k: (k < slots // 2, abs(k - slots // 2))):
        if cuts and best[slot] >= wanted:
            continue
        met, pivots = program.solve(slot, rate * wanted if cuts else np.inf, left)
        left -= pivots
        cut, weight = program.cut()
        found = outlier_bounds(own, totals, stages, problem.order, replicas, cut, weight, profile.cut)
        # a cut proves something of every slot, not only of the one for which it was sought
        better = found > best
        best[better], which[better] = found[better], len(cuts)
        cuts.append((cut, weight))
        if len(cuts) == 1:
            rate, wanted = met / max(1, best[slot]), float(best[slot]) * (1 - _SLACK)
        if best[slot] <= proven or left < 1:
            return None, seconds * _PART * (allowed - left) / allowed
    used = sorted(set(which.tolist()))
    outlier = OutlierCut(
        item, read_only(np.searchsorted(used, which).astype(np.int32)), tuple(cuts[i][0] for i in used),
        read_only(np.array([cuts[i][1] for i in used])), profile.cut,
    )  # fmt: skip
    return OutlierProof(int(best.min()), outlier), seconds * _PART * (allowed - left) / allowed
