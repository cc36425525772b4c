"""A whole plan file checked against its log: by sums over columns where these say all, else step by step.

What is found of each step is compared with the table of steps in the file. A bound is proven by a formula, by planning
the step again, or it is only claimed: another release, or a method that reads the clock, may have found it.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from balancer._version import __version__
from balancer.errors import InputError, PlanError
from balancer.io.log import LengthLog
from balancer.io.plan_reader import PlanFile, open_plan
from balancer.offline.claims import Claims, table_in
from balancer.offline.description import digest_of
from balancer.offline.engines import Tick, Who, done_by
from balancer.offline.load import checked_steps, load_steps, replayed, source_of
from balancer.offline.parts import Part, parts_of
from balancer.offline.saved import load_saved
from balancer.offline.settings import LogSettings
from balancer.offline.step_table import StepRows, rows_of, table_of, with_epochs
from balancer.offline.steps import Rows, Steps, read_rows, rows_of_steps
from balancer.offline.sums import SUMMED, Summed, are_sums, summed
from balancer.plan.step_plan import StepPlan
from solvers import USES_CLOCK
from solvers.check import SEARCHES

Each = Callable[[StepPlan], None]

_OF_BOUND = ("lower_bound", "bound_name", "status")
_DERIVED = ("gap", "after", "bound")
_REASONS = ("fell_back", "fell_back_percent")


class Checked(NamedTuple):
    """What a plan file holds."""

    steps: pa.Table  # a row a step and phase, with the bounds that are proven
    bounds: dict[str, int]  # how many are proven by a ``formula``, by ``planning`` again, or only ``claimed``


def check_run(
    path: str, log: str | os.PathLike[str] | None = None, *, who: Who | None = None,
    tick: Tick = lambda _: None, each: Each | None = None, rebuilds: bool = False,
) -> Checked:  # fmt: skip
    """Check every step of a plan against its log.

    `who` and `tick` are as for :func:`balancer.offline.run.plan_run`. By default this process checks; several need a
    folder of parts. `each` is called, by this process alone, with the step plans that are rebuilt, in order: with all
    if it `rebuilds` what sums could say.
    """
    claims = Claims(plan_file := open_plan(path))
    alone = plan_file.parts == (plan_file.path,)
    if who not in (None, 1) and (claims.is_saved or alone):
        raise InputError(f"{path}: has no parts for several processes; report on it by one")
    if claims.is_saved:
        plan, rows = load_saved(plan_file), StepRows()
        rows.add(0, plan)
        tick(plan.num_samples)
        if each is not None:
            each(plan)
        return Checked(rows.table(), {})
    settings, source = claims.settings, source_of(claims, log)
    if settings.across is not None:
        if who not in (None, 1):
            raise InputError(f"{path}: its samples run early or late, which one process checks; report on it by one")
        return _across(path, log, settings, tick, each)
    steps = settings.order(len(read_rows(source, settings))).num_steps
    parts = [Part(0, 0, steps)] if alone else list(parts_of(steps, settings.steps_per_part))
    if len(plan_file.parts) != len(parts):
        raise PlanError(f"{path}: must have {len(parts)} parts of its log's steps, got {len(plan_file.parts)}")
    sums, by = not rebuilds and are_sums(settings), each if who in (None, 1) else None
    tasks = (_Task(_one_of(plan_file, i), source, settings, part, sums, by) for i, part in enumerate(parts))
    digests, bounds, tables, samples = list[str](), Counter[str](), list[pa.Table](), 0
    for done in done_by(who or 1, _check_part, tasks, tick):
        digests += done["digests"]
        bounds.update(done["bounds"])
        tables.append(done["table"])
        samples += done["samples"]
    claims.check_digest(digest_of(digests, settings.steps_per_part), steps)
    _require_said(path, claims.said, rows=len(read_rows(source, settings)), steps=steps, samples=samples)
    return Checked(pa.concat_tables(tables), dict(bounds))


def _one_of(plan_file: PlanFile, part: int) -> PlanFile:
    """Return one file of a plan."""
    of = slice(part, part + 1)
    return replace(plan_file, parts=plan_file.parts[of], groups=plan_file.groups[of], headers=plan_file.headers[of])


def _require_said(path: object, said: Mapping[str, Any], **found: int) -> None:
    """Raise PlanError unless a description says these numbers."""
    for name, number in found.items():
        if type(said.get(name)) is not int or said[name] != number:
            raise PlanError(f"{path}: says {name} = {said.get(name)!r:.40}, and {number} are there")


def _across(
    path: str, log: str | os.PathLike[str] | None, settings: LogSettings, tick: Tick, each: Each | None
) -> Checked:
    """Check a plan whose samples run early or late: which step a sample is of depends on all of an epoch."""
    epochs, said = list[dict[str, Any]](), _Said(Claims(open_plan(path)), settings, load_steps(path), 0)
    claims, samples = Claims(open_plan(path)), 0
    for number, plan in enumerate(checked_steps(path, log, on_epoch=lambda found: epochs.append(found.as_json()))):
        said.check(number, plan, 0)
        (each or _nothing)(plan)
        tick(plan.num_samples)
        samples += plan.num_samples
    for part in range(len(claims.plan_file.parts)):
        claims.plan_file.check_groups(part)
    _require_said(path, claims.said, steps=len(said), samples=samples)
    return Checked(with_epochs(said.table(), epochs), dict(said.bounds))


def _nothing(plan: StepPlan) -> None:
    """Do nothing with a plan."""


@dataclass(frozen=True, slots=True)
class _Task:
    """One file of a plan to check."""

    plan_file: PlanFile
    log: LengthLog
    settings: LogSettings
    part: Part
    sums: bool  # whether they say all of most steps
    each: Each | None

    def __str__(self) -> str:
        return f"part {self.part.number}"


def _check_part(task: _Task, tick: Tick = lambda _: None) -> dict[str, Any]:
    """Check one file; return the digests of its steps, its stretch of the table, and how bounds are proven."""
    plan_file, settings, (number, first, stop) = task.plan_file, task.settings, task.part
    about = plan_file.headers[0]["description"]
    if "part" in about:
        _require_said(plan_file.parts[0], about, part=number, first_step=first, steps=stop - first)
    said = _Said(Claims(plan_file), settings, table_in(plan_file, 0), first)
    if len(said) != stop - first:
        raise PlanError(f"{plan_file.parts[0]}: its table of steps has {len(said)} steps, and its log {stop - first}")
    rows = list(rows_of_steps(task.log, settings, steps=(first, stop)))
    made, claims = Steps(task.log, settings), Claims(plan_file)
    sums = _by_sums(plan_file, rows, made, said, settings) if task.sums and rows else None
    good, digests = (sums.good, sums.digests) if sums else (np.zeros(len(rows), dtype=bool), [""] * len(rows))
    for is_good, run in groupby(range(len(rows)), key=lambda i: bool(good[i])):
        those = list(run)
        if is_good:
            said.take(those)
            tick(sum(len(rows[i]) for i in those))
            continue
        span = (first + those[0], first + those[-1] + 1) if sums else (None, None)
        plans = replayed(claims, task.log, settings, [rows[i] for i in those], span)
        for i, plan in zip(those, plans, strict=True):
            digests[i] = plan.digest()
            said.check(first + i, plan, rows[i].first_row)
            (task.each or _nothing)(plan)
            tick(plan.num_samples)
    if "part" in about and (found := digest_of(digests)) != about.get("digest"):
        raise PlanError(f"{plan_file.parts[0]}: the digest of its steps is {found}, not {about.get('digest')!s:.80}")
    plan_file.check_groups(0)  # after the rows, which say more of what is wrong
    samples = sum(map(len, rows))
    if "part" in about:
        _require_said(plan_file.parts[0], about, samples=samples)
    return {"samples": samples, "digests": digests, "table": said.table(), "bounds": dict(said.bounds)}


def _by_sums(
    plan_file: PlanFile, rows: Sequence[Rows], made: Steps, said: "_Said", settings: LogSettings
) -> Summed | None:
    """Check a file's steps by sums; the first is never good. None where its rows are not those of the steps."""
    (columns, phases), good, digests, low = plan_file.columns_in(0), list[bool](), list[str](), 0
    if len(columns["step"]) != sum(map(len, rows)) or len(said.columns["step"]) != len(rows):
        return None
    if phases != [phase.name for phase in settings.setup.phases]:
        return None
    (first,) = replayed(Claims(plan_file), made.log, settings, rows[:1], (rows[0].number, rows[0].number + 1))
    alike = said.alike(next(rows_of(rows[0].number, first)))
    for _, run in groupby(rows, key=lambda each: id(each.together)):
        steps = list(run)
        high = low + sum(map(len, steps))
        of = {name: values[low:high] for name, values in columns.items()}
        of_table = {name: values[len(good) : len(good) + len(steps)] for name, values in said.columns.items()}
        found = summed(steps, [made.home(len(each)) for each in steps], of, of_table, settings)
        if found is None:
            return None
        good += found.good.tolist()
        digests += found.digests
        low = high
    return Summed(np.array(good) & alike & (np.arange(len(good)) > 0), digests)


