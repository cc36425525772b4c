"""Code of functions that only kernels call: optimized, and made machine code, with the kernels and not before.

numba optimizes what a function calls, then the function with all of that in it again, and so on up to the kernel; and
makes machine code at every step, of which only the kernel's is ever run.
"""

from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler

__all__ = ["HelperCompiler", "KernelCompiler"]


class _KernelCode(JITCodeLibrary):  # type: ignore[misc]
    """What a kernel calls is linked into it: at once, also what that calls in turn."""

    def add_linking_library(self, library: Any) -> None:
        super().add_linking_library(library)
        if isinstance(library, _HelperCode):
            self._linking_libraries += library._linking_libraries


class _NoMachineCode:
    """What numba tells where a compiled function's environment lies: there is none."""

    @staticmethod
    def set_env(name: str, environment: Any) -> None:
        pass


class _HelperCode(_KernelCode):
    """LLVM's language as it was made, to be linked into kernels."""

    @property
    def codegen(self) -> Any:
        return _NoMachineCode

    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        return 0

    def _optimize_functions(self, module: Any) -> None:
        module.data_layout = self._codegen._data_layout

    def finalize(self) -> None:
        self._finalize_dynamic_globals()
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage.name == "external":
                function.linkage = "linkonce_odr"  # as numba has it where several may have the same
        self._shared_module = self._final_module
        self._finalized = True


class HelperCompiler(Compiler):  # type: ignore[misc]
    """numba's compiler, which leaves the rest to those of the kernels."""

    _code: type[JITCodeLibrary] = _HelperCode

    def define_pipelines(self) -> Any:
        self.state.library = self._code(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
        self.state.library.enable_object_caching()
        return super().define_pipelines()


class KernelCompiler(HelperCompiler):
    """numba's compiler, with helpers linked once."""

    _code = _KernelCode
