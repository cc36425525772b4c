"""One line for each way to cut a step: how it is planned, what comes out, and what bound there is on it."""

from collections.abc import Callable
from typing import Any, NamedTuple

from balancer.cuts.context_shards.plan import ShardPlan
from balancer.cuts.context_shards.planner import plan_shards, shards_bound
from balancer.cuts.micro_batches.plan import MicroBatchPlan
from balancer.cuts.micro_batches.planner import plan_slots, slots_bound
from balancer.cuts.pipelines.gap_plan import GapPlan
from balancer.cuts.pipelines.plan import PipelinePlan
from balancer.cuts.pipelines.planner import pipeline_bound, plan_in_gaps, plan_pipelines
from balancer.cuts.sequence_groups.long_short import long_short_bound, plan_long_short
from balancer.cuts.sequence_groups.plan import GroupPlan
from balancer.cuts.sequence_groups.planner import groups_bound, plan_groups
from balancer.cuts.whole_shares import plan_whole_shares, whole_shares_bound
from balancer.plan.dispatch_plan import DispatchPlan
from balancer.problem.problem import Problem
from balancer.problem.settings import PlanSettings
from solvers.bounds import Bound


class Room(NamedTuple):
    """What the package knows of a cut besides what is asked for."""

    plan: Callable[[Problem, Any, PlanSettings], DispatchPlan]
    """Plans a problem that is cut so; given its cut once more."""

    bound: Callable[[Any, PlanSettings, bool], Bound]
    """Bounds a measured plan that was made elsewhere; the flag: whether a search is worth its time."""

    kind: type[DispatchPlan]
    """What comes out."""


ROOMS = {
    "whole_shares": Room(plan_whole_shares, whole_shares_bound, DispatchPlan),
    "micro_batches": Room(plan_slots, slots_bound, MicroBatchPlan),
    "pipelines": Room(plan_pipelines, pipeline_bound, PipelinePlan),
    "gaps": Room(plan_in_gaps, pipeline_bound, GapPlan),
    "sequence_groups": Room(plan_groups, groups_bound, GroupPlan),
    "sequence_parallel": Room(plan_long_short, long_short_bound, GroupPlan),
    "context_shards": Room(plan_shards, shards_bound, ShardPlan),
}
"""The rooms, by :attr:`balancer.problem.cuts.Cut.name`."""


def placed(problem: Problem, *where: Any) -> DispatchPlan:
    """Return samples placed as the problem's cut has them; `where` is what its plans have besides the problem."""
    return ROOMS[problem.cut.name].kind(problem, *where)
