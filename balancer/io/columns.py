"""The columns of a log: which of them make up a length, and how their cells become int64 lengths.

Checks are a few vectorised passes; the offending row is looked for only after a check failed. Every converter takes k
cells and their `Place`, and gives int64[k] in [0, 2**63) or raises `InputError` about the first cell that is no length,
or about the column if its type cannot hold lengths.
"""

import decimal
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from balancer.errors import InputError, did_you_mean, on_a_line

_TOO_LARGE = 2**63
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE | re.ASCII)
# Multiplying in the default context would round to 28 digits; this one never rounds what fits in memory.
_EXACT = decimal.Context(prec=decimal.MAX_PREC, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)


@dataclass(frozen=True, slots=True)
class LengthLog:
    """What the head of a log tells about it."""

    path: Path  # the file, folder or pattern
    format: str  # one of ``parquet``, ``csv``, ``text``, ``jsonl``, ``arrow``, ``npy``, ``idx``
    columns: tuple[str, ...]  # every column, in file order; ``("length",)`` for lengths alone
    integer_columns: tuple[str, ...]  # The columns that hold integers. For CSV and JSON lines the first rows decide.
    is_manifest: bool  # true for JSON lines whose rows have a ``duration``, as speech manifests have, in seconds
    float_columns: tuple[str, ...] = ()  # the columns that hold floats; as for ``integer_columns``
    list_columns: tuple[str, ...] = ()  # those that hold lists, whose lengths are theirs
    files: tuple[Path, ...] = ()  # where its rows are, in order; by default `path` itself

    def __post_init__(self) -> None:
        object.__setattr__(self, "files", self.files or (self.path,))


# Last words of a name, in lower case, by which a column of integers is told for what it is.
_NAMES_OF_ROWS = re.compile(
    "ids?|idx|index|ix|[ug]uid|uid|pk|key|hash|seed|row|rownum|line|lineno|no|nr|serial|shard|timestamp|ts|epoch|"
    "offset|label|unnamed|(sample|row|doc|document|record|item|example|image|video|audio|user|file|data)id"
)
_TOKENS = "input_ids"
_NAMES_OF_LENGTHS = re.compile(
    "len|lengths?|tokens?|frames?|patch|patches|samples|size|count|chars|words|bytes|duration"
)


def default_length(log: LengthLog) -> tuple[str, ...]:
    """Choose the columns whose sum is the length, when nobody named them.

    They are ``("duration",)`` for a speech manifest, else the only column of integers; beside lists of ``input_ids``
    those, unless its name says that it holds lengths.
    """
    if log.is_manifest:
        return ("duration",)
    # Tokenized data sets hold the tokens themselves. Other integers there are as a rule ids or labels.
    if _TOKENS in log.list_columns and not (len(log.integer_columns) == 1 and is_named_so(log.integer_columns[0])):
        return (_TOKENS,)
    if len(log.integer_columns) > 1:
        count = len(log.integer_columns)
        raise not_told(log, f"{count} columns of integers, so which one is the length is open", among_integers=True)
    if not log.integer_columns:
        raise not_told(log, "no columns of integers, so which one is the length is open")
    (name,) = log.integer_columns
    if _NAMES_OF_ROWS.fullmatch(_last_word(name)):
        raise not_told(log, f"the only column of integers, {name!r}, is by its name an identifier, not a length")
    return log.integer_columns


def is_named_so(name: str) -> bool:
    """Whether a column's name says that it holds lengths, whatever its numbers are."""
    return _NAMES_OF_LENGTHS.fullmatch(_last_word(name)) is not None


def _last_word(name: str) -> str:
    """Return the last word of a name such as ``sample_id`` or ``sampleId``, in lower case."""
    # Capitals are split from what follows, so that `sampleID` ends in `id` as `sample_id` does.
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\d_A-Z]+", name)
    return words[-1].lower() if words else ""


class LengthUnknownError(InputError):
    """A log whose length column is not known: `what` is so, and `likely` it is these columns, if any look like it."""

    what: str
    likely: str


