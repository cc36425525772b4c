"""Who does the tasks of a run: this process, processes of this machine, or the Executor that the caller has."""

import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing import connection
from typing import Any

import pyarrow as pa

from balancer.errors import InputError
from solvers.arguments import as_count

Who = int | Executor
"""How many processes of this machine, 1 being this one alone, or an executor: of Ray, of MPI, of Dask."""

Tick = Callable[[int], None]
"""Takes note of so many samples more."""

_METHOD = "forkserver" if sys.platform == "linux" else "spawn"
_PRELOADED = ["balancer.offline.check", "numba"]  # with all that plans and checks
_KILLED = "a process that worked was killed, perhaps because memory ran out; use fewer jobs"
_NOT_BEGUN = (
    "processes ended before they began to work, as what they printed says; a script whose runs have several processes "
    "must be a file, and start them under: if __name__ == '__main__'"
)


class LostWorkerError(InputError):
    """A process that worked was killed, or could not begin; whatever was finished before is kept."""


def cores() -> int:
    """Return how many cores this process may use."""
    # In a container or under taskset a process has fewer cores than the machine.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def done_by(who: Who, work: Callable[..., Any], tasks: Iterable[Any], tick: Tick) -> Iterator[Any]:
    """Have `work` called with every task; yield what it returns, in their order.

    If tasks raise, what the first of them raised is raised, once all before it are done. This process ticks within
    tasks; for others `tick` is called with the ``"samples"`` that a task returns.
    """
    if who == 1:
        for task in tasks:
            yield work(task, tick)
        return
    with nullcontext(who) if isinstance(who, Executor) else Processes(who) as executor:
        given = list[Future[Any]]()
        try:
            given += (executor.submit(_done, work, task) for task in tasks)
            for each in given:
                tick((result := each.result())["samples"])
                yield result
        except BrokenExecutor:
            is_new = isinstance(executor, Processes) and not executor.has_begun()
            raise LostWorkerError(_NOT_BEGUN if is_new else _KILLED) from None
        finally:
            for each in given:
                each.cancel()


def _done(work: Callable[[Any], Any], task: Any) -> Any:
    """Do a task in a worker; what it raises can be read by the driver."""
    try:
        return work(task)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))  # noqa: S301 (its own)
        except Exception:
            raise InputError(f"{type(error).__name__}: {error}") from None
        raise


class Processes(ProcessPoolExecutor):
    """Processes on this machine, by default one a core; one that is killed ends the run.

    On Linux they are forked from a server that has imported what they need, and not from this process, which has
    threads. They end with this process, whatever ends it, and, whatever they do, as soon as they are left.
    """

    def __init__(self, jobs: int | None = None) -> None:
        context = multiprocessing.get_context(_METHOD)
        if _METHOD == "forkserver":
            context.set_forkserver_preload(_PRELOADED)
        self._ours, self._theirs = context.Pipe()
        count = cores() if jobs is None else as_count("jobs", jobs)
        super().__init__(count, context, _begin, (self._theirs, dict(os.environ)))

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Have a worker call a function; the first few calls start one each."""
        with _without_interrupts():
            return super().submit(fn, *args, **kwargs)

    def has_begun(self) -> bool:
        """Whether a worker has begun."""
        return self._ours.poll()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        """End the workers, whatever they do."""
        self._ours.close()  # which they see
        super().shutdown(wait, cancel_futures=cancel_futures)
        self._theirs.close()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Have processes that are started here not hear Ctrl-C, which a terminal sends them too."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(driver: connection.Connection, environment: dict[str, str]) -> None:
    """Make ready in a worker. Its own environment is the one of when the first worker began."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver hears it, and ends this process
    threading.Thread(target=_end_with, args=(driver,), daemon=True).start()
    os.environ.clear()
    os.environ.update(environment)
    pa.set_cpu_count(1)
    with suppress(BrokenPipeError):  # the driver has left, and the thread ends this process
        driver.send_bytes(b"begun")


def _end_with(driver: connection.Connection) -> None:
    """End this process as soon as the driver is gone, or has closed its end."""
    parent = multiprocessing.parent_process()
    connection.wait([driver] if parent is None else [driver, parent.sentinel])
    os._exit(1)
