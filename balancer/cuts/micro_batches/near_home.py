"""Micro-batches near home: nodes choose slots, slots choose ranks; all that moves is found by relocation.

A schedule for all ranks ignores where samples lie, and most of them cross nodes. Near home few do, in three steps:

1. Samples are relocated to nodes by what slots as high as that schedule's can hold, and those of each node are cut into
   the micro-batches of all its ranks: that says in which slot a sample is.
2. In each slot, what is in it is relocated from home, up to a height for the slot and the cap on tokens. What a node
   has too much of goes to others so, and no more; which rank of a node computes what is settled by the same call.
3. Where a step would then take more than 1 + `eps` times as long, samples keep the slots of the schedule for all ranks,
   and step 2 alone is done.

Ranks that wait once a step need no slots for that: whole shares are relocated, and each rank cuts its own. The same is
done under constraints, which are about shares.
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
from balancer.cuts.micro_batches.dealing import deal
from balancer.cuts.micro_batches.schedules import (
    Schedule,
    cut_at_once,
    partition_ranks,
    priced_by,
    schedule_bound,
    schedule_jointly,
)
from balancer.cuts.near_home import place, prices_of, why_not_relocate
from balancer.plan.reasons import Reason
from balancer.problem.cuts import WHOLE_SHARES
from balancer.problem.cuts.micro_batches import DEALT, MicroBatches
from balancer.problem.problem import Problem
from solvers.arguments import INT64_MAX, as_share
from solvers.errors import SolverError
from solvers.groups import group_loads, members_by_group
from solvers.relocation import LAID

_PARTS = (Fraction(1, 2), Fraction(1, 10), Fraction(1))
"""Parts of the room that nodes or ranks have beyond an even share. With less room, their samples become more alike."""

_PARTS_OF_EPS = (1, 4, 16)
"""Of `eps`, for ranks that wait once a step: with a smaller part ranks are more alike, so that more shares fit."""

_LEAST_ROOM = Fraction(1, 10_000)
"""Of an even share, however little there is."""

_MOST_PLACES = 2**30
"""Where the samples of a node are laid out: samples times micro-batches that are looked at, at most."""

Ints = NDArray[np.int64]
Ranks = NDArray[np.int32]


class _Asked(NamedTuple):
    """Micro-batches that are to be laid out near home."""

    problem: Problem
    cut: MicroBatches
    found: Schedule  # for all ranks, with as many slots as there shall be
    longest: int  # that the step may take
    eps: Fraction
    time_budget: float

    @property
    def fewest(self) -> int:
        """Samples that a rank must have: one for each of its micro-batches."""
        return 0 if self.cut.allow_empty else self.found.num_slots

    @property
    def tokens(self) -> Ints:
        """What samples take of a rank's tokens: int64[n]."""
        return self.cut.taken_tokens(self.problem.costs, self.problem.batch.lengths, self.longest, self.found.num_slots)

    def loads(self, ranks: Ranks, slots: Ranks) -> Ints:
        """Return the cost of each micro-batch: int64[R, K]."""
        laid = self.found._replace(rank_of_sample=ranks, slot_of_sample=slots)
        return laid.slot_loads(self.problem.costs, self.problem.topology.num_ranks)

    def with_one_more(self) -> "_Asked | None":
        """Return the same for the next number of slots that there may be; None if there is no schedule."""
        more = self.found.num_slots + self.cut.multiple_of
        if self.cut.sync == "step":  # where no slot has a height
            return self._replace(found=self.found._replace(num_slots=more))
        try:
            model = schedule_jointly(self.problem, replace(self.cut, count=more), self.time_budget)
        except SolverError:
            return None
        return self._replace(found=Schedule.from_result(model))

    def schedule(self, ranks: Ranks, slots: Ranks, fell_back: str) -> Schedule:
        """Return the schedule, with a bound that holds for its number of slots."""
        held, bound = self.cut.slots_for(int(slots.max(initial=0)) + 1), self.found.bound
        if self.cut.count is not None and held != self.found.num_slots:  # those behind hold nothing
            bound = schedule_bound(self.problem, self.cut, held, self.time_budget)
        return Schedule(ranks, slots, held, bound, fell_back)

    def dealt(self, ranks: Ranks, slots: Ranks) -> Ranks | None:
        """Deal the micro-batches of nodes to their ranks so that these keep to the constraints; None if that fails."""
        problem, k = self.problem, self.found.num_slots
        held = group_loads(problem.batch.lengths, ranks, problem.topology.num_ranks)
        if problem.constraints.violation(ranks, held) is None:
            return ranks
        return deal(problem, self.cut, ranks, slots, k, in_nodes=True)

    def keeps(self, moved: Schedule) -> bool:
        """Whether the schedule keeps to the rules of micro-batches."""
        lengths, num_ranks = self.problem.batch.lengths, self.problem.topology.num_ranks
        laid = lengths, moved.rank_of_sample, moved.slot_of_sample, num_ranks, moved.num_slots
        limits = self.problem.limits
        return self.cut.violation(*laid) is None and (limits is None or limits.violation(*laid) is None)


