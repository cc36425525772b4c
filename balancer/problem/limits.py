"""Limits on what a rank or a micro-batch may hold: tokens, bytes or work, so that they may be as large as int64."""

import operator
from typing import SupportsIndex

import numpy as np

from solvers.arguments import INT64_MAX

__all__ = ["as_limit"]


def as_limit(name: str, value: SupportsIndex) -> int:
    """Return the most that a rank may get of a quantity, an int from 1 to int64's largest, or raise."""
    if isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    try:
        limit = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}") from None
    if not 1 <= limit <= INT64_MAX:
        raise ValueError(f"{name} must be >= 1{' and fit int64' if limit > 0 else ''}, got {limit}")
    return limit
