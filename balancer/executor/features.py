"""What activations are like on all ranks: ranks agree once on a dtype and a shape, so that none expects other bytes."""

from collections.abc import Sequence
from functools import reduce
from typing import Any, TypeAlias

import torch
from torch import Tensor

from balancer.executor.alike import held_by_all
from balancer.executor.errors import FieldMismatchError, listed
from balancer.executor.peers import Peers

__all__ = ["Features"]

Format: TypeAlias = tuple[torch.dtype, tuple[int, ...]]
"""Dtype and shape of an element."""

DTYPES = ("float32", "float16", "bfloat16", "float64", "complex64", "complex128")


class Features:
    """What ranks have agreed on, by phase. A rank without a row takes over what the others have."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._agreed: dict[tuple[str, bool], Format] = {}

    def forget(self) -> None:
        """Agree anew at the next call; all ranks call this when a model changes its dtype."""
        self._agreed.clear()

    def alike(self, phase: str, tensors: Sequence[Tensor | None], rows: Sequence[int], device: torch.device) -> Tensor:
        """Return the tensors, of so many rows each, as one, in the dtype and shape that all ranks agree on.

        FieldMismatchError at the first call, on all ranks, if shapes differ; ValueError later, on a rank whose rows do
        not keep to what was agreed.
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

    def _agree(self, phase: str, filled: Sequence[Tensor], given: Sequence[Tensor]) -> tuple[bool, Format]:
        """Return whether any rank has a row, and what the rows are like; else what empty tensors are like."""
        tensors = filled or given[:1]
        dtypes = [tensor.dtype for tensor in tensors]
        dtype = str(reduce(torch.promote_types, dtypes)).removeprefix("torch.") if dtypes else None
        mine = [bool(filled), dtype, [list(tensor.shape[1:]) for tensor in tensors]]
        said: list[Any] = [of_rank[0] for of_rank in held_by_all(self._peers, mine)]
        usable = [not shapes or (dtype in DTYPES and shapes == shapes[:1] * len(shapes)) for _, dtype, shapes in said]
        if strange := [rank for rank, is_usable in enumerate(usable) if not is_usable]:
            rule = "must be of one trailing shape and a floating dtype"
            raise FieldMismatchError(f"inputs of phase {phase!r} on {listed(strange)} {rule}", strange)
        holders = [rank for rank, (has_rows, _, _) in enumerate(said) if has_rows]
        shape_of = {rank: shapes[0] for rank, (_, _, shapes) in enumerate(said) if shapes}
        if odd := [rank for rank in holders if shape_of[rank] != shape_of[holders[0]]]:
            usual = f"on {listed(holders[:1])} of {shape_of[holders[0]]}"
            what = f"inputs of phase {phase!r} on {listed(odd)} are of {shape_of[odd[0]]} an element, {usual}"
            raise FieldMismatchError(what, odd)
        like = holders or list(shape_of)[:1]
        if not like:
            return False, (torch.float32, ())
        agreed = reduce(torch.promote_types, [getattr(torch, said[rank][1]) for rank in like])
        return bool(holders), (agreed, tuple(shape_of[like[0]]))
