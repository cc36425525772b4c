"""Engines: who does the tasks of a run. Each takes tasks as they come and yields results as they are done."""

import multiprocessing
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import forkserver
from typing import Any, Protocol

from balancer.errors import InputError

__all__ = ["ENGINES", "Cluster", "Engine", "Processes", "Serial", "Tick", "cores"]

Tick = Callable[[int], None]
"""Takes note of so many samples more."""

Tasks = Iterable[tuple[int, Any]]
"""What is to do, numbered in ascending order."""

_METHOD = "forkserver" if sys.platform == "linux" else "spawn"
_AHEAD = 2  # tasks that wait for each worker
_CONNECT_S = 10.0
_TRIES = 4  # of a task whose worker was killed


class Engine(Protocol):
    """Does tasks."""

    def run(self, work: Callable[..., Any], tasks: Tasks, tick: Tick) -> Iterator[tuple[int, Any]]:
        """Call `work` with every task; yield number and result of each, in any order.

        If tasks raise, what the one of lowest number raised is raised, once all before it are done.
        """
        ...


class Serial:
    """The process itself, one task after the other."""

    def run(self, work: Callable[..., Any], tasks: Tasks, tick: Tick) -> Iterator[tuple[int, Any]]:
        """As :class:`Engine` has it; ticks within tasks."""
        for number, task in tasks:
            yield number, work(task, tick)


class Processes:
    """Processes on this machine, `jobs` of them; by default one a core.

    A worker that is killed costs what it was doing: the pool is started anew, and its tasks are done again, up to four
    times each. Workers are not forked from this process, which may have threads, and locks that they hold; on Linux
    they are forked from one that has imported what they need, and has no threads, elsewhere each begins by itself.
    """

    def __init__(self, jobs: int | None = None) -> None:
        self.jobs = jobs or cores()

    def start(self, *modules: str) -> None:
        """Begin to import what workers need, these modules too, while this process goes on; before :meth:`run`."""
        if _METHOD != "forkserver":
            return
        multiprocessing.set_forkserver_preload(["balancer.offline.preloaded", *modules])
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # that process is told no other way where modules are
        try:
            forkserver.ensure_running()
        finally:
            if before is None:
                del os.environ["PYTHONPATH"]
            else:
                os.environ["PYTHONPATH"] = before

    def run(self, work: Callable[..., Any], tasks: Tasks, tick: Tick) -> Iterator[tuple[int, Any]]:
        """As :class:`Engine` has it."""
        waiting, lost, failed = iter(tasks), dict[int, tuple[Any, int]](), dict[int, BaseException]()
        exhausted = False
        while lost or not exhausted:
            with _Pool(work, self.jobs) as pool:
                for number, (task, tries) in sorted(lost.items()):
                    pool.submit(number, task, tries)
                lost.clear()
                while True:
                    while not (failed or exhausted or pool.broken) and len(pool.running) < _AHEAD * self.jobs:
                        if (following := next(waiting, None)) is None:
                            exhausted = True
                        else:
                            pool.submit(*following, 0)
                    if failed:
                        exhausted = True
                        pool.cancel_after(min(failed))
                    if pool.broken:
                        lost = {number: _again(number, *task) for number, task in pool.tasks.items()}
                        break
                    if not pool.running:
                        break
                    for number, result in pool.completed(failed):
                        tick(_samples_of(result))
                        yield number, result
        if failed:
            raise failed[min(failed)]


def _again(number: int, task: Any, tries: int) -> tuple[Any, int]:
    if tries + 1 >= _TRIES:
        raise InputError(
            f"part {number}: the process that planned it was killed {_TRIES} times, perhaps for want of memory; use "
            "fewer jobs, and resume"
        )
    return task, tries + 1


def _samples_of(result: Any) -> int:
    return int(result["totals"]["samples"]) if "totals" in result else 0


