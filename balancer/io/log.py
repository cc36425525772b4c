"""Logs of sequence lengths: what they are, and their columns in memory.

A log is one file of Parquet, CSV, JSON lines or one number a line (compressed or not), Arrow IPC (file, Feather v2 or
stream) or NumPy, the index of a Megatron data set, several files of one kind, or a table in memory. Content tells the
format where it can, else the name does. What libraries raise on a damaged file becomes an error that names the file.
Columns that are asked for are held: 8 bytes a number. Rows are numbered from 0; blank lines of text are no rows.
"""

import gzip
import io
import json
import os
import re
import tokenize
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from balancer.errors import InputError
from balancer.io._atomic import check_regular
from balancer.io.cells import KEY_RULE, Place, frames_of, is_list, keys_of, lengths_of, lists_of, shown
from balancer.io.columns import (
    LengthLog,
    NoRowsError,
    check_column,
    check_columns,
    choose_length,
    default_length,
    is_named_so,
    no_rows,
    not_told,
    parse_length,
    unit_of,
)
from balancer.io.log_files import LogPath, files_of
from balancer.io.plan_format import METADATA_KEY
from balancer.io.store import as_path, exists, is_remote, opened, raw_reader, text_reader
from balancer.io.tables import as_arrow, is_table
from balancer.problem.ragged import Ragged

__all__ = [
    "LengthLog",
    "LogColumns",
    "choose_length",
    "default_columns",
    "default_length",
    "json_rows",
    "open_log",
    "parse_length",
    "read_columns",
    "unit_of",
]

_HEAD_BYTES = 4096  # enough to tell the format; columns are then found by the reader of that format
_HEAD_ROWS = 1 << 10  # that are looked at for a column that counts rows
_FEWEST_COUNTED = 10  # fewer may be so by chance
_TEXT_BLOCK_BYTES = 64 << 20  # the most that a row of text may have
_ARROW_ROWS = 1 << 17
_JSON_ROWS = 1 << 16
_JSON_HEAD_ROWS = 100
_IPC_FILE = b"ARROW1"
_CODECS = {b"\x1f\x8b": "gzip", b"(\xb5/\xfd": "zstd"}
_INDEX_MAGIC = b"MMIDIDX\x00\x00"
_MAGIC = {
    _INDEX_MAGIC: "idx",
    b"PAR1": "parquet",
    _IPC_FILE: "arrow",
    b"\xff\xff\xff\xff": "arrow",
    b"\x93NUMPY": "npy",
}
_NO_LOG = {
    b"BZh": "is compressed with bzip2; decompress it first",
    b"\xfd7zXZ\0": "is compressed with xz; decompress it first",
    b"PK\x03\x04": "is a zip archive (or .npz); a log is one plain file: unpack it first",
    b"FEA1": "is Feather version 1; write it again as version 2 (Arrow IPC) or Parquet",
    b"TNTIDX\x00\x00": "is an index of Megatron's old kind; make the data set again with its present tools",
    b"PARE": "is an encrypted Parquet file; write it again without encryption",
}
_SUFFIXES = {
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".arrow", ".arrows", ".feather", ".ipc"), "arrow"),
    **dict.fromkeys((".csv", ".tsv"), "csv"),
    **dict.fromkeys((".jsonl", ".json", ".ndjson", ".manifest"), "jsonl"),
    ".npy": "npy",
    ".idx": "idx",
}
_TEXT = ("csv", "jsonl", "text")
"""The formats that may be compressed with gzip or zstd."""
_BOM = b"\xef\xbb\xbf"
_NUMBER = re.compile(r"\s*[-+]?[\d.]+(e[-+]?\d+)?\s*", re.IGNORECASE)

# What pyarrow and numpy raise on damaged files; numpy parses its header as Python source.
_LIBRARY_ERRORS = (
    *(pa.ArrowException, OSError, ValueError, TypeError, EOFError, OverflowError, MemoryError),
    *(SyntaxError, tokenize.TokenError, RecursionError, zlib.error),
)


