"""Fields: what a mini-batch may be made of, read into flat tensors with lengths, and put back into the form it had."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from balancer.executor.ragged_tensor import RaggedTensor

__all__ = ["Field", "Spec", "read_field", "write_field"]

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


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """One field of a mini-batch, flat.

    Attributes
    ----------
    spec : Spec
    values : Tensor[sum(lengths), *trailing] or None
        None on a rank that only receives.
    lengths : int64[k]
        Elements of each row.
    counts : int64[n] or None
        Rows of each sample, where that is not one.
    """

    spec: Spec
    values: Tensor | None
    lengths: NDArray[np.int64]
    counts: NDArray[np.int64] | None = None

    @property
    def num_samples(self) -> int:
        """Samples of the mini-batch."""
        return len(self.lengths if self.counts is None else self.counts)


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


def _flat(form: str, values: Tensor, lengths: NDArray[np.int64], counts: NDArray[np.int64] | None, name: str) -> Field:
    if values.requires_grad and torch.is_grad_enabled():
        raise ValueError(f"field {name!r} requires grad: dispatch moves no gradients; detach it, or send it as outputs")
    spec = Spec(form, str(values.dtype).removeprefix("torch."), tuple(values.shape[1:]), values.device.type)
    return Field(spec, values.detach(), lengths, counts)


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
        return Field(Spec(""), torch.empty(0, dtype=torch.uint8), _ones(0))
    first = data[0]
    kinds = (
        (list, tuple) if isinstance(first, list | tuple) else (Tensor,) if isinstance(first, Tensor) else (type(first),)
    )
    for index, entry in enumerate(data):
        if not isinstance(entry, kinds):
            raise TypeError(
                f"field {name!r} must hold entries of one kind: entry 0 is {type(first).__name__}, entry {index} is "
                f"{type(entry).__name__}"
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
            return _read_dense(name, form, torch.tensor(data, dtype=_NUMBER_DTYPES[form]))
        except (RuntimeError, OverflowError):
            raise ValueError(f"field {name!r} holds an integer that is no int64") from None
    raise TypeError(f"field {name!r} must be {ACCEPTED}, got a list of {type(first).__name__}")


def _read_bytes(form: str, data: Sequence[bytes]) -> Field:
    joined = bytearray(b"".join(data))
    values = torch.frombuffer(joined, dtype=torch.uint8) if joined else torch.empty(0, dtype=torch.uint8)
    return Field(Spec(form), values, np.fromiter(map(len, data), dtype=np.int64, count=len(data)))


def _read_tensors(name: str, data: Sequence[Tensor], form: str) -> Field:
    _check_alike(name, data)
    if data[0].ndim == 0:
        return _read_dense(name, "scalars", torch.stack(list(data)))
    lengths = np.fromiter(map(len, data), dtype=np.int64, count=len(data))
    return _flat(form, torch.cat(list(data)), lengths, None, name)


def _read_lists(name: str, data: Sequence[Sequence[Any]]) -> Field:
    counts = np.fromiter(map(len, data), dtype=np.int64, count=len(data))
    items = [item for entry in data for item in entry]
    if not items:
        return Field(Spec(""), torch.empty(0, dtype=torch.uint8), _ones(0), counts)
    if not isinstance(items[0], Tensor):
        raise TypeError(f"field {name!r} must be {ACCEPTED}, got a list of lists of {type(items[0]).__name__}")
    _check_alike(name, items)
    if items[0].ndim == 0:
        raise ValueError(f"field {name!r} must hold items of at least one dimension, got scalars")
    lengths = np.fromiter(map(len, items), dtype=np.int64, count=len(items))
    return _flat("lists", torch.cat(items), lengths, counts, name)


def _check_alike(name: str, tensors: Sequence[Any]) -> None:
    first = tensors[0]
    for index, tensor in enumerate(tensors):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"field {name!r} must hold tensors alone, got {type(tensor).__name__} as entry {index}")
        same = tensor.dtype == first.dtype and tensor.shape[1:] == first.shape[1:] and tensor.ndim == first.ndim
        if not same:
            raise ValueError(
                f"field {name!r} must hold tensors of one dtype and trailing shape: entry 0 is {first.dtype} "
                f"[*, {', '.join(map(str, first.shape[1:]))}], entry {index} is {tensor.dtype} of shape "
                f"{tuple(tensor.shape)}"
            )


def write_field(field: Field) -> Any:
    """Return the field in the form in which it was read."""
    assert field.values is not None
    return _WRITERS[field.spec.form](field.values, field)


def _write_rows(values: Tensor, field: Field) -> list[Tensor]:
    return list(values.split(field.lengths.tolist()))


def _write_lists(values: Tensor, field: Field) -> list[list[Tensor]]:
    items = _write_rows(values, field)
    assert field.counts is not None
    return [items[start:stop] for start, stop in pairwise([0, *accumulate(field.counts.tolist())])]


def _write_bytes(values: Tensor, field: Field) -> list[bytes]:
    joined = values.cpu().numpy().tobytes()
    return [joined[start:stop] for start, stop in pairwise([0, *accumulate(field.lengths.tolist())])]


def _write_jagged(values: Tensor, field: Field) -> Tensor:
    offsets = torch.tensor([0, *accumulate(field.lengths.tolist())], device=values.device)
    nested: Tensor = torch.nested.nested_tensor_from_jagged(values, offsets)
    return nested


_WRITERS: Mapping[str, Callable[[Tensor, Field], Any]] = {
    "": lambda values, field: [[] for _ in field.counts] if field.counts is not None else [],
    "dense": lambda values, field: values,
    "numpy": lambda values, field: values.cpu().numpy(),
    "ragged": lambda values, field: RaggedTensor(values, field.lengths, field.counts),
    "list": _write_rows,
    "lists": _write_lists,
    "scalars": lambda values, field: list(values.unbind()),
    "strided": lambda values, field: torch.nested.as_nested_tensor(_write_rows(values, field)),
    "jagged": _write_jagged,
    "bytes": _write_bytes,
    "str": lambda values, field: [row.decode("utf-8", "surrogatepass") for row in _write_bytes(values, field)],
    "ints": lambda values, field: values.tolist(),
    "floats": lambda values, field: values.tolist(),
    "bools": lambda values, field: values.tolist(),
}