class _Pool:
    """A pool of processes, and which task each of its futures does."""

    def __init__(self, work: Callable[..., Any], jobs: int) -> None:
        self._pool = ProcessPoolExecutor(
            jobs, mp_context=multiprocessing.get_context(_METHOD), initializer=_begin, initargs=(dict(os.environ),)
        )
        self._work = work
        self.running: dict[Future[Any], int] = {}
        self.tasks: dict[int, tuple[Any, int]] = {}
        self.broken = False

    def __enter__(self) -> "_Pool":
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(wait=error[0] is None, cancel_futures=True)

    def submit(self, number: int, task: Any, tries: int) -> None:
        self.tasks[number] = task, tries
        try:
            self.running[self._pool.submit(self._work, task)] = number
        except BrokenProcessPool:
            self.broken = True

    def cancel_after(self, number: int) -> None:
        """Leave out the tasks that come after one, if they have not begun."""
        for future, of in list(self.running.items()):
            if of > number and future.cancel():
                del self.running[future], self.tasks[of]

    def completed(self, failed: dict[int, BaseException]) -> Iterator[tuple[int, Any]]:
        """Wait until some tasks are done; yield what they gave, and note what they raised."""
        for future in wait(self.running, return_when=FIRST_COMPLETED).done:
            number, error = self.running.pop(future), future.exception()
            if isinstance(error, BrokenProcessPool):
                self.broken = True
                continue
            del self.tasks[number]
            if error is None:
                yield number, future.result()
            else:
                failed[number] = error


def _begin(environment: Mapping[str, str]) -> None:
    """Take over the environment, and end when the process that asked for this worker is killed.

    Else it would wait for tasks for ever. Its own environment is what that process had when it asked for the first one.
    """
    os.environ.clear()
    os.environ.update(environment)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class Cluster:
    """Workers of a Ray cluster; by default of one that is started on this machine, and ended when the work is done.

    Ray moves the tasks of a lost worker or node to others by itself. Its dashboard shows them under names such as
    ``part 17``.

    Parameters
    ----------
    address : str, optional
        Of a cluster that runs: what ``ray.init`` takes, such as ``"auto"``.
    """

    def __init__(self, address: str | None = None) -> None:
        try:
            import ray
        except ImportError:
            raise InputError("the engine 'ray' needs Ray: pip install 'seqbalancer[ray]'") from None
        self._ray, self.address = ray, address

    def run(self, work: Callable[..., Any], tasks: Tasks, tick: Tick) -> Iterator[tuple[int, Any]]:
        """As :class:`Engine` has it."""
        ray, mine = self._ray, not self._ray.is_initialized()
        if mine:
            self._connect()
        running, failed, waiting = dict[Any, int](), dict[int, BaseException](), iter(tasks)
        try:
            remote = ray.remote(work)
            most = _AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
            while True:
                while not failed and len(running) < most and (following := next(waiting, None)) is not None:
                    number, task = following
                    running[remote.options(name=f"part {number}", max_retries=_TRIES - 1).remote(task)] = number
                if not running or (failed and min(failed) < min(running.values())):
                    break
                for reference in ray.wait(list(running), num_returns=1)[0]:
                    number = running.pop(reference)
                    try:
                        result = ray.get(reference)
                    except ray.exceptions.RayError as error:
                        failed[number] = _cause(number, error)
                    else:
                        tick(_samples_of(result))
                        yield number, result
        finally:
            for reference in running:
                ray.cancel(reference)
            if mine:
                ray.shutdown()
        if failed:
            raise failed[min(failed)]

    def _connect(self) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to anybody
        host, _, port = (self.address or "").removeprefix("ray://").rpartition(":")
        try:
            if host and port.isdecimal():  # Ray would go on trying for minutes
                socket.create_connection((host, int(port)), _CONNECT_S).close()
            self._ray.init(address=self.address, logging_level="warning", log_to_driver=False)
        except Exception as error:  # whatever it cannot connect to
            where = "a local Ray cluster" if self.address is None else f"the Ray cluster at {self.address!r:.100}"
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise InputError(f"{where} cannot be had: {reason[0][:200]}") from None


def _cause(number: int, error: Exception) -> BaseException:
    """Return what a task raised; or, where it was lost, that it was."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception):
        return cause
    return InputError(
        f"part {number}: the Ray worker that had it was lost ({type(error).__name__}), and so were those that tried "
        "again; look at the cluster, and resume"
    )


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


ENGINES = {"serial": Serial, "processes": Processes, "ray": Cluster}
"""Who can plan, by name."""
