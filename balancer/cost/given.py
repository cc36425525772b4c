"""Costs that a caller has of each sample: measured seconds, loss tokens, FLOPs of each phase."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers.arguments import INT64_MAX, as_int64
from solvers.errors import ArgumentError, ArgumentTypeError

__all__ = ["MOST_PHASES", "as_numbers", "given_costs"]

LARGEST = 2**31
"""What the largest of costs with fractions becomes: the sum of as many as an array can hold fits int64."""
MOST_PHASES = 8


def as_numbers(name: str, values: ArrayLike) -> NDArray[Any]:
    """Return what should be one number a sample as an array, or raise an error that says what it is instead."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentTypeError(name, "be one number a sample: {why}", why=str(error)) from None
    if not array.ndim:
        raise ArgumentTypeError(name, "be one number a sample", f"{repr(values)[:60]}, a {type(values).__name__}")
    return array


def given_costs(name: str, values: ArrayLike, count: int) -> NDArray[np.int64]:
    """Return the cost of each of `count` samples: int64[count], or int64[count, c] with a column for each of c phases.

    Whole numbers stay as they are. Others are scaled, so that the largest is 2**31, and rounded: only their ratios
    matter. Phases are in one unit, so all columns have one scale. A sample's cost depends on all of `values`, so scale
    those of a whole dataset once.

    Raises
    ------
    TypeError, ValueError
        Another number of costs, more than 8 phases, or a cost that is negative, infinite or no number; the error calls
        them `name`.

    Examples
    --------
    >>> given_costs("cost", [3.0, 1.0], 2), given_costs("cost", [0.5, 0.25], 2)
    (array([3, 1]), array([2147483648, 1073741824]))
    >>> given_costs("cost", [[3, 0], [1, 2]], 2).tolist()
    [[3, 0], [1, 2]]
    """
    array = as_numbers(name, values)
    if array.dtype.kind not in "iuf":
        raise ArgumentTypeError(name, "be a cost by its name, or one number a sample", repr(values)[:60])
    if array.shape[:1] != (count,) or array.ndim > 2:
        raise ArgumentError(name, f"have one number for each of {count} samples", f"shape {array.shape}")
    if array.ndim == 2 and not 1 <= array.shape[1] <= MOST_PHASES:
        raise ArgumentError(name, f"have 1 to {MOST_PHASES} columns, one a phase", f"shape {array.shape}")
    if len(odd := np.argwhere(~((array >= 0) & (array < np.inf)))):
        raise ArgumentError(name, "be finite and >= 0", array[tuple(odd[0])], int(odd[0][0]))
    largest = float(array.max(initial=0))
    # Below 2**53 a float holds every whole number exactly.
    if array.dtype.kind == "f" and not (largest < 2**53 and (array == np.floor(array)).all()):
        array = np.rint(array.astype(np.float64) / largest * LARGEST)
    if array.ndim == 1:
        return as_int64(name, array).copy()
    columns = [as_int64(f"{name}[:, {phase}]", column) for phase, column in enumerate(array.T)]
    if len(array) and sum(int(column.max()) for column in columns) > INT64_MAX:
        raise ArgumentError(name, "fit int64 when a sample's phases are summed", f"up to {largest:.3g} in a phase")
    return np.stack(columns, axis=1)
