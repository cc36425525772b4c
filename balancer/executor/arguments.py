"""What a caller gives a dispatcher, read into a setup that is the same in every step."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from balancer.cost import CostModel, parse_cost
from balancer.layouts.setup import AnyLayouts, setup_of
from balancer.problem.constraints import COLUMNS
from balancer.problem.cuts import as_cut
from balancer.problem.phases import CONSTRAINTS, SINGLE_PHASE, Phase
from balancer.problem.settings import PlanSettings
from balancer.problem.setup import Setup
from balancer.problem.topology import Topology
from balancer.step_planner import rehearse
from solvers.errors import UsageError

__all__ = ["ONLY_LENGTH", "as_setup"]

ONLY_LENGTH = "length of the only ragged field"
"""The column of a phase whose length nobody named."""

_PLANNED = tuple(spec.name for spec in fields(PlanSettings))


def as_setup(
    topology: Topology, phases: Sequence[Phase] | Mapping[str, str] | None, cost: str | CostModel, length: str | None,
    settings: Mapping[str, Any], layouts: AnyLayouts | None = None,
    replica_size: int = 1,
) -> Setup:  # fmt: skip
    """Read the phases, or the length, cost and constraints of the only one, and how all are planned.

    A rank's replica group has `replica_size` processes.

    TypeError, ValueError or InfeasibleError says what no step could be planned by.
    """
    known = _PLANNED if phases is not None else (*_PLANNED, *CONSTRAINTS)
    if unknown := sorted(set(settings) - set(known)):
        hint = "; with phases, constraints are those of each Phase" if unknown[0] in CONSTRAINTS else ""
        raise TypeError(f"no setting {unknown[0]!r}; those there are: {', '.join(sorted(known))}{hint}")
    for name in COLUMNS:
        if not isinstance(settings.get(name), str | None):
            raise TypeError(f"{name} must name a column, got {settings[name]!r}")
    given = {name: value for name, value in settings.items() if name in _PLANNED}
    given["placement"] = given.get("placement") or PlanSettings().placement
    given["cut"] = as_cut(given.get("cut"))
    plan = PlanSettings(**given)
    if phases is None:
        kept = {name: value for name, value in settings.items() if name in CONSTRAINTS and value is not None}
        items = length or ONLY_LENGTH
        phases = (Phase(SINGLE_PHASE, items, parse_cost(cost), **kept),)
    elif length is not None or cost != "linear":
        raise ValueError("with phases, lengths and costs are those of each phase: leave length and cost out")
    setup = setup_of(topology, phases, plan, layouts)
    if setup.in_gaps and plan.cut.num_devices != replica_size:
        raise UsageError(
            "encoders in the gaps of pipelines run on the {devices} devices of each: {replica_group} must have as many "
            "processes, got {size}",
            "give the processes of a pipeline as replica_group",
            devices=plan.cut.num_devices, size=replica_size,
        )  # fmt: skip
    rehearse(setup)
    return setup
