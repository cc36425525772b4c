"""Engines: who does the tasks of a run. Each takes tasks as they come and yields results as they are done."""

import itertools
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from balancer.errors import InputError
from balancer.offline import ahead
from balancer.offline.workers import TRIES, Done, Task, Workers

__all__ = ["ENGINES", "Cluster", "Engine", "Processes", "Serial", "Tick"]

Tick = Callable[[int], None]
"""Takes note of so many samples more."""

Tasks = Iterable[Task]
"""What is to do, numbered in ascending order."""

_TEND_S = 0.05  # how often a process that works looks after others, who have a task that waits
_CONNECT_S = 10.0


class Engine(Protocol):
    """Does tasks."""

    def start(self, *modules: str) -> None:
        """Begin what takes long to be there; `modules` are what tasks need besides planning."""

    def run(self, work: Callable[..., Any], tasks: Tasks, tick: Tick) -> Iterator[Task]:
        """Call `work` with every task; yield number and result of each, in any order.

        If tasks raise, what the one of lowest number raised is raised, once all before it are done.
        """
        ...


class Serial:
    """The process itself, one task after the other."""

    def start(self, *modules: str) -> None:
        """As :class:`Engine` has it: nothing."""

    def run(self, work: Callable[..., Any], tasks: Tasks, tick: Tick) -> Iterator[Task]:
        """As :class:`Engine` has it; ticks within tasks."""
        for number, task in tasks:
            yield number, work(task, tick)


class Processes:
    """Processes on this machine, `jobs` of them, of which this is one; by default one a core.

    A worker that is killed costs what it was doing: another one takes its place, and its task is done again, up to four
    times. Workers are not forked from this process, which may have threads, and locks that they hold; on Linux they are
    forked from one that has imported what they need, and has no threads, elsewhere each begins by itself.
    """

    def __init__(self, jobs: int | None = None) -> None:
        self.jobs = jobs or ahead.cores()

    def start(self, *modules: str) -> None:
        """As :class:`Engine` has it."""
        if self.jobs > 1:
            ahead.start_fork_server(*modules)

    def run(self, work: Callable[..., Any], tasks: Tasks, tick: Tick) -> Iterator[Task]:
        """As :class:`Engine` has it."""
        tasks = iter(tasks)
        first = list(itertools.islice(tasks, self.jobs))  # no more of them work than there are tasks
        with Workers(work, max(0, len(first) - 1)) as workers:
            yield from _Shared(workers, work, itertools.chain(first, tasks), tick).results()


class _Helpers(Protocol):
    """Others who do tasks: :class:`Workers` has what these mean."""

    @property
    def slots(self) -> int: ...
    def held(self) -> set[int]: ...
    def wants(self, plenty: bool) -> bool: ...
    def give(self, number: int, task: Any) -> None: ...
    def done(self, wait: bool) -> Iterator[Done]: ...