def relocate_schedule(
    problem: Problem, cut: MicroBatches, found: Schedule, eps: float | Fraction, time_budget: float
) -> Schedule | str:
    """Lay out micro-batches anew with as many samples as possible where they lie, or nearby; or say why not.

    What comes takes at most 1 + `eps` times as long as `found`.
    """
    if reason := why_not_relocate(problem):
        return reason
    if problem.limits is not None and (cut.sync == "step" or not problem.limits.only_add_up):
        return "under limits, micro-batches move whole"
    share, num_ranks = as_share("eps", eps), problem.topology.num_ranks
    taken = cut.makespan(found.slot_loads(problem.costs, num_ranks))
    longest, least = math.floor((1 + share) * taken), math.inf
    laid: Schedule | None = None
    for moved in _laid(_Asked(problem, cut, found, longest, share, time_budget)):
        takes = cut.makespan(moved.slot_loads(problem.costs, num_ranks))
        if takes <= longest and not moved.fell_back:
            return moved
        if takes <= longest:
            laid = laid or moved
        least = min(least, takes)
    if laid is not None:
        return laid
    if least == math.inf:
        return "relocated, the samples of a rank were not found to fit its micro-batches"
    return takes_longer("relocated, micro-batches would take", least, taken, share)


def takes_longer(what: str, least: float, best: int, eps: Fraction) -> Reason:
    """Say that all that is near home takes `least`, which is too long beside the best found."""
    over = float(f"{100 * (least / best - 1):.3g}")  # g shows a large one without exponent
    return Reason(what, over, f"longer than the best found, more than eps = {float(eps):g}")


def _laid(asked: _Asked) -> Iterator[Schedule]:
    """Yield schedules near home in the order in which they are preferred."""
    limited = asked.problem.limits is not None
    whole = asked.cut.sync == "step" or not set(asked.problem.constraints.names()) <= set(DEALT)
    if whole and limited:
        return
    way = _whole_shares if whole else _by_nodes
    yield from way(asked)
    # One slot more has room for what lies unevenly, and costs little; along a pipeline each costs a K-th.
    if asked.cut.count is None and asked.cut.sync != "pipeline" and (more := asked.with_one_more()):
        yield from way(more)
    if not whole and not limited and asked.problem.constraints.names():
        yield from _whole_shares(asked)
    if not whole:
        found = asked.found
        tall = priced_by(asked.problem, asked.cut, _heights(asked)).tall
        yield from _in_slots(asked, found.rank_of_sample, found.slot_of_sample, tall, of_home=True)


# --- nodes choose slots, slots choose ranks --------------------------------------------------------------------------


