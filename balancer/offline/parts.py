"""How a run is cut into parts: at step boundaries, by the log's rows and the settings alone, never by who works."""

from collections.abc import Iterator
from typing import NamedTuple


class Part(NamedTuple):
    """Consecutive steps: how many parts come before, the first step, the one after the last."""

    number: int
    first_step: int
    stop_step: int


def parts_of(num_steps: int, steps_per_part: int) -> Iterator[Part]:
    """Cut steps into parts.

    Examples
    --------
    >>> [tuple(part) for part in parts_of(5, 2)]
    [(0, 0, 2), (1, 2, 4), (2, 4, 5)]
    """
    for number, first in enumerate(range(0, num_steps, steps_per_part)):
        yield Part(number, first, min(first + steps_per_part, num_steps))