@dataclass(frozen=True, slots=True, eq=False)
class LogColumns:
    """Columns of the same rows of a log; `len` is the number of rows.

    Examples
    --------
    >>> columns = LogColumns({"llm": np.array([5, 2, 9])}, {}, {"images": Ragged.of([[3], [], [4, 4]])})
    >>> tail = columns.taken(slice(1, 3))
    >>> len(tail), tail.sums["llm"].tolist(), tail.lists["images"].to_lists()
    (2, [2, 9], [[], [4, 4]])
    """

    sums: Mapping[str, NDArray[np.int64]]  # int64[n], read-only: lengths by name, >= 0
    keys: Mapping[str, NDArray[Any]]  # int64[n] or object[n] of str, read-only: which rows belong together, by column
    lists: Mapping[str, Ragged]  # a list of lengths a row, by column

    def __len__(self) -> int:
        columns: list[Any] = [*self.sums.values(), *self.keys.values(), *self.lists.values()]
        return len(columns[0])

    def taken(self, rows: slice | NDArray[np.int64]) -> "LogColumns":
        """Cut out consecutive rows, which are shared, or take some by their numbers, in that order, which copies."""
        return LogColumns(
            {name: column[rows] for name, column in self.sums.items()},
            {name: column[rows] for name, column in self.keys.items()},
            {n: column[rows] if isinstance(rows, slice) else column.take(rows) for n, column in self.lists.items()},
        )


def open_log(log: LogPath | Any) -> LengthLog:
    """Find format and columns of a log from its head; of several files, those of the first that holds rows.

    `log` may be a folder or a pattern, as :func:`balancer.io.log_files.files_of` has them, several paths, whose rows
    follow one another, the log being called as the first is, or a table in memory.
    """
    if is_table(log):
        table = as_arrow(log)
        if not table.column_names:
            raise InputError("the table: has no columns; it needs one of lengths at least, such as {'tokens': lengths}")
        if not len(table):
            raise no_rows(Path("the table"))
        _check_no_plan("the table", table.schema)
        return _headed(Path("the table"), "arrow", table.schema, table)
    paths = [log] if isinstance(log, str | os.PathLike) else log
    if not paths or not all(map(os.fspath, paths)):
        raise InputError("the name of the log is empty")
    files, called = files_of(log), as_path(paths[0])
    for file in files:
        try:
            return replace(_open_file(file), path=called, files=files)
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
        first = read_columns(log, {"": columns}).sums[""][:_HEAD_ROWS]
    except InputError:
        return columns  # which is complained of where the log is read
    # Rows that count up by one are numbers of rows, not lengths.
    if len(first) >= _FEWEST_COUNTED and bool((np.diff(first) == 1).all()):
        many = f"{first[0]}, {first[1]}, {first[2]}, ..."
        raise not_told(log, f"the only column of integers, {columns[0]!r}, counts rows ({many}) and holds no lengths")
    return columns


def read_columns(
    log: LengthLog, sums: Mapping[str, tuple[str, ...]], keys: Sequence[str] = (), lists: Sequence[str] = ()
) -> LogColumns:
    """Return columns of all rows of a log, each read once and then held.

    `sums` has for every name the columns whose row-wise sum is its length. `keys` are columns of integers or text that
    say which rows belong together; CSV has no types: there, all is text. `lists` are columns that hold a list of
    lengths in every row, possibly an empty one; not in CSV and NumPy files.

    Raises
    ------
    InputError
        If nothing is asked for, a sum has no columns, a column is absent, or repeated in the log or in a sum, the
        format has no lists, the log is damaged, holds no rows, or a cell or a sum breaks a rule: the message names
        file, column, row, value and rule.
    """
    if not (sums or keys or lists):
        raise InputError(f"{log.path}: no columns asked for; name at least one column of lengths")
    for columns in sums.values():
        check_columns(log, columns)
    for name in (*keys, *lists):
        check_column(log, name)
    if lists and log.format not in ("parquet", "arrow", "jsonl"):
        title = _FORMATS[log.format].title
        raise InputError(f"{log.path}: column {lists[0]!r}: {title} has no columns of lists; use Parquet or JSON lines")
    asked = [*(("length", name) for columns in sums.values() for name in columns),
             *(("key", name) for name in keys), *(("list", name) for name in lists)]  # fmt: skip
    if left := [each for each in dict.fromkeys(asked) if each not in log.held]:
        log.held.update(_read(log, left))
    found = LogColumns(
        {name: _sum_of(log, columns) for name, columns in sums.items()},
        {name: log.held["key", name] for name in keys},
        {name: log.held["list", name] for name in lists},
    )
    for array in (*found.sums.values(), *found.keys.values()):
        array.flags.writeable = False
    return found


