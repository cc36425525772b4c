"""Sequence groups of a step: which ranks share which samples, in which slot; then which ranks those are."""

import numpy as np
from numpy.typing import NDArray

import solvers
from balancer.cost.sequence_parallel import DegreeTimes
from balancer.plan.dispatch_plan import DispatchPlan
from balancer.plan.pieces import GroupTable
from balancer.planning.ranks import effective
from balancer.problem.problem import Problem
from balancer.problem.sequence_groups import GROUPING, SequenceGroups
from balancer.problem.settings import PlanSettings
from solvers.bounds import Bound
from solvers.errors import Wording

__all__ = ["groups_bound", "plan_groups"]

_CLOSED_FORM_S = 1e-9  # of a bound's budget, which then is spent by what takes no search


def plan_groups(problem: Problem, cut: SequenceGroups, settings: PlanSettings, started: float) -> DispatchPlan:
    """Plan the groups of every slot, then put them where their samples lie, as far as groups of one degree differ."""
    unit, given, sizes = _units(problem, cut)
    try:
        found = solvers.sequence_groups(
            given.times, sizes, overhead=given.overhead, time_budget=settings.time_budget,
            **cut.solver_keywords(problem.topology),
        )  # fmt: skip
    except solvers.SolverError as error:
        raise error.in_words(_wording(problem, unit)) from None
    groups = GroupTable(
        found.group_of_item[unit], found.degree_of_group, found.slot_of_group, found.first_rank_of_group
    )
    if settings.placement != "any":
        groups = _near_home(problem, cut, groups)
    bound = Bound(found.lower_bound * given.unit, found.bound_name)
    return DispatchPlan.of(
        problem, None, lambda _: bound, settings, placement=effective(problem, settings.placement),
        slots=(groups.slot[groups.group_of_sample], found.num_slots), groups=groups, status=found.status,
        started=started,
    )  # fmt: skip


def groups_bound(problem: Problem, cut: SequenceGroups, makespan: int) -> Bound:
    """Return the closed-form bound on what the slots of a step take together."""
    _, given, sizes = _units(problem, cut)
    proven = solvers.sequence_groups_lower_bound(
        given.times, sizes, overhead=given.overhead, upper=makespan // given.unit, bound_budget=_CLOSED_FORM_S,
        **cut.solver_keywords(problem.topology),
    )  # fmt: skip
    return Bound(proven.value * given.unit, proven.name)


def _units(problem: Problem, cut: SequenceGroups) -> tuple[NDArray[np.int64], DegreeTimes, NDArray[np.int64]]:
    """Return what is assigned as one, int64[n], its times, and its sizes at each degree, int64[D, units].

    Samples that stay together are one after another in one group: their times and sizes add up.
    """
    lengths, unit = problem.batch.lengths, problem.constraints.keep_together
    given = problem.cost.degree_times(lengths, cut.degrees, problem.topology.num_ranks)
    sizes = np.stack([cut.padded(lengths, degree) for degree in cut.degrees])
    if unit is None:
        return np.arange(len(lengths)), given, sizes
    sums = np.zeros((2, len(cut.degrees), int(unit.max(initial=-1)) + 1), dtype=np.int64)
    for d in range(len(cut.degrees)):
        np.add.at(sums[0, d], unit, given.times[d])
        np.add.at(sums[1, d], unit, sizes[d])
    return unit, DegreeTimes(sums[0], given.overhead, given.unit), sums[1]


def _wording(problem: Problem, unit: NDArray[np.int64]) -> Wording:
    """Return what errors of the solver are called here: an item is a sample, or the first of those that go together."""
    first = np.unique(unit, return_index=True)[1]
    return Wording(GROUPING.names, numbers={"sample": lambda item: int(problem.batch.numbers[first[item]])})


def _near_home(problem: Problem, cut: SequenceGroups, groups: GroupTable) -> GroupTable:
    """Exchange the places of groups of one slot and degree so that little crosses nodes; no time changes."""
    node_of_rank, node = problem.topology.node_of_rank, cut.ranks_per_node(problem.topology)
    first_rank = groups.first_rank.copy()
    kinds = np.stack((groups.slot, groups.degree)).astype(np.int64)
    order = np.lexsort((groups.first_rank, kinds[1], kinds[0]))
    bounds = np.flatnonzero(np.diff(kinds[:, order], axis=1).any(axis=0)) + 1
    parts = problem.parts
    sample = np.repeat(np.arange(len(parts.offsets) - 1), np.diff(parts.offsets))
    group, home, volume = groups.group_of_sample[sample], parts.ranks, parts.volumes
    for alike in np.split(order, bounds):
        if len(alike) < 2:
            continue
        starts, degree = groups.first_rank[alike], int(groups.degree[alike[0]])
        place_of_rank = _places(starts, degree, node, len(node_of_rank))
        member = np.full(len(groups.degree), -1, dtype=np.int32)
        member[alike] = np.arange(len(alike))
        near = (member[group] >= 0) & (place_of_rank[home] >= 0)
        volumes = solvers.group_volumes(member[group[near]], place_of_rank[home[near]], volume[near], len(alike))
        found = solvers.rearrange(volumes, node_of_rank[starts])
        first_rank[alike] = starts[found.rank_of_group]
    return _renumbered(groups, first_rank)


def _places(starts: NDArray[np.int32], degree: int, node: int, num_ranks: int) -> NDArray[np.int32]:
    """Return of each rank the place that it is in, else one in its node, else -1."""
    place_of_rank = np.full(num_ranks, -1, dtype=np.int32)
    for place, start in enumerate(starts.tolist()):
        first = start // node * node
        mine = place_of_rank[first : max(first + node, start + degree)]
        mine[mine < 0] = place
    for place, start in enumerate(starts.tolist()):
        place_of_rank[start : start + degree] = place
    return place_of_rank


def _renumbered(groups: GroupTable, first_rank: NDArray[np.int32]) -> GroupTable:
    """Number groups by slot and rank again."""
    order = np.lexsort((first_rank, groups.slot))
    number = np.empty(len(order), dtype=np.int32)
    number[order] = np.arange(len(order))
    return GroupTable(number[groups.group_of_sample], groups.degree[order], groups.slot[order], first_rank[order])
