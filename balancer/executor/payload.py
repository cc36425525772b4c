"""Payload: rows of several fields packed into one buffer of bytes, so that one all-to-all carries all of them.

To each rank go its rows of the first field, then those of the second, and so on: a block of memory for each, which
begins at a multiple of 16 bytes so that any dtype may lie in it. No header: both sides know every length from the plan.
What stays on its rank is not sent.

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

from balancer.executor.byte_runs import bytes_of, copy_runs
from balancer.executor.collectives import Meanwhile, Sizes
from balancer.executor.memory import Memory, Pool
from balancer.executor.route import Route, RouteEnd

__all__ = ["AllToAll", "Payload", "Values", "as_whole", "exchange_payloads"]

Values: TypeAlias = Tensor | Sequence[Tensor]
"""A field's rows: one after the other in one tensor, or each in a tensor of its own."""

AllToAll: TypeAlias = Callable[[Tensor, Sizes, Sizes, Tensor, Meanwhile], None]
"""See :meth:`balancer.executor.collectives.Collectives.all_to_all`."""

ALIGNMENT = 16


@dataclass(frozen=True, eq=False)
class Payload:
    """What travels on one route."""

    route: Route
    dtype: torch.dtype
    trailing: tuple[int, ...]  # shape of one element
    by_row: bool  # whether rows are wanted each in a tensor of its own; those share memory
    values: Values | None  # the rank's rows; None on a rank that only receives

    @cached_property
    def width(self) -> int:
        """Bytes of an element."""
        return math.prod(self.trailing) * int(self.dtype.itemsize)

    @cached_property
    def tensors_for(self) -> dict[int, list[Tensor]]:
        """By rank the tensors which, one after the other, are what goes there."""
        values, end = self.values, self.route.sending
        if values is None:
            return {}
        if isinstance(values, Tensor) and end.in_order:
            whole = values.split(end.elements.tolist())
            return {rank: [whole[rank]] for rank, _, _ in end.blocks}
        rows = values.split(end.lengths.tolist()) if isinstance(values, Tensor) else values
        ordered = [rows[row] for row in end.order.tolist()]
        return {rank: ordered[part] for rank, part, _ in end.blocks}

    def elements(self, memory: Tensor, start: int, count: int) -> Tensor:
        """Return a piece of memory as elements."""
        return memory[start : start + count * self.width].view(self.dtype).view(count, *self.trailing)


def as_whole(values: Values) -> Tensor:
    """Return rows one after the other in one tensor; there must be at least one if they are by row."""
    return values if isinstance(values, Tensor) else torch.cat(list(values))


def exchange_payloads(
    payloads: Sequence[Payload],
    all_to_all: AllToAll,
    memory: Memory,
    device: torch.device,
    packed: Tensor | None = None,
) -> tuple[Tensor, list[Values]]:
    """Bring every payload along its route, all in one all-to-all; either all of them have values or none.

    `packed` is the memory that the exchange the other way returned, with its rows still in it: those by row are not
    packed again. Returned are the memory in which rows by row lie, and of each payload the rows as they lie after, in
    memory that nobody else holds.
    """
    starts, sends, kept = _blocks(payloads, [payload.route.sending for payload in payloads])
    sent = memory.sent.take(kept + sum(sends), device) if packed is None else packed
    for payload, start in zip(payloads, starts, strict=True):
        if not payload.by_row:
            _pack(payload, start, sent)
        elif packed is None:
            _pack_rows(payload, start, sent)
    outgoing = sent[:0] if payloads[0].values is None else sent[kept:]
    starts, receives, kept = _blocks(payloads, [payload.route.receiving for payload in payloads])
    by_row = any(payload.by_row for payload in payloads)
    arrived = (memory.lent if by_row else memory.arrived).take(kept + sum(receives), device)
    values: list[Values] = [[]] * len(payloads)

    def meanwhile() -> None:  # rows are cut out of memory that is being filled; those that stay are put there
        for index, payload in enumerate(payloads):
            if payload.by_row:
                values[index] = _rows(payload, starts[index], arrived)

    all_to_all(outgoing, sends, receives, arrived[kept:], meanwhile)
    for index, payload in enumerate(payloads):
        if not payload.by_row:
            values[index] = _whole(payload, starts[index], arrived, memory.lent)
    return arrived, values


