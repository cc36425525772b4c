"""Some steps of a log, on which advice is computed: all of a short one, stretches spread over a long one."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from balancer.io.log import LengthLog
from balancer.offline.settings import LogSettings
from balancer.offline.steps import read_rows
from solvers.errors import UsageError

__all__ = ["Sample", "Stretch", "sample_of"]

ROWS = 1 << 17
"""Of a sample at most, as long as it has the fewest steps: some seconds for all that is tried."""

WHOLE_STEPS, MOST_STEPS, FEWEST_STEPS = 128, 64, 8
"""Of a log that is planned as a whole at most, of a longer one's sample at most, and of any at least."""

STRETCHES = 4
"""Deferral needs consecutive steps, and a log need not be alike from its beginning to its end."""


class Stretch(NamedTuple):
    """Consecutive rows that make whole steps."""

    first_row: int
    num_rows: int

    @property
    def rows(self) -> tuple[int, int]:
        """The first row and the one after the last."""
        return self.first_row, self.first_row + self.num_rows


@dataclass(frozen=True, slots=True)
class Sample:
    """Stretches of a log.

    Attributes
    ----------
    stretches : tuple of Stretch
    samples_per_step : int
        Of a step; where steps are cut by tokens, as many as they have on average.
    steps_of_log : int
        Full steps that the log has; 0 of one that is short of samples for a single one, which is judged then.
    """

    log: LengthLog
    stretches: tuple[Stretch, ...]
    samples_per_step: int
    steps_of_log: int

    @property
    def is_short(self) -> bool:
        """Whether the log holds less than one full step."""
        return not self.steps_of_log

    @property
    def num_steps(self) -> int:
        """Steps of it, as far as their number of samples tells."""
        return sum(max(1, each.num_rows // self.samples_per_step) for each in self.stretches)

    def of_steps(self, most: int) -> "Sample":
        """Return a sample of at most so many steps, from the beginnings of its stretches; itself if it has no more."""
        if self.num_steps <= most:
            return self
        stretches = self.stretches[:most]
        rows = most // len(stretches) * self.samples_per_step
        return replace(self, stretches=tuple(Stretch(each.first_row, rows) for each in stretches))

    def in_words(self, steps: int) -> str:
        """Say which steps they are, of which there turned out to be so many."""
        if self.is_short:
            return "the log's only step, which is short of samples"
        if self.steps_of_log == self.num_steps:
            return f"all {steps:,} full steps"
        firsts = ", ".join(f"{each.first_row:,}" for each in self.stretches)
        return f"{steps:,} of some {self.steps_of_log:,} steps, evenly from rows {firsts} on"


def sample_of(log: LengthLog, settings: LogSettings) -> Sample:
    """Choose the steps: by the numbers of rows and of samples a step alone, so that it is the same every time.

    Raises
    ------
    InputError
        A log that cannot be read, or holds no rows.
    """
    size, rows = settings.samples_per_step or _mean_samples(log, settings), len(read_rows(log, settings))
    steps = rows // size
    if not steps:
        return Sample(log, (Stretch(0, rows),), max(1, rows), 0)
    most = max(FEWEST_STEPS, min(WHOLE_STEPS, ROWS // size))
    if steps <= most:
        return Sample(log, (Stretch(0, steps * size),), size, steps)
    each = min(most, MOST_STEPS) // STRETCHES
    # The first stretch begins where the log does, and the last one ends where it does.
    firsts = (i * (steps - each) // (STRETCHES - 1) for i in range(STRETCHES))
    return Sample(log, tuple(Stretch(first * size, each * size) for first in firsts), size, steps)


def _mean_samples(log: LengthLog, settings: LogSettings) -> int:
    """Return how many samples a step of so many tokens has on average."""
    tokens = None if settings.across is None else settings.across.step_tokens
    if tokens is None:
        raise UsageError("{batch_per_rank} or {step_tokens} must say what a step is")  # pragma: no cover
    mean = float(read_rows(log, settings).sums[settings.setup.phases[-1].length].mean())
    return max(1, min(ROWS, round(tokens / mean)) if mean else 1)
