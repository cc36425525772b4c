"""The steps of a log whose samples run early or late, epoch by epoch: chosen, or as a plan file has them."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from balancer.deferral.settings import StepSettings
from balancer.deferral.steps import EpochSteps, PhaseWork, check_steps, choose_steps
from balancer.errors import InputError, PlanError
from balancer.io.log import LengthLog, LogColumns
from balancer.io.plan_reader import PlanFile
from balancer.offline.settings import LogSettings
from balancer.problem.phases import Columns, Phase, PhaseItems, of_phase, resolve_phases
from balancer.problem.setup import Setup
from balancer.problem.shuffle import shuffled
from solvers.deferral import MOST_STEPS
from solvers.errors import SolverError, UsageError, WordedError, Wording

Ints = NDArray[np.int64]
OnEpoch = Callable[[EpochSteps], None]

_STEPS_AT_ONCE = MOST_STEPS
"""Nominal steps of a part of an epoch: what the bound covers together."""


class EpochRows(NamedTuple):
    """The rows of an epoch in the order in which they run."""

    block: LogColumns
    numbers: Ints  # int64[n]: which rows of the log they are
    nominal: Ints  # int64[n]: the step for which each was drawn, counted over all epochs
    ends: Ints  # int64[T + 1]: where steps begin, and the last one ends


def step_settings_of(settings: LogSettings) -> StepSettings:
    """Return what is asked of the solver; UsageError says what is planned in a way that it cannot foresee."""
    across, setup = settings.across, settings.setup
    if across is None:
        raise ValueError("nothing is deferred")  # pragma: no cover
    phase = setup.phases[-1]
    _refuse(setup)
    if settings.samples_per_step and across.step_tokens is not None:
        raise UsageError("{batch_per_rank} and {step_tokens} both say where a step ends: give one of them")
    return StepSettings.of(setup.topology.num_ranks, settings.samples_per_step or None, across, phase.cost,
                           phase.max_tokens_per_rank, setup.settings.cut)  # fmt: skip


def _refuse(setup: Setup) -> None:
    """Refuse what makes a step's makespan more than a matter of its samples' costs."""
    if setup.settings.mode != "separate":
        raise UsageError("{defer} and {step_tokens} are for phases that are balanced each for itself",
                         "use {mode='separate'}")  # fmt: skip
    for phase in setup.phases:
        with of_phase(phase.name):
            _refuse_phase(phase)


def _refuse_phase(phase: Phase) -> None:
    for name in ("rank_speeds", "initial_loads", "allowed_ranks", "prefix", "prefix_length", "keep_together"):
        if getattr(phase, name):
            raise UsageError(f"{{{name}}} cannot be combined with {{defer}} and {{step_tokens}}")
    if not (cost := phase.cost).additive:
        raise UsageError("samples cannot be deferred under {cost} = {given}: what a step costs then depends on its "
                         "plan", "{cost} must be a sum over samples", given=str(cost))  # fmt: skip


def epochs_of(
    log: LengthLog, whole: LogColumns, settings: LogSettings, endless: bool = False, saved: "SavedSteps | None" = None,
    on_epoch: OnEpoch = lambda _: None, first_row: int = 0,
) -> Iterator[EpochRows]:  # fmt: skip
    """Yield the epochs of a log, over and over if `endless`; their steps are chosen, or `saved`.

    An epoch in the order of the log comes in parts of so many nominal steps, which no sample leaves, and `on_epoch` is
    called for each. A shuffled epoch is one part. Row 0 of the columns is row `first_row` of the log.
    """
    base = 0
    for epoch in itertools.count() if endless else range(settings.epochs):
        before = base
        for number, part in enumerate(_parts_of(settings, whole, epoch, first_row)):
            found = _steps_of(log, settings, part) if saved is None else saved.of(settings, part, base)
            on_epoch(replace(found, part=number))
            # Samples of no step are left out: those of a short last step that is dropped. They sort before all
            # others.
            order = np.argsort(found.step, kind="stable")[np.count_nonzero(found.step < 0) :]
            ends = np.concatenate([[0], np.cumsum(found.sizes)])
            rows = part.place[order]
            yield EpochRows(part.block.taken(rows), part.numbers[order], base + found.nominal[order], ends)
            base += len(found.sizes)
        # An empty log would be read for ever.
        if base == before:
            return


class _Part(NamedTuple):
    """Rows of an epoch whose steps are chosen together."""

    block: LogColumns
    place: Ints  # int64[n]: where in the block each sample of the epoch's order stands
    numbers: Ints  # int64[n]: which row of the log it is
    is_last: bool  # of its epoch


def _parts_of(settings: LogSettings, whole: LogColumns, epoch: int, first_row: int) -> Iterator[_Part]:
    """Yield the parts of an epoch."""
    if settings.shuffle is not None:
        rows = shuffled(np.arange(len(whole)), len(whole), settings.shuffle, settings.first_epoch + epoch)
        yield _Part(whole, rows, rows, True)
        return
    asked, length, first = step_settings_of(settings), settings.setup.phases[-1].length, 0
    while first < len(whole):
        step = asked.nominal_steps(whole.sums[length][first:])
        # A part ends where the step after its last begins.
        stop = first + int(np.searchsorted(step, _STEPS_AT_ONCE))
        place = np.arange(stop - first)
        yield _Part(whole.taken(slice(first, stop)), place, first_row + first + place, stop == len(whole))
        first = stop


def _given(settings: LogSettings, part: _Part) -> tuple[Any, ...]:
    """Return lengths and stages of a part, in its order, whether a short last step is left out, and work."""
    stage = settings.across and settings.across.stage
    stages = part.block.keys[stage][part.place] if stage else None
    length = part.block.sums[settings.setup.phases[-1].length][part.place]
    return length, stages, settings.drop_last and part.is_last, _work(settings.setup, part.block, part.place)


def _work(setup: Setup, whole: LogColumns, numbers: Ints) -> list[PhaseWork]:
    """Return what each phase takes of an epoch's samples."""
    columns: Columns = {**whole.sums, **whole.lists}
    found = resolve_phases(columns, setup.phases, setup.topology.num_ranks, whole.keys)
    works = {items.phase.name: _work_of(items, setup, len(whole)) for items in found}
    of_phases = {items.phase.name: (items.cost, items.lengths, items.sample_of_item) for items in found}
    # Encoders that are stages of one pipeline end together with it: their work is one.
    if (together := setup.settings.cut.least_work_together(of_phases, len(whole))) is not None:
        names, costs, heights = together
        capped = tuple(cap for name in names for cap in works.pop(name).capped)
        works[setup.phases[-1].name] = PhaseWork(costs, heights, setup.topology.num_ranks, capped)
    return [work.taken(numbers) for work in works.values()]


