"""Fields: what a mini-batch may be made of, read into flat tensors with lengths, and put back into the form it had."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from balancer.executor.ragged_tensor import RaggedTensor
from balancer.executor.wire import Values, as_whole

__all__ = ["Field", "Outline", "Spec", "read_field", "write_field"]

ACCEPTED = (
    "a tensor (one entry a sample), a nested tensor, a RaggedTensor, a NumPy array, or a list of tensors, of lists of "
    "tensors, of str, bytes, int, float or bool"
)


@dataclass(frozen=True, slots=True)
class Spec:
    """What all ranks must agree on about a field.

    Attributes
    ----------
    form : str
        What it came as, and goes back to; empty where a rank cannot know (it has no row).
    dtype : str
        Of torch, without ``"torch."``.
    trailing : tuple of int
        Shape of one element.
    device : str
        Kind of device.
    """

    form: str
    dtype: str = "uint8"
    trailing: tuple[int, ...] = ()
    device: str = "cpu"

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype itself."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    @property
    def fixed(self) -> bool:
        """Whether every row has exactly one element, so that its length need not be told."""
        return self.form in ("dense", "numpy", "scalars", *_NUMBERS.values())

    @property
    def by_row(self) -> bool:
        """Whether every row is a tensor of its own."""
        return self.form in ("list", "lists", "strided")


@dataclass(frozen=True, slots=True, eq=False)
class Outline:
    """What a field of a mini-batch is like, without what is in it.

    Attributes
    ----------
    spec : Spec
    lengths : int64[k]
        Elements of each row.
    counts : int64[n] or None
        Rows of each sample, where that is not one.
    """

    spec: Spec
    lengths: NDArray[np.int64]
    counts: NDArray[np.int64] | None = None

    @property
    def num_samples(self) -> int:
        """Samples of the mini-batch."""
        return len(self.lengths if self.counts is None else self.counts)

    def row_bounds(self) -> list[int]:
        """Where each sample's rows begin and end."""
        counts = _ones(len(self.lengths)) if self.counts is None else self.counts
        return [0, *accumulate(counts.tolist())]

    def nothing(self, device: torch.device) -> Values:
        """Return the values of no rows."""
        return (
            []
            if self.spec.by_row
            else torch.empty((0, *self.spec.trailing), dtype=self.spec.torch_dtype, device=device)
        )


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """One field of a mini-batch.

    Attributes
    ----------
    outline : Outline
    values : Tensor[sum(lengths), *trailing] or sequence of Tensor
        The rows, one after the other or each by itself.
    """

    outline: Outline
    values: Values

    @property
    def spec(self) -> Spec:
        """What all ranks must agree on."""
        return self.outline.spec

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


_NUMBERS: dict[type, str] = {bool: "bools", int: "ints", float: "floats"}
_NUMBER_DTYPES = {"bools": torch.bool, "ints": torch.int64, "floats": torch.float64}


def read_field(name: str, data: Any) -> Field:
    """Read one field; TypeError or ValueError names it, the entry and what is accepted."""
    if isinstance(data, RaggedTensor):
        return _flat("ragged", data.values, data.lengths, data.counts, name)
    if isinstance(data, Tensor):
        return _read_nested(name, data) if data.is_nested else _read_dense(name, "dense", data)
    if isinstance(data, np.ndarray):
        if data.dtype.kind not in "biufc":
            raise TypeError(f"field {name!r} must be {ACCEPTED}, got an array of {data.dtype}")
        return _read_dense(name, "numpy", torch.from_numpy(np.ascontiguousarray(data)))
    if isinstance(data, list | tuple):
        return _read_list(name, data)
    raise TypeError(f"field {name!r} must be {ACCEPTED}, got {type(data).__name__}")


_REQUIRES_GRAD = "field {!r} requires grad: dispatch moves no gradients; detach it, or send it as outputs"


def _flat(form: str, values: Tensor, lengths: NDArray[np.int64], counts: NDArray[np.int64] | None, name: str) -> Field:
    _check_memory(name, values)
    if values.requires_grad and torch.is_grad_enabled():
        raise ValueError(_REQUIRES_GRAD.format(name))
    spec = Spec(form, str(values.dtype).removeprefix("torch."), tuple(values.shape[1:]), values.device.type)
    return Field(Outline(spec, lengths, counts), values.detach())


