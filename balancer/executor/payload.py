"""Payload: several fields in one buffer of bytes, so that one all-to-all carries all of them.

What leaves a rank lies in its buffer as this, and what arrives at it likewise::

    | what stays, of fields by row | for rank 0: field 0, field 1, ... | for rank 1: field 0, field 1, ... | ...

Each block, the part of one field for one rank, begins at a multiple of 16 bytes, so that any dtype may lie in it. There
is no header: both sides know every length from the plan. What stays on its rank is not sent.

A field is one of two kinds. *By row*, each row is wanted as a tensor of its own: rows are copied once, into the buffer,
and handed out as parts of the buffer in which they arrived. They lie there in the order in which they would be sent
back, so that the way back needs no copy. *In one piece*, the field is wanted as one tensor: it is copied out of the
buffer once more, and what stays is copied straight from the field before to the field after. (Fields by themselves
could arrive where they are wanted, but the collectives for that cost what the copies do: docs/benchmarks/executor.md.)
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from balancer.executor.collectives import Meanwhile, Sizes
from balancer.executor.memory import Memory, Pool, bytes_of, copy_runs
from balancer.plan.route import Route, RouteEnd

__all__ = ["AllToAll", "Payload", "Values", "as_whole", "exchange_payloads"]

Values: TypeAlias = Tensor | Sequence[Tensor]
"""A field's rows: one after the other in one tensor, or each in a tensor of its own."""

AllToAll: TypeAlias = Callable[[Tensor, Sizes, Sizes, Tensor, Meanwhile], None]
"""See :meth:`balancer.executor.collectives.Collectives.all_to_all`."""

# Bytes: the widest dtype, complex128, takes so many, and views of memory must begin at a multiple of their dtype's.
ALIGNMENT = 16


