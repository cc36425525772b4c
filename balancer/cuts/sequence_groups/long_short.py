"""Long and short: an encoder's items to aligned groups of ranks, and in each the long ones shared."""

from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

import solvers
from balancer.cuts.near_home import Placed, effective, place, why_not_relocate
from balancer.cuts.sequence_groups.plan import GroupPlan
from balancer.cuts.sequence_groups.planner import Units
from balancer.cuts.sequence_groups.shared_room import Held, Room
from balancer.plan.pieces import GroupTable
from balancer.problem.batch import GlobalBatch
from balancer.problem.cuts import WHOLE_SHARES
from balancer.problem.cuts.sequence_groups import LongShort
from balancer.problem.placement import Placement
from balancer.problem.problem import Problem
from balancer.problem.settings import PlanSettings
from balancer.problem.topology import Topology
from solvers.arguments import as_share
from solvers.bounds import Bound
from solvers.types import PartitionResult

Ints = NDArray[np.int64]
# Seconds' worth of work for a group that is searched: the default of `solvers.long_short`.
_GROUP_BUDGET = 0.0002
# Seconds, where the bound alone is asked for: too few for any search.
_NO_SEARCH = 1e-9
# Rounds of groups. The first goes by what items take at least, the second by the rank-time that they took: more where
# they were shared.
_ROUNDS = 2
# Of a group's time by the bound, to be filled from home; the rest is for what sharing loses.
_ROOM = Fraction(31, 32)


def plan_long_short(problem: Problem, cut: LongShort, settings: PlanSettings) -> GroupPlan:
    """Give items to groups of ranks, even in the rank-time that they take at least, then share in each what is long.

    Groups are balanced, and laid near home or filled from there, as ranks are where no item is shared. Under caps they
    get no more than fits if all their ranks share all of it, or, where there is too much for that, what their ranks
    hold together.
    """
    units = Units.from_problem(problem, cut)
    room = Room.from_problem(problem, cut, units.of_sample)
    room.check(problem, cut, units.of_sample)
    bound = _bound(units, cut, room, problem.topology.num_ranks)
    wanted, why = settings.placement, why_not_relocate(problem) if settings.placement == "relocate" else ""
    settings = replace(settings, placement=effective(problem, wanted))
    best = None
    # From what surely fits to what may: the first that gives a plan is kept.
    for held in room.of_groups(cut):
        try:
            best = _planned(problem, cut, units, room, held, bound, settings)
        except solvers.SolverError:
            if not room.names:
                raise
        if best is not None:
            break
    else:
        raise room.none_found(cut, problem.topology.num_ranks)
    plan = GroupPlan.from_table(problem, best.groups, len(cut.degrees))
    return plan.finished(bound, settings, fell_back=best.fell_back or why)


def _planned(
    problem: Problem, cut: LongShort, units: Units, room: Room, held: Held, bound: Bound, settings: PlanSettings
) -> "_Shared | None":
    """Balance groups in a few rounds; return the best plan, None if in every one some group's items do not fit."""
    least = bound.value // units.times.unit
    area, time_room = _least_area(units, cut, room, least)[0], _ROOM * least * cut.size
    rounds: list[_Shared] = []
    while len(rounds) < _ROUNDS:
        area = rounds[-1].area if rounds else area
        groups = _as_ranks(problem, cut, units, area, held)
        placed = _placed(groups, units, area, held, time_room, settings)
        rounds.append(_shared(units, cut, room, placed, groups.topology.num_ranks, least))
        if 0 <= rounds[-1].makespan * units.times.unit <= (1 + as_share("eps", settings.eps)) * bound.value:
            break
    return min((found for found in rounds if found.makespan >= 0), key=lambda found: found.makespan, default=None)


def long_short_bound(plan: GroupPlan, settings: PlanSettings, search: bool) -> Bound:
    """Return a bound on what a step takes, whichever group has which items."""
    problem, cut = plan.problem, cast(LongShort, plan.cut)
    units = Units.from_problem(problem, cut)
    return _bound(units, cut, Room.from_problem(problem, cut, units.of_sample), problem.topology.num_ranks)


