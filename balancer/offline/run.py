"""A whole run: a log planned part by part, by one core or many, and what the parts say put together.

Every part is planned, digested and summed up by itself, so that it does not matter who does it, or when: a plan is the
same file, byte for byte, whatever engine made it, and one that was killed and resumed.
"""

import functools
import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from balancer._version import __version__
from balancer.deferral.steps import EpochSteps
from balancer.errors import InputError
from balancer.io.log import LengthLog
from balancer.io.plan_folder import PlanFolder
from balancer.io.plan_format import VERSION, to_json
from balancer.io.plan_writer import PlanWriter
from balancer.offline.across import OnEpoch
from balancer.offline.description import PlanDigest, describe, sources_of
from balancer.offline.engines import Engine, Processes, Serial, Tick, cores
from balancer.offline.parts import Part, num_parts, parts_of
from balancer.offline.settings import LogSettings
from balancer.offline.step_table import StepRows, restored, stored, with_epochs
from balancer.offline.steps import Rows, plan_rows, read_rows, rows_of_steps
from balancer.offline.target import check_target, is_parts
from balancer.plan.rows import StepOfLog, append_phase, open_writer
from solvers.errors import UsageError

_LONG = 8  # parts, for which it is worth while to start processes


@dataclass(frozen=True, slots=True)
class _Run:
    """What is planned."""

    log: LengthLog
    settings: LogSettings


@dataclass(frozen=True, slots=True)
class _Task:
    """One part to plan; `file` is where it is written, if it is a file of its own."""

    log: LengthLog
    settings: LogSettings
    part: Part
    key: str = ""
    file: str | None = None


def plan_run(
    log: LengthLog, settings: LogSettings, out: str | None = None, *, engine: Engine | None = None,
    resume: bool = False, overwrite: bool = False, tick: Tick = lambda _: None, kept: Tick = lambda _: None,
) -> pa.Table:  # fmt: skip
    """Plan every step of a log, write the plan if `out` says where, and return the table of its steps.

    `out` is a file, or, with a trailing slash or where one exists, a folder of parts; with `resume`, parts that a
    killed run has left there are kept. By default processes on all cores plan a long log that can be cut, and else this
    process. Other engines than this process write parts, and so no file. `tick` is called with the samples that were
    planned since; `kept`, too, with those of a part that was there. What is at `out`, and is not the plan of the same
    request, is replaced only to `overwrite` it.
    """
    if settings.across is not None:
        if not isinstance(engine, Serial | None):
            raise UsageError("samples that run early or late are of a whole epoch, which one process looks at",
                             "leave {jobs} and the engine out")  # fmt: skip
        engine = Serial()
    if out is not None:
        check_target(out, log, settings, overwrite or resume)
    if out is None or is_parts(out):
        engine = engine or _suited(log, settings)
        return _in_parts(_Run(log, settings), out, engine, resume, tick, kept)
    engine = engine or Serial()
    if resume or not isinstance(engine, Serial):
        what = "to resume" if resume else "for several processes"
        raise InputError(f"{out}: one file has no parts {what}; write a folder: {out}{os.sep}")
    digest, epochs, parts = PlanDigest(settings.steps_per_part), _Epochs(), list[dict[str, Any]]()
    with _writer(out, settings) as writer:
        for task, rows in _streamed(_Run(log, settings), epochs.add):
            parts.append(_planned(task, rows, writer, tick))
            digest.join(parts[-1])
        steps, samples = _num_steps(log, settings, parts), sum(part["samples"] for part in parts)
        table = _joined(parts, epochs)
        described = describe(log, settings, steps, samples, digest, step_samples=epochs.sizes)
        writer.close(described, table_of_steps=stored(table))
    return table


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


def _suited(log: LengthLog, settings: LogSettings) -> Engine:
    """Return who plans if nobody says: starting processes takes a second or two."""
    short = num_parts(len(read_rows(log, settings)), settings) < _LONG
    return Serial() if short or cores() == 1 else Processes()


def _writer(path: str, settings: LogSettings) -> PlanWriter:
    nominal = settings.across is not None
    return open_writer(path, settings.setup, nominal_column=nominal)


def _joined(parts: Iterable[Mapping[str, Any]], epochs: _Epochs) -> pa.Table:
    """Return the table of the steps of all parts, in order."""
    return with_epochs(pa.concat_tables([restored(part["table_of_steps"]) for part in parts]), epochs.found)


def _num_steps(log: LengthLog, settings: LogSettings, parts: Iterable[Mapping[str, Any]]) -> int:
    """Return how many steps the parts have; InputError if none."""
    steps = sum(part["steps"] for part in parts)
    if not steps and not settings.samples_per_step:
        raise InputError(f"{log.path}: holds no rows, or fewer than one step's tokens: no steps")
    if not steps:
        raise InputError(f"{log.path}: holds fewer rows than one global batch of {settings.samples_per_step}: no steps")
    return int(steps)


