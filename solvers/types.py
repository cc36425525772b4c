"""What a solver returns: groups, their loads, and the proof of how far from the optimum they are."""

from __future__ import annotations

import enum
import functools
import math
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

STOP_AT = Fraction(1, 1000)
"""The gap that is small enough, where no other is asked for."""


class SolveStatus(enum.StrEnum):
    """What is proven of a result. There is no status for failure: that is an exception."""

    OPTIMAL = "optimal"  # the makespan equals the lower bound
    WITHIN = "within"  # the makespan is at most `stop_at` above the lower bound; 0.1 % where none is asked for
    FEASIBLE = "feasible"  # neither
    TIME_LIMIT = "time_limit"  # the same, of a method that searches for the optimum alone, and did not end in time


class Record:
    """A dataclass whose arrays are read-only, and equal to another of its kind field by field, arrays by content.

    Fields that say ``compare=False`` are left out. It has no hash: of arrays that would be slow and misleading.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        # Results are handed around and kept: an array that someone changed would make its certificate wrong.
        for name in _arrays_of(type(self)):  # type: ignore[arg-type]
            if isinstance(value := getattr(self, name), np.ndarray) and value.flags.writeable:
                value.setflags(write=False)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        names = _names_of(type(self), compared=True)  # type: ignore[arg-type]
        return all(_same(getattr(self, name), getattr(other, name)) for name in names)

    __hash__ = None  # type: ignore[assignment]


@functools.cache
def _names_of(kind: type, compared: bool = False) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind) if each.compare or not compared)


@functools.cache
def _arrays_of(kind: type) -> tuple[str, ...]:
    """Return the fields whose type says that they may hold an array: a step makes many records."""
    return tuple(each.name for each in fields(kind) if "ndarray" in str(each.type) or "NDArray" in str(each.type))


def _same(mine: Any, other: Any) -> bool:
    return np.array_equal(mine, other) if isinstance(mine, np.ndarray) else bool(mine == other)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Proven(Record):
    """A result with a certificate.

    What was to be small is its makespan, or what the class says it is.

    Attributes
    ----------
    lower_bound : int
        Proven: nothing under the same constraints has a smaller makespan.
    bound_name : str
        The argument that proves `lower_bound`.
    status : SolveStatus
        ``OPTIMAL`` if and only if ``makespan == lower_bound``, ``WITHIN`` if proven to be near it.
    runtime_s : float
        Seconds from call to return; the one field that differs between runs, so ``==`` leaves it out.
    """

    _measure: ClassVar[str] = "makespan"
    lower_bound: int
    bound_name: str
    status: SolveStatus
    runtime_s: float = field(compare=False)

    @property
    def gap(self) -> float:
        """``(makespan - lower_bound) / lower_bound``; 0.0 when equal, infinite if only the bound is 0."""
        return relative_gap(getattr(self, self._measure), self.lower_bound)


@dataclass(frozen=True, slots=True, eq=False)
class PartitionResult(Proven):
    """Items in groups, with a certificate.

    Attributes
    ----------
    group_of_item : int32[n], read-only
        The group of each item, in the order in which the items were given.
    loads : int64[num_groups], read-only
        The load of each group.
    makespan : int
        The largest load.
    lower_bound : int
        Proven: no assignment under the same constraints has a smaller makespan.
    bound_name : str
        The argument that proves `lower_bound`; see :mod:`solvers.bounds`.
    status : SolveStatus
        ``OPTIMAL`` if and only if ``makespan == lower_bound``, ``WITHIN`` if proven to be near it.
    method : str
        The method that was asked for, also if ``"auto"``.
    runtime_s : float
        Seconds from call to return; the one field that differs between runs, so ``==`` leaves it out.
    """

    group_of_item: NDArray[np.int32]
    loads: NDArray[np.int64]
    makespan: int
    method: str

    @property
    def num_groups(self) -> int:
        """Number of groups, empty ones included."""
        return len(self.loads)


def status_of(found: int, lower_bound: int, stop_at: Fraction = STOP_AT, *, out_of_time: bool = False) -> SolveStatus:
    """Return what is proven of a result; `out_of_time`: its method stops at no gap, and had more to try.

    Examples
    --------
    >>> [status_of(found, 1000).value for found in (1000, 1001, 1002)]
    ['optimal', 'within', 'feasible']
    """
    if found == lower_bound:
        return SolveStatus.OPTIMAL
    if out_of_time:
        return SolveStatus.TIME_LIMIT
    over, bound = int(found) - int(lower_bound), int(lower_bound)
    return SolveStatus.WITHIN if over * stop_at.denominator <= bound * stop_at.numerator else SolveStatus.FEASIBLE


def relative_gap(makespan: int, lower_bound: int) -> float:
    """``(makespan - lower_bound) / lower_bound`` as the whole package defines it (0 = 0 is no gap)."""
    if makespan == lower_bound:
        return 0.0
    return (makespan - lower_bound) / lower_bound if lower_bound else math.inf
