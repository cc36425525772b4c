"""Plan files written as a stream, and put in place as a whole or not at all.

Why this encoding: a part of a million rows in row groups of 64 steps of 1,024 samples on 64 ranks, written by pyarrow
26 on one core. Delta and snappy: 1.51 bytes a row and 14 million rows a second; delta and zstd, chosen: 1.47 and 15;
delta for samples, dictionaries for all else, and zstd: 1.36 and 12, but there a flipped bit can go unnoticed. Nullable
columns would cost 28 % of the writing speed and half of the reading speed; statistics on all columns a third of the
writing speed, so ``step`` alone has them. Page checksums (1 %) tell damaged files.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from balancer.errors import InputError
from balancer.io._atomic import (
    open_temporary,
    remove_files,
    reported,
    sync_file,
    sync_folder,
    target_of,
)
from balancer.io.plan_format import (
    ARRAYS,
    EXTRA,
    ITEM,
    METADATA_KEY,
    NOMINAL,
    PIECE,
    TYPES,
    header,
    to_json,
)
from balancer.io.plan_rows import GAP
from balancer.io.store import as_path, is_remote, write

_OF_A_CALL = ("step", "phase", "slot")  # columns of which a number may be that of all rows
ROWS_PER_GROUP = 1_000_000  # about 32 MB
STEPS_PER_GROUP = 64  # who reads one step reads a row group


_HERE = "write a plan here"


class _Sink:
    """One Parquet file being written into an open binary file."""

    def __init__(self, file: BinaryIO, schema: Any) -> None:
        self.file = file
        self.groups: list[tuple[int, int]] = []  # the first and the last step of each row group
        self._writer = pq.ParquetWriter(
            file,
            schema,
            use_dictionary=["phase"],
            column_encoding={name: "DELTA_BINARY_PACKED" for name in schema.names if name != "phase"},
            compression="zstd",
            write_statistics=["step"],
            write_page_checksum=True,
            store_schema=False,
        )

    def write(self, batch: Any, first_step: int, last_step: int) -> None:
        self._writer.write_batch(batch, row_group_size=batch.num_rows)
        self.groups.append((first_step, last_step))

    def finish(self, description: bytes) -> None:
        # Of Arrow's own schema, which would be a second copy, readers need nothing: it is what Parquet has.
        self._writer.add_key_value_metadata({METADATA_KEY: description})
        self._writer.close()

    def discard(self) -> None:
        with suppress(Exception):  # the disk may be full; nobody reads this file again
            self._writer.close()
        with suppress(OSError):
            self.file.close()


def _viewed(values: NDArray[Any]) -> Any:
    """Return Arrow's array of integers that has the same memory.

    By ``pa.array`` too it would be a view, but that loads pandas, if it is installed: 0.2 s.
    """
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def _texts(values: list[str]) -> Any:
    """Return Arrow's array of texts, by no function that would load pandas."""
    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))


