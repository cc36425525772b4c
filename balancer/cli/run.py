"""What commands share while they run: a first plan, a progress bar, and how a summary is printed."""

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import click

from balancer.report.remarks import warnings_of
from balancer.report.summary import RunSummary
from balancer.report.text import counted, make_safe
from solvers import USES_CLOCK
from solvers._jit import listeners

READY_BUDGET = 0.1
"""Most seconds' worth of work in the plan that makes the kernels ready."""


COMPILED = "balancer.compiled"
"""Where a command's context keeps what it has compiled."""


TOLD_AFTER_S = 1.0
"""Compiling is told once it has taken so long, and again whenever that has doubled."""


_REACHED = "at most some 30"
"""Kernels that Python calls in one command: the table of docs/benchmarks/first_call.md."""


class Compiled:
    """What has been compiled since the command began: kernels, with all that they call."""

    def __init__(self, quiet: bool) -> None:
        self.kernels, self.seconds = 0, 0.0
        self._quiet, self._begun, self._said = quiet, 0.0, 0.0
        self._timer: threading.Timer | None = None

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
            # Nothing is said at the end of a short compilation that nobody was told of.
            if compiled._said:
                what = counted(compiled.kernels, "kernel")
                _say(f"compiled {what} in {compiled.seconds:.0f} s")

    def note(self, begins: bool) -> None:
        """Note that a kernel is being compiled, or that it is done."""
        if begins:
            self._begun = time.perf_counter()
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
        so_far = f"{f'{self.kernels} so far' if self.kernels else 'the first'} of {_REACHED} that a command needs"
        _say(f"compiling kernels that are not on disk yet: {so_far}, {seconds:.0f} s")


@contextlib.contextmanager
def timed() -> Iterator[list[float]]:
    """Measure what runs in the context, less what it compiles: a list of the seconds, once the context has ended."""
    compiled: Compiled = click.get_current_context().meta[COMPILED]
    spent: list[float] = []
    begun, before = time.perf_counter(), compiled.seconds
    yield spent
    spent.append(time.perf_counter() - begun - (compiled.seconds - before))


def make_ready(plans: Iterator[Any], method: str) -> Any:
    """Make the first plan and return it, so that kernels are compiled, or loaded, before planning is timed.

    What cannot be planned raises here as it would later. None for methods that read the clock.
    """
    if method in USES_CLOCK:
        return None
    return next(plans, None)


def _say(message: str) -> None:
    if sys.stderr is not None:
        print(f"balancer: {message}", file=sys.stderr)  # noqa: T201


def print_run(
    summary: RunSummary,
    title: str,
    runtime_s: float,
    as_json: bool,
    kept: int = 0,
    more: dict[str, Any] | None = None,
    doing: str = "planned",
) -> None:
    """Print a run's summary as a table or as JSON; what all kernels took to compile is not in `runtime_s`.

    So many samples were `kept` from a run before. JSON has what is `more`, too. `doing` is what took the seconds.
    """
    compile_s = click.get_current_context().meta[COMPILED].seconds
    if as_json:
        document = summary.as_json(runtime_s) | ({"compile_s": compile_s} if compile_s else {}) | (more or {})
        document |= {"peak_memory_mb": _peak_memory_mb(), "warnings": list(warnings_of(summary))}
        # Parts of an earlier run took no time here: they would make the rate too good.
        samples = summary.samples - kept
        document[f"{doing}_samples_per_second"] = samples / runtime_s or None if runtime_s else None
        document[f"{doing}_ms_a_step"] = 1000 * runtime_s / summary.steps if summary.steps and samples else None
        click.echo(json.dumps(document, indent=2))
        return
    from balancer.report.table import print_summary

    print_summary(table_console(), summary, title, runtime_s, compile_s, kept, _peak_memory_mb(), doing)


def _peak_memory_mb() -> float | None:
    """Return the most memory that this process has held, as a rank that plans by itself would; None on Windows."""
    if sys.platform == "win32":
        return None
    import resource

    of_system = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in KiB; on macOS in bytes
    return of_system / (1e6 if sys.platform == "darwin" else 1e6 / 1024)


