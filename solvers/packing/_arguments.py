"""Checks of arguments: the cap, that every item fits it, and the rules on micro-batches."""

from typing import Any, Literal, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from solvers.arguments import as_count, as_integer
from solvers.errors import (
    ArgumentError,
    InfeasibilityCertificate,
    InfeasibleError,
    Named,
    UsageError,
)

MOST_BINS = 2**26
"""Micro-batches that are laid out at most."""


def as_cap(cap: SupportsIndex) -> int:
    """Return `cap` as an int from 1 to int64's largest, or raise."""
    return as_integer("cap", cap, 1)


def slots_for(used: int, at_least: int, multiple_of: int) -> int:
    """Return the least K that the rules permit and that is at least `used`."""
    return -(-max(used, at_least) // multiple_of) * multiple_of


def check_fits(sizes: NDArray[np.int64], largest: int, cap: int, name: str = "sizes") -> None:
    """Raise InfeasibleError that names the first item whose size is over `cap`."""
    if largest > cap:
        item = int(np.argmax(sizes > cap))
        over = int(sizes[item]) - cap
        raise InfeasibleError(
            f"no {{group}} can hold {{item}}: {{{name}[i] =}} {sizes[item]} is over {{cap}} = {cap} by {over}",
            InfeasibilityCertificate("cap", [item], [], int(sizes[item]), cap),
            **_entry(name, item),
        )


def _entry(name: str, item: int, noun: str = "item") -> dict[str, Any]:
    return {"item": Named(noun, item), f"{name}[i] =": f"{name}[{item}] ="}


def as_choice(name: str, value: object, choices: tuple[str, ...]) -> str:
    """Return `value` if it is one of `choices`, or raise."""
    if not isinstance(value, str) or value not in choices:
        raise ArgumentError(name, f"be one of {', '.join(map(repr, choices))}", repr(value))
    return value


def as_slots(value: SupportsIndex | str | None, min_slots: int, multiple: int) -> int | Literal["fewest"] | None:
    """Return the number of slots asked for, or raise if it is none or contradicts the rules."""
    if value is None:
        return None
    if isinstance(value, str):
        if value != "fewest":
            raise ArgumentError("num_slots", "be an integer, 'fewest' or None", repr(value))
        return "fewest"
    slots = as_count("num_slots", value)
    if slots < min_slots:
        raise UsageError(
            f"{{num_slots}} = {slots} contradicts {{min_slots}} = {min_slots}: give {{num_slots}} >= {min_slots}"
        )
    if slots % multiple:
        raise UsageError(
            f"{{num_slots}} = {slots} contradicts {{slots_multiple_of}} = {multiple}: give a multiple, such as "
            f"{slots - slots % multiple + multiple}"
        )
    return slots


def check_as_many(name: str, found: int, costs: int) -> None:
    """Raise UsageError unless there are as many of something as there are costs."""
    if found != costs:
        raise UsageError(f"{{costs}} and {{{name}}} must be as many, got {costs} and {found}")


def check_bins(num_ranks: int, num_slots: int) -> None:
    """Raise UsageError if these are more micro-batches than are laid out at most."""
    if num_ranks * num_slots > MOST_BINS:
        raise UsageError(
            f"{{num_ranks}} * {{num_slots}} must be <= {MOST_BINS} micro-batches, got {num_ranks} * {num_slots} = "
            f"{num_ranks * num_slots}"
        )


def check_over_long(tokens: NDArray[np.int64], cap: int, over_long: str) -> NDArray[np.int64]:
    """Return which samples are over the cap, or raise InfeasibleError if `over_long` refuses them."""
    over = np.flatnonzero(tokens > cap)
    if len(over) and over_long == "error":
        item = int(over[0])
        raise InfeasibleError(
            f"no micro-batch can hold {{item}}: {{tokens[i] =}} {tokens[item]} is over {{cap}} = {cap} by "
            f"{tokens[item] - cap} (samples over the cap: {len(over)})",
            InfeasibilityCertificate("cap", over.tolist(), [], int(tokens[item]), cap),
            ["leave them out beforehand", "raise {cap}", "{over_long='own'} gives each a micro-batch of its own"],
            **_entry("tokens", item, "sample"),
        )
    return over
