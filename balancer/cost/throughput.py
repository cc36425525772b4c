"""Throughput curves: FLOP/s that a module reaches by the number of tokens, and the seconds that follow."""

import csv
import math
import os
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.errors import InputError, on_a_line
from solvers.types import Record

_MOST_ADJUSTED = 0.2
_COLUMNS = ("tokens", "flops_per_second")
_SHARDS = "tp"


class Throughput(Protocol):
    """Anything that gives FLOP/s for a number of tokens, and the seconds that follow."""

    def at(self, tokens: ArrayLike) -> NDArray[np.float64]:
        """FLOP/s with so many tokens, float64 of their shape."""

    def seconds(self, flops: ArrayLike, tokens: ArrayLike) -> NDArray[np.float64]:
        """Seconds that so many FLOPs take with so many tokens at once."""
        work, rate = np.asarray(flops, dtype=np.float64), self.at(tokens)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            # No FLOPs take no time, not even with no tokens, where no throughput is reached.
            return np.asarray(np.where(work == 0, 0.0, work / rate), dtype=np.float64)


def _as_tokens(tokens: ArrayLike) -> NDArray[np.float64]:
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

    def at(self, tokens: ArrayLike) -> NDArray[np.float64]:
        """FLOP/s with so many tokens, float64 of their shape."""
        values = _as_tokens(tokens)
        if self.half_tokens == 0:
            return np.full(values.shape, float(self.peak))
        return np.asarray(self.peak * values / (values + self.half_tokens), dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class ThroughputCurve(Record, Throughput):
    """Measured points with straight lines between them.

    Below the first point throughput is proportional to the tokens (a launch takes a fixed time); above the last it is
    constant (saturated). More tokens never have less throughput, nor take less time: measurements that say so are
    moved, by at most 20 %.

    Attributes
    ----------
    tokens, flops_per_second : float64[k]
        The points in ascending order, adjusted; read-only.
    adjusted : float
        Largest relative change by moving points.
    """

    tokens: NDArray[np.float64]
    flops_per_second: NDArray[np.float64]
    adjusted: float

    @classmethod
    def from_points(cls, tokens: ArrayLike, flops_per_second: ArrayLike) -> "ThroughputCurve":
        """Make a curve from points in any order; repeated ones are averaged.

        Raises
        ------
        ValueError
            No points, unequal numbers of tokens and FLOP/s, a value that is not positive and finite, or points more
            than 20 % away from every legal curve.

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
        for name, values in (("tokens", counts), ("flops_per_second", rates)):
            wrong = ~((values > 0) & (values < math.inf))
            if wrong.any():
                bad = int(np.argmax(wrong))
                raise ValueError(f"{name}[{bad}] must be positive and finite, got {values[bad]}")
        distinct, where = np.unique(counts, return_inverse=True)
        means = np.bincount(where, weights=rates) / np.bincount(where)
        # No less than with fewer tokens, and no more than in proportion to them.
        legal = distinct * np.minimum.accumulate(np.maximum.accumulate(means) / distinct)
        adjusted = float(np.max(np.abs(legal / means - 1)))
        if adjusted > _MOST_ADJUSTED:
            at = int(np.argmax(np.abs(legal / means - 1)))
            raise ValueError(
                f"throughput at {distinct[at]:g} tokens is {means[at]:.4g} FLOP/s, {adjusted:.0%} away from any curve "
                "that neither falls nor grows faster than the tokens; measure again"
            )
        return cls(distinct, legal, adjusted)

    @classmethod
    def from_csv(cls, path: str | os.PathLike[str]) -> "ThroughputCurve":
        """Read columns ``tokens`` and ``flops_per_second``.

        Raises
        ------
        InputError
            If the file cannot be read, lacks a column, or a row holds no positive number; it names the row (from 0).
        """
        return cls.by_shards(path, whole=True)[1]

    @classmethod
    def by_shards(cls, path: str | os.PathLike[str], *, whole: bool = False) -> "dict[int, ThroughputCurve]":
        """Read a curve for each number of tensor shards in column ``tp``, or for one where there is no such column.

        What shards exchange is then part of what was measured. With `whole`, that column is not looked at.

        Raises
        ------
        InputError
            As :meth:`from_csv`.
        """
        where = os.fspath(path)
        points: dict[int, list[list[float]]] = {}
        try:
            with open(path, encoding="utf-8-sig", newline="") as handle:
                rows = csv.DictReader(handle)
                for name in _COLUMNS:
                    if name not in (rows.fieldnames or ()):
                        found = ", ".join(map(on_a_line, rows.fieldnames or ())) or "none"
                        raise InputError(f"{where}: no column {name!r}; columns there are: {found}")
                sharded = not whole and _SHARDS in (rows.fieldnames or ())
                for number, row in enumerate(rows):
                    shards = _positive(where, _SHARDS, number, row[_SHARDS]) if sharded else 1.0
                    if not shards.is_integer():
                        raise InputError(
                            f"{where}: column {_SHARDS!r}, row {number}: {shards:g} must be a whole number"
                        )
                    points.setdefault(int(shards), []).append(
                        [_positive(where, name, number, row[name]) for name in _COLUMNS]
                    )
        except FileNotFoundError:
            raise InputError(f"{where}: no such file") from None
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"{where}: cannot be read as CSV: {error}") from error
        if not points:
            raise InputError(f"{where}: holds no rows")
        try:
            return {shards: cls.from_points(*np.array(each).T) for shards, each in sorted(points.items())}
        except ValueError as error:
            raise InputError(f"{where}: {error}") from error

    def at(self, tokens: ArrayLike) -> NDArray[np.float64]:
        """FLOP/s with so many tokens, float64 of their shape. O(log k) each."""
        values = _as_tokens(tokens)
        few = self.flops_per_second[0] * np.minimum(values / self.tokens[0], 1.0)
        return np.where(values < self.tokens[0], few, np.interp(values, self.tokens, self.flops_per_second))


def _positive(where: str, column: str, row: int, text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise InputError(f"{where}: column {column!r}, row {row}: {text!r} must be a positive number")
    return value
