"""Sequence groups of a step: which ranks share which samples, in which slot; then which ranks those are.

Near home, groups that are alike exchange their ranks, and what single ranks have starts from home.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import solvers
from balancer.cost import DegreeTimes
from balancer.plan.pieces import GroupTable
from balancer.plan.placed import PlacedGroups
from balancer.planning.found import Found
from balancer.planning.near_home import Placed
from balancer.problem.cuts.sequence_groups import GROUPING, SequenceGroups
from balancer.problem.problem import Affinity, Problem
from balancer.problem.settings import PlanSettings
from solvers.arguments import INT64_MAX, as_share
from solvers.bounds import Bound
from solvers.errors import UsageError, Wording
from solvers.grouping import SequenceProblem, SequenceRequest, closed_form
from solvers.packing import MOST_BINS


class Units(NamedTuple):
    """What is assigned as one: samples, or those that stay together, one after another in one group."""

    of_sample: NDArray[np.int64]
    times: DegreeTimes
    sizes: NDArray[np.int64]  # [D, units], padding included

    @classmethod
    def from_problem(cls, problem: Problem, cut: SequenceGroups) -> "Units":
        """Add up what goes together."""
        lengths, together = problem.batch.lengths, problem.constraints.keep_together
        times = problem.cost.degree_times(lengths, cut.degrees, problem.topology.num_ranks)
        sizes = np.stack([cut.padded(lengths, degree) for degree in cut.degrees])
        if together is None:
            return cls(np.arange(len(lengths)), times, sizes)
        sums = np.zeros((2, len(cut.degrees), int(together.max(initial=-1)) + 1), dtype=np.int64)
        for d in range(len(cut.degrees)):
            np.add.at(sums[0, d], together, times.times[d])
            np.add.at(sums[1, d], together, sizes[d])
        return cls(together, DegreeTimes(sums[0], times.overhead, times.unit), sums[1])


def plan_groups(problem: Problem, cut: SequenceGroups, settings: PlanSettings) -> Found:
    """Plan the groups of every slot, then put them where their samples lie, as far as that costs next to nothing."""
    ranks, slots = problem.topology.num_ranks, cut.fewest_slots(problem.batch.lengths, problem.topology.num_ranks)
    if ranks * slots > MOST_BINS:
        raise UsageError(f"{{num_ranks}} * {{cut.count}} must be <= {MOST_BINS} micro-batches, got {ranks} * {slots}")
    units = Units.from_problem(problem, cut)
    unit, times = units.of_sample, units.times
    try:
        found = solvers.sequence_groups(
            times.times, units.sizes, overhead=times.overhead, time_budget=settings.time_budget,
            **cut.solver_keywords(problem.topology),
        )  # fmt: skip
    except (solvers.SolverError, UsageError) as error:
        raise error.in_words(_wording(problem, unit)) from None
    groups = GroupTable(
        found.group_of_item[unit], found.degree_of_group, found.slot_of_group, found.first_rank_of_group
    )
    fell_back = ""
    if settings.placement != "any":
        groups = _rearranged(problem, cut, groups)
    if settings.placement == "relocate":
        heights = found.slot_times - times.overhead
        groups, fell_back = _relocated(problem, cut, groups, heights * times.unit, settings)
    bound = Bound(found.lower_bound * times.unit, found.bound_name)
    return Found(PlacedGroups.from_table(problem, groups, found.num_slots), lambda _: bound, found.status, fell_back)


def groups_bound(placed: PlacedGroups, makespan: int, settings: PlanSettings, search: bool) -> Bound:
    """Return the closed-form bound on what the slots of a step take together."""
    problem, cut = placed.problem, placed.cut
    times, sizes = Units.from_problem(problem, cut)[1:]
    asked = SequenceRequest(times.times, sizes, overhead=times.overhead, **cut.solver_keywords(problem.topology))
    proven = closed_form(SequenceProblem.of(asked))
    return Bound(proven.value * times.unit, proven.name)


def _wording(problem: Problem, unit: NDArray[np.int64]) -> Wording:
    """Return the words for errors of the solver: an item is a sample, or the first of several that stay together."""
    first = np.unique(unit, return_index=True)[1]
    together = first[np.bincount(unit) > 1]
    return Wording(
        GROUPING.names,
        numbers={"sample": lambda item: int(first[item])},
        notes={"sample": lambda number: "with all that stay together with it" if number in together else ""},
    )


def _rearranged(problem: Problem, cut: SequenceGroups, groups: GroupTable) -> GroupTable:
    """Exchange the ranks of groups of one slot and degree so that little crosses nodes; no time changes."""
    node_of_rank, node = problem.topology.node_of_rank, cut.ranks_per_node(problem.topology)
    first_rank, parts = groups.first_rank.copy(), problem.parts
    group, home = groups.group_of_sample[parts.sample], parts.ranks
    order = np.lexsort((groups.first_rank, groups.degree, groups.slot))
    changes = (np.diff(groups.slot[order]) != 0) | (np.diff(groups.degree[order]) != 0)
    # Groups of one slot and degree take the same wherever they are: only these exchange ranks.
    for alike in np.split(order, np.flatnonzero(changes) + 1):
        if len(alike) < 2:
            continue
        starts = groups.first_rank[alike]
        place_of_rank = _places(starts, int(groups.degree[alike[0]]), node, len(node_of_rank))
        member = np.full(len(groups.degree), -1, dtype=np.int32)
        member[alike] = np.arange(len(alike))
        near = (member[group] >= 0) & (place_of_rank[home] >= 0)
        volumes = solvers.group_volumes(
            member[group[near]], place_of_rank[home[near]], parts.volumes[near], len(alike)
        )  # fmt: skip
        found = solvers.rearrange(volumes, node_of_rank[starts])
        first_rank[alike] = starts[found.rank_of_group]
    own = groups.group_of_sample
    return GroupTable.from_samples(groups.slot[own], first_rank[own], groups.degree[own])


def _places(starts: NDArray[np.int32], degree: int, node: int, num_ranks: int) -> NDArray[np.int32]:
    """Return the place that each rank is in, or else one in its node, or else -1."""
    place_of_rank = np.full(num_ranks, -1, dtype=np.int32)
    for place, start in enumerate(starts.tolist()):
        # Ranks of the group's node that are in no such group are near it all the same.
        first = start // node * node
        mine = place_of_rank[first : max(first + node, start + degree)]
        mine[mine < 0] = place
    for place, start in enumerate(starts.tolist()):
        place_of_rank[start : start + degree] = place
    return place_of_rank


def _relocated(
    problem: Problem, cut: SequenceGroups, groups: GroupTable, heights: NDArray[np.int64], settings: PlanSettings
) -> tuple[GroupTable, str]:
    """Let the samples of single ranks start from home, slot by slot; a slot takes at most 1 + eps times its height.

    Returns
    -------
    GroupTable
    str
        Why nothing was relocated where it could be; else empty.
    """
    if 1 not in cut.degrees or problem.topology.num_nodes == 1:
        return groups, ""
    if problem.constraints.keep_together is not None:
        return groups, "samples that stay together are not relocated within sequence groups"
    own = groups.group_of_sample
    slot, rank, degree = groups.slot[own], groups.first_rank[own].copy(), groups.degree[own]
    failed = 0
    for k, height in enumerate(heights.tolist()):
        mine = np.flatnonzero((slot == k) & (degree == 1))
        wide = np.flatnonzero((groups.slot == k) & (groups.degree > 1))
        free = np.ones(problem.topology.num_ranks, dtype=bool)
        for g in wide.tolist():
            free[groups.first_rank[g] : groups.first_rank[g] + groups.degree[g]] = False
        # All ranks wait for the slot's slowest group, so that single ranks may take as long as that.
        cap = min(int((1 + as_share("eps", settings.eps)) * height), INT64_MAX)
        found = _on_single_ranks(problem, cut, mine, np.flatnonzero(free), rank, cap)
        failed += found is None or found.fell_back != ""
        if found is not None:
            rank[mine] = found.rank_of_sample
    why = f"{failed} of {len(heights)} slots could not be balanced from home" if failed else ""
    return GroupTable.from_samples(slot, rank, degree), why


def _on_single_ranks(
    problem: Problem, cut: SequenceGroups, samples: NDArray[np.int64], ranks: NDArray[np.int64],
    rank_of_sample: NDArray[np.int32], cap: int,
) -> Placed | None:  # fmt: skip
    """Assign samples to ranks near home under a cap on their costs; None if that is not found."""
    if not len(samples):
        return Placed(rank_of_sample[samples])
    near = _nearest(ranks, problem.topology.node_of_rank)
    parts = problem.parts.of_samples(samples)
    there = near[parts.ranks] >= 0
    affinity = Affinity.from_parts(parts.sample[there], near[parts.ranks[there]], parts.volumes[there], len(samples))
    node = np.unique(problem.topology.node_of_rank[ranks], return_inverse=True)[1].astype(np.int32)
    home, inside, across = affinity.prices(node)
    sizes = None if cut.tokens_per_rank is None else cut.padded(problem.batch.lengths[samples], 1)
    try:
        found = solvers.relocate(
            problem.costs[samples], home, node, prices=(inside, across), cap=cap,
            sizes=sizes, caps=cut.tokens_per_rank, groups=np.searchsorted(ranks, rank_of_sample[samples]),
        )  # fmt: skip
    except solvers.SolverError:
        return None
    return Placed(ranks[found.rank_of_item].astype(np.int32), found.fell_back)


def _nearest(ranks: NDArray[np.int64], node_of_rank: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return for every rank the place in `ranks` of itself, else of one in its node, in turn; -1 where none is."""
    near = np.full(len(node_of_rank), -1, dtype=np.int32)
    near[ranks] = np.arange(len(ranks))
    first = np.searchsorted(node_of_rank[ranks], node_of_rank, side="left")
    count = np.searchsorted(node_of_rank[ranks], node_of_rank, side="right") - first
    others = np.flatnonzero((near < 0) & (count > 0))
    # Ranks of a node in turn, so that what lies on busy ranks is spread over those that are free.
    near[others] = first[others] + others % count[others]
    return near