class PlanWriter:
    """Write a plan as a stream; the target changes when :meth:`close` succeeds, and then all at once.

    Leaving its ``with`` block before ``close``, by an exception or not, leaves what was there before and
    removes what was written. A kill leaves what was there before too.

    Parameters
    ----------
    path : str or path
        A file, which may be a part of a plan.
    extra_columns : bool
        Also store ``length`` and ``home_rank``, for a plan that has no log to go back to.
    item_column : bool
        Also store ``item``, for a plan with several items a sample.
    piece_columns : bool
        Also store ``start``, ``stop`` and ``group``, for a plan whose samples are shared.
    gap_columns : bool
        Also store ``device`` and ``backward``, for a plan with encoders in the gaps of pipelines.
    nominal_column : bool
        Also store ``nominal_step``, for a plan whose samples run early or late.

    Raises
    ------
    InputError
        If the target cannot be written: at once, before anything is planned, or later, when the disk is full.

    Examples
    --------
    >>> import tempfile
    >>> from balancer.io.plan_reader import open_plan
    >>> path = os.path.join(tempfile.mkdtemp(), "plan.parquet")
    >>> with PlanWriter(path) as writer:
    ...     rank = np.array([1, 0, 1], np.int32)
    ...     writer.append(0, "llm", np.arange(3), rank, 0, np.array([0, 0, 1], np.int32))
    ...     _ = writer.close({"num_ranks": 2})
    >>> plan = open_plan(path)
    >>> plan.description, [(step.step, step.phase, step.rank.tolist()) for step in plan.steps()]
    ({'num_ranks': 2}, [(0, 'llm', [1, 0, 1])])
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        extra_columns: bool = False,
        item_column: bool = False,
        piece_columns: bool = False,
        gap_columns: bool = False,
        nominal_column: bool = False,
    ) -> None:
        arrays = ARRAYS | (EXTRA if extra_columns else {}) | (ITEM if item_column else {})
        arrays |= (PIECE if piece_columns else {}) | (GAP if gap_columns else {}) | (NOMINAL if nominal_column else {})
        fields = [pa.field(name, TYPES[name], nullable=False) for name in ("step", "phase", *arrays)]
        self._schema = pa.schema(fields)
        # Phases are kept by their numbers until they are flushed.
        self._dtypes: dict[str, Any] = {"step": np.dtype(np.int64), "phase": np.dtype(np.int32)}
        self._dtypes |= {name: np.dtype(kind) for name, kind in arrays.items()}
        self._held: list[list[NDArray[Any]]] = []  # of the next row group: columns of a phase of a step each
        self._phases: dict[str, int] = {}
        self._rows = self._last_step = 0
        self._where = os.fspath(path)
        with reported(self._where, _HERE):
            self._open_target()
        self._open = True

    def _open_target(self) -> None:
        where = self._where
        self._file: Any
        if is_remote(where):  # what goes to a store is kept in memory until it is complete
            as_path(where)
            if where.endswith("/"):
                raise InputError(f"{where}: cannot {_HERE}: it is one file, and this is a folder")
            self._file, self._temporary = io.BytesIO(), ""
        else:
            self._target = target_of(where, _HERE)
            self._file, self._temporary = open_temporary(*os.path.split(self._target))
        self._sink = _Sink(self._file, self._schema)

    def append(
        self,
        step: int,
        phase: str,
        sample: NDArray[np.int64],
        rank: NDArray[np.int32],
        slot: NDArray[np.int32] | int,
        position: NDArray[np.int32],
        length: NDArray[np.int64] | None = None,
        home_rank: NDArray[np.int32] | None = None,
        item: NDArray[np.int32] | None = None,
        piece: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]] | None = None,
        gap: tuple[NDArray[np.int32], NDArray[np.int32]] | None = None,
        nominal: NDArray[np.int64] | None = None,
    ) -> None:
        """Add the rows of one phase of one step; no rows are legal and leave no trace.

        A sample is a row in the log; a single slot is that of all rows. Columns besides are given if and only if the
        writer was made for them: `item` says which item of its sample each row places; `piece` where in its sample each
        row's piece begins and ends, and the group of ranks that shares the sample, -1 where none does; `gap`, of each
        row that places encoder work in a gap, the device, and the place of its backward there (`position` is that of
        its forward), -1 of others; `nominal`, the step for which each sample was drawn.

        Raises
        ------
        TypeError
            For an array of another dtype or shape than stated: converting could wrap or broadcast silently.
        InputError
            If the disk does not take the rows; the plan is then discarded.
        """
        self._check_open()
        code = self._phases.get(phase, len(self._phases))
        columns: list[Any] = [step, code, sample, rank, slot, position]
        if length is not None or home_rank is not None:
            columns += [length, home_rank]
        if item is not None:
            columns.append(item)
        columns += (*(piece or ()), *(gap or ()), *(() if nominal is None else (nominal,)))
        count = len(sample)
        self._check_columns(columns, count)
        self._phases[phase] = code
        # Readers skip whole row groups, so none should begin within a step.
        is_next = step // STEPS_PER_GROUP > self._last_step // STEPS_PER_GROUP
        if self._rows and (is_next or self._rows >= ROWS_PER_GROUP):
            self._flush()
        if count:
            whole = [values if isinstance(values, np.ndarray) else np.full(count, values) for values in columns]
            pairs = zip(whole, self._dtypes.values(), strict=True)
            self._held.append([values.astype(dtype, copy=False) for values, dtype in pairs])
            self._rows, self._last_step = self._rows + count, step

    def _flush(self) -> None:
        """Write the rows that are held as one row group."""
        joined = [np.concatenate(values) for values in zip(*self._held, strict=True)]
        columns = dict(zip(self._dtypes, map(_viewed, joined), strict=True))
        columns["phase"] = pa.DictionaryArray.from_arrays(columns["phase"], _texts(list(self._phases)))
        batch = pa.record_batch(list(columns.values()), self._schema)
        with self._discarded_on_error():
            self._sink.write(batch, int(joined[0].min()), int(joined[0].max()))
        self._held, self._rows = [], 0

    def _check_columns(self, columns: list[Any], count: int) -> None:
        if len(columns) != len(self._dtypes):
            raise TypeError(
                "length and home_rank must be given exactly when extra_columns=True, item when item_column=True, piece "
                "when piece_columns=True, gap when gap_columns=True, nominal when nominal_column=True"
            )
        for (name, dtype), values in zip(self._dtypes.items(), columns, strict=True):
            if isinstance(values, np.ndarray):
                if values.dtype == dtype and values.shape == (count,):
                    continue
                got = f"{values.dtype}{[*values.shape]}"
            elif name in _OF_A_CALL and isinstance(values, int | np.integer):
                continue
            else:
                got = type(values).__name__
            raise TypeError(f"{name} must be an array {dtype}[{count}], got {got}")

    def _check_open(self) -> None:
        if not self._open:
            raise RuntimeError("this plan writer is closed")

    def close(self, description: Mapping[str, object], **more: object) -> Path:
        """Finish the plan, put it in place of what was there and return its path, as the writer was given it.

        The description, and what is said `more`, such as the table of steps, go into the file's metadata.

        Raises
        ------
        InputError
            If the disk does not take it; what was there before is still there.
        TypeError, ValueError
            If the description is not what JSON can hold (NaN and infinity are not).
        """
        self._check_open()
        to_json(description)  # refused before anything else is done
        if self._rows:
            self._flush()
        return self._put(to_json(header(description, row_groups=self._sink.groups, **more)))

    def _put(self, text: bytes) -> Path:
        """Finish the file, which says `text`, and put it in its place."""
        with self._discarded_on_error():
            self._sink.finish(text)
            if not self._temporary:
                write(self._where, self._file.getvalue())  # in one request: the store has the whole file or none of it
                self._shut()
                return as_path(self._where)
            sync_file(self._file)
            self._shut()  # discard nothing from here on: an interrupt may find the plan in place
            os.replace(self._temporary, self._target)
        sync_folder(os.path.dirname(self._target))
        self._file.close()
        return Path(self._where)

    def discard(self) -> None:
        """Remove what was written and leave what was there before; after :meth:`close`, do nothing."""
        if not self._open:
            return
        self._shut()
        self._sink.discard()
        if self._temporary:
            remove_files([self._temporary])

    def _shut(self) -> None:
        """Take no more rows."""
        self._open, self._held = False, []

    @contextmanager
    def _discarded_on_error(self) -> Iterator[None]:
        try:
            with reported(self._where, "write the plan"):
                yield
        except BaseException:
            self.discard()
            raise

    def __enter__(self) -> PlanWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.discard()
