"""What the head of a log tells of its columns, and which of them make up the length of a sample."""

import re
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from balancer.errors import InputError, did_you_mean, on_a_line


@dataclass(frozen=True, slots=True)
class LengthLog:
    """A log of lengths: what its head tells, and the columns that were read of it."""

    path: Path  # the file, folder or pattern; of a table in memory its name in errors
    format: str  # one of ``parquet``, ``csv``, ``text``, ``jsonl``, ``arrow``, ``npy``, ``idx``
    columns: tuple[str, ...]  # every column, in file order; ``("length",)`` for lengths alone
    integer_columns: tuple[str, ...]  # The columns that hold integers. For CSV and JSON lines the first rows decide.
    is_manifest: bool  # true for JSON lines whose rows have a ``duration``, as speech manifests have, in seconds
    float_columns: tuple[str, ...] = ()  # the columns that hold floats; as for ``integer_columns``
    list_columns: tuple[str, ...] = ()  # those that hold lists, whose lengths are theirs
    files: tuple[Path, ...] = ()  # where its rows are, in order; by default `path` itself
    table: Any = field(default=None, compare=False, repr=False)  # of a log in memory: Arrow's
    # What was read of it, by how it was read and the column's name; kept, so that a log is read once
    held: dict[tuple[str, str], Any] = field(default_factory=dict, compare=False, repr=False)
    token: str = field(default_factory=partial(secrets.token_hex, 8), compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "files", self.files or (self.path,))

    def __reduce__(self) -> tuple[Any, ...]:
        """Send what the head tells, and a table; another process reads the columns, once for all of its tasks."""
        told = (self.path, self.format, self.columns, self.integer_columns, self.is_manifest, self.float_columns)
        return _restored, (*told, self.list_columns, self.files, self.table, self.token)


_restored_log: dict[str, LengthLog] = {}
"""The log that was sent to this process last, by its token."""


def _restored(*fields: Any) -> LengthLog:
    log = LengthLog(*fields[:-1])
    object.__setattr__(log, "token", fields[-1])
    if log.token not in _restored_log:
        _restored_log.clear()
        _restored_log[log.token] = log
    return _restored_log[log.token]


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
        return "how many values a row's list has"
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
