"""Offline planning of several phases: a log in, a step plan for every global batch out; a plan file replayed, checked.

As :mod:`balancer.offline.one_phase` does for one phase; the two share plan files, homes and checks.
"""

import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer._version import __version__
from balancer.cost import parse_cost
from balancer.errors import InputError, PlanError
from balancer.io.logs import LengthLog, choose_length, read_columns, unit_of
from balancer.io.plan_reader import PlanFile, PlanStep, open_plan
from balancer.io.plan_writer import PlanWriter
from balancer.offline.one_phase import (
    FellBack,
    Homes,
    PlanDigest,
    Slots,
    caps_of,
    checked_target,
    describe_source,
    source_of,
)
from balancer.plan.dispatch_plan import DispatchPlan
from balancer.plan.step_plan import StepPlan
from balancer.planning.planner import EPS, check_method, replay_plan
from balancer.planning.ranks import check_placement
from balancer.planning.step import Settings, Step, assemble, encoder_slots, in_slots, step_batch
from balancer.planning.strategies import STRATEGIES, plan_step, sorted_window
from balancer.problem.batch import HOMES, global_batches
from balancer.problem.items import parse_items
from balancer.problem.micro_batches import MicroBatches
from balancer.problem.phases import Columns, Phase, PhaseItems, resolve_phases
from balancer.problem.placement import Placement
from balancer.problem.problem import Problem
from balancer.problem.ragged import Ragged
from balancer.problem.smallest_cap import most_needed
from balancer.problem.topology import Topology
from solvers.arguments import as_budget, as_count
from solvers.errors import SolverError
from solvers.relocation import as_eps

__all__ = ["StepSettings", "append_step", "compare_log", "describe_steps", "load_steps", "plan_steps"]