def _check_memory(name: str, values: Tensor) -> None:
    if values.layout is not torch.strided or values.device.type == "meta":
        what = f"one of layout {str(values.layout).removeprefix('torch.')} on {values.device.type}"
        raise TypeError(f"field {name!r} must hold dense tensors with memory, got {what}")


def _ones(count: int) -> NDArray[np.int64]:
    return np.ones(count, dtype=np.int64)


def _read_dense(name: str, form: str, values: Tensor) -> Field:
    if values.ndim == 0:
        raise ValueError(f"field {name!r} must have an entry for each sample, got a tensor of no dimensions")
    return _flat(form, values, _ones(len(values)), None, name)


def _read_nested(name: str, nested: Tensor) -> Field:
    if nested.layout is not torch.jagged:
        return _read_list(name, nested.unbind(), "strided")
    if getattr(nested, "_ragged_idx", 1) != 1:
        raise ValueError(f"field {name!r} must be ragged in the dimension after the first; transpose it")
    offsets, lengths = nested.offsets(), nested.lengths()
    if lengths is not None:  # rows with holes between them
        return _read_list(name, nested.unbind(), "jagged")
    return _flat("jagged", nested.values(), offsets.diff().cpu().numpy().astype(np.int64), None, name)


def _read_list(name: str, data: Sequence[Any], form: str = "list") -> Field:
    if not data:
        return _empty(_ones(0), None)
    first = data[0]
    kinds = (
        (list, tuple) if isinstance(first, list | tuple) else (Tensor,) if isinstance(first, Tensor) else (type(first),)
    )
    if set(map(type, data)) != {type(first)}:  # subclasses will do, too
        for index, entry in enumerate(data):
            if not isinstance(entry, kinds):
                raise TypeError(
                    f"field {name!r} must hold entries of one kind: entry 0 is {type(first).__name__}, entry {index} "
                    f"is {type(entry).__name__}"
                )
    if isinstance(first, Tensor):
        return _read_tensors(name, data, form)
    if isinstance(first, list | tuple):
        return _read_lists(name, data)
    if isinstance(first, str):
        return _read_bytes("str", [entry.encode("utf-8", "surrogatepass") for entry in data])
    if isinstance(first, bytes):
        return _read_bytes("bytes", data)
    if type(first) in _NUMBERS:
        form = _NUMBERS[type(first)]
        try:
            return _read_dense(name, form, torch.tensor(data, dtype=_NUMBER_DTYPES[form], device="cpu"))
        except (RuntimeError, OverflowError, ValueError):
            raise ValueError(f"field {name!r} holds an integer that is no int64") from None
    raise TypeError(f"field {name!r} must be {ACCEPTED}, got a list of {type(first).__name__}")


def _empty(lengths: NDArray[np.int64], counts: NDArray[np.int64] | None) -> Field:
    return Field(Outline(Spec(""), lengths, counts), torch.empty(0, dtype=torch.uint8, device="cpu"))


def _read_bytes(form: str, data: Sequence[bytes]) -> Field:
    joined = bytearray(b"".join(data))
    values = torch.from_numpy(np.frombuffer(joined, dtype=np.uint8))
    return Field(Outline(Spec(form), np.fromiter(map(len, data), dtype=np.int64, count=len(data))), values)


def _read_tensors(name: str, data: Sequence[Tensor], form: str) -> Field:
    if data[0].ndim == 0:
        _shapes(name, data)
        return _read_dense(name, "scalars", torch.stack(list(data)))
    return _by_row(name, data, form, None)


def _read_lists(name: str, data: Sequence[Sequence[Any]]) -> Field:
    counts = np.fromiter(map(len, data), dtype=np.int64, count=len(data))
    items = [item for entry in data for item in entry]
    if not items:
        return _empty(_ones(0), counts)
    strange = next((item for item in items if not isinstance(item, Tensor)), None)
    if strange is not None:
        raise TypeError(f"field {name!r} must be {ACCEPTED}, got a list of lists of {type(strange).__name__}")
    if items[0].ndim == 0:
        raise ValueError(f"field {name!r} must hold items of at least one dimension, got scalars")
    return _by_row(name, items, "lists", counts)


