"""Sequence groups of a step: which ranks share which samples, in which slot; then which ranks those are.

Near home, groups of one slot and degree are placed as ranks are, so that samples start from home among them.
"""

from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import solvers
from balancer.cost import DegreeTimes
from balancer.cuts.near_home import place
from balancer.cuts.sequence_groups.plan import GroupPlan
from balancer.plan.pieces import GroupTable
from balancer.problem.cuts.sequence_groups import GROUPING, SequenceGroups
from balancer.problem.problem import Affinity, Problem
from balancer.problem.settings import PlanSettings
from balancer.problem.topology import Topology
from solvers.arguments import as_share
from solvers.bounds import Bound
from solvers.errors import UsageError, Wording
from solvers.grouping import SequenceProblem, closed_form
from solvers.groups import group_loads
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


def plan_groups(problem: Problem, cut: SequenceGroups, settings: PlanSettings) -> GroupPlan:
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
        groups, fell_back = _near_home(problem, cut, groups, found.slot_times, settings)
    bound = Bound(found.lower_bound * times.unit, found.bound_name)
    plan = GroupPlan.from_table(problem, groups, found.num_slots)
    return plan.finished(bound, settings, status=found.status, fell_back=fell_back)


def groups_bound(plan: GroupPlan, settings: PlanSettings, search: bool) -> Bound:
    """Return the closed-form bound on what the slots of a step take together."""
    problem, cut = plan.problem, plan.cut
    times, sizes = Units.from_problem(problem, cut)[1:]
    keywords = cut.solver_keywords(problem.topology)
    proven = closed_form(SequenceProblem.of(times.times, sizes, overhead=times.overhead, **keywords))
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


def _near_home(
    problem: Problem, cut: SequenceGroups, groups: GroupTable, slot_times: NDArray[np.int64], settings: PlanSettings
) -> tuple[GroupTable, str]:
    """Place what groups of one slot and degree have as if each group were a rank: only these take equally long for it.

    All ranks wait for the slowest group of a slot, so that each may take 1 + eps times as long as that. In one node
    groups exchange ranks, and no more.

    Returns
    -------
    GroupTable
    str
        Why samples did not start from home where they could; else empty.
    """
    own, node_of_rank = groups.group_of_sample, problem.topology.node_of_rank
    times = problem.cost.degree_times(problem.batch.lengths, cut.degrees, len(node_of_rank))
    heights = slot_times - times.overhead
    slot, first_rank, degree = groups.slot[own], groups.first_rank[own].copy(), groups.degree[own]
    placement = settings.placement if problem.topology.num_nodes > 1 else "rearrange"
    failed = set()
    order = np.lexsort((degree, slot))
    changes = (np.diff(slot[order]) != 0) | (np.diff(degree[order]) != 0)
    for mine in np.split(order, np.flatnonzero(changes) + 1) if len(order) else []:
        # 1. The groups, and what lies on which of them.
        k, size = int(slot[mine[0]]), int(degree[mine[0]])
        starts = np.unique(first_rank[mine]) if size > 1 else _single_ranks(groups, k, len(node_of_rank))
        group, near = np.searchsorted(starts, first_rank[mine]).astype(np.int32), _nearest(starts, size, node_of_rank)
        parts = problem.parts.of_samples(mine)
        there = near[parts.ranks] >= 0
        lies = Affinity.from_parts(parts.sample[there], near[parts.ranks[there]], parts.volumes[there], len(mine))
        # 2. Whole shares of ranks with as many tokens and as much time.
        costs, whole = times.times[cut.degrees.index(size), mine], problem.of_samples(mine)
        lengths = cut.padded(whole.batch.lengths, size)
        room = None if cut.tokens_per_rank is None else size * cut.tokens_per_rank
        whole = replace(
            whole, batch=replace(whole.batch, lengths=lengths), costs=costs, affinity=lies,
            topology=Topology(np.unique(node_of_rank[starts], return_counts=True)[1].tolist()),
            constraints=replace(whole.constraints, max_tokens_per_rank=room),
        )  # fmt: skip
        taken = max(1, int(group_loads(costs, group, len(starts)).max()))
        more = (1 + as_share("eps", settings.eps)) * int(heights[k]) / taken - 1
        placed = place(whole, group, placement, max(more, Fraction(0)))
        first_rank[mine] = starts[placed.rank_of_sample]
        failed |= {k} if placed.fell_back else set()
    why = f"{len(failed)} of {len(heights)} slots could not be balanced from home" if failed else ""
    return GroupTable.from_samples(slot, first_rank, degree), why


def _single_ranks(groups: GroupTable, slot: int, num_ranks: int) -> NDArray[np.int32]:
    """Return the ranks that are in no group of several in this slot, ascending; some may have nothing."""
    single = np.ones(num_ranks, dtype=bool)
    for g in np.flatnonzero((groups.slot == slot) & (groups.degree > 1)).tolist():
        single[groups.first_rank[g] :][: groups.degree[g]] = False
    return np.flatnonzero(single).astype(np.int32)


def _nearest(starts: NDArray[np.int32], degree: int, node_of_rank: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return for every rank the group that has it, else one that begins in its node, in turn; -1 where none does."""
    near = np.full(len(node_of_rank), -1, dtype=np.int32)
    near[starts[:, None] + np.arange(degree)] = np.arange(len(starts))[:, None]
    first = np.searchsorted(node_of_rank[starts], node_of_rank, side="left")
    count = np.searchsorted(node_of_rank[starts], node_of_rank, side="right") - first
    others = np.flatnonzero((near < 0) & (count > 0))
    # In turn, so that what lies on ranks of other degrees is spread over these.
    near[others] = first[others] + others % count[others]
    return near
