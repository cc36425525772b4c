"""Plan files written as a stream, and put in place as a whole or not at all.

Why this encoding: 10 million rows in steps of 1,024 (64 ranks and 21 positions at random, consecutive samples, slot 0),
encoded and decoded by pyarrow 26 on one core, in million rows a second and bytes a row: dictionary and snappy,
pyarrow's default: 32 and 75, 5.67; delta for ``sample``, else dictionary: 51 and 273, 1.40; delta and zstd: 47 and 131,
1.67; delta alone: 66 and 217, 1.79; delta and snappy, chosen: 62 and 206, 1.71. Delta keeps its speed with many ranks,
and snappy folds what it leaves of sorted columns. Nullable columns would cost 28 % of the writing speed and half of the
reading speed; statistics on all columns a third of the writing speed, so ``step`` alone has them, by which readers skip
row groups. Page checksums (1 %) tell damaged files. With the buffering here and the reader's cutting into steps: 43
written and 137 read.
"""

from __future__ import annotations

import base64
import glob
import os
import tempfile
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
    leftovers_of,
    open_temporary,
    remove_files,
    remove_leftovers,
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
    PART_FORMAT,
    PIECE,
    TYPES,
    VERSION,
    header,
    to_json,
)
from balancer.io.plan_rows import GAP
from balancer.io.store import as_path, is_remote, put

_OF_A_CALL = ("step", "phase", "slot")  # columns of which a number may be that of all rows
ROWS_PER_GROUP = 1_000_000  # 32 MB of buffers
STEPS_PER_GROUP = 64  # who reads one step reads a row group


_STAGED = "seqbalancer-plan-"  # how folders begin that hold what goes to a store, in the system's for temporary files
_HERE = "write a plan here"


class _Sink:
    """One Parquet file being written into an open binary file."""

    def __init__(self, file: BinaryIO, schema: Any) -> None:
        self.file = file
        self._schema = schema
        self.about: dict[str, Any] = {"rows": 0, "first_step": None, "last_step": None}
        self._writer = pq.ParquetWriter(
            file,
            schema,
            use_dictionary=["phase"],
            column_encoding={name: "DELTA_BINARY_PACKED" for name in schema.names if name != "phase"},
            compression="snappy",
            write_statistics=["step"],
            write_page_checksum=True,
            store_schema=False,
        )

    def write(self, batch: Any, first_step: int, last_step: int) -> None:
        self._writer.write_batch(batch, row_group_size=batch.num_rows)
        first_step = self.about["first_step"] if self.about["rows"] else first_step
        rows = self.about["rows"] + batch.num_rows
        self.about = {"rows": rows, "first_step": first_step, "last_step": last_step}

    def finish(self, description: bytes) -> None:
        # An Arrow schema that the writer stores at the start hides metadata added later from read_schema and
        # read_table; so it stores none, and the end gets one that has the description within, and the key too.
        arrow = self._schema.with_metadata({METADATA_KEY: description}).serialize().to_pybytes()
        metadata = {METADATA_KEY: description, b"ARROW:schema": base64.b64encode(arrow)}
        self._writer.add_key_value_metadata(metadata)
        self._writer.close()
        sync_file(self.file)

    def discard(self) -> None:
        with suppress(Exception):  # the disk may be full; nobody reads this file again
            self._writer.close()
        with suppress(OSError):
            self.file.close()


_idle: dict[tuple[int, tuple[str, ...]], dict[str, NDArray[Any]]] = {}
"""The last writer's buffers, by rows and columns: who writes part after part takes the same memory again."""


def _buffers_for(dtypes: Mapping[str, Any], rows: int) -> dict[str, NDArray[Any]]:
    """Return an array of so many rows for each column."""
    # Taken out: two writers at once must not share memory.
    idle = _idle.pop((rows, tuple(dtypes)), None)
    return idle or {name: np.empty(rows, dtype) for name, dtype in dtypes.items()}


