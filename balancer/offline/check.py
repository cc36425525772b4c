"""A whole plan file checked against its log, by one process or, where it has parts, by many."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import pyarrow as pa

from balancer.errors import InputError, PlanError
from balancer.io.log import LengthLog
from balancer.io.plan_reader import PlanFile, open_plan
from balancer.offline.claims import Claims
from balancer.offline.description import PlanDigest
from balancer.offline.engines import Tick, Who, done_by
from balancer.offline.load import checked_steps, replayed, source_of
from balancer.offline.parts import Part, parts_of
from balancer.offline.settings import LogSettings
from balancer.offline.step_table import StepRows, with_epochs
from balancer.offline.steps import read_rows, rows_of_steps
from balancer.plan.step_plan import StepPlan


def check_run(
    path: str, log: str | os.PathLike[str] | None = None, *, who: Who | None = None,
    tick: Tick = lambda _: None, each: Callable[[StepPlan], None] = lambda _: None,
) -> pa.Table:  # fmt: skip
    """Replay every step of a plan from its log, check it, and return the table of its steps.

    `who` and `tick` are as for :func:`balancer.offline.run.plan_run`. By default this process checks; several need a
    folder of parts. `each` is called with every step plan, in order; by
    this process alone.
    """
    if who not in (None, 1):
        return _in_parts(path, log, who or 1, tick)
    claims = Claims(open_plan(path))
    settings = None if claims.is_saved else claims.settings
    begins = 0 if settings is None else settings.first_sample  # what was trained lies before its rows
    table, epochs = StepRows(), list[dict[str, Any]]()
    for number, plan in enumerate(checked_steps(path, log, on_epoch=lambda found: epochs.append(found.as_json()))):
        short = settings is not None and settings.is_short(plan.num_samples)
        table.add(number, plan, begins + table.samples, short)
        each(plan)
        tick(plan.num_samples)
    return with_epochs(table.table(), epochs)


@dataclass(frozen=True, slots=True)
class _Task:
    """One part to check."""

    plan_file: PlanFile
    log: LengthLog
    settings: LogSettings
    part: Part
    digest: str

    def __str__(self) -> str:
        return f"part {self.part.number}"


def _in_parts(path: str, log: str | os.PathLike[str] | None, who: Who, tick: Tick) -> pa.Table:
    claims = Claims(plan_file := open_plan(path))
    if claims.is_saved or plan_file.parts == (plan_file.path,):
        raise InputError(f"{path}: has no parts for several processes; report on it by one")
    settings, source = claims.settings, source_of(claims, log)
    if settings.across is not None:
        raise InputError(f"{path}: its samples run early or late, which one process checks; report on it by one")
    steps = settings.order(len(read_rows(source, settings))).num_steps
    parts = list(parts_of(steps, settings.steps_per_part))
    return _joined(path, claims, source, settings, parts, who, tick)


def _joined(
    path: str, claims: Claims, source: LengthLog, settings: LogSettings, parts: Sequence[Part], who: Who, tick: Tick
) -> pa.Table:  # fmt: skip
    """Check every part, and put together what they say."""
    there = len(claims.plan_file.parts)
    if there != len(parts):
        raise PlanError(f"{path}: must have {len(parts)} parts of its log's steps, got {there}")
    digest, tables = PlanDigest(settings.steps_per_part), list[pa.Table]()
    for done in done_by(who, _check_part, _tasks(claims.plan_file, source, settings, parts), tick):
        digest.join(done)
        tables.append(done["table"])
    claims.check_digest(digest.hexdigest(), parts[-1].stop_step)
    return pa.concat_tables(tables)


def _tasks(plan_file: PlanFile, log: LengthLog, settings: LogSettings, parts: Sequence[Part]) -> Iterator[_Task]:
    for i, part in enumerate(parts):
        alone = replace(plan_file, parts=plan_file.parts[i : i + 1], groups=plan_file.groups[i : i + 1], headers=())
        yield _Task(alone, log, settings, part, str(plan_file.headers[i]["description"].get("digest")))


def _check_part(task: _Task, tick: Tick = lambda _: None) -> dict[str, Any]:
    """Check one part; return its digest and its stretch of the table of steps."""
    rows = rows_of_steps(task.log, task.settings, steps=task.part[1:])
    # Its row is the one that samples of the part are numbered from, so it is needed before the first plan.
    first = next(rows)
    digest, table = PlanDigest(first_step=task.part.first_step), StepRows()
    plans = replayed(Claims(task.plan_file), task.log, task.settings, chain([first], rows))
    for number, plan in enumerate(plans, task.part.first_step):
        digest.add(plan)
        table.add(number, plan, first.first_row + table.samples, task.settings.is_short(plan.num_samples))
        tick(plan.num_samples)
    if (found := digest.hexdigest()) != task.digest:
        raise PlanError(f"{task.plan_file.parts[0]}: the digest of its steps is {found}, not {task.digest:.80}")
    return {"samples": table.samples, "table": table.table()} | digest.stored()
