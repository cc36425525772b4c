"""Runs of bytes copied on the host: many at a call, as one at a time costs more than its bytes do."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from solvers._jit import kernel

__all__ = ["bytes_of", "compile_runs", "copy_runs"]


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
    """Return what is in tensors on the host, uint8[k], without a copy where they are one that is contiguous."""
    whole = values if isinstance(values, Tensor) else torch.cat(list(values))
    return whole.detach().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)


def compile_runs() -> None:
    """Compile, or load from the cache on disk, what copies, so that no step waits for it."""
    few, one = torch.zeros(2, dtype=torch.uint8, device="cpu"), np.ones(1, dtype=np.int64)
    copy_runs(few, one, few, one - 1, one)
