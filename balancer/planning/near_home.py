"""Near home: groups go to ranks as they come or relabelled so that little moves, or samples start from home.

Groups have no names, so which rank runs which group is free: ``rearrange`` uses that and no more. ``relocate`` goes
another way: it starts from the homes, and moves only what is over a cap slightly above the makespan of the groups.

Micro-batches that are laid out for all ranks at once ignore where samples lie, and most of them cross nodes. Near home
few do: samples are relocated as if there were no micro-batches, and what each rank then has is cut into them. The step
may take longer for it, and where it takes more than 1 + `eps` times as long, the other schedule stays.

Where ranks wait for each other in every slot, each slot has a height, the most that a micro-batch in it may cost: that
in the other schedule, and what `eps` allows beyond. The tall slots are full of tokens before they reach their height.
So what a rank may hold is no sum of costs. With a price for tokens (:func:`solvers.packing.price_tokens`) it becomes
one, and relocation can keep to it. If the samples that a rank then has do not fit its slots, those of a node are laid
out over all slots of its ranks, which are many more. A node that takes too long by itself swaps samples with others,
or, along a pipeline, is laid out together with one.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import solvers
from balancer.plan.reasons import Reason
from balancer.planning.schedules import (
    Schedule,
    Shares,
    cut_at_once,
    mended,
    partition_ranks,
    priced_by,
    schedule_bound,
    schedule_jointly,
)
from balancer.problem.batch import GlobalBatch
from balancer.problem.constraints import not_taken
from balancer.problem.cuts import WHOLE_SHARES
from balancer.problem.cuts.micro_batches import MicroBatches
from balancer.problem.placement import Placement
from balancer.problem.problem import Affinity, Problem
from balancer.problem.topology import Topology
from solvers.arguments import INT64_MAX, as_share
from solvers.errors import SolverError
from solvers.groups import members_by_group
from solvers.packing import schedule_micro_batches

_OF_COUNTS = ("min_samples_per_rank", "max_samples_per_rank")
"""Constraints that relocation takes too, where samples are whole and none are tied together."""

_LEAST_PART = Fraction(1, 10_000)
"""The least part of the makespan that relocation is tried with."""

PARTS = (Fraction(9, 10), Fraction(1, 2), Fraction(1, 10))
"""Parts of the room that ranks or nodes have beyond an even share. With less room, their samples become more alike."""

_TRIED = {
    "micro_batch": ((PARTS[0], False), (PARTS[1], True), (PARTS[2], True)),
    "pipeline": ((PARTS[0], False), (PARTS[1], False), (PARTS[2], True), (PARTS[1], True)),
}
"""By where ranks wait, the parts of the room that nodes are tried with, in this order. With True, nodes that take too
long are mended: they swap samples, or along a pipeline two of them are laid out as one."""

_MOST_JOINED = 16
"""Times that two nodes, or what was joined before, are laid out together."""

_MOST_PLACES = 2**30
"""Where the samples of a node are laid out: samples times micro-batches that are looked at, at most."""


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
    also = _OF_COUNTS if whole and together is None else ()
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
    home, near, far = problem.batch.home.rank_of_sample, problem.move_volumes, problem.move_volumes
    if parts is not None:
        home, near, far = parts.prices(node)
    counts = None
    if constraints.min_samples_per_rank or constraints.max_samples_per_rank is not None:
        most = constraints.max_samples_per_rank
        counts = constraints.min_samples_per_rank, len(costs) if most is None else most
    found = solvers.relocate(
        costs, home, node, prices=(near, far), eps=eps, equal_counts=constraints.equal_counts,
        counts=None if constraints.equal_counts else counts, sizes=sizes, caps=room, groups=groups,
    )  # fmt: skip
    return Placed(found.rank_of_item if unit is None else found.rank_of_item[unit], found.fell_back)


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


class _Asked(NamedTuple):
    """Micro-batches that are to be laid out near home."""

    problem: Problem
    micro_batches: MicroBatches
    found: Schedule
    num_slots: int
    targets: NDArray[np.int64] | None  # the most that those of each slot may cost, descending
    longest: int  # that the step may take
    time_budget: float

    def takes(self, schedule: Schedule) -> int:
        """Return what the step takes."""
        return self.micro_batches.makespan(schedule.slot_loads(self.problem.costs, self.problem.topology.num_ranks))

    def schedule(self, ranks: NDArray[np.int32], slots: NDArray[np.int32], fell_back: str) -> Schedule:
        """Return the schedule, with a bound that holds for its number of slots."""
        held, bound = self.micro_batches.slots_for(int(slots.max(initial=0)) + 1), self.found.bound
        if self.micro_batches.count is not None and held != self.found.num_slots:  # those behind hold nothing
            bound = schedule_bound(self.problem, self.micro_batches, held, self.time_budget)
        return Schedule(ranks, slots, held, bound, fell_back)


def relocate_schedule(
    problem: Problem, micro_batches: MicroBatches, found: Schedule, eps: float | Fraction, time_budget: float
) -> Schedule | str:
    """Lay out the micro-batches anew with as many samples as possible where they lie, or nearby.

    What comes takes at most 1 + `eps` times as long as `found`; or it is said why there is none.
    """
    if reason := why_not_relocate(problem):
        return reason
    costs, num_ranks, part = problem.costs, problem.topology.num_ranks, as_share("eps", eps)
    taken = micro_batches.makespan(found.slot_loads(costs, num_ranks))
    longest, least = math.floor((1 + part) * taken), math.inf
    # Other than in a pipeline one slot more has room for what lies unevenly, and costs little.
    one_more = micro_batches.count is None and micro_batches.sync != "pipeline"  # there each costs a K-th
    for more in range(1 + one_more):
        k = found.num_slots + more * micro_batches.multiple_of
        with contextlib.suppress(SolverError):  # no partition was found that fits k micro-batches
            targets = _targets(problem, micro_batches, found, k, longest, time_budget)
            asked = _Asked(problem, micro_batches, found, k, targets, longest, time_budget)
            for moved in _by_sums(asked, part) if targets is None else _by_slots(asked, targets):
                if asked.takes(moved) <= longest:
                    return moved
                least = min(least, asked.takes(moved))
    if least == math.inf:
        return "relocated, the samples of a rank were not found to fit its micro-batches"
    return takes_longer("relocated, micro-batches would take", least, taken, part)


def takes_longer(what: str, least: float, best: int, eps: Fraction) -> Reason:
    """Say that all that is near home takes `least`, which is too long beside the best found."""
    over = float(f"{100 * (least / best - 1):.3g}")  # g shows a large one without exponent
    return Reason(what, over, f"longer than the best found, more than eps = {float(eps):g}")


def _by_sums(asked: _Asked, eps: Fraction) -> Iterator[Schedule]:
    """Relocate where nothing but a rank's sum counts, so that all of `eps` is of use, and less where shares do not fit.

    With a smaller part relocation leaves ranks more alike in tokens, so that more of their shares fit.
    """
    whole, part = (
        without_slots(asked.problem, asked.micro_batches, asked.num_slots, asked.longest, asked.problem.costs),
        eps,
    )
    while True:
        yield from _in_shares(asked, whole, asked.found.rank_of_sample, part)
        part /= 4
        if part < _LEAST_PART:
            return


def _by_slots(asked: _Asked, targets: NDArray[np.int64]) -> Iterator[Schedule]:
    """Relocate within what ranks of slots as high as `targets` hold; then within what nodes of such ranks do."""
    priced, sizes = priced_by(asked.problem, asked.micro_batches, targets), asked.problem.topology.node_sizes
    whole = without_slots(asked.problem, asked.micro_batches, asked.num_slots, asked.longest, priced.costs)
    # `priced.most` is the most of the priced costs that the slots of one rank can hold.
    even, most = int(priced.costs.sum()), priced.most * len(asked.problem.topology.node_of_rank)
    room = max(_LEAST_PART, Fraction(most - even, max(even, 1)))
    ranks = partition_ranks(whole, asked.problem.constraints, asked.time_budget)
    for part in PARTS:
        over = Fraction(0)
        for moved in _in_shares(asked, with_less_room(whole, part), ranks, part * room):
            yield moved
            over = Fraction(asked.takes(moved), max(1, asked.longest)) - 1
        if over > part * room:  # less room could not make up for that
            break
    places = len(ranks) * sizes[0] * asked.num_slots
    if len(set(sizes)) > 1 or len(sizes) == 1 or sizes[0] == 1 or places > _MOST_PLACES:
        return
    if not asked.problem.constraints.names():
        nodes = of_nodes(whole, sizes[0])
        groups = partition_ranks(nodes, asked.problem.constraints, asked.time_budget)
        # A node is one rank with the slots of all its ranks: as many of each height.
        bins = np.repeat(targets, sizes[0])
        for part, mend in _TRIED[asked.micro_batches.sync]:
            less = with_less_room(nodes, part)
            yield from _in_nodes(asked, less, groups, part * room, bins, mend)


def _in_shares(asked: _Asked, whole: Problem, ranks: NDArray[np.int32], part: Fraction) -> Iterator[Schedule]:
    """Relocate samples between ranks, and let every rank cut its share."""
    placed = place(whole, ranks, "relocate", part)
    if not placed.whole_groups:
        with contextlib.suppress(SolverError):  # the samples that a rank then has do not fit
            where = _with_samples_enough(asked, placed.rank_of_sample)
            slots = cut_at_once(asked.problem, asked.micro_batches, where, asked.num_slots, asked.targets)
            yield asked.schedule(where, slots, placed.fell_back)


def _in_nodes(
    asked: _Asked, nodes: Problem, groups: NDArray[np.int32], part: Fraction, targets: NDArray[np.int64], mend: bool
) -> Iterator[Schedule]:
    """Relocate samples between nodes, lay out those of each, and give the micro-batches to its ranks."""
    placed, size = place(nodes, groups, "relocate", part), len(targets) // asked.num_slots
    if not placed.whole_groups:
        with contextlib.suppress(SolverError):  # the samples that a node then has do not fit
            where, slots = _bins_of_nodes(asked, nodes, placed.rank_of_sample, size, targets, mend)
            found = asked.schedule(where, slots, placed.fell_back)
            # Where ranks wait in every slot, no time changes with the rank of a node that has a micro-batch: so each
            # slot is laid out by itself.
            if asked.takes(found) <= asked.longest:
                where, slots = found.rank_of_sample, found.slot_of_sample
                where = place_slots(asked.problem, slots, where, found.num_slots)
                found = found._replace(rank_of_sample=where)
            yield found


def _bins_of_nodes(
    asked: _Asked, nodes: Problem, node: NDArray[np.int32], size: int, targets: NDArray[np.int64], mend: bool
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Lay out the samples of each node, of `size` ranks, over its micro-batches: rank and slot."""
    problem, micro_batches = asked.problem, asked.micro_batches
    if micro_batches.sync != "pipeline":  # each slot has a height of its own; a pipeline is searched for one height
        own = replace(nodes, batch=replace(nodes.batch, lengths=problem.batch.lengths), costs=problem.costs)
        bins = cut_at_once(own, micro_batches, node, len(targets), targets)
        if mend:
            counted = priced_by(problem, micro_batches, targets[::size]).costs
            node, bins = mended(own, micro_batches, nodes.constraints, Shares(node, bins), counted, targets, True)
        return node * np.int32(size) + bins % np.int32(size), bins // np.int32(size)
    return _searched(asked, node, size, int(targets[0]), nodes.topology.num_ranks, mend)