def _heights(asked: _Asked) -> Ints:
    """Return what the slots may take for a step to take `longest`: int64[K], descending."""
    problem, cut, found = asked.problem, asked.cut, asked.found
    total = int(problem.costs.sum())  # which no micro-batch takes more than
    if cut.sync == "pipeline":
        each = asked.longest // (found.num_slots + cut.pipeline_stages - 1)
        return np.full(found.num_slots, min(each, total), dtype=np.int64)
    heights: Ints = np.sort(asked.loads(found.rank_of_sample, found.slot_of_sample).max(axis=0))[::-1]
    tall = priced_by(problem, cut, heights).tall  # which are full of tokens, whatever their height
    # What the step may take longer goes to the slots that are not full of tokens; the tall ones can use none of it.
    # Never a division by 0: of all slots at least one is not tall.
    more = min((asked.longest - int(heights.sum())) // (found.num_slots - tall), total)
    heights[tall:] = np.maximum(np.minimum(heights[tall:], total - max(more, 0)) + more, 0)
    targets: Ints = np.sort(heights)[::-1]
    return targets


def to_nodes(problem: Problem, costs: Ints, most: int, tokens: Ints, room: int, fewest: int) -> Iterator[Ranks]:
    """Relocate samples to nodes, of equally many ranks, as if nodes were ranks; then again with less room for each.

    A rank has room for `most` of the costs and `room` of the tokens, and needs `fewest` samples.
    """
    node, nodes, size = problem.topology.node_of_rank, problem.topology.num_nodes, problem.topology.node_sizes[0]
    home, _, far = prices_of(problem)
    even, even_tokens = (-(-int(amounts.sum()) // nodes) for amounts in (costs, tokens))
    beyond = max(Fraction(most * size - even), _LEAST_ROOM * even)
    for part in _PARTS:
        cap = max(int(costs.max(initial=0)), int(even + part * beyond))
        # Nodes that are full of tokens could not be cut.
        some = max(int(tokens.max(initial=0)), int(even_tokens + part * max(0, room * size - even_tokens)))
        with contextlib.suppress(SolverError):  # none was found
            yield solvers.relocate(
                costs, node[home], np.arange(nodes), volumes=far, cap=min(cap, INT64_MAX), sizes=tokens,
                caps=min(some, INT64_MAX), counts=(fewest * size, len(costs)), groups=node[home],
            ).rank_of_item  # fmt: skip


def _by_nodes(asked: _Asked) -> Iterator[Schedule]:
    """Relocate samples to nodes, cut those of each into all its micro-batches, and relocate what is in each slot."""
    problem, k, sizes = asked.problem, asked.found.num_slots, asked.problem.topology.node_sizes
    places = len(problem.costs) * sizes[0] * k
    if len(sizes) == 1 or len(set(sizes)) > 1 or places > _MOST_PLACES:
        return
    heights, size = _heights(asked), np.int32(sizes[0])
    priced = priced_by(problem, asked.cut, heights)
    room = min(k * asked.cut.tokens, problem.constraints.max_tokens_per_rank or INT64_MAX)
    for node in to_nodes(problem, priced.costs, priced.most, asked.tokens, room, asked.fewest):
        with contextlib.suppress(SolverError):  # the samples of a node do not fit
            # A node is one rank with the slots of all its ranks: as many of each height.
            bins = cut_at_once(problem, asked.cut, node, sizes[0] * k, np.repeat(heights, size), len(sizes))
            yield from _in_slots(asked, node * size + bins % size, bins // size, priced.tall)


def _in_slots(asked: _Asked, ranks: Ranks, slots: Ranks, tall: int, of_home: bool = False) -> Iterator[Schedule]:
    """Relocate what is in each slot from home, if all slots together can then end in time.

    With `of_home`, ranks and slots know nothing of home yet: then all of `eps` is of use, and the schedule says so if
    what is in a slot could not start from home.
    """
    problem, cut, node = asked.problem, asked.cut, asked.problem.topology.node_of_rank
    loads = asked.loads(ranks, slots)
    caps: Ints | None = _levelled(asked, loads, tall, of_home)
    if caps is None:
        return
    home, near, far = prices_of(problem)
    ranks, tokens = ranks.copy(), np.minimum(problem.batch.lengths, cut.tokens)
    members, offsets, _ = members_by_group(slots, len(caps))
    failed = False
    for k in np.flatnonzero(np.diff(offsets)).tolist():  # empty ones may be millions
        mine, cap = members[offsets[k] : offsets[k + 1]], int(caps[k])
        over, crosses = int(loads[:, k].max()) > cap, int(far[mine][node[ranks[mine]] != node[home[mine]]].sum())
        try:
            found = solvers.relocate(
                problem.costs[mine], home[mine], node, prices=(near[mine], far[mine]), cap=cap, sizes=tokens[mine],
                caps=cut.tokens, counts=(int(not cut.allow_empty), len(mine)), groups=ranks[mine],
            )  # fmt: skip
        except SolverError:
            found = None
        if found is not None and (over or found.inter_node_volume <= crosses):
            ranks[mine] = found.rank_of_item
            failed |= found.fell_back != ""
        elif over:
            return
        else:  # nodes chose better: which of a node's ranks have its micro-batches is all that is left
            ranks[mine] = place(problem.of_samples(mine), ranks[mine], "rearrange", 0).rank_of_sample
            failed = True
    dealt = asked.dealt(ranks, slots)
    if dealt is not None:
        moved = asked.schedule(dealt, slots, LAID if failed and of_home else "")
        if asked.keeps(moved):
            yield moved


def _levelled(asked: _Asked, loads: Ints, tall: int, all_room: bool) -> Ints | None:
    """Return what micro-batches of each slot may cost: int64[K]; None if that is less than they do on the mean.

    Slots that are full of tokens stay as they are. The others may all be as much above their mean as there is time, and
    more than they take now only with `all_room`.
    """
    most: Ints = loads.max(axis=0)
    mean: Ints = -(-loads.sum(axis=0) // len(loads))
    if asked.cut.sync == "pipeline":
        each = asked.longest // (len(mean) + asked.cut.pipeline_stages - 1)
        return np.full(len(mean), min(each, int(loads.sum())), dtype=np.int64) if mean.max() <= each else None
    high = np.argsort(-most, kind="stable")
    mean[high[:tall]] = most[high[:tall]]
    caps, spare = mean, asked.longest - int(mean.sum())
    if spare < 0:
        return None
    while (low := caps < most).any() and spare >= low.sum():  # nobody needs more than it takes now
        more = np.where(low, np.minimum(most - caps, spare // low.sum()), 0)
        caps, spare = caps + more, spare - int(more.sum())
    if all_room:
        caps[high[tall:]] += spare // max(1, len(caps) - tall)
    return caps


# --- whole shares ----------------------------------------------------------------------------------------------------


def _whole_shares(asked: _Asked) -> Iterator[Schedule]:
    """Relocate whole shares under all constraints, and let every rank cut its own.

    Where ranks wait once a step only sums count, so that all of `eps` is of use. Else what a rank can hold of its slots
    is a sum with a price for tokens.
    """
    problem, cut, k, kept = asked.problem, asked.cut, asked.found.num_slots, asked.problem.constraints
    lengths, room, num_ranks = asked.tokens, k * cut.tokens, problem.topology.num_ranks
    volumes: Ints | None = problem.move_volumes
    if kept.max_tokens_per_rank is not None:  # a sample over the cap has a micro-batch of its own, and no more
        room = min(room, kept.max_tokens_per_rank) if (lengths <= cut.tokens).all() else kept.max_tokens_per_rank
        lengths, volumes = problem.batch.lengths, problem.volumes
    costs, groups = problem.costs, asked.found.rank_of_sample
    heights: Ints | None = None
    parts = [(asked.eps / part, Fraction(1)) for part in _PARTS_OF_EPS]
    if cut.sync != "step":
        heights = _heights(asked)
        priced = priced_by(problem, cut, heights)
        costs, even = priced.costs, max(1, int(priced.costs.sum()))
        beyond = max(_LEAST_ROOM, Fraction(priced.most * num_ranks - even, even))
        parts = [(part * beyond, part) for part in sorted(_PARTS, reverse=True)]
        try:
            groups = partition_ranks(problem, kept, asked.time_budget, costs)
        except SolverError:
            return
    if kept.keep_together is None:  # else relocation counts what stays together
        kept = replace(kept, min_samples_per_rank=max(kept.min_samples_per_rank, asked.fewest))
    even = max(-(-int(lengths.sum()) // num_ranks), int(lengths.max(initial=0)))
    for eps, part in parts:
        most = min(room, max(even, int(even + part * (room - even))), INT64_MAX)
        whole = replace(
            problem, batch=replace(problem.batch, lengths=lengths), volumes=volumes, costs=costs, cut=WHOLE_SHARES,
            constraints=replace(kept, max_tokens_per_rank=most), work=None,
        )  # fmt: skip
        with contextlib.suppress(SolverError):  # none is found, or the samples that a rank then has do not fit
            placed = place(whole, groups, "relocate", eps)
            if not placed.whole_groups:
                slots = cut_at_once(problem, cut, placed.rank_of_sample, k, heights)
                yield asked.schedule(placed.rank_of_sample, slots, placed.fell_back)
