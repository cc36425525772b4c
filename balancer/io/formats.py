"""One file of a log: its format, its columns, and its rows block by block.

Content tells the format where it can, else the name does. What the libraries raise on a damaged file becomes an error
that names the file. The table of formats is at the end.
"""

import gzip
import io
import json
import os
import re
import tokenize
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from balancer.errors import InputError
from balancer.io._atomic import check_regular
from balancer.io.assemble import RawBlock, ToKeys, ToLengths, ToLists
from balancer.io.columns import LengthLog, Place, from_numpy, from_text, no_rows, shown
from balancer.io.keys import keys_from_arrow, keys_from_numpy, keys_from_python, keys_from_text
from balancer.io.lists import is_list, lengths_from_arrow, lengths_from_python, lists_from_arrow, lists_from_python
from balancer.io.megatron import INDEX_MAGIC, sequence_lengths
from balancer.io.plan_format import METADATA_KEY
from balancer.io.store import exists, is_remote, opened, raw_reader, text_reader

# Enough to tell the format; columns are then found by the reader of that format.
_HEAD_BYTES = 4096
_CSV_BLOCK_BYTES = 2 << 20  # Arrow reads up to 32 of them ahead
_PARQUET_BUFFER_BYTES = 1 << 20
_ARROW_ROWS = 1 << 17
_JSON_ROWS = 1 << 16
_JSON_HEAD_ROWS = 100
_NPY_ROWS = 1 << 20

_IPC_FILE = b"ARROW1"
_GZIP = b"\x1f\x8b"
_CODECS = {_GZIP: "gzip", b"(\xb5/\xfd": "zstd"}
_MAGIC = {INDEX_MAGIC: "idx", b"PAR1": "parquet", _IPC_FILE: "arrow", b"\xff\xff\xff\xff": "arrow", b"\x93NUMPY": "npy"}
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


def open_file(path: Path) -> LengthLog:
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
        raise InputError(f"{path}: is a {FORMATS[kind].title}, which is read from local disks alone; copy it to one")
    try:
        columns, integers, floats, lists = FORMATS[kind].inspect(path)
    except InputError:
        raise
    except _LIBRARY_ERRORS as error:
        raise _damaged(path, kind, error) from error
    is_manifest = kind == "jsonl" and "duration" in columns
    return LengthLog(path, kind, tuple(columns), tuple(integers), is_manifest, tuple(floats), tuple(lists))


def count_rows(path: Path, kind: str) -> int | None:
    """Return how many rows a file of format `kind` has, from footer or header; None where the format has none."""
    try:
        return FORMATS[kind].count(path)
    except InputError:
        raise
    except _LIBRARY_ERRORS as error:
        raise _damaged(path, kind, error) from error


def raw_blocks(
    log: LengthLog, columns: Sequence[str], most_rows: int, first: int = 0, stop: int | None = None
) -> Iterator[RawBlock]:
    """Read columns of one file block by block; whatever the libraries raise becomes an error about the file."""
    try:
        blocks = FORMATS[log.format].read(log, columns, most_rows, first)
        yield from blocks if stop is None else _until(blocks, stop - first)
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{log.path}: no such file") from None
    except _LIBRARY_ERRORS as error:
        raise _damaged(log.path, log.format, error) from error


def _until(blocks: Iterator[RawBlock], rows: int) -> Iterator[RawBlock]:
    """Yield the first `rows` rows of some blocks, and ask for no more."""
    while rows > 0 and (block := next(blocks, None)) is not None:
        raw, lines = block
        size = len(next(iter(raw.values())))
        yield block if size <= rows else ({name: cells[:rows] for name, cells in raw.items()}, lines)
        rows -= size


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
        title = FORMATS[str(named)].title
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
        with _opened(path) as handle:
            head = handle.read(_HEAD_BYTES)
    except _LIBRARY_ERRORS as error:
        title = FORMATS[named].title if named else codec
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


def _damaged(path: Path, kind: str, error: BaseException) -> InputError:
    if isinstance(error, UnicodeEncodeError):
        return InputError(f"{path}: its name is not UTF-8, which {FORMATS[kind].title} is read by; rename it")
    # Arrow's own error names neither the row nor its length, so the file is read once more to find it.
    if kind == "csv" and (line := _row_over(path, _CSV_BLOCK_BYTES)):
        most = f"{_CSV_BLOCK_BYTES >> 20} MiB, the most that a row of a CSV log may have"
        return InputError(
            f"{path}: the row on line {line} is longer than {most}; leave its long text out, or write Parquet"
        )
    # Arrow counts lines from 1, with the header if there is one; a log's rows count from 0, without it.
    before = 1 if kind == "text" else 2
    text = re.sub(r"Row #(\d+)", lambda match: f"row {int(match[1]) - before}", _first_line(error))
    return InputError(f"{path}: cannot be read as {FORMATS[kind].title}, it may be truncated or damaged: {text}")


