"""From what is said of a step, and a log, to how that log is planned."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from balancer.errors import PlanError
from balancer.io.log import LengthLog, choose_length, default_columns
from balancer.io.plan_reader import open_plan
from balancer.laid_out import LaidOut, laid_out
from balancer.layouts.layout import StepLayout, read_layout
from balancer.layouts.setup import setup_of
from balancer.offline.claims import Claims
from balancer.offline.load import source_of
from balancer.offline.settings import LogSettings
from balancer.problem.across_steps import AcrossSteps
from balancer.problem.phases import SINGLE_PHASE, Phase
from balancer.problem.topology import Topology
from balancer.step import StepFile
from solvers.errors import WordedError


class OfModels(NamedTuple):
    """What models say where phases do not: costs, and work of stages."""

    costs: Mapping[str, Any]  # of phases of which no cost was said
    models: Mapping[str, Any]
    pieces: Mapping[str, int | None]


def settings_of_step(
    step: StepFile, log: LengthLog, *, of_models: OfModels | None = None, phases: tuple[Phase, ...] | None = None,
    topology: Topology | None = None, planned: Mapping[str, Any] | None = None, **of_log: Any,
) -> LogSettings:  # fmt: skip
    """Return how a log is planned by what is said of its steps.

    Phases, topology and fields of :class:`PlanSettings` that callers make themselves win over the tables, and so do
    fields of :class:`LogSettings`. InputError names what is missing.
    """
    of_step = ("batch_per_rank", "home", "drop_last", "epochs", "shuffle")
    given = {name: value for name in of_step if (value := getattr(step, name)) is not None}
    given |= {name: value for name, value in of_log.items() if value is not None}
    across = AcrossSteps.of_said(**step.across())
    if "batch_per_rank" not in given and (across is None or across.step_tokens is None):
        step.need("batch_per_rank")
    found = _laid_out(step)
    step, own = found.step, dict(planned or {})
    costs, models, pieces = of_models or (None, None, None)
    if phases is None:
        phases = step.phases(_length(step, log), costs)
    cut = own.pop("cut", None) or found.cut
    if cut is None:
        with _of_layout(step):
            cut = step.made_cut(models, pieces)
    settings = step.settings(cut)
    if own:
        settings = replace(settings, **own)
    setup = setup_of(topology or step.topology(), phases, settings, found.layout)
    return LogSettings(setup, **{"batch_per_rank": None} | given, across=across)


@contextlib.contextmanager
def _of_layout(step: StepFile) -> Iterator[None]:
    """Let errors name the file of a layout, which says a part of the cut."""
    try:
        yield
    except WordedError as error:
        raise (error.within(step.layout) if isinstance(step.layout, str) else error) from None


def _laid_out(step: StepFile) -> LaidOut:
    layout = step.layout
    if layout is None:
        return LaidOut(step, None, None)
    if isinstance(layout, StepLayout):
        return laid_out(step, layout)
    found = read_layout(layout)
    with _of_layout(step):
        found.check_phases(step.names)
    return laid_out(step, found, layout)


def _length(step: StepFile, log: LengthLog) -> str | None:
    """Return the length of the only phase, where nobody said it and the log tells; check it where somebody did."""
    if not step.is_single:
        return None
    if given := step.of_phases("length"):
        return "+".join(choose_length(log, given[SINGLE_PHASE]))
    return "+".join(default_columns(log))


def check_made_by(plan: str | os.PathLike[str], step: StepFile, log: str | os.PathLike[str] | None = None) -> None:
    """Raise PlanError if a plan was made by another step than that of a file; it names what differs."""
    claims = Claims(open_plan(plan))
    found = claims.settings
    asked = settings_of_step(step, source_of(claims, log), epochs=found.epochs, shuffle=found.shuffle)
    mine, theirs = asked.to_json(), found.to_json()
    if odd := [name for name in mine if mine[name] != theirs.get(name)]:
        raise PlanError(f"{plan}: was not made by {step.path}: {', '.join(odd)} differ")