def _in_parts(run: _Run, out: str | None, engine: Engine, resume: bool, tick: Tick, kept: Tick) -> pa.Table:
    """Plan a log part by part; write the parts and then their manifest, if there is a folder for them."""
    log, settings = run.log, run.settings
    sources = [] if out is None else sources_of(log, settings)
    key = _key(sources, settings)
    with nullcontext() if out is None else PlanFolder(out, key, resume=resume) as folder:
        done: dict[int, dict[str, Any]] = {}
        epochs = _Epochs()
        found = functools.partial(_found, folder, done, tick, kept)
        tasks = _tasks(run, folder, key, found, epochs.add)
        done.update(engine.run(_plan_part, tasks, tick))
        parts = [done[number] for number in sorted(done)]
        # In the order of parts, not in that in which they were done: digests depend on it.
        digest = PlanDigest(settings.steps_per_part)
        for part in parts:
            digest.join(part)
        steps, samples = _num_steps(log, settings, parts), sum(part["samples"] for part in parts)
        table = _joined(parts, epochs)
        if folder is not None:
            folder.commit(describe(log, settings, steps, samples, digest, sources, epochs.sizes), parts)
    return table


def _key(sources: Iterable[Mapping[str, Any]], settings: LogSettings) -> str:
    """Return what tells a plan from all others: a hash of source, settings and version, but for names of files."""
    # A log that was moved is the same log, so a run may be resumed after that.
    contents = [{name: value for name, value in source.items() if name != "file"} for source in sources]
    asked = {"sources": contents, "settings": settings.to_json(), "version": VERSION, "producer": __version__}
    return hashlib.sha256(to_json(asked)).hexdigest()


def _found(
    folder: PlanFolder | None, done: dict[int, dict[str, Any]], tick: Tick, kept: Tick, number: int
) -> bool:  # fmt: skip
    """Whether a part is there already; then it is noted as done."""
    part = None if folder is None else folder.whole(number)
    if part is not None:
        done[number] = part
        tick(part["samples"])
        kept(part["samples"])
    return part is not None


def _file_of(folder: PlanFolder | None, number: int) -> str | None:
    return None if folder is None else folder.part(number)


def _tasks(
    run: _Run, folder: PlanFolder | None, key: str, found: Callable[[int], bool], on_epoch: OnEpoch
) -> Iterator[tuple[int, Any]]:
    """Yield the parts that are left to do; steps whose samples run early or late are chosen here, all of them."""
    log, settings = run.log, run.settings
    if settings.across is None:
        for part in parts_of(len(read_rows(log, settings)), settings):
            if not found(part.number):
                yield part.number, (_Task(log, settings, part, key, _file_of(folder, part.number)), None)
        return
    for task, rows in _streamed(run, on_epoch):
        number = task.part.number
        if found(number):
            for _ in rows:
                pass
        else:
            yield number, (replace(task, key=key, file=_file_of(folder, number)), rows)


def _streamed(run: _Run, on_epoch: OnEpoch) -> Iterator[tuple[_Task, Iterator[Rows]]]:
    """Yield part after part; the steps of one must be taken before the next part is asked for."""
    log, settings = run.log, run.settings
    steps = rows_of_steps(log, settings, on_epoch=on_epoch)
    for number in itertools.count():
        if (first := next(steps, None)) is None:
            return
        begin, count = number * settings.steps_per_part, settings.steps_per_part
        part = Part(number, begin, begin + count)
        yield _Task(log, settings, part), itertools.chain([first], itertools.islice(steps, count - 1))


def _plan_part(given: tuple[_Task, Iterator[Rows] | None], tick: Tick = lambda _: None) -> dict[str, Any]:
    """Plan one part, and write it if it has a file; return its description."""
    task, rows = given
    if rows is None:
        rows = rows_of_steps(task.log, task.settings, steps=task.part[1:])
    if task.file is None:
        return _planned(task, rows, None, tick)
    with _writer(task.file, task.settings) as writer:
        return writer.close_part(_planned(task, rows, writer, tick))


def _planned(task: _Task, steps: Iterator[Rows], writer: PlanWriter | None, tick: Tick) -> dict[str, Any]:
    """Plan the steps of a part; return what its description says of them."""
    table, setup = StepRows(), task.settings.setup
    digest = PlanDigest(first_step=task.part.first_step)
    for rows, plan in plan_rows(task.log, task.settings, steps):
        if writer is not None:
            digest.add(plan)
            step = StepOfLog(rows.number, rows.first_row, rows.nominal)
            for phase in plan.phases.values():
                append_phase(writer, step, plan.batch, phase.items, phase.plan, setup)
        table.add(rows.number, plan, rows.first_row, task.settings.is_short(len(rows)))
        tick(plan.num_samples)
    about = {"key": task.key, "part": task.part.number, "steps": table.steps, "samples": table.samples}
    return about | digest.stored() | {"table_of_steps": stored(table.table())}
