"""``balancer plan``: every global batch of a log planned, and the plan written."""

import os
import shlex
from collections.abc import Iterator
from typing import Any

import click

from balancer.cli.run import print_run, progress, timed
from balancer.cli.said import said_step
from balancer.cli.settings import Job, engine_of, open_job
from balancer.errors import InputError
from balancer.io.log_files import LogPath
from balancer.io.logs import rows_of_files
from balancer.io.store import is_remote
from balancer.offline.continued import left_of
from balancer.offline.engines import Engine, LostWorkerError
from balancer.offline.target import is_parts
from balancer.problem.cuts import Cut
from balancer.report.plan_log import about, plan_opened
from balancer.report.remarks import to_train
from balancer.report.summary import RunSummary
from balancer.report.text import printable

# Each file costs a look at its footer; for more, the bar shows no total rather than start late.
_FEW_FILES = 100


def run(
    log: LogPath, out: str | None, overwrite: bool, resume: bool, as_json: bool, continued: str | None,
    at_step: int | None, **options: Any,
) -> None:  # fmt: skip
    """Plan, and write the plan if that is wanted."""
    step = said_step(options)
    engine = engine_of(options)
    if resume and (out is None or not is_parts(out)):
        raise InputError(f"--resume needs the folder that the killed run wrote: --out DIR{os.sep}")
    if (continued is None) != (at_step is None):
        raise InputError("--continue PLAN and --at-step S, the steps of PLAN that were trained, need each other")
    order: dict[str, Any] = {}
    if continued is not None and at_step is not None:
        if odd := [name for name in ("epochs", "shuffle") if getattr(step, name) is not None]:
            raise InputError(f"{', '.join(odd)} cannot be combined with --continue, which goes on in the order of PLAN")
        order = left_of(continued, log, at_step)
    job = open_job(log, step, **order)
    with timed() as seconds:
        summary, kept = _planned(job, out, engine, resume, overwrite, as_json)
    print_run(summary, job.title, seconds[0], as_json, kept, more=about(job.log, job.settings))
    if out is not None and not as_json:
        for line in (f"plan written to {out}", *_next_steps(out, job.settings.setup.settings.cut)):
            click.echo(printable(line))


def _next_steps(out: str, cut: Cut) -> Iterator[str]:
    """Say what to do with a plan that was written."""
    yield "to check it, and see what it gains:"
    yield f"  {shlex.join(['balancer', 'report', out, '--html', f'{os.path.splitext(out.rstrip(os.sep))[0]}.html'])}"
    for what, lines in to_train(out, cut.shares):
        yield f"{what}:"
        yield from (f"  {line}" for line in lines.split("\n"))


def _planned(
    job: Job, out: str | None, engine: Engine | None, resume: bool, overwrite: bool, as_json: bool
) -> tuple[RunSummary, int]:
    """Plan every step of a log, and write the plan if asked to; also returns how many samples were planned before."""
    kept: list[int] = []
    try:
        with progress(as_json, _num_samples(job), job.settings.samples_per_step) as tick:
            found = plan_opened(
                job.log, job.settings, out, engine=engine, resume=resume, overwrite=overwrite, tick=tick,
                kept=kept.append,
            )  # fmt: skip
    except (KeyboardInterrupt, LostWorkerError) as error:
        if out is None or not is_parts(out):
            raise
        remedy = f"the same command with --resume goes on from the parts in {out}"
        # Of the same kind, so that a signal or a lost worker still ends the command with its own code.
        raise type(error)("; ".join((*error.args, remedy))) from None
    return found, sum(kept)


def _num_samples(job: Job) -> int | None:
    """Return how many samples there are, if a look at a few local files tells."""
    if len(job.log.files) > _FEW_FILES or is_remote(job.log.path):
        return None
    counts = rows_of_files(job.log)
    return None if counts is None else sum(counts) * job.settings.epochs - job.settings.first_sample
