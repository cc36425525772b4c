"""How a run is cut into parts: at step boundaries, by the log's rows and the settings alone, never by who works."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from balancer.io.formats import rows_of_first_group
from balancer.io.logs import LengthLog, Span
from balancer.offline.scatter import Scattered
from balancer.offline.settings import LogSettings
from balancer.offline.steps import Stretch

_FEWEST_ROWS = 1 << 18  # of a row group that takes longer to read than it is worth to speak of


class Part(NamedTuple):
    """Consecutive steps: how many parts come before, the first step, the one after the last, where they are read."""

    number: int
    first_step: int
    stop_step: int
    # one for each epoch that the part has steps of; None where rows are not counted, but read as they come
    stretches: tuple[Stretch | Scattered, ...] | None


def fitted(log: LengthLog, settings: LogSettings) -> LogSettings:
    """Return the settings with parts that begin where row groups do, or few rows later, unless they say how long.

    Who plans a part decodes the row group in which it begins as a whole.
    """
    usual = replace(settings, steps_per_part=0)
    if (
        log.format != "parquet"
        or settings.shuffle is not None
        or settings.across is not None
        or settings.steps_per_part != usual.steps_per_part
    ):
        return settings
    rows, size = rows_of_first_group(log.files[0]), settings.samples_per_step
    per_part = usual.steps_per_part * size
    if not _FEWEST_ROWS <= rows < 2 * per_part:
        return settings
    # As many rows as whole row groups have, rounded up to whole steps.
    return replace(settings, steps_per_part=-(-round(per_part / rows) * rows // size))


def num_parts(num_rows: int, settings: LogSettings) -> int:
    """Return how many parts the plan of a log of so many rows has."""
    return -(-settings.first_step_of(settings.epochs, num_rows) // settings.steps_per_part)


def parts_of(
    log: LengthLog, counts: Sequence[int], settings: LogSettings, files: Sequence[tuple[str, ...]] | None = None
) -> Iterator[Part]:
    """Cut a log, whose files have so many rows each, into parts.

    Where epochs are shuffled, `files` are those that hold the rows of each in its order.

    Examples
    --------
    >>> from balancer.problem.phases import Phase
    >>> from balancer.problem.settings import PlanSettings
    >>> from balancer.problem.setup import Setup
    >>> from balancer.problem.topology import Topology
    >>> from pathlib import Path
    >>> log = LengthLog(Path("log.npy"), "npy", ("length",), ("length",), False)
    >>> setup = Setup(Topology.uniform(2), (Phase("all", "length"),), PlanSettings())
    >>> settings = LogSettings(setup, batch_per_rank=2, epochs=2, steps_per_part=2)
    >>> parts = parts_of(log, [10], settings)
    >>> [(part.first_step, [span.pieces[0][1:] for _, span in part.stretches]) for part in parts]
    [(0, [(0, 8)]), (2, [(8, 10), (0, 4)]), (4, [(4, 10)])]
    """
    num_rows, size = sum(counts), settings.samples_per_step
    last, epoch = settings.first_step_of(settings.epochs, num_rows), 0
    for number in range(num_parts(num_rows, settings)):
        first = number * settings.steps_per_part
        stop = min(first + settings.steps_per_part, last)
        stretches: list[Stretch | Scattered] = []
        step = first
        while step < stop:
            while step >= settings.first_step_of(epoch + 1, num_rows):
                epoch += 1
            first_of_epoch = settings.first_step_of(epoch, num_rows)
            steps = min(stop, settings.first_step_of(epoch + 1, num_rows)) - step
            begin = settings.begin_of(epoch) + (step - first_of_epoch) * size
            rows = begin, min(begin + steps * size, num_rows)
            if files is None:
                stretches.append(Stretch(step, Span.of(log, counts, *rows)))
            else:
                batch = number - first_of_epoch // settings.steps_per_part
                stretches.append(Scattered(step, batch, files[epoch]))
            step += steps
        yield Part(number, first, stop, tuple(stretches))
