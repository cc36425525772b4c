"""Elements moved: any number of flat tensors in one all-to-all of bytes; activations likewise, with gradients.

What leaves a rank lies in its buffer by rank, then by tensor, then run by run. There is no header: all ranks know all
runs from the plan. What stays on its rank is not sent.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from balancer.executor.moves import Move, Runs
from balancer.executor.ranks import Ranks
from solvers._jit import kernel

__all__ = ["activations", "bytes_of", "compile_runs", "exchange"]


def exchange(ranks: Ranks, flats: Sequence[Tensor], moves: Sequence[Move]) -> list[Tensor]:
    """Move flat tensors on one device, of any dtypes and trailing shapes; what no run brings is zeros.

    Replica peers get what their leader gets, whatever they have.
    """
    # With replica peers nothing stays: they must get what is on their leader, too.
    me = ranks.rank if ranks.replicas is None else -1
    widths = [math.prod(flat.shape[1:]) * flat.element_size() for flat in flats]
    raw, device = [bytes_of(flat) for flat in flats], flats[0].device
    # Runs of all tensors, one tensor after the other; by rank they are in the order in which they travel.
    out, into = _Bytes([move.out for move in moves], widths), _Bytes([move.into for move in moves], widths)
    goes, comes = out.travelling(me), into.travelling(me)
    sends = out.by_rank(goes, ranks.size) if ranks.leads else [0] * ranks.size
    sent = ranks.memory("sent", sum(sends), device)
    if ranks.leads:
        _lay(sent, raw, out.tensor[goes], out.starts[goes], out.sizes[goes])
    came = ranks.all_to_all(sent, sends, into.by_rank(comes, ranks.size))
    # Where each run is now: in what came, or, of those that stay, still in its tensor.
    places = np.empty(len(into.sizes), dtype=np.int64)
    places[comes] = np.cumsum(into.sizes[comes]) - into.sizes[comes]
    stays = into.ranks == me
    places[stays] = out.starts[out.ranks == me]
    bounds = np.cumsum([0, *(len(move.into.sizes) for move in moves)]).tolist()
    return [
        _joined(flat, raw[t], came, move, width, places[bounds[t] : bounds[t + 1]], stays[bounds[t] : bounds[t + 1]])
        for t, (flat, move, width) in enumerate(zip(flats, moves, widths, strict=True))
    ]


class _Bytes:
    """Runs of several tensors as bytes: of which rank and tensor each is, where it begins, and its size."""

    def __init__(self, runs: Sequence[Runs], widths: Sequence[int]) -> None:
        counts = [len(each.sizes) for each in runs]
        self.tensor = np.repeat(np.arange(len(runs)), counts)
        width = np.repeat(np.array(widths, dtype=np.int64), counts)
        self.ranks = np.concatenate([each.ranks for each in runs])
        self.starts = np.concatenate([each.starts for each in runs]) * width
        self.sizes = np.concatenate([each.sizes for each in runs]) * width

    def travelling(self, me: int) -> NDArray[np.int64]:
        """Return the runs that travel, by rank."""
        order = np.argsort(self.ranks, kind="stable")
        return order[self.ranks[order] != me]

    def by_rank(self, runs: NDArray[np.int64], size: int) -> list[int]:
        """Return the bytes of runs to or from each rank."""
        return np.bincount(self.ranks[runs], self.sizes[runs], size).astype(np.int64).tolist()


def _joined(
    like: Tensor, here: Tensor, came: Tensor, move: Move, width: int, places: NDArray[np.int64],
    stays: NDArray[np.bool_],
) -> Tensor:  # fmt: skip
    """Return what a tensor's runs make, with zeros in all gaps."""
    if not width:
        return like.new_empty((move.size, *like.shape[1:]))
    starts, sizes = move.into.starts, move.into.sizes
    order = np.lexsort((sizes, starts))  # a run of nothing before what begins at the same place
    gaps = np.append(starts[order], move.size) - np.append(0, (starts + sizes)[order])
    source, taken, size = stays[order].astype(np.int64), places[order], sizes[order] * width
    if gaps.any():
        # Each run after its gap, and a gap at the end: zeros are a third source.
        source = np.insert(np.full(len(gaps), 2), np.arange(1, len(gaps)), source)
        taken = np.insert(np.zeros(len(gaps), dtype=np.int64), np.arange(1, len(gaps)), taken)
        size = np.insert(gaps * width, np.arange(1, len(gaps)), size)
    whole = torch.empty(move.size * width, dtype=torch.uint8, device=like.device)
    zeros = torch.zeros(int(gaps.max()) * width, dtype=torch.uint8, device=like.device)
    _lay(whole, [came, here, zeros], source, taken, size)
    return whole.view(like.dtype).view(move.size, *like.shape[1:])


