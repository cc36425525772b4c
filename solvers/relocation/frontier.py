"""The trade-off between makespan and volume moved (Pareto front), from one preparation."""

import itertools
import time

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._budget import work_units
from solvers.arguments import as_budget, as_count
from solvers.groups import group_loads
from solvers.relocation._problem import RelocationProblem, as_eps
from solvers.relocation.auto import assign_auto, cap_of, come_back, reference, search
from solvers.relocation.bounds import move_bounds
from solvers.relocation.types import RelocationFrontier

__all__ = ["relocation_frontier"]


def _caps_between(low: int, high: int, count: int) -> list[int]:
    """Ascending from `low` to `high`: near the ends of a geometric ladder of distances from `low`, without floats."""
    distance = high - low
    steps = [distance >> shift for shift in range(distance.bit_length(), -1, -1)]
    halves = [(a + b) // 2 for a, b in itertools.pairwise(steps)]
    ladder = sorted({low + step for step in steps + halves})
    return [low, *ladder[-count + 1 :]] if len(ladder) > count else ladder


def _assignments(
    problem: RelocationProblem, first: NDArray[np.int32], caps: list[int], work: int
) -> list[NDArray[np.int32]]:
    """One assignment a cap: what a search finds, or the one before with what may go home again, if less moves."""
    where = first
    found = [first]
    for cap in caps[1:]:
        choices = [where.copy()]
        come_back(problem, choices[0], cap)
        if (fresh := search(problem, cap, work)) is not None:
            choices.append(fresh)
        where = min(choices, key=lambda choice: problem.affinity.volumes_of(choice, problem.node_of_rank))
        found.append(where)
    return found


def relocation_frontier(
    costs: ArrayLike,
    home_rank: ArrayLike | None,
    node_of_rank: ArrayLike,
    *,
    volumes: ArrayLike | None = None,
    affinity: tuple[ArrayLike, ArrayLike, ArrayLike] | None = None,
    eps: object = 0,
    equal_counts: bool = False,
    sizes: ArrayLike | None = None,
    caps: ArrayLike | None = None,
    time_budget: float = 0.05,
    num_points: int = 16,
) -> RelocationFrontier:
    """Trade makespan for volume: from the tightest cap to the homes as they are.

    One problem, checked, sorted and partitioned once; then the cap rises in steps. At each, either the last answer,
    with all that fits at home again returned there, or a search at this cap, whichever moves less.

    Parameters
    ----------
    costs, home_rank, node_of_rank, volumes, affinity, equal_counts, sizes, caps, time_budget
        As in :func:`relocate`.
    eps : int, float or Fraction
        The tightest tolerance.
    num_points : int
        At most this many points, at least 2.

    Returns
    -------
    RelocationFrontier
        Makespans ascending; volume across nodes, or else inside them, strictly descending. Every point has its own
        proven bounds.

    Raises
    ------
    TypeError, ValueError, InfeasibleError, TimeLimitError
        As :func:`relocate`.

    Notes
    -----
    One search a point, the cheaper the looser the cap; O(num_points * n) memory.

    Examples
    --------
    >>> front = relocation_frontier([5, 4, 3, 2, 1, 1], [0, 0, 0, 1, 2, 3], [0, 0, 1, 1])
    >>> front.makespans.tolist()
    [5, 6, 7, 8, 9, 12]
    >>> front.inter_node_volumes.tolist(), front.intra_node_volumes.tolist(), front.inter_bounds.tolist()
    ([4, 3, 0, 0, 0, 0], [3, 4, 5, 4, 3, 0], [4, 2, 0, 0, 0, 0])
    """
    started = time.perf_counter()
    count = as_count("num_points", num_points, 2)
    seconds = as_budget(time_budget)
    tolerance = as_eps(eps)
    problem = RelocationProblem.prepare(costs, home_rank, node_of_rank, volumes, affinity, equal_counts, sizes, caps)
    groups = reference(problem, seconds)
    tightest = cap_of(problem, groups.makespan, tolerance)
    first, _ = assign_auto(problem, tightest, groups, seconds)
    home = problem.affinity.home
    loosest = int(group_loads(problem.costs, home, problem.num_ranks).max())
    limits = _caps_between(tightest, max(tightest, loosest), count)
    points: list[tuple[int, int, int, int, int]] = []
    kept: list[NDArray[np.int32]] = []
    for where in _assignments(problem, first, limits, work_units(seconds)):
        makespan = int(group_loads(problem.costs, where, problem.num_ranks).max())
        inter, intra = problem.affinity.volumes_of(where, problem.node_of_rank)
        if points and (inter, intra) >= points[-1][1:3]:
            continue
        bounds = move_bounds(problem, max(makespan, problem.largest))
        while points and makespan <= points[-1][0]:  # less moves at no higher makespan: those points are of no use
            points.pop()
            kept.pop()
        points.append((makespan, inter, intra, bounds.inter, bounds.leave))
        kept.append(where)
    columns = np.array(points, dtype=np.int64).T
    assignments = np.array(kept, dtype=np.int32).reshape(len(kept), len(problem.costs))
    return RelocationFrontier(
        groups.makespan, columns[0], columns[1], columns[2], columns[3], columns[4], assignments,
        time.perf_counter() - started,
    )  # fmt: skip
