"""How kernels are compiled; nothing else calls numba's compiler.

What Python calls is decorated with :func:`kernel`. What only kernels call is a :func:`helper`, or :func:`inlined` if
it is a few lines. A kernel is compiled when it is called (never at import), though its first calls may run as Python
(:mod:`solvers._as_python`), releasing the GIL, serial, and without fast-math, so that one input gives one plan on every
machine. Compiled kernels are kept on disk. numba's own cache is
made safer in three ways: a cache that cannot be read or written is no error, only a compilation; a kernel is compiled
anew when *any* file of this package changed (or its own, outside), because the kernels that it calls are compiled
into it; and of processes that need one kernel at once, one compiles it, while the others wait for it and load it.
"""

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numba
from numba import types
from numba.core import dispatcher
from numba.core.caching import FunctionCache, IndexDataCacheFile

from solvers._as_python import PythonFirst

__all__ = ["helper", "inlined", "kernel"]


def _digest(files: Iterable[Path]) -> str:
    """Hash of source files. Of the contents: an upgrade may keep times and sizes."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()


_PACKAGE = Path(__file__).parent
_STAMP = _digest(sorted(_PACKAGE.rglob("*.py")))


def _stamp_of(function: Callable[..., Any]) -> str:
    file = Path(function.__code__.co_filename)
    return _STAMP if _PACKAGE in file.parents or not file.is_file() else _STAMP + _digest([file])


_PATIENCE_S = 120.0
"""How long a process waits for another to compile a kernel before it compiles the kernel itself."""


class _Turn:
    """A lock beside a kernel's cache. The system frees it when its owner ends, however that ends."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: int | None = None

    def take(self) -> bool:
        """Take the lock, or wait in vain; returns whether another process had it meanwhile."""
        waited, deadline = False, time.monotonic() + _PATIENCE_S
        with contextlib.suppress(ImportError, OSError):  # no such locks, or not in this folder: all compile
            import fcntl

            file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            while time.monotonic() < deadline:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    waited = True
                    time.sleep(0.02)
                except OSError:
                    break
                else:
                    self._file = file
                    return waited
            os.close(file)
        return waited

    def give_back(self) -> None:
        """Free the lock, if this process has it."""
        if self._file is not None:
            import fcntl

            fcntl.flock(self._file, fcntl.LOCK_UN)  # also where a process that was forked meanwhile has it open
            os.close(self._file)
            self._file = None


class _KernelCache(FunctionCache):  # type: ignore[misc]
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._turn = _Turn(os.path.join(self._cache_path, f"{self._impl.filename_base}.lock"))
        self._cache_file = IndexDataCacheFile(
            cache_path=self._cache_path, filename_base=self._impl.filename_base, source_stamp=_stamp_of(function)
        )

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        found = super().load_overload(sig, target_context)
        if found is None:
            self._turn.give_back()  # of a compilation that failed
            if self._turn.take():
                found = super().load_overload(sig, target_context)
            if found is not None:
                self._turn.give_back()
        return found

    def keeps(self, sig: Any, target_context: Any) -> bool:
        """Whether there is a kernel for the types `sig`, without loading it."""
        with self._guard_against_spurious_io_errors():
            if kept := self._cache_file._load_index():
                target_context.refresh()
                return self._index_key(sig, target_context.codegen()) in kept
        return False

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        finally:
            self._turn.give_back()

    @contextlib.contextmanager
    def _guard_against_spurious_io_errors(self) -> Iterator[None]:
        with contextlib.suppress(Exception):  # full disk, vanished folder, damaged file: go on without
            yield


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile `function` in numba's nopython mode with the options that all kernels share.

    ``NUMBA_DISABLE_JIT=1`` leaves the Python function as it is, which is how coverage is measured.
    """
    compiled: Callable[..., Any] = numba.njit(nogil=True, no_cfunc_wrapper=True)(function)
    if compiled is not function:
        with contextlib.suppress(RuntimeError):  # numba found no folder that it may write to
            compiled._cache = _KernelCache(function)  # type: ignore[attr-defined]
        compiled._compile_for_args = PythonFirst(compiled, partial(_is_kept, compiled))  # type: ignore[attr-defined]
    return _with_one_signature(compiled)


def _is_kept(dispatcher: Any, args: Any) -> bool:
    """Whether the cache on disk has a kernel for the types of `args`."""
    cache = dispatcher._cache
    return isinstance(cache, _KernelCache) and cache.keeps(tuple(map(numba.typeof, args)), dispatcher.targetctx)


def _with_one_signature(compiled: Any) -> Callable[..., Any]:
    """Let kernels hand every signed integer over as int64: numba would compile anew for int32, and for a constant."""
    if isinstance(compiled, dispatcher.Dispatcher):
        template_of = compiled.get_call_template
        compiled.get_call_template = lambda args, kws: template_of(tuple(map(_widest, args)), kws)  # type: ignore[method-assign]
    called: Callable[..., Any] = compiled
    return called


def _widest(kind: Any) -> Any:
    kind = types.unliteral(kind)
    return types.int64 if isinstance(kind, types.Integer) and kind.signed else kind


def helper(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile `function` for kernels alone: without the wrapper through which Python would call it, nor a cache.

    Its code lies in the caches of the kernels that call it. Half the time of compiling a small function goes into what
    this leaves out. *Calling it from Python ends the process.*
    """
    compiled: Callable[..., Any] = numba.njit(nogil=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)(function)
    return _with_one_signature(compiled)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Put a few lines into the kernels that call them, before anything is compiled; of many lines that takes longer."""
    compiled: Callable[..., Any] = numba.njit(nogil=True, inline="always")(function)
    return compiled
