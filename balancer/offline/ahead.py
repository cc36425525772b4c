"""What takes long to be there, begun ahead: other processes import while this one does.

The command line calls it first of all, so this module imports nothing of the package.
"""

import contextlib
import hashlib
import json
import logging
import multiprocessing
import os
import signal
import subprocess
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
    resource_tracker.ensure_running()  # first, as starting it lets SIGINT through
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
    """A Ray cluster on this machine, with a worker for each core but one.

    Another process starts it, which takes seconds, and ends it (:mod:`balancer.offline.local_ray`).
    """

    def __init__(self) -> None:
        self._answer: list[bytes] = []
        file = os.path.join(os.path.dirname(__file__), "local_ray.py")
        self._process = subprocess.Popen(
            [sys.executable, "-P", file, str(max(1, cores() - 1))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for this process
        )  # fmt: skip
        threading.Thread(target=self._hear, daemon=True).start()

    def _hear(self) -> None:
        with self._process.stdout as answer:  # type: ignore[union-attr]
            self._answer.append(answer.readline())
        self._process.wait()

    def is_there(self) -> bool:
        """Whether it has started, or failed to."""
        return bool(self._answer)

    def connect(self, ray: Any) -> None:
        """Connect this process to it; RuntimeError if it could not be started."""
        found = json.loads(self._answer[0] or '{"error": "the process that was to start it has ended"}')
        if "error" in found:
            raise RuntimeError(found["error"])
        if found["has_token"]:  # Ray takes it by itself where it looks for a cluster, but not where it is told of one
            from ray._private.authentication import authentication_token_setup as tokens

            logging.getLogger("ray").setLevel(logging.ERROR)
            tokens.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
        init(ray, address=found["address"], logging_level="error")

    def end(self) -> None:
        """Have it end; that takes half a second more, for which nobody waits."""
        with contextlib.suppress(OSError, ValueError), self._process.stdin as asked:  # type: ignore[union-attr]
            asked.write(b"\n")  # a process that was forked meanwhile may have the pipe open


def init(ray: Any, **how: Any) -> None:
    """Call ``ray.init``, so that nothing is sent to anybody, and SIGTERM does what it did."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(log_to_driver=False, **how)
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGTERM, before)


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
    given = _given(words)
    on_ray = given.get("--engine") == "ray"
    if _has_processes(words) or on_ray:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads of Arrow and BLAS get in other processes' way
    if _has_processes(words) and METHOD == "forkserver":
        if words[0] == "plan" and os.path.isfile(words[1]):
            _hashes.append(_Sha256(words[1]))
        resource_tracker.ensure_running()
    elif on_ray and "--address" not in given and "RAY_ADDRESS" not in os.environ:
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
