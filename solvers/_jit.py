"""How kernels are compiled; nothing else calls numba's compiler.

What Python calls is decorated with :func:`kernel`. What only kernels call is part of theirs: :func:`inlined` where
there is one call, :func:`helper` where there are several. All are compiled at its first call (never at import),
releasing the GIL, serial, and without fast-math, so that one input gives one plan on every machine. Compiled kernels
are kept on disk. numba's own cache is made safer in two ways: a cache that cannot be read or written is no error,
only a compilation; and a kernel is compiled anew when *any* file of this package changed (or its own, outside), because
the kernels that it calls are compiled into it.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile

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


class _KernelCache(FunctionCache):  # type: ignore[misc]
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file = IndexDataCacheFile(
            cache_path=self._cache_path, filename_base=self._impl.filename_base, source_stamp=_stamp_of(function)
        )

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
    return compiled


def helper(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile `function` for kernels alone: without the wrapper through which Python would call it, nor a cache.

    Its code lies in the caches of the kernels that call it. Half the time of compiling a small function goes into what
    this leaves out. *Calling it from Python ends the process.*
    """
    compiled: Callable[..., Any] = numba.njit(nogil=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)(function)
    return compiled


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Put `function` into the one kernel that calls it before anything is compiled."""
    compiled: Callable[..., Any] = numba.njit(nogil=True, inline="always")(function)
    return compiled
