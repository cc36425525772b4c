"""What commands share while they run: what compiles, how far they are, and how they print."""

import contextlib
import json
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import click

from balancer.errors import InputError
from balancer.io._atomic import target_of
from balancer.offline.engines import cores
from balancer.offline.step_table import summary
from balancer.report.remarks import warnings_of
from balancer.report.text import counted, make_safe, printable
from balancer.warming import make_first_plan
from solvers._jit import listeners

COMPILED = "balancer.compiled"
"""Where a command's context keeps what it has compiled."""


TOLD_AFTER_S = 1.0
"""Compiling is told once it has taken so long, and again whenever that has doubled."""


_REACHED = 12
"""About so many kernels are reached by a first plan and the commands that follow it."""

_LONGEST = "relocate_kernel"
"""Half of what a first plan near home compiles; another core compiles the other half meanwhile."""


class Compiled:
    """What has been compiled since the command began: kernels, with all that they call."""

    def __init__(self, quiet: bool) -> None:
        self.kernels, self.seconds = 0, 0.0
        self._quiet, self._begun, self._said = quiet, 0.0, 0.0
        self._timer: threading.Timer | None = None
        self._other_core: multiprocessing.process.BaseProcess | None = None

    @classmethod
    @contextlib.contextmanager
    def watched(cls, quiet: bool = False) -> Iterator["Compiled"]:
        """Count in the context; say on standard error that it compiles, how far it is, and what it took."""
        compiled = cls(quiet)
        listeners.append(compiled.note)
        try:
            yield compiled
        finally:  # also of a command that ends in an error
            listeners.remove(compiled.note)
            if compiled._timer:
                compiled._timer.cancel()
            if compiled._other_core:
                compiled._other_core.terminate()
            # Nothing is said at the end of a short compilation that nobody was told of.
            if compiled._said:
                what = counted(compiled.kernels, "kernel")
                _tell(f"compiled {what} in {compiled.seconds:.0f} s")

    def note(self, kernel: str, begins: bool) -> None:
        """Note that a kernel is being compiled, or that it is done."""
        if begins:
            self._begun = time.perf_counter()
            if kernel == _LONGEST and not self._quiet and cores() > 1:
                # A fresh process: a fork of one with threads may hang. It ends with this one.
                self._other_core = multiprocessing.get_context("spawn").Process(target=make_first_plan, daemon=True)
                self._other_core.start()
            if self._timer is None and not self._quiet:  # the first kernel alone may take many seconds
                self._timer = threading.Timer(min(TOLD_AFTER_S, threading.TIMEOUT_MAX), self._tell_of_first)
                self._timer.daemon = True
                self._timer.start()
            return
        self.kernels += 1
        self.seconds += time.perf_counter() - self._begun
        self._begun = 0.0
        if self.seconds > max(TOLD_AFTER_S, 2 * self._said) and not self._quiet:
            self._tell(self.seconds)

    def _tell_of_first(self) -> None:
        if self._begun and not self._said:
            self._tell(self.seconds + time.perf_counter() - self._begun)

    def _tell(self, seconds: float) -> None:
        self._said = seconds
        of = f" of about {_REACHED}" * (self.kernels < _REACHED)
        _tell(f"First run: compiling kernels ({self.kernels + 1}{of}). They are kept on disk.")


def _tell(message: str) -> None:
    if sys.stderr is not None:
        print(f"balancer: {message}", file=sys.stderr, flush=True)  # noqa: T201


@contextlib.contextmanager
def timed() -> Iterator[list[float]]:
    """Measure what runs in the context, less what it compiles: a list of the seconds, once the context has ended."""
    compiled: Compiled = click.get_current_context().meta[COMPILED]
    spent: list[float] = []
    begun, before = time.perf_counter(), compiled.seconds
    yield spent
    spent.append(time.perf_counter() - begun - (compiled.seconds - before))


def pace(samples: int, total: int | None, samples_per_step: int, seconds: float) -> str:
    """Say how far a run is: samples and steps of how many, how fast, and how long it takes still.

    Examples
    --------
    >>> pace(400, 1000, samples_per_step=100, seconds=20)
    '400 of 1,000 samples, 4 steps, 20 samples/s, 0:30 left'
    """
    rate = samples / max(seconds, 1e-9)
    of = "" if total is None else f" of {total:,}"
    told = f"{samples:,}{of} samples, {counted(samples // samples_per_step, 'step')}, {round(rate):,} samples/s"
    if total is None or not rate:
        return told
    left = round((total - samples) / rate)
    return f"{told}, {left // 60}:{left % 60:02d} left"


LINE_AFTER_S = 10.0
"""With --json, how often progress is told."""


