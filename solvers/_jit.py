"""How kernels are compiled, and where machine code is kept; no other file imports numba.

What Python calls is a :func:`kernel`, what kernels call a :func:`helper`; no kernel calls another. A kernel is compiled
when it is called, for the types that its wrapper hands over, which are always the same: int64 arrays that are
contiguous, each always read-only or always not, and Python's numbers. It releases the GIL, is serial, and has no
fast-math, so that one input gives one plan on every machine.

*Python first.* A small problem takes less time as the Python that a kernel is than numba takes to be imported. So a
kernel is compiled once its calls may have spent :data:`LIMIT` turns of its loops, and at its first call where machine
code of it is kept. Results are the same, and without numba, or with ``NUMBA_DISABLE_JIT=1``, all is Python.

*Kept code.* numba looks at a kernel's own file alone: with a helper changed in another file it would run old machine
code, which is a wrong result. So machine code is kept in a folder that is named by a hash of all sources of `solvers`.
Whatever is in the folder is run, so it has to belong to this user, and nobody else may write to it.
"""

import contextlib
import functools
import hashlib
import os
import pickle
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

LIMIT = 500_000
"""Turns of loops that a kernel's calls may spend as Python, all together: about half a second."""

TURNS = 10
"""Turns for each number in a kernel's arrays, where it says nothing else. It is a few passes over them."""

UNUSED_S = 3 * 86_400
"""Folders of other sources are removed if no process has begun to use them for so long."""

listeners: list[Callable[[str, bool], None]] = []
"""Each is called with a kernel's name and True before it is compiled, and with False once that is done."""

_at_once = False
_helpers: list[Callable[..., Any]] = []  # those that numba does not know yet
_lock = threading.Lock()


def compile_at_once() -> None:
    """From now on this process compiles every kernel at its first call: a warm-up, a trainer's steps, measurements."""
    global _at_once
    _at_once = True


