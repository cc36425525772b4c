"""Limits on what a rank or a micro-batch may hold: tokens, bytes or work, so that they may be as large as int64."""

import operator
from typing import SupportsIndex

import numpy as np

from solvers.arguments import INT64_MAX
from solvers.errors import ArgumentError, ArgumentTypeError

__all__ = ["as_limit"]


def as_limit(name: str, value: SupportsIndex) -> int:
    """Return the most that a rank may get of a quantity, an int from 1 to int64's largest, or raise."""
    if isinstance(value, bool | np.bool_):
        raise ArgumentTypeError(name, "be an integer", repr(value))
    try:
        limit = operator.index(value)
    except TypeError:
        raise ArgumentTypeError(name, "be an integer", repr(value)) from None
    if not 1 <= limit <= INT64_MAX:
        raise ArgumentError(name, f"be >= 1{' and fit int64' if limit > 0 else ''}", limit)
    return limit