class _Said:
    """What a file's table says of its steps, which begin with the `first`, compared with what is found."""

    def __init__(self, claims: Claims, settings: LogSettings, steps: pa.Table, first: int) -> None:
        self._claims, self._settings, self._steps, self._first = claims, settings, steps, first
        self._where = claims.plan_file.path
        self.columns: dict[str, list[Any]] = {name: steps[name].to_pylist() for name in steps.column_names}
        numbers = self.columns["step"]
        self._starts = [i for i in range(len(numbers)) if i == 0 or numbers[i] != numbers[i - 1]] + [len(numbers)]
        if [numbers[i] for i in self._starts[:-1]] != list(range(first, first + len(self))):
            raise PlanError(f"{self._where}: its table of steps must have those from step {first} on, each once")
        setup = settings.setup
        certain = setup.settings.method not in USES_CLOCK and claims.said.get("producer") == __version__
        # Others may start from what is known of other phases, or have searched for more than is searched for here.
        self._is_certain = certain and setup.settings.cut.name == "whole_shares" and len(setup.phases) == 1
        self.bounds, self._proven = Counter[str](), dict[int, Mapping[str, Any]]()

    def __len__(self) -> int:
        return len(self._starts) - 1

    def alike(self, pattern: Mapping[str, Any]) -> NDArray[np.bool_]:
        """Say of each row, one a step, whether it has what all steps have alike, as in one of them."""
        numbers = range(self._first, self._first + len(self))
        good: NDArray[np.bool_] = np.array(
            [number == i for number, i in zip(self.columns["step"], numbers, strict=True)], dtype=bool
        )
        for name in self.columns.keys() - {"step", *SUMMED, *_DERIVED, *_REASONS}:
            good &= np.array([value == pattern.get(name) for value in self.columns[name]], dtype=bool)
        return good

    def take(self, those: Iterable[int]) -> None:
        """Take in steps of which all that is said is so."""
        self.bounds["formula"] += len(list(those))

    def check(self, number: int, plan: StepPlan, first_row: int) -> None:
        """Compare what is said of a step with its plan; PlanError says what differs."""
        at, where = number - self._first, f"{self._where}: step {number}"
        said = range(*self._starts[at : at + 2])
        found = list(rows_of(number, plan, first_row, self._settings.is_short(plan.num_samples)))
        if [self.columns["phase"][i] for i in said] != [row["phase"] for row in found]:
            raise PlanError(f"{where}: its table of steps must have rows of {', '.join(row['phase'] for row in found)}")
        for i, row in zip(said, found, strict=True):
            inside = where if plan.is_single else f"{where}: {row['phase']}"
            for name, values in self.columns.items():
                if name not in (*_OF_BOUND, *_DERIVED, *_REASONS) and values[i] != row.get(name):
                    self._differs(inside, name, i, row)
            if "makespan" in row:
                self._check_bound(inside, i, row)

    def _differs(self, where: str, name: str, i: int, row: Mapping[str, Any]) -> None:
        """Say that a cell of the table is not what it must be."""
        said = f"{self.columns[name][i]!r:.80}"
        raise PlanError(f"{where}: its table of steps says {name} = {said}, and its rows {row.get(name)!r:.80}")

    def _check_bound(self, where: str, i: int, row: Mapping[str, Any]) -> None:
        """Find how a bound is proven."""
        claim, proven = self.columns["lower_bound"][i], row["lower_bound"]
        if claim != proven and (self._is_certain or not proven < claim <= row["makespan"]):
            raise PlanError(f"{where}: its table of steps claims lower_bound = {claim}, and {proven} is proven")
        if claim != proven:
            self.bounds["claimed"] += 1
            self._proven[i] = row
            return
        if self.columns["bound_name"][i] != row["bound_name"]:
            self._proven[i] = row  # which says how it is proven here
        for name in _OF_BOUND if self._is_certain else ():
            if self.columns[name][i] != row[name]:
                self._differs(where, name, i, row)
        self.bounds["planning" if row["bound_name"] in SEARCHES else "formula"] += 1

    def table(self) -> pa.Table:
        """Return the table, with the bounds that are proven where others are claimed."""
        if not self._proven:
            return self._steps.replace_schema_metadata(None)  # what is said of epochs was not checked
        rows = self._steps.to_pylist()
        for i, row in self._proven.items():
            rows[i] |= {name: row[name] for name in (*_OF_BOUND, *_DERIVED)}
        return table_of(rows)