@dataclass(frozen=True, slots=True)
class StepSettings:
    """How a log is cut into global batches, and how the phases of each are planned.

    Attributes
    ----------
    topology, batch_per_rank, home, drop_last
        As :class:`balancer.offline.one_phase.LogSettings` has them.
    phases : tuple of Phase
        Their columns are the log's.
    method, placement, eps, time_budget, mode, group_size, micro_batches
        As :func:`balancer.orchestrate` takes them.
    """

    topology: Topology
    batch_per_rank: int
    phases: tuple[Phase, ...]
    home: str = "contiguous"
    drop_last: bool = False
    method: str = "auto"
    placement: str = "relocate"
    eps: float = EPS
    time_budget: float = 0.01
    mode: str = "separate"
    group_size: int | None = None
    micro_batches: MicroBatches | None = None

    def __post_init__(self) -> None:
        as_count("batch_per_rank", self.batch_per_rank)
        as_count("global batch (ranks * batch_per_rank)", self.topology.num_ranks * self.batch_per_rank)
        as_budget(self.time_budget)
        as_eps(self.eps)
        check_placement(self.placement)
        for phase in self.phases:
            check_method(self.method, parse_cost(phase.cost))
        if self.home not in HOMES:
            raise ValueError(f"unknown home {self.home!r}; known homes are {', '.join(HOMES)}")
        empty: dict[str, Any] = {name: Ragged.of([]) for phase in self.phases for name in _lists(phase)}
        empty |= {expression: [] for phase in self.phases for expression in _sums(phase)}
        step_batch(empty or {"": []}, self.phases, self.topology, None, self.of_step())  # whatever needs no data

    @property
    def samples_per_step(self) -> int:
        """Samples of a full global batch."""
        return self.topology.num_ranks * self.batch_per_rank

    @property
    def several_items(self) -> bool:
        """Whether some phase may have several items a sample."""
        return any("(" in phase.items for phase in self.phases)

    def of_step(self) -> Settings:
        """Return how each step is planned."""
        return Settings(
            self.method, self.placement, self.eps, self.time_budget, self.mode, self.group_size, self.micro_batches
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return the settings as the plan file's description holds them."""
        return {
            "topology": {"node_sizes": list(self.topology.node_sizes)},
            "batch_per_rank": self.batch_per_rank,
            "phases": [asdict(phase) | {"cost": str(phase.cost)} for phase in self.phases],
            "home": self.home,
            "drop_last": self.drop_last,
            "solver": {
                "method": self.method,
                "placement": self.placement,
                "eps": self.eps,
                "time_budget": self.time_budget,
                "mode": self.mode,
                "group_size": self.group_size,
            },
            "micro_batches": self.micro_batches.to_json() if self.micro_batches else None,
        }

    @classmethod
    def from_json(cls, description: Mapping[str, Any]) -> "StepSettings":
        """Read back what :meth:`to_json` wrote; KeyError, TypeError or ValueError if it did not."""
        micro_batches = description["micro_batches"]
        return cls(
            topology=Topology(description["topology"]["node_sizes"]),
            batch_per_rank=description["batch_per_rank"],
            phases=tuple(Phase(**phase) for phase in description["phases"]),
            home=description["home"],
            drop_last=description["drop_last"],
            micro_batches=MicroBatches(**micro_batches) if micro_batches else None,
            **description["solver"],
        )


def _expressions(phase: Phase) -> list[str]:
    given = phase.items, phase.outputs, phase.own, phase.totals
    return [expression for expression in given if expression is not None]


def _sums(phase: Phase) -> list[str]:
    """Return what names columns of numbers."""
    return [expression for expression in _expressions(phase) if "(" not in expression]


def _lists(phase: Phase) -> list[str]:
    """Return the columns of lists."""
    return [name for text in _expressions(phase) if "(" in text for name in parse_items(text).columns]


# --- planning --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Rows:
    """The columns of one global batch, under the names by which phases ask for them."""

    number: int
    first_row: int
    columns: Columns


def _rows_of_steps(log: LengthLog, settings: StepSettings, endless: bool = False) -> Iterator[_Rows]:
    """Read the columns that the phases name, step by step; if `endless`, the log over and over."""
    sums = {text: choose_length(log, text) for phase in settings.phases for text in _sums(phase)}
    lists = list(dict.fromkeys(name for phase in settings.phases for name in _lists(phase)))
    passes = itertools.repeat(None) if endless else (None,)
    blocks = itertools.chain.from_iterable(read_columns(log, sums, (), lists) for _ in passes)
    for number, block in enumerate(global_batches(blocks, settings.samples_per_step, settings.drop_last)):
        yield _Rows(number, block.first_row, {**block.sums, **block.lists})


@contextmanager
def _named(log: LengthLog, rows: _Rows) -> Iterator[None]:
    """Let errors call samples by their rows in the log."""

    def by_row(match: re.Match[str]) -> str:
        return f"row {rows.first_row + int(match[1])}"

    try:
        yield
    except (ValueError, SolverError) as error:
        message = re.sub(r"\b(?:sample|row) (\d+)", by_row, str(error))
        message = f"{log.path}: step {rows.number}: {message}"
        if isinstance(error, SolverError):
            error.args = (message, *error.args[1:])
            raise
        raise InputError(message) from None


class _Steps:
    """Makes what the phases of a step share from its rows."""

    def __init__(self, log: LengthLog, settings: StepSettings) -> None:
        self._log, self._settings = log, settings
        self._homes = Homes(settings.home, settings.topology.num_ranks, settings.batch_per_rank)

    def of(self, rows: _Rows) -> Step:
        settings = self._settings
        count = len(next(iter(rows.columns.values())))  # type: ignore[arg-type]
        home = self._homes.of(count).rank_of_sample
        return step_batch(rows.columns, settings.phases, settings.topology, home, settings.of_step())

    def plan(self, rows: _Rows, strategy: str) -> StepPlan:
        with _named(self._log, rows):
            return plan_step(strategy, self.of(rows))


def plan_steps(log: LengthLog, settings: StepSettings) -> Iterator[StepPlan]:
    """Plan all phases of every global batch of a log, one after the other; memory does not grow with the log.

    Raises
    ------
    InputError
        A row that cannot be used.
    InfeasibleError, SolverError
        A step that no plan, or none that was found, satisfies; the message names step and phase.
    """
    steps = _Steps(log, settings)
    for rows in _rows_of_steps(log, settings):
        try:
            plan = steps.plan(rows, "orchestrated")
        except SolverError as error:
            error.args = (f"{error}{_most_needed(log, settings, rows.number)}", *error.args[1:])
            raise
        yield plan


def _most_needed(log: LengthLog, settings: StepSettings, failed: int) -> str:
    """Say which step further on needs the largest caps."""
    num_ranks, last = settings.topology.num_ranks, settings.phases[-1]
    asked = []
    for phase in settings.phases:
        micro_batches = settings.micro_batches if phase is last else None
        name = f" of phase {phase.name!r}"
        asked += caps_of(phase.name, phase.max_tokens_per_rank, micro_batches, num_ranks, name)
    if not asked:
        return ""
    steps = (resolve_phases(rows.columns, settings.phases) for rows in _rows_of_steps(log, settings))
    return most_needed(asked, ({items.phase.name: items.lengths for items in step} for step in steps), failed)


def compare_log(
    log: LengthLog,
    settings: StepSettings,
    strategies: Sequence[str] = tuple(STRATEGIES),
    num_steps: int | None = None,
    window: int = 100,
    endless: bool = False,
) -> Iterator[tuple[str, StepPlan]]:
    """Plan every global batch of a log by several strategies.

    Parameters
    ----------
    log : LengthLog
    settings : StepSettings
    strategies : sequence of str
        Names in :data:`balancer.planning.strategies.STRATEGIES`.
    num_steps : int, optional
        Stop after so many steps.
    window : int
        Steps that ``sorted_batches`` sorts together, and that are held in memory; without it, one step is.
    endless : bool
        Read the log over and over, so that all steps are full; they end with `num_steps` alone.

    Yields
    ------
    strategy : str
    plan : StepPlan
        Window by window, and within one strategy by strategy.
    """
    steps, read = _Steps(log, settings), _rows_of_steps(log, settings, endless)
    for strategy in strategies:
        if strategy not in STRATEGIES:
            raise ValueError(f"unknown strategy {strategy!r}; known strategies are {', '.join(STRATEGIES)}")
    window = as_count("window", window)
    for rows in _windows(read, window if "sorted_batches" in strategies else 1, num_steps):
        for strategy in strategies:
            batches = _sorted(rows, settings) if strategy == "sorted_batches" else rows
            for batch in batches:
                yield strategy, steps.plan(batch, strategy)


def _windows(rows: Iterator[_Rows], window: int, num_steps: int | None) -> Iterator[list[_Rows]]:
    limited = itertools.islice(rows, None if num_steps is None else as_count("steps", num_steps))
    while held := list(itertools.islice(limited, window)):
        yield held
        held.clear()  # whoever asks for the next one still holds this list, and two windows take twice the memory


def _sorted(window: Sequence[_Rows], settings: StepSettings) -> Iterator[_Rows]:
    columns: dict[str, Any] = {}
    for name, column in window[0].columns.items():
        parts: list[Any] = [rows.columns[name] for rows in window]
        columns[name] = Ragged.concatenate(parts) if isinstance(column, Ragged) else np.concatenate(parts)
    lengths = resolve_phases(columns, settings.phases)[-1].lengths
    for number, (_, batch) in enumerate(sorted_window(columns, lengths, settings.samples_per_step)):
        yield _Rows(window[0].number + number, 0, batch)


# --- writing ---------------------------------------------------------------------------------------------------------


def append_step(writer: PlanWriter, number: int, first_row: int, plan: StepPlan, several_items: bool) -> None:
    """Write the placements of all phases of one step, whose first sample is row `first_row` of the log."""
    for name, phase in plan.phases.items():
        target, items = phase.plan.target, phase.items
        slot = phase.plan.slot_of_sample if plan.num_slots > 1 else 0
        writer.append(
            number,
            name,
            items.sample_of_item + first_row,
            target.rank_of_sample,
            slot,
            target.position_of_sample,
            item=items.item_in_sample.astype(np.int32) if several_items else None,
        )


def describe_steps(
    log: LengthLog, settings: StepSettings, steps: int, samples: int, digest: PlanDigest
) -> dict[str, Any]:
    """Return the description that goes into a plan file: enough to replay it from the log."""
    described = settings.to_json() | describe_source(log, steps, samples, digest)
    units = {phase.name: _sums(phase)[0] for phase in settings.phases if "(" not in phase.items}
    described["source"]["unit"] = {name: unit_of(log, choose_length(log, text)) for name, text in units.items()}
    return described | {"version": __version__}


# --- reading ---------------------------------------------------------------------------------------------------------


def load_steps(path: str | os.PathLike[str], log: str | os.PathLike[str] | None = None) -> Iterator[StepPlan]:
    """Read the step plans of a plan file one by one, all recomputed from placements and lengths, and checked.

    Parameters
    ----------
    path : path
        A plan file or folder of several phases, as ``balancer plan --phase ... --out`` writes it.
    log : path, optional
        The log it was made from; by default the one that its description names, looked for from the working folder
        and from beside the plan.

    Yields
    ------
    StepPlan
        One a step.

    Raises
    ------
    InputError
        A file that cannot be used, or a log that is not the one the plan was made from.
    PlanError
        A plan that is not complete, or whose digest is not the one it claims.
    """
    plan_file = open_plan(path)
    description = plan_file.description
    if not isinstance(description.get("phases"), list):
        raise InputError(f"{path}: plans one phase; use balancer.load_plans")
    try:
        settings = StepSettings.from_json(description)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: its description is not one this version reads: {error!r}") from None
    if settings.several_items and "item" not in plan_file.columns:
        raise PlanError(f"{path}: has no column 'item', though its phases have several items a sample")
    digest, steps = PlanDigest(), 0
    for plan in _replay(plan_file, source_of(plan_file, log), settings):
        digest.add(plan)
        steps += 1
        yield plan
    if digest.hexdigest() != description.get("digest"):
        raise PlanError(f"{path}: the digest of its {steps} steps is {digest.hexdigest()}, not what it says")


def _replay(plan_file: PlanFile, log: LengthLog, settings: StepSettings) -> Iterator[StepPlan]:
    steps, placed, fell_back = _Steps(log, settings), _placed(plan_file), FellBack(plan_file)
    rows = None
    for rows in _rows_of_steps(log, settings):
        with _named(log, rows):
            step = steps.of(rows)
        number, found = next(placed, (None, {}))
        if number != rows.number:
            raise PlanError(f"{plan_file.path}: step {rows.number} is missing")
        where = f"{plan_file.path}: step {number}"
        unknown = set(found) - {items.phase.name for items in step.items}
        if unknown:
            raise PlanError(f"{where}: places samples in a phase {min(unknown)!r}, which its description does not name")
        yield _replay_step(where, step, found, rows, fell_back)
    if rows is not None and next(placed, None) is not None:
        raise PlanError(f"{plan_file.path}: has more steps than the log, which ends at step {rows.number}")


def _placed(plan_file: PlanFile) -> Iterator[tuple[int, dict[str, PlanStep]]]:
    """Yield the phases of each step in the order of the file."""
    for number, runs in itertools.groupby(plan_file.steps(), key=lambda run: run.step):
        found: dict[str, PlanStep] = {}
        for run in runs:
            if run.phase in found:
                raise PlanError(f"{plan_file.path}: step {number}: phase {run.phase!r} stands there twice")
            found[run.phase] = run
        yield number, found


def _replay_step(
    where: str, step: Step, found: Mapping[str, PlanStep], of_step: _Rows, fell_back: FellBack
) -> StepPlan:
    """Check every phase of a step, the last one first, and put the step plan together."""
    plans: dict[str, DispatchPlan] = {}
    last: DispatchPlan | None = None
    for items in reversed(step.items):
        name = items.phase.name
        inside = f"{where}: phase {name!r}"
        order, rows = _ordered(inside, items, found.get(name), of_step.first_row)
        num_slots = _num_slots(step, rows) if last is None else last.num_slots
        slots = rows.slot[order], num_slots
        _check_slots(inside, items, slots, last)
        problem = _problem(step, items, num_slots, last is None)
        target = checked_target(inside, rows.rank[order], rows.position[order], slots, problem)
        _check_groups(inside, step, problem, target)
        plan = replay_plan(problem, target, step.settings.method, _budget(step, items), slots)
        plans[name] = replace(plan, fell_back=fell_back.of(name, of_step.number))
        last = last or plans[name]
    return assemble(step, plans, "orchestrated", 0.0)


def _ordered(
    where: str, items: PhaseItems, rows: PlanStep | None, first_row: int
) -> tuple[NDArray[np.int64], PlanStep]:
    """Check that a phase's rows place each of its items exactly once; return their order by items."""
    long, short = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32)
    if rows is None:
        rows = PlanStep(0, items.phase.name, long, short, short, short)
    item = np.zeros(len(rows.sample), dtype=np.int32) if rows.item is None else rows.item
    order = np.lexsort((item, rows.sample))
    expected = items.sample_of_item + first_row, items.item_in_sample
    if np.array_equal(rows.sample[order], expected[0]) and np.array_equal(item[order], expected[1]):
        return order, rows
    found = set(zip(rows.sample.tolist(), item.tolist(), strict=True))
    for sample, index in zip(expected[0].tolist(), expected[1].tolist(), strict=True):
        if (sample, index) not in found:
            raise PlanError(f"{where}: item {index} of sample {sample} is not placed")
    raise PlanError(f"{where}: items are placed twice or belong elsewhere")


