"""A log in, a step plan for every global batch out, one after the other."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from balancer.errors import InputError
from balancer.io.log import LengthLog, LogColumns, choose_length, read_columns
from balancer.offline.across import EpochRows, OnEpoch, SavedSteps, epochs_of
from balancer.offline.order import ROWS_AT_ONCE, Order
from balancer.offline.settings import LogSettings
from balancer.plan.step_plan import StepPlan
from balancer.problem.batch import HOMES
from balancer.problem.phases import Columns, Phase, PhaseItems, resolve_phases, texts_of_items
from balancer.problem.placement import Placement
from balancer.problem.setup import Setup
from balancer.problem.smallest_cap import least_cap
from balancer.step_planner import Step, plan_step, step_of
from balancer.strategies import chosen, strategies_for
from solvers.arguments import as_count
from solvers.errors import SolverError, WordedError, Wording

# Rows of a log that are read on for the sake of a message: some seconds at most.
_MOST_ROWS = 2**21


@dataclass(frozen=True, eq=False)
class Together:
    """The columns of several global batches, of which items are found in one call; as :class:`Rows` has them."""

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
    together: Together

    @property
    def columns(self) -> Columns:
        """The columns that phases find their items in: mapping of str to int64[n] or Ragged."""
        return self._cut(self.together.columns)

    @property
    def keys(self) -> Columns:
        """Those that say which samples stay together, or where they may run: mapping of str to array[n] or Ragged."""
        return self._cut(self.together.keys)

    @property
    def numbers(self) -> NDArray[np.int64] | None:
        """Which rows these are, if they are not consecutive: int64[n]."""
        numbers = self.together.numbers
        return None if numbers is None else numbers[self.start : self.stop]

    @property
    def nominal(self) -> NDArray[np.int64] | None:
        """The step for which each was drawn, where some run early or late: int64[n]."""
        nominal = self.together.nominal
        return None if nominal is None else nominal[self.start : self.stop]

    def _cut(self, columns: Columns) -> Columns:
        return {name: column[self.start : self.stop] for name, column in columns.items()}  # type: ignore[index]

    def __len__(self) -> int:
        return self.stop - self.start

    def items(self) -> tuple[PhaseItems, ...]:
        """Find every phase's items as :func:`resolve_phases` does, which is called once for many steps."""
        # A step by itself, so that the error names it, and all steps before it are planned.
        if (found := self.together.items) is None:
            setup = self.together.setup
            return resolve_phases(self.columns, setup.phases, setup.topology.num_ranks, self.keys)
        return tuple([items.between(self.start, self.stop) for items in found])


def rows_of_steps(
    log: LengthLog, settings: LogSettings, endless: bool = False, *, steps: tuple[int, int] | None = None,
    rows: tuple[int, int] | None = None, saved: SavedSteps | None = None, on_epoch: OnEpoch = lambda _: None,
) -> Iterator[Rows]:  # fmt: skip
    """Give the columns that the phases name, step by step, epoch by epoch; if `endless`, the log over and over.

    Given `steps`, those from the first to before the last alone; given `rows`, those rows make the log. Where samples
    run early or late, `saved` are the steps of a plan, and `on_epoch` is called with what was found for each epoch.
    """
    whole, first_row = read_rows(log, settings), 0
    if rows is not None:
        first_row, whole = rows[0], whole.taken(slice(*rows))
    if settings.across is not None:
        yield from _across(settings, epochs_of(log, whole, settings, endless, saved, on_epoch, first_row))
        return
    size, order = settings.samples_per_step, settings.order(len(whole))
    given = _endless(order) if endless else order.rows(*(steps or (0, order.num_steps)))
    for number, numbers in given:
        # The log's own order is told by where a step begins; else each sample's row is.
        alike = settings.shuffle is None and settings.epochs == 1 and not endless
        consecutive = len(numbers) == 0 or numbers[-1] - numbers[0] == len(numbers) - 1
        in_order = settings.shuffle is None and consecutive
        block = whole.taken(slice(int(numbers[0]), int(numbers[-1]) + 1) if in_order else numbers)
        together = _together(settings, block, None if alike else numbers)
        for start in range(0, len(block), size):
            first = first_row + int(numbers[start]) if settings.shuffle is None else 0
            yield Rows(number + start // size, first, start, min(start + size, len(block)), together)


def _endless(order: Order) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield the rows of full steps, one by one, over the log in its own order again and again."""
    for step in itertools.count():
        yield step, np.arange(step * order.samples_per_step, (step + 1) * order.samples_per_step) % order.num_rows


def _together(settings: LogSettings, block: LogColumns, numbers: NDArray[np.int64] | None,
              nominal: NDArray[np.int64] | None = None) -> Together:  # fmt: skip
    allowed = {phase.allowed_ranks for phase in settings.setup.phases}
    asked: Columns = {**block.keys, **{name: column for name, column in block.lists.items() if name in allowed}}
    return Together(settings.setup, {**block.sums, **block.lists}, asked, numbers, nominal)


def _across(settings: LogSettings, epochs: Iterator[EpochRows]) -> Iterator[Rows]:
    """Yield the steps of epochs whose samples run early or late."""
    number = 0
    for epoch in epochs:
        first = 0
        while first < len(epoch.ends) - 1:  # as many steps as have some 2**16 rows, but one at least
            low = int(epoch.ends[first])
            stop = max(first + 1, int(np.searchsorted(epoch.ends, low + ROWS_AT_ONCE, side="right")) - 1)
            high = int(epoch.ends[stop])
            block = epoch.block.taken(slice(low, high))
            together = _together(settings, block, epoch.numbers[low:high], epoch.nominal[low:high])
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
    for text, columns in sums.items():
        if len(columns) > 1 and (both := [name for name in columns if name in lists]):
            raise InputError(
                f"{log.path}: column {both[0]!r} has a list for each row, of which each number is an item: {text!r} "
                f"would count them; add a column of their sums to the log"
            )
    return sums, tuple(dict.fromkeys(lists))


def read_rows(log: LengthLog, settings: LogSettings) -> LogColumns:
    """Return the columns that the phases name, of all rows of a log."""
    phases, (sums, listed) = settings.setup.phases, columns_of(log, settings.setup.phases)
    stage = None if settings.across is None else settings.across.stage
    asked = (*(name for phase in phases for name in (phase.keep_together, phase.prefix, *phase.kinds_asked)), stage)
    keys = tuple(dict.fromkeys(name for name in asked if name))
    allowed = tuple(phase.allowed_ranks for phase in phases if phase.allowed_ranks)
    lists = tuple(dict.fromkeys((*listed, *allowed)))
    return read_columns(log, sums, keys, lists)


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
        self.log, self._settings = log, settings
        self._homes: dict[int, Placement] = {}  # by batch size; a log has two at most, full and last

    def of(self, rows: Rows) -> Step:
        """Return the step of these rows."""
        try:
            return self._made(rows)
        except (ValueError, SolverError) as error:
            raise _in_log(self.log, rows, error) from None

    def _made(self, rows: Rows) -> Step:
        return step_of(self._settings.setup, rows.items(), self.home(len(rows)), rows.numbers)

    def home(self, count: int) -> Placement:
        """Return where the samples of a step of so many lie."""
        if count not in self._homes:
            num_ranks = self._settings.setup.topology.num_ranks
            self._homes[count] = HOMES[self._settings.home](count, num_ranks, self._per_rank(count))
        return self._homes[count]

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
            raise _in_log(self.log, rows, error) from None


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
