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
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

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
from balancer.io.plan_format import ARRAYS, METADATA_KEY, OPTIONAL, TYPES, header, to_json
from balancer.io.store import as_path, is_remote, write

_OF_A_CALL = ("step", "phase", "slot")  # columns of which a number may be that of all rows
ROWS_PER_GROUP = 1_000_000  # about 32 MB
STEPS_PER_GROUP = 64  # who reads one step reads a row group
_HERE = "write a plan here"


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
    columns : iterable of str
        Which of :data:`balancer.io.plan_format.OPTIONAL` it has.

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
    ...     rank, position = np.array([1, 0, 1], np.int32), np.array([0, 0, 1], np.int32)
    ...     writer.append(0, "llm", sample=np.arange(3), rank=rank, slot=0, position=position)
    ...     _ = writer.close({"num_ranks": 2})
    >>> plan = open_plan(path)
    >>> plan.description, [(step.step, step.phase, step.rank.tolist()) for step in plan.steps()]
    ({'num_ranks': 2}, [(0, 'llm', [1, 0, 1])])
    """

    def __init__(self, path: str | os.PathLike[str], columns: Iterable[str] = ()) -> None:
        asked = set(columns)
        arrays = ARRAYS | {name: kind for name, kind in OPTIONAL.items() if name in asked}
        self._schema = pa.schema([pa.field(name, TYPES[name], nullable=False) for name in ("step", "phase", *arrays)])
        # Phases are kept by their numbers until they are flushed.
        self._dtypes = {name: np.dtype(kind) for name, kind in ({"step": np.int64, "phase": np.int32} | arrays).items()}
        self._held: list[list[NDArray[Any]]] = []  # of the next row group: columns of a phase of a step each
        self._phases: dict[str, int] = {}
        self._rows = self._last_step = 0
        self._groups: list[tuple[int, int]] = []  # the first and the last step of each row group
        self._where, self._open = os.fspath(path), False
        with reported(self._where, _HERE):
            self._open_target()
        self._open = True

    def _open_target(self) -> None:
        self._file: Any = io.BytesIO()
        where, self._temporary = self._where, ""
        if is_remote(where):  # what goes to a store is kept in memory until it is complete
            as_path(where)
            if where.endswith("/"):
                raise InputError(f"{where}: cannot {_HERE}: it is one file, and this is a folder")
        else:
            self._target = target_of(where, _HERE)
            self._file, self._temporary = open_temporary(*os.path.split(self._target))
        self._writer = pq.ParquetWriter(
            self._file, self._schema, use_dictionary=["phase"], compression="zstd", write_statistics=["step"],
            column_encoding={name: "DELTA_BINARY_PACKED" for name in self._schema.names if name != "phase"},
            write_page_checksum=True, store_schema=False,  # of which readers need nothing but what Parquet has
        )  # fmt: skip

    def append(self, step: int, phase: str, **columns: Any) -> None:
        """Add the rows of one phase of one step; no rows are legal and leave no trace.

        A sample is a row in the log; a single slot is that of all rows. Columns are those that the writer was made for:
        `item` says which item of its sample each row places; `start` and `stop` where in its sample each row's piece
        begins and ends, and `group` the ranks that share the sample, -1 where none do; `device`, of each row that
        places encoder work in a gap, its device, and `backward` the place of its backward there (`position` is that of
        its forward), -1 of others; `nominal_step`, the step for which each sample was drawn.

        Raises
        ------
        TypeError
            For an array of another dtype or shape than stated: converting could wrap or broadcast silently.
        InputError
            If the disk does not take the rows; the plan is then discarded.
        """
        self._check_open()
        code, count = self._phases.get(phase, len(self._phases)), len(columns.get("sample", ()))
        columns |= {"step": step, "phase": code}
        self._check_columns(columns, count)
        self._phases[phase] = code
        # Readers skip whole row groups, so none should begin within a step.
        is_next = step // STEPS_PER_GROUP > self._last_step // STEPS_PER_GROUP
        if self._rows and (is_next or self._rows >= ROWS_PER_GROUP):
            self._flush()
        if count:
            whole = {name: each if isinstance(each, np.ndarray) else np.full(count, each)
                     for name, each in columns.items()}  # fmt: skip
            self._held.append([whole[name].astype(dtype, copy=False) for name, dtype in self._dtypes.items()])
            self._rows, self._last_step = self._rows + count, step

    def _flush(self) -> None:
        """Write the rows that are held as one row group."""
        joined = [np.concatenate(values) for values in zip(*self._held, strict=True)]
        columns = dict(zip(self._dtypes, map(_viewed, joined), strict=True))
        columns["phase"] = pa.DictionaryArray.from_arrays(columns["phase"], _texts(list(self._phases)))
        batch = pa.record_batch(list(columns.values()), self._schema)
        with self._discarded_on_error():
            self._writer.write_batch(batch, row_group_size=batch.num_rows)
            self._groups.append((int(joined[0].min()), int(joined[0].max())))
        self._held, self._rows = [], 0

    def _check_columns(self, columns: Mapping[str, Any], count: int) -> None:
        if odd := sorted(columns.keys() ^ self._dtypes.keys()):
            raise TypeError(f"{odd[0]} must be given exactly if the writer was made for it")
        for name, dtype in self._dtypes.items():
            values = columns[name]
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
        with self._discarded_on_error():
            text = to_json(header(description, row_groups=self._groups, **more))
            self._writer.add_key_value_metadata({METADATA_KEY: text})
            self._writer.close()
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
        with suppress(Exception):  # the disk may be full; nobody reads this file again
            self._writer.close()
        with suppress(OSError):
            self._file.close()
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
