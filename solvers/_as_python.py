"""A kernel's first calls with small arrays run as Python: some hundred items take less than to compile it.

A kernel gives the same numbers as Python and as machine code (``make nightly`` runs the whole suite uncompiled); only
time differs. So that no call takes long, loops count their turns: a kernel that has used up its own is compiled, once
what it had written is put back. Turns are counted and not seconds, and no result depends on them.
"""

import ast
import contextlib
import gc
import linecache
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numba.core import dispatcher as numba_dispatcher

__all__ = ["PythonFirst", "collected_once", "compile_at_once"]

_TURNS = 200_000
"""Turns of loops that each kernel has, in all its calls: some tenths of a second, less than it takes to compile one."""


class _OutOfTurns(BaseException):
    """A kernel has run as Python for too long."""


class _Purse:
    """Turns left to the kernel that runs as Python now. Threads share it: that moves only when one is compiled."""

    left = 0


_at_once = False


def compile_at_once() -> None:
    """From now on this process compiles every kernel at its first call: a warm-up, a trainer's steps, measurements."""
    global _at_once
    _at_once = True


@contextlib.contextmanager
def collected_once() -> Iterator[None]:
    """Let Python look for a compiler's garbage at the end alone: it is among millions of objects that are in use."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
            gc.collect(0)


class PythonFirst:
    """What numba asks for something to call where a kernel is not compiled for some arguments.

    `is_kept` takes arguments: whether the kernel is in the cache on disk, from where it takes less than Python.
    """

    def __init__(self, dispatcher: Any, is_kept: Callable[[Any], bool]) -> None:
        self._dispatcher, self._is_kept = dispatcher, is_kept
        self._compile = dispatcher._compile_for_args
        self._left = _TURNS
        self._python: Callable[..., Any] | None = None

    def __call__(self, *args: Any, **keywords: Any) -> Callable[..., Any]:
        """Return the function that numba shall call, compiled or Python."""
        arrays = _arrays_in(args)
        if _at_once or keywords or arrays is None or sum(array.size for array in arrays) > self._left:
            with collected_once():
                compiled: Callable[..., Any] = self._compile(*args, **keywords)
            return compiled
        if self._python is None:
            self._python = None if self._is_kept(args) else _as_python(self._dispatcher.py_func)
            if self._python is None:
                self._left = -1  # of no turns, compiled or loaded also at the next call
                return self(*args)
        return partial(self._run, self._python)

    def _run(self, python: Callable[..., Any], *args: Any) -> Any:
        written = [(array, array.copy()) for array in _arrays_in(args) or () if array.flags.writeable]
        _Purse.left = self._left
        try:
            with np.errstate(all="ignore"):  # machine code wraps around and says nothing
                return _plain(python(*args))
        except _OutOfTurns:
            for array, before in written:
                array[...] = before
        finally:
            self._left = _Purse.left
        return self._dispatcher(*args)


def _arrays_in(args: Any) -> list[Any] | None:
    """Return the arrays among arguments, also within tuples; None where there is something else than numbers."""
    found: list[Any] = []
    for value in args:
        if isinstance(value, np.ndarray):
            found.append(value)
        elif isinstance(value, tuple):
            inner = _arrays_in(value)
            if inner is None:
                return None
            found += inner
        elif not (value is None or isinstance(value, bool | int | float | np.number | np.bool_)):
            return None
    return found


def _plain(value: Any) -> Any:
    """Return numbers as numba returns them, Python's own."""
    if isinstance(value, tuple):
        inner = [_plain(entry) for entry in value]
        return type(value)(*inner) if hasattr(value, "_fields") else tuple(inner)
    return value.item() if isinstance(value, np.number | np.bool_) else value


_COUNT = ast.parse("_Purse.left -= 1\nif _Purse.left < 0:\n    raise _OutOfTurns").body
_building = threading.RLock()
_built: dict[Any, Callable[..., Any] | None] = {}
_sources: dict[str, dict[int, ast.FunctionDef]] = {}


def _as_python(function: Any) -> Callable[..., Any] | None:
    """Return `function` as Python that counts its turns, as does what it calls; None without its source."""
    with _building:
        if function not in _built:
            node = _source(function)
            if node is None or function.__closure__:
                _built[function] = None
                return None
            scope = dict(function.__globals__) | {"_Purse": _Purse, "_OutOfTurns": _OutOfTurns}
            exec(compile(ast.Module(body=[node], type_ignores=[]), function.__code__.co_filename, "exec"), scope)
            _built[function] = scope[function.__name__]
            for name in _names(function.__code__):
                if isinstance(scope.get(name), numba_dispatcher.Dispatcher):
                    scope[name] = _as_python(scope[name].py_func)
                    if scope[name] is None:
                        _built[function] = None
        return _built[function]


def _source(function: Any) -> ast.FunctionDef | None:
    """Return the definition of a function, without decorators, that counts its calls and the turns of its loops."""
    file = function.__code__.co_filename
    if file not in _sources:
        tree = ast.parse("".join(linecache.getlines(file, function.__globals__)))
        definitions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        _sources[file] = {_first_line(node): node for node in definitions}
    node = _sources[file].get(function.__code__.co_firstlineno)
    if node is None or node.name != function.__name__:
        return None
    node.decorator_list = []
    for inner in ast.walk(node):
        if isinstance(inner, ast.For | ast.While | ast.FunctionDef):
            inner.body[:0] = _COUNT
    return ast.fix_missing_locations(node)


def _names(code: Any) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if hasattr(constant, "co_names"):
            yield from _names(constant)


def _first_line(node: ast.FunctionDef) -> int:
    return node.decorator_list[0].lineno if node.decorator_list else node.lineno
