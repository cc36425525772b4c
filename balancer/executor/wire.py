"""The wire: rows of several tensors packed into one buffer of bytes, so that one all-to-all carries all of them.

To each rank go the rows of the first tensor, then those of the second, and so on; no header, no padding: both sides
know every length from the plan.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from balancer.executor.route import Route
from solvers.groups import group_loads

__all__ = ["Cargo", "Scratch", "move"]

AllToAll = Callable[[Tensor, Sequence[int], Sequence[int]], Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Cargo:
    """What travels on one route.

    Attributes
    ----------
    route : Route
    dtype : torch.dtype
    trailing : tuple of int
        Shape of one element.
    values : Tensor[sum of ``route.before``, *trailing] or None
        The rank's rows, one after the other; None on a rank that only receives.
    """

    route: Route
    dtype: torch.dtype
    trailing: tuple[int, ...]
    values: Tensor | None

    @property
    def width(self) -> int:
        """Bytes of an element."""
        return math.prod(self.trailing) * int(self.dtype.itemsize)


class Scratch:
    """Host memory that is used again step after step, as fresh pages cost more than the copies into them."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def take(self, size: int, device: torch.device) -> Tensor:
        """Return uint8[size], on the host the same memory at every call; CUDA's allocator keeps its own."""
        if device.type != "cpu":
            return torch.empty(size, dtype=torch.uint8, device=device)
        if len(self._memory) < size:
            self._memory = torch.empty(size + size // 4, dtype=torch.uint8)
        return self._memory[:size]


def move(
    cargoes: Sequence[Cargo], all_to_all: AllToAll, scratch: Scratch, device: torch.device, own: int | None
) -> list[Tensor]:
    """Bring every cargo along its route, all in one all-to-all.

    Parameters
    ----------
    cargoes : sequence of Cargo
    all_to_all : callable
        Given a buffer, bytes to, and bytes from each rank, returns what arrives.
    scratch : Scratch
        For the buffer that is sent.
    device : torch.device
    own : int or None
        The rank itself, whose rows that stay need no wire; None: they take it too, for peers that listen.

    Returns
    -------
    list of Tensor
        Of each cargo the rows as they lie after, one after the other; fresh memory. Each byte is copied once into the
        buffer and once out of it; what stays, once.
    """
    sent, received = _Side.of(cargoes, there=False), _Side.of(cargoes, there=True)
    stays = sent.peer == own if own is not None else np.zeros(len(sent.peer), dtype=bool)
    home = [] if any(cargo.values is None for cargo in cargoes) else [as_bytes(cargo.values) for cargo in cargoes]
    sends, receives = sent.bytes_per_rank(own), received.bytes_per_rank(own)
    buffer = scratch.take(sum(sends) if home else 0, device)
    if home:
        order = np.argsort(sent.peer, kind="stable")
        order = order[~stays[order]]
        _join(_runs(home, sent.cargo[order], sent.start[order], sent.size[order]), buffer)
    arrivals = all_to_all(buffer, sends, receives)
    memories, cargo, start = [*home, arrivals], np.full(len(received.peer), -1), received.on_wire(own)
    if own is not None:  # in the same order at both ends
        here = received.peer == own
        cargo[here], start[here] = sent.cargo[stays], sent.start[stays]
    values, first = [], 0
    for one in cargoes:
        rows = first + one.route.arrival_of_row
        first += len(rows)
        flat = torch.empty(int(one.route.after.sum()) * one.width, dtype=torch.uint8, device=arrivals.device)
        _join(_runs(memories, cargo[rows], start[rows], received.size[rows]), flat)
        shape = (int(one.route.after.sum()), *one.trailing)
        whole = flat.view(one.dtype).view(shape) if one.width else flat.new_empty(shape, dtype=one.dtype)
        values.append(whole)
    return values


class _Side(NamedTuple):
    """The rows of all cargoes at one end, cargo after cargo, each in the order in which they are sent, or arrive.

    Attributes
    ----------
    peer, cargo : int64[k]
        To, or from, whom each goes, and what of.
    start, size : int64[k]
        Where it lies in the memory of its cargo, and its bytes.
    num_ranks : int
    """

    peer: NDArray[np.int64]
    cargo: NDArray[np.int64]
    start: NDArray[np.int64]
    size: NDArray[np.int64]
    num_ranks: int

    @classmethod
    def of(cls, cargoes: Sequence[Cargo], there: bool) -> "_Side":
        parts = []
        for index, cargo in enumerate(cargoes):
            route = cargo.route
            counts, lengths, order = route.sends, route.before, route.send_rows
            if there:
                counts, lengths, order = route.receives, route.after, np.argsort(route.arrival_of_row)
            size = lengths * cargo.width
            start = np.cumsum(size) - size
            peer = np.repeat(np.arange(len(counts)), counts)
            parts.append((peer, np.full(len(peer), index), start[order], size[order]))
        peer, which, start, size = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return cls(peer, which, start, size, len(cargoes[0].route.sends))

    def bytes_per_rank(self, own: int | None) -> list[int]:
        total = group_loads(self.size, self.peer.astype(np.int32), self.num_ranks)
        if own is not None:
            total[own] = 0
        sizes: list[int] = total.tolist()
        return sizes

    def on_wire(self, own: int | None) -> NDArray[np.int64]:
        """Return where each row begins on the wire: by rank, then by cargo, then in its order."""
        order = np.argsort(self.peer, kind="stable")
        size = np.where(self.peer == own, 0, self.size)[order] if own is not None else self.size[order]
        start = np.empty_like(size)
        start[order] = np.cumsum(size) - size
        return start


def _runs(
    memories: Sequence[Tensor], which: NDArray[np.int64], start: NDArray[np.int64], size: NDArray[np.int64]
) -> list[Any]:
    """Return the pieces of memory that hold these rows in order, as few as there can be."""
    if len(start) == 0:
        return []
    first = np.ones(len(start), dtype=bool)
    first[1:] = (which[1:] != which[:-1]) | (start[1:] != start[:-1] + size[:-1])
    at = np.flatnonzero(first)
    sizes = np.add.reduceat(size, at)
    memory: Sequence[Any] = memories
    if memories[0].device.type == "cpu":
        memory = [tensor.numpy() for tensor in memories]  # whose pieces are made and copied faster
    starts = start[at]
    spans = zip(which[at].tolist(), starts.tolist(), (starts + sizes).tolist(), strict=True)
    return [memory[index][begin:end] for index, begin, end in spans]


def _join(pieces: list[Any], memory: Tensor) -> None:
    """Copy the pieces, one after the other, into memory of their size."""
    if not pieces:
        return
    if memory.device.type == "cpu":
        np.concatenate(pieces, out=memory.numpy())
    else:
        torch.cat(pieces, out=memory)


def as_bytes(values: Tensor) -> Tensor:
    """Return the same memory as uint8[bytes], copied only if it is not contiguous."""
    flat = values.detach().contiguous().view(-1)
    if flat.numel() == 0:
        return torch.empty(0, dtype=torch.uint8, device=values.device)
    return flat.view(torch.uint8)
