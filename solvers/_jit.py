"""How kernels are compiled, by what numba documents; nothing else calls numba's compiler.

What Python calls is a :func:`kernel`, what only kernels call a :func:`helper`; no kernel calls another. A kernel is
compiled when it is called, never at import, for the types that its wrapper hands over, which are always the same:
int64 arrays that are contiguous, each always read-only or always not, and Python's numbers. It releases the GIL, is
serial, and has no fast-math, so that one input gives one plan on every machine.

Its first calls may run as the Python that it is: some hundred items take less than to compile it. The numbers in its
arrays are added up over its calls, times the turns that its loops take for each (:data:`TURNS`), or the `work` that a
search may do; once that is more than :data:`LIMIT` it is compiled, or loaded from disk (:mod:`solvers._kernel_cache`),
for good. What it returns is the same, and depends on no clock.
"""

import contextlib
import functools
import hashlib
import inspect
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba.extending import register_jitable

from solvers._kernel_cache import keep
from solvers._own_folder import is_ours

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

LIMIT = 500_000
"""Turns that a kernel's loops may take as Python in all its calls: half a second at most, where a search takes three
to forty to compile. A first balance with homes took 16.8 s of processor time with 200,000, 10.0 with this, 11.8 with
a million."""

# Listed by hand: a kernel's first calls run before anything of it was measured, and on every machine the same number
# of calls has to run as Python. tests/test_jit.py compares the names with the kernels that there are.
_TURNS = {
    10: "_sort._sort_packed packing._schedule_kernels.deal packing.best_fit._best_fit partitioning.lpt._lpt_rounds "
    "partitioning.refine._refine",
    30: "bounds._lifted partitioning.bldm._bldm partitioning.constrained.greedy._greedy "
    "partitioning.constrained.match._match partitioning.karmarkar_karp._karmarkar_karp "
    "partitioning.lower_target._lower_target partitioning.padded._smallest_bound",
    60: "packing._schedule_kernels.level partitioning.resplit._resplit",
    200: "bounds._waste relocation.relocate_kernel context._search.make_exact context.bounds.keys_bound "
    "deferral._search.fill deferral.bounds._least_cover dual_feasible._best_function "
    "packing.pair_fit._fill "
    "grouping.long_short._least_target grouping.long_short._share_enough partitioning.constrained.exchange._exchange "
    "partitioning.patterns.begin pipeline._cells.deal pipeline._gap_list.list_schedule",
    1000: "grouping._kernels.peel grouping._kernels.resolve partitioning.bin_completion.decide "
    "partitioning.patterns.refuted_below pipeline._cells._fill pipeline._cells._place pipeline._exchange._exchange "
    "pipeline._fluid.smooth_fluid pipeline._fluid.solve_fluid pipeline._gap_search.search_gaps",
}
TURNS = {f"solvers.{name}": turns for turns, names in _TURNS.items() for name in names.split()}
"""Turns that loops take for each number in a kernel's arrays, where those are more than three; others are counted by
their argument `work`, if they have one. Measured on small problems; 1000 is what may take any number of them."""

# For each number in an array, of kernels that are not listed: a pass or two to count and to fill.
_USUAL_TURNS = 3

_PATIENCE_S = 120.0
"""How long a process waits for another that compiles the same kernel before it compiles it itself."""

_at_once = False


def compile_at_once() -> None:
    """From now on this process compiles every kernel at its first call: a warm-up, a trainer's steps, measurements."""
    global _at_once
    _at_once = True


@functools.cache  # a function is registered once, also one that kernels and Python call
def helper(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let kernels call `function`, which stays the Python that it is: numba compiles it into each of them."""
    registered: Callable[..., Any] = register_jitable(function)
    return registered


class Kernel:
    """A function that is Python at first and machine code later; ``NUMBA_DISABLE_JIT=1`` leaves it as it is."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.py_func = function
        self._name = f"{function.__module__}.{function.__qualname__}.{sys.implementation.cache_tag}".replace("<", "_")
        helper(function)

        def shell(*args: Any) -> Any:
            return function(*args)

        self.compiled: Any = numba.njit(nogil=True, no_cfunc_wrapper=True)(shell)
        # numba returns the function itself where it is switched off.
        self._never = self.compiled is shell
        if not self._never:
            self._cache = keep(self.compiled, function, self._name, folders())
        self._turns = TURNS.get(f"{function.__module__}.{function.__qualname__}")
        self._names = list(inspect.signature(function).parameters)
        self._spent = 0
        self._for_good = False

    def __call__(self, *args: Any) -> Any:
        """Call it, compiled or not."""
        if self._for_good:
            return self.compiled(*args)
        if self._never or self._is_small(args):
            with np.errstate(all="ignore"):  # machine code wraps around and says nothing
                return _plain(self.py_func(*args))
        with alone(f"{self._name}.lock"):
            found = self.compiled(*args)
        self._for_good = True
        return found

    @property
    def signatures(self) -> list[Any]:
        """Types of arguments for which it is compiled; one, or none yet."""
        return [] if self._never else list(self.compiled.signatures)

    def _is_small(self, args: tuple[Any, ...]) -> bool:
        """Whether this call still runs as Python."""
        # Machine code on disk is loaded in milliseconds, which is less than the Python of any but the smallest call.
        if self._spent == 0 and self._cache is not None and self._cache.files():
            self._spent = LIMIT
        if self._turns is None and "work" in self._names:
            self._spent += 1 + args[self._names.index("work")]
        else:
            self._spent += 1 + (self._turns or _USUAL_TURNS) * _numbers_in(args)
        return self._spent <= LIMIT and not _at_once


def kernel(function: Callable[..., Any]) -> Kernel:
    """Make `function` callable from Python, compiled once that is worth it; it may be a helper as well."""
    return Kernel(function)


def _numbers_in(values: tuple[Any, ...]) -> int:
    """Count the numbers in the arrays among arguments, also within tuples."""
    total = 0
    for value in values:
        if isinstance(value, np.ndarray):
            total += value.size
        elif isinstance(value, tuple):
            total += _numbers_in(value)
    return total


def _plain(value: Any) -> Any:
    """Return numbers as compiled kernels return them, Python's own."""
    if isinstance(value, tuple):
        inner = [_plain(entry) for entry in value]
        return type(value)(*inner) if hasattr(value, "_fields") else tuple(inner)
    return value.item() if isinstance(value, np.number | np.bool_) else value


@functools.cache
def folders() -> list[Path]:
    """Pick the folders of kernels: that asked for, or ours and the user's; of two, the first that may be written.

    Of those that nobody named, none into which others could put code of theirs.
    """
    package = Path(__file__).parent
    mine = f"seqbalancer-{hashlib.sha256(os.fsencode(package)).hexdigest()[:16]}"  # other installations have others
    if asked := os.environ.get("NUMBA_CACHE_DIR"):
        return [Path(asked, mine)]
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return list(filter(is_ours, (package / "__pycache__" / "kernels", Path(home, mine))))


@contextlib.contextmanager
def alone(name: str) -> Iterator[None]:
    """Hold the lock of a kernel; or wait while another process does, for two minutes, to load what it then keeps.

    The system frees what a dead process held. Where there are no such locks, all compile.
    """
    lock, deadline = _opened(name), time.monotonic() + _PATIENCE_S
    with contextlib.suppress(OSError):
        while lock is not None and time.monotonic() < deadline:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.02)
    try:
        yield
    finally:
        if lock is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_UN)  # also where a process that was forked meanwhile has it open
            os.close(lock)


def _opened(name: str) -> int | None:
    for folder in folders() if fcntl is not None else []:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            return os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o666)
    return None