def _row_over(path: Path, size: int) -> int | None:
    """Return the line, from 1, on which the first row with more bytes begins, if there is one."""
    first, length, quoted = 1, 0, False
    with _opened(path) as handle:
        for number, line in enumerate(handle, 1):
            if not quoted:
                first, length = number, 0
            length += len(line)
            # An odd number of quotes opens a cell that goes on behind the line's end, or closes it.
            quoted ^= line.count(b'"') % 2 == 1
            if length > size:
                return first
    return None


def _first_line(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(text.splitlines()[0].split())[:200]


_Names = Sequence[str]
_Columns = tuple[_Names, _Names, _Names, _Names]  # all, those of integers, those of floats, those of lists


def _arrow_columns(schema: Any) -> _Columns:
    def of(is_kind: Callable[[Any], bool]) -> _Names:
        kinds = [f.type.value_type if pa.types.is_dictionary(f.type) else f.type for f in schema]
        return [field.name for field, kind in zip(schema, kinds, strict=True) if is_kind(kind)]

    return schema.names, of(pa.types.is_integer), of(pa.types.is_floating), of(is_list)


def _inspect_parquet(path: Path) -> _Columns:
    with opened(path) as source, pq.ParquetFile(source) as file:
        if file.metadata.num_rows == 0:
            raise no_rows(path)
        if METADATA_KEY in (file.schema_arrow.metadata or {}):
            raise InputError(
                f"{path}: is a plan, and no log; name the log it was made from, or see it with balancer report"
            )
        return _arrow_columns(file.schema_arrow)


def _read_parquet(log: LengthLog, columns: _Names, most_rows: int, first: int) -> Iterator[RawBlock]:
    # Pre-buffering would hold whole row groups: a log written as one row group would be in memory as a whole. So does
    # pyarrow.dataset: 532 MiB of such a log of ten million rows, which are 209 here.
    # A request to a store costs as much as some megabytes: there, buffers are larger.
    size = _PARQUET_BUFFER_BYTES * (8 if is_remote(log.path) else 1)
    options = {"buffer_size": size, "pre_buffer": False, "page_checksum_verification": True}
    with opened(log.path) as source, pq.ParquetFile(source, **options) as file:
        group, count = 0, file.metadata.num_row_groups
        # Row groups before the first row wanted are skipped whole, by the footer alone.
        while group < count - 1 and first >= (rows := file.metadata.row_group(group).num_rows):
            group, first = group + 1, first - rows
        groups = list(range(group, count))
        for batch in file.iter_batches(min(_ARROW_ROWS, most_rows), groups, list(columns)):
            if first < batch.num_rows:
                yield {name: batch.column(name)[first:] for name in columns}, None
            first = max(0, first - batch.num_rows)


def rows_of_first_group(path: Path) -> int:
    """Return how many rows of a Parquet file are read together at least, from its footer."""
    try:
        with opened(path) as source:
            footer = pq.read_metadata(source)
            return int(footer.row_group(0).num_rows) if footer.num_row_groups else 0
    except InputError:
        raise
    except _LIBRARY_ERRORS as error:
        raise _damaged(path, "parquet", error) from error


def _count_parquet(path: Path) -> int:
    with opened(path) as source:
        return int(pq.read_metadata(source).num_rows)


def _open_ipc(source: Any, columns: Sequence[int] | None = None) -> tuple[Any, Iterator[Any]]:
    """Open either kind of Arrow IPC: its schema, and its record batches with at least those columns."""
    if source.read_at(len(_IPC_FILE), 0) == _IPC_FILE:
        # Not told which columns to read, Arrow maps them all; told so, it copies them from the file.
        file = pa.ipc.open_file(source)
        return file.schema, (file.get_batch(index) for index in range(file.num_record_batches))
    stream = pa.ipc.open_stream(source, options=pa.ipc.IpcReadOptions(included_fields=columns))
    return stream.schema, iter(stream)


def _mapped(path: Path) -> Any:
    return raw_reader(path) if is_remote(path) else pa.memory_map(os.fspath(path))


def _inspect_ipc(path: Path) -> _Columns:
    with _mapped(path) as source:
        return _arrow_columns(_open_ipc(source)[0])


def _read_ipc(log: LengthLog, columns: _Names, most_rows: int, first: int) -> Iterator[RawBlock]:
    with _mapped(log.path) as source:
        _, batches = _open_ipc(source, [log.columns.index(name) for name in columns])
        for batch in (whole.select(list(columns)) for whole in batches):
            # A damaged file may promise more rows than its buffers hold: Arrow would read past them.
            batch.validate()
            size = min(_ARROW_ROWS, most_rows)
            for start in range(min(first, batch.num_rows), batch.num_rows, size):
                block = batch.slice(start, size)
                yield {name: block.column(name) for name in columns}, None
            first = max(0, first - batch.num_rows)


def _count_ipc(path: Path) -> int | None:
    with _mapped(path) as source:
        is_file = source.read_at(len(_IPC_FILE), 0) == _IPC_FILE  # a stream has no footer
        return sum(batch.num_rows for batch in _open_ipc(source)[1]) if is_file else None


def _open_csv(source: Any, path: Path, names: _Names | None = None, **convert: Any) -> Any:
    """Open a CSV for Arrow; given the `names` of its columns, it has no line of them."""
    delimiter = "\t" if _plain_suffix(path) == ".tsv" else ","
    return pacsv.open_csv(
        source,
        # On one thread Arrow knows the row that it complains about, and reads no further ahead than it must.
        read_options=pacsv.ReadOptions(use_threads=False, block_size=_CSV_BLOCK_BYTES, column_names=names),
        parse_options=pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=pacsv.ConvertOptions(**convert),
    )


def _inspect_csv(path: Path) -> _Columns:
    with _opened(path) as handle:
        head = handle.read(_HEAD_BYTES)
    if len(head) < _HEAD_BYTES and len(head.strip().splitlines()) == 1:
        raise no_rows(path)
    with _decompressed(path) as source, _open_csv(source, path) as reader:
        columns, integers, floats, _ = _arrow_columns(reader.schema)
    if number := next((name for name in columns if _NUMBER.fullmatch(name)), None):
        raise InputError(
            f"{path}: the first line reads {shown(','.join(columns))}, which looks like data, as {number} is a number; "
            "a CSV log begins with a line that names its columns"
        )
    if len(columns) == 1 and not integers and (other := re.search(r"[;\t|]", columns[0])):
        raise InputError(
            f"{path}: the first line reads {shown(columns[0])}, as if columns were separated by {other[0]!r}; write "
            "commas, or tabs into a .tsv"
        )
    return columns, integers, floats, ()


def _read_csv(log: LengthLog, columns: _Names, most_rows: int, first: int) -> Iterator[RawBlock]:
    # Read as text: a type that Arrow infers from the first block may not hold what stands in a later one.
    types = dict.fromkeys(columns, pa.string())
    with (
        _decompressed(log.path) as source,
        _open_csv(source, log.path, include_columns=list(columns), column_types=types) as reader,
    ):
        for batch in reader:
            yield {name: batch.column(name) for name in columns}, None


_LENGTH = ("length",)
"""The columns of a file of lengths alone."""


def _inspect_text(path: Path) -> _Columns:
    return _LENGTH, _LENGTH, (), ()


def _read_text(log: LengthLog, columns: _Names, most_rows: int, first: int) -> Iterator[RawBlock]:
    as_text = {"length": pa.string()}
    with _decompressed(log.path) as source, _open_csv(source, log.path, _LENGTH, column_types=as_text) as reader:
        for batch in reader:
            yield {"length": batch.column("length")}, None


def json_rows(path: Path, parse_float: Callable[[str], Any] = Decimal) -> Iterator[tuple[int, dict[str, Any]]]:
    """Parse every line that is not blank; gives its number (from 1) and its object."""
    # A float would lose digits of a duration; of a name that stands twice, the last would win in silence.
    decode = json.JSONDecoder(parse_float=parse_float, object_pairs_hook=_each_once).decode
    row = 0
    with _opened(path) as handle:
        for number, line in enumerate(handle, 1):
            text = line.removeprefix(_BOM) if number == 1 else line
            if not text.strip():
                continue
            try:
                found = decode(text.decode("utf-8"))
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


def _opened(path: Path) -> Any:
    """Open a text, compressed or not, to be read line by line."""
    with text_reader(path) as handle:
        codec = _codec_of(handle.read(4))
    if codec == "gzip":
        return gzip.open(text_reader(path) if is_remote(path) else path)
    return text_reader(path) if codec is None else io.BufferedReader(pa.CompressedInputStream(raw_reader(path), codec))


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


def _inspect_json(path: Path) -> _Columns:
    kinds: dict[str, set[type]] = {}
    rows = 0
    for _, row in islice(json_rows(path), _JSON_HEAD_ROWS):
        rows += 1
        for name, value in row.items():
            kinds.setdefault(name, set()).add(type(value))
    if not rows:
        raise no_rows(path)
    there = {name: found - {type(None)} for name, found in kinds.items()}
    floats = [name for name, found in there.items() if Decimal in found and found <= {int, Decimal}]
    of_kind = {kind: [name for name, found in there.items() if found == {kind}] for kind in (int, list)}
    return list(kinds), of_kind[int], floats, of_kind[list]


def _read_json(log: LengthLog, columns: _Names, most_rows: int, first: int) -> Iterator[RawBlock]:
    wanted = ((line, [row.get(name) for name in columns]) for line, row in json_rows(log.path))
    while numbered := list(
        islice(wanted, min(_JSON_ROWS, most_rows))
    ):  # not the rows themselves: they may hold whole documents
        cells = zip(*(cells for _, cells in numbered), strict=True)
        yield dict(zip(columns, map(list, cells), strict=True)), [line for line, _ in numbered]


def _open_npy(path: Path) -> dict[str, Any]:
    # Mapped, so that a log larger than memory is read block by block; never unpickled, as pickles run code.
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if array.ndim != 1:
        raise InputError(f"{path}: has shape {array.shape}; a .npy log is 1-D, one length a row")
    if array.size == 0:
        raise no_rows(path)
    if array.dtype.names is None:
        return {"length": array}
    return {name: array[name] for name in array.dtype.names}


def _inspect_npy(path: Path) -> _Columns:
    columns = _open_npy(path)
    if list(columns) == ["length"] and columns["length"].dtype.kind not in "iuf":
        raise Place(path, "length").column_of(columns["length"].dtype)
    flat = {name: cells.dtype.kind for name, cells in columns.items() if cells.ndim == 1}
    return (
        list(columns),
        [n for n, kind in flat.items() if kind in "iu"],
        [n for n, kind in flat.items() if kind == "f"],
        (),
    )


def _read_npy(log: LengthLog, columns: _Names, most_rows: int, first: int) -> Iterator[RawBlock]:
    arrays = _open_npy(log.path)
    for start in range(first, len(arrays[columns[0]]), _NPY_ROWS):
        yield {name: np.asarray(arrays[name][start : start + _NPY_ROWS]) for name in columns}, None


def _inspect_idx(path: Path) -> _Columns:
    if len(sequence_lengths(path)) == 0:
        raise no_rows(path)
    return ["length"], ["length"], (), ()


def _read_idx(log: LengthLog, columns: _Names, most_rows: int, first: int) -> Iterator[RawBlock]:
    lengths = sequence_lengths(log.path)
    for start in range(first, len(lengths), _NPY_ROWS):
        yield {"length": np.asarray(lengths[start : start + _NPY_ROWS])}, None


@dataclass(frozen=True, slots=True)
class Format:
    """How files of one format are read."""

    title: str
    inspect: Callable[[Path], _Columns]
    read: Callable[[LengthLog, _Names, int, int], Iterator[RawBlock]]  # columns, most rows of a block, first row
    count: Callable[[Path], int | None]  # rows, where they need not be read for that; else None, and first row 0
    to_lengths: ToLengths
    to_keys: ToKeys
    to_lists: ToLists | None


def _no_count(path: Path) -> None:
    return None


FORMATS = {
    "parquet": Format(
        "Parquet", _inspect_parquet, _read_parquet, _count_parquet,
        lengths_from_arrow, keys_from_arrow, lists_from_arrow,
    ),
    "arrow": Format(
        "Arrow IPC", _inspect_ipc, _read_ipc, _count_ipc, lengths_from_arrow, keys_from_arrow, lists_from_arrow
    ),
    "csv": Format("CSV", _inspect_csv, _read_csv, _no_count, from_text, keys_from_text, None),
    "text": Format("text of one number a line", _inspect_text, _read_text, _no_count, from_text, keys_from_text, None),
    "jsonl": Format(
        "JSON lines", _inspect_json, _read_json, _no_count, lengths_from_python, keys_from_python, lists_from_python
    ),
    "idx": Format(
        "Megatron index", _inspect_idx, _read_idx, lambda path: len(sequence_lengths(path)),
        from_numpy, keys_from_numpy, None,
    ),
    "npy": Format(
        "NumPy .npy", _inspect_npy, _read_npy, lambda path: len(next(iter(_open_npy(path).values()))),
        from_numpy, keys_from_numpy, None,
    ),
}  # fmt: skip