def _work_of(items: PhaseItems, setup: Setup, num_samples: int) -> PhaseWork:
    """Return what a phase takes of samples, whose items may run on several ranks."""

    def sums(amounts: Ints) -> Ints:
        total = np.zeros(num_samples, dtype=np.int64)
        np.add.at(total, items.sample_of_item, amounts)
        return total

    phase, num_ranks = items.phase, setup.topology_of(items.phase.name).num_ranks
    each, times = setup.cut_of(phase.name).least_work(items.cost, items.lengths, num_ranks)
    costs, tallest = sums(each), np.zeros(num_samples, dtype=np.int64)
    np.maximum.at(tallest, items.sample_of_item, each if times is None else times)
    capped = [(sums(amounts), most) for amounts, most in zip(items.cap_amounts, phase.caps.values(), strict=True)]
    if phase.max_tokens_per_rank is not None and phase is not setup.phases[-1]:  # of the last one the settings say it
        capped.append((sums(items.lengths), phase.max_tokens_per_rank))
    alone = np.array_equal(costs, tallest)  # one item a sample, all of it on one rank
    return PhaseWork(costs, None if alone else tallest, num_ranks, tuple(capped))


def _steps_of(log: LengthLog, settings: LogSettings, part: _Part) -> EpochSteps:
    """Choose the steps of a part; errors call samples by their rows."""
    try:
        return choose_steps(step_settings_of(settings), *_given(settings, part))
    except (ValueError, SolverError) as error:
        if not isinstance(error, WordedError):
            raise InputError(f"{log.path}: {error}") from None
        words = Wording({"sample": "row", "item": "row", "index": "row"}, {"row": lambda i: int(part.numbers[i])})
        worded = error.in_words(words).within(str(log.path))
        raise worded if isinstance(worded, SolverError) else InputError.of(worded) from None


class SavedSteps:
    """The steps of a plan file, read at once: of all samples the step, and the one for which each was drawn."""

    def __init__(self, plan_file: PlanFile) -> None:
        self._path = plan_file.path
        runs = list(plan_file.steps())
        columns = ([np.full(len(run.sample), run.step) for run in runs], [run.sample for run in runs],
                   [run.nominal_step for run in runs])  # fmt: skip
        self._rows: Ints = np.stack([np.concatenate([np.empty(0, dtype=np.int64), *each]) for each in columns])
        if (np.diff(self._rows[0]) < 0).any():
            raise PlanError(f"{self._path}: its steps must stand in order")

    def of(self, settings: LogSettings, part: _Part, base: int) -> EpochSteps:
        """Return the steps of a part whose first one has the number `base`; PlanError where they cannot be."""
        asked, given = step_settings_of(settings), _given(settings, part)
        nominal = asked.nominal_steps(given[0], given[2])
        count = int(nominal.max(initial=-1)) + 1
        # Rows stand in the order of steps, so those of a part are one stretch of the file.
        low, high = np.searchsorted(self._rows[0], [base, base + count])
        steps, samples, drawn = self._rows[:, low:high]
        ascending = np.argsort(part.numbers, kind="stable")
        at = np.searchsorted(part.numbers, samples, sorter=ascending)
        known = at < len(ascending)
        known[known] = part.numbers[ascending[at[known]]] == samples[known]
        if not known.all():
            first, last = (int(part.numbers[ascending[i]]) for i in (0, -1))
            odd = int(samples[~known][0])
            raise PlanError(f"{self._path}: sample must be within {first}..{last}, the log's rows, got {odd}")
        place = ascending[at]
        if (odd := drawn - base != nominal[place]).any():
            i = int(np.argmax(odd))
            raise PlanError(f"{self._path}: step {steps[i]}: sample {samples[i]} was drawn for step "
                            f"{base + nominal[place[i]]}, not for step {drawn[i]}")  # fmt: skip
        step = np.full(len(part.numbers), -1, dtype=np.int64)
        step[place] = steps - base
        try:
            return check_steps(asked, *given, step=step)
        except (ValueError, SolverError) as error:
            raise PlanError(f"{self._path}: {error}") from None