def _viewed(values: NDArray[Any]) -> Any:
    """Return Arrow's array of integers that has the same memory: it is encoded before the next row overwrites it.

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
    removes what was written. A kill leaves what was there before too; the next successful write tidies up.

    Parameters
    ----------
    path : str or path
        A file; plans of several are :class:`~balancer.io.plan_folder.PlanFolder`'s.
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
        self._capacity = ROWS_PER_GROUP
        # Phases are kept by their numbers until they are flushed.
        self._buffers = _buffers_for({"step": np.int64, "phase": np.int32} | arrays, self._capacity)
        self._phases: dict[str, int] = {}
        self._filled = self._last_step = 0
        self._where = os.fspath(path)
        with reported(self._where, _HERE):
            self._open_target()
        self._open = True

    def _open_target(self) -> None:
        where = self._where
        if is_remote(where):  # a local file is copied to its store when it is complete
            as_path(where)
            if where.endswith("/"):
                raise InputError(f"{where}: cannot {_HERE}: it is one file, and this is a folder")
            self._target = os.path.join(tempfile.mkdtemp(prefix=_STAGED), "plan.parquet")
        else:
            self._target = target_of(where, _HERE)
        self._folder, self._name = os.path.split(self._target)
        self._file, self._temporary, self._token = open_temporary(self._folder, self._name)
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
        done = 0
        # Before the step's rows come in: readers skip whole row groups, so none should begin within a step.
        if self._filled and step // STEPS_PER_GROUP > self._last_step // STEPS_PER_GROUP:
            self._flush()
        while done < count:
            start = self._filled
            stop = min(self._capacity, start + count - done)
            more = done + stop - start
            for buffer, values in zip(self._buffers.values(), columns, strict=True):
                at_once = more - done == count or not isinstance(values, np.ndarray)
                buffer[start:stop] = values if at_once else values[done:more]
            self._filled, self._last_step, done = stop, step, more
            if stop == self._capacity:
                self._flush()

    def _flush(self) -> None:
        """Write the buffered rows as one row group."""
        columns = {name: _viewed(buffer[: self._filled]) for name, buffer in self._buffers.items()}
        columns["phase"] = pa.DictionaryArray.from_arrays(columns["phase"], _texts(list(self._phases)))
        batch = pa.record_batch(list(columns.values()), self._schema)
        with self._discarded_on_error():
            self._sink.write(batch, int(self._buffers["step"][0]), self._last_step)
        self._filled = 0

    def _check_columns(self, columns: list[Any], count: int) -> None:
        if len(columns) != len(self._buffers):
            raise TypeError(
                "length and home_rank must be given exactly when extra_columns=True, item when item_column=True, piece "
                "when piece_columns=True, gap when gap_columns=True, nominal when nominal_column=True"
            )
        for (name, buffer), values in zip(self._buffers.items(), columns, strict=True):
            if isinstance(values, np.ndarray):
                if values.dtype == buffer.dtype and values.shape == (count,):
                    continue
                got = f"{values.dtype}{[*values.shape]}"
            elif name in _OF_A_CALL and isinstance(values, int | np.integer):
                continue
            else:
                got = type(values).__name__
            raise TypeError(f"{name} must be an array {buffer.dtype}[{count}], got {got}")

    def _check_open(self) -> None:
        if not self._open:
            raise RuntimeError("this plan writer is closed")

    def close_part(self, about: Mapping[str, object]) -> dict[str, Any]:
        """Finish a file as one part of a folder; return what it says: `about`, its rows, its first and last step."""
        self._check_open()
        if self._filled:
            self._flush()
        described = {**about, **self._sink.about, "format": PART_FORMAT, "version": VERSION}
        self._put(to_json(described))
        return described

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
        text = to_json(header(description, **more))
        if self._filled:
            self._flush()
        return self._put(text)

    def _put(self, text: bytes) -> Path:
        """Finish the file, which says `text`, and put it in its place."""
        with self._discarded_on_error():
            self._sink.finish(text)
            if is_remote(self._where):
                # One request: the store has the whole file or none of it.
                put(self._temporary, self._where)
                self.discard()
                _remove_staged()
                return as_path(self._where)
            leftovers = leftovers_of(self._folder, self._name, self._token, None)
            self._shut()  # discard nothing from here on: an interrupt may find the plan in place
            os.replace(self._temporary, self._target)
        sync_folder(self._folder)
        self._file.close()
        remove_leftovers(leftovers)
        return Path(self._where)

    def discard(self) -> None:
        """Remove what was written and leave what was there before; after :meth:`close`, do nothing."""
        if not self._open:
            return
        self._shut()
        self._sink.discard()
        remove_files([self._temporary])
        if is_remote(self._where):
            with suppress(OSError):
                os.rmdir(self._folder)

    def _shut(self) -> None:
        """Take no more rows."""
        self._open = False
        _idle.clear()
        _idle[self._capacity, tuple(self._buffers)] = self._buffers

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


def _remove_staged() -> None:
    """Remove what killed runs left of plans that were on their way to a store."""
    for folder in glob.glob(os.path.join(glob.escape(tempfile.gettempdir()), f"{_STAGED}*")):
        with suppress(OSError):
            if left := leftovers_of(folder, "plan.parquet", "", None):
                remove_leftovers(left)
                os.rmdir(folder)