@contextlib.contextmanager
def progress(
    as_json: bool, what: str = "samples", total: int | None = None, samples_per_step: int = 0
) -> Iterator[Callable[[int], None]]:
    """Tell how many are done: on a bar that ends with the run, or, with --json and steps, in a line now and then."""
    looked_at = not as_json and sys.stderr is not None and sys.stderr.isatty()
    begun = told = time.perf_counter()
    done, bar = 0, None

    def tick(more: int) -> None:
        nonlocal done, told, bar
        done, now = done + more, time.perf_counter()
        if looked_at:
            # Short runs show no bar at all: one that only flashes tells nothing.
            if bar is None and now - begun > 1:
                bar = _bar(total)
            if bar is not None:
                of = "" if total is None else f" of {total:,}"
                words = pace(done, total, samples_per_step, now - begun) if samples_per_step else f"{done:,}{of} {what}"
                bar.update(bar.task_ids[0], completed=done, description=words)
        elif as_json and samples_per_step and now - told >= LINE_AFTER_S:
            told = now
            _tell(pace(done, total, samples_per_step, now - begun))

    try:
        yield tick
    finally:
        if bar is not None:
            bar.stop()


def _bar(total: int | None) -> Any:
    """Begin a bar on standard error; at the end only the result stays on the screen."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    middle = [] if total is None else [BarColumn()]
    columns = SpinnerColumn(), *middle, TextColumn("{task.description}"), TimeElapsedColumn()
    bar = Progress(*columns, console=Console(stderr=True, emoji=False), transient=True)
    bar.add_task("", total=total)
    bar.start()
    return bar


# What a command prints --------------------------------------------------------------------------------------------


def say(*lines: str) -> None:
    """Print lines, what others chose in them made safe."""
    for line in lines:
        click.echo(printable(line))


def say_json(document: dict[str, Any]) -> None:
    """Print the document of ``--json``."""
    click.echo(json.dumps(document, indent=2))


def table_console() -> Any:
    """Return a terminal that is wide enough for a table."""
    from rich.console import Console

    from balancer.report.table import NARROWEST

    console = Console(emoji=False, markup=False)  # a phase may be called [/b]
    console.width = max(console.width, NARROWEST)
    return make_safe(console)


def print_run(
    steps: Any,
    title: str,
    runtime_s: float,
    as_json: bool,
    kept: int = 0,
    more: dict[str, Any] | None = None,
    doing: str = "planned",
) -> None:
    """Print what a run's table of steps adds up to, as a table or as JSON.

    What all kernels took to compile is not in `runtime_s`. So many samples were `kept` from a run before. JSON has
    what is `more`, too. `doing` is what took the seconds.
    """
    compile_s = click.get_current_context().meta[COMPILED].seconds
    if as_json:
        document = summary(steps) | {"runtime_s": runtime_s} | (more or {})
        document |= {"compile_s": compile_s} if compile_s else {}
        document |= {"peak_memory_mb": _peak_memory_mb(), "warnings": list(warnings_of(steps))}
        # Parts of an earlier run took no time here: they would make the rate too good.
        samples, count = document["samples"] - kept, document["steps"]
        document[f"{doing}_samples_per_second"] = samples / runtime_s or None if runtime_s else None
        document[f"{doing}_ms_a_step"] = 1000 * runtime_s / count if count and samples else None
        say_json(document)
        return
    from balancer.report.plan_table import print_summary

    print_summary(table_console(), steps, title, runtime_s, compile_s, kept, _peak_memory_mb(), doing)


def _peak_memory_mb() -> float | None:
    """Return the most memory that this process has held, as a rank that plans by itself would; None on Windows."""
    if sys.platform == "win32":
        return None
    import resource

    of_system = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in KiB; on macOS in bytes
    return of_system / (1e6 if sys.platform == "darwin" else 1e6 / 1024)


def check_page(path: str | None) -> None:
    """Raise InputError, before any work, if a page is wanted where none can be written."""
    if path is None:
        return
    # Imported only where something is drawn: charts need an extra, and most commands draw nothing.
    from balancer.report.charts import require_plotting

    require_plotting("--html")
    if os.path.splitext(path)[1].lower() not in (".html", ".htm"):
        raise InputError(f"--html {path}: a page is written as .html; choose such a name")
    target_of(path, "write the page")


def say_page(path: str | None) -> None:
    """Tell a person where the page lies, if one was written."""
    if path is not None:
        say(f"page written to {path}")


@contextlib.contextmanager
def resumable(out: str | None, others: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Let an interrupt, and errors of these kinds, say how to go on from the parts of a folder."""
    from balancer.io.plan_folder import parts_in
    from balancer.offline.target import is_parts

    stopped: tuple[type[BaseException], ...] = (KeyboardInterrupt, *others)
    try:
        yield
    except stopped as error:
        # A single file is written whole or not at all, so it leaves nothing to go on from.
        if out is None or not is_parts(out) or not parts_in(out):
            raise
        remedy = f"the same command goes on from the parts in {out}"
        # Of the same kind, so that a signal or a lost worker still ends the command with its own code.
        raise type(error)("; ".join((*error.args, remedy))) from None
