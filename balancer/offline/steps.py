"""A log in, a step plan for every global batch out, one after the other; memory does not grow with the log."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from balancer.errors import InputError
from balancer.io.logs import LengthLog, Span, choose_length, read_columns
from balancer.offline.across import EpochRows, OnEpoch, SavedSteps, epochs_of
from balancer.offline.scatter import Scattered, gathered
from balancer.offline.settings import LogSettings
from balancer.plan.step_plan import StepPlan
from balancer.problem.batch import HOMES, whole_batches
from balancer.problem.block import Block
from balancer.problem.phases import Columns, Phase, PhaseItems, resolve_phases, texts_of_items
from balancer.problem.placement import Placement
from balancer.problem.setup import Setup
from balancer.problem.shuffle import shuffled
from balancer.problem.smallest_cap import least_cap
from balancer.step_planner import Step, plan_step, step_of
from balancer.strategies import chosen, strategies_for
from solvers.arguments import as_count
from solvers.errors import SolverError, WordedError, Wording

# Rows of a log that are read on for the sake of a message: some seconds at most.
_MOST_ROWS = 2**21
# Of those in memory, of whose steps the items are found together: one call for many steps, and little memory.
_ROWS_AT_ONCE = 2**16


@dataclass(frozen=True, eq=False)
class _Together:
    """The columns of several global batches that were read together; as :class:`Rows` has them."""

    setup: Setup
    columns: Columns
    keys: Columns
    numbers: NDArray[np.int64] | None = None
    nominal: NDArray[np.int64] | None = None

    @functools.cached_property
    def items(self) -> tuple[PhaseItems, ...] | None:
        """Every phase's items; None where one cannot be used: the step that it is of has to say so."""
        with suppress(TypeError, ValueError):
            return resolve_phases(self.columns, self.setup.phases, self.setup.topology.num_ranks, self.keys)
        return None


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The columns of one global batch, under the names by which phases ask for them."""

    number: int  # which step, from 0
    first_row: int  # number of its first row in the log, if they are consecutive
    start: int  # where it begins and ends in what was read together with it
    stop: int
    _together: _Together

    @property
    def columns(self) -> Columns:
        """The columns that phases find their items in: mapping of str to int64[n] or Ragged."""
        return self._cut(self._together.columns)

    @property
    def keys(self) -> Columns:
        """Those that say which samples stay together, or where they may run: mapping of str to array[n] or Ragged."""
        return self._cut(self._together.keys)

    @property
    def numbers(self) -> NDArray[np.int64] | None:
        """Which rows these are, if they are not consecutive: int64[n]."""
        numbers = self._together.numbers
        return None if numbers is None else numbers[self.start : self.stop]

    @property
    def nominal(self) -> NDArray[np.int64] | None:
        """The step for which each was drawn, where some run early or late: int64[n]."""
        nominal = self._together.nominal
        return None if nominal is None else nominal[self.start : self.stop]

    def _cut(self, columns: Columns) -> Columns:
        return {name: column[self.start : self.stop] for name, column in columns.items()}  # type: ignore[index]

    def __len__(self) -> int:
        return self.stop - self.start

    def items(self) -> tuple[PhaseItems, ...]:
        """Find every phase's items as :func:`resolve_phases` does, which is called once for many steps."""
        # A step by itself, so that the error names it, and all steps before it are planned.
        if (found := self._together.items) is None:
            setup = self._together.setup
            return resolve_phases(self.columns, setup.phases, setup.topology.num_ranks, self.keys)
        return tuple([items.between(self.start, self.stop) for items in found])


class Stretch(NamedTuple):
    """Consecutive steps of one epoch: the number of the first one, and their rows."""

    first_step: int
    span: Span


