"""The wire: rows of several fields packed into one buffer of bytes, so that one all-to-all carries all of them.

To each rank go its rows of the first field, then those of the second, and so on: a slab of memory for each, which
begins at a multiple of 16 bytes so that any dtype may lie in it. No header: both sides know every length from the plan.
What stays on its rank does not go by the wire.

Each byte is copied once into the buffer. Rows that are wanted as tensors of their own are then left where they arrived;
and as they lie there in the order in which they would be sent back, the way back needs no copy. Fields that are wanted
in one piece are copied out once more. (By themselves they could arrive where they are wanted, but the collectives that
this takes cost what the copies do: see benchmarks/README.md.)
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from balancer.executor.memory import Memory, Pool
from balancer.executor.route import End, Route
from balancer.executor.runs import bytes_of, copy_runs

__all__ = ["AllToAll", "Cargo", "Values", "as_whole", "move"]

Values: TypeAlias = Tensor | Sequence[Tensor]
"""A field's rows: one after the other in one tensor, or each in a tensor of its own."""

AllToAll = Callable[[Tensor, Sequence[int], Sequence[int], Tensor, Callable[[], None]], None]
"""Given a buffer, bytes to, and bytes from each rank, memory to fill with what arrives, and what to do meanwhile."""

ALIGNMENT = 16


@dataclass(frozen=True, eq=False)
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

    @cached_property
    def width(self) -> int:
        """Bytes of an element."""
        return math.prod(self.trailing) * int(self.dtype.itemsize)

    @cached_property
    def leaving(self) -> dict[int, list[Tensor]]:
        """By rank the tensors which, one after the other, are what goes there."""
        values, end = self.values, self.route.leaving
        if values is None:
            return {}
        if isinstance(values, Tensor) and end.in_order:
            whole = values.split(end.elements.tolist())
            return {rank: [whole[rank]] for rank, _, _ in end.slabs}
        rows = values.split(end.lengths.tolist()) if isinstance(values, Tensor) else values
        ordered = [rows[row] for row in end.rows]
        return {rank: ordered[part] for rank, part, _ in end.slabs}

    def slab(self, memory: Tensor, start: int, elements: int) -> Tensor:
        """Return a piece of memory as elements."""
        piece = memory[start : start + elements * self.width]
        return piece.view(self.dtype).view(elements, *self.trailing)


def as_whole(values: Values) -> Tensor:
    """Return rows one after the other in one tensor; there must be at least one if they are by row."""
    return values if isinstance(values, Tensor) else torch.cat(list(values))


