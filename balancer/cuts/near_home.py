"""Near home: groups go to ranks as they come or relabelled so that little moves, or samples start from home.

Groups have no names, so which rank runs which group is free: ``rearrange`` uses that and no more. ``relocate`` goes
another way: it starts from the homes, and moves only what is over a cap slightly above the makespan of the groups.
"""

from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import solvers
from balancer.problem.constraints import not_taken
from balancer.problem.cuts import WHOLE_SHARES
from balancer.problem.problem import Affinity, Problem
from solvers.groups import members_by_group

_OF_COUNTS = ("min_samples_per_rank", "max_samples_per_rank")
"""Constraints that relocation takes too, where samples are whole and none are tied together."""


class Placed(NamedTuple):
    """Where samples go; and where relocation was asked for and found nothing, why."""

    rank_of_sample: NDArray[np.int32]
    fell_back: str = ""
    whole_groups: bool = False  # whether that left whole groups of the partition on ranks, which are not near home


def place(
    problem: Problem,
    group_of_sample: NDArray[np.int32],
    placement: str,
    eps: float | Fraction,
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

    Returns
    -------
    Placed
        Rearrangement never changes the makespan; relocation raises it by no more than `eps` of it.
    """
    if placement == "any" or problem.topology.num_ranks == 1:
        return Placed(group_of_sample)
    reason = why_not_relocate(problem) if placement == "relocate" else ""
    if placement == "relocate" and not reason:
        return _relocate(problem, group_of_sample, eps)
    return Placed(_rearrange(problem, group_of_sample), reason, bool(reason))


def place_slots(
    problem: Problem,
    slot_of_sample: NDArray[np.int32],
    rank_of_sample: NDArray[np.int32],
    num_slots: int,
    placement: str = "rearrange",
) -> NDArray[np.int32]:
    """Give the micro-batches of each slot to ranks by themselves: int32[n]."""
    ranks = rank_of_sample.copy()
    members_of_slot, offsets, _ = members_by_group(slot_of_sample, num_slots)
    for slot in np.flatnonzero(np.diff(offsets)).tolist():  # empty ones may be millions
        members = members_of_slot[offsets[slot] : offsets[slot + 1]]
        part = place(problem.of_samples(members), ranks[members], placement, 0)
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
    # Relocation counts items. Where samples are cut or tied together, items are not samples.
    also = _OF_COUNTS if together is None and (whole or problem.cut.name == "micro_batches") else ()
    others = [name for name in not_taken("relocation", names) if name not in also]
    return f"relocation does not take {', '.join(others)}" if others else ""


def _alike(unit: NDArray[np.int64]) -> bool:
    """Whether equally many samples stay together everywhere, so that equal counts of units are those of samples."""
    sizes = np.bincount(unit)
    return len(sizes) == 0 or sizes.min() == sizes.max()


def _relocate(problem: Problem, groups: NDArray[np.int32], eps: float | Fraction) -> Placed:
    constraints, costs, node = problem.constraints, problem.costs, problem.topology.node_of_rank
    parts, unit, room = problem.affinity, constraints.keep_together, constraints.max_tokens_per_rank
    sizes = None if room is None else problem.batch.lengths
    if unit is not None:  # samples that stay together are one item, whose parts lie where theirs do
        count = int(unit.max(initial=-1)) + 1
        parts = problem.parts
        parts = Affinity.from_parts(unit[parts.sample], parts.ranks, parts.volumes, count)
        first = np.zeros(count, dtype=np.int64)
        # Backwards, so that the first sample of a unit is written last and stays.
        first[unit[::-1]] = np.arange(len(unit))[::-1]
        groups, costs = groups[first], _sums(unit, costs, count)
        sizes = None if sizes is None else _sums(unit, sizes, count)
    home, near, far = prices_of(problem) if parts is None else parts.prices(node)
    counts = None
    if constraints.min_samples_per_rank or constraints.max_samples_per_rank is not None:
        most = constraints.max_samples_per_rank
        counts = constraints.min_samples_per_rank, len(costs) if most is None else most
    found = solvers.relocate(
        costs, home, node, prices=(near, far), eps=eps, equal_counts=constraints.equal_counts,
        counts=None if constraints.equal_counts else counts, sizes=sizes, caps=room, groups=groups,
    )  # fmt: skip
    return Placed(found.rank_of_item if unit is None else found.rank_of_item[unit], found.fell_back)


def prices_of(problem: Problem) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """Return the home of each sample, and what moves where it lies elsewhere: in home's node, and on another."""
    if problem.affinity is not None:
        return problem.affinity.prices(problem.topology.node_of_rank)
    return problem.batch.home.rank_of_sample, problem.move_volumes, problem.move_volumes


def _sums(keys: NDArray[np.int64], values: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    sums = np.zeros(count, dtype=np.int64)
    np.add.at(sums, keys, values)
    return sums


def _rearrange(problem: Problem, groups: NDArray[np.int32]) -> NDArray[np.int32]:
    """Relabel the groups; ranks that differ in speed, load or what they may take keep to their own kind."""
    constraints, num_ranks = problem.constraints, problem.topology.num_ranks
    kinds = None
    # Exchanging whole groups could put a sample where it may not be.
    if constraints.allowed_ranks is not None:
        return groups
    if constraints.rank_speeds is not None or constraints.initial_loads is not None:
        given = [of for of in (constraints.rank_speeds, constraints.initial_loads) if of is not None]
        kinds = np.unique(np.stack(given), axis=1, return_inverse=True)[1].reshape(-1)
    affinity = problem.parts
    volumes = solvers.group_volumes(groups[affinity.sample], affinity.ranks, affinity.volumes, num_ranks)
    node = problem.topology.node_of_rank
    return solvers.rearrange(volumes, node, class_of_group=kinds, class_of_rank=kinds).rank_of_group[groups]
