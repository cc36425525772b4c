"""Memory that outlives a step: fresh pages cost more than the copies into them."""

import weakref

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Memory", "Pool", "Scratch"]

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
