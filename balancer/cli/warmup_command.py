"""``balancer warmup``: every kernel compiled ahead of time, by as many processes as there are cores."""

import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib.util import find_spec
from typing import Any

from balancer.cli.run import Compiled, progress, say, say_json
from balancer.offline.engines import cores
from balancer.problem.settings import COUNTED_METHODS
from balancer.report.text import counted
from balancer.warming import first_calls

_METHODS_FOR = {"plan": ("auto",), "runtime": ("auto",), "all": COUNTED_METHODS}


def run(purpose: str, jobs: int | None, as_json: bool) -> None:
    """Compile."""
    started = time.perf_counter()
    calls = len(list(_calls(purpose)))
    kernels, seconds = 0, 0.0
    workers = min(jobs or cores(), calls)
    # Fresh processes: a fork of a process with threads, such as the bar's, may hang.
    context = multiprocessing.get_context("spawn")
    with progress(as_json, "first calls made", calls) as tick, ProcessPoolExecutor(workers, mp_context=context) as pool:
        # A call goes to its process as a number: functions made inside others cannot be pickled.
        for done in as_completed([pool.submit(_make, purpose, index) for index in range(calls)]):
            compiled, spent = done.result()
            kernels, seconds = kernels + compiled, seconds + spent
            tick(1)
    elapsed = time.perf_counter() - started
    if as_json:
        say_json({"kernels": kernels, "compile_s": seconds, "processes": workers, "runtime_s": elapsed})
        return
    what = f"{counted(kernels, 'kernel')} compiled" if kernels else "every kernel was in the cache"
    say(f"{what}, {elapsed:.0f} s by {workers} process{'es' * (workers > 1)}")


def _calls(purpose: str) -> Iterator[Callable[[], Any]]:
    yield from first_calls(_METHODS_FOR[purpose])
    if purpose != "plan" and find_spec("torch") is not None:
        from balancer.executor.exchange import compile_runs

        yield compile_runs


def _make(purpose: str, index: int) -> tuple[int, float]:
    """Make one of the calls; return how many kernels that compiled, and the seconds it took."""
    with Compiled.watched(quiet=True) as compiled:
        list(_calls(purpose))[index]()
    return compiled.kernels, compiled.seconds
