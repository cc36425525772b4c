"""How kernels are compiled; nothing else calls numba's compiler.

What Python calls is decorated with :func:`kernel`. What only kernels call is a :func:`helper`, or :func:`inlined` if
it is a few lines. A kernel is compiled when it is called (never at import), though its first calls may run as Python
(:mod:`solvers._as_python`), releasing the GIL, serial, and without fast-math, so that one input gives one plan on every
machine. Compiled kernels are kept on disk (:mod:`solvers._kernel_cache`).
"""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numba
from numba import types
from numba.core import dispatcher

from solvers._as_python import PythonFirst
from solvers._kernel_cache import KernelCache, keeps

if numba.version_info.short == (0, 68):
    from solvers._helper_code import HelperCompiler, KernelCompiler
else:  # that builds on numba's inner parts, which change: with other versions compiling takes twice as long
    from numba.core.compiler import Compiler

    HelperCompiler = KernelCompiler = Compiler  # type: ignore[misc]

__all__ = ["helper", "inlined", "kernel"]


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile `function` in numba's nopython mode with the options that all kernels share.

    ``NUMBA_DISABLE_JIT=1`` leaves the Python function as it is, which is how coverage is measured.
    """
    compiled: Callable[..., Any] = numba.njit(nogil=True, no_cfunc_wrapper=True, pipeline_class=KernelCompiler)(
        function
    )
    if compiled is not function:
        with contextlib.suppress(RuntimeError):  # numba was told to look in places of its own, and found none
            compiled._cache = KernelCache(function)  # type: ignore[attr-defined]
        compiled._compile_for_args = PythonFirst(compiled, partial(keeps, compiled))  # type: ignore[attr-defined]
    return _with_one_signature(compiled)


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

    Its code lies in the caches of the kernels that call it, and is optimized there (:mod:`solvers._helper_code`). Half
    the time of compiling a small function goes into what this leaves out. *Calling it from Python ends the process.*
    """
    compiled: Callable[..., Any] = numba.njit(
        nogil=True, no_cfunc_wrapper=True, no_cpython_wrapper=True, pipeline_class=HelperCompiler
    )(function)
    return _with_one_signature(compiled)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Put a few lines into the kernels that call them, before anything is compiled; of many lines that takes longer."""
    compiled: Callable[..., Any] = numba.njit(nogil=True, inline="always")(function)
    return compiled