def _searched(
    asked: _Asked, node: NDArray[np.int32], size: int, height: int, num_nodes: int, mend: bool
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Search the micro-batches of each node for a schedule below `height`: rank and slot.

    Where there is none, and `mend`, that node and the one whose schedule is lowest are searched together.
    """
    ranks, slots = np.empty_like(node), np.empty_like(node)
    heights: dict[tuple[int, ...], int] = {}

    def search(some: tuple[int, ...]) -> None:
        mine = np.flatnonzero(np.isin(node, some))
        part = schedule_micro_batches(
            asked.problem.costs[mine], asked.problem.batch.lengths[mine], size * len(some),
            time_budget=asked.time_budget * len(some) / num_nodes,
            **replace(asked.micro_batches, count=asked.num_slots).solver_keywords(),
        )  # fmt: skip
        of = np.array(some, dtype=np.int32)[part.rank_of_item // size] * np.int32(size)
        ranks[mine], slots[mine] = of + part.rank_of_item % np.int32(size), part.slot_of_item
        heights[some] = int(part.slot_loads.max())

    for first in range(num_nodes):
        search((first,))
    for _ in range(_MOST_JOINED if mend else 0):
        worst, lowest = max(heights, key=heights.__getitem__), min(heights, key=heights.__getitem__)
        # All end in time, or all are joined already.
        if heights[worst] <= height or worst == lowest:
            break
        del heights[worst], heights[lowest]
        search(tuple(sorted(worst + lowest)))
    return ranks, slots


def of_nodes(whole: Problem, size: int) -> Problem:
    """Return the problem as if nodes, of `size` ranks each, were ranks of which none is near another."""
    topology, node = Topology([1] * whole.topology.num_nodes), whole.topology.node_of_rank
    home = Placement.by_sample_order(node[whole.batch.home.rank_of_sample], topology.num_ranks)
    room, affinity = whole.constraints.max_tokens_per_rank or INT64_MAX, whole.affinity
    if affinity is not None:
        affinity = Affinity.from_parts(affinity.sample, node[affinity.ranks], affinity.volumes, len(whole.costs))
    kept = replace(whole.constraints, max_tokens_per_rank=min(room * size, INT64_MAX))
    batch = GlobalBatch(whole.batch.lengths, home)
    return replace(whole, batch=batch, topology=topology, constraints=kept, affinity=affinity)


def with_less_room(whole: Problem, part: Fraction) -> Problem:
    """Return the problem with only `part` of the room for tokens that there is beyond an even share."""
    kept = whole.constraints
    even = -(-int(whole.batch.lengths.sum()) // whole.topology.num_ranks)
    room = max(
        even, int(whole.batch.lengths.max(initial=0)), int(even + part * ((kept.max_tokens_per_rank or 0) - even))
    )
    return replace(whole, constraints=replace(kept, max_tokens_per_rank=min(room, kept.max_tokens_per_rank or room)))


def _targets(
    problem: Problem, micro_batches: MicroBatches, found: Schedule, num_slots: int, longest: int, time_budget: float
) -> NDArray[np.int64] | None:
    """Return what micro-batches may take for a step to take `longest`: int64[K], descending; None: any sum will do."""
    if micro_batches.sync == "step":
        return None
    total = int(problem.costs.sum())  # which no micro-batch takes more than
    if micro_batches.sync == "pipeline":
        each = longest // (num_slots + micro_batches.pipeline_stages - 1)
        return np.full(num_slots, min(each, total), dtype=np.int64)
    numbered = replace(micro_batches, count=num_slots)
    model = (
        found
        if num_slots == found.num_slots
        else Schedule.from_result(schedule_jointly(problem, numbered, time_budget))
    )
    heights: NDArray[np.int64] = np.sort(model.slot_loads(problem.costs, problem.topology.num_ranks).max(axis=0))[::-1]
    tall = priced_by(problem, micro_batches, heights).tall  # which are full of tokens, whatever their height
    # What the step may take longer goes to the slots that are not full of tokens; the tall ones can use none of it.
    # Never a division by 0: of all slots at least one is not tall.
    more = min((longest - int(heights.sum())) // (num_slots - tall), total)
    heights[tall:] = np.maximum(np.minimum(heights[tall:], total - max(more, 0)) + more, 0)
    targets: NDArray[np.int64] = np.sort(heights)[::-1]
    return targets


def without_slots(
    problem: Problem, micro_batches: MicroBatches, num_slots: int, longest: int, costs: NDArray[np.int64]
) -> Problem:
    """Return the problem without micro-batches, but with what a rank's hold, as far as relocation can keep to it."""
    cap = micro_batches.tokens
    given, lengths, batch, volumes = problem.constraints, problem.batch.lengths, problem.batch, problem.volumes
    room = num_slots * cap
    if given.max_tokens_per_rank is None:  # a sample over the cap has a micro-batch of its own, and no more
        taken = micro_batches.taken_tokens(problem.costs, lengths, longest, num_slots)
        batch, volumes = replace(batch, lengths=taken), problem.move_volumes
    else:
        room = min(given.max_tokens_per_rank, room if (lengths <= cap).all() else given.max_tokens_per_rank)
    given = replace(given, max_tokens_per_rank=min(room, INT64_MAX))
    return replace(problem, batch=batch, volumes=volumes, costs=costs, constraints=given, cut=WHOLE_SHARES, work=None)


def _with_samples_enough(asked: _Asked, ranks: NDArray[np.int32]) -> NDArray[np.int32]:
    """Give ranks with fewer samples than micro-batches the cheapest of others that can spare them, best of their node.

    Not under constraints, which this might break, nor where micro-batches may be empty. O(n) a sample given.
    """
    problem, num_slots = asked.problem, asked.num_slots
    counts = np.bincount(ranks, minlength=problem.topology.num_ranks)
    if asked.micro_batches.allow_empty or problem.constraints.names() or counts.min() >= num_slots:
        return ranks
    ranks, node, by_cost = ranks.copy(), problem.topology.node_of_rank, np.argsort(problem.costs, kind="stable")
    for rank in np.flatnonzero(counts < num_slots):
        while counts[rank] < num_slots:
            # The cheapest first: a micro-batch of one cheap sample changes no rank's time by much.
            spare = by_cost[counts[ranks[by_cost]] > num_slots]
            if not len(spare):
                return ranks
            near = spare[node[ranks[spare]] == node[rank]]
            sample = near[0] if len(near) else spare[0]
            counts[ranks[sample]] -= 1
            counts[rank] += 1
            ranks[sample] = rank
    return ranks
