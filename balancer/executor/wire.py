"""The wire: rows of several fields packed into one buffer of bytes, so that one all-to-all carries all of them.

To each rank go its rows of the first field, then those of the second, and so on: a slab of memory for each, which
begins at a multiple of 16 bytes so that any dtype may lie in it. No header: both sides know every length from the plan.
What stays on its rank does not go by the wire.

Each byte is copied once into the buffer. Rows that are wanted as tensors of their own are then left where they arrived;
and as they lie there in the order in which they would be sent back, the way back needs no copy. Fields that are wanted
in one piece are copied out once more.
"""

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from balancer.executor.route import End, Route

__all__ = ["AllToAll", "Cargo", "Memory", "Values", "as_whole", "move"]

Values: TypeAlias = Tensor | Sequence[Tensor]
"""A field's rows: one after the other in one tensor, or each in a tensor of its own."""

AllToAll = Callable[[Tensor, Sequence[int], Sequence[int], Tensor, Callable[[], None]], None]
"""Given a buffer, bytes to, and bytes from each rank, memory to fill with what arrives, and what to do meanwhile."""

ALIGNMENT = 16
POOLED_FROM = 1 << 20  # bytes; what is smaller malloc has at hand


@dataclass(frozen=True, slots=True, eq=False)
class Cargo:
    """What travels on one route.

    Attributes
    ----------
    route : Route
    dtype : torch.dtype
    trailing : tuple of int
        Shape of one element.
    by_row : bool
        Whether rows are wanted each in a tensor of its own; those share memory.
    values : Tensor[sum of ``route.leaving.lengths``, *trailing], sequence of Tensor, or None
        The rank's rows; None on a rank that only receives.
    """

    route: Route
    dtype: torch.dtype
    trailing: tuple[int, ...]
    by_row: bool
    values: Values | None

    @property
    def width(self) -> int:
        """Bytes of an element."""
        return math.prod(self.trailing) * int(self.dtype.itemsize)

    def slab(self, memory: Tensor, start: int, elements: int) -> Tensor:
        """Return a piece of memory as elements."""
        piece = memory[start : start + elements * self.width]
        return piece.view(self.dtype).view(elements, *self.trailing)


def as_whole(values: Values) -> Tensor:
    """Return rows one after the other in one tensor; there must be at least one if they are by row."""
    return values if isinstance(values, Tensor) else torch.cat(list(values))


