"""What activations are like on all ranks: one dtype and one shape, agreed once, so that no rank expects other bytes."""

from collections.abc import Sequence
from functools import reduce

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from balancer.executor.errors import FieldMismatchError, listed
from balancer.executor.peers import Peers

__all__ = ["Features"]

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.complex128)
MAX_DIMENSIONS = 8
_STRANGE, _EMPTY, _ROWS = -1, 1, 2  # 0: nothing at all


class Features:
    """Agreements by phase; a rank without a row adopts what the others have.

    Parameters
    ----------
    peers : Peers
    """

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._agreed: dict[tuple[str, bool], tuple[torch.dtype, tuple[int, ...]]] = {}

    def forget(self) -> None:
        """Agree anew at the next call; all ranks call this when a model changes its dtype."""
        self._agreed.clear()

    def alike(self, phase: str, tensors: Sequence[Tensor | None], rows: Sequence[int], device: torch.device) -> Tensor:
        """Return the tensors, of so many rows each, as one, in the dtype and shape that all ranks agree on.

        Raises
        ------
        FieldMismatchError
            At the first call, on all ranks, if shapes differ.
        ValueError
            Later, on a rank whose rows do not keep to what was agreed.
        """
        filled = [tensor for tensor, count in zip(tensors, rows, strict=True) if tensor is not None and count]
        device = next((tensor.device for tensor in tensors if tensor is not None), device)
        key = phase, torch.is_autocast_enabled(device.type)
        agreed = self._agreed.get(key)
        if agreed is None:
            any_row, agreed = self._agree(phase, filled, [tensor for tensor in tensors if tensor is not None])
            if any_row:
                self._agreed[key] = agreed
        dtype, trailing = agreed
        for tensor in filled:
            if tuple(tensor.shape[1:]) != trailing or torch.promote_types(tensor.dtype, dtype) != dtype:
                raise ValueError(
                    f"inputs of phase {phase!r} were agreed to be {dtype} of {list(trailing)} an element, got "
                    f"{tensor.dtype} of {list(tensor.shape[1:])}; call dispatcher.forget_features() on all ranks first"
                )
        # An empty tensor stays in, so that gradients reach the module that made it, on every rank alike.
        alike = [tensor.to(dtype) for tensor in tensors if tensor is not None and tensor.shape[1:] == trailing]
        if not alike:
            return torch.empty((0, *trailing), dtype=dtype, device=device)
        return alike[0] if len(alike) == 1 else torch.cat(alike)

    def _agree(
        self, phase: str, filled: Sequence[Tensor], given: Sequence[Tensor]
    ) -> tuple[bool, tuple[torch.dtype, tuple[int, ...]]]:
        """Return whether any rank has a row, and what the rows are like; else what empty tensors are like."""
        rows = self._peers.gather(_described(filled, given))
        if strange := np.flatnonzero(rows[:, 0] == _STRANGE).tolist():
            raise FieldMismatchError(
                f"inputs of phase {phase!r} on {listed(strange)} must be of one trailing shape and a floating dtype",
                strange,
            )
        holders = np.flatnonzero(rows[:, 0] == _ROWS).tolist()
        if not holders:
            first = rows[int(np.argmax(rows[:, 0]))]
            return False, (DTYPES[int(first[1])], tuple(_shape(first)))
        odd = [rank for rank in holders if (rows[rank, 2:] != rows[holders[0], 2:]).any()]
        if odd:
            raise FieldMismatchError(
                f"inputs of phase {phase!r} on {listed(odd)} are of {_shape(rows[odd[0]])} an element, on "
                f"{listed([holders[0]])} of {_shape(rows[holders[0]])}", odd,
            )  # fmt: skip
        dtype = reduce(torch.promote_types, [DTYPES[int(rows[rank, 1])] for rank in holders])
        return True, (dtype, tuple(_shape(rows[holders[0]])))


def _described(filled: Sequence[Tensor], given: Sequence[Tensor]) -> NDArray[np.int64]:
    """Return as words: what there is, then dtype, dimensions and shape of an element."""
    words = np.zeros(3 + MAX_DIMENSIONS, dtype=np.int64)
    tensors = filled or given[:1]
    if not tensors:
        return words
    shape = tensors[0].shape[1:]
    dtype = reduce(torch.promote_types, [tensor.dtype for tensor in tensors])
    if any(tensor.shape[1:] != shape for tensor in tensors) or dtype not in DTYPES or len(shape) > MAX_DIMENSIONS:
        words[0] = _STRANGE
        return words
    words[:3] = _ROWS if filled else _EMPTY, DTYPES.index(dtype), len(shape)
    words[3 : 3 + len(shape)] = shape
    return words


def _shape(words: NDArray[np.int64]) -> list[int]:
    shape: list[int] = words[3 : 3 + words[2]].tolist()
    return shape
