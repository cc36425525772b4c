"""From what is said of a step, and a log, to how that log is planned."""

import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from balancer.deferral.across_steps import AcrossSteps
from balancer.errors import PlanError
from balancer.io.logs import LengthLog, choose_length, default_columns
from balancer.io.plan_reader import open_plan
from balancer.offline.claims import Claims
from balancer.offline.load import source_of
from balancer.offline.settings import LogSettings
from balancer.problem.laid_out import LaidOut, laid_out
from balancer.problem.layout import StepLayout, read_layout
from balancer.problem.phases import Phase
from balancer.problem.settings import PlanSettings
from balancer.problem.setup import Setup
from balancer.problem.step_tables import StepTables
from balancer.problem.topology import Topology


class OfModels(NamedTuple):
    """What models say where phases do not: costs, and work of stages."""

    costs: Mapping[str, Any]  # of phases of which no cost was said
    models: Mapping[str, Any]
    pieces: Mapping[str, int | None]


def settings_of_step(
    step: StepTables, log: LengthLog, *, of_models: OfModels | None = None, phases: tuple[Phase, ...] | None = None,
    topology: Topology | None = None, planned: Mapping[str, Any] | None = None, **of_log: Any,
) -> LogSettings:  # fmt: skip
    """Return how a log is planned by what is said of its steps.

    Phases, topology and fields of :class:`PlanSettings` that callers make themselves win over the tables, and so do
    fields of :class:`LogSettings`. InputError names what is missing.
    """
    given = {name: step.top[name] for name in ("batch_per_rank", "home", "drop_last") if name in step.top}
    given |= {name: value for name, value in of_log.items() if value is not None}
    across = AcrossSteps.from_options(**step.across())
    if "batch_per_rank" not in given and (across is None or across.step_tokens is None):
        step.need("batch_per_rank")
    found = _laid_out(step)
    step, own = found.step, dict(planned or {})
    costs, models, pieces = of_models or (None, None, None)
    if phases is None:
        phases = step.as_phases(_length(step, log), costs)
    cut = own.pop("cut", None) or found.cut or step.as_cut(models, pieces)
    settings = step.settings(cut)
    if own:
        kept = {spec.name: getattr(settings, spec.name) for spec in fields(PlanSettings)}
        settings = PlanSettings(**kept | own)
    setup = Setup(topology or step.topology(), phases, settings, found.layout)
    return LogSettings(setup, **{"batch_per_rank": None} | given, across=across)


def _laid_out(step: StepTables) -> LaidOut:
    layout = step.top.get("layout")
    if layout is None:
        return LaidOut(step, None, None)
    if isinstance(layout, StepLayout):
        return laid_out(step, layout)
    return laid_out(step, read_layout(layout), os.fspath(layout))


def _length(step: StepTables, log: LengthLog) -> str | None:
    """Return the length of the only phase, where nobody said it and the log tells; check it where somebody did."""
    if not step.is_single:
        return None
    keys = step.phases[0] if step.phases else {}
    if "length" in keys:
        return "+".join(choose_length(log, keys["length"]))
    return "+".join(default_columns(log))


def check_made_by(plan: str | os.PathLike[str], step: StepTables, log: str | os.PathLike[str] | None = None) -> None:
    """Raise PlanError if a plan was made by another step than that of a file; it names what differs."""
    claims = Claims(open_plan(plan))
    found = claims.settings
    asked = settings_of_step(step, source_of(claims, log), epochs=found.epochs, shuffle=found.shuffle)
    mine, theirs = asked.to_json(), found.to_json()
    if odd := [name for name in mine if mine[name] != theirs.get(name)]:
        raise PlanError(f"{plan}: was not made by {step.path}: {', '.join(odd)} differ")