def _num_slots(step: Step, rows: PlanStep) -> int:
    """Return how many micro-batches the last phase has: what was asked for, or what its rows say."""
    micro_batches, used = step.settings.micro_batches, int(rows.slot.max(initial=0)) + 1
    return 1 if micro_batches is None else micro_batches.slots_for(used)


def _check_slots(where: str, items: PhaseItems, slots: Slots, last: DispatchPlan | None) -> None:
    """Refuse slots out of range, and items that come later than their samples."""
    slot, num_slots = slots
    if len(slot) and not 0 <= slot.min() <= slot.max() < num_slots:
        wrong = slot.min() if slot.min() < 0 else slot.max()
        raise PlanError(f"{where}: slot must be within 0..{num_slots - 1}, got {wrong}")
    if last is None:
        return
    late = slot > last.slot_of_sample[items.sample_of_item]
    if late.any():
        item = int(np.argmax(late))
        raise PlanError(f"{where}: item {item} is in slot {slot[item]}, after its sample")


def _problem(step: Step, items: PhaseItems, num_slots: int, is_last: bool) -> Problem:
    problem, micro_batches = step.problem(items), step.settings.micro_batches
    if micro_batches is None:
        return problem
    return in_slots(problem, micro_batches if is_last else encoder_slots(items, num_slots))


def _check_groups(where: str, step: Step, problem: Problem, target: Placement) -> None:
    size = step.settings.group_size
    if size is None:
        return
    leaves = problem.batch.home.rank_of_sample // size != target.rank_of_sample // size
    if leaves.any():
        item = int(np.argmax(leaves))
        raise PlanError(f"{where}: item {item} leaves its group of {size} ranks, which the description rules out")


def _budget(step: Step, items: PhaseItems) -> float | None:
    """Return the budget with which a phase was planned by itself, and so what its bound may have come from."""
    settings = step.settings
    is_last = items is step.items[-1]
    if settings.group_size is not None or (settings.micro_batches is not None and not is_last):
        return None
    return settings.time_budget
