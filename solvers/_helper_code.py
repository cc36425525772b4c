"""Code of functions that only kernels call: optimized, and made machine code, with the kernels and not before.

numba optimizes what a function calls, then the function with all of that in it again, and so on up to the kernel; and
makes machine code at every step, of which only the kernel's is ever run. It also asks itself the same questions about
types over and over, counts references to arrays that cannot go away, and keeps in memory what is assigned once; all of
that is left out here, where it takes half the time.
"""

import contextlib
import functools
from collections import Counter
from collections.abc import Iterator
from types import BuiltinFunctionType
from typing import Any

import numba
from numba.core import ir, target_extension, types
from numba.core.analysis import compute_cfg_from_blocks, compute_use_defs, must_use_alloca
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import LoweringPass, PassManager, register_pass
from numba.core.lowering import Lower
from numba.core.transforms import canonicalize_cfg
from numba.core.typed_passes import NativeLowering, NopythonRewrites
from numba.core.typing import Context

__all__ = ["HelperCompiler", "KernelCompiler"]


class _KernelCode(JITCodeLibrary):  # type: ignore[misc]
    """What a kernel calls is linked into it: at once, also what that calls in turn."""

    def add_linking_library(self, library: Any) -> None:
        super().add_linking_library(library)
        if isinstance(library, _HelperCode):
            self._linking_libraries += library._linking_libraries

    def _optimize_functions(self, module: Any) -> None:
        module.data_layout = self._codegen._data_layout


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

    def finalize(self) -> None:
        self._finalize_dynamic_globals()
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage.name == "external":
                function.linkage = "linkonce_odr"  # as numba has it where several may have the same
        self._shared_module = self._final_module
        self._finalized = True


class _Types(Context):  # type: ignore[misc]
    """numba's types of everything, of which it also knows what it has once found out."""

    def __init__(self, context: Any) -> None:
        self.__dict__ = context.__dict__
        self._answers: dict[Any, Any] = {}

    def resolve_function_type(self, func: Any, args: Any, kws: Any) -> Any:
        if kws or type(func) not in (types.Function, BuiltinFunctionType):
            return super().resolve_function_type(func, args, kws)
        asked = func, tuple(args)
        if asked not in self._answers:
            found = super().resolve_function_type(func, args, kws)
            if found is None:
                return None
            self._answers[asked] = found
        return self._answers[asked]


_types_of = functools.cache(_Types)


class _Lower(Lower):  # type: ignore[misc]
    """numba's way from typed code to LLVM's, with fewer variables in memory."""

    def _find_singly_assigned_variable(self) -> None:
        """Find variables that are values: assigned once, before each use, and not counted in several blocks."""
        blocks = self.func_ir.blocks
        self._blk_local_varmap: dict[str, Any] = {}
        dominators = compute_cfg_from_blocks(blocks).dominators()
        assigned = Counter(inst.target.name for block in blocks.values() for inst in block.find_insts(ir.Assign))
        found = compute_use_defs(blocks)
        values = {name: at for at, names in found.defmap.items() for name in names if assigned[name] == 1}
        for name in must_use_alloca(blocks):
            values.pop(name, None)
        for at, names in found.usemap.items():
            for name in names & values.keys():
                if at <= values[name] or values[name] not in dominators[at] or self._is_counted(name):
                    del values[name]
        self._singly_assigned_vars = set(values)

    def _is_counted(self, name: str) -> bool:
        return self.context.enable_nrt and _is_counted(self.context, self.typeof(name))

    def delvar(self, name: str) -> None:
        if self._is_counted(name):
            super().delvar(name)


def _is_counted(context: Any, kind: Any) -> bool:
    """Whether values of a type have references to memory that ends with the last of them."""
    counted: bool = context.data_model_manager[kind].contains_nrt_meminfo()
    return counted


