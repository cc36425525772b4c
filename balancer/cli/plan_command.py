"""``balancer plan``: every global batch of a log planned, and the plan written."""

import os
import shlex
from collections.abc import Iterator
from typing import Any

from balancer.cli.run import print_run, progress, resumable, say, timed
from balancer.cli.said import said_step
from balancer.cli.settings import open_job, who_works
from balancer.errors import InputError
from balancer.io.log_files import LogPath
from balancer.offline.continued import left_of
from balancer.offline.engines import LostWorkerError
from balancer.offline.run import plan_run
from balancer.problem.setup import Setup
from balancer.report.plan_log import about
from balancer.report.remarks import to_train


def run(
    log: LogPath, out: str | None, overwrite: bool, as_json: bool, continued: str | None,
    at_step: int | None, engine: str | None, jobs: int | None, **options: Any,
) -> None:  # fmt: skip
    """Plan, and write the plan if that is wanted."""
    step = said_step(options)
    workers = who_works(engine, jobs)
    if (continued is None) != (at_step is None):
        raise InputError("--continue PLAN and --at-step S, the steps of PLAN that were trained, need each other")
    order: dict[str, Any] = {}
    if continued is not None and at_step is not None:
        if odd := [name for name in ("epochs", "shuffle") if getattr(step, name) is not None]:
            raise InputError(f"{', '.join(odd)} cannot be combined with --continue, which goes on in the order of PLAN")
        order = left_of(continued, log, at_step)
    job, kept = open_job(log, step, **order), list[int]()
    with (
        timed() as seconds,
        progress(as_json, total=job.num_samples, samples_per_step=job.settings.samples_per_step or 1) as tick,
        resumable(out, (LostWorkerError,)),
        workers as who,
    ):
        steps = plan_run(job.log, job.settings, out, who=who, overwrite=overwrite, tick=tick, kept=kept.append)
    print_run(steps, job.title, seconds[0], as_json, sum(kept), more=about(job.log, job.settings))
    if out is not None and not as_json:
        say(f"plan written to {out}", *_next_steps(out, job.settings.setup))


def _next_steps(out: str, setup: Setup) -> Iterator[str]:
    """Say what to do with a plan that was written."""
    yield "to check it, and see what it gains:"
    yield f"  {shlex.join(['balancer', 'report', out, '--html', f'{os.path.splitext(out.rstrip(os.sep))[0]}.html'])}"
    for what, lines in to_train(out, setup.settings.cut.shares, [phase.name for phase in setup.phases]):
        yield f"{what}:"
        yield from (f"  {line}" for line in lines.split("\n"))
