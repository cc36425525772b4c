"""Context shards of a step: documents get replicas and packs as samples get ranks and slots; then packs are cut.

Every pack is shared by equally many ranks. So replicas that are even as if each were one rank stay even when their
packs are shared, and a bound on replicas, divided by their ranks, is a bound on shards.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

import solvers
from balancer.cuts.context_shards.plan import ShardPlan
from balancer.cuts.micro_batches.plan import MicroBatchPlan
from balancer.cuts.micro_batches.planner import plan_slots, slots_bound
from balancer.problem.cuts.context_shards import ContextShards
from balancer.problem.placement import Placement
from balancer.problem.problem import Affinity, Problem
from balancer.problem.settings import PlanSettings
from solvers.bounds import Bound
from solvers.errors import SolverError, Wording
from solvers.groups import members_by_group

_WORDING = Wording({"cut.tokens": "pack_tokens"})

Ints = NDArray[np.int64]


def plan_shards(problem: Problem, cut: ContextShards, settings: PlanSettings) -> ShardPlan:
    """Make packs of replicas near home, and divide each among the ranks of its replica."""
    try:
        # As if each replica were one rank. Which documents share a pack is decided before any is cut.
        packs = plan_slots(_of_replicas(problem, cut), cut.packs, settings)
    except SolverError as error:
        raise error.in_words(_WORDING) from None
    pieces = _sharded(problem, cut, packs, settings.time_budget)
    plan = ShardPlan.from_pieces(problem, packs.slot_of_sample, packs.num_slots, *pieces)
    bound = _per_rank(Bound(packs.lower_bound, packs.bound_name), cut)
    return plan.finished(bound, settings, fell_back=packs.fell_back)


def shards_bound(plan: ShardPlan, settings: PlanSettings, search: bool) -> Bound:
    """Return the best bound on packs that were not planned here."""
    cut, problem = plan.cut, _of_replicas(plan.problem, plan.cut)
    replica = plan.target.rank_of_sample // np.int32(cut.degree)
    shape = problem.topology.num_ranks, plan.num_slots
    target = Placement.by_slots(replica, plan.slot_of_sample, *shape)
    packs = MicroBatchPlan(problem, target, plan.slot_of_sample, plan.num_slots, makespan=plan.makespan * cut.degree)
    return _per_rank(slots_bound(packs, settings, search), cut)


def _per_rank(bound: Bound, cut: ContextShards) -> Bound:
    """Return the bound on what the slowest ranks take, from that on whole packs: they have the mean at least."""
    return Bound(-(-bound.value // cut.degree), bound.name)


def _of_replicas(problem: Problem, cut: ContextShards) -> Problem:
    """Return the problem of packs: replicas instead of ranks. What lies on a replica's ranks lies near it."""
    topology, degree, affinity = cut.replicas(problem.topology), np.int32(cut.degree), problem.affinity
    home = Placement.by_sample_order(problem.batch.home.rank_of_sample // degree, topology.num_ranks)
    if affinity is not None:
        affinity = Affinity.from_parts(affinity.sample, affinity.ranks // degree, affinity.volumes, len(problem.costs))
    batch = replace(problem.batch, home=home)
    return replace(problem, batch=batch, topology=topology, cut=cut.packs, affinity=affinity)


def _sharded(
    problem: Problem, cut: ContextShards, packs: MicroBatchPlan, time_budget: float
) -> tuple[Ints, Ints, Ints, Ints]:
    """Divide each pack: sample, start, stop and rank of each piece. Padding belongs to no sample and is left out."""
    masks, node, lengths = cut.masks_of(problem.cost), problem.topology.node_sizes[0], problem.batch.lengths
    bins = packs.target.rank_of_sample * np.int64(packs.num_slots) + packs.slot_of_sample
    members, offsets, _ = members_by_group(bins.astype(np.int32), packs.problem.topology.num_ranks * packs.num_slots)
    found: list[tuple[Ints, Ints, Ints, Ints]] = []
    for pack in np.flatnonzero(np.diff(offsets)).tolist():
        mine = members[offsets[pack] : offsets[pack + 1]]
        first = pack // packs.num_slots * cut.degree
        documents, empty = mine[lengths[mine] > 0], mine[lengths[mine] == 0]
        nothing = np.zeros_like(empty)
        # Documents of no tokens have nothing to divide. They have a place all the same, as every sample has.
        found.append((empty, nothing, nothing, np.full_like(empty, first)))
        if len(documents):
            shards = solvers.context_shards(
                lengths[documents], cut.degree, ranks_per_node=node if cut.degree > node else None, block=cut.block,
                masks=masks, pad=True, time_budget=time_budget,
            )  # fmt: skip
            kept = shards.document < len(documents)  # padding is the last
            sample, start, stop = documents[shards.document[kept]], shards.start[kept], shards.stop[kept]
            found.append((sample, start, stop, first + shards.rank[kept]))
    if not found:
        nothing = np.empty(0, dtype=np.int64)
        return nothing, nothing, nothing, nothing
    sample, start, stop, rank = (np.concatenate(each) for each in zip(*found, strict=True))
    return sample, start, stop, rank
