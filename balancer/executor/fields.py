"""Fields: what a mini-batch may be made of, read into one flat tensor with lengths, and put back into the form it had.

==========  ===================================================  ==========================
Form        What is handed in                                    A row of a sample
==========  ===================================================  ==========================
``list``    a list of tensors                                    one tensor
``lists``   a list of lists of tensors: several items a sample   several
``ragged``  a :class:`RaggedTensor`                              one, or several
``jagged``  a nested tensor of ``layout=torch.jagged``           one
``dense``   a tensor, a NumPy array, a list of numbers' tensors  one element: as a tensor
``object``  any other list, entry by entry                       pickled
==========  ===================================================  ==========================
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from balancer.problem.ragged import Ragged, offsets_of
from solvers.arguments import as_int64

__all__ = ["Column", "Field", "Kind", "RaggedTensor", "Room", "nothing", "read", "write"]

Column: TypeAlias = NDArray[np.int64] | Ragged
"""A number for each sample, or a list of numbers for each."""

Room: TypeAlias = Callable[[str, int, torch.device], Tensor]
"""Gives uint8[size] by a name, on a device: the same memory at each call, as fresh pages cost more than copies."""

ACCEPTED = "a tensor, a jagged nested tensor, a RaggedTensor, a NumPy array of numbers, or a list"

UNKNOWN = ""
"""The form of a field without any row, of which a rank cannot know more."""


@dataclass(frozen=True, slots=True, eq=False)
class RaggedTensor:
    """Rows of unequal length, one after the other in one tensor.

    Attributes
    ----------
    values : Tensor[sum(lengths), ...]
        All rows.
    lengths : int64[k]
        Elements of each row; a list, an array or a CPU tensor is taken.
    counts : int64[n], optional
        Where a sample has several items, such as images: the items of each sample, and a row is an item.

    Notes
    -----
    `len` is the number of samples.

    Examples
    --------
    >>> import torch
    >>> ragged = RaggedTensor(torch.arange(5), [2, 0, 3])
    >>> [row.tolist() for row in ragged.rows()]
    [[0, 1], [], [2, 3, 4]]
    """

    values: Tensor
    lengths: NDArray[np.int64]
    counts: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        for name in ("lengths", "counts"):
            given: Any = getattr(self, name)
            if given is not None:
                array = as_int64(name, given)
                if array.size and array.min() < 0:
                    raise ValueError(f"{name}[{int(np.argmin(array))}] must be >= 0, got {array.min()}")
                object.__setattr__(self, name, array)
        if self.values.ndim == 0 or int(self.lengths.sum()) != len(self.values):
            raise ValueError(
                f"lengths must sum to the {tuple(self.values.shape)[:1]} rows of values, got {self.lengths.sum()}"
            )
        if self.counts is not None and int(self.counts.sum()) != len(self.lengths):
            raise ValueError(f"counts must sum to the {len(self.lengths)} items, got {self.counts.sum()}")

    def __len__(self) -> int:
        return len(self.lengths if self.counts is None else self.counts)

    def rows(self) -> Sequence[Tensor]:
        """Return every row, sharing memory."""
        return self.values.split(self.lengths.tolist())

    @property
    def cu_seqlens(self) -> NDArray[np.int64]:
        """Where the rows begin and end, int64[k + 1], as packed attention wants it."""
        return offsets_of(self.lengths)


class Kind(NamedTuple):
    """What all ranks must agree on about a field."""

    form: str
    dtype: torch.dtype = torch.uint8
    trailing: tuple[int, ...] = ()  # shape of one element
    device: str = "cpu"  # kind of device

    @property
    def by_token(self) -> bool:
        """Whether rows can have an element for each token of their samples."""
        return self.form in ("list", "lists", "ragged", "jagged", UNKNOWN)

    def __repr__(self) -> str:
        shape = "".join(f", {size}" for size in self.trailing)
        return f"{self.form} of {str(self.dtype).removeprefix('torch.')} [*{shape}] on {self.device}"


class Field(NamedTuple):
    """One field of a mini-batch."""

    kind: Kind
    flat: Tensor  # all rows, one after the other
    rows: Column  # elements of each sample's row; a list of them where samples have several rows

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Elements of each row: int64[k]."""
        return self.rows.values if isinstance(self.rows, Ragged) else self.rows

    def on(self, device: torch.device) -> Field:
        """Return the field on a device; what is pickled stays on the host."""
        if self.kind.form in ("object", UNKNOWN):
            return self
        return Field(self.kind._replace(device=device.type), self.flat.to(device, non_blocking=True), self.rows)