def helper(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let kernels call `function`, which stays the Python that it is: numba compiles it into each of them."""
    _helpers.append(function)
    return function


class Kernel:
    """A function that is Python at first and machine code later."""

    def __init__(self, function: Callable[..., Any], turns: int | None = None) -> None:
        functools.update_wrapper(self, function)
        self.py_func = function
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        self._work = names.index("work") if "work" in names else None
        self._turns = TURNS if turns is None and self._work is None else turns
        self._spent = 0
        self._for_good = False

    def __call__(self, *args: Any) -> Any:
        """Call it, compiled or not."""
        if self._for_good:
            return self.compiled(*args)
        if self._is_small(args):
            with np.errstate(all="ignore"):  # machine code wraps around and says nothing
                return _plain(self.py_func(*args))
        found = self._begin(args)
        self._for_good = True
        return found

    @functools.cached_property
    def compiled(self) -> Any:
        """What numba makes of it."""
        return _with_numba(self.py_func)

    @property
    def signatures(self) -> list[Any]:
        """Types of arguments for which it is compiled; one, or none yet."""
        return list(getattr(vars(self).get("compiled"), "signatures", ()))

    def _is_small(self, args: tuple[Any, ...]) -> bool:
        """Whether this call still runs as Python."""
        # Machine code on disk is loaded in milliseconds, which is less than the Python of any but the smallest call.
        if self._spent == 0 and os.path.exists(_place()) and _numba() and os.path.exists(self._mark()):
            self._spent = LIMIT
        by_size = [] if self._turns is None else [self._turns * _numbers_in(args)]
        by_work = [] if self._work is None else [args[self._work]]
        self._spent += 1 + min(by_size + by_work)
        return (self._spent <= LIMIT and not _at_once) or _numba() is None

    def _begin(self, args: tuple[Any, ...]) -> Any:
        """Compile it, or load what is kept, and call it for the first time."""
        mark = self._mark()
        told = [] if os.path.exists(mark) else list(listeners)
        for each in told:
            each(self.py_func.__name__, True)
        try:
            found = self.compiled(*args)
        except (OSError, EOFError, pickle.UnpicklingError) as error:  # the disk is full, or lost the end of a file
            _warn(f"compiled kernels are not kept, or not read: {error!r}; remove {_place()}")
            self.compiled = _numba().njit(nogil=True)(self.py_func)
            found = self.compiled(*args)
        finally:
            for each in told:
                each(self.py_func.__name__, False)
        if _folder() is not None:
            with contextlib.suppress(OSError):
                mark.touch()
        return found

    def _mark(self) -> Path:
        """Name an empty file of ours: if it is there, numba has kept machine code of this kernel for this process."""
        from llvmlite.binding import get_host_cpu_name

        numba, code = _numba(), self.py_func.__code__
        target = sys.implementation.cache_tag, numba.__version__, numba.config.CPU_NAME or get_host_cpu_name()
        return _place() / _hash(repr((code.co_filename, code.co_firstlineno, code.co_name, target)).encode())


def kernel(function: Callable[..., Any] | None = None, *, turns: int | None = None) -> Any:
    """Make `function` callable from Python, compiled once that is worth it; its call counts as its argument `work`.

    With `turns` a call counts as so many turns for each number in its arrays, but never as more than `work`.
    """
    return functools.partial(Kernel, turns=turns) if function is None else Kernel(function, turns)


@functools.cache
def _numba() -> Any:
    """Import numba, or return None where it is missing or switched off."""
    try:
        import numba.extending
    except ImportError:
        _warn("numba is not installed: plans are the same, but take a hundred times as long")
        return None
    return None if numba.config.DISABLE_JIT else numba


def _with_numba(function: Callable[..., Any]) -> Any:
    """Hand a kernel to numba, which keeps its machine code in our folder."""
    numba, folder = _numba(), _folder()
    with _lock:  # of all threads
        while _helpers:
            numba.extending.register_jitable(_helpers.pop())
        before = numba.config.CACHE_DIR  # what numba does for others stays as it is
        numba.config.CACHE_DIR = str(folder)
        try:
            return numba.njit(cache=folder is not None, nogil=True)(function)
        except RuntimeError:  # there is no file of its source, as in a zip
            return numba.njit(nogil=True)(function)
        finally:
            numba.config.CACHE_DIR = before


@functools.cache
def _place() -> Path:
    """Name the folder of machine code of exactly these sources."""
    sources = sorted(Path(__file__).parent.rglob("*.py"))
    parent = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(parent, f"seqbalancer-{_hash(*(file.read_bytes() for file in sources))}")


@functools.cache
def _folder() -> Path | None:
    """Make that folder; None, and a warning, where it cannot be used.

    numba would not say so: it would take ``__pycache__``, where nothing tells one state of the sources from another.
    """
    place = _place()
    is_new = not os.path.exists(place)  # which Path raises for, where this user may not look
    try:
        place.mkdir(0o700, parents=True, exist_ok=True)
        found = place.stat()
        if hasattr(os, "geteuid") and (found.st_uid != os.geteuid() or found.st_mode & 0o022):
            raise PermissionError("another user owns it or may write to it")
        with tempfile.TemporaryFile(dir=place):
            os.utime(place)  # it is used
    except OSError as error:
        _warn(f"compiled kernels are not kept in {place}: {error}. Name a folder of your own in NUMBA_CACHE_DIR")
        return None
    for other in place.parent.glob("seqbalancer-*") if is_new else ():
        with contextlib.suppress(OSError):
            if time.time() - other.stat().st_mtime > UNUSED_S:
                shutil.rmtree(other, ignore_errors=True)
    return place


def _hash(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


@functools.cache
def _warn(message: str) -> None:
    """Say it once."""
    warnings.warn(message, stacklevel=2)


def _numbers_in(value: Any) -> int:
    """Count the numbers in an array, or in the arrays of a tuple and of tuples in it."""
    if isinstance(value, tuple):
        return sum(map(_numbers_in, value))
    return value.size if isinstance(value, np.ndarray) else 0


def _plain(value: Any) -> Any:
    """Return numbers as compiled kernels return them, Python's own."""
    if isinstance(value, tuple):
        inner = [_plain(entry) for entry in value]
        return type(value)(*inner) if hasattr(value, "_fields") else tuple(inner)
    return value.item() if isinstance(value, np.number | np.bool_) else value
