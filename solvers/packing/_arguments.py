"""The border of this room: the cap, and that every item fits it."""

import operator
from typing import SupportsIndex

import numpy as np
from numpy.typing import NDArray

from solvers.arguments import INT64_MAX
from solvers.errors import InfeasibleError

__all__ = ["as_cap", "check_fits"]


def as_cap(cap: SupportsIndex) -> int:
    """Return `cap` as an int from 1 to int64's largest, or raise."""
    if isinstance(cap, bool | np.bool_):
        raise TypeError(f"cap must be an integer, got {cap!r}")
    try:
        value = operator.index(cap)
    except TypeError:
        raise TypeError(f"cap must be an integer, got {cap!r}") from None
    if not 1 <= value <= INT64_MAX:
        raise ValueError(f"cap must be >= 1 and fit int64, got {value}")
    return value


def check_fits(sizes: NDArray[np.int64], largest: int, cap: int, name: str = "sizes") -> None:
    """Raise InfeasibleError that names the first item whose size is over `cap`."""
    if largest > cap:
        item = int(np.argmax(sizes > cap))
        over = int(sizes[item]) - cap
        raise InfeasibleError(
            f"no group can hold item {item}: {name}[{item}] = {sizes[item]} is over cap = {cap} by {over}"
        )
