"""Checks of what callers hand in: done here once, so that no kernel has to."""

import functools
import operator
import re
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._jit import kernel
from solvers.errors import ArgumentError, ArgumentTypeError, UsageError, as_argument
from solvers.groups import read_only

INT64_MAX = 2**63 - 1
# Groups and positions are int32 in results, which halves what a step of many items takes in memory and on the wire.
_MAX_ITEMS = 2**31 - 1


@kernel
def _scan(costs):
    """Smallest, largest and sum; `where` is the item at which the running sum leaves int64, or -1."""
    smallest = costs[0]
    largest = costs[0]
    total = np.int64(0)
    where = np.int64(-1)
    for i in range(len(costs)):
        cost = costs[i]
        smallest = min(smallest, cost)
        largest = max(largest, cost)
        # Asked before the addition, as int64 wraps around without a sign of it.
        if cost > 0 and where < 0:
            if cost > INT64_MAX - total:
                where = np.int64(i)
            else:
                total += cost
    return smallest, largest, total, where


def first_overflow(costs: NDArray[np.int64]) -> int | None:
    """Return the index at which the running sum of non-negative `costs` leaves int64, or None if it never does."""
    where = int(_scan(read_only(costs))[3]) if len(costs) else -1
    return where if where >= 0 else None


def unknown(what: str, given: object, known: Iterable[str]) -> UsageError:
    """Return the error for a method (or other `what`) that does not exist, with the known ones."""
    return UsageError(
        f"unknown {{{what}}} {{given!r}}", f"known {what}s are {{known}}", given=given, known=", ".join(known)
    )


def as_flag(name: str, value: object) -> bool:
    """Return `value` as a bool, or raise an error that calls it `name`: text such as "no" would count as true."""
    if not isinstance(value, bool | np.bool_):
        raise ArgumentTypeError(name, "be True or False", repr(value))
    return bool(value)


def as_integer(name: str, value: SupportsIndex, minimum: int = 0) -> int:
    """Return `value` as an int from `minimum` to int64's largest, or raise an error that calls it `name`."""
    number = _as_int(name, value)
    if not minimum <= number <= INT64_MAX:
        raise ArgumentError(name, f"be >= {minimum}{' and fit int64' if number > 0 else ''}", number)
    return number


def _as_int(name: str, value: SupportsIndex | None) -> int:
    try:
        # True is an integer in Python, and a mistake here.
        if value is not None and not isinstance(value, bool | np.bool_):
            return operator.index(value)
    except TypeError:
        pass
    raise ArgumentTypeError(name, "be an integer", repr(value))


def as_count(name: str, value: SupportsIndex | None, minimum: int = 1) -> int:
    """Return `value` as an int of at least `minimum`, or raise an error that calls it `name`."""
    count = _as_int(name, value)
    if count < minimum:
        raise ArgumentError(name, f"be >= {minimum}", count)
    if count > _MAX_ITEMS:
        raise ArgumentError(name, f"be <= {_MAX_ITEMS}", count)
    return count


def as_index(name: str, value: SupportsIndex, count: int) -> int:
    """Return `value` as an int of 0..count - 1, or raise an error that calls it `name`."""
    index = _as_int(name, value)
    if not 0 <= index < count:
        raise ArgumentError(name, f"be within 0..{count - 1}", index)
    return index


def as_budget(time_budget: float, name: str = "time_budget") -> float:
    """Return `time_budget` as positive finite seconds, or raise an error that calls it `name`."""
    try:
        if isinstance(time_budget, str):
            raise TypeError
        seconds = float(time_budget)
    except OverflowError:  # an int past every float
        seconds = float("inf")
    except (TypeError, ValueError):
        raise ArgumentTypeError(name, "be a number of seconds", repr(time_budget)) from None
    if not 0 < seconds < float("inf"):
        raise ArgumentError(name, "be positive and finite (seconds)", repr(time_budget))
    return seconds


def as_share(name: str, value: Any) -> Fraction:
    """Return a share, 0.001 or ``"0.1%"``, as an exact fraction >= 0; a float is the decimal that Python prints."""
    if isinstance(value, bool | np.bool_):
        raise ArgumentTypeError(name, "be a number", repr(value))
    try:
        if isinstance(value, float | np.floating | Decimal | str):
            # 0.1 is meant as one tenth, not as the binary fraction next to it.
            share = _printed(str(value))
        else:
            share = value if isinstance(value, Fraction) else Fraction(value)
        float(share)  # plans and logs print it as one
    except (TypeError, ValueError, OverflowError, ZeroDivisionError):
        raise ArgumentTypeError(name, "be {a finite number or Fraction}", repr(value)) from None
    if share.numerator < 0:
        raise ArgumentError(name, "be >= 0", repr(value))
    return share


