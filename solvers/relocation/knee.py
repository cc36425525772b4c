"""Where the trade-off between makespan and volume has its knee: beyond it a longer step saves next to nothing more.

A few caps are searched, from the tightest on. From one to another it goes where each part in a thousand of the makespan
saves at least five parts in a thousand of all volume; the knee is where it goes no further. A cap is looked at only
if what crosses at the knee so far is enough to be saved there, so that most problems take one search or two.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers.relocation._problem import RelocationProblem
from solvers.relocation.auto import Reference, assign_auto, cap_of, come_back
from solvers.relocation.bounds import inter_bound

__all__ = ["KNEE", "KNEE_GRID", "Knee", "TradePoint", "at_knee", "is_knee"]

KNEE = "knee"
"""What `eps` is where the knee is asked for."""

KNEE_GRID = tuple(Fraction(part, 1000) for part in (1, 2, 5, 10, 20, 50))
"""The tolerances of which the knee is one."""

_LEAST_SAVED = 5  # parts of all volume for each part of the makespan


class TradePoint(NamedTuple):
    """What crosses nodes at a tolerance."""

    eps: Fraction
    inter_node_volume: int
    inter_bound: int  # proven: no assignment within this tolerance moves less across nodes
    volume: int  # all there is


class Knee(NamedTuple):
    """The assignment at the knee."""

    rank_of_item: NDArray[np.int32]  # int32[n]
    eps: Fraction  # a tolerance of `KNEE_GRID`
    fell_back: str  # as in `RelocationResult`
    # At the tightest tolerance of the grid, at the knee, and at the best balance (0)
    points: tuple[TradePoint, TradePoint, TradePoint]


def is_knee(eps: object) -> bool:
    """Whether the knee is asked for, and not a number."""
    return isinstance(eps, str) and eps == KNEE


def at_knee(problem: RelocationProblem, groups: Reference, time_budget: float) -> Knee:
    """Return the knee of a problem, and the points beside it.

    One search a tolerance looked at, and one at 0; `time_budget` is of each.
    """
    total = _all_volume(problem)

    def searched(eps: Fraction, before: NDArray[np.int32] | None) -> tuple[NDArray[np.int32], str]:
        cap = cap_of(problem, groups.makespan, eps)
        found, why = assign_auto(problem, cap, groups, time_budget)
        if before is None:
            return found, why
        back = before.copy()
        come_back(problem, back, cap)
        best = min(found, back, key=lambda where: problem.affinity.volumes_of(where, problem.node_of_rank))
        return best, why if best is found else ""

    def point(eps: Fraction, where: NDArray[np.int32]) -> TradePoint:
        bound, _ = inter_bound(problem, cap_of(problem, groups.makespan, eps))
        return TradePoint(eps, _crossing(problem, where), bound, total)

    balanced, _ = searched(Fraction(0), None)
    first, why = searched(KNEE_GRID[0], balanced)
    eps, found, why = _walk(problem, total, first, why, searched)
    points = point(KNEE_GRID[0], first), point(eps, found), point(Fraction(0), balanced)
    return Knee(found.copy(), eps, why, points)


def _walk(
    problem: RelocationProblem, total: int, found: NDArray[np.int32], why: str,
    searched: Callable[[Fraction, NDArray[np.int32] | None], tuple[NDArray[np.int32], str]],
) -> tuple[Fraction, NDArray[np.int32], str]:  # fmt: skip
    """From the first tolerance on, to the next that is worth its makespan, until there is none."""
    eps, last = KNEE_GRID[0], found
    for other in KNEE_GRID[1:]:
        worth = _LEAST_SAVED * (other - eps) * total
        if _crossing(problem, found) - problem.affinity.base_inter < worth:
            break  # nor can a later one save as much
        last, last_why = searched(other, last)
        if _crossing(problem, found) - _crossing(problem, last) >= worth:
            eps, found, why = other, last, last_why
    return eps, found, why


def _crossing(problem: RelocationProblem, where: NDArray[np.int32]) -> int:
    return problem.affinity.volumes_of(where, problem.node_of_rank)[0]


def _all_volume(problem: RelocationProblem) -> int:
    rows = problem.affinity.rows
    return int((problem.affinity.leave_node if rows is None else rows[2]).sum())
