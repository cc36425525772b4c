"""Plan files in, plans out: replayed from the log that they were made from, or from the lengths that they hold."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from balancer.errors import InputError, PlanError, on_a_line
from balancer.io._atomic import check_regular
from balancer.io.log import LengthLog, open_log
from balancer.io.log_files import LogPath, files_of
from balancer.io.plan_reader import open_plan
from balancer.io.plan_rows import PlanStep
from balancer.io.store import as_path, exists, is_remote
from balancer.offline.across import OnEpoch, SavedSteps
from balancer.offline.claims import Claims, table_in
from balancer.offline.description import contents_of, digest_of
from balancer.offline.replay import of_plan, replay_step
from balancer.offline.saved import load_saved
from balancer.offline.settings import LogSettings
from balancer.offline.step_table import StepRows
from balancer.offline.steps import Rows, Steps, rows_of_steps
from balancer.plan.dispatch_plan import DispatchPlan
from balancer.plan.step_plan import StepPlan
from balancer.problem.phases import SINGLE_PHASE
from solvers.arguments import as_integer

_DIFFERS = "the log's size or SHA-256 differs"


def load_steps(path: str | os.PathLike[str]) -> pa.Table:
    """Read the table of steps of a plan file: a row a step and phase, with what was found when it was planned.

    Parameters
    ----------
    path : path
        A plan file or folder, as ``balancer plan --out`` writes it, or ``save`` of a plan.

    Returns
    -------
    pyarrow.Table
        Its columns are those of ``balancer.offline.step_table.COLUMNS``. Nothing is planned again or checked, which
        is what ``balancer report`` does.

    Raises
    ------
    InputError
        A file that cannot be used, or that has no table.

    Examples
    --------
    >>> import os, tempfile
    >>> import balancer
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "plan.parquet")
    ...     balancer.balance([900, 400, 100, 600], num_ranks=2).save(path)
    ...     balancer.load_steps(path).select(["step", "phase", "samples", "makespan"]).to_pylist()
    [{'step': 0, 'phase': 'all', 'samples': 4, 'makespan': 1000}]
    """
    plan_file = open_plan(path)
    if Claims(plan_file).is_saved:
        rows = StepRows()
        rows.add(0, load_saved(plan_file))
        return rows.table()
    return pa.concat_tables([table_in(plan_file, i) for i in range(len(plan_file.parts))])


def checked_steps(
    path: str | os.PathLike[str], log: str | os.PathLike[str] | None = None, on_epoch: OnEpoch = lambda _: None
) -> Iterator[StepPlan]:
    """Read the step plans of a plan file one by one, all recomputed from placements and lengths, and checked.

    Parameters
    ----------
    path : path
        A plan file or folder, as ``balancer plan --out`` writes it, or ``save`` of a plan.
    log : path, optional
        The log it was made from; by default the one that its description names, looked for from the working folder
        and from beside the plan. A plan that was saved by itself needs none.
    on_epoch : callable, optional
        Called with what was found for each epoch whose samples run early or late.

    Yields
    ------
    StepPlan
        One for each step; with one phase, named ``"all"``, if phases have no names.

    Raises
    ------
    InputError
        A file that cannot be used, or a log that is not the one the plan was made from.
    PlanError
        A plan that is not complete, or whose digest is not the one it claims.
    """
    claims = Claims(open_plan(path))
    if claims.is_saved:
        yield load_saved(claims.plan_file)
        return
    settings = claims.settings
    digests = list[str]()
    source = source_of(claims, log)
    saved = None if settings.across is None else SavedSteps(claims.plan_file)
    for plan in replayed(claims, source, settings, rows_of_steps(source, settings, saved=saved, on_epoch=on_epoch)):
        digests.append(plan.digest())
        yield plan
    claims.check_digest(digest_of(digests, settings.steps_per_part), len(digests))


def load_plan(
    path: str | os.PathLike[str], step: int | None = None, log: str | os.PathLike[str] | None = None
) -> DispatchPlan | StepPlan:
    """Read one plan from a plan file; of many steps that one alone is read and checked.

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
        A claim of the plan is false, or a rule is broken. The digest, which tells whether samples are where they were
        written, is of all steps: ``balancer report`` checks it, and here changes within the rules are read.
    """
    claims = Claims(open_plan(path))
    steps = claims.num_steps
    if step is None and steps != 1:
        raise InputError(f"{path}: holds {steps} steps; say which, as load_plan(path, step=0)")
    step = as_integer("step", 0 if step is None else step)
    if not isinstance(steps, int) or step >= steps:
        raise InputError(f"{path}: has no step {step}")
    if claims.is_saved:
        plan = load_saved(claims.plan_file)
    elif steps == 1 or claims.settings.across is not None:  # which step a sample is of depends on all steps
        plan = list(checked_steps(path, log))[step]  # to the end, where the digest is checked
    else:
        settings, source, span = claims.settings, source_of(claims, log), (step, step + 1)
        (plan,) = replayed(claims, source, settings, rows_of_steps(source, settings, steps=span), span)
    return plan[SINGLE_PHASE] if plan.is_single else plan


def log_of(path: str | os.PathLike[str]) -> str | None:
    """Return the log that a plan file says it was made from; None where it holds its own lengths."""
    claims = Claims(open_plan(path))
    return None if claims.is_saved else claims.sources[0][0]


def source_of(claims: Claims, log: LogPath | None) -> LengthLog:
    """Open the log that a plan file was made from, which must be the same to the byte."""
    (named, wanted), path = claims.sources, claims.plan_file.path
    if log is None:
        recorded = [as_path(name) for name in named]
        beside = [as_path(path).parent / one.name for one in recorded]
        log = recorded if all(map(_is_there, recorded)) else beside
        if not all(map(_is_there, log)):
            raise InputError(f"{path}: the log it was made from, {on_a_line(named[0])}, is not there; give it as --log")
    shown = on_a_line(log if isinstance(log, str | os.PathLike) else log[0])
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
        raise InputError(f"{path}: its log {shown} cannot be read: {error.strerror}") from None
    if not same:
        raise InputError(f"{path}: was not made from {shown}: {_DIFFERS}")
    return open_log(log)


def _is_there(log: Path) -> bool:
    """Whether there are files by this name: one, or those of a folder or a pattern."""
    try:
        return all(exists(file) if is_remote(file) else file.is_file() for file in files_of(log))
    except InputError:
        return False


def replayed(
    claims: Claims,
    log: LengthLog,
    settings: LogSettings,
    read: Iterable[Rows],
    span: tuple[int | None, int | None] = (None, None),
) -> Iterator[StepPlan]:
    """Yield the plans of some steps, given their rows in the log; a plan file has those and no others in its `span`."""
    steps, plan_file, number = Steps(log, settings), claims.plan_file, -1
    placed = plan_file.whole_steps(*span)
    for rows in read:
        step, number = steps.of(rows), rows.number
        at, found = next(placed, (None, dict[str, PlanStep]()))
        if at != number:
            raise PlanError(f"{plan_file.path}: step {number} is missing")
        where = f"{plan_file.path}: step {number}"
        with of_plan(where):
            plan = replay_step(where, step, found, claims.of_step(number), rows.first_row)
        yield plan
    if number >= 0 and next(placed, None) is not None:
        raise PlanError(f"{plan_file.path}: has more steps than the log, which ends at step {number}")