_Asked = Sequence[tuple[str, str]]  # how a column is read, ``length``, ``key`` or ``list``, and its name


def _read(log: LengthLog, asked: _Asked) -> dict[tuple[str, str], Any]:
    """Read columns in one pass over all files of a log."""
    parts: dict[tuple[str, str], list[Any]] = {each: [] for each in asked}
    ends = [0]
    for file in log.files:
        try:
            # The head of a log of one file was read when it was opened.
            part = log if log.files == (log.path,) else _checked_part(file, log, asked)
            ends.append(ends[-1] + _read_file(part, asked, parts))
        except NoRowsError:
            ends.append(ends[-1])
    if not ends[-1]:
        raise no_rows(log.path)
    # Where rows of each file end: errors about rows of several columns name the file.
    if log.held.setdefault(("", "ends"), ends) != ends:
        raise InputError(f"{log.path}: changed while it was read: it has {ends[-1]} rows, and had others before")
    return {
        each: Ragged.concatenate(found) if each[0] == "list" else found[0] if len(found) == 1 else np.concatenate(found)
        for each, found in parts.items()
    }


def _read_file(part: LengthLog, asked: _Asked, parts: Mapping[tuple[str, str], list[Any]]) -> int:
    """Add the columns of one file, block by block; return its number of rows."""
    path, text, row = part.path, part.format in ("csv", "text"), 0
    names = list(dict.fromkeys(name for _, name in asked))
    try:
        for cells, lines in _FORMATS[part.format].read(part, names):
            for kind, name in asked:
                place, found = Place(path, name, row, lines), parts[kind, name]
                if kind == "list":
                    column: Any = lists_of(cells[name], place)
                elif kind == "key":
                    column = keys_of(cells[name], place, text)
                    # Integers and text never compare equal: keys of two kinds would never keep rows together.
                    if found and len(found[0]) and len(column) and column.dtype != found[0].dtype:
                        raise place.cell(0, f"{shown(column[0])} is not of the kind of the rows before; {KEY_RULE}")
                elif part.is_manifest and name == "duration":
                    column = frames_of(cells[name], place)
                else:
                    column = lengths_of(cells[name], place, text)
                if len(column):
                    found.append(column)
            row += len(cells[names[0]])
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except _LIBRARY_ERRORS as error:
        raise _damaged(path, part.format, error) from error
    if not row:
        raise no_rows(path)
    return row


def _checked_part(file: Path, log: LengthLog, asked: _Asked) -> LengthLog:
    """Look at the head of one of several files, which must have what the first one has."""
    part = _open_file(file)
    if part.format != log.format:
        kinds = _FORMATS[part.format].title, _FORMATS[log.format].title
        raise InputError(f"{file}: is {kinds[0]}, others of {log.path} are {kinds[1]}; a log is of one kind")
    for _, name in asked:
        check_column(part, name)
    return part


def _sum_of(log: LengthLog, columns: Sequence[str]) -> NDArray[np.int64]:
    total: NDArray[np.int64] = log.held["length", columns[0]]
    for name in columns[1:]:
        total = total + log.held["length", name]
        # Two numbers in [0, 2**63) that overflow always wrap to a negative one.
        if total.min() < 0:
            row = int(np.argmax(total < 0))
            ends = log.held["", "ends"]
            number = int(np.searchsorted(ends, row, side="right")) - 1
            what = shown(" + ".join(columns), quote=False)
            raise InputError(
                f"{log.files[number]}: row {row - ends[number]}: {what} is too large a sum; lengths must be < 2**63"
            )
    return total