def _blocks(payloads: Sequence[Payload], ends: Sequence[RouteEnd]) -> tuple[NDArray[np.int64], list[int], int]:
    """Return where the blocks begin, [payload, rank]; the bytes sent to each rank; those before what is sent.

    The blocks of what stays come first, by row ones alone: others are copied from where they are to where they go.
    """
    size = np.array([end.elements * payload.width for payload, end in zip(payloads, ends, strict=True)])
    size = size + (ALIGNMENT - 1) & -ALIGNMENT  # [payload, rank]
    own, stays = payloads[0].route.own, np.zeros(len(payloads), dtype=np.int64)
    if own >= 0:
        stays = size[:, own] * [payload.by_row for payload in payloads]
        size[:, own] = 0
    kept = int(stays.sum())
    start: NDArray[np.int64] = kept + size.T.cumsum().reshape(size.T.shape).T - size
    if own >= 0:
        start[:, own] = stays.cumsum() - stays
    return start, size.sum(axis=0).tolist(), kept


# Fields in one piece. On the host all rows are copied in one call; elsewhere they are joined as tensors.


def _pack(payload: Payload, start: NDArray[np.int64], memory: Tensor) -> None:
    """Copy rows to where they leave from, but for those that stay."""
    rows, width = payload.route.sent, payload.width
    if not _on_host(memory):
        _pack_rows(payload, start, memory)
    elif payload.values is not None and len(rows.sizes):
        put = start[rows.ranks] + rows.starts_in_block * width
        copy_runs(bytes_of(payload.values), rows.starts * width, memory, put, rows.sizes * width)


def _whole(payload: Payload, start: NDArray[np.int64], memory: Tensor, lent: Pool) -> Tensor:
    """Return the rows as they lie after in one tensor; those that stay are taken from where they are."""
    width, count = payload.width, int(payload.route.receiving.lengths.sum())
    whole = lent.take(count * width, memory.device)
    if not _on_host(memory):
        return _joined(payload, start, memory, payload.elements(whole, 0, count))
    rows, (before, after) = payload.route.received, payload.route.kept
    taken = start[rows.ranks] + rows.starts_in_block * width
    copy_runs(memory, taken, whole, rows.starts * width, rows.sizes * width)
    if payload.values is not None and len(after.sizes):
        copy_runs(bytes_of(payload.values), before.starts * width, whole, after.starts * width, after.sizes * width)
    return payload.elements(whole, 0, count)


def _joined(payload: Payload, start: NDArray[np.int64], memory: Tensor, whole: Tensor) -> Tensor:
    """Fill the rows as they lie after, from tensors: a device has no runs of bytes, but joins many tensors at once."""
    end, rows = payload.route.receiving, list[Tensor]()
    for rank, part, count in end.blocks:
        stays = rank == payload.route.own
        given = payload.tensors_for[rank] if stays else [payload.elements(memory, int(start[rank]), count)]
        sizes = end.sizes[part].tolist()
        rows += given if end.in_order or len(given) == len(sizes) else given[0].split(sizes)
    if rows:
        _join(_as_they_lie(rows, end), whole)
    return whole


def _on_host(memory: Tensor) -> bool:
    return bool(memory.device.type == "cpu")


# Fields by row.


def _pack_rows(payload: Payload, start: NDArray[np.int64], memory: Tensor) -> None:
    for rank, _, count in payload.route.sending.blocks:
        if rank != payload.route.own and count and payload.tensors_for:
            _join(payload.tensors_for[rank], payload.elements(memory, int(start[rank]), count))


def _rows(payload: Payload, start: NDArray[np.int64], memory: Tensor) -> list[Tensor]:
    """Return the rows as they lie after, each a piece of the memory, where those that stay are put too."""
    end, rows = payload.route.receiving, list[Tensor]()
    sizes = end.sizes.tolist()
    for rank, part, count in end.blocks:
        block = payload.elements(memory, int(start[rank]), count)
        if rank == payload.route.own and count:
            _join(payload.tensors_for[rank], block)
        rows += block.unsafe_split_with_sizes(sizes[part])  # no grad here: as split does, faster
    return _as_they_lie(rows, end)


def _join(rows: Sequence[Tensor], memory: Tensor) -> None:
    """Copy rows, one after the other, into memory of their size."""
    with torch.no_grad():  # a caller may have asked for gradients of rows that were handed out
        torch.cat(rows, out=memory)


def _as_they_lie(arrived: list[Tensor], end: RouteEnd) -> list[Tensor]:
    if end.in_order:
        return arrived
    rows = arrived.copy()
    for row, tensor in zip(end.order.tolist(), arrived, strict=True):
        rows[row] = tensor
    return rows
