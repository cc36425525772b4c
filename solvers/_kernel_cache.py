"""Compiled kernels on disk: numba's own cache, made safer, and read where it may not be written.

A cache that cannot be read or written is no error, only a compilation. A kernel is compiled anew when *any* file of
this package changed (or its own, outside), because the kernels that it calls are compiled into it. Of processes that
need one kernel at once, one compiles it, while the others wait for it and load it. And what numba passes over is read:
folders that may not be written to, and kernels that came with the package, for a processor that has less than this one.
"""

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numba
from numba.core import config
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile
from numba.core.runtime import rtsys

__all__ = ["SHIPPED", "KernelCache", "keeps"]


def _digest(files: Iterable[Path]) -> str:
    """Hash of source files. Of the contents: an upgrade may keep times and sizes."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()


_PACKAGE = Path(__file__).parent
_STAMP = _digest(sorted(_PACKAGE.rglob("*.py")))


def _begin_to_load(target_context: Any) -> None:
    """Have what compiled kernels call; numba would load all that its compiler knows too, SciPy with it: 0.25 s.

    It does so itself before it compiles. Of other versions, nobody has looked what kernels call.
    """
    if numba.version_info.short == (0, 68):
        rtsys.initialize(target_context)
    else:
        target_context.refresh()


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


class _NoFolder:
    """What numba asks for a folder where it may write to none: nothing is kept."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._line = function.__code__.co_firstlineno

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> "_NoFolder":
        return cls(function)

    def ensure_cache_path(self) -> None:
        raise OSError("no folder that may be written to")

    def get_cache_path(self) -> str:
        return os.path.join(os.devnull, "nothing")

    def get_source_stamp(self) -> None:
        return None

    def get_disambiguator(self) -> str:
        return str(self._line)


class _Compiled(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (*CompileResultCacheImpl._locator_classes, _NoFolder)


SHIPPED = _PACKAGE / "_kernels"
"""Kernels that came with the package, a folder for each module; see ``make wheel``."""


class KernelCache(FunctionCache):  # type: ignore[misc]
    """The cache of one kernel."""

    _impl_class = _Compiled

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        name, stamp, file = self._impl.filename_base, _stamp_of(function), function.__code__.co_filename
        self._turn = _Turn(os.path.join(self._cache_path, f"{name}.lock"))
        self._cache_file = IndexDataCacheFile(self._cache_path, name, stamp)
        asked_for = os.path.join(os.path.dirname(file), "__pycache__")
        if config.CACHE_DIR:
            below = CompileResultCacheImpl._locator_classes[0].get_suitable_cache_subpath(file)
            asked_for = os.path.join(config.CACHE_DIR, below)
        read = {asked_for, str(SHIPPED / function.__module__)} - {self._cache_path}
        self._elsewhere = [IndexDataCacheFile(path, name, stamp) for path in sorted(read)]

    def keeps(self, sig: Any, target_context: Any) -> bool:
        """Whether there is a kernel for the types `sig`, without loading it."""
        return next(self._kept(sig, target_context), None) is not None

    def _kept(self, sig: Any, target_context: Any) -> Iterator[tuple[Any, str]]:
        """Yield files of kernels for the types `sig`: their folder, and their names in it."""
        for folder in (self._cache_file, *self._elsewhere):
            with contextlib.suppress(Exception):  # an index that is damaged
                if index := folder._load_index():
                    _begin_to_load(target_context)
                    wanted = self._index_key(sig, target_context.codegen())
                    names = {key[1]: name for key, name in index.items() if (key[0], key[2]) == (sig, wanted[2])}
                    for target in sorted(names, key=wanted[1].__ne__):  # this host's own first
                        if _runs_on(target, wanted[1]):
                            yield folder, names[target]

    def _load_overload(self, sig: Any, target_context: Any) -> Any:
        for folder, name in self._kept(sig, target_context):
            with contextlib.suppress(OSError):  # removed meanwhile
                return self._impl.rebuild(target_context, folder._load_data(name))
        return None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        found = self._guarded(sig, target_context)
        if found is None:
            self._turn.give_back()  # of a compilation that failed
            if self._turn.take():
                found = self._guarded(sig, target_context)
            if found is not None:
                self._turn.give_back()
        return found

    def _guarded(self, sig: Any, target_context: Any) -> Any:
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        finally:
            self._turn.give_back()

    @contextlib.contextmanager
    def _guard_against_spurious_io_errors(self) -> Iterator[None]:
        with contextlib.suppress(Exception):  # full disk, vanished folder, damaged file: go on without
            yield


def _runs_on(target: tuple[str, str, str], host: tuple[str, str, str]) -> bool:
    """Whether code for `target`, a system, a processor and its features, runs on a host that is described so."""
    needed = {feature for feature in target[2].split(",") if feature.startswith("+")}
    return target == host or (target[0] == host[0] and bool(needed) and needed <= set(host[2].split(",")))


def keeps(dispatcher: Any, args: Any) -> bool:
    """Whether the cache of a kernel has it for the types of `args`."""
    cache = dispatcher._cache
    return isinstance(cache, KernelCache) and cache.keeps(tuple(map(numba.typeof, args)), dispatcher.targetctx)
