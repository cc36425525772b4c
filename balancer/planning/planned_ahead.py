"""The next steps planned by a thread while this one computes; a process is never forked while the thread runs."""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar
from weakref import WeakSet

DEPTH = 2
"""Steps that are planned before they are asked for."""

Argument = TypeVar("Argument")
Plan = TypeVar("Plan")


def planned_ahead(plan: Callable[[Argument], Plan], arguments: Iterable[Argument]) -> Iterator[Plan]:
    """Yield ``plan(argument)`` of each argument in order; an error where its plan would have come.

    The thread begins with the first plan that is asked for, behind the workers that a DataLoader forks before, and ends
    with the last.
    """
    thread: _Thread = _Thread()
    waiting: deque[Future[Plan]] = deque()
    try:
        for argument in arguments:
            waiting.append(thread.submit(plan, argument))
            # Two steps ahead: one is being planned while one waits, so that a step that takes long to plan is not
            # waited for.
            if len(waiting) > DEPTH:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        with suppress(RuntimeError):  # collected by the thread itself, which cannot wait for itself
            thread.stop(cancel=True)


class _Thread:
    """One thread, begun where it is needed: a forked child has the plans that were made, and begins its own."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        _THREADS.add(self)

    def submit(self, plan: Callable[[Argument], Plan], argument: Argument) -> "Future[Plan]":
        # No thread begins while a fork is prepared: it would be missing in the child, and its locks stay locked.
        with _NOT_FORKING:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="seqbalancer-plans")
            return self._pool.submit(plan, argument)

    def stop(self, cancel: bool = False) -> None:
        """End the thread behind the plans that it was given, or behind the one that it makes."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=cancel)


_THREADS: WeakSet[_Thread] = WeakSet()
_NOT_FORKING = threading.Lock()


def _before_fork() -> None:
    """End all threads: a child has only the one that forks, and whatever lock another holds stays locked there."""
    _NOT_FORKING.acquire()
    for thread in list(_THREADS):
        thread.stop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_NOT_FORKING.release, after_in_child=_NOT_FORKING.release)
