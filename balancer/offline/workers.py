"""Processes that do tasks for another one, over pipes; one that is killed costs what it was doing."""

import _thread
import contextlib
import multiprocessing
import os
import pickle
import queue
import signal
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import connection
from typing import Any, NoReturn

from balancer.errors import InputError
from balancer.offline import ahead

__all__ = ["TRIES", "Done", "Task", "Workers"]

Task = tuple[int, Any]
"""Something to do, and its number."""

Done = tuple[int, Any, BaseException | None]
"""The number of a task, what it gave, and what it raised."""

TRIES = 4
"""Of a task whose worker was killed."""

_WAIT_S = 0.05
_KILLED = (
    "part {}: the process that planned it was killed {} times, perhaps for want of memory; use fewer jobs, and resume"
)
_NO_START = (
    "part {}: {} processes that were to plan it could not begin, as what they printed says; a script whose runs have "
    "several processes must be a file, and start them under: if __name__ == '__main__'"
)
_TERMINATED = 128 + signal.SIGTERM  # exit code; 1 is that of a process that failed before it had any task


class Workers:
    """Some processes; another one for each that is killed.

    Each has a task that it works on and, where there are plenty, one that waits. A thread starts them: on Linux that
    waits for the fork server, which may have begun to import only now.
    """

    def __init__(self, work: Callable[[Any], Any], count: int) -> None:
        self.slots = count
        self._work, self._workers, self._lost = work, list[_Worker](), deque[Task]()
        self._kills, self._errors, self._over = Counter[int](), list[Exception](), False
        self._starting = threading.Thread(target=self._start)

    def __enter__(self) -> "Workers":
        self._starting.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over = True
        self._starting.join()
        for worker in self._workers:
            worker.leave()
        for worker in self._workers:
            worker.process.join()

    def _start(self) -> None:
        try:
            while len(self._workers) < self.slots and not self._over:
                self._workers.append(_Worker(self._work))
        except Exception as error:  # raised where results are asked for
            self._errors.append(error)

    def held(self) -> set[int]:
        """Return which tasks they have."""
        return {number for each in (*(worker.held for worker in self._workers), self._lost) for number, _ in each}

    def wants(self, plenty: bool) -> bool:
        """Whether one has nothing to do; or, if there are plenty of tasks, none that waits."""
        return not self._lost and self._least(plenty) is not None

    def _least(self, plenty: bool) -> "_Worker | None":
        found = min(self._workers, key=lambda worker: len(worker.held), default=None)
        return found if found is not None and len(found.held) <= plenty else None

    def give(self, number: int, task: Any) -> None:
        """Have the one do a task that has the fewest; at least one must want it."""
        min(self._workers, key=lambda worker: len(worker.held)).give(number, task)

    def done(self, wait: bool) -> Iterator[Done]:
        """Yield tasks that are done; if `wait`, after a moment's wait for some."""
        if self._errors:
            raise self._errors.pop()
        by_results = {worker.results: worker for worker in self._workers}
        if wait and not by_results:
            time.sleep(_WAIT_S)
        for results in connection.wait(list(by_results), _WAIT_S if wait else 0) if by_results else ():
            worker = by_results[results]
            try:
                yield worker.told()
            except (EOFError, OSError):
                yield from self._buried(worker)
        if self._lost and self._least(False):
            self.give(*self._lost.popleft())
        if len(self._workers) < self.slots and not self._starting.is_alive():
            self._starting = threading.Thread(target=self._start)
            self._starting.start()

    def _buried(self, worker: "_Worker") -> Iterator[Done]:
        """Keep the tasks of one that was killed for others, but one whose workers were killed too often."""
        self._workers.remove(worker)
        worker.leave()
        worker.process.join()
        if worker.held:
            number, _ = worker.held[0]
            self._kills[number] += 1
            if self._kills[number] == TRIES:
                worker.held.popleft()
                told = _NO_START if worker.process.exitcode == 1 else _KILLED
                yield number, None, InputError(told.format(number, TRIES))
        self._lost.extend(worker.held)


class _Worker:
    """A process, the pipes to and from it, and the tasks that it has: what it does, and then what waits."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        context: Any = multiprocessing.get_context(ahead.METHOD)
        theirs, self._tasks = context.Pipe(duplex=False)
        self.results, back = context.Pipe(duplex=False)
        self.held = deque[Task]()
        self.process = context.Process(target=_serve, args=(theirs, back, work, dict(os.environ)))
        self.process.start()
        theirs.close()
        back.close()

    def give(self, number: int, task: Any) -> None:
        self.held.append((number, task))
        with contextlib.suppress(OSError):  # it was killed, as its results will tell
            self._tasks.send((number, task))

    def told(self) -> Done:
        """Read what its task gave; EOFError or OSError if it was killed."""
        result, error = self.results.recv()
        number, _ = self.held.popleft()
        return number, result, error

    def leave(self) -> None:
        """Have it end, and break off what it does."""
        self._tasks.close()
        self.results.close()


def _serve(tasks: Any, results: Any, work: Callable[[Any], Any], environment: Mapping[str, str]) -> None:
    """Do tasks until the process that has them closes the pipe, or is killed; then break off what is done.

    The environment is that process's; its own would be what that was when it asked for its first worker.
    """
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to that process too, which ends this one
    signal.signal(signal.SIGTERM, _leave)
    waiting = queue.SimpleQueue[Any]()
    threading.Thread(target=_receive, args=(tasks, waiting), daemon=True).start()
    while (task := waiting.get()) is not None:
        told = _told(work, task)
        with contextlib.suppress(OSError):  # nobody waits for it any more
            results.send(told)


def _leave(*_: object) -> NoReturn:
    raise SystemExit(_TERMINATED)


def _receive(tasks: Any, waiting: queue.SimpleQueue[Any]) -> None:
    """Take tasks as they come, so that whoever sends them need not wait."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            waiting.put(tasks.recv()[1])
    waiting.put(None)
    _thread.interrupt_main(signal.SIGTERM)


def _told(work: Callable[[Any], Any], task: Any) -> tuple[Any, Exception | None]:
    """Do a task; return its result and what it raised."""
    try:
        return work(task), None
    except Exception as error:
        error.add_note(f"In a worker:\n{traceback.format_exc()}")
        try:
            pickle.loads(pickle.dumps(error))  # noqa: S301 (its own)
        except Exception:  # an error that cannot be read back
            return None, InputError(f"{type(error).__name__}: {error}")
        return None, error