def _owns(state: Any) -> bool:
    """Whether a function makes arrays, or returns any. Others work on what outlives them, and need not count."""
    expressions = [
        inst
        for block in state.func_ir.blocks.values()
        for inst in block.find_insts(ir.Assign)
        if isinstance(inst.value, ir.Expr)
    ]
    kinds = [state.typemap[inst.target.name] for inst in expressions if not _is_view(inst.value, state)]
    return any(_is_counted(state.targetctx, kind) for kind in [*kinds, state.return_type])


def _is_view(expression: Any, state: Any) -> bool:
    if expression.op == "getitem":  # by numbers and slices; by an array it is a copy
        return not _is_counted(state.targetctx, state.typemap[expression.index.name])
    return expression.op in ("getattr", "static_getitem", "build_tuple", "cast", "exhaust_iter")


def _is_numbas(state: Any) -> bool:
    module: str = state.func_id.modname
    return module.startswith("numba.")


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(NativeLowering):  # type: ignore[misc]
    _name = "lowering_of_kernels"

    @property
    def lowering_class(self) -> Any:
        return _Lower

    def run_pass(self, state: Any) -> bool:
        if not _is_numbas(state) and not _owns(state):
            state.targetctx = state.targetctx.subtarget(enable_nrt=False)
        changed: bool = super().run_pass(state)
        return changed


@register_pass(mutates_CFG=True, analysis_only=False)
class _Rewrites(NopythonRewrites):  # type: ignore[misc]
    _name = "rewrites_of_kernels"

    def run_pass(self, state: Any) -> bool:
        return _owns(state) and bool(super().run_pass(state))


_OURS = {NativeLowering: _Lowering, NopythonRewrites: _Rewrites}
_UNUSED = {
    "WithLifting",
    "FindLiterallyCalls",
    "LiteralUnroll",
    "LiteralPropagationSubPipelinePass",
    "NoPythonSupportedFeatureValidation",
    "AnnotateTypes",
    "DumpParforDiagnostics",
}
"""What kernels have nothing for: generators, ``with``, unrolled tuples, or a parallel loop."""


class _Passes(PassManager):  # type: ignore[misc]
    """numba's passes, without what it checks and works out between any two of them."""

    def _runPass(self, index: int, one: Any, state: Any) -> None:  # noqa: N802 (numba's name)
        one.analysis = self._analysis
        if one.run_pass(state) and not isinstance(one, LoweringPass):
            state.func_ir.blocks = canonicalize_cfg(state.func_ir.blocks)


class HelperCompiler(Compiler):  # type: ignore[misc]
    """numba's compiler, which leaves the rest to those of the kernels."""

    _code: type[JITCodeLibrary] = _HelperCode

    def __init__(self, typingctx: Any, *args: Any) -> None:
        super().__init__(_types_of(typingctx) if type(typingctx) is Context else typingctx, *args)

    def define_pipelines(self) -> Any:
        self.state.library = self._code(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
        self.state.library.enable_object_caching()
        (numbas,) = super().define_pipelines()
        ours = numbas if _is_numbas(self.state) else _Passes(numbas.pipeline_name)
        unused = () if ours is numbas else _UNUSED
        ours.passes = [(_OURS.get(one, one), told) for one, told in numbas.passes if one.__name__ not in unused]
        ours.finalize()
        return [ours]

    def _compile_core(self) -> Any:
        with _numbas_own_are_helpers():
            return super()._compile_core()


@contextlib.contextmanager
def _numbas_own_are_helpers() -> Iterator[None]:
    """Let what numba itself has in Python, as ``np.empty``, be compiled as a helper where kernels call it."""
    registry, cpu = target_extension.jit_registry, target_extension.target_registry["cpu"]
    before = registry.pop(cpu)
    registry[cpu] = functools.partial(numba.jit, pipeline_class=HelperCompiler)
    try:
        yield
    finally:
        registry.pop(cpu)
        registry[cpu] = before


class KernelCompiler(HelperCompiler):
    """numba's compiler, with helpers linked once."""

    _code = _KernelCode