def not_told(log: LengthLog, why: str, among_integers: bool = False) -> LengthUnknownError:
    """Return the error about a log whose length column is not known, with what to type."""
    likely = "+".join(_likely(log.integer_columns)) if among_integers else ""
    say = "say which with --length COLUMN[+COLUMN...]" + f", such as --length {likely}" * bool(likely)
    if log.float_columns and not among_integers:
        say += (
            f"; floats ({listed(log.float_columns, 5)}) are lengths only where they are whole numbers: write seconds "
            "as frames, or as JSON lines with a 'duration', which become frames of 10 ms"
        )
    columns = (
        f"they are: {listed(log.integer_columns)}" if among_integers else f"columns there are: {listed(log.columns)}"
    )
    what = f"{log.path}: {why}; {columns}"
    error = LengthUnknownError(f"{what}\n{say}")
    error.what, error.likely = what, likely
    return error


def _likely(columns: Sequence[str]) -> list[str]:
    """Return the columns whose sum a length may be: all that count tokens, or else one that is named like a length."""
    tokens = [name for name in columns if _last_word(name) in ("token", "tokens")]
    named = [name for name in columns if is_named_so(name)]
    # Tokens of several columns add up. Other names may tell one length in several units, so the first one is taken.
    return tokens or named[:1]


def parse_length(expression: str) -> tuple[str, ...]:
    """Split column names joined by ``+``, such as ``text_tokens+image_tokens``; blanks around a name do not count.

    Examples
    --------
    >>> parse_length("text_tokens + image_tokens")
    ('text_tokens', 'image_tokens')
    """
    columns = tuple(part.strip() for part in expression.split("+"))
    if not all(columns):
        raise InputError(f"length {expression!r} has an empty part; write COLUMN or COLUMN+COLUMN")
    repeated = _repeated(columns)
    if repeated:
        raise InputError(f"length {expression!r} names column {repeated[0]!r} twice; name every column once")
    return columns


def unit_of(log: LengthLog, columns: Sequence[str]) -> str:
    """Name the unit of sums of these columns: ``as recorded``, frames, or that the values of lists were counted."""
    if log.is_manifest and "duration" in columns:
        return "frames of 10 ms: ceil(100 * duration)"
    if set(columns) & set(log.list_columns):
        return "values of a row's list"
    return "as recorded"


def choose_length(log: LengthLog, expression: str | None) -> tuple[str, ...]:
    """Return the columns that `expression` names in `log`, or, without one, the default.

    A column of exactly that name comes before a sum; blanks around a name count only if they make a difference.
    """
    if expression is None:
        return default_length(log)
    if expression in log.columns:
        return (expression,)
    columns = []
    for part in parse_length(expression):
        # A header of CSV such as `a, b` has names that begin with a blank, which nobody types.
        alike = [name for name in log.columns if name.strip() == part]
        columns.append(alike[0] if part not in log.columns and len(alike) == 1 else part)
    check_columns(log, columns)
    return tuple(columns)


def check_columns(log: LengthLog, columns: Sequence[str]) -> None:
    """Refuse columns that cannot be read and summed: none, unknown, ambiguous, or one twice."""
    if not columns or _repeated(columns):
        raise InputError(f"{log.path}: lengths need at least one column, and no column twice; got {list(columns)}")
    for name in columns:
        check_column(log, name)


def check_column(log: LengthLog, name: str) -> None:
    """Refuse a column that is not there, or is there twice."""
    if name not in log.columns:
        meant = did_you_mean(name, log.columns)
        raise InputError(f"{log.path}: no column {name!r}{meant}; columns there are: {listed(log.columns)}")
    if log.columns.count(name) > 1:
        raise InputError(f"{log.path}: {log.columns.count(name)} columns are named {name!r}; rename all but one")


class NoRowsError(InputError):
    """An empty file."""


def no_rows(path: Path) -> NoRowsError:
    """Give the error about an empty log."""
    return NoRowsError(f"{path}: holds no rows; a log needs at least one")


