"""Cells of a log's columns become lengths, keys and lists; a bad cell is named by file, column, row, value and rule.

Cells are an Arrow array, a NumPy array, or the list of Python's values of JSON rows. Checks are vectorised; the wrong
cell is looked for only after a check failed. A column whose type cannot hold what is asked for is refused as a whole.
"""

import decimal
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from balancer.errors import InputError
from balancer.problem.ragged import Ragged

_TOO_LARGE = 2**63
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE | re.ASCII)
# Multiplying in the default context would round to 28 digits; this one never rounds what fits in memory.
_EXACT = decimal.Context(prec=decimal.MAX_PREC, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)

_OF_LENGTHS = "lengths must be whole numbers: name a column of integers, or cast this one"
_OF_LISTS = "each row must hold a list of whole numbers: name another column, or cast this one"
_NO_LIST = "there is no list (null or missing); a row without items needs an empty one"
_NO_KEY = "there is no value (null, empty or missing); every row needs a key"
KEY_RULE = "a key column must hold integers, or text, in all rows"
_OF_KEYS = f"{KEY_RULE}: name another, or cast this one"


@dataclass(frozen=True, slots=True)
class Place:
    """Where some cells stand in their log."""

    path: Path
    column: str
    first_row: int = 0  # row (from 0) of the first cell
    lines: Sequence[int] | None = None  # line (from 1) of each row, where known
    # int64[k + 1], for the items of k lists: row i has the cells ``offsets[i]`` to ``offsets[i + 1]``; None: one a row
    offsets: NDArray[np.int64] | None = None

    def cell(self, index: int, complaint: str) -> InputError:
        """Give the error about the cell `index`."""
        row, item = index, ""
        if self.offsets is not None:
            row = int(np.searchsorted(self.offsets, index, side="right")) - 1
            item = f", item {index - self.offsets[row]}"
        line = "" if self.lines is None else f" (line {self.lines[row]})"
        return InputError(f"{self.path}: column {self.column!r}, row {self.first_row + row}{line}{item}: {complaint}")

    def column_of(self, kind: object, rule: str = _OF_LENGTHS) -> InputError:
        """Give the error about a column of a type that cannot be used."""
        return InputError(f"{self.path}: column {self.column!r} is of type {shown(str(kind), quote=False)}; {rule}")

    def damaged(self, error: object) -> InputError:
        """Give the error about a column whose cells contradict one another."""
        return InputError(f"{self.path}: column {self.column!r} is damaged: {error}")


def shown(value: object, *, quote: bool = True) -> str:
    """Write a value in at most about 60 characters and on one line."""
    text = repr(value) if quote and isinstance(value, str) else str(value)
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:57] + "..."


def lengths_of(cells: Any, place: Place, text: bool = False) -> NDArray[np.int64]:
    """Return int64[k] in [0, 2**63) of cells that are whole numbers, or lists, of which each is as long as it is.

    With `text` they are decimal text such as ``512``, ``" 512 "`` or ``512.0``, as CSV has them. Memory is shared with
    the cells where it can be.
    """
    if isinstance(cells, list):
        return _of_values(list(map(len, cells)) if set(map(type, cells)) == {list} else cells, place)
    if isinstance(cells, np.ndarray):
        return _of_array(cells, place)
    if text:
        return _of_text(cells, place)
    cells = _decoded(cells, place)
    if is_list(cells.type):
        import pyarrow.compute as pc  # takes longer than all else of pyarrow, and few logs need it

        cells = pc.list_value_length(cells)
    if not _is_number(cells.type):
        raise place.column_of(cells.type)
    if cells.null_count:
        raise place.cell(_first_null(cells), str(_complaint(None)))
    return (
        _of_values(cells.to_pylist(), place) if pa.types.is_decimal(cells.type) else _of_array(as_numpy(cells), place)
    )


def frames_of(cells: Sequence[object], place: Place) -> NDArray[np.int64]:
    """Take seconds as int or Decimal (a float has lost its text): ceil(100 * seconds) frames of 10 ms, exactly.

    Examples
    --------
    >>> frames_of([Decimal("1.1"), 2, Decimal("0.001")], Place(Path("log.jsonl"), "duration"))
    array([110, 200,   1])
    """
    return _of_values(cells, place, seconds=True)


def _of_array(cells: NDArray[Any], place: Place) -> NDArray[np.int64]:
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
        wide = cells.astype(np.float64)  # a float16 has no 2**63 to compare with
        legal &= (wide < float(_TOO_LARGE)) & (np.floor(wide) == wide)
    index = int(np.argmin(legal))
    raise place.cell(index, str(_complaint(cells[index].item())))


