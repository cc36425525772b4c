"""Sequence groups near home: groups that are alike exchange their ranks; what single ranks have starts from home."""

import numpy as np
from numpy.typing import NDArray

import solvers
from balancer.plan.pieces import GroupTable
from balancer.problem.cuts.sequence_groups import SequenceGroups
from balancer.problem.problem import Affinity, Problem
from balancer.problem.settings import PlanSettings
from solvers.arguments import INT64_MAX
from solvers.relocation import as_eps

__all__ = ["rearranged", "relocated"]


def rearranged(problem: Problem, cut: SequenceGroups, groups: GroupTable, objective: str) -> GroupTable:
    """Exchange the ranks of groups of one slot and degree so that little crosses nodes; no time changes."""
    node_of_rank, node = problem.topology.node_of_rank, cut.ranks_per_node(problem.topology)
    first_rank, parts = groups.first_rank.copy(), problem.parts
    group, home = groups.group_of_sample[parts.sample], parts.ranks
    order = np.lexsort((groups.first_rank, groups.degree, groups.slot))
    changes = (np.diff(groups.slot[order]) != 0) | (np.diff(groups.degree[order]) != 0)
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
        found = solvers.rearrange(
            volumes,
            node_of_rank[starts],
            objective=objective,  # type: ignore[arg-type] # checked in the settings
        )
        first_rank[alike] = starts[found.rank_of_group]
    own = groups.group_of_sample
    return GroupTable.of(groups.slot[own], first_rank[own], groups.degree[own])


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


def relocated(
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
        cap = min(int((1 + as_eps(settings.eps)) * height), INT64_MAX)
        budget = settings.time_budget / len(heights)
        found = _on_single_ranks(problem, cut, mine, np.flatnonzero(free), rank, cap, budget)
        failed += found is None
        if found is not None:
            rank[mine] = found
    why = f"{failed} of {len(heights)} slots could not be balanced from home" if failed else ""
    return GroupTable.of(slot, rank, degree), why


def _on_single_ranks(
    problem: Problem, cut: SequenceGroups, samples: NDArray[np.int64], ranks: NDArray[np.int64],
    rank_of_sample: NDArray[np.int32], cap: int, time_budget: float,
) -> NDArray[np.int32] | None:  # fmt: skip
    """Assign samples to ranks near home under a cap on their costs; None if that is not found."""
    if not len(samples):
        return rank_of_sample[samples]
    near = _nearest(ranks, problem.topology.node_of_rank)
    parts = problem.parts.of_samples(samples)
    there = near[parts.ranks] >= 0
    affinity = Affinity.of(parts.sample[there], near[parts.ranks[there]], parts.volumes[there], len(samples))
    sizes = None if cut.max_tokens_per_rank is None else cut.padded(problem.batch.lengths[samples], 1)
    try:
        found = solvers.relocate(
            problem.costs[samples], None, problem.topology.node_of_rank[ranks], affinity=affinity, cap=cap,
            sizes=sizes, caps=cut.max_tokens_per_rank, groups=np.searchsorted(ranks, rank_of_sample[samples]),
            time_budget=time_budget,
        )  # fmt: skip
    except solvers.SolverError:
        return None
    return ranks[found.rank_of_item].astype(np.int32)


def _nearest(ranks: NDArray[np.int64], node_of_rank: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return for every rank the place in `ranks` of itself, else of one in its node, in turn; -1 where none is."""
    near = np.full(len(node_of_rank), -1, dtype=np.int32)
    near[ranks] = np.arange(len(ranks))
    first = np.searchsorted(node_of_rank[ranks], node_of_rank, side="left")
    count = np.searchsorted(node_of_rank[ranks], node_of_rank, side="right") - first
    others = np.flatnonzero((near < 0) & (count > 0))
    near[others] = first[others] + others % count[others]
    return near
