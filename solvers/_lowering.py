"""From typed code to LLVM's language: what kernels are full of, in a few lines each.

numba writes some thirty lines for an array's entry, and eighty for a loop over a range, most of which LLVM then takes
out again: structures that are put into memory to read one field of them, and counts of turns by division, for any step.
That was a quarter of what it wrote, read again and optimized.
"""

from collections import Counter
from typing import Any

from llvmlite import ir as llvm
from numba.core import ir, types
from numba.core.analysis import compute_cfg_from_blocks, compute_use_defs, must_use_alloca
from numba.core.cgutils import alloca_once, get_item_pointer2, unpack_tuple
from numba.core.lowering import Lower
from numba.np.arrayobj import fix_integer_index, load_item, store_item

__all__ = ["KernelLowering", "is_counted"]


def is_counted(context: Any, kind: Any) -> bool:
    """Whether values of a type have references to memory that ends with the last of them."""
    counted: bool = context.data_model_manager[kind].contains_nrt_meminfo()
    return counted


_types: Any = types
_TURNS, _TURN, _FOUND = types.range_state64_type, types.range_iter64_type, _types.Pair(types.int64, types.boolean)
_ZERO, _ONE = (llvm.Constant(llvm.IntType(64), number) for number in (0, 1))


class KernelLowering(Lower):  # type: ignore[misc]
    """numba's way from typed code to LLVM's."""

    def _find_singly_assigned_variable(self) -> None:
        """Find variables that are values: assigned once, before each use, and not counted in several blocks."""
        blocks = self.func_ir.blocks
        self._lent = self._lent_ones()
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

    def _lent_ones(self) -> set[str]:
        """Find variables that are arguments, or fields of such: whoever calls has them, and nobody need count.

        What is returned is never one of them, but what numba casts it to, which is counted.
        """
        statements = [inst for block in self.func_ir.blocks.values() for inst in block.body]
        assigned = Counter(inst.target.name for inst in statements if isinstance(inst, ir.Assign))
        lent: set[str] = set()
        for inst in statements:
            if isinstance(inst, ir.Assign) and assigned[inst.target.name] == 1 and self._is_lent(inst, lent):
                lent.add(inst.target.name)
        return lent

    def _is_lent(self, inst: Any, lent: set[str]) -> bool:
        value = inst.value
        if isinstance(value, ir.Arg):
            same: bool = self.typeof(inst.target.name) == self.typeof("arg." + value.name)
            return same
        of_lent = isinstance(value, ir.Expr) and value.op == "getattr" and value.value.name in lent
        return of_lent and isinstance(self.typeof(value.value.name), _types.NamedTuple)

    def lower_assign(self, ty: Any, inst: Any) -> Any:
        if inst.target.name not in self._lent:
            return super().lower_assign(ty, inst)
        if isinstance(inst.value, ir.Arg):
            return self.fnargs[inst.value.index]
        whole = inst.value.value.name
        return self.builder.extract_value(self.loadvar(whole), self.typeof(whole).fields.index(inst.value.attr))

    def _is_counted(self, name: str) -> bool:
        return self.context.enable_nrt and name not in self._lent and is_counted(self.context, self.typeof(name))

    def delvar(self, name: str) -> None:
        if self._is_counted(name):
            super().delvar(name)

    def storevar(self, value: Any, name: str, argidx: int | None = None) -> None:
        if name in self._singly_assigned_vars:
            self._blk_local_varmap[name] = value
        elif self._is_counted(name):
            super().storevar(value, name, argidx)
        else:
            self._alloca_var(name, self.typeof(name))
            self.builder.store(value, self.varmap[name])

    def lower_block(self, block: Any) -> None:
        self.pre_block(block)
        for inst in block.body:
            self.loc = inst.loc
            if isinstance(inst, ir.Assign) and (inst.target.name in self._lent or not isinstance(inst.value, ir.Arg)):
                self.storevar(self.lower_assign(self.typeof(inst.target.name), inst), inst.target.name)
            elif isinstance(inst, ir.Del):
                self.delvar(inst.value)
            else:
                self.lower_inst(inst)
        self.post_block(block)

    def lower_getitem(self, resty: Any, expr: Any, value: Any, index: Any, signature: Any) -> Any:
        array = self.typeof(value.name)
        indices = self._indices(array, index.name)
        if not indices:
            return super().lower_getitem(resty, expr, value, index, signature)
        found = load_item(self.context, self.builder, array, self._entry(array, value.name, indices))
        return self.context.cast(self.builder, found, array.dtype, resty)

    def lower_setitem(self, target_var: Any, index_var: Any, value_var: Any, signature: Any) -> Any:
        array = self.typeof(target_var.name)
        indices = self._indices(array, index_var.name)
        if not indices:
            return super().lower_setitem(target_var, index_var, value_var, signature)
        at = self._entry(array, target_var.name, indices)
        value = self.context.cast(self.builder, self.loadvar(value_var.name), self.typeof(value_var.name), array.dtype)
        store_item(self.context, self.builder, array, value, at)
        return None

    def _indices(self, array: Any, name: str) -> list[tuple[Any, Any]]:
        """Types and values of the numbers that `name` is, if they name an entry of an array of numbers."""
        index = self.typeof(name)
        several = isinstance(index, _types.BaseTuple)
        kinds = index.types if several else (index,)
        if (
            not isinstance(array, types.Array)
            or not isinstance(array.dtype, types.Number | types.Boolean)
            or array.ndim != len(kinds)
            or not all(isinstance(kind, types.Integer) for kind in kinds)
            or self.context.enable_boundscheck
        ):
            return []
        value = self.loadvar(name)
        return list(zip(kinds, unpack_tuple(self.builder, value) if several else [value], strict=True))

    def _entry(self, array: Any, name: str, indices: list[tuple[Any, Any]]) -> Any:
        """Return where in memory an entry of an array lies."""
        shapes = unpack_tuple(self.builder, self._field(array, name, "shape"))
        fixed = [
            fix_integer_index(self.context, self.builder, kind, index, size)
            for (kind, index), size in zip(indices, shapes, strict=True)
        ]
        steps = [] if array.layout == "C" else unpack_tuple(self.builder, self._field(array, name, "strides"))
        data = self._field(array, name, "data")
        return get_item_pointer2(self.context, self.builder, data, shapes, steps, array.layout, fixed)

    def _field(self, kind: Any, name: str, field: str) -> Any:
        at = self.context.data_model_manager[kind].get_field_position(field)
        return self.builder.extract_value(self.loadvar(name), at)

    def _made_of(self, kind: Any, *fields: Any) -> Any:
        made = llvm.Constant(self.context.get_value_type(kind), llvm.Undefined)
        for at, field in enumerate(fields):
            made = self.builder.insert_value(made, field, at)
        return made

    def lower_call(self, resty: Any, expr: Any) -> Any:
        called = getattr(self.typeof(expr.func.name), "typing_key", None)
        if called is not range or resty != _TURNS or len(expr.args) not in (1, 2):
            return super().lower_call(resty, expr)
        bounds = [self._cast_var(var, types.int64) for var in expr.args]
        return self._made_of(resty, *([_ZERO] * (2 - len(bounds))), *bounds, _ONE)

    def lower_expr(self, resty: Any, expr: Any) -> Any:
        if expr.op == "getiter" and resty == _TURN:
            turns = self.loadvar(expr.value.name)
            if isinstance(turns, llvm.instructions.InsertValue) and turns.operands[1] is _ONE:
                return self._first_turn(turns)
        elif expr.op == "iternext" and self.typeof(expr.value.name) == _TURN:
            return self._next_turn(resty, self.loadvar(expr.value.name))
        elif expr.op in ("pair_first", "pair_second") and self.typeof(expr.value.name) == _FOUND:
            return self.builder.extract_value(self.loadvar(expr.value.name), int(expr.op == "pair_second"))
        return super().lower_expr(resty, expr)

    def _first_turn(self, turns: Any) -> Any:
        """Return what counts the turns of a loop by ones: pointers to its number and to how many are left, if any."""
        start, stop = (self.builder.extract_value(turns, at) for at in (0, 1))
        number, left = (alloca_once(self.builder, start.type) for _ in range(2))
        self.builder.store(start, number)
        self.builder.store(self.builder.sub(stop, start), left)
        return self._made_of(_TURN, number, stop, _ONE, left)

    def _next_turn(self, resty: Any, turn: Any) -> Any:
        """Return a turn's number and whether there is one, which nobody asks again once there is none."""
        number, step, left = (self.builder.extract_value(turn, at) for at in (0, 2, 3))
        count, found = self.builder.load(left), self.builder.load(number)
        some = self.builder.icmp_signed(">", count, _ZERO)
        self.builder.store(self.builder.sub(count, _ONE, flags=["nsw"]), left)
        self.builder.store(self.builder.add(found, step), number)
        return self._made_of(resty, found, some)
