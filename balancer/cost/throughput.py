"""Throughput curves: FLOP/s that a module reaches by the number of tokens, and the seconds that follow."""

import csv
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.errors import InputError, on_a_line
from solvers.types import Record

_COLUMNS = ("tokens", "flops_per_second")
_SHARDS = "tp"

_Floats = NDArray[np.float64]


class Throughput(Protocol):
    """Anything that gives FLOP/s for a number of tokens, and the seconds that follow."""

    def at(self, tokens: ArrayLike) -> _Floats:
        """FLOP/s with so many tokens, float64 of their shape."""

    def seconds(self, flops: ArrayLike, tokens: ArrayLike) -> _Floats:
        """Seconds that so many FLOPs take with so many tokens at once."""
        work, rate = np.asarray(flops, dtype=np.float64), self.at(tokens)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            # No FLOPs take no time, not even with no tokens, where no throughput is reached.
            return np.asarray(np.where(work == 0, 0.0, work / rate), dtype=np.float64)


def _as_tokens(tokens: ArrayLike) -> _Floats:
    values = np.asarray(tokens, dtype=np.float64)
    if not (values >= 0).all():
        raise ValueError(f"tokens must be >= 0, got {values[~(values >= 0)].flat[0]}")
    return values


@dataclass(frozen=True, slots=True)
class SaturatingThroughput(Throughput):
    """``peak * tokens / (tokens + half_tokens)``: half the peak at `half_tokens`; for use without measurements.

    Attributes
    ----------
    peak : float
        FLOP/s that are reached with any number of tokens; positive.
    half_tokens : float
        >= 0; with 0 the peak is always reached.

    Examples
    --------
    >>> curve = SaturatingThroughput(4e14, 512)
    >>> float(curve.at(512)), float(curve.seconds(4e14, 512))
    (200000000000000.0, 2.0)
    """

    peak: float
    half_tokens: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.peak < math.inf:
            raise ValueError(f"peak must be positive and finite (FLOP/s), got {self.peak!r}")
        if not 0 <= self.half_tokens < math.inf:
            raise ValueError(f"half_tokens must be >= 0 and finite, got {self.half_tokens!r}")

    def at(self, tokens: ArrayLike) -> _Floats:
        """FLOP/s with so many tokens, float64 of their shape."""
        values = _as_tokens(tokens)
        if self.half_tokens == 0:
            return np.full(values.shape, float(self.peak))
        return np.asarray(self.peak * values / (values + self.half_tokens), dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class ThroughputCurve(Record, Throughput):
    """Measured points with straight lines between them.

    Below the first point throughput is proportional to the tokens (a launch takes a fixed time); above the last it is
    constant (saturated).

    Attributes
    ----------
    tokens, flops_per_second : float64[k]
        The points in ascending order; read-only.
    """

    tokens: _Floats
    flops_per_second: _Floats

    @classmethod
    def from_points(cls, tokens: ArrayLike, flops_per_second: ArrayLike) -> "ThroughputCurve":
        """Make a curve from points in any order; repeated ones are averaged.

        Raises
        ------
        ValueError
            No points, unequal numbers of tokens and FLOP/s, or a value that is not positive and finite.

        Examples
        --------
        >>> curve = ThroughputCurve.from_points([100, 1000], [1e14, 4e14])
        >>> curve.at([50, 550, 9999]).tolist()
        [50000000000000.0, 250000000000000.0, 400000000000000.0]
        """
        counts = np.asarray(tokens, dtype=np.float64)
        rates = np.asarray(flops_per_second, dtype=np.float64)
        if counts.ndim != 1 or counts.shape != rates.shape or counts.size == 0:
            raise ValueError(f"a curve needs as many tokens as rates, at least one: got {counts.shape}, {rates.shape}")
        for name, values in zip(_COLUMNS, (counts, rates), strict=True):
            if (wrong := ~((values > 0) & (values < math.inf))).any():
                bad = int(np.argmax(wrong))
                raise ValueError(f"{name}[{bad}] must be positive and finite, got {values[bad]}")
        distinct, where = np.unique(counts, return_inverse=True)
        return cls(distinct, np.bincount(where, weights=rates) / np.bincount(where))

    @classmethod
    def from_csv(cls, path: str | os.PathLike[str]) -> "ThroughputCurve":
        """Read columns ``tokens`` and ``flops_per_second``.

        Raises
        ------
        InputError
            If the file cannot be read, lacks a column, or a row holds no positive number; it names the row (from 0).
        """
        rows = _rows(path)
        return cls.from_points(*(_numbers(path, rows, name) for name in _COLUMNS))

    @classmethod
    def by_shards(cls, path: str | os.PathLike[str]) -> "dict[int, ThroughputCurve]":
        """Read a curve for each number of tensor shards in column ``tp``, or for one where there is no such column.

        What shards exchange is then part of what was measured.

        Raises
        ------
        InputError
            As :meth:`from_csv`.
        """
        rows = _rows(path)
        counts, rates = (_numbers(path, rows, name) for name in _COLUMNS)
        shards = _numbers(path, rows, _SHARDS, "whole ") if _SHARDS in rows[0] else np.ones(len(rows))
        return {int(each): cls.from_points(counts[shards == each], rates[shards == each]) for each in np.unique(shards)}

    def at(self, tokens: ArrayLike) -> _Floats:
        """FLOP/s with so many tokens, float64 of their shape. O(log k) each."""
        points, rates = np.append(0.0, self.tokens), np.append(0.0, self.flops_per_second)
        return np.asarray(np.interp(_as_tokens(tokens), points, rates), dtype=np.float64)


def _rows(path: str | os.PathLike[str]) -> list[dict[str, str]]:
    """Read the rows of a CSV that has all columns, one at least."""
    where = os.fspath(path)
    try:
        with open(path, encoding="utf-8-sig", newline="") as handle:
            reader = csv.DictReader(handle)
            rows, known = list(reader), reader.fieldnames or ()
    except FileNotFoundError:
        raise InputError(f"{where}: no such file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{where}: cannot be read as CSV: {error}") from error
    if missing := [name for name in _COLUMNS if name not in known]:
        found = ", ".join(map(on_a_line, known)) or "none"
        raise InputError(f"{where}: no column {missing[0]!r}; columns there are: {found}")
    if not rows:
        raise InputError(f"{where}: holds no rows")
    return rows


def _numbers(path: str | os.PathLike[str], rows: Sequence[dict[str, str]], name: str, of: str = "") -> _Floats:
    """Return a column of positive numbers, or of ``whole `` ones: float64[k]."""
    found = []
    for number, row in enumerate(rows):
        try:
            value = float(row[name] or "")
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf or (of and not value.is_integer()):
            where = f"{os.fspath(path)}: column {name!r}, row {number}"
            raise InputError(f"{where}: {row[name]!r} must be a positive {of}number")
        found.append(value)
    return np.array(found)