def _open_file(path: Path) -> LengthLog:
    """Find format and columns of one file from its head."""
    try:
        if not is_remote(path):
            check_regular(path, "; a log is read more than once: write it to a file first")
        with raw_reader(path) if is_remote(path) else open(path, "rb") as handle:
            head = handle.read(_HEAD_BYTES)
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        why = "its name holds a null byte" if "\0" in os.fspath(path) else _first_line(error)
        raise InputError(f"{os.fspath(path)!r:.200}: cannot be read: {why}") from error
    if len(head) < _HEAD_BYTES and not head.removeprefix(_BOM).strip():
        raise no_rows(path)
    kind = _format_of(path, head)
    if is_remote(path) and kind in ("npy", "idx"):
        raise InputError(f"{path}: is a {_FORMATS[kind].title}, which is read from local disks alone; copy it to one")
    try:
        return _headed(path, kind, _FORMATS[kind].inspect(path))
    except InputError:
        raise
    except _LIBRARY_ERRORS as error:
        raise _damaged(path, kind, error) from error


def _headed(path: Path, kind: str, schema: Any, table: Any = None) -> LengthLog:
    def of(is_kind: Callable[[Any], bool]) -> tuple[str, ...]:
        kinds = [f.type.value_type if pa.types.is_dictionary(f.type) else f.type for f in schema]
        return tuple(field.name for field, kind in zip(schema, kinds, strict=True) if is_kind(kind))

    is_manifest = kind == "jsonl" and "duration" in schema.names
    return LengthLog(path, kind, tuple(schema.names), of(pa.types.is_integer), is_manifest, of(pa.types.is_floating),
                     of(is_list), table=table)  # fmt: skip


def _format_of(path: Path, head: bytes) -> str:
    for magic, kind in _MAGIC.items():
        if head.startswith(magic):
            return kind
    if (codec := _codec_of(head)) is not None:
        return _compressed_format(path, codec)
    if path.suffix == ".bin" and exists(path.with_suffix(".idx")):
        raise InputError(f"{path}: holds the tokens of a Megatron data set; name its index, {path.with_suffix('.idx')}")
    for magic, problem in _NO_LOG.items():
        if head.startswith(magic):
            raise InputError(f"{path}: {problem}")
    # Formats with a magic number are told by it alone: only text depends on its name.
    named = _SUFFIXES.get(path.suffix.lower())
    if named in _MAGIC.values():
        title = _FORMATS[str(named)].title
        article = "an" if title[0] in "AEIOU" else "a"
        raise InputError(f"{path}: does not begin as {article} {title} file does; it is damaged, or its name is wrong")
    return _text_format(named, head)


def _text_format(named: str | None, head: bytes) -> str:
    """Tell the format of a text by its name, if that says it, or by its first line."""
    text = head.removeprefix(_BOM).lstrip()
    first = text.splitlines()[0].decode("utf-8", errors="replace") if text else ""
    # A .csv whose first line is a number has no header: it is a list of lengths, whatever it is called.
    if named in (None, "csv") and _NUMBER.fullmatch(first):
        return "text"
    return named or ("jsonl" if text.startswith(b"{") else "csv")


def _codec_of(head: bytes) -> str | None:
    return next((codec for magic, codec in _CODECS.items() if head.startswith(magic)), None)


def _compressed_format(path: Path, codec: str) -> str:
    """Tell the format of what is compressed, which must be text."""
    named = _SUFFIXES.get(_plain_suffix(path))
    try:
        with _lines_of(path) as handle:
            head = handle.read(_HEAD_BYTES)
    except _LIBRARY_ERRORS as error:
        title = _FORMATS[named].title if named else codec
        raise InputError(
            f"{path}: cannot be read as {title}, it may be truncated or damaged: {_first_line(error)}"
        ) from error
    if named not in (*_TEXT, None) or any(head.startswith(magic) for magic in _MAGIC):
        raise InputError(
            f"{path}: is compressed with {codec}, which only text may be (.csv, .jsonl, one number a line); decompress "
            "it first"
        )
    if not head.removeprefix(_BOM).strip():
        raise no_rows(path)
    return _text_format(named, head)