class _Shared:
    """A run that this process shares with others: it hands tasks out and, if it `works`, does some itself.

    Between the steps of a task of its own, which tick, it looks after the others.
    """

    def __init__(
        self, helpers: _Helpers, work: Callable[..., Any], tasks: Tasks, tick: Tick,
        works: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        self._helpers, self._work, self._tasks, self._tick = helpers, work, iter(tasks), tick
        self._ready, self._finished, self._failed = deque[Task](), deque[Task](), dict[int, BaseException]()
        self._works, self._exhausted, self._tended = works, False, 0.0

    def results(self) -> Iterator[Task]:
        """Yield number and result of every task."""
        while True:
            self._fill()
            self._tend()
            if self._failed:
                self._exhausted = True
                self._ready.clear()  # they come after all that were handed out
            while self._finished:
                yield self._finished.popleft()
            held = self._helpers.held()
            if self._ready and self._works():
                self._do(*self._ready.popleft())
            elif self._ready or (held and min(held) < min(self._failed, default=max(held) + 1)):
                self._tend(wait=True)
            else:
                break
        if self._failed:
            raise self._failed[min(self._failed)]

    def _fill(self) -> None:
        """Have tasks at hand: one for each of the others while this process does one, and as many in reserve."""
        while not self._exhausted and len(self._ready) <= 2 * self._helpers.slots:
            if (following := next(self._tasks, None)) is None:
                self._exhausted = True
            else:
                self._ready.append(following)

    def _do(self, number: int, task: Any) -> None:
        try:
            self._finished.append((number, self._work(task, self._note)))
        except Exception as error:
            self._failed[number] = error

    def _note(self, samples: int) -> None:
        self._tick(samples)
        if time.monotonic() - self._tended >= _TEND_S:
            self._tend()

    def _tend(self, wait: bool = False) -> None:
        """Take what the others have done, and hand out what they want."""
        for number, result, error in self._helpers.done(wait):
            if error is None:
                self._tick(_samples_of(result))
                self._finished.append((number, result))
            else:
                self._failed[number] = error
        while self._ready and not self._failed and self._helpers.wants(len(self._ready) > self._helpers.slots):
            self._helpers.give(*self._ready.popleft())
        self._tended = time.monotonic()


def _samples_of(result: Any) -> int:
    return int(result["totals"]["samples"]) if "totals" in result else 0


class Cluster:
    """Workers of a Ray cluster; by default of one that is started on this machine, and ended when the work is done.

    Ray moves the tasks of a lost worker or node to others by itself. Its dashboard shows them under names such as
    ``part 17``.

    Parameters
    ----------
    address : str, optional
        Of a cluster that runs: what ``ray.init`` takes, such as ``"auto"``; else what ``RAY_ADDRESS`` says.
    """

    def __init__(self, address: str | None = None) -> None:
        try:
            import ray
            from ray import init  # noqa: F401 (a folder of that name has none)
        except ImportError:
            raise InputError("the engine 'ray' needs Ray: pip install 'seqbalancer[ray]'") from None
        except Exception as error:  # an installation that is damaged
            raise InputError(f"Ray cannot be imported: {type(error).__name__}: {error}") from None
        self._ray, self.address = ray, address or os.environ.get("RAY_ADDRESS")
        self._local = ahead.begun_cluster()

    def start(self, *modules: str) -> None:
        """As :class:`Engine` has it: a cluster on this machine, if there is none."""
        if self.address is None and self._local is None and not self._ray.is_initialized():
            self._local = ahead.LocalCluster()

    def run(self, work: Callable[..., Any], tasks: Tasks, tick: Tick) -> Iterator[Task]:
        """As :class:`Engine` has it."""
        self.start()
        if self._local is not None and self._ray.is_initialized():  # by others, meanwhile
            self._local.end()
            self._local = None
        mine = self._local is not None or not self._ray.is_initialized()
        if mine and self._local is None:
            self._connect()
        helpers = _Remote(self._ray, work, self._local)
        try:
            yield from _Shared(helpers, work, tasks, tick, helpers.leave_a_core).results()
        finally:
            helpers.cancel()
            if mine:
                self._ray.shutdown()
            if self._local is not None:
                self._local.end()
                self._local = None

    def _connect(self) -> None:
        host, _, port = (self.address or "").removeprefix("ray://").rpartition(":")
        try:
            if host and port.isdecimal():  # Ray would go on trying for minutes
                socket.create_connection((host, int(port)), _CONNECT_S).close()
            ahead.init(self._ray, address=self.address, logging_level="warning")
        except Exception as error:  # whatever it cannot connect to
            raise _unreachable(f"the Ray cluster at {self.address!r:.100}", error) from None


class _Remote:
    """Workers of a Ray cluster: :class:`Workers` has what these methods mean."""

    def __init__(self, ray: Any, work: Callable[..., Any], local: ahead.LocalCluster | None) -> None:
        self._ray, self._work, self._local = ray, work, local
        self._running, self._remote = dict[Any, int](), None
        self.slots, self._has_helped = 1, False

    def leave_a_core(self) -> bool:
        """Whether there is a core for this process; of a cluster of others', until its first task is done."""
        return not self._has_helped or self._local is not None

    def held(self) -> set[int]:
        return set(self._running.values())

    def _is_there(self) -> bool:
        if self._remote is None and (self._local is None or self._local.is_there()):
            if self._local is not None:
                try:
                    self._local.connect(self._ray)
                except Exception as error:  # whatever it could not start
                    raise _unreachable("a local Ray cluster", error) from None
            self._remote = self._ray.remote(self._work)
            self.slots = max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        return self._remote is not None

    def wants(self, plenty: bool) -> bool:
        return self._is_there() and len(self._running) < self.slots * (1 + plenty)

    def give(self, number: int, task: Any) -> None:
        remote: Any = self._remote
        self._running[remote.options(name=f"part {number}", max_retries=TRIES - 1).remote(task)] = number

    def done(self, wait: bool) -> Iterator[Done]:
        if not self._running:
            if wait and not self._is_there():
                time.sleep(_TEND_S)
            return
        running = list(self._running)
        found, _ = self._ray.wait(running, num_returns=1 if wait else len(running), timeout=None if wait else 0)
        for reference in found:
            number, self._has_helped = self._running.pop(reference), True
            try:
                yield number, self._ray.get(reference), None
            except self._ray.exceptions.RayError as error:
                yield number, None, _cause(number, error)

    def cancel(self) -> None:
        """Have tasks not be done any more."""
        for reference in self._running:
            self._ray.cancel(reference)


def _unreachable(what: str, error: Exception) -> InputError:
    reason = str(error).strip().splitlines() or [type(error).__name__]
    return InputError(f"{what} cannot be had: {reason[0][:200]}")


def _cause(number: int, error: Exception) -> BaseException:
    """Return what a task raised; or, where it was lost, that it was."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception):
        return cause
    return InputError(
        f"part {number}: the Ray worker that had it was lost ({type(error).__name__}), and so were those that tried "
        "again; look at the cluster, and resume"
    )


ENGINES = {"serial": Serial, "processes": Processes, "ray": Cluster}
"""Who can plan, by name."""
