"""What came out of a cut: which sample runs where and when, what that takes, and what else follows; one class a cut."""

from typing import Any

from balancer.plan.placed.gaps import PlacedInGaps
from balancer.plan.placed.groups import PlacedGroups
from balancer.plan.placed.pipelines import PlacedPipelines
from balancer.plan.placed.shards import PlacedShards
from balancer.plan.placed.slots import PlacedSlots
from balancer.plan.placed.whole import WholeShares
from balancer.problem.problem import Problem

__all__ = ["PLACED", "PlacedGroups", "PlacedInGaps", "PlacedPipelines", "PlacedShards", "PlacedSlots", "WholeShares",
           "placed"]  # fmt: skip

PLACED: dict[str, type[WholeShares]] = {
    "whole_shares": WholeShares,
    "micro_batches": PlacedSlots,
    "pipelines": PlacedPipelines,
    "gaps": PlacedInGaps,
    "sequence_groups": PlacedGroups,
    "sequence_parallel": PlacedGroups,
    "context_shards": PlacedShards,
}
"""What comes out, by :attr:`balancer.problem.cuts.Cut.name`."""


def placed(problem: Problem, *where: Any) -> WholeShares:
    """Return samples placed as the problem's cut has them; `where` is what its class takes besides the problem."""
    return PLACED[problem.cut.name](problem, *where)
