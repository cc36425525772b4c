"""How a step is cut, as callers ask for it: the first of a cut's three faces."""

from collections.abc import Mapping
from typing import Any

from balancer.problem.cuts.context_shards import ContextShards
from balancer.problem.cuts.cut import WHOLE_SHARES, Cut, WholeShares
from balancer.problem.cuts.in_slots import InSlots
from balancer.problem.cuts.micro_batches import MicroBatches
from balancer.problem.cuts.pipeline_stages import PipelineStages
from balancer.problem.cuts.pipelines import Pipelines
from balancer.problem.cuts.sequence_groups import LongShort, SequenceGroups
from solvers.errors import ArgumentTypeError

__all__ = ["CUTS", "WHOLE_SHARES", "ContextShards", "Cut", "InSlots", "LongShort", "MicroBatches",
           "PipelineStages", "Pipelines", "SequenceGroups", "WholeShares", "as_cut", "cut_from_json"]  # fmt: skip

CUTS: dict[str, type[Cut]] = {
    "whole_shares": WholeShares,
    "micro_batches": MicroBatches,
    "pipelines": Pipelines,
    "gaps": Pipelines,
    "sequence_groups": SequenceGroups,
    "sequence_parallel": LongShort,
    "context_shards": ContextShards,
}
"""Requests by :attr:`Cut.name`; other phases may run in the gaps of pipelines."""


def as_cut(cut: Cut | None) -> Cut:
    """Return the cut that a caller asks for; None: whole shares."""
    if cut is None:
        return WHOLE_SHARES
    if not isinstance(cut, Cut):
        raise ArgumentTypeError("cut", "be one of balancer's cuts, such as MicroBatches(8192)", f"{cut!r:.80}")
    return cut


def cut_from_json(found: Mapping[str, Any] | None) -> Cut:
    """Read back what ``to_json`` of a cut wrote; KeyError, TypeError or ValueError if none did."""
    if found is None:
        return WHOLE_SHARES
    if not isinstance(found, Mapping):
        raise TypeError(f"how a step is cut must be an object, got {found!r:.60}")
    said = dict(found)
    return CUTS[said.pop("kind")](**said)