def _of_text(cells: Any, place: Place) -> NDArray[np.int64]:
    import pyarrow.compute as pc

    # Arrow reads hexadecimal, this package does not: such cells take the careful road, and fail there.
    if not any(pc.any(pc.match_substring(cells, letter)).as_py() for letter in "xX"):
        # Textual, because a float64 would round what stands behind its 16th digit.
        for make in (lambda: cells, lambda: pc.replace_substring_regex(
            pc.utf8_trim_whitespace(cells), r"^([0-9]+)\.0*$", r"\1")):  # fmt: skip
            try:
                return _of_array(as_numpy(make().cast(pa.int64())), place)
            except pa.ArrowInvalid:
                pass
    return _of_values([_number_in(each) for each in cells.to_pylist()], place)


def _number_in(text: str) -> object:
    """Read one cell of text: a number, None if it is blank, and the text itself if it is neither."""
    text = text.strip()
    if not text:
        return None
    if _NOT_FINITE.fullmatch(text):
        return float(text)
    try:
        return Decimal(text) if _NUMBER.fullmatch(text) else text
    except ArithmeticError:  # an exponent of twenty digits
        return text


def _of_values(cells: Sequence[Any], place: Place, seconds: bool = False) -> NDArray[np.int64]:
    # By exact types: a bool is an int to isinstance, and is no length.
    if not seconds and set(map(type, cells)) == {int}:
        try:
            return _of_array(np.array(cells, dtype=np.int64), place)
        except OverflowError:
            pass  # some cell has no int64: it is named below
    lengths = np.empty(len(cells), dtype=np.int64)
    for index, value in enumerate(cells):
        if problem := _complaint(value, seconds):
            raise place.cell(index, problem)
        lengths[index] = _frames(value) if seconds else int(value)
    return lengths


def _complaint(value: object, seconds: bool = False) -> str | None:
    """Say what keeps a value from being a length, or a duration: value, rule, remedy; None if nothing does."""
    what, rule = ("duration", "durations are seconds, finite and >= 0") if seconds else (
        "length", "lengths must be whole numbers")  # fmt: skip
    if value is None:
        return f"there is no value (null, empty or missing); every row needs a {what}"
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return f"{shown(value)} is not a number; {rule}"
    # math.isfinite would take the detour over float, which overflows.
    if not (value.is_finite() if isinstance(value, Decimal) else isinstance(value, int) or math.isfinite(value)):
        return f"{shown(value)} is not finite; {rule}"
    if value < 0:
        return f"{shown(value)} is negative; {rule if seconds else 'lengths must be >= 0'}"
    # Before the value is made an int: the integer part of a Decimal such as 1E+999999 would fill the memory.
    if value >= _TOO_LARGE or (seconds and _frames(value) >= _TOO_LARGE):
        most = "a duration must have less than 2**63 frames of 10 ms" if seconds else "lengths must be < 2**63"
        return f"{shown(value)} is too large; {most}"
    if not seconds and value != int(value):
        return f"{shown(value)} is a fraction; {rule}"
    return None


def _frames(seconds: Any) -> int:
    scaled = _EXACT.scaleb(Decimal(seconds), 2)
    return int(scaled.to_integral_value(decimal.ROUND_CEILING))


def keys_of(cells: Any, place: Place, text: bool = False) -> NDArray[Any]:
    """Return int64[k] or object[k] of str, of cells that say which rows belong together.

    With `text`, as CSV has it, they are taken letter by letter, but a blank one is a missing one.
    """
    if isinstance(cells, list):
        return _keys_of_values(cells, place)
    if isinstance(cells, np.ndarray):
        return _keys_of_array(cells, place)
    cells = _decoded(cells, place)
    is_text = pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type)
    if not is_text and not pa.types.is_integer(cells.type):
        raise place.column_of(cells.type, _OF_KEYS)
    if cells.null_count:
        raise place.cell(_first_null(cells), _NO_KEY)
    if not is_text:
        return _keys_of_array(as_numpy(cells), place)
    try:
        cells.validate(full=True)  # that the text is UTF-8, and lies inside of its buffer: Arrow would read past it
    except pa.ArrowException as error:
        raise place.damaged(error) from error
    keys: NDArray[Any] = cells.to_numpy(zero_copy_only=False)
    if text and (blank := [index for index, key in enumerate(keys) if not key.strip()]):
        raise place.cell(blank[0], _NO_KEY)
    return keys


def _keys_of_array(cells: NDArray[Any], place: Place) -> NDArray[Any]:
    kind = cells.dtype.kind
    if kind not in "iuU" or cells.ndim != 1:
        raise place.column_of(f"{cells.dtype}{list(cells.shape[1:]) or ''}", _OF_KEYS)
    if kind == "U":
        return cells.astype(object)
    # The conversion below would wrap: two different keys could become one.
    if kind == "u" and cells.dtype.itemsize == 8 and cells.size and cells.max() >= _TOO_LARGE:
        raise _outside(int(np.argmax(cells >= _TOO_LARGE)), cells, place)
    return np.ascontiguousarray(cells, dtype=np.int64)