@dataclass(frozen=True, eq=False)
class Payload:
    """One field of an exchange: what travels on one route.

    A *replica peer* is a rank that computes the same as another, its leader: it sends nothing, and gets what its leader
    got by a broadcast. Blocks of a route's end are (rank, part, count): a rank, a slice of the end's runs, and how many
    elements these have.
    """

    route: Route
    dtype: torch.dtype
    trailing: tuple[int, ...]  # shape of one element
    by_row: bool  # whether each row is wanted as a tensor of its own; the route then is of whole rows
    values: Values | None  # what the rank has before; None on a replica peer, which only receives

    @cached_property
    def width(self) -> int:
        """Bytes of an element."""
        return math.prod(self.trailing) * int(self.dtype.itemsize)

    @cached_property
    def tensors_for(self) -> dict[int, list[Tensor]]:
        """By rank, the tensors that go there, in order."""
        values, end = self.values, self.route.sending
        if values is None:
            return {}
        if isinstance(values, Tensor) and end.in_order:
            whole = values.split(end.elements.tolist())
            return {rank: [whole[rank]] for rank, _, _ in end.blocks}
        if end.whole:
            rows = values.split(end.lengths.tolist()) if isinstance(values, Tensor) else values
            ordered = [rows[row] for row in end.order.tolist()]
        else:
            bounds = zip(end.starts.tolist(), (end.starts + end.sizes).tolist(), strict=True)
            ordered = [as_whole(values)[start:stop] for start, stop in bounds]
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

    Returns the buffer in which all arrived, and of each payload what the rank has after, in memory that nobody else
    holds. `packed` is the buffer that the exchange the other way returned: its rows are not packed again.
    """
    starts, sends, kept = _blocks(payloads, [payload.route.sending for payload in payloads])
    sent = memory.sent.take(kept + sum(sends), device) if packed is None else packed
    for payload, start in zip(payloads, starts, strict=True):
        if not payload.by_row:
            _pack(payload, start, sent)
        elif packed is None:
            _pack_rows(payload, start, sent)
    # A replica peer sends nothing, and gets by a broadcast what its leader got: so it lays out what arrives likewise.
    outgoing = sent[:0] if payloads[0].values is None else sent[kept:]
    starts, receives, kept = _blocks(payloads, [payload.route.receiving for payload in payloads])
    # Rows by row stay where they arrive, so that memory is the caller's; otherwise the next step uses it again.
    by_row = any(payload.by_row for payload in payloads)
    arrived = (memory.handed_out if by_row else memory.arrived).take(kept + sum(receives), device)
    values: list[Values] = [[]] * len(payloads)

    def meanwhile() -> None:  # rows are cut out of memory that is being filled; those that stay are put there
        for index, payload in enumerate(payloads):
            if payload.by_row:
                values[index] = _rows(payload, starts[index], arrived)

    all_to_all(outgoing, sends, receives, arrived[kept:], meanwhile)
    for index, payload in enumerate(payloads):
        if not payload.by_row:
            values[index] = _whole(payload, starts[index], arrived, memory.handed_out)
    return arrived, values


def _blocks(payloads: Sequence[Payload], ends: Sequence[RouteEnd]) -> tuple[NDArray[np.int64], list[int], int]:
    """Return where each block begins, [payload, rank]; the bytes for each rank; and the bytes of what stays."""
    # A table [payload, rank], filled column by column: a rank's blocks are one piece, as an all-to-all takes them.
    size = np.array([end.elements * payload.width for payload, end in zip(payloads, ends, strict=True)])
    # Up to the next multiple: "+" binds before "&".
    size = size + (ALIGNMENT - 1) & -ALIGNMENT  # [payload, rank]
    # What stays is in the buffer only for fields by row, in front, so that what is sent is the rest of the buffer.
    own, stays = payloads[0].route.own, np.zeros(len(payloads), dtype=np.int64)
    if own >= 0:
        stays = size[:, own] * [payload.by_row for payload in payloads]
        size[:, own] = 0
    kept = int(stays.sum())
    start: NDArray[np.int64] = kept + size.T.cumsum().reshape(size.T.shape).T - size
    if own >= 0:
        start[:, own] = stays.cumsum() - stays
    return start, size.sum(axis=0).tolist(), kept


# Fields in one piece. On the host all runs are copied in one call; elsewhere they are joined as tensors.


def _pack(payload: Payload, start: NDArray[np.int64], memory: Tensor) -> None:
    """Copy runs to where they leave from, but for those that stay."""
    runs, width = payload.route.sent, payload.width
    if not _on_host(memory):
        _pack_rows(payload, start, memory)
    elif payload.values is not None and len(runs.sizes):
        put = start[runs.ranks] + runs.starts_in_block * width
        copy_runs(bytes_of(payload.values), runs.starts * width, memory, put, runs.sizes * width)


def _whole(payload: Payload, start: NDArray[np.int64], memory: Tensor, pool: Pool) -> Tensor:
    """Return what the rank has after in one tensor; what stays is taken from where it is, and padding is zeros."""
    width, end = payload.width, payload.route.receiving
    whole = pool.take(end.total * width, memory.device)
    if not _on_host(memory):
        return _joined(payload, start, memory, payload.elements(whole, 0, end.total))
    if int(end.sizes.sum()) < end.total:
        whole.zero_()
    runs, (before, after) = payload.route.received, payload.route.kept
    taken = start[runs.ranks] + runs.starts_in_block * width
    copy_runs(memory, taken, whole, runs.starts * width, runs.sizes * width)
    if payload.values is not None and len(after.sizes):
        copy_runs(bytes_of(payload.values), before.starts * width, whole, after.starts * width, after.sizes * width)
    return payload.elements(whole, 0, end.total)


def _joined(payload: Payload, start: NDArray[np.int64], memory: Tensor, whole: Tensor) -> Tensor:
    """Fill what the rank has after, from tensors: a device has no runs of bytes, but joins many tensors at once."""
    end, runs = payload.route.receiving, list[Tensor]()
    for rank, part, count in end.blocks:
        stays = rank == payload.route.own
        given = payload.tensors_for[rank] if stays else [payload.elements(memory, int(start[rank]), count)]
        sizes = end.sizes[part].tolist()
        runs += given if end.in_order or len(given) == len(sizes) else given[0].split(sizes)
    if not end.in_order:
        runs = _among_padding(runs, end, whole)
    if runs:
        _join(runs, whole)
    return whole


def _among_padding(runs: Sequence[Tensor], end: RouteEnd, like: Tensor) -> list[Tensor]:
    """Return runs in the order in which they lie, with zeros in all gaps: one join is cheaper than an index of each."""
    order = np.lexsort((end.sizes, end.starts))  # rows of nothing before what begins at the same place
    gaps = np.append(end.starts[order], end.total) - np.append(0, (end.starts + end.sizes)[order])
    zeros = like.new_zeros((int(gaps.max()), *like.shape[1:]))
    pairs = [(zeros[:gap], runs[run]) for gap, run in zip(gaps.tolist(), order.tolist(), strict=False)]
    return [*chain.from_iterable(pairs), zeros[: int(gaps[-1])]]


def _on_host(memory: Tensor) -> bool:
    return bool(memory.device.type == "cpu")


# Fields by row.


def _pack_rows(payload: Payload, start: NDArray[np.int64], memory: Tensor) -> None:
    for rank, _, count in payload.route.sending.blocks:
        if rank != payload.route.own and count and payload.tensors_for:
            _join(payload.tensors_for[rank], payload.elements(memory, int(start[rank]), count))


def _rows(payload: Payload, start: NDArray[np.int64], memory: Tensor) -> list[Tensor]:
    """Return the rows as they lie after, each a piece of the memory, where those that stay are put too."""
    end, arrived = payload.route.receiving, list[Tensor]()
    sizes = end.sizes.tolist()
    for rank, part, count in end.blocks:
        block = payload.elements(memory, int(start[rank]), count)
        if rank == payload.route.own and count:
            _join(payload.tensors_for[rank], block)
        arrived += block.unsafe_split_with_sizes(sizes[part])  # no grad here: as split does, faster
    if end.in_order:
        return arrived
    # Where some rows do not travel, they have no elements.
    some = len(arrived) < len(end.lengths)
    rows = [payload.elements(memory, 0, 0)] * len(end.lengths) if some else arrived.copy()
    for row, tensor in zip(end.order.tolist(), arrived, strict=True):
        rows[row] = tensor
    return rows


def _join(rows: Sequence[Tensor], memory: Tensor) -> None:
    """Copy rows, one after the other, into memory of their size."""
    with torch.no_grad():  # a caller may have asked for gradients of rows that were handed out
        torch.cat(rows, out=memory)
