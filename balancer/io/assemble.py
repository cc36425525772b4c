"""Assembling blocks: the cells that a reader hands over become the sums, keys and lists that were asked for."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer.errors import InputError
from balancer.io.columns import Place, no_rows, shown
from balancer.io.keys import KEY_RULE
from balancer.problem.block import Block
from balancer.problem.ragged import Ragged

# One block as read: the needed columns, not yet validated, and the line of every row where that is known.
RawBlock = tuple[Mapping[str, Any], Sequence[int] | None]

ToLengths = Callable[[Any, Place], NDArray[np.int64]]
ToKeys = Callable[[Any, Place], NDArray[Any]]
ToLists = Callable[[Any, Place], Ragged]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to make of a log: for every sum its columns, and for every column the converter of its cells.

    A column may be wanted in several ways.
    """

    sums: Mapping[str, tuple[str, ...]]
    lengths: Mapping[str, ToLengths]
    keys: Mapping[str, ToKeys]
    lists: Mapping[str, ToLists]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns to read, each once."""
        return tuple(dict.fromkeys((*self.lengths, *self.keys, *self.lists)))


def assembled(path: Path, raw_blocks: Iterator[RawBlock], wanted: Wanted, first_row: int = 0) -> Iterator[Block]:
    """Validate every block's columns, each by its converter, and add up the sums; blocks without rows are left out."""
    row = first_row
    key_types: dict[str, np.dtype[Any]] = {}
    for raw, lines in raw_blocks:
        places = {name: Place(path, name, row, lines) for name in raw}
        lengths = {name: convert(raw[name], places[name]) for name, convert in wanted.lengths.items()}
        keys = {name: convert(raw[name], places[name]) for name, convert in wanted.keys.items()}
        lists = {name: convert(raw[name], places[name]) for name, convert in wanted.lists.items()}
        size = len(next(iter(raw.values())))
        # After the converters: a column of a wrong type is refused even where it has no rows.
        if size == 0:
            continue
        for name, column in keys.items():
            # Integers and text never compare equal: keys of two kinds would never keep rows together.
            if column.dtype != key_types.setdefault(name, column.dtype):
                raise places[name].cell(0, f"{shown(column[0])} is not of the kind of the rows before; {KEY_RULE}")
        sums = {
            name: _sum_of([lengths[column] for column in columns], columns, path, row)
            for name, columns in wanted.sums.items()
        }
        yield Block(sums, keys, lists, row)
        row += size
    if row == first_row:
        raise no_rows(path)


def _sum_of(
    parts: Sequence[NDArray[np.int64]], columns: Sequence[str], path: Path, first_row: int
) -> NDArray[np.int64]:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
        # Two numbers in [0, 2**63) that overflow always wrap to a negative one.
        if total.min() < 0:
            row = first_row + int(np.argmax(total < 0))
            raise InputError(
                f"{path}: row {row}: {shown(' + '.join(columns), quote=False)} is too large a sum; "
                "lengths must be < 2**63"
            )
    return total
