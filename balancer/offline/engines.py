"""Engines: who does the tasks of a run. Each takes tasks as they come and yields results as they are done."""

import contextlib
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from itertools import islice
from multiprocessing import connection
from typing import Any, Protocol, Self

import pyarrow as pa

from balancer.errors import InputError
from solvers.arguments import as_count
from solvers.errors import not_installed

Task = tuple[int, Any]
"""Something to do, and its number."""

Tasks = Iterable[Task]
"""What is to do, numbered in ascending order."""

Tick = Callable[[int], None]
"""Takes note of so many samples more."""

_METHOD = "forkserver" if sys.platform == "linux" else "spawn"
_PRELOADED = ["balancer.offline.check", "numba"]  # with all that plans and checks
_CONNECT_S = 10.0


class LostWorkerError(InputError):
    """A process that worked was killed, or could not begin; whatever was finished before is kept."""


def cores() -> int:
    """Return how many cores this process may use."""
    # In a container or under taskset a process has fewer cores than the machine.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Engine(Protocol):
    """Does tasks."""

    def run(self, work: Callable[..., Any], tasks: Tasks, tick: Tick) -> Iterator[Task]:
        """Call `work` with every task; yield number and result of each, in any order.

        If tasks raise, what the one of lowest number raised is raised, once all before it are done.
        """
        ...


class Serial:
    """The process itself, one task after the other."""

    def run(self, work: Callable[..., Any], tasks: Tasks, tick: Tick) -> Iterator[Task]:
        """As :class:`Engine` has it; ticks within tasks."""
        for number, task in tasks:
            yield number, work(task, tick)


class Processes:
    """Processes on this machine, `jobs` of them, of which this is one; by default one a core.

    This one works, too: it hands tasks out between its own. A worker that is killed ends the run.
    """

    def __init__(self, jobs: int | None = None) -> None:
        self.jobs = cores() if jobs is None else as_count("jobs", jobs)

    def run(self, work: Callable[..., Any], tasks: Tasks, tick: Tick) -> Iterator[Task]:
        """As :class:`Engine` has it."""
        if self.jobs == 1:
            yield from Serial().run(work, tasks, tick)
            return
        with _Workers(work, self.jobs - 1) as workers:
            yield from _dealt(tasks, workers, tick, work)


class Cluster:
    """Workers of a Ray cluster; this process hands out.

    Ray moves the tasks of a lost worker or node to others by itself. Its dashboard shows them under names such as
    ``part 17``.

    Parameters
    ----------
    address : str, optional
        What ``ray.init`` takes, such as ``"auto"``. Without it that takes the cluster of ``RAY_ADDRESS``, or one that
        runs on this machine, or starts one for as long as the run takes.
    """

    def __init__(self, address: str | None = None) -> None:
        try:
            import ray
            from ray import init  # noqa: F401 (a folder of that name has none)
        except ImportError:
            raise InputError(not_installed("the engine 'ray'", "Ray", "ray")) from None
        except Exception as error:  # an installation that is damaged
            raise InputError(f"Ray cannot be imported: {type(error).__name__}: {error}") from None
        self._ray, self.address = ray, address

    def run(self, work: Callable[..., Any], tasks: Tasks, tick: Tick) -> Iterator[Task]:
        """As :class:`Engine` has it."""
        is_mine = not self._ray.is_initialized()
        if is_mine:
            self._connect()
        try:
            with _Remote(self._ray, work) as workers:
                yield from _dealt(tasks, workers, tick)
        finally:
            if is_mine:
                self._ray.shutdown()

    def _connect(self) -> None:
        # A library sends nobody's data about; whoever wants to says so in the environment.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        host, _, port = (self.address or "").removeprefix("ray://").rpartition(":")
        try:
            if host and port.isdecimal():  # Ray would go on trying for long
                socket.create_connection((host, int(port)), _CONNECT_S).close()
            self._ray.init(address=self.address, log_to_driver=False, logging_level="error")
        except Exception as error:  # whatever it cannot connect to, or start
            what = "a Ray cluster" if self.address is None else f"the Ray cluster at {self.address!r:.100}"
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise InputError(f"{what} cannot be had: {reason[0][:200]}") from None


class _Others(Protocol):
    """Others who do tasks; what is given to them is known by a handle."""

    slots: int  # how many of them work at once

    def give(self, number: int, task: Any) -> Any: ...
    def done(self, handles: Sequence[Any], is_idle: bool) -> Iterable[Any]: ...
    def result(self, number: int, handle: Any) -> Any: ...


def _dealt(
    tasks: Tasks, others: _Others, tick: Tick, work: Callable[..., Any] | None = None
) -> Iterator[Task]:  # fmt: skip
    """Deal tasks out to others; with `work`, do some here.

    Each of the others has one that waits besides the one it does, as long as there are plenty, so that none waits for
    this process to come to the end of its own, and all end together.
    """
    tasks, ready, held, failed = iter(tasks), deque[Task](), dict[Any, int](), dict[int, Exception]()
    while True:
        # Not all at once: reading a log far ahead of its planning would hold it in memory.
        ready.extend(islice(tasks, 0 if failed else max(0, 4 * others.slots - len(ready))))
        # The first one is done here while others work on theirs.
        own = ready.popleft() if ready and work else None
        while ready and len(held) < others.slots * (2 if len(ready) > others.slots else 1):
            number, task = ready.popleft()
            held[others.give(number, task)] = number
        if own is None and not any(number < min(failed, default=number + 1) for number in held.values()):
            break
        finished = [(own[0], *_tried(work, own[1], tick))] if own and work else []
        for handle in others.done(list(held), is_idle=own is None):
            number = held.pop(handle)
            result, error = _tried(others.result, number, handle)
            finished.append((number, result, error))
            tick(_samples_of(result))
        for number, result, error in finished:
            if error is None:
                yield number, result
            else:
                failed[number] = error
                ready.clear()  # they come after all that were handed out
    if failed:
        raise failed[min(failed)]