def _plain_suffix(path: Path) -> str:
    """Return the suffix of a file's name, without that of its compression."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in (".gz", ".zst", ".zstd") else suffix


@contextmanager
def _decompressed(path: Path) -> Iterator[Any]:
    """Open a text for Arrow, decompressed."""
    with opened(path) as source:
        codec = _codec_of(source.read(4))
        source.seek(0)
        if codec is None:
            yield source
        else:
            with pa.CompressedInputStream(source, codec) as stream:
                yield stream


def _lines_of(path: Path) -> Any:
    """Open a text, compressed or not, to be read line by line."""
    with text_reader(path) as handle:
        codec = _codec_of(handle.read(4))
    if codec == "gzip":
        return gzip.open(text_reader(path) if is_remote(path) else path)
    return text_reader(path) if codec is None else io.BufferedReader(pa.CompressedInputStream(raw_reader(path), codec))


def _damaged(path: Path, kind: str, error: BaseException) -> InputError:
    if isinstance(error, UnicodeEncodeError):
        return InputError(f"{path}: its name is not UTF-8, which {_FORMATS[kind].title} is read by; rename it")
    if "straddl" in str(error):  # Arrow's word for a row longer than a block
        most = f"{_TEXT_BLOCK_BYTES >> 20} MiB, the most that a row of text may have"
        return InputError(f"{path}: a row is longer than {most}; leave its long text out, or write Parquet")
    # Arrow counts lines from 1, with the header if there is one; a log's rows count from 0, without it.
    before = 1 if kind == "text" else 2
    text = re.sub(r"Row #(\d+)", lambda match: f"row {int(match[1]) - before}", _first_line(error))
    return InputError(f"{path}: cannot be read as {_FORMATS[kind].title}, it may be truncated or damaged: {text}")


def _first_line(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(text.splitlines()[0].split())[:200]


_Block = tuple[Mapping[str, Any], Sequence[int] | None]
"""Cells of some rows by column, and the line of every row where that is known."""


def _inspect_parquet(path: Path) -> Any:
    with opened(path) as source, pq.ParquetFile(source) as file:
        if file.metadata.num_rows == 0:
            raise no_rows(path)
        _check_no_plan(path, file.schema_arrow)
        return file.schema_arrow


def _check_no_plan(where: Path | str, schema: Any) -> None:
    """Refuse a plan, whose columns of integers, read as lengths, would give a wrong plan in silence."""
    if METADATA_KEY in (schema.metadata or {}):
        raise InputError(
            f"{where}: is a plan, and no log; name the log it was made from, or see it with balancer report"
        )


def _read_parquet(log: LengthLog, names: Sequence[str]) -> Iterator[_Block]:
    # Pre-buffering would hold whole row groups as they are in the file besides what is made of them.
    options = {"buffer_size": (8 if is_remote(log.path) else 1) << 20, "pre_buffer": False}
    with opened(log.path) as source, pq.ParquetFile(source, page_checksum_verification=True, **options) as file:
        for batch in file.iter_batches(_ARROW_ROWS, columns=list(names)):
            yield {name: batch.column(name) for name in names}, None


@contextmanager
def _ipc(path: Path, columns: Sequence[int] | None = None) -> Iterator[tuple[Any, Iterator[Any]]]:
    """Open either kind of Arrow IPC: its schema, and its record batches with at least those columns."""
    with raw_reader(path) if is_remote(path) else pa.memory_map(os.fspath(path)) as source:
        if source.read_at(len(_IPC_FILE), 0) == _IPC_FILE:
            # Not told which columns to read, Arrow maps them all; told so, it copies them from the file.
            file = pa.ipc.open_file(source)
            yield file.schema, (file.get_batch(index) for index in range(file.num_record_batches))
        else:
            stream = pa.ipc.open_stream(source, options=pa.ipc.IpcReadOptions(included_fields=columns))
            yield stream.schema, iter(stream)


def _inspect_ipc(path: Path) -> Any:
    with _ipc(path) as (schema, _):
        return schema


def _read_ipc(log: LengthLog, names: Sequence[str]) -> Iterator[_Block]:
    if log.table is not None:
        for batch in log.table.select(list(names)).to_batches():
            yield {name: batch.column(name) for name in names}, None
        return
    with _ipc(log.path, [log.columns.index(name) for name in names]) as (_, batches):
        for batch in (whole.select(list(names)) for whole in batches):
            # A damaged file may promise more rows than its buffers hold: Arrow would read past them.
            batch.validate()
            yield {name: batch.column(name) for name in names}, None


def _open_csv(source: Any, path: Path, names: Sequence[str] | None = None, **convert: Any) -> Any:
    """Open a CSV for Arrow; given the `names` of its columns, it has no line of them."""
    delimiter = "\t" if _plain_suffix(path) == ".tsv" else ","
    return pacsv.open_csv(
        source,
        # On one thread Arrow knows the row that it complains about.
        read_options=pacsv.ReadOptions(use_threads=False, block_size=_TEXT_BLOCK_BYTES, column_names=names),
        parse_options=pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=pacsv.ConvertOptions(**convert),
    )


def _inspect_csv(path: Path) -> Any:
    with _lines_of(path) as handle:
        head = handle.read(_HEAD_BYTES)
    if len(head) < _HEAD_BYTES and len(head.strip().splitlines()) == 1:
        raise no_rows(path)
    with _decompressed(path) as source, _open_csv(source, path) as reader:
        schema = reader.schema
    if number := next((name for name in schema.names if _NUMBER.fullmatch(name)), None):
        raise InputError(
            f"{path}: the first line reads {shown(','.join(schema.names))}, which looks like data, as {number} is a "
            "number; a CSV log begins with a line that names its columns"
        )
    if len(schema) == 1 and not pa.types.is_integer(schema[0].type) and (other := re.search(r"[;\t|]", schema[0].name)):
        raise InputError(
            f"{path}: the first line reads {shown(schema[0].name)}, as if columns were separated by {other[0]!r}; "
            "write commas, or tabs into a .tsv"
        )
    return schema


def _read_csv(log: LengthLog, names: Sequence[str]) -> Iterator[_Block]:
    # Read as text: a type that Arrow infers from the first block may not hold what stands in a later one.
    header = log.columns if log.format == "text" else None
    as_text = {"include_columns": list(names), "column_types": dict.fromkeys(names, pa.string())}
    with _decompressed(log.path) as source, _open_csv(source, log.path, header, **as_text) as reader:
        for batch in reader:
            yield {name: batch.column(name) for name in names}, None


def json_rows(path: Path, parse_float: Callable[[str], Any] = Decimal) -> Iterator[tuple[int, dict[str, Any]]]:
    """Parse every line that is not blank; gives its number (from 1) and its object."""
    # A float would lose digits of a duration; of a name that stands twice, the last would win in silence.
    decode = json.JSONDecoder(parse_float=parse_float, object_pairs_hook=_each_once).decode
    row = 0
    with _lines_of(path) as handle:
        for number, line in enumerate(handle, 1):
            text = line.removeprefix(_BOM) if number == 1 else line
            if not text.strip():
                continue
            try:
                found = decode(text.decode("utf-8").rstrip("\r\n"))  # an error at the end is in this line
            except _TwiceError as error:
                raise InputError(f"{path}: row {row} (line {number}) has column {shown(error.args[0])} twice") from None
            except (ValueError, ArithmeticError, RecursionError) as error:
                raise InputError(
                    f"{path}: row {row} (line {number}) is no JSON: {_json_problem(error)}; "
                    "JSON lines hold one object a line"
                ) from error
            # Such as a .json file with one array on one line.
            if type(found) is not dict:
                raise InputError(
                    f"{path}: row {row} (line {number}) is {shown(found)}, not an object; "
                    "JSON lines hold one object a line"
                )
            yield number, _with_duration(found)
            row += 1


def _with_duration(row: dict[str, Any]) -> dict[str, Any]:
    """Say how long a mixed cut of Lhotse's is, which only its tracks tell: until the last of them ends."""
    if row.get("type") != "MixedCut" or "duration" in row:
        return row
    try:
        ends = [Decimal(track.get("offset", 0)) + Decimal(track["cut"]["duration"]) for track in row["tracks"]]
        return row | {"duration": round(max(ends), 8)}
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
        return row  # which then has no duration, an error where one is asked for