def _repeated(names: Sequence[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def listed(names: Sequence[str], most: int = 30) -> str:
    """Name columns in an error, not too many of them."""
    more = f", ... ({len(names) - most} more)" if len(names) > most else ""
    return (", ".join(on_a_line(n) if n == n.strip() and n else repr(n) for n in names[:most]) or "none") + more


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a block of cells in its log."""

    path: Path
    column: str
    first_row: int = 0  # row (from 0) of the first cell
    lines: Sequence[int] | None = None  # line (from 1) of each row, where known
    # int64[k + 1]: for the items of k lists: row i has the cells ``offsets[i]`` to ``offsets[i + 1]``. None: a cell is
    # a row.
    offsets: NDArray[np.int64] | None = None

    def cell(self, index: int, complaint: str) -> InputError:
        """Give the error about the block's cell `index`."""
        row, item = index, ""
        if self.offsets is not None:
            row = int(np.searchsorted(self.offsets, index, side="right")) - 1
            item = f", item {index - self.offsets[row]}"
        line = "" if self.lines is None else f" (line {self.lines[row]})"
        return InputError(f"{self.path}: column {self.column!r}, row {self.first_row + row}{line}{item}: {complaint}")

    def column_of(self, kind: object, rule: str | None = None) -> InputError:
        """Give the error about a column of a type that cannot be used; without a rule, that for lengths."""
        rule = rule or "lengths must be whole numbers: name a column of integers, or cast this one"
        return InputError(f"{self.path}: column {self.column!r} is of type {shown(str(kind), quote=False)}; {rule}")

    def damaged(self, error: Exception) -> InputError:
        """Give the error about a column whose cells contradict one another."""
        return InputError(f"{self.path}: column {self.column!r} is damaged: {error}")


def shown(value: object, *, quote: bool = True) -> str:
    """Write a value in at most about 60 characters and on one line."""
    text = repr(value) if quote and isinstance(value, str) else str(value)
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:57] + "..."


def complaint_about(value: object) -> str | None:
    """Say what keeps a single value from being a length: value, rule, remedy; None if nothing does."""
    if value is None:
        return "there is no value (null, empty or missing); every row needs a length"
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return f"{shown(value)} is not a number; lengths must be whole numbers"
    if not _is_finite(value):
        return f"{shown(value)} is not finite; lengths must be whole numbers"
    if value < 0:
        return f"{shown(value)} is negative; lengths must be >= 0"
    if value >= _TOO_LARGE:
        return f"{shown(value)} is too large; lengths must be < 2**63"
    # After the bounds: the integer part of a Decimal such as 1E+999999 would fill the memory.
    if value != int(value):
        return f"{shown(value)} is a fraction; lengths must be whole numbers"
    return None


def _is_finite(value: int | float | Decimal) -> bool:
    # math.isfinite would take the detour over float, which overflows.
    if isinstance(value, Decimal):
        return value.is_finite()
    return isinstance(value, int) or math.isfinite(value)


def from_numpy(cells: NDArray[Any], place: Place) -> NDArray[np.int64]:
    """Take integers or floats of at most 64 bits; the result shares memory with `cells` where it can."""
    kind = cells.dtype.kind
    if kind not in "iuf" or cells.dtype.itemsize > 8 or cells.ndim != 1:
        raise place.column_of(f"{cells.dtype}{list(cells.shape[1:]) or ''}")
    if cells.size == 0:
        return np.empty(0, dtype=np.int64)
    low, high = cells.min().item(), cells.max().item()  # both NaN as soon as one cell is
    if low >= 0 and high < _TOO_LARGE:
        lengths = np.ascontiguousarray(cells, dtype=np.int64)
        if kind != "f" or bool((lengths == cells).all()):
            return lengths
    legal = (cells >= 0) & (cells < cells.dtype.type(_TOO_LARGE)) if kind == "u" else cells >= 0
    if kind == "f":
        # In float64: a float16 has no 2**63 to compare with.
        wide = cells.astype(np.float64)
        legal &= (wide < float(_TOO_LARGE)) & (np.floor(wide) == wide)
    index = int(np.argmin(legal))
    raise place.cell(index, str(complaint_about(cells[index].item())))


def from_arrow(cells: Any, place: Place) -> NDArray[np.int64]:
    """Take integers, floats or decimals, dictionary-encoded or not; no copy for int64, hence read-only."""
    cells = decoded(cells, place)
    if not is_numeric(cells.type):
        raise place.column_of(cells.type)
    if cells.null_count:
        raise place.cell(first_null(cells), str(complaint_about(None)))
    if pa.types.is_decimal(cells.type):
        return from_python(cells.to_pylist(), place)
    return from_numpy(as_numpy(cells), place)


def as_numpy(cells: Any) -> NDArray[Any]:
    """View an Arrow array of numbers without nulls; ``to_numpy`` would import pandas where there is one (0.3 s)."""
    dtype = np.dtype(cells.type.to_pandas_dtype())
    if len(cells) == 0:
        return np.empty(0, dtype)
    values: NDArray[Any] = np.frombuffer(cells.buffers()[1], dtype, len(cells), cells.offset * dtype.itemsize)
    values.flags.writeable = False
    return values


def decoded(cells: Any, place: Place) -> Any:
    """Replace a dictionary-encoded Arrow array by its values; others stay as they are."""
    if not pa.types.is_dictionary(cells.type):
        return cells
    try:
        return cells.dictionary.take(cells.indices)  # take checks the indices
    except pa.ArrowException as error:
        raise place.damaged(error) from error


def first_null(cells: Any) -> int:
    """Return the index of the first null in an Arrow array that has one."""
    return int(np.argmax(cells.is_null().to_numpy(zero_copy_only=False)))


def is_numeric(kind: Any) -> bool:
    """Tell whether an Arrow type can hold lengths: integers, floats and decimals, not bools."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def from_text(cells: Any, place: Place) -> NDArray[np.int64]:
    """Take decimal text such as ``512``, ``" 512 "`` or ``512.0``, in an Arrow array of strings."""
    import pyarrow.compute as pc  # takes longer than all else of pyarrow, and few logs need it

    # Arrow reads hexadecimal, this package does not: such a block takes the careful road, and fails there.
    if not any(pc.any(pc.match_substring(cells, letter)).as_py() for letter in "xX"):
        try:
            return from_numpy(as_numpy(cells.cast(pa.int64())), place)
        except pa.ArrowInvalid:
            cells = pc.utf8_trim_whitespace(cells)
        try:  # textual, because a float64 would round what stands behind its 16th digit
            whole = pc.replace_substring_regex(cells, r"^([0-9]+)\.0*$", r"\1")
            return from_numpy(as_numpy(whole.cast(pa.int64())), place)
        except pa.ArrowInvalid:
            pass
    return from_python([_number_in(text) for text in cells.to_pylist()], place)


def _number_in(text: str) -> object:
    """Read one cell of text: a number, None if it is blank, and the text itself if it is neither."""
    text = text.strip()
    if not text:
        return None
    if _NOT_FINITE.fullmatch(text):
        return float(text)
    if not _NUMBER.fullmatch(text):
        return text
    try:
        return Decimal(text)
    except ArithmeticError:  # an exponent of twenty digits
        return text


def from_python(cells: Sequence[object], place: Place) -> NDArray[np.int64]:
    """Take int, float and Decimal, as JSON rows give them."""
    # By exact types: a bool is an int to isinstance, and is no length.
    if set(map(type, cells)) == {int}:
        try:
            return from_numpy(np.array(cells, dtype=np.int64), place)
        except OverflowError:
            pass  # some cell has no int64: the careful road names it
    return _one_by_one(cells, complaint_about, int, place)


def frames_from_seconds(cells: Sequence[object], place: Place) -> NDArray[np.int64]:
    """Take seconds as int or Decimal (a float has lost its text): ceil(100 * seconds) frames of 10 ms, exactly.

    Examples
    --------
    >>> frames_from_seconds([Decimal("1.1"), 2, Decimal("0.001")], Place(Path("log.jsonl"), "duration"))
    array([110, 200,   1])
    """
    return _one_by_one(cells, _complaint_about_seconds, _frames, place)


def _complaint_about_seconds(value: object) -> str | None:
    if value is None:
        return "there is no value (null or missing); every row needs a duration"
    rule = "durations are seconds, finite and >= 0"
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return f"{shown(value)} is not a number; {rule}"
    if not _is_finite(value):
        return f"{shown(value)} is not finite; {rule}"
    if value < 0:
        return f"{shown(value)} is negative; {rule}"
    if value >= _TOO_LARGE or _frames(value) >= _TOO_LARGE:
        return f"{shown(value)} is too large; a duration must have less than 2**63 frames of 10 ms"
    return None


def _frames(seconds: Any) -> int:
    scaled = _EXACT.scaleb(Decimal(seconds), 2)
    return int(scaled.to_integral_value(decimal.ROUND_CEILING))


def _one_by_one(
    cells: Sequence[object],
    complaint: Callable[[object], str | None],
    convert: Callable[[Any], int],
    place: Place,
) -> NDArray[np.int64]:
    lengths = np.empty(len(cells), dtype=np.int64)
    for index, value in enumerate(cells):
        problem = complaint(value)
        if problem is not None:
            raise place.cell(index, problem)
        lengths[index] = convert(value)
    return lengths
