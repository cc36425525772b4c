"""What several commands share: options, the loop's bar, and how a summary is printed."""

import contextlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import click

from balancer.errors import InputError
from balancer.io.plan_writer import PlanWriter
from balancer.offline.one_phase import PlanDigest
from balancer.plan.dispatch_plan import DispatchPlan
from balancer.plan.step_plan import StepPlan
from balancer.problem.micro_batches import OVER_LONG, SCHEDULES, MicroBatches
from balancer.report.summary import RunSummary
from solvers import USES_CLOCK

__all__ = ["READY_BUDGET", "PlanJob", "add_options", "budget_option", "compiling", "json_option", "make_ready",
           "method_option", "micro_batch_options", "micro_batches_of", "print_run", "progress", "run_plan",
           "table_console"]  # fmt: skip


READY_BUDGET = 0.1
"""Seconds' worth of work, at most, in the plan that makes the kernels ready."""


@dataclass(frozen=True, slots=True)
class PlanJob:
    """A log to plan, in one phase or several."""

    title: str
    samples_per_step: int
    plans: Iterator[DispatchPlan | StepPlan]
    append: Callable[[PlanWriter, int, int, Any], None]  # step, first row, plan
    describe: Callable[[int, int, PlanDigest], dict[str, Any]]  # steps, samples
    several_items: bool = False
    others: Callable[[], dict[str, RunSummary]] = dict  # other plans of the log to compare with


def add_options(command: Any, options: Iterable[Any]) -> Any:
    """Decorate a command with options, the first of them listed first."""
    for option in reversed(tuple(options)):
        command = option(command)
    return command


json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")


def method_option(methods: Iterable[str]) -> Callable[[Any], Any]:
    """Make an option that names a method."""
    known = f"One of {', '.join(methods)}."
    return click.option("--method", default="auto", show_default=True, metavar="M", help=known)


budget_option = click.option(
    "--time-budget",
    type=float,
    default=0.01,
    show_default=True,
    metavar="S",
    help="Seconds' worth of solver work a step; counted, not timed (but for exact).",
)


def micro_batch_options(command: Any) -> Any:
    """Add how a rank's share is cut into micro-batches."""
    options = (
        click.option("--micro-batch-tokens", type=int, metavar="T", help="Cut shares into micro-batches of at most T."),
        click.option(
            "--schedule", metavar="S", default=None,
            help=f"Where ranks wait for each other with micro-batches: {' | '.join(SCHEDULES)} [default: lockstep].",
        ),
        click.option("--micro-batches", metavar="K", help="How many a rank; or 'fewest' [default: the fastest]."),
        click.option("--min-micro-batches", type=int, metavar="K", help="At least K [default: 1]."),
        click.option("--micro-batches-multiple-of", type=int, metavar="K", help="A multiple of K [default: 1]."),
        click.option("--pipeline-stages", type=int, metavar="P", help="With --schedule pipeline [default: 1]."),
        click.option(
            "--allow-empty-micro-batches", is_flag=True, default=None, help="A micro-batch may hold nothing."
        ),
        click.option("--over-long", metavar="W", help=f"A row over the cap: {' | '.join(OVER_LONG)} [default: error]."),
    )  # fmt: skip
    return add_options(command, options)


_FIELD_OF = {
    "schedule": "schedule",
    "micro_batches": "count",
    "min_micro_batches": "at_least",
    "micro_batches_multiple_of": "multiple_of",
    "pipeline_stages": "pipeline_stages",
    "allow_empty_micro_batches": "allow_empty",
    "over_long": "over_long",
    "encoders": "encoders",
}


def micro_batches_of(options: dict[str, Any]) -> MicroBatches | None:
    """Take the micro-batch options out of all options."""
    tokens = options.pop("micro_batch_tokens")
    given = {name: value for name in _FIELD_OF if (value := options.pop(name, None)) is not None}
    if tokens is None:
        if given:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise InputError(f"{names} needs --micro-batch-tokens, the cap on a micro-batch")
        return None
    count = given.get("micro_batches")
    if count is not None and count != "fewest":
        if not re.fullmatch("[0-9]{1,9}", count):
            raise InputError(f"--micro-batches must be a whole number or 'fewest', got {count!r}")
        given["micro_batches"] = int(count)
    return MicroBatches(tokens, **{_FIELD_OF[name]: value for name, value in given.items()})