class _TwiceError(Exception):
    """A name that stands twice in an object."""


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _TwiceError(next(name for name in names if names.count(name) > 1))
    return found


def _json_problem(error: Exception) -> str:
    if isinstance(error, ArithmeticError):
        return "it holds a number with too large an exponent"
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8"
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.colno}"
    return "nested too deeply" if isinstance(error, RecursionError) else _first_line(error)


_KINDS = {int: pa.int64(), Decimal: pa.float64(), list: pa.list_(pa.int64())}


def _inspect_json(path: Path) -> Any:
    kinds: dict[str, set[type]] = {}
    head = [row for _, row in islice(json_rows(path), _JSON_HEAD_ROWS)]
    for row in head:
        for name, value in row.items():
            kinds.setdefault(name, set()).add(type(value))
    if not head:
        raise no_rows(path)
    for found in kinds.values():
        found.discard(type(None))
        if Decimal in found and found <= {int, Decimal}:
            found.discard(int)
    return pa.schema([(name, _KINDS.get(min(found, key=str), pa.string()) if len(found) == 1 else pa.null())
                      for name, found in kinds.items()])  # fmt: skip


def _read_json(log: LengthLog, names: Sequence[str]) -> Iterator[_Block]:
    if (found := _json_by_arrow(log, names)) is not None:
        row = 0
        for batch in found:
            cells = {name: batch.column(name) for name in names}
            texts = {name: each.to_pylist() for name, each in cells.items() if pa.types.is_string(each.type)}
            yield cells | texts, _LineOfRow(log.path, row)
            row += batch.num_rows
        return
    wanted = ((line, [row.get(name) for name in names]) for line, row in json_rows(log.path))
    # Not the rows themselves: they may hold whole documents.
    while numbered := list(islice(wanted, _JSON_ROWS)):
        columns = zip(*(cells for _, cells in numbered), strict=True)
        yield dict(zip(names, map(list, columns), strict=True)), [line for line, _ in numbered]


