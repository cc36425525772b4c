"""Compiled functions that only kernels call, made callable from a test."""

import numba

from solvers._helper_code import KernelCompiler

__all__ = ["from_python"]


def from_python(function):
    """Wrap a helper of `solvers` in a kernel of its own; without the JIT it is a Python function anyway."""

    @numba.njit(pipeline_class=KernelCompiler)
    def kernel(*arguments):
        return function(*arguments)

    return kernel