def nothing(kind: Kind, device: torch.device) -> Tensor:
    """Return the flat tensor of no rows."""
    return torch.empty((0, *kind.trailing), dtype=kind.dtype, device=device)


# Reading.


def read(name: str, data: Any, room: Room) -> Field:
    """Read one field; TypeError or ValueError names the field, the entry and what is accepted.

    Rows are put together in a `room` of the host, and stay there until the next field of this name is read.
    """
    if isinstance(data, RaggedTensor):
        rows = data.lengths.view()  # as Ragged makes its arrays read-only
        return _field(
            name, "ragged", data.values, rows if data.counts is None else Ragged(rows, offsets_of(data.counts))
        )
    if isinstance(data, np.ndarray):
        if data.dtype.kind not in "biufc":
            raise TypeError(f"field {name!r} must be {ACCEPTED}, got an array of {data.dtype}; a list of it will do")
        data = torch.from_numpy(np.ascontiguousarray(data))
    if isinstance(data, Tensor):
        return _read_jagged(name, data, room) if data.is_nested else _read_dense(name, data)
    if not isinstance(data, list | tuple):
        raise TypeError(f"field {name!r} must be {ACCEPTED}, got {type(data).__name__}")
    return _read_list(name, data, room)


def _field(name: str, form: str, flat: Tensor, rows: Column) -> Field:
    if flat.layout is not torch.strided or flat.device.type == "meta":
        what = f"one of layout {str(flat.layout).removeprefix('torch.')} on {flat.device.type}"
        raise TypeError(f"field {name!r} must hold dense tensors with memory, got {what}")
    if flat.requires_grad and torch.is_grad_enabled():
        raise ValueError(f"field {name!r} requires grad: dispatch moves no gradients; detach it, or send it as outputs")
    return Field(Kind(form, flat.dtype, tuple(flat.shape[1:]), flat.device.type), flat.detach(), rows)


def _read_dense(name: str, values: Tensor) -> Field:
    if values.ndim == 0:
        raise ValueError(f"field {name!r} must have an entry for each sample, got a tensor of no dimensions")
    return _field(name, "dense", values, np.ones(len(values), dtype=np.int64))


def _read_jagged(name: str, nested: Tensor, room: Room) -> Field:
    if nested.layout is not torch.jagged:
        raise TypeError(f"field {name!r} must be jagged: torch.nested.as_nested_tensor(rows, layout=torch.jagged)")
    if isinstance(nested.shape[1], int):  # which the ragged dimension's size is not
        raise ValueError(f"field {name!r} must be ragged in the dimension after the first; transpose it")
    if nested.lengths() is not None:  # rows with holes between them
        rows = nested.unbind()
        return _field(name, "jagged", _whole(name, rows, room), _sizes(rows))
    return _field(name, "jagged", nested.values(), nested.offsets().diff().cpu().numpy().astype(np.int64))


