"""Micro-batches near home: samples relocated as if there were none, and what each rank then has cut into them.

A schedule laid out for all ranks at once ignores where samples lie, and most of them cross nodes. Here few do; the step
may take longer for it, and where it takes more than 1 + `eps` times as long, the other schedule stays.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from balancer.plan.reasons import Reason
from balancer.planning.micro_batches import Schedule, cut_at_once, partition_ranks, schedule_bound, schedule_jointly
from balancer.planning.ranks import place, why_not_relocate
from balancer.problem.micro_batches import MicroBatches
from balancer.problem.problem import Problem
from solvers.arguments import INT64_MAX
from solvers.errors import SolverError
from solvers.relocation import as_eps

__all__ = ["relocate_schedule"]

_LEAST_PART = 1e-4
"""Of the makespan, that relocation is tried with."""


def relocate_schedule(
    problem: Problem, micro_batches: MicroBatches, found: Schedule, eps: float | Fraction, time_budget: float
) -> Schedule | str:
    """Lay out the micro-batches anew with as many samples as possible where they lie, or nearby.

    Samples are relocated as if there were no micro-batches, and each rank's share is cut.

    Returns
    -------
    Schedule or str
        One that takes at most 1 + `eps` times as long as `found`; or why there is none.
    """
    if reason := why_not_relocate(problem):
        return reason
    costs, num_ranks, part = problem.costs, problem.topology.num_ranks, as_eps(eps)
    taken = micro_batches.makespan(found.slot_loads(costs, num_ranks))
    longest, least = math.floor((1 + part) * taken), math.inf
    one_more = micro_batches.count is None and micro_batches.schedule != "pipeline"  # there each costs a K-th
    for more in range(1 + one_more):
        k = found.num_slots + more * micro_batches.multiple_of
        with contextlib.suppress(SolverError):  # no partition was found that fits k micro-batches
            for moved in _relocated(problem, micro_batches, found, k, part, longest, time_budget):
                takes = micro_batches.makespan(moved.slot_loads(costs, num_ranks))
                if takes <= longest:
                    return moved
                least = min(least, takes)
    if least == math.inf:
        return "relocated, the samples of a rank were not found to fit its micro-batches"
    over = float(f"{100 * (least / taken - 1):.3g}")  # g shows a large one without exponent
    return Reason(
        "relocated, micro-batches would take", over, f"longer than the best found, more than eps = {float(part):g}"
    )


def _relocated(
    problem: Problem,
    micro_batches: MicroBatches,
    found: Schedule,
    num_slots: int,
    eps: Fraction,
    longest: int,
    time_budget: float,
) -> Iterator[Schedule]:
    """Relocate samples within what `num_slots` micro-batches a rank hold, and cut the shares.

    Relocation may have a part of `eps`, large ones first: the less it has, the more alike are the ranks' tokens. All of
    it is of use only where nothing but a rank's sum counts.
    """
    ranks, part = found.rank_of_sample, eps
    targets = _targets(problem, micro_batches, found, num_slots, longest, time_budget)
    if targets is not None:  # a rank's sum may be far below the makespan, and is to be
        ranks, part = partition_ranks(problem, problem.constraints, time_budget), eps / 2
    whole = _whole(problem, micro_batches, num_slots)
    while True:
        placed = place(whole, ranks, "relocate", part, time_budget)
        if not placed.fell_back:
            with contextlib.suppress(SolverError):  # the samples that a rank then has do not fit
                relocated = _with_samples_enough(problem, micro_batches, placed.rank_of_sample, num_slots)
                slots = cut_at_once(problem, micro_batches, relocated, num_slots, targets)
                held, bound = micro_batches.slots_for(int(slots.max(initial=0)) + 1), found.bound
                if micro_batches.count is not None and held != found.num_slots:  # those behind hold nothing
                    bound = schedule_bound(problem, micro_batches, held, time_budget)
                yield Schedule(relocated, slots, held, bound)
        part /= 4
        if part < _LEAST_PART:
            return


def _targets(
    problem: Problem, micro_batches: MicroBatches, found: Schedule, num_slots: int, longest: int, time_budget: float
) -> NDArray[np.int64] | None:
    """Return what micro-batches may take for a step to take `longest`: int64[K], descending; None: any sum will do."""
    if micro_batches.schedule == "step":
        return None
    total = int(problem.costs.sum())  # which no micro-batch takes more than
    if micro_batches.schedule == "pipeline":
        each = longest // (num_slots + micro_batches.pipeline_stages - 1)
        return np.full(num_slots, min(each, total), dtype=np.int64)
    numbered = replace(micro_batches, count=num_slots)
    model = found if num_slots == found.num_slots else Schedule.of(schedule_jointly(problem, numbered, time_budget))
    heights: NDArray[np.int64] = np.sort(model.slot_loads(problem.costs, problem.topology.num_ranks).max(axis=0))[::-1]
    more = min((longest - int(heights.sum())) // num_slots, total)
    targets: NDArray[np.int64] = np.maximum(np.minimum(heights, total - max(more, 0)) + more, 0)
    return targets


def _whole(problem: Problem, micro_batches: MicroBatches, num_slots: int) -> Problem:
    """Return the problem without micro-batches, but with what a rank's hold, as far as relocation can keep to it."""
    given, lengths, cap = problem.constraints, problem.batch.lengths, micro_batches.max_tokens
    room, batch, volumes = num_slots * cap, problem.batch, problem.volumes
    if given.max_tokens_per_rank is None:  # a sample over the cap has a micro-batch of its own, and no more
        batch, volumes = replace(batch, lengths=np.minimum(lengths, cap)), problem.move_volumes
    else:
        room = min(given.max_tokens_per_rank, room if (lengths <= cap).all() else given.max_tokens_per_rank)
    given = replace(given, max_tokens_per_rank=min(room, INT64_MAX))
    return replace(problem, batch=batch, volumes=volumes, constraints=given, micro_batches=None)


def _with_samples_enough(
    problem: Problem, micro_batches: MicroBatches, ranks: NDArray[np.int32], num_slots: int
) -> NDArray[np.int32]:
    """Give ranks with fewer samples than micro-batches the cheapest of others that can spare them, best of their node.

    Not under constraints, which this might break, nor where micro-batches may be empty. O(n) a sample given.
    """
    counts = np.bincount(ranks, minlength=problem.topology.num_ranks)
    if micro_batches.allow_empty or problem.constraints.names() or counts.min() >= num_slots:
        return ranks
    ranks, node, by_cost = ranks.copy(), problem.topology.node_of_rank, np.argsort(problem.costs, kind="stable")
    for rank in np.flatnonzero(counts < num_slots):
        while counts[rank] < num_slots:
            spare = by_cost[counts[ranks[by_cost]] > num_slots]
            if not len(spare):
                return ranks
            near = spare[node[ranks[spare]] == node[rank]]
            sample = near[0] if len(near) else spare[0]
            counts[ranks[sample]] -= 1
            counts[rank] += 1
            ranks[sample] = rank
    return ranks
