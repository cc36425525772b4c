"""A whole run: a log planned part by part, by one core or many, and what the parts say put together.

Every part is planned, digested and written by itself, so that it does not matter who does it, or when: a plan is the
same bytes whatever engine made it, and after a kill and a second run.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from balancer._version import __version__
from balancer.deferral.steps import EpochSteps
from balancer.errors import InputError, PlanError
from balancer.io.log import LengthLog
from balancer.io.plan_folder import KEY_DIGITS, PartName, parts_in, remove_parts, written
from balancer.io.plan_format import VERSION, described_in, to_json
from balancer.io.plan_reader import read_footer, read_through
from balancer.io.plan_writer import PlanWriter
from balancer.io.store import as_path
from balancer.offline.description import asked, digest_of, sources_of
from balancer.offline.engines import Tick, Who, cores, done_by
from balancer.offline.parts import Part, parts_of
from balancer.offline.settings import LogSettings
from balancer.offline.step_table import StepRows, restored, stored, with_epochs
from balancer.offline.steps import Rows, plan_rows, read_rows, rows_of_steps
from balancer.offline.target import check_name, check_target, is_parts
from balancer.plan.rows import StepOfLog, append_phase, open_writer
from solvers.errors import UsageError

_LONG = 8  # parts, for which it is worth while to start processes


@dataclass(frozen=True, slots=True)
class _Task:
    """One part to plan, which may be all of the plan; `file` is where it is written, if it is."""

    log: LengthLog
    settings: LogSettings
    part: Part
    key: str = ""
    file: str | None = None
    about: Mapping[str, Any] = field(default_factory=dict)  # what its description says of the whole plan
    rows: Sequence[Rows] | None = None  # its steps, where they are chosen before
    epochs: Sequence[Mapping[str, Any]] = ()  # what was found of epochs, where it is all of the plan

    def __str__(self) -> str:
        return f"part {self.part.number}"


def plan_run(
    log: LengthLog, settings: LogSettings, out: str | None = None, *, who: Who | None = None,
    overwrite: bool = False, tick: Tick = lambda _: None, kept: Tick = lambda _: None,
) -> pa.Table:  # fmt: skip
    """Plan every step of a log, write the plan if `out` says where, and return the table of its steps.

    `out` is a file, or, with a trailing slash or where one exists, a folder of parts, of which those are kept that are
    there. `who` plans: by default processes on all cores if a log is long, and else this one. Several write parts, and
    so no file. `tick` is called with the samples that were planned since; `kept`, too, with those of a
    part that was there. What is at `out`, and is not the plan of the same request, is replaced only to `overwrite` it.
    """
    if settings.across is not None:
        if who not in (None, 1):
            raise UsageError("samples that run early or late are of a whole epoch, which one process looks at",
                             "leave {jobs} and the engine out")  # fmt: skip
        who = 1
    sources, key = list[dict[str, Any]](), ""
    if out is not None:
        check_name(out, log)
        sources = sources_of(log, settings)
        key = _key(sources, settings)
        check_target(out, key, sources, settings, overwrite)
    folder = None if out is None or not is_parts(out) else out
    if (alone := out is not None and folder is None) and who not in (None, 1):
        raise InputError(f"{out}: one file has no parts for several processes; write a folder: {out}{os.sep}")
    epochs, chosen = _Epochs(), None
    if settings.across is not None:  # which samples a step has depends on all others
        chosen = list(rows_of_steps(log, settings, on_epoch=epochs.add))
    steps = settings.order(len(read_rows(log, settings))).num_steps if chosen is None else len(chosen)
    _check_steps(log, settings, steps)
    parts = [Part(0, 0, steps)] if alone else list(parts_of(steps, settings.steps_per_part))
    about = {} if out is None else asked(log, settings, sources, epochs.sizes)
    before, done, left = [] if folder is None else parts_in(folder), dict[int, Any](), list[_Task]()
    for part in parts:
        name, file = PartName(key, part.number, len(parts)), out
        if folder is not None:
            file = os.path.join(folder, str(name))
            if name in before and (there := _whole(file, name)) is not None:
                done[part.number] = there
                tick(there["samples"])
                kept(there["samples"])
                continue
        rows = None if chosen is None else chosen[part.first_step : part.stop_step]
        left.append(_Task(log, settings, part, "" if alone else key, file, about, rows, epochs.found if alone else ()))
    with nullcontext() if folder is None else written(folder, key):
        work = done_by(who or (1 if alone else _suited(len(parts))), _plan_part, left, tick)
        done.update(zip((task.part.number for task in left), work, strict=True))
    if folder is not None:
        # What was replaced goes last: a run that is killed before has lost nothing.
        remove_parts(folder, (part for part in before if (part.key, part.total) != (key, len(parts))))
    return with_epochs(pa.concat_tables([restored(done[part.number]["table"]) for part in parts]), epochs.found)


class _Epochs:
    """What was found of epochs whose samples run early or late."""

    def __init__(self) -> None:
        self.sizes: list[list[int]] = []  # samples of each step, epoch by epoch
        self.found: list[dict[str, Any]] = []

    def add(self, found: EpochSteps) -> None:
        if not found.part:
            self.sizes.append([])
        self.sizes[-1] += found.sizes.tolist()
        self.found.append(found.as_json())


def _suited(parts: int) -> int:
    """Return how many processes plan if nobody says: starting them takes a second or two."""
    return 1 if parts < _LONG else cores()


def _writer(path: str, settings: LogSettings) -> PlanWriter:
    return open_writer(path, settings.setup, nominal=settings.across is not None)


def _check_steps(log: LengthLog, settings: LogSettings, steps: int) -> None:
    if not steps and not settings.samples_per_step:
        raise InputError(f"{log.path}: holds no rows, or fewer than one step's tokens: no steps")
    if not steps:
        raise InputError(f"{log.path}: holds fewer rows than one global batch of {settings.samples_per_step}: no steps")


def _key(sources: Iterable[Mapping[str, Any]], settings: LogSettings) -> str:
    """Return what tells a plan from all others: a hash of source, settings and version, but for names of files."""
    # A log that was moved is the same log, so a run may be gone on from after that.
    contents = [{name: value for name, value in source.items() if name != "file"} for source in sources]
    asked = {"sources": contents, "settings": settings.to_json(), "version": VERSION, "producer": __version__}
    return hashlib.sha256(to_json(asked)).hexdigest()[:KEY_DIGITS]


def _whole(file: str, name: PartName) -> dict[str, Any] | None:
    """Return what a part that is there says of itself; None where it is damaged, and is to be made anew."""
    try:
        _, _, _, header = read_footer(as_path(file))
        about, table = described_in(file, header), header["table_of_steps"]
        restored(table)
        read_through(as_path(file))
    except (InputError, PlanError, KeyError, ValueError):
        return None
    if (header.get("key"), about.get("part")) != (name.key, name.number):
        return None
    return {"samples": about["samples"], "table": table}


def _plan_part(task: _Task, tick: Tick = lambda _: None) -> dict[str, Any]:
    """Plan one part, and write it if it has a file; return how many samples it has, and its table of steps."""
    rows = rows_of_steps(task.log, task.settings, steps=task.part[1:]) if task.rows is None else iter(task.rows)
    if task.file is None:
        _, table = _planned(task, rows, None, tick)
        return {"samples": table.samples, "table": stored(table.table())}
    with _writer(task.file, task.settings) as writer:
        digests, table = _planned(task, rows, writer, tick)
        own: dict[str, Any] = {"steps": table.steps, "samples": table.samples}
        own["digest"] = digest_of(digests, task.settings.steps_per_part)
        more = {"table_of_steps": stored(with_epochs(table.table(), task.epochs))}
        if task.key:
            own |= {"part": task.part.number, "first_step": task.part.first_step}
            more["key"] = task.key
        writer.close({**task.about, **own}, **more)
    return {"samples": table.samples, "table": more["table_of_steps"]}


def _planned(task: _Task, steps: Iterator[Rows], writer: PlanWriter | None, tick: Tick) -> tuple[list[str], StepRows]:
    """Plan the steps of a part; return their digests, which only what is written has, and their rows of the table."""
    digests, table, setup = list[str](), StepRows(), task.settings.setup
    for rows, plan in plan_rows(task.log, task.settings, steps):
        if writer is not None:
            digests.append(plan.digest())
            step = StepOfLog(rows.number, rows.first_row, rows.nominal)
            for phase in plan.phases.values():
                append_phase(writer, step, plan.batch, phase.items, phase.plan, setup)
        table.add(rows.number, plan, rows.first_row, task.settings.is_short(len(rows)))
        tick(plan.num_samples)
    return digests, table
