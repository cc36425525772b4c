"""From what is said of a step to a log that is open, its settings, and the lines that tell them."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from balancer.errors import InputError
from balancer.io.log import LengthLog, choose_length, open_log
from balancer.io.log_files import LogPath
from balancer.offline.across import step_settings_of
from balancer.offline.engines import Who, cores
from balancer.offline.of_step import OfModels, settings_of_step
from balancer.offline.ray_executor import RayExecutor
from balancer.offline.settings import LogSettings
from balancer.offline.steps import plan_log, read_rows
from balancer.plan.step_plan import StepPlan
from balancer.problem.phases import SINGLE_PHASE
from balancer.report.text import counted, of_costs
from balancer.step import StepFile
from solvers import USES_CLOCK
from solvers.errors import SolverError, WordedError

_READY_BUDGET = 0.1  # seconds' worth of work in the first plan, at most


@dataclass(frozen=True, slots=True)
class Job:
    """A log, how it is planned, and the lines that tell this and the assumptions where options are missing."""

    log: LengthLog
    settings: LogSettings
    title: str

    @property
    def num_samples(self) -> int:
        """Samples of all epochs."""
        rows = len(read_rows(self.log, self.settings))
        return rows * self.settings.epochs - self.settings.first_sample


def open_job(log: LogPath | LengthLog, step: StepFile, of_models: OfModels | None = None, **of_log: Any) -> Job:
    """Open a log that is planned by what is said of its steps, and make its first plan, so that kernels are ready."""
    opened = log if isinstance(log, LengthLog) else open_log(log)  # a plan in its place is told before what is missing
    step.need("ranks")
    if step.step_tokens is None:
        step.need("batch_per_rank")
    try:
        settings = settings_of_step(step, opened, of_models=of_models, **of_log)
    except InputError:  # names its file itself
        raise
    except WordedError as error:
        raise (error.within(step.path) if step.path else error) from None
    return Job(opened, settings, _title_of(opened, settings, _first_plan(opened, settings)))


def _first_plan(log: LengthLog, settings: LogSettings) -> StepPlan | None:
    """Plan the first step, which need not be good: it loads kernels, and shows what phases are fed.

    None for methods that read the clock. What cannot be planned raises here as it would later.
    """
    plan, skipped = settings.setup.settings, tuple[type[Exception], ...]()
    hurried = replace(plan, time_budget=min(plan.time_budget, _READY_BUDGET))
    short = replace(settings, setup=replace(settings.setup, settings=hurried))
    if settings.across is not None:
        step_settings_of(settings)  # refuses what cannot be deferred before anything is planned
        short = replace(short, across=None, batch_per_rank=settings.batch_per_rank or 1)
        skipped = (SolverError,)  # a step that nothing is deferred from may hold no plan where the deferred ones do
    with contextlib.suppress(*skipped):
        return None if plan.method in USES_CLOCK else next(plan_log(log, short), None)
    return None


def who_works(engine: str | None, jobs: int | None) -> contextlib.AbstractContextManager[Who | None]:
    """Return a context that gives who works, None where nobody says."""
    if engine != "ray":
        return contextlib.nullcontext(jobs if jobs or engine is None else cores())
    if jobs is not None:
        raise InputError("--jobs is for --engine processes; a Ray cluster has the workers that it has")
    return RayExecutor()


def _title_of(log: LengthLog, settings: LogSettings, first: StepPlan | None) -> str:
    """Return what is planned, in a line, and what is assumed without options, on further lines."""
    phases = settings.setup.phases
    costs = {phase.name: phase.cost.in_words for phase in phases}
    num_ranks = settings.setup.topology.num_ranks
    several = f" and {len(log.files) - 1:,} more" * (log.path == log.files[0] and len(log.files) > 1)
    name, ranks = f"{log.path.name}{several}", f"{counted(num_ranks, 'rank')} x {settings.batch_per_rank}"
    if (across := settings.across) is not None:
        tokens = across.step_tokens
        ranks = ranks if tokens is None else f"{counted(num_ranks, 'rank')}, steps of {counted(tokens, 'token')}"
        if across.window:
            ranks += f", up to {across.early} early and {counted(across.late, 'step')} late"
    if settings.first_epoch or settings.first_sample:
        ranks += f", from sample {settings.first_sample:,} of epoch {settings.first_epoch} on"
    if settings.epochs > 1 or settings.shuffle is not None:
        seed = "" if settings.shuffle is None else f", shuffled by {settings.shuffle}"
        ranks += f", {counted(settings.epochs, 'epoch')}{seed}"
    if tuple(phase.name for phase in phases) == (SINGLE_PHASE,):
        columns = choose_length(log, phases[0].length)
        lists = set(columns) & set(log.list_columns)
        told = f"{phases[0].length}{' (as many as a list has values)' if lists else ''}"
        return f"{name}: {told}, {ranks}, {costs[SINGLE_PHASE]}"
    by_default = all(phase.bytes_in == phase.bytes_out == 1 for phase in phases)
    unit = "; 1 byte an element (no bytes_in, bytes_out given)" if by_default else ""
    lines = [f"{name}: {', '.join(phase.name for phase in phases)}, {ranks}{unit}", of_costs(costs)]
    silent = [phase.name for phase in phases[:-1] if phase.outputs is None]
    if silent:
        put = "puts out" if len(silent) == 1 else "put out"
        lines.append(f"{', '.join(silent)}: {put} as many elements as taken in (no outputs given)")
    # simulate prices phases by their models; who plans by the same file should not think that this does, too.
    if by_length := {phase.name: phase.model for phase in phases if phase.model and str(phase.cost) == "linear"}:
        by_flops = ", ".join(f'"flops:{model}"' for model in by_length.values())
        lines.append(f"{', '.join(by_length)}: planned by length; by the FLOPs of the model with cost = {by_flops}")
    return "\n".join((*lines, *(_overfed(first) if first is not None else ())))


def _overfed(plan: StepPlan) -> Iterator[str]:
    """Say of the last phase without ``--own`` that it is fed more than its length, as far as the first step shows."""
    *encoders, last = (phase.items for phase in plan.phases.values())
    if last.phase.own is not None:
        return
    fed, name = np.zeros(plan.num_samples, dtype=np.int64), last.phase.name
    for items in encoders:
        np.add.at(fed, items.sample_of_item, items.outputs)
    if over := int((fed > last.lengths).sum()):
        yield (
            f"{name}: in {over:,} of the first {plan.num_samples:,} samples it is fed more than its length: check "
            f"outputs, and that phase.{name}.length counts what it is fed, or say with own what it has besides"
        )
