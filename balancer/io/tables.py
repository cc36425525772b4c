"""Tables that others hold in memory: a DataFrame, an Arrow table, a data set of Hugging Face's, arrays by name."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from balancer.errors import InputError, on_a_line
from balancer.problem.ragged import Ragged
from solvers.errors import ArgumentTypeError

_KINDS = "a DataFrame, an Arrow table, a data set of Hugging Face's, or map names to arrays"


def is_table(value: object) -> bool:
    """Whether this is a table in memory, and no path of a log."""
    return not isinstance(value, str | os.PathLike | list | tuple)


def as_arrow(table: Any) -> Any:
    """Return a table as Arrow's; TypeError says what was given instead of one."""
    if isinstance(table, pa.Table):
        return table
    if isinstance(table, pa.RecordBatch):
        return pa.Table.from_batches([table])
    if isinstance(table, Mapping):
        return _of_columns({str(name): _as_column(name, values) for name, values in table.items()})
    # Known by their methods, so that none of these packages is imported for a table of another one.
    if hasattr(table, "with_format"):  # of Hugging Face's datasets
        return table.with_format("arrow")[:]
    if hasattr(table, "__arrow_c_stream__"):
        return pa.table(table)
    if hasattr(table, "iloc"):  # of a pandas that has no stream for Arrow
        return pa.Table.from_pandas(table, preserve_index=False)
    raise ArgumentTypeError("a table", f"be {_KINDS}", f"a {type(table).__name__}")


def _as_column(name: object, values: Any) -> Any:
    try:
        if isinstance(values, np.ma.MaskedArray):
            return pa.array(np.asarray(values), mask=np.ma.getmaskarray(values))
        return pa.array(_plain(values))
    except TypeError:
        raise InputError(f"the table: column {str(name)!r} must be a list or an array, got {values!r:.60}") from None
    except (pa.ArrowException, OverflowError) as error:
        raise InputError(f"the table: column {str(name)!r} cannot be read: {on_a_line(error)}") from None


def _of_columns(columns: dict[str, Any]) -> Any:
    if len({len(column) for column in columns.values()}) > 1:
        sizes = ", ".join(f"{name!r} {len(column):,}" for name, column in columns.items())
        raise InputError(f"the table: columns must have as many rows as each other; they have {sizes}")
    return pa.table(columns)


def _plain(values: Any) -> Any:
    return (
        values.to_lists() if isinstance(values, Ragged) else np.asarray(values) if hasattr(values, "dtype") else values
    )


def as_columns(table: Any) -> Mapping[str, Any]:
    """Return the columns of a table as :func:`balancer.orchestrate` takes them, each converted when it is asked for.

    A mapping is returned as it is.
    """
    return table if isinstance(table, Mapping) else _Columns(as_arrow(table))


class _Columns(Mapping[str, Any]):
    """The columns of an Arrow table: numbers or text as arrays, lists of numbers as Ragged."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __getitem__(self, name: str) -> NDArray[Any] | Ragged:
        if name not in self._table.column_names:
            raise KeyError(name)
        column = self._table.column(name).combine_chunks()
        if column.null_count:
            raise InputError(f"column {name!r} has no value in {column.null_count} of {len(column)} rows")
        kind = column.type
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            array = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
            offsets = array.offsets.to_numpy().astype(np.int64)
            return Ragged.checked(
                array.values.to_numpy(zero_copy_only=False)[offsets[0] : offsets[-1]], offsets - offsets[0]
            )
        values: NDArray[Any] = (
            column.to_numpy() if isinstance(column, pa.ChunkedArray) else column.to_numpy(zero_copy_only=False)
        )
        return values

    def __iter__(self) -> Iterator[str]:
        return iter(self._table.column_names)

    def __len__(self) -> int:
        return len(self._table.column_names)
