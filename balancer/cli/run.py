"""What commands do while they run: a first plan, a bar, and how a summary is printed."""

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import click

from balancer.report.summary import RunSummary
from balancer.report.text import make_safe
from solvers import USES_CLOCK

__all__ = ["READY_BUDGET", "compiling", "make_ready", "print_run", "progress", "table_console"]


READY_BUDGET = 0.1
"""Seconds' worth of work, at most, in the plan that makes the kernels ready."""


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

    console = Console(emoji=False, markup=False)  # a phase may be called [/b]
    console.width = max(console.width, NARROWEST)
    return make_safe(console)


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
