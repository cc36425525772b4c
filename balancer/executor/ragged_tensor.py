"""A ragged tensor: one row of elements for every sample, or for every item of every sample, without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from balancer.problem.ragged import offsets_of
from solvers.arguments import as_int64

__all__ = ["RaggedTensor"]


@dataclass(frozen=True, slots=True, eq=False)
class RaggedTensor:
    """Rows of unequal length, one after the other in one tensor.

    Attributes
    ----------
    values : Tensor[sum(lengths), ...]
        All rows.
    lengths : int64[k]
        Elements of each row; a list, an array or a CPU tensor is taken.
    counts : int64[n], optional
        Where a sample has several items, such as images: the items of each sample, and a row is an item.

    Notes
    -----
    `len` is the number of samples.

    Examples
    --------
    >>> import torch
    >>> ragged = RaggedTensor(torch.arange(5), [2, 0, 3])
    >>> [row.tolist() for row in ragged.rows()]
    [[0, 1], [], [2, 3, 4]]
    """

    values: Tensor
    lengths: NDArray[np.int64]
    counts: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        for name in ("lengths", "counts"):
            given: Any = getattr(self, name)
            if given is not None:
                array = as_int64(name, given)
                if array.size and array.min() < 0:
                    raise ValueError(f"{name}[{int(np.argmin(array))}] must be >= 0, got {array.min()}")
                object.__setattr__(self, name, array)
        if self.values.ndim == 0 or int(self.lengths.sum()) != len(self.values):
            raise ValueError(
                f"lengths must sum to the {tuple(self.values.shape)[:1]} rows of values, got {self.lengths.sum()}"
            )
        if self.counts is not None and int(self.counts.sum()) != len(self.lengths):
            raise ValueError(f"counts must sum to the {len(self.lengths)} items, got {self.counts.sum()}")

    def __len__(self) -> int:
        return len(self.lengths if self.counts is None else self.counts)

    def rows(self) -> Sequence[Tensor]:
        """Return every row, sharing memory."""
        return self.values.split(self.lengths.tolist())

    @property
    def cu_seqlens(self) -> NDArray[np.int64]:
        """Where the rows begin and end, int64[k + 1], as packed attention wants it."""
        return offsets_of(self.lengths)
