"""Sequence groups of a step: which ranks share which samples, in which slot; then which ranks those are."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import solvers
from balancer.cost import DegreeTimes
from balancer.plan.pieces import GroupTable
from balancer.plan.placed import PlacedGroups
from balancer.planning.found import Found
from balancer.planning.sequence_groups_near_home import rearranged, relocated
from balancer.problem.cuts.sequence_groups import GROUPING, SequenceGroups
from balancer.problem.problem import Problem
from balancer.problem.settings import PlanSettings
from solvers.bounds import Bound
from solvers.errors import UsageError, Wording
from solvers.packing import MOST_BINS

__all__ = ["Units", "groups_bound", "plan_groups"]

_CLOSED_FORM_S = 1e-9  # of a bound's budget, which then is spent by what takes no search


class Units(NamedTuple):
    """What is assigned as one: samples, or those that stay together, one after another in one group."""

    of_sample: NDArray[np.int64]
    times: DegreeTimes
    sizes: NDArray[np.int64]  # [D, units], padding included

    @classmethod
    def of(cls, problem: Problem, cut: SequenceGroups) -> "Units":
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
        raise UsageError(f"{{num_ranks}} * {{num_slots}} must be <= {MOST_BINS} micro-batches, got {ranks} * {slots}")
    units = Units.of(problem, cut)
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
        groups = rearranged(problem, cut, groups, settings.objective)
    if settings.placement == "relocate":
        heights = found.slot_times - times.overhead
        groups, fell_back = relocated(problem, cut, groups, heights * times.unit, settings)
    bound = Bound(found.lower_bound * times.unit, found.bound_name)
    return Found(PlacedGroups.of(problem, groups, found.num_slots), lambda _: bound, found.status, fell_back)


def groups_bound(placed: PlacedGroups, makespan: int, settings: PlanSettings, search: bool) -> Bound:
    """Return the closed-form bound on what the slots of a step take together."""
    problem, cut = placed.problem, placed.cut
    times, sizes = Units.of(problem, cut)[1:]
    asked = solvers.SequenceRequest(
        times.times, sizes, overhead=times.overhead, **cut.solver_keywords(problem.topology)
    )
    upper = makespan // times.unit
    proven = solvers.sequence_groups_lower_bound(asked, upper=upper, bound_budget=_CLOSED_FORM_S)
    return Bound(proven.value * times.unit, proven.name)


def _wording(problem: Problem, unit: NDArray[np.int64]) -> Wording:
    """Return what errors of the solver are called here: an item is a sample, or the first of those that go together."""
    first = np.unique(unit, return_index=True)[1]
    together = problem.batch.numbers[first[np.bincount(unit) > 1]]
    return Wording(
        GROUPING.names,
        numbers={"sample": lambda item: int(problem.batch.numbers[first[item]])},
        notes={"sample": lambda number: "with all that stay together with it" if number in together else ""},
    )