def table_console() -> Any:
    """Return a terminal that is wide enough for a table."""
    from rich.console import Console

    from balancer.report.table import NARROWEST

    console = Console(emoji=False, markup=False)  # a phase may be called [/b]
    console.width = max(console.width, NARROWEST)
    return make_safe(console)


class Pace:
    """How far a run is: samples and steps of how many, how fast, and how long it takes still.

    Examples
    --------
    >>> pace = Pace(1000, samples_per_step=100)
    >>> pace.samples += 400
    >>> pace.after(20)
    {'samples': 400, 'of': 1000, 'steps': 4, 'samples_per_second': 20, 'seconds_left': 30}
    >>> pace.told(20)
    '400 of 1,000 samples, 4 steps, 20 samples/s, 0:30 left'
    """

    def __init__(self, total: int | None, samples_per_step: int) -> None:
        self.samples, self.total, self._per_step = 0, total, samples_per_step

    def after(self, seconds: float) -> dict[str, int | None]:
        """Return it as a line for machines has it."""
        rate = self.samples / max(seconds, 1e-9)
        left = None if self.total is None or not rate else round((self.total - self.samples) / rate)
        return {
            "samples": self.samples, "of": self.total, "steps": self.samples // self._per_step,
            "samples_per_second": round(rate), "seconds_left": left,
        }  # fmt: skip

    def told(self, seconds: float) -> str:
        """Return it in words."""
        found = self.after(seconds)
        left = found["seconds_left"]
        of = "" if self.total is None else f" of {self.total:,}"
        rest = "" if left is None else f", {left // 60}:{left % 60:02d} left"
        return (
            f"{self.samples:,}{of} samples, {counted(found['steps'] or 0, 'step')}, "
            f"{found['samples_per_second']:,} samples/s{rest}"
        )


LINE_AFTER_S = 10.0
"""With --json, how often progress is told."""


@contextlib.contextmanager
def progress(as_json: bool, total: int | None = None, samples_per_step: int = 0) -> Iterator[Callable[[int], None]]:
    """Show how many samples are done: a bar for a person who looks, a line every 10 seconds for machines."""
    pace = Pace(total, samples_per_step or 1)
    if as_json and samples_per_step and sys.stderr is not None:
        begun = told = time.perf_counter()

        def note(done: int) -> None:
            nonlocal told
            pace.samples += done
            if time.perf_counter() - told >= LINE_AFTER_S:
                told = time.perf_counter()
                print(json.dumps({"progress": pace.after(told - begun)}), file=sys.stderr, flush=True)  # noqa: T201

        yield note
        return
    with bar_of("samples", total, as_json, pace if samples_per_step else None) as tick:
        yield tick


@contextlib.contextmanager
def bar_of(what: str, total: int | None, quiet: bool, pace: Pace | None = None) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error once a second has passed, if a person is looking."""
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    count = "{task.completed:,}" if total is None else "{task.completed:,} of {task.total:,}"
    middle = [] if total is None else [BarColumn()]
    text = TextColumn(f"{count} {what}") if pace is None else TextColumn("{task.description}")
    columns = SpinnerColumn(), *middle, text, TimeElapsedColumn()
    # Transient: at the end only the result stays on the screen.
    bar = Progress(*columns, console=Console(stderr=True, emoji=False), transient=True)
    task = bar.add_task(what, total=total)
    begun = time.perf_counter()
    running = False

    def tick(done: int) -> None:
        nonlocal running
        # Short runs show no bar at all: one that only flashes tells nothing.
        if not running and time.perf_counter() - begun > 1:
            bar.start()
            running = True
        if pace is not None:
            pace.samples += done
        bar.update(task, advance=done, description=what if pace is None else pace.told(time.perf_counter() - begun))

    try:
        yield tick
    finally:
        if running:
            bar.stop()