def _tried(call: Callable[..., Any], *given: Any) -> tuple[Any, Exception | None]:
    """Return what a call gave, and what it raised."""
    try:
        return call(*given), None
    except Exception as error:
        return None, error


def _samples_of(result: Any) -> int:
    return int(result["samples"]) if result and "samples" in result else 0


class _Workers:
    """Worker processes on this machine: :class:`_Others` has what their methods mean.

    On Linux they are forked from a server that has imported what they need, and not from this process, which has
    threads. They end with this process, whatever ends it, and, whatever they do, as soon as they are left. Threads hand
    tasks out, so that this one does not wait for workers to begin, and that no Ctrl-C comes in between.
    """

    def __init__(self, work: Callable[..., Any], count: int) -> None:
        context = multiprocessing.get_context(_METHOD)
        if _METHOD == "forkserver":
            context.set_forkserver_preload(_PRELOADED)
        self.slots, self._work, self._threads = count, work, pa.cpu_count()
        self._ours, self._theirs = context.Pipe()
        self._pool = ProcessPoolExecutor(count, context, _begin, (self._theirs, dict(os.environ)))
        self._hands = ThreadPoolExecutor(2 * count, initializer=_hear_no_interrupt)

    def __enter__(self) -> Self:
        pa.set_cpu_count(1)  # more threads would get in the workers' way
        return self

    def __exit__(self, *error: object) -> None:
        self._ours.close()  # which they see
        self._pool.shutdown(cancel_futures=True)
        self._hands.shutdown()
        self._theirs.close()
        # The caller's own number of threads again: it is a setting of the whole process.
        pa.set_cpu_count(self._threads)

    def give(self, number: int, task: Any) -> Future[Any]:
        return self._hands.submit(self._hand_out, task)

    def _hand_out(self, task: Any) -> Any:
        """Have a worker do a task; the first few calls start one each."""
        try:
            return self._pool.submit(_done, self._work, task).result()
        except BrokenExecutor:
            if self._ours.poll():  # one of them has begun
                why = "a process that worked was killed, perhaps because memory ran out; use fewer jobs"
            else:
                why = (
                    "processes ended before they began to work, as what they printed says; a script whose runs have "
                    "several processes must be a file, and start them under: if __name__ == '__main__'"
                )
            raise LostWorkerError(why) from None

    def done(self, handles: Sequence[Future[Any]], is_idle: bool) -> Iterable[Future[Any]]:
        return wait(handles, None if is_idle else 0, FIRST_COMPLETED).done

    def result(self, number: int, handle: Future[Any]) -> Any:
        return handle.result()


def _hear_no_interrupt() -> None:
    """Have processes that this thread starts not hear Ctrl-C, which a terminal sends them too."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _begin(driver: connection.Connection, environment: dict[str, str]) -> None:
    """Make ready in a worker. Its own environment is the one of when the first worker began."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver hears it, and ends this process
    threading.Thread(target=_end_with, args=(driver,), daemon=True).start()
    os.environ.clear()
    os.environ.update(environment)
    pa.set_cpu_count(1)
    with contextlib.suppress(BrokenPipeError):  # the driver has left, and the thread ends this process
        driver.send_bytes(b"begun")


def _end_with(driver: connection.Connection) -> None:
    """End this process as soon as the driver is gone, or has closed its end."""
    parent = multiprocessing.parent_process()
    connection.wait([driver] if parent is None else [driver, parent.sentinel])
    os._exit(1)


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


class _Remote:
    """Workers of a Ray cluster: :class:`_Others` has what their methods mean."""

    def __init__(self, ray: Any, work: Callable[..., Any]) -> None:
        self._ray, self._task, self._given = ray, ray.remote(work), set[Any]()
        self.slots = max(1, int(ray.cluster_resources().get("CPU", 1)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._given:
            self._ray.cancel(handle)

    def give(self, number: int, task: Any) -> Any:
        handle = self._task.options(name=f"part {number}").remote(task)
        self._given.add(handle)
        return handle

    def done(self, handles: Sequence[Any], is_idle: bool) -> Iterable[Any]:
        return list(self._ray.wait(handles)[0])

    def result(self, number: int, handle: Any) -> Any:
        self._given.remove(handle)
        try:
            return self._ray.get(handle)
        except self._ray.exceptions.RayTaskError as error:  # what the task raised
            raise error.cause from None
        except self._ray.exceptions.RayError as error:
            raise LostWorkerError(
                f"part {number}: the Ray worker that had it was lost ({type(error).__name__}), and so were those that "
                "tried again; look at the cluster"
            ) from None
