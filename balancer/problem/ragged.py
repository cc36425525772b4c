"""Lists of integers, one a row, as two flat arrays: the lengths of the items inside each sample."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers.arguments import INT64_MAX, as_index, as_int64
from solvers.types import Record


@dataclass(frozen=True, slots=True, eq=False)
class Ragged(Record):
    """A list of integers for every row, in compressed sparse row (CSR) form.

    Attributes
    ----------
    values : int64[k], read-only
        All lists, one after the other.
    offsets : int64[n + 1], read-only
        Row i is ``values[offsets[i] : offsets[i + 1]]``; from 0 to k, never descending.

    Notes
    -----
    The constructor trusts its arrays; :meth:`checked` and :meth:`of` do not. `len` is the number of rows.

    Examples
    --------
    >>> images = Ragged.of([[5, 3], [], [7]])
    >>> len(images), images.row(0).tolist(), images.sums().tolist()
    (3, [5, 3], [8, 0, 7])
    >>> images[1:].to_lists()
    [[], [7]]
    """

    values: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]]) -> Ragged:
        """Build from a list of lists; TypeError or ValueError names the row and the entry that is no int64."""
        rows = list(rows)
        try:
            values = as_int64("values", list(chain.from_iterable(rows)))
        except (TypeError, ValueError):
            for index, row in enumerate(rows):
                as_int64(f"rows[{index}]", row)
            raise
        return cls(values.copy(), offsets_of([len(row) for row in rows]))

    @classmethod
    def checked(cls, values: ArrayLike, offsets: ArrayLike) -> Ragged:
        """Build from arrays that come from outside, which are copied.

        Raises
        ------
        TypeError, ValueError
            If an array holds anything but int64, or the offsets do not go from 0 to ``len(values)`` without descending;
            the message names the entry.
        """
        flat, bounds = as_int64("values", values), as_int64("offsets", offsets)
        if len(bounds) == 0 or bounds[0] != 0:
            raise ValueError(f"offsets must begin with 0, got {bounds[0] if len(bounds) else 'no offsets'}")
        descends = bounds[1:] < bounds[:-1]
        if descends.any():
            index = int(np.argmax(descends)) + 1
            raise ValueError(
                f"offsets[{index}] must be >= offsets[{index - 1}] = {bounds[index - 1]}, got {bounds[index]}"
            )
        if bounds[-1] != len(flat):
            raise ValueError(f"offsets must end with the number of values, {len(flat)}, got {bounds[-1]}")
        return cls(flat.copy(), bounds.copy())

    @classmethod
    def concatenate(cls, parts: Sequence[Ragged]) -> Ragged:
        """Concatenate the rows of several; without any, there are no rows."""
        if len(parts) == 1:
            return parts[0]
        counts = np.concatenate([np.empty(0, np.int64), *(part.counts for part in parts)])
        values = np.concatenate([np.empty(0, np.int64), *(part.values for part in parts)])
        return cls(values, offsets_of(counts))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, rows: slice) -> Ragged:
        """Cut out consecutive rows; the values are shared."""
        within = consecutive(rows, len(self), "; row(i) gives one row")
        bounds = self.offsets[within.start : within.stop + 1]
        return Ragged(self.values[bounds[0] : bounds[-1]], bounds - bounds[0])

    def take(self, rows: NDArray[np.int64]) -> Ragged:
        """Pick out rows, in any order; the values are copied."""
        counts = self.counts[rows]
        offsets = offsets_of(counts)
        index = np.repeat(self.offsets[:-1][rows] - offsets[:-1], counts) + np.arange(offsets[-1])
        return Ragged(self.values[index], offsets)

    def row(self, index: int) -> NDArray[np.int64]:
        """Return one row's list, shared: int64[count]. ValueError if there is no such row."""
        index = as_index("row", index, len(self))
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    @property
    def counts(self) -> NDArray[np.int64]:
        """Entries of each row: int64[n]."""
        return np.diff(self.offsets)

    @property
    def row_of_value(self) -> NDArray[np.int64]:
        """The row that each value is in: int64[k]."""
        return np.repeat(np.arange(len(self), dtype=np.int64), self.counts)

    def sums(self) -> NDArray[np.int64]:
        """Add up each row: int64[n], 0 where it is empty. ValueError names the first row whose sum is no int64."""
        if len(self.values) == 0:
            return np.zeros(len(self), dtype=np.int64)
        largest = max(int(self.values.max()), -int(self.values.min()))
        if largest * int(self.counts.max()) <= INT64_MAX:
            return self._wrapped_sums(self.values)
        # Halves of 32 bits cannot overflow in fewer than 2**31 entries; what they carry tells whether the whole does.
        upper, lower = self._wrapped_sums(self.values >> 32), self._wrapped_sums(self.values & 0xFFFF_FFFF)
        upper += lower >> 32
        outside = (upper < -(2**31)) | (upper >= 2**31)
        if outside.any():
            row = int(np.argmax(outside))
            raise ValueError(f"the sum of row {row} must fit int64, got {sum(self.row(row).tolist())}")
        return (upper << 32) | (lower & 0xFFFF_FFFF)

    def _wrapped_sums(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        # The running total may wrap around; the differences are right as long as every row's own sum fits.
        running = np.zeros(len(values) + 1, dtype=np.int64)
        np.cumsum(values, out=running[1:])
        return np.diff(running[self.offsets])

    def to_lists(self) -> list[list[int]]:
        """Return plain lists of ints."""
        values, offsets = self.values.tolist(), self.offsets.tolist()
        return [values[start:stop] for start, stop in pairwise(offsets)]


def offsets_of(counts: ArrayLike) -> NDArray[np.int64]:
    """Return where rows with these numbers of entries begin and end: int64[n + 1]."""
    counts = np.asarray(counts, dtype=np.int64)
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def consecutive(rows: slice, count: int, remedy: str = "") -> slice:
    """Return where a slice of so many rows begins and ends; refuse what is none, or has a step."""
    if not isinstance(rows, slice):
        raise TypeError(f"rows are cut out by slices, got {rows!r}{remedy}")
    start, stop, step = rows.indices(count)
    if step != 1:
        raise ValueError(f"rows must be consecutive, got a step of {step}")
    return slice(start, max(start, stop))
