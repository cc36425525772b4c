"""The one place that knows how kernels are compiled.

Every kernel in this package is decorated with :func:`kernel` and nothing else: compiled at its first call (never at
import), cached on disk, releasing the GIL, serial, and without fast-math, so that one input gives one plan on every
machine. Where no cache folder can be written, kernels are compiled in memory instead.
"""

from collections.abc import Callable
from typing import Any

import numba

__all__ = ["kernel"]


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile `function` in numba's nopython mode with the options that all kernels share.

    ``NUMBA_DISABLE_JIT=1`` leaves the Python function as it is, which is how coverage is measured.
    """
    try:
        compiled: Callable[..., Any] = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # numba found no folder it may write to; compile without a cache
        compiled = numba.njit(nogil=True)(function)
    return compiled