def rows_of_steps(
    log: LengthLog, settings: LogSettings, endless: bool = False,
    stretches: Sequence[Stretch | Scattered] | None = None, saved: SavedSteps | None = None,
    on_epoch: OnEpoch = lambda _: None, read: Callable[[], Iterator[Block]] | None = None,
) -> Iterator[Rows]:  # fmt: skip
    """Read the columns that the phases name, step by step, epoch by epoch; if `endless`, the log over and over.

    Memory is a block's or a step's, unless the epochs are shuffled: then it is that of the columns. Given `stretches`,
    those steps alone; each holds all rows of its steps. Where samples run early or late, memory is that of the columns
    too; `saved` are the steps of a plan, and `on_epoch` is called with what was found for each epoch. `read` yields
    rows instead of the whole log's.
    """
    read, size = read or reader_of(log, settings), settings.samples_per_step
    if settings.across is not None:
        yield from _across(settings, epochs_of(log, read, settings, endless, saved, on_epoch))
        return
    allowed = tuple(dict.fromkeys(phase.allowed_ranks for phase in settings.setup.phases if phase.allowed_ranks))
    batches = _numbered(0, _batches(read, settings, endless), size) if stretches is None else ()
    for number, block, numbers in itertools.chain(batches, _of(stretches or (), read, settings)):
        asked: Columns = {**block.keys, **{name: block.lists[name] for name in allowed}}
        together = _Together(settings.setup, {**block.sums, **block.lists}, asked, numbers)
        for start in range(0, len(block), size):
            first_row = block.first_row + start if settings.shuffle is None else 0
            yield Rows(number + start // size, first_row, start, min(start + size, len(block)), together)


def _across(settings: LogSettings, epochs: Iterator[EpochRows]) -> Iterator[Rows]:
    """Yield the steps of epochs whose samples run early or late."""
    number = 0
    for epoch in epochs:
        first = 0
        while first < len(epoch.ends) - 1:  # as many steps as have some 2**16 rows, but one at least
            low = int(epoch.ends[first])
            stop = max(first + 1, int(np.searchsorted(epoch.ends, low + _ROWS_AT_ONCE, side="right")) - 1)
            high = int(epoch.ends[stop])
            block = epoch.block[low:high]
            together = _Together(settings.setup, {**block.sums, **block.lists}, block.keys, epoch.numbers[low:high],
                                 epoch.nominal[low:high])  # fmt: skip
            for begin, end in itertools.pairwise((epoch.ends[first : stop + 1] - low).tolist()):
                yield Rows(number, 0, begin, end, together)
                number += 1
            first = stop


def columns_of(log: LengthLog, phases: Sequence[Phase]) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """Return what phases read of a log: of each sum its columns, and the columns of lists that have their items."""
    sums = {text: choose_length(log, text) for phase in phases for text in phase.numbers}
    lists = [name for phase in phases for name in phase.lists]
    for text in texts_of_items(phases):
        if held := [name for name in sums[text] if name in log.list_columns]:
            if len(sums[text]) > 1:
                raise InputError(
                    f"{log.path}: column {held[0]!r} has a list for each row, of which each number is an item: it "
                    f"cannot be a part of {text!r}"
                )
            lists += sums.pop(text)
    return sums, tuple(dict.fromkeys(lists))


def reader_of(log: LengthLog, settings: LogSettings) -> Callable[..., Iterator[Block]]:
    """Return what reads the columns that the phases name: all rows of a log, or those of a `span`."""
    phases, (sums, listed) = settings.setup.phases, columns_of(log, settings.setup.phases)
    stage = None if settings.across is None else settings.across.stage
    asked = (*(name for phase in phases for name in (phase.keep_together, phase.prefix, *phase.kinds_asked)), stage)
    keys = tuple(dict.fromkeys(name for name in asked if name))
    allowed = tuple(phase.allowed_ranks for phase in phases if phase.allowed_ranks)
    lists = tuple(dict.fromkeys((*listed, *allowed)))
    return functools.partial(read_columns, log, sums, keys, lists)


_Batches = tuple[Block, NDArray[np.int64] | None]
"""The rows of consecutive steps, and, where they are of one of several epochs, which rows they are."""


def _numbered(
    number: int, batches: Iterable[_Batches], samples_per_step: int
) -> Iterator[tuple[int, Block, NDArray[np.int64] | None]]:
    """Say of consecutive global batches which step the first one is."""
    for block, rows in batches:
        yield number, block, rows
        number += -(-len(block) // samples_per_step)


def _of(
    stretches: Sequence[Stretch | Scattered], read: Callable[..., Iterator[Block]], settings: LogSettings
) -> Iterator[tuple[int, Block, NDArray[np.int64] | None]]:
    """Yield some global batches, with the number of the first one."""
    for stretch in stretches:
        if isinstance(stretch, Stretch):
            batches = _in_order(read(span=stretch.span), settings)
        else:
            batches = _gathered(stretch, settings)
        yield from _numbered(stretch.first_step, batches, settings.samples_per_step)


def _gathered(stretch: Scattered, settings: LogSettings) -> Iterator[_Batches]:
    """Yield global batches of one epoch that is shuffled, from the files into which its rows are sorted."""
    block, numbers = gathered(stretch)
    for rows in _cuts(0, len(block), settings):
        yield block[rows], numbers[rows]


def _cuts(begin: int, end: int, settings: LogSettings) -> Iterator[slice]:
    """Cut rows that lie in memory where steps end: what phases find in them takes memory too."""
    size = settings.samples_per_step * max(1, _ROWS_AT_ONCE // settings.samples_per_step)
    return (slice(first, min(first + size, end)) for first in range(begin, end, size))


def _in_order(blocks: Iterator[Block], settings: LogSettings) -> Iterator[_Batches]:
    """Yield the global batches of one epoch, or of a part of it, that is not shuffled."""
    for block in whole_batches(blocks, settings.samples_per_step, settings.drop_last):
        yield block, np.arange(block.first_row, block.first_row + len(block)) if settings.epochs > 1 else None


def _batches(read: Callable[[], Iterator[Block]], settings: LogSettings, endless: bool) -> Iterator[_Batches]:
    """Yield the global batches of all epochs."""
    size = settings.samples_per_step
    if endless:
        blocks = itertools.chain.from_iterable(read() for _ in itertools.repeat(None))
        yield from ((block, None) for block in whole_batches(blocks, size, settings.drop_last))
    elif settings.shuffle is None:
        for epoch in range(settings.epochs):
            yield from _in_order(_behind(settings.begin_of(epoch), read()), settings)
    else:
        # A shuffled epoch takes rows from anywhere. Logs too long for that are sorted into files first
        # (`scatter.py`).
        whole = Block.concatenate(list(read()))
        for epoch in range(settings.epochs):
            begin = settings.begin_of(epoch)
            end = min(len(whole), begin + settings.steps_of(epoch, len(whole)) * size)
            for rows in _cuts(begin, end, settings):
                positions = np.arange(rows.start, rows.stop)
                numbers = shuffled(positions, len(whole), settings.shuffle, settings.first_epoch + epoch)
                yield whole.taken(numbers), numbers


def _behind(begin: int, blocks: Iterator[Block]) -> Iterator[Block]:
    """Leave out the rows before the one numbered `begin`."""
    for block in blocks:
        if len(rest := block[max(0, begin - block.first_row) :]):
            yield rest


def _in_log(log: LengthLog, rows: Rows, error: ValueError | SolverError) -> InputError | SolverError:
    """Return the error with log and step, which calls samples by their rows."""

    def row_of(sample: int) -> int:
        return rows.first_row + sample if rows.numbers is None else int(rows.numbers[sample])

    wording = Wording({"sample": "row"}, {"row": row_of})
    places = str(log.path), f"step {rows.number}"
    if not isinstance(error, WordedError):
        return InputError(": ".join((*places, str(error))))
    told = error.in_words(wording).within(*places)
    return told if isinstance(told, SolverError) else InputError.of(told)


class Steps:
    """Makes a :class:`Step` of a log's rows."""

    def __init__(self, log: LengthLog, settings: LogSettings) -> None:
        self._log, self._settings = log, settings
        self._homes: dict[int, Placement] = {}  # by batch size; a log has two at most, full and last

    def of(self, rows: Rows) -> Step:
        """Return the step of these rows."""
        try:
            return self._made(rows)
        except (ValueError, SolverError) as error:
            raise _in_log(self._log, rows, error) from None

    def _made(self, rows: Rows) -> Step:
        count, settings = len(rows), self._settings
        if count not in self._homes:
            num_ranks = settings.setup.topology.num_ranks
            self._homes[count] = HOMES[settings.home](count, num_ranks, self._per_rank(count))
        return step_of(settings.setup, rows.items(), self._homes[count], rows.numbers)

    def _per_rank(self, count: int) -> int:
        """Return how many samples each rank draws: where steps have any number, evenly many, within one."""
        settings = self._settings
        if settings.batch_per_rank is None or not (settings.across is None or settings.across.is_exact):
            return -(-count // settings.setup.topology.num_ranks)
        return settings.batch_per_rank

    def plan(self, rows: Rows, strategy: Callable[[Step], StepPlan]) -> StepPlan:
        """Plan the step of these rows by a strategy."""
        try:
            return strategy(self._made(rows))
        except (ValueError, SolverError) as error:
            raise _in_log(self._log, rows, error) from None


def plan_log(log: LengthLog, settings: LogSettings) -> Iterator[StepPlan]:
    """Plan every global batch of a log.

    Raises
    ------
    InputError
        A row that cannot be used.
    InfeasibleError, SolverError
        A step that no plan, or none that was found, satisfies; the message names step and phase.
    """
    for _, plan in plan_rows(log, settings, rows_of_steps(log, settings)):
        yield plan


def plan_rows(log: LengthLog, settings: LogSettings, steps: Iterable[Rows]) -> Iterator[tuple[Rows, StepPlan]]:
    """Plan some global batches of a log; as :func:`plan_log`, with the rows of each."""
    made = Steps(log, settings)
    for rows in steps:
        try:
            plan = made.plan(rows, plan_step)
        except SolverError as error:
            raise error.with_note(_most_needed(log, settings, rows.number)) from None
        yield rows, plan


class _AskedCap(NamedTuple):
    """A cap on what a bin gets of one phase's lengths; `num_bins` None: as many as it takes."""

    phase: int
    name: str
    limit: int
    num_bins: int | None


def _asked_caps(settings: LogSettings) -> list[_AskedCap]:
    """Return the caps on the tokens of all phases."""
    asked, num_ranks = [], settings.setup.topology.num_ranks
    for number, phase in enumerate(settings.setup.phases):
        named = f" of phase {phase.name!r}" if len(settings.setup.phases) > 1 else ""
        if phase.max_tokens_per_rank is not None:
            asked.append(_AskedCap(number, f"{{max_tokens_per_rank}}{named}", phase.max_tokens_per_rank, num_ranks))
    if (cap := settings.setup.settings.cut.cap_on_tokens(num_ranks)) is not None:
        asked.append(_AskedCap(len(settings.setup.phases) - 1, *cap))
    return asked


def _most_needed(log: LengthLog, settings: LogSettings, failed: int) -> str:
    """Say which steps after the one that `failed` need most, where that is over a cap too; a note as errors have it.

    Steps are read from the first, as far as 2**21 rows.
    """
    asked, read = _asked_caps(settings), 0
    most = [(0, -1)] * len(asked)
    try:
        for rows in rows_of_steps(log, settings) if asked else ():
            items = rows.items()
            for i, cap in enumerate(asked):
                mine = items[cap.phase].lengths
                # Minus the step, so that of equal needs the first step is told.
                most[i] = max(most[i], (least_cap(mine, cap.num_bins or max(1, len(mine))), -rows.number))
            read += len(rows)
            if read > _MOST_ROWS:
                break
    except ValueError:
        return ""  # a bad row further on: another error's matter
    short = [
        f"step {-minus_step} needs {cap.name} of at least {least}"
        for cap, (least, minus_step) in zip(asked, most, strict=True)
        if least > cap.limit and -minus_step > failed
    ]
    return f"further on {', '.join(short)}" if short else ""


def compare_log(
    log: LengthLog,
    settings: LogSettings,
    strategies: Sequence[str] | None = None,
    num_steps: int | None = None,
    endless: bool = False,
) -> Iterator[tuple[str, StepPlan]]:
    """Plan every global batch of a log by several strategies, by default by all that the settings allow.

    They come step by step, and of each step strategy by strategy. An endless log is read over and over, so that all
    steps are full; they end with `num_steps` alone.
    """
    steps, read = Steps(log, settings), rows_of_steps(log, settings, endless)
    by_name = {name: chosen(name) for name in strategies or strategies_for(settings.setup)}
    for rows in itertools.islice(read, None if num_steps is None else as_count("steps", num_steps)):
        for name, strategy in by_name.items():
            yield name, steps.plan(rows, strategy)
