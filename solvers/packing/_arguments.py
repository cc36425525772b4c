"""The border of this room: the cap, that every item fits it, and what is asked of micro-batches."""

import operator
from typing import Literal, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from solvers.arguments import INT64_MAX, as_count
from solvers.errors import InfeasibleError

__all__ = ["MOST_BINS", "as_cap", "as_choice", "as_flag", "as_slots", "check_as_many", "check_fits", "check_over_long"]

MOST_BINS = 2**26
"""Micro-batches that are laid out at most."""


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


def as_choice(name: str, value: object, choices: tuple[str, ...]) -> str:
    """Return `value` if it is one of `choices`, or raise."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return value


def as_flag(name: str, value: object) -> bool:
    """Return `value` as a bool, or raise if it is none."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def as_slots(value: SupportsIndex | str | None, min_slots: int, multiple: int) -> int | Literal["fewest"] | None:
    """Return the number of slots asked for, or raise if it is none or contradicts the rules."""
    if value is None:
        return None
    if isinstance(value, str):
        if value != "fewest":
            raise ValueError(f"num_slots must be an integer, 'fewest' or None, got {value!r}")
        return "fewest"
    slots = as_count("num_slots", value)
    if slots < min_slots:
        raise ValueError(f"num_slots = {slots} contradicts min_slots = {min_slots}: give num_slots >= {min_slots}")
    if slots % multiple:
        raise ValueError(
            f"num_slots = {slots} contradicts slots_multiple_of = {multiple}: give a multiple, such as "
            f"{slots - slots % multiple + multiple}"
        )
    return slots


def check_as_many(name: str, found: int, costs: int) -> None:
    """Raise ValueError unless there are as many of something as there are costs."""
    if found != costs:
        raise ValueError(f"costs and {name} must be as many, got {costs} and {found}")


def check_over_long(tokens: NDArray[np.int64], cap: int, over_long: str) -> NDArray[np.int64]:
    """Return which samples are over the cap, or raise InfeasibleError if `over_long` refuses them."""
    over = np.flatnonzero(tokens > cap)
    if len(over) and over_long == "error":
        item = int(over[0])
        raise InfeasibleError(
            f"no micro-batch can hold sample {item}: tokens[{item}] = {tokens[item]} is over cap = {cap} by "
            f"{tokens[item] - cap} (samples over the cap: {len(over)}); over_long='own' gives each a micro-batch "
            "of its own, over_long='drop' leaves them out"
        )
    return over
