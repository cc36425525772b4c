"""From a solver's groups to ranks: as they come, relabelled so that least moves, or rebalanced from where samples lie.

Groups have no names, so which rank runs which group is free: ``rearrange`` uses that and no more. ``relocate`` goes
another way: it starts from the homes, and moves only what is over a cap slightly above the makespan of the groups.
"""

from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import solvers
from balancer.problem.constraints import Constraints, not_taken
from balancer.problem.cuts import WHOLE_SHARES
from balancer.problem.problem import Affinity, Problem
from solvers.groups import members_by_group
from solvers.relocation import RelocationProblem, relocated

__all__ = ["Placed", "effective", "place", "place_slots", "why_not_relocate"]

_OF_COUNTS = ("min_samples_per_rank", "max_samples_per_rank")
"""What relocation takes besides, of whole samples each by itself."""


class Placed(NamedTuple):
    """Where samples go; and where relocation was asked for and not done, why not."""

    rank_of_sample: NDArray[np.int32]
    fell_back: str = ""


def place(
    problem: Problem,
    group_of_sample: NDArray[np.int32],
    placement: str,
    eps: float | Fraction,
    time_budget: float,
    objective: str = "sum",
) -> Placed:
    """Give the groups of a partition to ranks.

    Parameters
    ----------
    problem : Problem
    group_of_sample : int32[n]
        Of a partition that keeps to the problem's constraints.
    placement : str
        A name in :data:`balancer.problem.settings.PLACEMENTS`.
    eps : float or Fraction
        How far relocation may go beyond the partition's makespan, as a fraction of it.
    time_budget : float
        Seconds' worth of work.
    objective : str
        What rearrangement makes small: a name in :data:`balancer.problem.settings.OBJECTIVES`.

    Returns
    -------
    Placed
        Rearrangement never changes the makespan; relocation raises it by no more than `eps` of it.
    """
    if placement == "any" or problem.topology.num_ranks == 1:
        return Placed(group_of_sample)
    reason = why_not_relocate(problem) if placement == "relocate" else ""
    if placement == "relocate" and not reason:
        result = _relocate(problem, group_of_sample, eps, time_budget)
        if not result.fell_back:
            return result
        reason = result.fell_back
    return Placed(_rearrange(problem, group_of_sample, time_budget, objective), reason)


def place_slots(
    problem: Problem,
    slot_of_sample: NDArray[np.int32],
    rank_of_sample: NDArray[np.int32],
    num_slots: int,
    time_budget: float,
    placement: str = "rearrange",
    objective: str = "sum",
) -> NDArray[np.int32]:
    """Give the micro-batches of each slot to ranks by themselves: int32[n]."""
    ranks = rank_of_sample.copy()
    members_of_slot, offsets, _ = members_by_group(slot_of_sample, num_slots)
    for slot in np.flatnonzero(np.diff(offsets)).tolist():  # empty ones may be millions
        members = members_of_slot[offsets[slot] : offsets[slot + 1]]
        part = place(problem.of_samples(members), ranks[members], placement, 0, time_budget / num_slots, objective)
        ranks[members] = part.rank_of_sample
    return ranks


def effective(problem: Problem, placement: str) -> str:
    """Return the placement that a problem of this kind can have."""
    return "rearrange" if placement == "relocate" and why_not_relocate(problem) else placement


def why_not_relocate(problem: Problem) -> str:
    """Say why relocation cannot be had for a problem of this kind; empty if it can."""
    if not problem.cost.additive:
        return f"relocation takes no cost '{problem.cost}'"
    names = problem.constraints.names()
    together, whole = problem.constraints.keep_together, problem.cut == WHOLE_SHARES
    if together is not None and "equal_counts" in names and not (whole and _alike(together)):
        return "relocation does not take equal_counts and keep_together at once"
    also = _OF_COUNTS if whole and together is None else ()
    others = [name for name in not_taken("relocation", names) if name not in also]
    return f"relocation does not take {', '.join(others)}" if others else ""


def _alike(unit: NDArray[np.int64]) -> bool:
    """Whether equally many samples stay together everywhere, so that equal counts of units are those of samples."""
    sizes = np.bincount(unit)
    return len(sizes) == 0 or sizes.min() == sizes.max()


def _relocate(problem: Problem, groups: NDArray[np.int32], eps: float | Fraction, time_budget: float) -> Placed:
    constraints, costs, affinity = problem.constraints, problem.costs, problem.affinity
    home, volumes = (problem.batch.home.rank_of_sample, problem.move_volumes) if affinity is None else (None, None)
    sizes: NDArray[np.int64] | None = None
    if constraints.max_tokens_per_rank is not None:
        sizes = problem.batch.lengths
    unit = constraints.keep_together
    if unit is not None:  # samples that stay together are one item, whose parts lie where theirs do
        count = int(unit.max(initial=-1)) + 1
        parts, home, volumes = problem.parts, None, None
        affinity = Affinity.of(unit[parts.sample], parts.ranks, parts.volumes, count)
        first = np.zeros(count, dtype=np.int64)
        first[unit[::-1]] = np.arange(len(unit))[::-1]
        groups, costs = groups[first], _sums(unit, costs, count)
        sizes = None if sizes is None else _sums(unit, sizes, count)
    equal_counts, counts = _counts(constraints, len(costs), problem.topology.num_ranks)
    items = RelocationProblem.prepare(
        costs, home, problem.topology.node_of_rank, volumes, affinity, equal_counts, sizes,
        constraints.max_tokens_per_rank, counts,
    )  # fmt: skip
    ranks, fell_back = relocated(items, groups, eps, time_budget)
    return Placed(ranks if unit is None else ranks[unit], fell_back)


def _counts(constraints: Constraints, num_items: int, num_ranks: int) -> tuple[bool, tuple[int, int] | None]:
    """Return whether counts are equal; if not, the fewest and the most samples of a rank where these are limited."""
    fewest, most = constraints.min_samples_per_rank, constraints.max_samples_per_rank
    few, most_if_equal = num_items // num_ranks, -(-num_items // num_ranks)
    if constraints.equal_counts or (fewest >= few and most is not None and most <= most_if_equal):
        return True, None
    return False, None if most is None and fewest == 0 else (fewest, num_items if most is None else most)


def _sums(keys: NDArray[np.int64], values: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    sums = np.zeros(count, dtype=np.int64)
    np.add.at(sums, keys, values)
    return sums


def _rearrange(problem: Problem, groups: NDArray[np.int32], time_budget: float, objective: str) -> NDArray[np.int32]:
    """Relabel the groups; ranks that differ in speed, load or what they may take keep to their own kind."""
    constraints, num_ranks = problem.constraints, problem.topology.num_ranks
    kinds = None
    if constraints.allowed_ranks is not None:
        return groups
    if constraints.rank_speeds is not None or constraints.initial_loads is not None:
        given = [of for of in (constraints.rank_speeds, constraints.initial_loads) if of is not None]
        kinds = np.unique(np.stack(given), axis=1, return_inverse=True)[1].reshape(-1)
    affinity = problem.parts
    volumes = solvers.group_volumes(groups[affinity.sample], affinity.ranks, affinity.volumes, num_ranks)
    result = solvers.rearrange(
        volumes,
        problem.topology.node_of_rank,
        objective=objective,  # type: ignore[arg-type] # checked in the settings
        time_budget=time_budget,
        class_of_group=kinds,
        class_of_rank=kinds,
    )
    return result.rank_of_group[groups]
