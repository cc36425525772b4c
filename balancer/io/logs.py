"""Logs of sequence lengths: what they are, and their columns block by block in one pass.

A log is one file of Parquet, CSV, JSON lines or one number a line (compressed or not), Arrow IPC (file, Feather v2 or
stream) or NumPy, the index of a Megatron data set, or several files of one kind. Content tells the format where it can,
else the name does. Memory depends on the size of a block, never on that of the log. Rows are numbered from 0; blank
lines of text are no rows.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from balancer.errors import InputError
from balancer.io.assemble import Wanted, assembled
from balancer.io.columns import (
    LengthLog,
    NoRowsError,
    check_column,
    check_columns,
    choose_length,
    default_length,
    frames_from_seconds,
    is_named_so,
    no_rows,
    not_told,
    parse_length,
    unit_of,
)
from balancer.io.formats import FORMATS, count_rows, open_file, raw_blocks
from balancer.io.keys import KEY_RULE
from balancer.io.log_files import LogPath, files_of
from balancer.io.store import as_path, opened
from balancer.problem.block import Block

__all__ = [
    "LengthLog",
    "Span",
    "choose_length",
    "default_columns",
    "default_length",
    "file_sha256",
    "footer_sha256",
    "open_log",
    "parse_length",
    "read_columns",
    "rows_of_files",
    "unit_of",
]

_FOOTER_BYTES = 1 << 16
_LIST_ROWS = 1 << 14  # a row of lists may hold many values
_MOST_ROWS = 1 << 20
_HEAD_ROWS = 1 << 10  # that are looked at for a column that counts rows
_FEWEST_COUNTED = 10  # fewer may be so by chance


class Span(NamedTuple):
    """Consecutive rows of a log."""

    first_row: int  # the number of the first one in the log
    # In which files they are: of each its first row that is wanted, and the one after the last
    pieces: tuple[tuple[Path, int, int], ...]

    @classmethod
    def of(cls, log: LengthLog, counts: Sequence[int], first: int, stop: int) -> "Span":
        """Return rows ``first..stop - 1`` of a log whose files have so many rows each."""
        pieces, begins = [], 0
        for file, count in zip(log.files, counts, strict=True):
            start, end = max(first - begins, 0), min(stop - begins, count)
            if start < end:
                pieces.append((file, start, end))
            begins += count
        return cls(first, tuple(pieces))


def open_log(path: LogPath) -> LengthLog:
    """Find format and columns of a log from its head; of several files, those of the first that holds rows.

    `path` may be a folder or a pattern, as :func:`balancer.io.log_files.files_of` has them, or several paths: their
    rows follow one another, and the log is called as the first is.
    """
    paths = [path] if isinstance(path, str | os.PathLike) else path
    if not paths or not all(map(os.fspath, paths)):
        raise InputError("the name of the log is empty")
    files, called = files_of(path), as_path(paths[0])
    for file in files:
        try:
            return replace(open_file(file), path=called, files=files)
        except NoRowsError:
            continue
    raise no_rows(called)


def default_columns(log: LengthLog) -> tuple[str, ...]:
    """Choose the columns whose sum is the length, when nobody named them, with a look at the first rows."""
    columns = default_length(log)
    # These are lengths for certain; only a column of an unknown name may be a row number.
    if log.is_manifest or log.columns == ("length",) or is_named_so(columns[0]):
        return columns
    try:
        wanted = Wanted({"": columns}, dict.fromkeys(columns, FORMATS[log.format].to_lengths), {}, {})
        block = next(_blocks(log, wanted, _HEAD_ROWS))
    except InputError:
        return columns  # which is complained of where the log is read
    first = block.sums[""][:_HEAD_ROWS]
    # Rows that count up by one are numbers of rows, not lengths.
    if len(first) >= _FEWEST_COUNTED and bool((np.diff(first) == 1).all()):
        many = f"{first[0]}, {first[1]}, {first[2]}, ..."
        raise not_told(log, f"the only column of integers, {columns[0]!r}, counts rows ({many}) and holds no lengths")
    return columns


def read_columns(
    log: LengthLog,
    sums: Mapping[str, tuple[str, ...]],
    keys: Sequence[str] = (),
    lists: Sequence[str] = (),
    span: Span | None = None,
) -> Iterator[Block]:
    """Read columns in one pass over the log, or over some of its rows.

    `sums` has for every name the columns whose row-wise sum is its length. `keys` are columns of integers or text that
    say which rows belong together; CSV has no types: there, all is text. `lists` are columns that hold a list of
    lengths in every row, possibly an empty one; not in CSV and NumPy files. With a span it is those rows alone, of a
    log whose rows :func:`rows_of_files` can count. Blocks come in row order, each of at least one row; ``sums`` and
    ``lists`` in [0, 2**63). Memory is a block's: at most 2**20 rows, and 2**14 where lists are read.

    Raises
    ------
    InputError
        At once if nothing is asked for, a sum has no columns, a column is absent, or repeated in the log or in a sum,
        or the format has no lists; while iterating if the log is damaged, holds no rows, or a cell or a sum breaks a
        rule: the message names column, row, value and rule.
    """
    if not (sums or keys or lists):
        raise InputError(f"{log.path}: no columns asked for; name at least one column of lengths")
    for columns in sums.values():
        check_columns(log, columns)
    for name in (*keys, *lists):
        check_column(log, name)
    known = FORMATS[log.format]
    to_lists = known.to_lists
    if lists and to_lists is None:
        raise InputError(
            f"{log.path}: column {lists[0]!r}: {known.title} has no columns of lists; use Parquet or JSON lines"
        )
    summed = dict.fromkeys(name for columns in sums.values() for name in columns)
    lengths = dict.fromkeys(summed, known.to_lengths)
    if log.is_manifest and "duration" in lengths:
        lengths["duration"] = frames_from_seconds
    listed = dict.fromkeys(lists, to_lists) if to_lists else {}
    wanted = Wanted(dict(sums), lengths, dict.fromkeys(keys, known.to_keys), listed)
    return _blocks(log, wanted, _LIST_ROWS if lists else _MOST_ROWS, span)


def _blocks(log: LengthLog, wanted: Wanted, most_rows: int, span: Span | None = None) -> Iterator[Block]:
    """Yield the blocks of all files of a log; errors name the file, and its row."""
    key_types = dict[str, np.dtype[Any]]()
    first, pieces = (0, tuple((file, 0, None) for file in log.files)) if span is None else span
    row = first
    for file, start, stop in pieces:
        try:
            # The head of a log of one file was read when it was opened.
            part = log if file == log.path else _checked_part(file, log, wanted)
            for block in assembled(file, raw_blocks(part, wanted.columns, most_rows, start, stop), wanted, start):
                for name, column in block.keys.items():
                    if column.dtype != key_types.setdefault(name, column.dtype):
                        raise InputError(f"{file}: column {name!r} is not of the kind of the files before; {KEY_RULE}")
                yield replace(block, first_row=row)
                row += len(block)
        except NoRowsError:
            continue
    # Counts come from footers that were read before; a file may have been written again since.
    if span is not None and row - first != sum(stop - start for _, start, stop in span.pieces):
        raise InputError(f"{log.path}: changed while it was read: it has no row {row} any more")
    if row == first:
        raise no_rows(log.path)


def rows_of_files(log: LengthLog) -> tuple[int, ...] | None:
    """Return how many rows each file of a log has, from footers and headers alone; None where its format has none."""
    counts: list[int] = []
    for file in log.files:
        try:
            if file != log.path:
                _checked_part(file, log, Wanted({}, {}, {}, {}))
            count = count_rows(file, log.format)
        except NoRowsError:
            count = 0
        if count is None:
            return None
        counts.append(count)
    return tuple(counts)


def _checked_part(file: Path, log: LengthLog, wanted: Wanted) -> LengthLog:
    """Look at the head of one of several files, which must have what the first one has."""
    part = open_file(file)
    if part.format != log.format:
        kinds = FORMATS[part.format].title, FORMATS[log.format].title
        raise InputError(f"{file}: is {kinds[0]}, others of {log.path} are {kinds[1]}; a log is of one kind")
    for name in wanted.columns:
        check_column(part, name)
    return part


def footer_sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a Parquet file's footer, or of the last 64 KiB of another file, in hexadecimal digits."""
    with opened(path) as source:
        size = source.size()
        end = source.read_at(min(size, 8), max(0, size - 8))
        # Parquet ends with the footer's length in 4 bytes and its magic number in 4.
        length = int.from_bytes(end[:4], "little") + 8 if end[4:] == b"PAR1" else _FOOTER_BYTES
        return hashlib.sha256(source.read_at(min(length, size), size - min(length, size))).hexdigest()


def file_sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file in 64 hexadecimal digits, without holding the file in memory."""
    try:
        with open(path, "rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{os.fspath(path)}: cannot be read: {error.strerror or error}") from error
