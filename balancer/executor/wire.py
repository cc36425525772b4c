"""The wire: rows of several tensors packed into one buffer of bytes, so that one all-to-all carries all of them.

To each rank go the rows of the first tensor, then those of the second, and so on; no header, no padding: both sides
know every length from the plan.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from balancer.executor.route import Route

__all__ = ["Cargo", "move"]

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


def move(cargoes: Sequence[Cargo], all_to_all: AllToAll, device: torch.device) -> list[Tensor]:
    """Bring every cargo along its route, all in one all-to-all.

    Returns
    -------
    list of Tensor
        Of each cargo the rows as they lie after, one after the other; fresh memory. Each byte is copied once into the
        buffer and once out of it.
    """
    sends, receives = _bytes_per_rank(cargoes, before=True), _bytes_per_rank(cargoes, before=False)
    if all(cargo.values is not None for cargo in cargoes):
        buffer = _pack(cargoes, device)
    else:
        buffer = torch.empty(0, dtype=torch.uint8, device=device)
    arrivals = all_to_all(buffer, sends, receives)
    return _unpack(cargoes, arrivals)


def _bytes_per_rank(cargoes: Sequence[Cargo], before: bool) -> list[int]:
    total = np.zeros(len(cargoes[0].route.sends), dtype=np.int64)
    for cargo in cargoes:
        route = cargo.route
        counts = route.sends if before else route.receives
        elements = route.before[route.send_rows] if before else route.after[_order(route)]
        running = np.concatenate(([0], np.cumsum(elements)))
        total += np.diff(running[np.concatenate(([0], np.cumsum(counts)))]) * cargo.width
    sizes: list[int] = total.tolist()
    return sizes


def _order(route: Route) -> NDArray[np.int64]:
    """Return the row, as they lie after, of each arrival."""
    order = np.empty_like(route.arrival_of_row)
    order[route.arrival_of_row] = np.arange(len(order))
    return order


def _pack(cargoes: Sequence[Cargo], device: torch.device) -> Tensor:
    of_cargo: list[list[Tensor]] = []
    for cargo in cargoes:
        rows = as_bytes(cargo.values).split((cargo.route.before * cargo.width).tolist())
        of_cargo.append([rows[row] for row in cargo.route.send_rows.tolist()])
    bounds = [[0, *accumulate(cargo.route.sends.tolist())] for cargo in cargoes]
    pieces: list[Tensor] = []
    for rank in range(len(cargoes[0].route.sends)):
        for rows, bound in zip(of_cargo, bounds, strict=True):
            pieces += rows[bound[rank] : bound[rank + 1]]
    return torch.cat(pieces) if pieces else torch.empty(0, dtype=torch.uint8, device=device)


def _unpack(cargoes: Sequence[Cargo], arrivals: Tensor) -> list[Tensor]:
    sizes: list[int] = []
    bounds = [[0, *accumulate(cargo.route.receives.tolist())] for cargo in cargoes]
    of_cargo = [(cargo.route.after[_order(cargo.route)] * cargo.width).tolist() for cargo in cargoes]
    for rank in range(len(cargoes[0].route.receives)):
        for row_bytes, bound in zip(of_cargo, bounds, strict=True):
            sizes += row_bytes[bound[rank] : bound[rank + 1]]
    pieces = iter(arrivals.split(sizes))
    came: list[list[Tensor]] = [[] for _ in cargoes]
    for rank in range(len(cargoes[0].route.receives)):
        for rows, bound in zip(came, bounds, strict=True):
            rows += [next(pieces) for _ in range(bound[rank + 1] - bound[rank])]
    values = []
    for cargo, rows in zip(cargoes, came, strict=True):
        inside = [rows[arrival] for arrival in cargo.route.arrival_of_row.tolist()]
        flat = torch.cat(inside) if inside else arrivals.new_empty(0)
        shape = (int(cargo.route.after.sum()), *cargo.trailing)
        if cargo.width == 0:
            values.append(torch.empty(shape, dtype=cargo.dtype, device=arrivals.device))
        else:
            values.append(flat.view(cargo.dtype).view(shape))
    return values


def as_bytes(values: Tensor) -> Tensor:
    """Return the same memory as uint8[bytes], copied only if it is not contiguous."""
    flat = values.detach().contiguous().view(-1)
    if flat.numel() == 0:
        return torch.empty(0, dtype=torch.uint8, device=values.device)
    return flat.view(torch.uint8)
