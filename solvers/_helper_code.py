"""Code of functions that only kernels call: optimized, and made machine code, with the kernels and not before.

numba optimizes what a function calls, then the function with all of that in it again, and so on up to the kernel; and
makes machine code at every step, of which only the kernel's is ever run. It also asks itself the same questions about
types over and over, counts references to arrays that cannot go away, and keeps in memory what is assigned once; all of
that is left out here, where it takes half the time.
"""

import contextlib
import functools
from collections.abc import Iterator
from types import BuiltinFunctionType
from typing import Any

import numba
from numba import extending
from numba.core import config, ir, target_extension, targetconfig, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import LoweringPass, PassManager, register_pass
from numba.core.postproc import PostProcessor, VariableLifetime
from numba.core.transforms import canonicalize_cfg
from numba.core.typed_passes import NativeLowering, NopythonRewrites
from numba.core.typing import Context
from numba.np import arrayobj

from solvers._lowering import KernelLowering, is_counted

__all__ = ["HelperCompiler", "KernelCompiler"]


class _KernelCode(JITCodeLibrary):  # type: ignore[misc]
    """What a kernel calls is linked into it: at once, also what that calls in turn."""

    def add_linking_library(self, library: Any) -> None:
        super().add_linking_library(library)
        if isinstance(library, _HelperCode):
            self._linking_libraries += library._linking_libraries

    def add_ir_module(self, ir_module: Any) -> None:
        super().add_ir_module(ir_module)
        for function in ir_module.functions:  # that refer to one another in circles
            for block in function.blocks:
                block.instructions.clear()

    def _optimize_functions(self, module: Any) -> None:
        module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        """Optimize all at once: numba does so twice, to find more references that cancel out, of which we have few."""
        passes, builder = self._codegen._module_pass_manager(opt=min(config.OPT, 2))
        passes.run(self._final_module, builder)


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


def _owns(state: Any) -> bool:
    """Whether a function makes, copies or returns arrays. Others work on what outlives them, and need not count."""
    expressions = [
        inst
        for block in state.func_ir.blocks.values()
        for inst in block.find_insts(ir.Assign)
        if isinstance(inst.value, ir.Expr)
    ]
    kinds = [state.typemap[inst.target.name] for inst in expressions if not _is_view(inst.value, state)]
    return any(is_counted(state.targetctx, kind) for kind in [*kinds, *_put_into_slices(state), state.return_type])


def _put_into_slices(state: Any) -> list[Any]:
    """Types of what is put into arrays: of an array that overlaps with where it goes, numba makes a copy."""
    blocks = state.func_ir.blocks.values()
    found = [inst for block in blocks for kind in (ir.SetItem, ir.StaticSetItem) for inst in block.find_insts(kind)]
    return [state.typemap[inst.value.name] for inst in found]


def _is_view(expression: Any, state: Any) -> bool:
    if expression.op == "getitem":  # by numbers and slices; by an array it is a copy
        return not is_counted(state.targetctx, state.typemap[expression.index.name])
    return expression.op in ("getattr", "static_getitem", "build_tuple", "cast", "exhaust_iter")


def _is_numbas(state: Any) -> bool:
    module: str = state.func_id.modname
    return module.startswith("numba.")


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(NativeLowering):  # type: ignore[misc]
    _name = "lowering_of_kernels"

    @property
    def lowering_class(self) -> Any:
        return KernelLowering

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


def _shapes_differ(src_shapes: Any, index_shape: Any) -> None:
    """Say that an array does not fit into a slice, without the numbers, which take strings."""


@extending.overload(_shapes_differ)  # type: ignore[untyped-decorator]
def _shapes_that_differ(src_shapes: Any, index_shape: Any) -> Any:
    def said(src_shapes: Any, index_shape: Any) -> None:
        raise ValueError("cannot assign slice from input of different size")

    return said


_analyzed = PostProcessor.run


def _analyzed_when_asked(self: Any, emit_dels: bool = False, extend_lifetimes: bool = False) -> None:
    """Find out how long variables live only where that is asked for: numba does so again after every pass."""
    if emit_dels or self.func_ir.is_generator:
        _analyzed(self, emit_dels, extend_lifetimes)
    else:
        self.func_ir.blocks = canonicalize_cfg(self.func_ir.blocks)
        self.func_ir.variable_lifetime = VariableLifetime(self.func_ir.blocks)
        self.func_ir.generator_info = None


def _values(self: Any) -> dict[str, Any]:
    """Return all options of a compilation, by which numba looks up what it knows, without asking for each."""
    return {**_defaults(self.__class__), **self._values}


@functools.cache
def _defaults(kind: Any) -> dict[str, Any]:
    return {name: option.default for name, option in kind.options.items()}


_QUICKER = (
    (PostProcessor, "run", _analyzed_when_asked),
    (targetconfig.TargetConfig, "values", _values),
    (arrayobj, "raise_with_shape_context", _shapes_differ),
)
"""What numba does within our compilations: where, its name, and ours."""


@contextlib.contextmanager
def _numbas_own_are_helpers() -> Iterator[None]:
    """Let what numba itself has in Python, as ``np.empty``, be compiled as a helper where kernels call it."""
    registry, cpu = target_extension.jit_registry, target_extension.target_registry["cpu"]
    before, theirs = registry.pop(cpu), [getattr(where, name) for where, name, _ in _QUICKER]
    registry[cpu] = functools.partial(numba.jit, pipeline_class=HelperCompiler)
    for where, name, ours in _QUICKER:
        setattr(where, name, ours)
    try:
        yield
    finally:
        registry.pop(cpu)
        registry[cpu] = before
        for (where, name, _), their in zip(_QUICKER, theirs, strict=True):
            setattr(where, name, their)


class KernelCompiler(HelperCompiler):
    """numba's compiler, with helpers linked once."""

    _code = _KernelCode