def _bound(units: Units, cut: LongShort, room: Room, num_ranks: int) -> Bound:
    """Return the least time that nothing refutes; where there is one group, what is proven of it if that is more.

    ``longest``: an item takes longer at each degree. ``area``: the ranks have less time than the items take at least,
    and the overhead in so many groups as those hold that have to be shared. At degrees of which a rank's share exceeds
    a cap no item is computed.
    """
    times, overhead = units.times.times, units.times.overhead
    allowed = room.allowed

    def needed(target: int) -> int:
        """What all would take, ended evenly, with the least areas by then: no more where the target is later."""
        area, groups = _least_area(units, cut, room, target)
        return -(-(int(area.sum()) + groups * cut.size * overhead) // num_ranks)

    never = np.iinfo(np.int64).max
    ends = np.where(allowed, times + overhead * (np.array(cut.degrees) > 1)[:, None], never)
    longest = int(ends.min(axis=0, initial=never).max(initial=0))
    # What is needed falls as the target rises, as more degrees are quick enough. So the answer lies between the two.
    low, high = longest - 1, max(longest, needed(longest))  # refuted, and not
    while high - low > 1:
        # A target below what even the least areas by `high` need is refuted too: that closes in faster than halves
        # do.
        low = max(low, needed(high) - 1)
        middle = (low + high) // 2
        if middle > low and (most := needed(middle)) > middle:
            low, high = middle, min(high, most)
        else:
            high = max(middle, low + 1)
    bound = Bound(high * units.times.unit, "longest" if high == longest else "area")
    if num_ranks > cut.size:
        return bound
    found = solvers.long_short(
        times[-1], times[:-1], cut.size, degrees=cut.degrees[:-1], overhead=overhead, time_budget=_NO_SEARCH
    )
    better = found.lower_bound * units.times.unit
    return bound if better <= bound.value else Bound(better, found.bound_name)


def _least_area(units: Units, cut: LongShort, room: Room, target: int) -> tuple[Ints, int]:
    """Return the least rank-time of each unit that ends by `target`, as all can; and how many groups share units.

    There are as many groups as are needed to end by then whatever is too long for one rank.
    """
    times, overhead, allowed = units.times.times, units.times.overhead, room.allowed
    areas, never = times * np.array(cut.degrees)[:, None], np.iinfo(np.int64).max
    alone = np.where(allowed[-1] & (times[-1] <= target), areas[-1], never)
    quick = allowed[:-1] & (times[:-1] + overhead <= target)
    shared = np.where(quick, areas[:-1], never).min(axis=0, initial=never)
    least = np.minimum(alone, shared)
    # Only what no rank can end alone by then has to be shared; the overhead is charged for these groups.
    forced = int(shared[(alone == never) & (shared < never)].sum())
    groups = -(-forced // (cut.size * (target - overhead))) if forced else 0
    return least, groups


def _as_ranks(problem: Problem, cut: LongShort, units: Units, area: Ints, held: Held) -> Problem:
    """Return the problem of groups as if each were a rank, a unit's cost its area, on one of its samples."""
    nodes, size = problem.topology.node_sizes, cut.size
    count = problem.topology.num_ranks // size
    whole = all(ranks % size == 0 for ranks in nodes)
    # A group that reaches over a node's end is near nothing, so that each is a node of its own.
    topology = Topology([ranks // size for ranks in nodes] if whole else [1] * count)
    first = np.unique(units.of_sample, return_index=True)[1]
    costs = np.zeros(len(problem.costs), dtype=np.int64)
    costs[first] = area
    home = Placement.by_sample_order(problem.batch.home.rank_of_sample // np.int32(size), count)
    lengths, constraints = held.on_samples(problem, first)
    return replace(
        problem, topology=topology, batch=GlobalBatch(lengths, home), costs=costs, cut=WHOLE_SHARES,
        constraints=constraints, volumes=problem.move_volumes,
    )  # fmt: skip


def _placed(groups: Problem, units: Units, area: Ints, held: Held, room: Fraction, settings: PlanSettings) -> Placed:
    """Make groups of items even in their area and lay them on groups of ranks, or fill these from home up to `room`."""
    even = _even(area, groups.topology.num_ranks, room, settings, held)
    # All of the room may be used: a group is no slower for being filled up to it.
    eps = max(as_share("eps", settings.eps), room / max(1, even.makespan) - 1)
    group_of_sample = even.group_of_item[units.of_sample]
    return place(groups, group_of_sample, settings.placement, eps)


def _even(area: Ints, count: int, room: Fraction, settings: PlanSettings, held: Held) -> PartitionResult:
    """Return even groups, or, to be filled from home, any that are as even as `room` asks."""
    quick, capped = solvers.partition(area, count, "lpt"), len(held.limits) > 0
    # Groups that are filled from home are made anew by relocation: LPT is start enough where it is even enough.
    if settings.placement == "relocate" and quick.makespan <= room and not capped:
        return quick
    keywords: dict[str, Any] = {"sizes": held.amounts.T, "caps": held.limits} if capped else {}
    return solvers.partition(area, count, time_budget=settings.time_budget, stop_at=settings.stop_at, **keywords)


class _Shared(NamedTuple):
    """What of which group's items its ranks share, what the slowest takes, and the rank-time of each unit.

    The makespan is -1 if the items of some group do not fit.
    """

    groups: GroupTable
    makespan: int
    area: Ints
    fell_back: str


def _shared(units: Units, cut: LongShort, room: Room, placed: Placed, count: int, least: int) -> _Shared:
    """Decide in each group what is shared by which of its ranks, given a time that some group takes at least."""
    times, first = units.times.times, np.unique(units.of_sample, return_index=True)[1]
    group = placed.rank_of_sample[first]
    degree, rank, taken = solvers.long_short_groups(
        times[-1], times[:-1], group, count, cut.size, degrees=cut.degrees[:-1], overhead=units.times.overhead,
        enough=least, time_budget=_GROUP_BUDGET, **room.solver_keywords(),
    )  # fmt: skip
    rank += group * np.int32(cut.size)
    slot, of = np.searchsorted(-np.array(cut.degrees), -degree).astype(np.int32), units.of_sample
    area = times[slot, np.arange(len(slot))] * degree
    makespan = -1 if (taken < 0).any() else int(taken.max())
    return _Shared(GroupTable.from_samples(slot[of], rank[of], degree[of]), makespan, area, placed.fell_back)
