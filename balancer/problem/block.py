"""A block: consecutive rows of a log as arrays. Readers hand a log out in blocks; global batches are cut from them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer.problem.ragged import Ragged, consecutive


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Columns of the same consecutive rows.

    Notes
    -----
    ``len(block)`` is k. ``block[a:b]`` shares its arrays.

    Examples
    --------
    >>> block = Block({"llm": np.array([5, 2, 9])}, lists={"images": Ragged.of([[3], [], [4, 4]])})
    >>> tail = block[1:]
    >>> len(tail), tail.sums["llm"].tolist(), tail.lists["images"].to_lists(), tail.first_row
    (2, [2, 9], [[], [4, 4]], 1)
    """

    sums: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)  # int64[k], read-only: lengths by name, >= 0
    # int64[k] or object[k] of str, read-only: columns that say which rows belong together, by column
    keys: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    # Columns with a list of lengths a row, by column; each of k rows
    lists: Mapping[str, Ragged] = field(default_factory=dict)
    first_row: int = 0  # number of the first row in its log, by which errors call it

    def __post_init__(self) -> None:
        sizes = {f"{kind} {name!r}": len(column) for kind, name, column in self.columns()}
        if not sizes:
            raise ValueError("a block needs at least one column")
        if len(set(sizes.values())) > 1:
            raise ValueError(f"the columns of a block must have the same number of rows, got {sizes}")
        for array in (*self.sums.values(), *self.keys.values()):
            array.flags.writeable = False

    def columns(self) -> list[tuple[str, str, NDArray[Any] | Ragged]]:
        """Return kind, name and values of every column."""
        kinds: dict[str, Mapping[str, Any]] = {"sums": self.sums, "keys": self.keys, "lists": self.lists}
        return [(kind, name, column) for kind, columns in kinds.items() for name, column in columns.items()]

    @classmethod
    def concatenate(cls, parts: Sequence["Block"]) -> "Block":
        """Join blocks that follow one another and have the same columns; at least one. Copies, unless it is one."""
        if not parts:
            raise ValueError("there must be at least one block to join, got none")
        first = parts[0]
        if len(parts) == 1:
            return first
        wanted = [column[:2] for column in first.columns()]
        for part in parts:
            if [column[:2] for column in part.columns()] != wanted:
                raise ValueError(f"blocks to join must have the same columns, got {wanted} and {part.columns()}")
        return cls(
            {name: np.concatenate([part.sums[name] for part in parts]) for name in first.sums},
            {name: np.concatenate([part.keys[name] for part in parts]) for name in first.keys},
            {name: Ragged.concatenate([part.lists[name] for part in parts]) for name in first.lists},
            first.first_row,
        )

    def __len__(self) -> int:
        for columns in (self.sums, self.keys, self.lists):
            for column in columns.values():
                return len(column)
        raise AssertionError("checked when made")  # pragma: no cover

    def taken(self, rows: NDArray[np.int64]) -> "Block":
        """Take rows by their numbers, in that order; it copies, and ``first_row`` is 0."""
        return Block(
            {name: column[rows] for name, column in self.sums.items()},
            {name: column[rows] for name, column in self.keys.items()},
            {name: column.take(rows) for name, column in self.lists.items()},
        )

    def __getitem__(self, rows: slice) -> "Block":
        """Cut out consecutive rows; the arrays are shared."""
        rows, part = consecutive(rows, len(self)), object.__new__(Block)  # of what is checked: not checked again
        for kind in ("sums", "keys", "lists"):
            object.__setattr__(part, kind, {name: column[rows] for name, column in getattr(self, kind).items()})
        object.__setattr__(part, "first_row", self.first_row + rows.start)
        return part