def _lay(
    whole: Tensor, sources: Sequence[Tensor], of: NDArray[np.int64], starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
) -> None:  # fmt: skip
    """Lay runs of bytes, each of one of the sources, one after the other."""
    if _on_host(whole):
        put = np.cumsum(sizes) - sizes
        for number, source in enumerate(sources):
            mine = np.flatnonzero(of == number)
            if len(mine):
                _copy(source, starts[mine], whole, put[mine], sizes[mine])
    elif len(whole):  # a device has no runs of bytes, but joins many tensors at once
        bounds = zip(of.tolist(), starts.tolist(), (starts + sizes).tolist(), strict=True)
        torch.cat([sources[number][start:stop] for number, start, stop in bounds], out=whole)


def _on_host(whole: Tensor) -> bool:
    return bool(whole.device.type == "cpu")


def bytes_of(values: Tensor) -> Tensor:
    """Return what is in a tensor, uint8[k], without a copy where it is contiguous."""
    flat = values.detach().resolve_conj().resolve_neg().contiguous()
    # Of no or one element, a tensor may have any stride, which bytes may not.
    return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8)


# Many runs are copied in one call, as a call for each costs more than its bytes do.


@kernel
def _copy_runs(source, taken, target, put, size):
    """Return the first run that is outside, or -1."""
    for run in range(len(size)):
        reads, writes = taken[run] + size[run], put[run] + size[run]
        if taken[run] < 0 or put[run] < 0 or reads > len(source) or writes > len(target):
            return run
        old, new = source[taken[run] : reads], target[put[run] : writes]
        for byte in range(len(old)):  # becomes a memcpy; assigned as a slice it would not
            new[byte] = old[byte]
    return -1


def _copy(
    source: Tensor, taken: NDArray[np.int64], target: Tensor, put: NDArray[np.int64], size: NDArray[np.int64]
) -> None:
    """Copy bytes ``source[taken[i] : taken[i] + size[i]]`` to ``target[put[i] : put[i] + size[i]]``, for each i."""
    outside = _copy_runs(source.numpy(), taken, target.numpy(), put, size)
    if outside >= 0:
        raise IndexError(
            f"run {outside} of {size[outside]} bytes, from {taken[outside]} of {len(source)} to {put[outside]} of "
            f"{len(target)}, is outside"
        )


def compile_runs() -> None:
    """Compile, or load from the cache on disk, what copies, so that no step waits for it."""
    few, one = torch.zeros(2, dtype=torch.uint8, device="cpu"), np.ones(1, dtype=np.int64)
    _copy(few, one, few, one - 1, one)


# Activations.


class _Exchange(torch.autograd.Function):
    """Rows of which each goes to one place, or none. Its backward is itself the other way: so is its backward's."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, ranks: Ranks, forth: Move, back: Move) -> Tensor:
        ctx.way = ranks, back, forth
        return exchange(ranks, [rows], [forth])[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return _Exchange.apply(gradients[0], *ctx.way), None, None, None


def activations(ranks: Ranks, rows: Tensor, forth: Move, back: Move) -> Tensor:
    """Move rows; gradients, of any order, go the way back. Every replica peer moves its own."""
    moved: Tensor = _Exchange.apply(rows, ranks.without_replicas(), forth, back)
    return moved