def move(
    cargoes: Sequence[Cargo],
    all_to_all: AllToAll,
    memory: Memory,
    device: torch.device,
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
    packed : uint8[k], optional
        The memory that the move the other way returned, with its rows still in it: those by row are not packed again.

    Returns
    -------
    Tensor
        The memory in which rows by row lie.
    list of (Tensor or list of Tensor)
        Of each cargo the rows as they lie after, in memory that nobody else holds.
    """
    starts, sends, kept = _stowed(cargoes, [cargo.route.leaving for cargo in cargoes])
    sent = memory.sent.take(kept + sum(sends), device) if packed is None else packed
    for cargo, start in zip(cargoes, starts, strict=True):
        if not cargo.by_row:
            _pack(cargo, start, sent)
        elif packed is None:
            _pack_rows(cargo, start, sent)
    outgoing = sent[:0] if cargoes[0].values is None else sent[kept:]
    starts, receives, kept = _stowed(cargoes, [cargo.route.coming for cargo in cargoes])
    by_row = any(cargo.by_row for cargo in cargoes)
    arrived = (memory.lent if by_row else memory.arrived).take(kept + sum(receives), device)
    values: list[Values] = [[]] * len(cargoes)

    def meanwhile() -> None:  # rows are cut out of memory that is being filled; those that stay are put there
        for index, cargo in enumerate(cargoes):
            if cargo.by_row:
                values[index] = _rows(cargo, starts[index], arrived)

    all_to_all(outgoing, sends, receives, arrived[kept:], meanwhile)
    for index, cargo in enumerate(cargoes):
        if not cargo.by_row:
            values[index] = _whole(cargo, starts[index], arrived, memory.lent)
    return arrived, values


def _stowed(cargoes: Sequence[Cargo], ends: Sequence[End]) -> tuple[NDArray[np.int64], list[int], int]:
    """Return where the slabs begin, [cargo, rank]; the bytes of each rank on the wire; those before the wire's.

    The slabs of what stays come first, by row ones alone: others are copied from where they are to where they go.
    """
    size = np.array([end.elements * cargo.width for cargo, end in zip(cargoes, ends, strict=True)])  # [cargo, rank]
    size = size + (ALIGNMENT - 1) & -ALIGNMENT
    own, stays = cargoes[0].route.own, np.zeros(len(cargoes), dtype=np.int64)
    if own >= 0:
        stays = size[:, own] * [cargo.by_row for cargo in cargoes]
        size[:, own] = 0
    kept = int(stays.sum())
    start: NDArray[np.int64] = kept + size.T.cumsum().reshape(size.T.shape).T - size
    if own >= 0:
        start[:, own] = stays.cumsum() - stays
    return start, size.sum(axis=0).tolist(), kept


# Fields in one piece. On the host all rows are copied in one call; elsewhere they are joined as tensors.


def _pack(cargo: Cargo, start: NDArray[np.int64], memory: Tensor) -> None:
    """Copy rows to where they leave from, but for those that stay."""
    rows, width = cargo.route.leave, cargo.width
    if not _on_host(memory):
        _pack_rows(cargo, start, memory)
    elif cargo.values is not None and len(rows.sizes):
        at = start[rows.ranks] + rows.wire * width
        copy_runs(bytes_of(cargo.values), rows.lie * width, memory, at, rows.sizes * width)


def _whole(cargo: Cargo, start: NDArray[np.int64], memory: Tensor, lent: Pool) -> Tensor:
    """Return the rows as they lie after in one tensor; those that stay are taken from where they are."""
    width, elements = cargo.width, int(cargo.route.coming.lengths.sum())
    whole = lent.take(elements * width, memory.device)
    if not _on_host(memory):
        return _joined(cargo, start, memory, cargo.slab(whole, 0, elements))
    rows, (before, after) = cargo.route.come, cargo.route.stay
    at = start[rows.ranks] + rows.wire * width
    copy_runs(memory, at, whole, rows.lie * width, rows.sizes * width)
    if cargo.values is not None and len(after.sizes):
        copy_runs(bytes_of(cargo.values), before.lie * width, whole, after.lie * width, after.sizes * width)
    return cargo.slab(whole, 0, elements)


def _joined(cargo: Cargo, start: NDArray[np.int64], memory: Tensor, whole: Tensor) -> Tensor:
    """Fill the rows as they lie after, from tensors: a device has no runs of bytes, but joins many tensors at once."""
    end, rows = cargo.route.coming, list[Tensor]()
    for rank, part, elements in end.slabs:
        sizes = end.sizes[part].tolist()
        given = cargo.leaving[rank] if rank == cargo.route.own else [cargo.slab(memory, int(start[rank]), elements)]
        rows += given if end.in_order or len(given) == len(sizes) else given[0].split(sizes)
    if rows:
        _join(_as_they_lie(rows, end), whole)
    return whole


def _on_host(memory: Tensor) -> bool:
    return bool(memory.device.type == "cpu")


# Fields by row.


def _pack_rows(cargo: Cargo, start: NDArray[np.int64], memory: Tensor) -> None:
    for rank, _, elements in cargo.route.leaving.slabs:
        if rank != cargo.route.own and elements and cargo.leaving:
            _join(cargo.leaving[rank], cargo.slab(memory, int(start[rank]), elements))


def _rows(cargo: Cargo, start: NDArray[np.int64], memory: Tensor) -> list[Tensor]:
    """Return the rows as they lie after, each a piece of the memory, where those that stay are put too."""
    end = cargo.route.coming
    sizes, rows = end.sizes.tolist(), list[Tensor]()
    for rank, part, elements in end.slabs:
        slab = cargo.slab(memory, int(start[rank]), elements)
        if rank == cargo.route.own and elements:
            _join(cargo.leaving[rank], slab)
        rows += slab.unsafe_split_with_sizes(sizes[part])  # no grad here: as split does, faster
    return _as_they_lie(rows, end)


def _join(rows: Sequence[Tensor], memory: Tensor) -> None:
    """Copy rows, one after the other, into memory of their size."""
    with torch.no_grad():  # a caller may have asked for gradients of rows that were handed out
        torch.cat(rows, out=memory)


def _as_they_lie(arrived: list[Tensor], end: End) -> list[Tensor]:
    if end.in_order:
        return arrived
    lie = arrived.copy()
    for row, tensor in zip(end.rows, arrived, strict=True):
        lie[row] = tensor
    return lie