class Scratch:
    """Host memory that is used again step after step, as fresh pages cost more than the copies into them."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8, device="cpu")

    def take(self, size: int, device: torch.device) -> Tensor:
        """Return uint8[size], on the host the same memory at every call; CUDA's allocator keeps its own."""
        if device.type != "cpu":
            return torch.empty(size, dtype=torch.uint8, device=device)
        if len(self._memory) < size:
            self._memory = torch.empty(size + size // 4, dtype=torch.uint8, device="cpu")
        return self._memory[:size]


class Pool:
    """Host memory for what is handed out, which returns here once no tensor lies in it any more.

    So what is handed out is as good as fresh, but for the page faults of fresh memory.
    """

    def __init__(self) -> None:
        self._free: list[NDArray[np.uint8]] = []

    def take(self, size: int, device: torch.device) -> Tensor:
        """Return uint8[size] that nobody else holds."""
        if device.type != "cpu" or size < POOLED_FROM:
            return torch.empty(size, dtype=torch.uint8, device=device)
        fits = [index for index, block in enumerate(self._free) if size <= len(block) <= 2 * size]
        if fits:
            block = self._free.pop(min(fits, key=lambda index: len(self._free[index])))
        else:
            self._free.clear()
            block = np.empty(size + size // 4, dtype=np.uint8)
        lent = block[:size]  # which lives as long as any tensor in it
        weakref.finalize(lent, self._free.append, block).atexit = False
        return torch.from_numpy(lent)


class Memory:
    """What a rank packs into, what arrives in, and what is handed out."""

    def __init__(self) -> None:
        self.sent, self.arrived, self.lent = Scratch(), Scratch(), Pool()


def move(
    cargoes: Sequence[Cargo],
    all_to_all: AllToAll,
    memory: Memory,
    device: torch.device,
    own: int | None,
    packed: Tensor | None = None,
) -> tuple[Tensor, list[Values]]:
    """Bring every cargo along its route, all in one all-to-all.

    Parameters
    ----------
    cargoes : sequence of Cargo
        At least one; either all have values or none.
    all_to_all : callable
    memory : Memory
    device : torch.device
    own : int or None
        The rank itself, whose rows that stay need no wire; None: they take it too, for peers that listen.
    packed : uint8[k], optional
        The memory that the move the other way returned, with its rows still in it: those by row are not packed again.

    Returns
    -------
    Tensor
        The memory in which rows by row lie.
    list of (Tensor or list of Tensor)
        Of each cargo the rows as they lie after, in memory that nobody else holds.
    """
    leaving, coming = [cargo.route.leaving for cargo in cargoes], [cargo.route.coming for cargo in cargoes]
    given = [_pieces(cargo) for cargo in cargoes]
    starts, sends, kept = _stowed(cargoes, leaving, own)
    sent = memory.sent.take(kept + sum(sends), device) if packed is None else packed
    for cargo, pieces, start in zip(cargoes, given, starts, strict=True):
        if packed is None or not cargo.by_row:
            _pack(cargo, pieces, start, sent, own)
    outgoing = sent[kept:] if any(given) else sent[:0]
    starts, receives, kept = _stowed(cargoes, coming, own)
    by_row = any(cargo.by_row for cargo in cargoes)
    arrived = (memory.lent if by_row else memory.arrived).take(kept + sum(receives), device)
    stays: list[list[Tensor]] = [[] if own is None else pieces.get(own, []) for pieces in given]
    values: list[Values] = [[]] * len(cargoes)

    def meanwhile() -> None:  # rows are cut out of memory that is being filled; those that stay are put there
        for index, cargo in enumerate(cargoes):
            if cargo.by_row:
                values[index] = _rows(cargo, starts[index], arrived, own, stays[index])

    all_to_all(outgoing, sends, receives, arrived[kept:], meanwhile)
    for index, cargo in enumerate(cargoes):
        if not cargo.by_row:
            values[index] = _whole(cargo, starts[index], arrived, own, stays[index], memory.lent)
    return arrived, values


def _stowed(cargoes: Sequence[Cargo], ends: Sequence[End], own: int | None) -> tuple[list[list[int]], list[int], int]:
    """Return where the slabs begin, by cargo and rank; the bytes of each rank on the wire; those before the wire's.

    The slabs of what stays come first, by row ones alone: others are copied from where they are to where they go.
    """
    size = np.stack([end.elements * cargo.width for cargo, end in zip(cargoes, ends, strict=True)], axis=1)
    size = size + (ALIGNMENT - 1) & -ALIGNMENT  # [rank, cargo]
    if own is not None:
        size[own] *= [cargo.by_row for cargo in cargoes]
    by_rank = size.sum(axis=1)
    start: NDArray[np.int64] = (np.cumsum(size) - size.reshape(-1)).reshape(size.shape)
    kept = 0
    if own is not None:
        kept = int(by_rank[own])
        by_rank[own] = 0
        start[own] -= start[own, 0].copy()
        start[:own] += kept
    starts: list[list[int]] = start.T.tolist()
    return starts, by_rank.tolist(), kept


def _pieces(cargo: Cargo) -> dict[int, list[Tensor]]:
    """Return by rank the tensors which, one after the other, are what goes there."""
    values, end = cargo.values, cargo.route.leaving
    if values is None:
        return {}
    if not isinstance(values, Tensor):
        ordered = [values[row] for row in end.rows]
    elif end.in_order:
        whole = values.split(end.elements.tolist())
        return {rank: [whole[rank]] for rank, _, _ in end.slabs}
    else:
        rows = values.split(end.lengths.tolist())
        ordered = [rows[row] for row in end.rows]
    return {rank: ordered[rows] for rank, rows, _ in end.slabs}


def _pack(cargo: Cargo, pieces: dict[int, list[Tensor]], start: list[int], memory: Tensor, own: int | None) -> None:
    for rank, _, elements in cargo.route.leaving.slabs:
        if rank != own and elements and pieces:
            _join(pieces[rank], cargo.slab(memory, start[rank], elements))


def _rows(cargo: Cargo, start: list[int], memory: Tensor, own: int | None, stays: list[Tensor]) -> list[Tensor]:
    """Return the rows as they lie after, each a piece of the memory, where those that stay are put too."""
    end = cargo.route.coming
    arrived: list[Tensor] = []
    for rank, rows, elements in end.slabs:
        slab = cargo.slab(memory, start[rank], elements)
        if rank == own and elements:
            _join(stays, slab)
        arrived += slab.unsafe_split_with_sizes(end.sizes[rows])  # no grad here: as split does, faster
    return _as_they_lie(arrived, end)


def _whole(cargo: Cargo, start: list[int], memory: Tensor, own: int | None, stays: list[Tensor], lent: Pool) -> Tensor:
    """Return the rows as they lie after in one tensor; those that stay are taken from where they are."""
    end = cargo.route.coming
    pieces: list[Tensor] = []
    for rank, rows, elements in end.slabs:
        slabs = stays if rank == own else [cargo.slab(memory, start[rank], elements)]
        sizes = end.sizes[rows]
        pieces += slabs if end.in_order or len(slabs) == len(sizes) else slabs[0].split(sizes)
    elements = int(end.elements.sum())
    whole = cargo.slab(lent.take(elements * cargo.width, memory.device), 0, elements)
    if elements:
        _join(pieces if end.in_order else _as_they_lie(pieces, end), whole)
    return whole


def _join(pieces: list[Tensor], memory: Tensor) -> None:
    """Copy the pieces, one after the other, into memory of their size."""
    with torch.no_grad():  # a caller may have asked for gradients of rows that were handed out
        torch.cat(pieces, out=memory)


def _as_they_lie(arrived: list[Tensor], end: End) -> list[Tensor]:
    if end.in_order:
        return arrived
    lie = arrived.copy()
    for row, tensor in zip(end.rows, arrived, strict=True):
        lie[row] = tensor
    return lie
