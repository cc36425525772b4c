"""What takes long to be there, begun ahead: other processes import while this one does.

The command line calls it first of all, so this module imports nothing of the package.
"""

import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing import forkserver, resource_tracker
from typing import Any

__all__ = ["METHOD", "LocalCluster", "begin_as_asked", "begun_cluster", "cores", "init", "start_fork_server"]

METHOD = "forkserver" if sys.platform == "linux" else "spawn"
"""How worker processes are made."""


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start_fork_server(*modules: str) -> None:
    """Start the process from which workers are forked, if there is none; it imports what they need, and `modules`."""
    if METHOD != "forkserver":
        return
    multiprocessing.set_forkserver_preload(["balancer.offline.preloaded", *modules])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # that process is told no other way where modules are
    resource_tracker.ensure_running()  # which would let the signal through again
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # which a terminal sends to that process too
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


class LocalCluster:
    """A Ray cluster on this machine, with a worker for each core but one; or one that the environment tells of.

    A thread starts it, which takes seconds; and ends it, as its processes are killed when that thread ends.

    Attributes
    ----------
    error : Exception or None
        Why there is none.
    was_there : bool
        Whether it was started by others.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.was_there = False
        self._there, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            import ray

            try:
                init(ray, num_cpus=max(1, cores() - 1), logging_level="error")
            except ValueError:  # it is not for us to say how many
                init(ray, logging_level="error")
                self.was_there = True
        except Exception as error:  # whoever uses it tells it
            self.error = error
        self._there.set()
        while threading.main_thread().is_alive() and not self._over.wait(0.1):
            pass
        if self.error is None:
            ray.shutdown()

    def is_there(self) -> bool:
        """Whether it has started, or failed to."""
        return self._there.is_set()

    def end(self) -> None:
        """End it; wait for that."""
        self._over.set()
        self._thread.join()


def init(ray: Any, **how: Any) -> None:
    """Call ``ray.init``, so that nothing is sent to anybody."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(log_to_driver=False, **how)


_begun: list[LocalCluster] = []


def begun_cluster() -> LocalCluster | None:
    """Return the cluster that was begun, to whoever asks first."""
    return _begun.pop() if _begun else None


def begin_as_asked(words: list[str]) -> None:
    """Begin what a command line's words ask for; a guess, of which nothing but time depends."""
    if words[:1] not in (["plan"], ["report"]) or {"-h", "--help"} & set(words):
        return
    given = dict(zip(words, [*words[1:], ""], strict=True)) | dict(word.split("=", 1) for word in words if "=" in word)
    if given.get("--jobs", "1") != "1" or given.get("--engine") == "processes":
        start_fork_server("balancer.report.summary")
    elif given.get("--engine") == "ray" and "--address" not in given and "ray" not in sys.modules:
        _begun.append(LocalCluster())
