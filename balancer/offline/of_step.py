"""From a step file and a log to how that log is planned."""

import os
from collections.abc import Mapping
from typing import Any

from balancer.deferral.across_steps import AcrossSteps
from balancer.errors import InputError, PlanError
from balancer.io.logs import LengthLog, choose_length, default_columns
from balancer.io.plan_reader import open_plan
from balancer.offline.claims import Claims
from balancer.offline.load import source_of
from balancer.offline.settings import LogSettings
from balancer.problem.setup import Setup
from balancer.problem.step_file import StepFile

__all__ = ["check_made_by", "settings_of_step"]


def settings_of_step(
    step: StepFile, log: LengthLog, deferral: Mapping[str, Any] | None = None, **beside: Any
) -> LogSettings:
    """Return how a log is planned by a step file; `beside` are fields of :class:`LogSettings` that win.

    So are those of `deferral`, keywords of :meth:`AcrossSteps.from_options`.

    InputError names what is missing, or what only the command line takes.
    """
    if "layout" in step.top:
        raise InputError(
            f"{step.place('', '', 'layout')}: a layout is planned by the command line: balancer plan --step"
        )
    length = None
    if step.is_single and not (step.phases and {"length", "items"} & set(step.phases[0])):
        length = "+".join(default_columns(log))
    elif step.is_single and "length" in step.phases[0]:
        choose_length(log, step.phases[0]["length"])
    given: dict[str, Any] = {
        name: step.top[name] for name in ("batch_per_rank", "home", "drop_last") if name in step.top
    }
    given |= {name: value for name, value in beside.items() if value is not None}
    across = AcrossSteps.from_options(**step.across() | dict(deferral or {}))
    if "batch_per_rank" not in given and (across is None or across.step_tokens is None):
        step.need("batch_per_rank")
    return LogSettings(
        Setup(step.topology(), step.as_phases(length), step.settings()),
        **{"batch_per_rank": None} | given,
        across=across,
    )


def check_made_by(plan: str | os.PathLike[str], step: StepFile, log: str | os.PathLike[str] | None = None) -> None:
    """Raise PlanError if a plan was made by another step than that of a file; it names what differs."""
    claims = Claims(open_plan(plan))
    found = claims.settings
    asked = settings_of_step(step, source_of(claims, log), epochs=found.epochs, shuffle=found.shuffle)
    mine, theirs = asked.to_json(), found.to_json()
    if odd := [name for name in mine if mine[name] != theirs.get(name)]:
        raise PlanError(f"{plan}: was not made by {step.path}: {', '.join(odd)} differ")