def _read_list(name: str, data: Sequence[Any], room: Room) -> Field:
    if not data:
        return _unknown(np.empty(0, dtype=np.int64))
    if isinstance(data[0], Tensor):
        whole = _whole(name, data, room)
        return _read_dense(name, whole) if data[0].ndim == 0 else _field(name, "list", whole, _sizes(data))
    if all(isinstance(entry, list | tuple) and all(isinstance(item, Tensor) for item in entry) for entry in data):
        items = [item for entry in data for item in entry]
        if items and items[0].ndim == 0:
            raise ValueError(f"field {name!r} must hold items of at least one dimension, got scalars")
        whole = _whole(name, items, room) if items else None
        rows = Ragged(_sizes(items), offsets_of(_sizes(data)))
        return _unknown(rows) if whole is None else _field(name, "lists", whole, rows)
    # Of own ranks alone, as torch.distributed's collectives of objects are.
    texts = [pickle.dumps(entry) for entry in data]
    flat = torch.from_numpy(np.frombuffer(bytearray(b"".join(texts)), dtype=np.uint8))
    return Field(Kind("object"), flat, _sizes(texts))


def _unknown(rows: Column) -> Field:
    return Field(Kind(UNKNOWN), torch.empty(0, dtype=torch.uint8, device="cpu"), rows)


def _sizes(rows: Sequence[Any]) -> NDArray[np.int64]:
    return np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))


def _whole(name: str, tensors: Sequence[Any], room: Room) -> Tensor:
    """Join tensors of one kind; TypeError or ValueError names the first entry that is not like the first."""
    first = tensors[0]
    # All at once first: mini-batches have thousands of rows, and a loop over them is slow.
    if set(map(type, tensors)) != {type(first)}:
        odd = next((i for i, one in enumerate(tensors) if not isinstance(one, Tensor)), None)
        if odd is not None:
            raise TypeError(
                f"field {name!r} must hold entries of one kind: entry 0 is a tensor, entry {odd} is "
                f"{type(tensors[odd]).__name__}"
            )
    kinds = {(one.dtype, one.device, one.layout, one.ndim, one.shape[1:]) for one in tensors}
    if len(kinds) > 1:
        kind = attrgetter("dtype", "device", "layout", "ndim")
        index, odd = next(
            (i, one) for i, one in enumerate(tensors)
            if (kind(one), one.shape[1:]) != (kind(first), first.shape[1:])
        )  # fmt: skip
        raise ValueError(
            f"field {name!r} must hold tensors of one dtype, trailing shape and device: entry 0 is {first.dtype} "
            f"[*{''.join(f', {size}' for size in first.shape[1:])}] on {first.device}, entry {index} is {odd.dtype} of "
            f"shape {tuple(odd.shape)} on {odd.device}"
        )
    if first.layout is not torch.strided:
        return first  # which is refused by name
    # Devices have memory at hand; what requires grad is refused by name.
    if first.ndim == 0 or first.device.type != "cpu" or any(one.requires_grad for one in tensors):
        return torch.stack(list(tensors)) if first.ndim == 0 else torch.cat(list(tensors))
    shape = sum(map(len, tensors)), *first.shape[1:]
    whole = room(f"field {name}", math.prod(shape) * first.element_size(), first.device).view(first.dtype).view(shape)
    return torch.cat(list(tensors), out=whole)


# Writing.


def write(field: Field) -> Any:
    """Return the field in the form in which it was read; rows share the flat tensor's memory."""
    form, flat, lengths = field.kind.form, field.flat, field.lengths
    counts = field.rows.counts if isinstance(field.rows, Ragged) else None
    if form == "dense":
        return flat
    if form == "ragged":
        return RaggedTensor(flat, lengths.copy(), counts)
    if form == "jagged":
        return torch.nested.nested_tensor_from_jagged(flat, torch.tensor(offsets_of(lengths), device=flat.device))
    if form == "object":
        data, bounds = flat.cpu().numpy().tobytes(), offsets_of(lengths).tolist()
        return [pickle.loads(data[start:stop]) for start, stop in pairwise(bounds)]  # noqa: S301 (of own ranks)
    if form == UNKNOWN:
        return [[] for _ in range(len(field.rows))]
    tensors = list(flat.split(lengths.tolist()))
    if counts is None:
        return tensors
    return [tensors[start:stop] for start, stop in pairwise(offsets_of(counts).tolist())]
