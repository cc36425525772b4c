"""How a run is cut into parts: at step boundaries, by the log's rows and the settings alone, never by who works."""

from collections.abc import Iterator
from typing import NamedTuple

from balancer.offline.settings import LogSettings


class Part(NamedTuple):
    """Consecutive steps: how many parts come before, the first step, the one after the last."""

    number: int
    first_step: int
    stop_step: int


def num_parts(num_rows: int, settings: LogSettings) -> int:
    """Return how many parts the plan of a log of so many rows has."""
    return -(-settings.order(num_rows).num_steps // settings.steps_per_part)


def parts_of(num_rows: int, settings: LogSettings) -> Iterator[Part]:
    """Cut the steps of a log of so many rows into parts."""
    last, each = settings.order(num_rows).num_steps, settings.steps_per_part
    for number in range(num_parts(num_rows, settings)):
        yield Part(number, number * each, min((number + 1) * each, last))
