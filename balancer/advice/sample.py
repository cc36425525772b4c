"""Some steps of a log, on which advice is computed: all of a short one, stretches spread over a long one."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from balancer.io.logs import LengthLog, Span, rows_of_files
from balancer.offline.settings import LogSettings
from balancer.offline.steps import reader_of
from balancer.problem.block import Block
from solvers.errors import UsageError

__all__ = ["Sample", "Stretch", "sample_of"]

ROWS = 1 << 17
"""Of a sample at most, as long as it has the fewest steps: some seconds for all that is tried."""

WHOLE_STEPS, MOST_STEPS, FEWEST_STEPS = 128, 64, 8
"""Of a log that is planned as a whole at most, of a longer one's sample at most, and of any at least."""

STRETCHES = 4
"""Deferral needs consecutive steps, and a log need not be alike from its beginning to its end."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive rows that make whole steps: which step is the first, how many rows, and where they are read."""

    first_step: int
    num_rows: int
    span: Span | None  # None: from the log's first row on

    def reader(self, log: LengthLog, settings: LogSettings) -> Callable[[], Iterator[Block]]:
        """Return what reads the columns that some settings ask for, as often as it is called."""
        return partial(self._blocks, log, settings)

    def _blocks(self, log: LengthLog, settings: LogSettings) -> Iterator[Block]:
        read, left = reader_of(log, settings), self.num_rows
        for block in read() if self.span is None else read(span=self.span):
            if left <= 0:
                return
            yield block[:left]
            left -= len(block)


@dataclass(frozen=True, slots=True)
class Sample:
    """Stretches of a log.

    Attributes
    ----------
    stretches : tuple of Stretch
    samples_per_step : int
        Of a step; where steps are cut by tokens, as many as they have on average.
    steps_of_log : int or None
        Full steps that the log has; None where its format does not tell how many rows there are.
    is_short : bool
        Whether the log holds less than one full step, so that this step is judged.
    """

    log: LengthLog
    stretches: tuple[Stretch, ...]
    samples_per_step: int
    steps_of_log: int | None
    is_short: bool = False

    @property
    def num_steps(self) -> int:
        """Steps of it, as far as their number of samples tells."""
        return sum(max(1, each.num_rows // self.samples_per_step) for each in self.stretches)

    def of_steps(self, most: int) -> "Sample":
        """Return a sample of at most so many steps, from the beginnings of its stretches; itself if it has no more."""
        if self.num_steps <= most:
            return self
        stretches = self.stretches[:most]
        return _sample(self.log, self.samples_per_step, self.steps_of_log,
                       [(each.first_step, most // len(stretches), each.span) for each in stretches])  # fmt: skip

    def in_words(self, steps: int) -> str:
        """Say which steps they are, of which there turned out to be so many."""
        if self.is_short:
            return "the log's only step, which is short of samples"
        if self.steps_of_log == self.num_steps:
            return f"all {steps:,} full steps"
        if len(self.stretches) == 1:
            return f"the first {steps:,} steps" if steps > 1 else "the first step"
        firsts = ", ".join(f"{0 if each.span is None else each.span.first_row:,}" for each in self.stretches)
        return f"{steps:,} of some {self.steps_of_log:,} steps, evenly from rows {firsts} on"


def sample_of(log: LengthLog, settings: LogSettings) -> Sample:
    """Choose the steps: by the numbers of rows and of samples a step alone, so that it is the same every time.

    Raises
    ------
    InputError
        A log that cannot be read, or holds no rows.
    """
    size, counts = settings.samples_per_step or _mean_samples(log, settings), rows_of_files(log)
    most = max(FEWEST_STEPS, min(WHOLE_STEPS, ROWS // size))
    wanted = min(most, MOST_STEPS)
    if counts is None:  # rows are counted no further than they are needed
        # One row more than a log that is planned as a whole: this one tells a longer log.
        probe = Stretch(0, most * size + 1, None)
        rows = sum(len(block) for block in probe.reader(log, settings)())
        steps = rows // size if rows <= most * size else None
    else:
        rows = sum(counts)
        steps = rows // size
    if rows < size:
        return Sample(log, (Stretch(0, rows, None),), max(1, rows), steps, is_short=True)
    if counts is None or steps is None or steps <= most:
        return _sample(log, size, steps, [(0, wanted if steps is None else steps, None)])
    each = wanted // STRETCHES
    # The first stretch begins where the log does, and the last one ends where it does.
    firsts = [i * (steps - each) // (STRETCHES - 1) for i in range(STRETCHES)]
    spans = [Span.of(log, counts, first * size, (first + each) * size) for first in firsts]
    return _sample(log, size, steps, list(zip(firsts, [each] * STRETCHES, spans, strict=True)))


def _sample(log: LengthLog, size: int, steps: int | None, parts: list[tuple[int, int, Span | None]]) -> Sample:
    stretches = []
    for first, count, span in parts:
        rows = count * size
        stretches.append(Stretch(first, rows, None if span is None else _begin_of(span, rows)))
    return Sample(log, tuple(stretches), size, steps)


def _begin_of(span: Span, rows: int) -> Span:
    """Return the first rows of a span."""
    pieces, left = [], rows
    for file, start, stop in span.pieces:
        if left > 0:
            pieces.append((file, start, min(stop, start + left)))
            left -= pieces[-1][2] - start
    return Span(span.first_row, tuple(pieces))


def _mean_samples(log: LengthLog, settings: LogSettings) -> int:
    """Return how many samples a step of so many tokens has on average, by the first rows."""
    tokens = None if settings.across is None else settings.across.step_tokens
    if tokens is None:
        raise UsageError("{batch_per_rank} or {step_tokens} must say what a step is")  # pragma: no cover
    block = next(reader_of(log, settings)())
    mean = float(block.sums[settings.setup.phases[-1].length].mean())
    return max(1, min(ROWS, round(tokens / mean)) if mean else 1)
