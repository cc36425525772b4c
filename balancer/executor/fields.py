"""Fields: what a mini-batch may be made of, read into flat tensors with lengths, and put back into the form it had."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter, itemgetter
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from balancer.executor.payload import Values, as_whole
from balancer.executor.ragged_tensor import RaggedTensor
from balancer.problem.ragged import Ragged, offsets_of

__all__ = ["Column", "Field", "Spec", "read_field", "write_field"]

Column: TypeAlias = NDArray[np.int64] | Ragged
"""A number for each sample, or a list of numbers for each."""

ACCEPTED = (
    "a tensor (one entry a sample), a nested tensor, a RaggedTensor, a NumPy array, or a list of tensors, of lists of "
    "tensors, of str, bytes, int, float or bool"
)

_NUMBERS = {bool: ("bools", torch.bool), int: ("ints", torch.int64), float: ("floats", torch.float64)}
"""Of each type of number: what a list of it is called, and the dtype in which it travels."""

_FIXED = ("dense", "numpy", "scalars", "bools", "ints", "floats")


@dataclass(frozen=True, slots=True)
class Spec:
    """What all ranks must agree on about a field."""

    form: str  # what it came as, and goes back to; empty where a rank cannot know, as it has no row
    dtype: str = "uint8"  # of torch
    trailing: tuple[int, ...] = ()  # shape of one element
    device: str = "cpu"  # kind of device

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype itself."""
        return getattr(torch, self.dtype)

    @property
    def fixed(self) -> bool:
        """Whether every row has exactly one element, so that its length need not be sent."""
        return self.form in _FIXED

    @property
    def by_row(self) -> bool:
        """Whether every row is a tensor of its own."""
        return self.form in ("list", "lists", "strided")

    @property
    def of_items(self) -> "Spec":
        """What it is where an entry is an item, not a sample with its items."""
        return replace(self, form="list") if self.form == "lists" else self

    def __str__(self) -> str:
        return f"{self.form} of {self.dtype} [*{''.join(f', {size}' for size in self.trailing)}] on {self.device}"


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """One field of a mini-batch; without values, it is what the field is like."""

    spec: Spec
    rows: Column  # elements of each sample's row; a list of them where samples have several rows
    values: Values = ()  # the rows, one after the other or each by itself

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Elements of each row: int64[k]."""
        return self.rows.values if isinstance(self.rows, Ragged) else self.rows

    def nothing(self, device: torch.device) -> Values:
        """Return the values of no rows."""
        if self.spec.by_row:
            return []
        return torch.empty((0, *self.spec.trailing), dtype=self.spec.torch_dtype, device=device)

    def on(self, device: torch.device) -> Values:
        """Return the values on a device, brought there in one piece."""
        if isinstance(self.values, Tensor):
            return self.values.to(device, non_blocking=True)
        if not self.values:
            return self.values
        here = self.values[0].device
        if here.type == device.type and device.index in (None, here.index):
            return self.values
        return as_whole(self.values).to(device, non_blocking=True)


# Reading.


def read_field(name: str, data: Any) -> Field:
    """Read one field; TypeError or ValueError names it, the entry and what is accepted."""
    if isinstance(data, RaggedTensor):
        return _flat(name, "ragged", data.values, _rows(data.lengths.view(), data.counts))  # Ragged makes read-only
    if isinstance(data, Tensor):
        return _read_nested(name, data) if data.is_nested else _read_dense(name, "dense", data)
    if isinstance(data, np.ndarray):
        if data.dtype.kind not in "biufc":
            raise TypeError(f"field {name!r} must be {ACCEPTED}, got an array of {data.dtype}")
        return _read_dense(name, "numpy", torch.from_numpy(np.ascontiguousarray(data)))
    if isinstance(data, list | tuple):
        return _read_list(name, data)
    raise TypeError(f"field {name!r} must be {ACCEPTED}, got {type(data).__name__}")


def _field(name: str, form: str, like: Tensor, rows: Column, values: Values, requires_grad: bool) -> Field:
    """Return a field whose elements are like those of a tensor; TypeError or ValueError if they cannot be moved."""
    if like.layout is not torch.strided or like.device.type == "meta":
        what = f"one of layout {str(like.layout).removeprefix('torch.')} on {like.device.type}"
        raise TypeError(f"field {name!r} must hold dense tensors with memory, got {what}")
    if requires_grad and torch.is_grad_enabled():
        raise ValueError(f"field {name!r} requires grad: dispatch moves no gradients; detach it, or send it as outputs")
    spec = Spec(form, str(like.dtype).removeprefix("torch."), tuple(like.shape[1:]), like.device.type)
    return Field(spec, rows, values)


def _flat(name: str, form: str, values: Tensor, rows: Column) -> Field:
    return _field(name, form, values, rows, values.detach(), values.requires_grad)


def _read_dense(name: str, form: str, values: Tensor) -> Field:
    if values.ndim == 0:
        raise ValueError(f"field {name!r} must have an entry for each sample, got a tensor of no dimensions")
    return _flat(name, form, values, np.ones(len(values), dtype=np.int64))


def _read_nested(name: str, nested: Tensor) -> Field:
    if nested.layout is not torch.jagged:
        return _read_list(name, nested.unbind(), "strided")
    if isinstance(nested.shape[1], int):  # which the ragged dimension's size is not
        raise ValueError(f"field {name!r} must be ragged in the dimension after the first; transpose it")
    if nested.lengths() is not None:  # rows with holes between them
        return _read_list(name, nested.unbind(), "jagged")
    return _flat(name, "jagged", nested.values(), nested.offsets().diff().cpu().numpy().astype(np.int64))


def _read_list(name: str, data: Sequence[Any], form: str = "list") -> Field:
    if not data:
        return _without_rows(np.empty(0, dtype=np.int64))
    first = data[0]
    _check_one_kind(name, data)
    if isinstance(first, Tensor):
        if first.ndim == 0:
            _shapes(name, data)
            return _read_dense(name, "scalars", torch.stack(list(data)))
        return _by_row(name, data, form)
    if isinstance(first, list | tuple):
        return _read_lists(name, data)
    if isinstance(first, str):
        return _read_bytes("str", [entry.encode("utf-8", "surrogatepass") for entry in data])
    if isinstance(first, bytes):
        return _read_bytes("bytes", data)
    if type(first) in _NUMBERS:
        form, dtype = _NUMBERS[type(first)]
        try:
            return _read_dense(name, form, torch.tensor(data, dtype=dtype, device="cpu"))
        except (RuntimeError, OverflowError, ValueError):
            raise ValueError(f"field {name!r} holds an integer that is no int64") from None
    raise TypeError(f"field {name!r} must be {ACCEPTED}, got a list of {type(first).__name__}")


def _check_one_kind(name: str, data: Sequence[Any]) -> None:
    kind = type(data[0])
    kinds = next((kinds for kinds in ((list, tuple), (Tensor,)) if isinstance(data[0], kinds)), (kind,))
    for index, entry in enumerate(data) if set(map(type, data)) != {kind} else ():
        if not isinstance(entry, kinds):  # subclasses will do
            what = f"entry 0 is {kind.__name__}, entry {index} is {type(entry).__name__}"
            raise TypeError(f"field {name!r} must hold entries of one kind: {what}")


def _without_rows(rows: Column) -> Field:
    return Field(Spec(""), rows, torch.empty(0, dtype=torch.uint8, device="cpu"))


def _rows(lengths: NDArray[np.int64], counts: NDArray[np.int64] | None) -> Column:
    return lengths if counts is None else Ragged(lengths, offsets_of(counts))


def _sizes(data: Sequence[Any]) -> NDArray[np.int64]:
    return np.fromiter(map(len, data), dtype=np.int64, count=len(data))


def _read_bytes(form: str, data: Sequence[bytes]) -> Field:
    # A bytearray, as torch has no tensors that must not be written to.
    values = torch.from_numpy(np.frombuffer(bytearray(b"".join(data)), dtype=np.uint8))
    return Field(Spec(form), _sizes(data), values)


def _read_lists(name: str, data: Sequence[Sequence[Any]]) -> Field:
    items = [item for entry in data for item in entry]
    if not items:
        return _without_rows(Ragged(np.empty(0, dtype=np.int64), offsets_of(_sizes(data))))
    strange = next((item for item in items if not isinstance(item, Tensor)), None)
    if strange is not None:
        raise TypeError(f"field {name!r} must be {ACCEPTED}, got a list of lists of {type(strange).__name__}")
    if items[0].ndim == 0:
        raise ValueError(f"field {name!r} must hold items of at least one dimension, got scalars")
    return _by_row(name, items, "lists", _sizes(data))


def _by_row(name: str, rows: Sequence[Tensor], form: str, counts: NDArray[np.int64] | None = None) -> Field:
    lengths = np.asarray(list(map(itemgetter(0), _shapes(name, rows))), dtype=np.int64)
    requires_grad = True in set(map(attrgetter("requires_grad"), rows))
    return _field(name, form, rows[0], _rows(lengths, counts), rows, requires_grad)


def _shapes(name: str, tensors: Sequence[Tensor]) -> list[torch.Size]:
    """Return the shapes; ValueError names the first entry that is not like the first."""
    # All at once first: mini-batches have thousands of rows, and a loop over them is slow.
    shapes = list(map(attrgetter("shape"), tensors))
    trailing = list(zip(*shapes, strict=False))[1:]
    kinds = set(map(attrgetter("dtype", "device", "layout", "ndim"), tensors))
    if len(kinds) == 1 and all(len(set(sizes)) == 1 for sizes in trailing):
        return shapes

    def kind(tensor: Tensor) -> tuple[object, ...]:
        return tensor.dtype, tensor.device, tensor.layout, tensor.ndim, tensor.shape[1:]

    first = tensors[0]
    index, odd = next((index, one) for index, one in enumerate(tensors) if kind(one) != kind(first))
    raise ValueError(
        f"field {name!r} must hold tensors of one dtype, trailing shape and device: entry 0 is {first.dtype} "
        f"[*{''.join(f', {size}' for size in first.shape[1:])}] on {first.device}, entry {index} is {odd.dtype} of "
        f"shape {tuple(odd.shape)} on {odd.device}"
    )


# Writing.


def write_field(field: Field) -> Any:
    """Return the field in the form in which it was read."""
    form, values, rows = field.spec.form, field.values, field.rows
    if form in _FROM_TENSORS:
        tensors = values if not isinstance(values, Tensor) else values.split(field.lengths.tolist())
        return _FROM_TENSORS[form](list(tensors), rows)
    return _FROM_VALUES[form](as_whole(values), rows)


def _write_lists(tensors: list[Tensor], rows: Column) -> list[list[Tensor]]:
    bounds = rows.offsets if isinstance(rows, Ragged) else np.arange(len(rows) + 1)
    return [tensors[start:stop] for start, stop in pairwise(bounds.tolist())]


def _write_bytes(values: Tensor, rows: Any) -> list[bytes]:
    joined = values.cpu().numpy().tobytes()
    return [joined[start:stop] for start, stop in pairwise(offsets_of(rows).tolist())]


def _write_jagged(values: Tensor, rows: Any) -> Tensor:
    return torch.nested.nested_tensor_from_jagged(values, torch.tensor(offsets_of(rows), device=values.device))


def _write_ragged(values: Tensor, rows: Column) -> RaggedTensor:
    return RaggedTensor(values, *((rows.values.copy(), rows.counts) if isinstance(rows, Ragged) else (rows,)))


_FROM_TENSORS: Mapping[str, Callable[[list[Tensor], Column], Any]] = {
    "list": lambda tensors, rows: tensors,
    "lists": _write_lists,
    "strided": lambda tensors, rows: torch.nested.as_nested_tensor(tensors),
}

_FROM_VALUES: Mapping[str, Callable[[Tensor, Column], Any]] = {
    "": lambda values, rows: [[] for _ in range(len(rows))],
    "dense": lambda values, rows: values,
    "numpy": lambda values, rows: values.cpu().numpy(),
    "ragged": _write_ragged,
    "scalars": lambda values, rows: list(values.unbind()),
    "jagged": _write_jagged,
    "bytes": _write_bytes,
    "str": lambda values, rows: [row.decode("utf-8", "surrogatepass") for row in _write_bytes(values, rows)],
} | dict.fromkeys(("ints", "floats", "bools"), lambda values, rows: values.tolist())