def _json_by_arrow(log: LengthLog, names: Sequence[str]) -> list[Any] | None:
    """Read JSON lines thirty times faster; None where Arrow refuses what may be right after all, such as 4.0.

    What it cannot read is read line by line, and what is wrong is named then. Seconds must keep their digits.
    """
    import pyarrow.json as pajson

    if log.is_manifest and "duration" in names:
        return None
    kinds = {name: pa.list_(pa.int64()) for name in log.list_columns}
    kinds |= dict.fromkeys((*log.integer_columns, *log.float_columns), pa.int64())
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in names])
    # Other columns are not looked at: they may be of any kind, even of several.
    parse = pajson.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    try:
        with _decompressed(log.path) as source:
            table = pajson.read_json(source, pajson.ReadOptions(block_size=_TEXT_BLOCK_BYTES), parse)
    except pa.ArrowInvalid:
        return None
    if any(table[name].null_count for name in names):
        return None
    with _lines_of(log.path) as handle:  # Arrow takes several objects on a line, and objects over several
        is_one_a_line = table.num_rows == sum(1 for line in handle if line.strip())
    return [batch for batch in table.to_batches() if batch.num_rows] if is_one_a_line else None


class _LineOfRow(Sequence[int]):
    """The line of each row of JSON lines from some row on, found when an error asks for one."""

    def __init__(self, path: Path, first_row: int) -> None:
        self._path, self._first = path, first_row

    def __getitem__(self, row: Any) -> Any:
        with _lines_of(self._path) as handle:
            numbers = (number for number, line in enumerate(handle, 1) if line.removeprefix(_BOM).strip())
            return next(islice(numbers, self._first + row, None))

    def __len__(self) -> int:
        return sum(1 for _ in json_rows(self._path)) - self._first


