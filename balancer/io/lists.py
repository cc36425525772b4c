"""Columns of lists: in every row the lengths of its items, possibly of none.

Every converter takes k cells and their `Place`, and gives a `Ragged` of k rows in [0, 2**63), or raises `InputError`
about the first list or item that cannot be used, or about the column if its type has no lists.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from balancer.io.columns import Place, as_numpy, first_null, from_arrow, from_python, is_numeric, shown
from balancer.problem.ragged import Ragged

_RULE = "each row must hold a list of whole numbers: name another column, or cast this one"
_MISSING = "there is no list (null or missing); a row without items needs an empty one"


def lengths_from_arrow(cells: Any, place: Place) -> NDArray[np.int64]:
    """Take what can be a length, or lists, of which each is as long as it is: their values are not looked at."""
    if not is_list(cells.type):
        return from_arrow(cells, place)
    import pyarrow.compute as pc  # takes longer than all else of pyarrow, and few logs need it

    return from_arrow(pc.list_value_length(cells), place)


def lengths_from_python(cells: Sequence[object], place: Place) -> NDArray[np.int64]:
    """Take int, float and Decimal, or lists alone, as JSON rows give them."""
    return from_python(list(map(len, cells)) if set(map(type, cells)) == {list} else cells, place)  # type: ignore[arg-type]


def is_list(kind: Any) -> bool:
    """Tell whether an Arrow type is one of lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def lists_from_arrow(cells: Any, place: Place) -> Ragged:
    """Take lists, large or of fixed size, of what can be a length; no copy for int64."""
    kind = cells.type
    fixed = pa.types.is_fixed_size_list(kind)
    if not is_list(kind):
        raise place.column_of(kind, _RULE)
    inner = kind.value_type.value_type if pa.types.is_dictionary(kind.value_type) else kind.value_type
    if not is_numeric(inner) and not pa.types.is_null(inner):
        raise place.column_of(kind, _RULE)
    if cells.null_count:
        raise place.cell(first_null(cells), _MISSING)
    if fixed:
        offsets = np.arange(len(cells) + 1, dtype=np.int64) * kind.list_size
        items = cells.flatten()
    else:
        # `values` has those of the whole array that this one is cut from; its offsets may begin anywhere in it.
        bounds = as_numpy(cells.offsets).astype(np.int64)
        if (bounds[1:] < bounds[:-1]).any() or bounds[0] < 0 or bounds[-1] > len(cells.values):
            raise place.damaged(ValueError("its lists overlap or lie outside of their values"))
        offsets = bounds - bounds[0]
        items = cells.values.slice(bounds[0], bounds[-1] - bounds[0])
    if pa.types.is_null(inner):
        items = items.cast(pa.int64())
    return Ragged(from_arrow(items, _items_at(place, offsets)), offsets)


def lists_from_python(cells: Sequence[Any], place: Place) -> Ragged:
    """Take lists of int, float and Decimal, as JSON rows give them."""
    if set(map(type, cells)) - {list}:
        index, value = next((i, cell) for i, cell in enumerate(cells) if type(cell) is not list)
        raise place.cell(index, _MISSING if value is None else f"{shown(value)} is no list; {_RULE}")
    offsets = np.zeros(len(cells) + 1, dtype=np.int64)
    np.cumsum([len(cell) for cell in cells], out=offsets[1:])
    return Ragged(from_python(list(chain.from_iterable(cells)), _items_at(place, offsets)), offsets)


def _items_at(place: Place, offsets: np.ndarray[Any, np.dtype[np.int64]]) -> Place:
    return Place(place.path, place.column, place.first_row, place.lines, offsets)
