"""Plan files in, plans out: replayed from the log that they were made from, or from the lengths that they hold."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from balancer.errors import InputError, PlanError, on_a_line
from balancer.io._atomic import check_regular
from balancer.io.log_files import files_of
from balancer.io.logs import LengthLog, open_log, rows_of_files
from balancer.io.plan_reader import PlanFile, open_plan
from balancer.io.plan_rows import PlanStep
from balancer.io.store import as_path, exists, is_remote
from balancer.offline.description import FellBack, PlanDigest, contents_of, unreadable
from balancer.offline.engines import Serial
from balancer.offline.parts import parts_of
from balancer.offline.replay import Claims, of_plan, replay_step
from balancer.offline.run import sorted_rows
from balancer.offline.saved import is_saved, load_saved
from balancer.offline.settings import LogSettings
from balancer.offline.steps import Rows, Steps, rows_of_steps
from balancer.plan.dispatch_plan import DispatchPlan
from balancer.plan.step_plan import StepPlan
from balancer.problem.phases import SINGLE_PHASE

__all__ = ["load_plan", "load_plans", "load_steps", "log_of", "replayed", "settings_of", "source_of"]


_CONTENTS = ("size", "sha256", "etag", "footer_sha256")
_DIFFERS = "the log's size or SHA-256 differs"


def load_steps(path: str | os.PathLike[str], log: str | os.PathLike[str] | None = None) -> Iterator[StepPlan]:
    """Read the step plans of a plan file one by one, all recomputed from placements and lengths, and checked.

    Parameters
    ----------
    path : path
        A plan file or folder, as ``balancer plan --out`` writes it, or ``save`` of a plan.
    log : path, optional
        The log it was made from; by default the one that its description names, looked for from the working folder
        and from beside the plan. A plan that was saved by itself needs none.

    Yields
    ------
    StepPlan
        One a step; of one phase, named ``"all"``, where nobody named phases.

    Raises
    ------
    InputError
        A file that cannot be used, or a log that is not the one the plan was made from.
    PlanError
        A plan that is not complete, or whose digest is not the one it claims.
    """
    plan_file = open_plan(path)
    if is_saved(plan_file):
        yield load_saved(plan_file)
        return
    settings = settings_of(plan_file)
    digest, steps = PlanDigest(settings.steps_per_part), 0
    source = source_of(plan_file, log)
    with _steps_of(source, settings) as rows:
        for plan in replayed(plan_file, source, settings, rows):
            digest.add(plan)
            steps += 1
            yield plan
    if digest.hexdigest() != plan_file.description.get("digest"):
        raise PlanError(f"{path}: the digest of its {steps} steps is {digest.hexdigest()}, not what it says")


@contextmanager
def _steps_of(log: LengthLog, settings: LogSettings) -> Iterator[Iterator[Rows]]:
    """Read the steps of a log; a shuffled one that is too long to be held is sorted into files first."""
    counts = None if settings.shuffle is None else rows_of_files(log)
    with sorted_rows(log, counts, settings, Serial(), None) as files:
        stretches = None
        if files is not None and counts is not None:
            parts = parts_of(log, counts, settings, files)
            stretches = [stretch for part in parts for stretch in part.stretches or ()]
        yield rows_of_steps(log, settings, stretches=stretches)


def settings_of(plan_file: PlanFile) -> LogSettings:
    """Return how a log was planned, as the description has it; checked."""
    try:
        settings = LogSettings.from_json(plan_file.description)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise unreadable(plan_file, error) from None
    if settings.setup.several_items and "item" not in plan_file.columns:
        raise PlanError(f"{plan_file.path}: has no column 'item', though its phases have several items a sample")
    return settings


def load_plans(path: str | os.PathLike[str], log: str | os.PathLike[str] | None = None) -> Iterator[DispatchPlan]:
    """Read the plans of a plan file of one phase one by one; as :func:`load_steps`, but for the plans themselves.

    Parameters
    ----------
    path, log : str or path
        As of :func:`load_steps`.

    Yields
    ------
    DispatchPlan
        One a step.

    Raises
    ------
    InputError, PlanError
        As :func:`load_steps`; a file of several phases.
    """
    if (names := _phase_names(open_plan(path))) != [SINGLE_PHASE]:
        raise InputError(
            f"{path}: plans several phases ({', '.join(map(str, names))}); use balancer.load_steps(path), and "
            "plan['NAME'] of each step for one phase"
        )
    for plan in load_steps(path, log):
        yield plan[SINGLE_PHASE]


def load_plan(
    path: str | os.PathLike[str], step: int | None = None, log: str | os.PathLike[str] | None = None
) -> DispatchPlan | StepPlan:
    """Read one plan from a plan file; the whole file is read and checked, so for many steps use :func:`load_steps`.

    Parameters
    ----------
    path : path
        Written by ``save`` of a plan, or ``balancer plan --out``.
    step : int, optional
        Which step; needed where the file holds more than one.
    log : path, optional
        The log that the plan was made from, if it is not where the plan says.

    Returns
    -------
    DispatchPlan or StepPlan
        A step plan where there are several phases.

    Raises
    ------
    InputError
        A file that cannot be used; a step that is not there, or not given where there are several.
    PlanError
        A plan that does not hold what it claims.
    """
    plan_file = open_plan(path)
    steps = plan_file.description.get("steps")
    if step is None and steps != 1:
        raise InputError(f"{path}: holds {steps} steps; say which, as load_plan(path, step=0)")
    step = 0 if step is None else step
    if step < 0:
        raise InputError(f"{path}: step must be >= 0, got {step}")
    wanted = None
    for number, plan in enumerate(load_steps(path, log)):  # to the end, where the digest of all steps is checked
        if number == step:
            wanted = plan
    if wanted is None:
        raise InputError(f"{path}: has no step {step}")
    return wanted[SINGLE_PHASE] if wanted.is_single else wanted


def log_of(path: str | os.PathLike[str]) -> str | None:
    """Return the log that a plan file says it was made from; None where it holds its own lengths."""
    plan_file = open_plan(path)
    return None if is_saved(plan_file) else _named_sources(plan_file)[0]


def _phase_names(plan_file: PlanFile) -> list[object]:
    try:
        return [phase["name"] for phase in plan_file.description["phases"]]
    except (KeyError, TypeError) as error:
        raise unreadable(plan_file, error) from None


def _named_sources(plan_file: PlanFile) -> tuple[str, list[dict[str, object]]]:
    """Return the log that a description names, and what it says of the contents of each of its files."""
    description = plan_file.description
    sources, log = description.get("sources"), description.get("log")
    try:
        files = [{name: source[name] for name in _CONTENTS if name in source} for source in sources or ()]
        log = sources[0]["file"] if log is None and sources is not None and len(files) == 1 else log
    except (AttributeError, LookupError, TypeError):
        log = None
    if not isinstance(log, str) or not files:
        raise InputError(f"{plan_file.path}: its description does not name the log it was made from")
    return log, files


def source_of(plan_file: PlanFile, log: str | os.PathLike[str] | None) -> LengthLog:
    """Open the log that a plan file was made from, which must be the same to the byte."""
    name, wanted = _named_sources(plan_file)
    if log is None:
        recorded = as_path(name)
        beside = as_path(plan_file.path).parent / recorded.name
        log = recorded if _is_there(recorded) else beside
        if not _is_there(log):
            raise InputError(
                f"{plan_file.path}: the log it was made from, {on_a_line(recorded)}, is not there; give it as --log"
            )
    # Before anything of a file is read that an error could quote: a plan may name any file there is.
    files = files_of(log)
    same = len(files) == len(wanted)
    try:
        for file, contents in zip(files, wanted, strict=False):
            if not is_remote(file):
                check_regular(file)
                same = same and file.stat().st_size == contents.get("size")
            same = same and contents_of(file) == contents
    except OSError as error:
        raise InputError(f"{plan_file.path}: its log {on_a_line(log)} cannot be read: {error.strerror}") from None
    if not same:
        raise InputError(f"{plan_file.path}: was not made from {on_a_line(log)}: {_DIFFERS}")
    return open_log(log)


def _is_there(log: Path) -> bool:
    """Whether there are files by this name: one, or those of a folder or a pattern."""
    try:
        return all(exists(file) if is_remote(file) else file.is_file() for file in files_of(log))
    except InputError:
        return False


class _OfStep(Claims):
    """What a plan file says of one step."""

    def __init__(self, fell_back: FellBack, number: int) -> None:
        self._fell_back, self._number = fell_back, number

    def fell_back(self, phase: str) -> str:
        return self._fell_back.of(phase, self._number)


def replayed(plan_file: PlanFile, log: LengthLog, settings: LogSettings, read: Iterable[Rows]) -> Iterator[StepPlan]:
    """Yield the plans of some steps, given their rows in the log; a plan file has those steps and no others."""
    steps, placed, fell_back = Steps(log, settings), plan_file.whole_steps(), FellBack(plan_file)
    number = -1
    for rows in read:
        step, number = steps.of(rows), rows.number
        found: dict[str, PlanStep] = {}
        if any(len(items.lengths) for items in step.items):  # a step whose samples are all left out has no rows
            at, found = next(placed, (None, {}))
            if at != number:
                raise PlanError(f"{plan_file.path}: step {number} is missing")
        where = f"{plan_file.path}: step {number}"
        with of_plan(where):
            plan = replay_step(where, step, found, _OfStep(fell_back, number), rows.first_row)
        yield plan
    if number >= 0 and next(placed, None) is not None:
        raise PlanError(f"{plan_file.path}: has more steps than the log, which ends at step {number}")