def _open_npy(path: Path) -> dict[str, Any]:
    # Never unpickled, as pickles run code.
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if array.ndim != 1:
        raise InputError(f"{path}: has shape {array.shape}; a .npy log is 1-D, one length a row")
    if array.size == 0:
        raise no_rows(path)
    if array.dtype.names is None:
        return {"length": array}
    return {name: array[name] for name in array.dtype.names}


def _inspect_npy(path: Path) -> Any:
    columns = _open_npy(path)
    if list(columns) == ["length"] and columns["length"].dtype.kind not in "iuf":
        raise Place(path, "length").column_of(columns["length"].dtype)
    kinds = {"i": pa.int64(), "u": pa.int64(), "f": pa.float64()}
    return pa.schema([(name, kinds.get(cells.dtype.kind, pa.null()) if cells.ndim == 1 else pa.null())
                      for name, cells in columns.items()])  # fmt: skip


def _read_npy(log: LengthLog, names: Sequence[str]) -> Iterator[_Block]:
    arrays = _open_npy(log.path)
    yield {name: np.asarray(arrays[name]) for name in names}, None


_INDEX = np.dtype([("magic", "S9"), ("version", "<u8"), ("tokens", "u1"), ("sequences", "<u8"), ("documents", "<u8")])
"""The header of a Megatron index, little-endian.

Behind it are the lengths as int32, where each sequence begins and where each document ends as int64, and for multimodal
sets a byte a sequence.
"""


def _sequence_lengths(path: Path) -> NDArray[Any]:
    """Return how many tokens each sequence of a Megatron data set has, mapped from its index: int32[n]."""
    size = os.path.getsize(path)
    if size < _INDEX.itemsize:
        raise InputError(f"{path}: is too short for the header of a Megatron index; it is truncated")
    header = np.fromfile(path, _INDEX, 1)[0]
    if header["version"] != 1:
        raise InputError(f"{path}: is a Megatron index of version {header['version']}; version 1 is read")
    sequences, documents = int(header["sequences"]), int(header["documents"])
    # 12 = 4 for the length + 8 for where the sequence begins. Multimodal sets have one byte more for each.
    needed = _INDEX.itemsize + 12 * sequences + 8 * documents
    if size not in (needed, needed + sequences):
        told = f"{sequences} sequences and {documents} document bounds"
        raise InputError(f"{path}: its header tells of {told}, {needed} bytes, but it has {size}; it is damaged")
    if sequences == 0:
        raise no_rows(path)
    return np.memmap(path, "<i4", "r", _INDEX.itemsize, (sequences,))


_LENGTH_ALONE = pa.schema([("length", pa.int64())])


def _inspect_idx(path: Path) -> Any:
    _sequence_lengths(path)
    return _LENGTH_ALONE


@dataclass(frozen=True, slots=True)
class _Format:
    """How files of one format are read."""

    title: str
    inspect: Callable[[Path], Any]  # Arrow's schema, with the types of the first rows where the format has none
    read: Callable[[LengthLog, Sequence[str]], Iterator[_Block]]


_FORMATS = {
    "parquet": _Format("Parquet", _inspect_parquet, _read_parquet),
    "arrow": _Format("Arrow IPC", _inspect_ipc, _read_ipc),
    "csv": _Format("CSV", _inspect_csv, _read_csv),
    "text": _Format("text of one number a line", lambda _: _LENGTH_ALONE, _read_csv),
    "jsonl": _Format("JSON lines", _inspect_json, _read_json),
    "idx": _Format(
        "Megatron index", _inspect_idx, lambda log, _: iter([({"length": _sequence_lengths(log.path)}, None)])
    ),
    "npy": _Format("NumPy .npy", _inspect_npy, _read_npy),
}
