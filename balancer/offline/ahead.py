"""What takes long to be there, begun ahead: other processes import while this one does.

The command line calls it first of all, so this module imports nothing of the package.
"""

import contextlib
import hashlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from multiprocessing import forkserver, resource_tracker, util
from typing import Any

__all__ = [
    "METHOD", "LocalCluster", "begin_as_asked", "begun_cluster", "begun_sha256", "cores", "fork_as_asked", "init",
    "start_fork_server",
]  # fmt: skip

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


@contextlib.contextmanager
def _forking() -> Iterator[None]:
    """Have a fork server be a copy of this process, which must have imported what workers need, and have no threads."""
    spawn = util.spawnv_passfds
    util.spawnv_passfds = _forked  # type: ignore[assignment]
    try:
        yield
    finally:
        util.spawnv_passfds = spawn


_MOST_FILES = 1 << 20


def _forked(_: object, words: Sequence[str], kept: Sequence[int]) -> int:
    """As ``spawnv_passfds``: run the last word, which is Python, in a process that has just these files open."""
    util._flush_std_streams()  # type: ignore[attr-defined]
    if pid := os.fork():
        return pid
    try:
        begin = 3
        for file in (*sorted(kept), _MOST_FILES):
            os.closerange(begin, file)
            begin = file + 1
        exec(words[-1], {})
    finally:
        os._exit(0)


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
                with _without_monitors():
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


@contextlib.contextmanager
def _without_monitors() -> Iterator[None]:
    """Have ``ray.init`` start no autoscaler, and nobody who sends logs to the driver: a third of all daemons' work.

    There is no public way; a Ray that has no such settings starts what it always does.
    """
    from ray._private import parameter

    before = parameter.RayParams

    class Fewer(before):  # type: ignore[misc, valid-type]
        def __init__(self, *given: Any, **settings: Any) -> None:
            super().__init__(*given, **settings)
            self.no_monitor, self.include_log_monitor = True, False

    parameter.RayParams = Fewer
    try:
        yield
    finally:
        parameter.RayParams = before


def init(ray: Any, **how: Any) -> None:
    """Call ``ray.init``, so that nothing is sent to anybody."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(log_to_driver=False, **how)


class _Sha256:
    """The hash of a file, by a process that does nothing else, and ends with this one.

    This process imports meanwhile; a thread would have to wait for its turn at every piece of the file.
    """

    def __init__(self, path: str) -> None:
        self._told, told = os.pipe()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            with contextlib.suppress(BaseException):
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                os.write(told, _sha256(path, parent).encode())
            os._exit(0)
        os.close(told)

    def of(self, path: str | os.PathLike[str]) -> str | None:
        """Return it, if it is this file's, which has not changed since."""
        with os.fdopen(self._told) as told:
            state, _, digest = told.read().rpartition(" ")
        with contextlib.suppress(ChildProcessError):  # whoever started this one has it ignore how children end
            os.waitpid(self._pid, 0)
        return digest if state == _state(path) else None


def _sha256(path: str, parent: int) -> str:
    """Return a file's state when it was opened, and its hash; nothing of use once the parent has ended."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        state = _state(file.fileno())
        while (chunk := file.read(_CHUNK)) and os.getppid() == parent:
            digest.update(chunk)
    return f"{state} {digest.hexdigest()}"


def _state(file: str | int | os.PathLike[str]) -> str:
    found = os.stat(file)
    return f"{found.st_dev} {found.st_ino} {found.st_size} {found.st_mtime_ns}"


_CHUNK = 1 << 20
_begun: list[LocalCluster] = []
_hashes: list[_Sha256] = []


def begun_cluster() -> LocalCluster | None:
    """Return the cluster that was begun, to whoever asks first."""
    return _begun.pop() if _begun else None


def begun_sha256(file: str | os.PathLike[str]) -> str | None:
    """Return the hash of a file if it was begun, to whoever asks first; waits for it."""
    return _hashes.pop().of(file) if _hashes else None


def begin_as_asked(words: list[str]) -> None:
    """Begin what a command line's words ask for; a guess, of which nothing but time depends."""
    if not _plans(words):
        return
    if _has_processes(words) or _given(words).get("--engine") == "ray":
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads of Arrow and BLAS get in other processes' way
    if _has_processes(words) and METHOD == "forkserver":
        if words[0] == "plan" and os.path.isfile(words[1]):
            _hashes.append(_Sha256(words[1]))
        resource_tracker.ensure_running()
    elif _given(words).get("--engine") == "ray" and "--address" not in _given(words) and "ray" not in sys.modules:
        with contextlib.suppress(ImportError):  # as whoever uses it tells
            import ray  # noqa: F401 (by itself: the cluster starts sooner, and what is imported beside it is no later)
        _begun.append(LocalCluster())


def fork_as_asked(words: list[str]) -> None:
    """Fork the process from which workers are forked, if words ask for some, once all that they need is imported."""
    if _plans(words) and _has_processes(words) and threading.active_count() == 1:
        with _forking():
            start_fork_server()


def _plans(words: list[str]) -> bool:
    return words[:1] in (["plan"], ["report"]) and len(words) > 1 and not {"-h", "--help"} & set(words)


def _given(words: list[str]) -> dict[str, str]:
    """Return the values of options, as far as a glance tells."""
    return dict(zip(words, [*words[1:], ""], strict=True)) | dict(word.split("=", 1) for word in words if "=" in word)


def _has_processes(words: list[str]) -> bool:
    given = _given(words)
    return given.get("--jobs", "1" if given.get("--engine") != "processes" else "") != "1"
