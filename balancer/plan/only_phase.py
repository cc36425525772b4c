"""A plan of one phase as the only phase of a step: what files, reports and simulations know."""

from typing import Any

import numpy as np

from balancer.problem.batch import GlobalBatch
from balancer.problem.phases import SINGLE_PHASE, Phase, PhaseItems, default_own
from balancer.problem.settings import PlanSettings
from balancer.problem.setup import Setup


def as_only_phase(plan: Any, bytes_per_element: int = 1) -> tuple[Setup, GlobalBatch, PhaseItems]:
    """Return setup, batch and items of the step plan whose only phase, ``"all"``, is a dispatch plan."""
    kept, lengths = plan.constraints, plan.lengths
    together = None if kept.keep_together is None else "keep_together"
    asked = kept.to_json() | {"keep_together": together}
    prefixes = plan.problem.batch.prefixes
    if kept.prefix is not None:
        asked |= {"prefix": "prefix"}
    if kept.prefix is not None or prefixes is not None:
        asked |= {"prefix_length": "prefix_length"}
    phase = Phase(SINGLE_PHASE, "length", plan.cost, bytes_in=bytes_per_element, **asked)
    settings = PlanSettings(plan.method, plan.placement, eps=plan.eps, cut=plan.cut, stop_at=plan.stop_at)
    own = default_own(lengths, ())
    items = PhaseItems(
        phase, plan.cost, True, np.arange(len(lengths)), lengths, lengths, own, kept.keep_together,
        prefix=kept.prefix or (None if prefixes is None else (None, prefixes)), limits=plan.problem.limits,
    )  # fmt: skip
    batch = GlobalBatch(lengths, plan.home, prefixes=prefixes)
    return Setup(plan.topology, (phase,), settings), batch, items
