"""Compiled kernels on disk: the one place that uses names of numba which it does not document.

numba's own cache looks at a kernel's file alone: after another file changed it would run old machine code, which is a
wrong result. Here a hash of this whole package is in a kernel's file name. Where numba has these names no longer, its
own cache is used as it is. A cache that cannot be read or written is no error, only slow.
"""

import contextlib
import functools
import hashlib
import os
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numba

try:
    from numba.core.caching import NullCache
    from numba.core.compiler import CompileResult
    from numba.core.serialize import dumps

    _reduce, _rebuild = CompileResult._reduce, CompileResult._rebuild
except (ImportError, AttributeError):
    NullCache = object

_PACKAGE = Path(__file__).parent


def _hash(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


@functools.cache
def _stamp() -> bytes:
    # Kernels call helpers of other files, so a change anywhere in the package may change any of them.
    return _hash(*(file.read_bytes() for file in sorted(_PACKAGE.rglob("*.py")))).encode()


def _runs_on(target: tuple[str, str, str], host: tuple[str, str, str]) -> bool:
    """Whether code for `target`, a system, a processor and its features, runs on a host that is described so."""
    # Code for a processor with fewer features runs on one with more. That is how one image has kernels for many
    # machines.
    needed = {feature for feature in target[2].split(",") if feature.startswith("+")}
    return target == host or (target[0] == host[0] and bool(needed) and needed <= set(host[2].split(",")))


class KernelCache(NullCache):  # type: ignore[misc]
    """What numba asks for machine code; `name` is the kernel's own, and names of its files begin so."""

    def __init__(self, function: Callable[..., Any], name: str, folders: Sequence[Path]) -> None:
        self._function, self._name, self._folders = function, f"{name}.{numba.__version__}", folders

    @functools.cached_property
    def _start(self) -> str:
        file = Path(self._function.__code__.co_filename)
        outside = _PACKAGE not in file.parents and file.is_file()
        return f"{self._name}.{_hash(_stamp(), file.read_bytes() if outside else b'')}"

    def files(self, of: str = "") -> list[Path]:
        """List files of this kernel's source; if there is one, to load it takes less than to run Python."""
        return [file for folder in self._folders for file in folder.glob(f"{self._start}.{of}*.kernel")]

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return what was kept for a signature, or None."""
        target_context.refresh()
        host = target_context.codegen().magic_tuple()
        for path in self.files(_hash(repr(sig).encode())):
            with contextlib.suppress(Exception), path.open("rb") as file:  # damaged, or removed meanwhile
                if _runs_on(pickle.load(file), host):  # noqa: S301 (a folder of the user's own)
                    return _rebuild(target_context, *pickle.load(file))  # noqa: S301
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep what was compiled for a signature, in the first folder that can be written."""
        target = data.codegen.magic_tuple()
        name = f"{self._start}.{_hash(repr(sig).encode())}.{_hash(repr(target).encode())}.kernel"
        for folder in () if data.library.has_dynamic_globals else self._folders:
            with contextlib.suppress(Exception):  # it may not be written to, or is full
                folder.mkdir(parents=True, exist_ok=True)
                # Beside its place and renamed: another process never reads half a file.
                new = folder / f"{name}.{os.getpid()}"
                new.write_bytes(pickle.dumps(target) + dumps(_reduce(data)))
                new.replace(folder / name)
                # Kernels of sources that are gone would fill the folder.
                for old in {*folder.glob(f"{self._name}.*.kernel")} - {*folder.glob(f"{self._start}.*.kernel")}:
                    old.unlink()
                return


def keep(compiled: Any, function: Callable[..., Any], name: str, folders: Sequence[Path]) -> KernelCache | None:
    """Let the machine code of `function` be kept on disk; returns the cache, None if it is numba's own."""
    if NullCache is not object and hasattr(compiled, "_cache"):
        cache = compiled._cache = KernelCache(function, name, folders)
        return cache
    with contextlib.suppress(RuntimeError):  # there is no folder that may be written to
        compiled.enable_caching()
    return None
