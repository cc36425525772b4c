"""Measured steps: the lengths that a (micro-)batch held, and the seconds that it took.

Three forms, all as CSV, Parquet or JSON lines:

- a row a step, columns ``lengths`` and ``seconds``: a list (in CSV text such as ``512 1024 77``, blanks, commas or
  semicolons between, brackets around or not);
- a row a sample, columns ``step``, ``length``, ``seconds``: rows of one ``step`` are a step and agree on ``seconds``.

- a row a call on one sample, columns ``length``, ``seconds``.

Times may be in ``milliseconds`` instead. The first two may have a column ``degree``: how many ranks shared the step, as
a sequence group.

Beside a plan, what all its ranks took: a row a micro-batch of a rank, columns ``step``, ``rank``, ``seconds``, in one
file or in several, such as a file a rank.
"""

import csv
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from balancer.errors import InputError
from balancer.io.columns import check_column, listed
from balancer.io.log import LengthLog, json_rows, open_log

RankTimes = dict[int, dict[int, list[float]]]
"""Of each measured step, by number, of each rank the seconds of its micro-batches in order."""

_WIDE, _LONG, _ALONE = ("lengths",), ("step", "length"), ("length",)
_TIMES = {"seconds": 1.0, "milliseconds": 1e-3}
_OF_RANKS = ("step", "rank", "seconds")
_DEGREE = "degree"
_LONGEST = 2**31 - 1  # its square fits int64
_MEANT = {
    **dict.fromkeys(("s", "sec", "secs", "second", "time", "duration"), "seconds"),
    **dict.fromkeys(("ms", "msec", "millis", "millisecond", "time_ms", "duration_ms"), "milliseconds"),
}
_FORMS = "a row a step needs columns lengths, seconds; a row a sample needs step, length, seconds"


def read_measurements(
    path: str | os.PathLike[str], only: Mapping[str, str] | None = None
) -> tuple[list[NDArray[np.int64]], NDArray[np.float64], NDArray[np.int64] | None]:
    """Read the measured steps of a file: CSV, Parquet or JSON lines, in any form; `only` rows of these values.

    Returns for every step, in order of appearance, the lengths of its samples, the seconds that it took, positive and
    finite, and how many ranks shared it; None without that column.
    """
    log = open_log(path)
    where = os.fspath(path)
    if log.files != (log.path,):
        raise InputError(f"{where}: measurements are read from one file, not from {len(log.files)}")
    _check_format(log)
    timed = next((name for name in _TIMES if name in log.columns), "seconds")
    # The order matters: the last form asks for a part of what the second one asks for.
    form = next((form for form in (_WIDE, _LONG, _ALONE) if {*form, timed} <= set(log.columns)), None)
    if form is None:
        # A time by another name is the most common slip: the right one is all that its file lacks.
        meant = next((name for name in log.columns if timed not in log.columns and name.lower() in _MEANT), None)
        hint = "" if meant is None else f"; rename column {meant!r} to '{_MEANT[meant.lower()]}'"
        raise InputError(f"{where}: columns are {listed(log.columns)}; {_FORMS}{hint}")
    columns = (*form, timed)
    asked = (*columns, _DEGREE) if _DEGREE in log.columns else columns
    rows = _chosen(_rows(log, where, (*asked, *(only or ()))), list((only or {}).values()))
    degrees = [1] * len(rows) if asked is columns else [
        _as_integer(where, _DEGREE, i, row[-1], 1) for i, row in enumerate(rows)
    ]  # fmt: skip
    rows = [row[: len(columns)] for row in rows]
    if form == _LONG:
        lengths, seconds, degrees = _from_samples(where, rows, degrees, timed)
    else:
        lengths, seconds = _from_steps(where, rows, form[0], timed)
    return lengths, seconds, None if asked is columns else np.array(degrees, dtype=np.int64)


def read_rank_times(path: str | os.PathLike[str]) -> RankTimes:
    """Read what the ranks of steps took, of files in any of these formats; seconds are positive and finite."""
    log = open_log(path)
    _check_format(log)
    if missing := [name for name in _OF_RANKS if name not in log.columns]:
        have, needs = listed(log.columns), ", ".join(_OF_RANKS)
        raise InputError(f"{log.path}: has no column {missing[0]!r}: what ranks took needs {needs}; columns are {have}")
    times: RankTimes = {}
    for where in map(os.fspath, log.files):
        for row, (step, rank, taken) in enumerate(_rows(log, where, _OF_RANKS)):
            of_step = times.setdefault(_as_integer(where, "step", row, step), {})
            seconds = _as_seconds(where, row, taken)
            of_step.setdefault(_as_integer(where, "rank", row, rank), []).append(seconds)
    return times


def _check_format(log: LengthLog) -> None:
    if log.format not in _READERS:
        raise InputError(f"{log.path}: measurements are read from CSV, Parquet and JSON lines, not from {log.format}")


