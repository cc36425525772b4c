"""Padding that a collator adds behind the exchange: seen in what it returns, beside the lengths that were balanced."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

__all__ = ["Padding", "padding_of", "warn_of_padding"]

_SHARE = 0.1
"""Less padding than that is not worth a word: multiples of 8, samples of like length."""


class Padding(NamedTuple):
    """A field that came back as rows of one length."""

    field: str
    rows: int
    longest: int
    elements: int  # that are no padding

    @property
    def share(self) -> float:
        """How much of it is padding."""
        return 1 - self.elements / (self.rows * self.longest)


def padding_of(samples: Sequence[Mapping[str, Any]], collated: Any) -> Padding | None:
    """Return how a collator padded its samples: the field with most padding; None where it padded none.

    Fields are compared with what came of them under the same name: rows times the longest, and the sum of lengths.
    """
    found = []
    for name, made in collated.items() if isinstance(collated, Mapping) else ():
        rows: list[Any] = [sample.get(name) for sample in samples]
        if not (
            isinstance(made, Tensor) and made.ndim > 1 and all(isinstance(row, Tensor) and row.ndim for row in rows)
        ):
            continue
        sizes = [len(row) for row in rows]
        if len(made) == len(sizes) and made.shape[1] >= max(sizes, default=0) > 0:
            found.append(Padding(name, len(sizes), made.shape[1], sum(sizes)))
    return max(found, key=lambda padding: padding.share, default=None)


def warn_of_padding(samples: Sequence[Mapping[str, Any]], collated: Any) -> bool:
    """Warn if a collator pads, where sums of lengths were balanced; return whether it did."""
    padding = padding_of(samples, collated)
    if padding is None or padding.share < _SHARE:
        return False
    warnings.warn(
        f"collate pads: {padding.rows} rows of {padding.longest} hold {padding.elements} elements of "
        f"{padding.field!r}, and the dispatcher makes the latter even, not what is computed; give "
        "Dispatcher(cost='padded'), which balances rows times the longest, or a collator that packs",
        stacklevel=2,
    )
    return True