@functools.lru_cache  # a run has one, and asks for it at every step
def _printed(number: str) -> Fraction:
    if re.search(r"[eE][+-]?\d\d\d\d", number):  # of 1e999999999 an exact fraction would never be done
        raise OverflowError
    return Fraction(number[:-1]) / 100 if number.endswith("%") else Fraction(number)


def as_array(name: str, values: ArrayLike) -> NDArray[Any]:
    """Return `values` as an array of any shape, or raise an error that calls it `name`: rows may differ in length."""
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentTypeError(name, "be an array: {why}", why=str(error)) from None


def as_int64(name: str, values: ArrayLike) -> NDArray[np.int64]:
    """Return `values` as a contiguous one-dimensional int64 array without changing any value, or raise.

    Integral floats are accepted because logs often hold them; anything that would have to be rounded is not.
    """
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentTypeError(name, "be one-dimensional integers: {why}", why=str(error)) from None
    if array.ndim != 1:
        raise ArgumentError(name, "be one-dimensional", f"shape {array.shape}")
    if array.size == 0:
        return np.empty(0, dtype=np.int64)
    if array.dtype == np.int64:
        return np.ascontiguousarray(array)
    if array.dtype.kind == "u" or array.dtype.kind == "i":
        if array.dtype == np.uint64 and int(array.max()) > INT64_MAX:
            where = int(np.argmax(array))
            raise ArgumentError(name, "fit int64", int(array[where]), where)
        return array.astype(np.int64)
    if array.dtype.kind == "f":
        return _integral(name, array)
    if array.dtype.kind == "O" and all(isinstance(v, int) and not isinstance(v, bool) for v in array):
        for where, value in enumerate(array):
            if not -INT64_MAX <= value <= INT64_MAX:
                raise ArgumentError(name, "fit int64", value, where)
        return array.astype(np.int64)
    raise ArgumentTypeError(name, "be integers", f"dtype {array.dtype}")


def _integral(name: str, array: NDArray[Any]) -> NDArray[np.int64]:
    array = array.astype(np.float64) if array.dtype.itemsize < 8 else array  # float16 cannot hold the limit
    # Compared as floats: no float is 2**63 - 1, and the largest below 2.0**63 fits int64.
    fits = np.isfinite(array) & (np.abs(array) < 2.0**63)
    whole = fits & (np.floor(np.where(fits, array, 0)) == array)
    if not whole.all():
        where = int(np.argmin(whole))
        rule = "fit int64" if np.isfinite(array[where]) and not fits[where] else "be a finite whole number"
        raise ArgumentError(name, rule, array[where], where)
    return array.astype(np.int64)


def as_costs(costs: ArrayLike, name: str = "costs") -> tuple[NDArray[np.int64], int, int]:
    """Return non-negative int64 costs (read-only), their largest and their sum (in int64), or raise naming the item."""
    array = read_only(as_int64(name, costs))
    if array.size > _MAX_ITEMS:
        raise ArgumentError(name, f"hold at most {_MAX_ITEMS} {{items}}", array.size)
    if array.size == 0:
        return array, 0, 0
    smallest, largest, total, where = _scan(array)
    if smallest < 0:
        where = int(np.argmax(array < 0))
        raise ArgumentError(name, "be >= 0", array[where], where)
    if where >= 0:
        word = as_argument(name)
        raise UsageError(f"the sum of {word} must fit int64: it overflows at {word}[{where}] = {array[where]}")
    return array, int(largest), int(total)


def as_labels(name: str, values: ArrayLike, count: int) -> NDArray[np.int32]:
    """Return a copy of `values` as int32 within ``0..count-1``, or raise an error that names the entry."""
    if (
        isinstance(values, np.ndarray)
        and values.dtype == np.int32
        and values.ndim == 1
        and values.view(np.uint32).max(initial=0) < count  # where negative ones are the largest
    ):
        # The view as unsigned makes one comparison of two; plans of many items are labelled at every step.
        return values.copy()
    array = as_int64(name, values)
    outside = (array < 0) | (array >= count)
    if outside.any():
        where = int(np.argmax(outside))
        raise ArgumentError(name, f"be within 0..{count - 1}", array[where], where)
    return array.astype(np.int32)