def _rows(log: LengthLog, where: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    for name in columns:
        check_column(log, name)
    try:
        return list(_READERS[log.format](where, columns))
    except InputError:
        raise
    except KeyError as error:
        raise InputError(f"{where}: has no column {error}, which {log.files[0]} has") from error
    except (OSError, ValueError, pa.ArrowException, csv.Error) as error:
        raise InputError(f"{where}: cannot be read: {str(error).splitlines()[0][:200]}") from error


def _csv_rows(where: str, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    with open(where, encoding="utf-8-sig", newline="") as handle:
        reader = csv.DictReader(handle, delimiter="\t" if where.lower().endswith(".tsv") else ",")
        for row in reader:
            yield tuple(row[name] for name in columns)


def _json_rows(where: str, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    for _, row in json_rows(Path(where), float):
        yield tuple(row.get(name) for name in columns)


def _parquet_rows(where: str, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    with pq.ParquetFile(where) as file:
        for batch in file.iter_batches(columns=list(columns)):
            yield from zip(*(batch.column(name).to_pylist() for name in columns), strict=True)


_READERS = {"csv": _csv_rows, "jsonl": _json_rows, "parquet": _parquet_rows}


def _wrong(where: str, column: str, row: int, value: object, rule: str) -> InputError:
    shown = repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "..."
    return InputError(f"{where}: column {column!r}, row {row}: {rule}, got {shown}")


def _chosen(rows: list[tuple[Any, ...]], values: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the rows whose last columns have these values, without these columns."""
    if not values:
        return rows
    return [
        row[: -len(values)] for row in rows if [_text(cell) for cell in row[-len(values) :]] == [*map(_text, values)]
    ]


def _text(cell: object) -> str:
    """Return a cell as it is compared: numbers by their value."""
    try:
        # So that `--where tp=2` finds 2, 2.0 and "2" alike, whatever the file's format makes of a cell.
        return repr(float(cell))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return str(cell).strip()


def _as_seconds(where: str, row: int, value: object, column: str = "seconds") -> float:
    try:
        seconds = math.nan if value is None or isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise _wrong(where, column, row, value, "must be a positive, finite number")
    return seconds * _TIMES[column] if column != "seconds" else seconds


def _as_integer(where: str, column: str, row: int, value: object, least: int = 0) -> int:
    number: Any = value
    if isinstance(value, str):
        # "2.0" is taken, too: tables that pass through pandas get floats where a cell is empty.
        digits = re.fullmatch(r"\s*\+?([0-9]{1,19})(\.0*)?\s*", value)
        number = int(digits[1]) if digits else None
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= _LONGEST:
        what = {_DEGREE: "degrees", "step": "steps", "rank": "ranks"}.get(column, "lengths")
        rule = f"{what} must be whole numbers from {least} to {_LONGEST}"
        raise _wrong(where, column, row, value, rule)
    return number


def _from_steps(
    where: str, rows: list[tuple[Any, ...]], column: str, timed: str
) -> tuple[list[NDArray[np.int64]], NDArray[np.float64]]:
    lengths, seconds = [], np.empty(len(rows))
    for row, (cells, taken) in enumerate(rows):
        if isinstance(cells, str):
            cells = re.split(r"[\s,;]+", cells.strip().strip("[]()").strip()) if cells.strip("[]() \t") else []
        elif isinstance(cells, int) and not isinstance(cells, bool):
            cells = [cells]
        if not isinstance(cells, list):
            raise _wrong(where, column, row, cells, "must be a list of lengths")
        lengths.append(np.array([_as_integer(where, column, row, cell) for cell in cells], dtype=np.int64))
        seconds[row] = _as_seconds(where, row, taken, timed)
    return lengths, seconds


def _from_samples(
    where: str, rows: list[tuple[Any, ...]], degrees: list[int], timed: str
) -> tuple[list[NDArray[np.int64]], NDArray[np.float64], list[int]]:
    steps: dict[Any, tuple[list[int], float, int]] = {}
    for row, (step, length, taken) in enumerate(rows):
        if step is None or step == "" or not isinstance(step, int | str):
            raise _wrong(where, "step", row, step, "must be an integer or a name")
        value = _as_integer(where, "length", row, length)
        seconds = _as_seconds(where, row, taken, timed)
        # A step's time stands in each of its rows. Two times mean that two runs share a step's number.
        found = steps.setdefault(step, ([], seconds, row))
        if found[1] != seconds:
            rule = f"must be the {found[1]!r} of row {found[2]}, which belongs to the same step {step!r}"
            raise _wrong(where, "seconds", row, taken, rule)
        if degrees[found[2]] != degrees[row]:
            rule = f"must be the {degrees[found[2]]} of row {found[2]}, which belongs to the same step {step!r}"
            raise _wrong(where, _DEGREE, row, degrees[row], rule)
        found[0].append(value)
    lengths = [np.array(values, dtype=np.int64) for values, _, _ in steps.values()]
    return (
        lengths,
        np.array([seconds for _, seconds, _ in steps.values()]),
        [degrees[row] for _, _, row in steps.values()],
    )
