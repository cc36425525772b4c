"""Key columns: integers or text that say which rows belong together, such as a page or a group number.

Every converter takes k cells and their `Place`, and gives int64[k] or object[k] of str, or raises `InputError` about
the first cell that is no key, or about the column if its type cannot hold keys.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from balancer.io.columns import Place, as_numpy, decoded, first_null, shown

KEY_RULE = "a key column must hold integers, or text, in all rows"

_CAST = f"{KEY_RULE}: name another, or cast this one"
_MISSING = "there is no value (null, empty or missing); every row needs a key"
_TOO_LARGE = 2**63


def keys_from_arrow(cells: Any, place: Place) -> NDArray[Any]:
    """Take integers or strings, dictionary-encoded or not."""
    cells = decoded(cells, place)
    is_text = pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type)
    if not is_text and not pa.types.is_integer(cells.type):
        raise place.column_of(cells.type, _CAST)
    if cells.null_count:
        raise place.cell(first_null(cells), _MISSING)
    if not is_text:
        return keys_from_numpy(as_numpy(cells), place)
    try:
        cells.validate(full=True)  # that the text is UTF-8, and lies inside of its buffer: Arrow would read past it
    except pa.ArrowException as error:
        raise place.damaged(error) from error
    keys: NDArray[Any] = cells.to_numpy(zero_copy_only=False)
    return keys


def keys_from_numpy(cells: NDArray[Any], place: Place) -> NDArray[Any]:
    """Take integers of at most 64 bits or fixed-width text."""
    kind = cells.dtype.kind
    if kind not in "iuU" or cells.ndim != 1:
        raise place.column_of(f"{cells.dtype}{list(cells.shape[1:]) or ''}", _CAST)
    if kind == "U":
        return cells.astype(object)
    # The conversion below would wrap: two different keys could become one.
    if kind == "u" and cells.dtype.itemsize == 8 and cells.size and cells.max() >= _TOO_LARGE:
        index = int(np.argmax(cells >= _TOO_LARGE))
        raise place.cell(index, _outside(cells[index]))
    return np.ascontiguousarray(cells, dtype=np.int64)


def keys_from_text(cells: Any, place: Place) -> NDArray[Any]:
    """Take an Arrow array of strings as CSV has them: letter by letter, but a blank cell is a missing one."""
    import pyarrow.compute as pc  # takes longer than all else of pyarrow, and few logs need it

    blank = pc.equal(pc.utf8_trim_whitespace(cells), "").to_numpy(zero_copy_only=False)
    if blank.any():
        raise place.cell(int(np.argmax(blank)), _MISSING)
    return keys_from_arrow(cells, place)


def keys_from_python(cells: Sequence[object], place: Place) -> NDArray[Any]:
    """Take int or str, as JSON rows give them, all alike."""
    kinds = set(map(type, cells))
    if not kinds <= {int} and not kinds <= {str}:
        # The first cell says what the column holds; the error is about the first one that differs.
        kind = type(cells[0]) if type(cells[0]) in (int, str) else None
        for index, value in enumerate(cells):
            if value is None:
                raise place.cell(index, _MISSING)
            if type(value) is not kind:
                raise place.cell(index, f"{shown(value)} is {_named(value, kind)}; {KEY_RULE}")
    try:
        return np.array(cells, dtype=np.int64 if kinds == {int} else object)
    except OverflowError:
        # NumPy does not say which number was too large, so it is looked for only now.
        for index, value in enumerate(cells):
            if isinstance(value, int) and not -_TOO_LARGE <= value < _TOO_LARGE:
                raise place.cell(index, _outside(value)) from None
        raise


def _named(value: object, kind: type | None) -> str:
    if type(value) in (int, str):
        return f"{'text' if kind is int else 'an integer'} after {'integers' if kind is int else 'text'}"
    return "neither an integer nor text"


def _outside(value: object) -> str:
    return f"{shown(value)} does not fit; integer keys must be within -2**63..2**63-1"