@contextlib.contextmanager
def slow_start() -> Iterator[None]:
    """Say, to a person who has waited a second, that kernels are being compiled."""
    timer = threading.Timer(1, lambda: _say("compiling kernels, which are then kept on disk ..."))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def compiling() -> Iterator[list[float]]:
    """Measure what compiling kernels takes; a list of that many seconds, or of none, once the context has ended."""
    from numba.core import event

    spent: list[float] = []
    with event.install_timer("numba:compile", spent.append):
        yield spent


def make_ready(plans: Iterator[Any], method: str) -> Any:
    """Make the first plan and return it, so that kernels are compiled, or loaded, before planning is timed.

    What cannot be planned raises here as it would later. None for methods that read the clock.
    """
    if method in USES_CLOCK:
        return None
    with slow_start():
        return next(plans, None)


def _say(message: str) -> None:
    if sys.stderr is not None and sys.stderr.isatty():
        print(f"balancer: {message}", file=sys.stderr)  # noqa: T201


def print_run(
    summary: RunSummary,
    title: str,
    runtime_s: float,
    as_json: bool,
    out: str | None,
    others: dict[str, RunSummary] | None = None,
    compile_s: float = 0.0,
) -> None:
    """Print what a run amounts to, for a person or a machine; the seconds that kernels took to compile stand apart."""
    runtime_s -= compile_s
    if as_json:
        document = summary.as_json(runtime_s) | ({"compile_s": compile_s} if compile_s else {})
        if others:
            document["other_placements"] = {name: other.as_json(0)["phases"] for name, other in others.items()}
        click.echo(json.dumps(document, indent=2))
        return
    from balancer.report.table import print_placements, print_summary

    console = table_console()
    print_summary(console, summary, title, runtime_s, compile_s)
    if others:
        print_placements(console, {"": summary, **others})
    if out is not None:
        console.print(f"plan written to {out}", markup=False, highlight=False, soft_wrap=True)


def table_console() -> Any:
    """Return a terminal that is wide enough for a table."""
    from rich.console import Console

    from balancer.report.table import NARROWEST

    console = Console(emoji=False)
    console.width = max(console.width, NARROWEST)
    return console


@contextlib.contextmanager
def progress(quiet: bool) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error once a second has passed, if a person is looking."""
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.completed:,} samples planned"), TimeElapsedColumn()
    bar = Progress(*columns, console=Console(stderr=True, emoji=False), transient=True)
    task = bar.add_task("planning", total=None)
    begun = time.perf_counter()
    running = False

    def tick(samples: int) -> None:
        nonlocal running
        if not running and time.perf_counter() - begun > 1:
            bar.start()
            running = True
        bar.advance(task, samples)

    try:
        yield tick
    finally:
        if running:
            bar.stop()


def run_plan(job: PlanJob, log: str, out: str | None, as_json: bool) -> None:
    """Plan every step of a log, write the plan if asked to, and print what it is worth."""
    if out is not None and os.path.exists(out) and os.path.samefile(log, out):
        raise InputError(f"{out}: the plan would overwrite its log; choose another --out")
    started = time.perf_counter()
    summary, digest = RunSummary(), PlanDigest()
    writing = contextlib.nullcontext() if out is None else PlanWriter(out, item_column=job.several_items)
    with writing as writer, progress(as_json) as tick, compiling() as compiled:
        for step, plan in enumerate(job.plans):
            if writer is not None:
                digest.add(plan)
                job.append(writer, step, summary.rows, plan)
            summary.add_step(plan)
            tick(plan.num_samples)
        if summary.steps == 0:
            raise InputError(f"{log}: holds fewer rows than one global batch of {job.samples_per_step}: no steps")
        if writer is not None:
            writer.close(job.describe(summary.steps, summary.samples, digest))
    runtime_s = time.perf_counter() - started
    print_run(summary, job.title, runtime_s, as_json, out, job.others(), compile_s=sum(compiled))