def _by_row(name: str, rows: Sequence[Tensor], form: str, counts: NDArray[np.int64] | None) -> Field:
    shapes = _shapes(name, rows)
    lengths = np.asarray(list(map(itemgetter(0), shapes)), dtype=np.int64)
    if torch.is_grad_enabled() and True in set(map(attrgetter("requires_grad"), rows)):
        raise ValueError(_REQUIRES_GRAD.format(name))
    first = rows[0]
    _check_memory(name, first)
    spec = Spec(form, str(first.dtype).removeprefix("torch."), tuple(shapes[0][1:]), first.device.type)
    return Field(Outline(spec, lengths, counts), rows)


def _shapes(name: str, tensors: Sequence[Tensor]) -> list[torch.Size]:
    """Return the shapes; ValueError names the first entry that is not like the first."""
    shapes = list(map(attrgetter("shape"), tensors))
    sorts = set(map(attrgetter("dtype", "device", "layout"), tensors))
    if len(sorts) > 1 or len(set(map(len, shapes))) > 1 or any(map(_differ, list(zip(*shapes, strict=True))[1:])):
        raise ValueError(_unlike(name, tensors))
    return shapes


def _differ(sizes: Sequence[int]) -> bool:
    return len(set(sizes)) > 1


def _unlike(name: str, tensors: Sequence[Tensor]) -> str:
    def kind(tensor: Tensor) -> tuple[object, ...]:
        return tensor.dtype, tensor.device, tensor.layout, tensor.ndim, tensor.shape[1:]

    first = tensors[0]
    index, odd = next((index, one) for index, one in enumerate(tensors) if kind(one) != kind(first))
    return (
        f"field {name!r} must hold tensors of one dtype, trailing shape and device: entry 0 is {first.dtype} "
        f"[*{''.join(f', {size}' for size in first.shape[1:])}] on {first.device}, entry {index} is {odd.dtype} of "
        f"shape {tuple(odd.shape)} on {odd.device}"
    )


def write_field(field: Field) -> Any:
    """Return the field in the form in which it was read."""
    form, values, outline = field.spec.form, field.values, field.outline
    if form in _FROM_ROWS:
        rows = values if not isinstance(values, Tensor) else values.split(outline.lengths.tolist())
        return _FROM_ROWS[form](list(rows), outline)
    return _FROM_VALUES[form](as_whole(values), outline)


def _write_lists(rows: list[Tensor], outline: Outline) -> list[list[Tensor]]:
    return [rows[start:stop] for start, stop in pairwise(outline.row_bounds())]


def _write_bytes(values: Tensor, outline: Outline) -> list[bytes]:
    joined = values.cpu().numpy().tobytes()
    return [joined[start:stop] for start, stop in pairwise([0, *accumulate(outline.lengths.tolist())])]


def _write_jagged(values: Tensor, outline: Outline) -> Tensor:
    offsets = torch.tensor([0, *accumulate(outline.lengths.tolist())], device=values.device)
    nested: Tensor = torch.nested.nested_tensor_from_jagged(values, offsets)
    return nested


_FROM_ROWS: Mapping[str, Callable[[list[Tensor], Outline], Any]] = {
    "list": lambda rows, outline: rows,
    "lists": _write_lists,
    "strided": lambda rows, outline: torch.nested.as_nested_tensor(rows),
}

_FROM_VALUES: Mapping[str, Callable[[Tensor, Outline], Any]] = {
    "": lambda values, outline: [[] for _ in outline.counts] if outline.counts is not None else [],
    "dense": lambda values, outline: values,
    "numpy": lambda values, outline: values.cpu().numpy(),
    "ragged": lambda values, outline: RaggedTensor(values, outline.lengths, outline.counts),
    "scalars": lambda values, outline: list(values.unbind()),
    "jagged": _write_jagged,
    "bytes": _write_bytes,
    "str": lambda values, outline: [row.decode("utf-8", "surrogatepass") for row in _write_bytes(values, outline)],
    "ints": lambda values, outline: values.tolist(),
    "floats": lambda values, outline: values.tolist(),
    "bools": lambda values, outline: values.tolist(),
}