def _keys_of_values(cells: Sequence[object], place: Place) -> NDArray[Any]:
    # The first cell says what the column holds; the error is about the first one that differs.
    kind = type(cells[0]) if type(cells[0]) in (int, str) else None
    if set(map(type, cells)) != {kind}:
        index = next(index for index, value in enumerate(cells) if type(value) is not kind)
        value, names = cells[index], {int: "an integer after text", str: "text after integers"}
        what = names.get(type(value), "neither an integer nor text")
        raise place.cell(index, _NO_KEY if value is None else f"{shown(value)} is {what}; {KEY_RULE}")
    try:
        return np.array(cells, dtype=np.int64 if kind is int else object)
    except OverflowError:  # NumPy does not say which number was too large, so it is looked for only now
        numbers: Sequence[Any] = cells
        large = next(i for i, value in enumerate(numbers) if not -_TOO_LARGE <= value < _TOO_LARGE)
        raise _outside(large, cells, place) from None


def _outside(index: int, cells: Any, place: Place) -> InputError:
    return place.cell(index, f"{shown(cells[index])} does not fit; integer keys must be within -2**63..2**63-1")


def lists_of(cells: Any, place: Place) -> Ragged:
    """Return the lengths of the items of every row, possibly of none; no copy of Arrow's int64."""
    if isinstance(cells, list):
        if set(map(type, cells)) - {list}:
            index, value = next((i, cell) for i, cell in enumerate(cells) if type(cell) is not list)
            raise place.cell(index, _NO_LIST if value is None else f"{shown(value)} is no list; {_OF_LISTS}")
        offsets = np.cumsum([0, *map(len, cells)], dtype=np.int64)
        return Ragged(lengths_of(list(chain.from_iterable(cells)), _items_at(place, offsets)), offsets)
    kind = cells.type
    if not is_list(kind):
        raise place.column_of(kind, _OF_LISTS)
    inner = kind.value_type.value_type if pa.types.is_dictionary(kind.value_type) else kind.value_type
    if not _is_number(inner) and not pa.types.is_null(inner):
        raise place.column_of(kind, _OF_LISTS)
    if cells.null_count:
        raise place.cell(_first_null(cells), _NO_LIST)
    if pa.types.is_fixed_size_list(kind):
        offsets, items = np.arange(len(cells) + 1, dtype=np.int64) * kind.list_size, cells.flatten()
    else:
        # `values` has those of the whole array that this one is cut from; its offsets may begin anywhere in it.
        bounds = as_numpy(cells.offsets).astype(np.int64)
        if (bounds[1:] < bounds[:-1]).any() or bounds[0] < 0 or bounds[-1] > len(cells.values):
            raise place.damaged("its lists overlap or lie outside of their values")
        offsets = bounds - bounds[0]
        items = cells.values.slice(bounds[0], bounds[-1] - bounds[0])
    if pa.types.is_null(inner):
        items = items.cast(pa.int64())
    return Ragged(lengths_of(items, _items_at(place, offsets)), offsets)


def _items_at(place: Place, offsets: NDArray[np.int64]) -> Place:
    return Place(place.path, place.column, place.first_row, place.lines, offsets)


def is_list(kind: Any) -> bool:
    """Tell whether an Arrow type is one of lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_number(kind: Any) -> bool:
    """Tell whether an Arrow type can hold lengths: integers, floats and decimals, not bools."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def as_numpy(cells: Any) -> NDArray[Any]:
    """View an Arrow array of numbers without nulls; ``to_numpy`` would import pandas where there is one (0.3 s)."""
    dtype = np.dtype(cells.type.to_pandas_dtype())
    if len(cells) == 0:
        return np.empty(0, dtype)
    values: NDArray[Any] = np.frombuffer(cells.buffers()[1], dtype, len(cells), cells.offset * dtype.itemsize)
    values.flags.writeable = False
    return values


def _decoded(cells: Any, place: Place) -> Any:
    """Replace a dictionary-encoded Arrow array by its values; others stay as they are."""
    if not pa.types.is_dictionary(cells.type):
        return cells
    try:
        return cells.dictionary.take(cells.indices)  # take checks the indices
    except pa.ArrowException as error:
        raise place.damaged(error) from error


def _first_null(cells: Any) -> int:
    """Return the index of the first null in an Arrow array that has one."""
    return int(np.argmax(cells.is_null().to_numpy(zero_copy_only=False)))
