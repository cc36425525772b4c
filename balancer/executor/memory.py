"""Memory on the host: kept from step to step, as fresh pages cost more than copies; and runs of bytes copied in it."""

import weakref
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from solvers._jit import kernel

__all__ = ["Memory", "Pool", "Scratch", "bytes_of", "compile_runs", "copy_runs"]

POOLED_FROM = 1 << 20  # bytes; what is smaller malloc has at hand


class Scratch:
    """Host memory that is used again, step after step."""

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
    """Host memory that is handed out, and returns here once no tensor lies in it any more."""

    def __init__(self) -> None:
        self._free: list[NDArray[np.uint8]] = []

    def take(self, size: int, device: torch.device) -> Tensor:
        """Return uint8[size] that nobody else holds."""
        if device.type != "cpu" or size < POOLED_FROM:
            return torch.empty(size, dtype=torch.uint8, device=device)
        # At most twice as large: else one small field would keep a large block from the next large one.
        fits = [index for index, block in enumerate(self._free) if size <= len(block) <= 2 * size]
        if fits:
            block = self._free.pop(min(fits, key=lambda index: len(self._free[index])))
        else:
            self._free.clear()  # sizes have changed: what did not fit now would pile up
            block = np.empty(size + size // 4, dtype=np.uint8)
        part = block[:size]  # lives as long as any tensor in it
        weakref.finalize(part, self._free.append, block).atexit = False
        return torch.from_numpy(part)


class Memory:
    """What a rank packs into, what arrives in, and what is handed out."""

    def __init__(self) -> None:
        self.sent, self.arrived, self.handed_out = Scratch(), Scratch(), Pool()


# Runs of bytes: many are copied in one call, as a call for each costs more than its bytes do.


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


def copy_runs(
    source: Tensor, taken: NDArray[np.int64], target: Tensor, put: NDArray[np.int64], size: NDArray[np.int64]
) -> None:
    """Copy bytes ``source[taken[i] : taken[i] + size[i]]`` to ``target[put[i] : put[i] + size[i]]``, for each i."""
    outside = _copy_runs(source.numpy(), taken, target.numpy(), put, size)
    if outside >= 0:
        raise IndexError(
            f"run {outside} of {size[outside]} bytes, from {taken[outside]} of {len(source)} to {put[outside]} of "
            f"{len(target)}, is outside"
        )


def bytes_of(values: Tensor | Sequence[Tensor]) -> Tensor:
    """Return what is in tensors, uint8[k], without a copy where they are one that is contiguous."""
    whole = values if isinstance(values, Tensor) else torch.cat(list(values))
    return whole.detach().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)


def compile_runs() -> None:
    """Compile, or load from the cache on disk, what copies, so that no step waits for it."""
    few, one = torch.zeros(2, dtype=torch.uint8, device="cpu"), np.ones(1, dtype=np.int64)
    copy_runs(few, one, few, one - 1, one)
