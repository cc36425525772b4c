"""From what is said of a step to a log that is open, its settings, and the lines that tell them."""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from balancer.cli.run import READY_BUDGET, make_ready
from balancer.cost import parse_cost
from balancer.errors import InputError
from balancer.io.log_files import LogPath
from balancer.io.logs import LengthLog, choose_length, open_log
from balancer.offline.across import request_of
from balancer.offline.engines import ENGINES, Cluster, Engine, Processes, Serial
from balancer.offline.of_step import OfModels, settings_of_step
from balancer.offline.settings import LogSettings
from balancer.offline.steps import plan_log
from balancer.plan.step_plan import StepPlan
from balancer.planning.strategies import strategies_for
from balancer.problem.phases import SINGLE_PHASE
from balancer.report.text import counted, of_costs
from balancer.step import StepFile
from solvers.arguments import as_count
from solvers.errors import SolverError, WordedError


@dataclass(frozen=True, slots=True)
class Job:
    """A log, how it is planned, and the lines that tell this and the assumptions where options are missing."""

    log: LengthLog
    settings: LogSettings
    title: str


def open_job(log: LogPath, step: StepFile, of_models: OfModels | None = None, **of_log: Any) -> Job:
    """Open a log that is planned by what is said of its steps, and make its first plan, so that kernels are ready."""
    step.need("ranks")
    if step.batch_per_rank is None and step.step_tokens is None:
        step.need("batch_per_rank")
    opened = open_log(log)
    try:
        settings = settings_of_step(step, opened, of_models=of_models, **of_log)
    except InputError:  # names its file itself
        raise
    except WordedError as error:
        raise (error.within(step.path) if step.path else error) from None
    plan = settings.setup.settings
    # The first plan loads kernels, and shows what phases are fed. It need not be good.
    hurried = replace(plan, time_budget=min(plan.time_budget, READY_BUDGET))
    short = replace(settings, setup=replace(settings.setup, settings=hurried))
    if settings.across is None:
        first = make_ready(plan_log(opened, short), plan.method)
    else:
        request_of(settings)  # refuses what cannot be deferred before anything is planned
        short, first = replace(short, across=None, batch_per_rank=settings.batch_per_rank or 1), None
        # A step that nothing is deferred from may hold no plan where the deferred ones do
        with contextlib.suppress(SolverError):
            first = make_ready(plan_log(opened, short), plan.method)
    return Job(opened, settings, _title_of(opened, settings, first))


def engine_of(options: dict[str, Any]) -> Engine | None:
    """Take who works out of all options; None where nobody says."""
    name, jobs, address = (options.pop(each) for each in ("engine", "jobs", "address"))
    if name is None and jobs is None and address is None:
        return None
    if jobs is not None:
        as_count("jobs", jobs)
    if address is not None and name not in (None, "ray"):
        raise InputError(f"--address is for --engine ray, not {name}")
    # Only Ray's cluster has an address, so the address alone names the engine.
    name = "ray" if address is not None else name
    name = name or ("processes" if jobs > 1 else "serial")
    if name not in ENGINES:
        raise InputError(f"unknown --engine {name!r}; known engines are {', '.join(ENGINES)}")
    if name == "serial":
        if jobs not in (None, 1):
            raise InputError(f"--jobs {jobs} is for --engine processes; serial works alone")
        return Serial()
    if name == "ray":
        if jobs is not None:
            raise InputError("--jobs is for --engine processes; a Ray cluster has the workers that it has")
        return Cluster(address)
    return Processes(jobs)


def chosen_strategies(text: str | None, settings: LogSettings) -> tuple[str, ...]:
    """Read ``--strategies``, each name once."""
    if text is None:
        return strategies_for(settings.setup)
    return tuple(dict.fromkeys(name.strip() for name in text.split(",")))


def unconstrained(settings: LogSettings, chosen: Iterable[str]) -> Iterator[str]:
    """Yield a line if some of these strategies ignore constraints of the phases."""
    phases = settings.setup.phases
    # `every_rank_nonempty` is a wish: it holds where it can, so leaving it out breaks no promise.
    asking = [phase for phase in phases if set(phase.constraints) - {"every_rank_nonempty"}]
    # Of each strategy, the phases whose samples it leaves where they were drawn.
    staying = {"as_sampled": asking, "llm_only": [phase for phase in asking if phase is not phases[-1]]}
    if names := [name for name in chosen if staying.get(name)]:
        asked = dict.fromkeys(name for phase in asking for name in phase.constraints if name != "every_rank_nonempty")
        which = " and ".join(asked)
        yield (
            f"{which} hold for phases that are balanced; {', '.join(names)} "
            f"leave{'s' * (len(names) == 1)} some where they lie."
        )


def _title_of(log: LengthLog, settings: LogSettings, first: StepPlan | None) -> str:
    """Return what is planned, in a line, and what is assumed without options, on further lines."""
    phases = settings.setup.phases
    costs = {phase.name: parse_cost(phase.cost).in_words for phase in phases}
    num_ranks = settings.setup.topology.num_ranks
    several = f" and {len(log.files) - 1:,} more" * (log.path == log.files[0] and len(log.files) > 1)
    name, ranks = f"{log.path.name}{several}", f"{counted(num_ranks, 'rank')} x {settings.batch_per_rank}"
    if (across := settings.across) is not None:
        tokens = across.step_tokens
        ranks = ranks if tokens is None else f"{counted(num_ranks, 'rank')}, steps of {counted(tokens, 'token')}"
        if across.early or across.late:
            ranks += f", up to {across.early} early and {counted(across.late, 'step')} late"
    if settings.first_epoch or settings.first_sample:
        ranks += f", from sample {settings.first_sample:,} of epoch {settings.first_epoch} on"
    if settings.epochs > 1 or settings.shuffle is not None:
        seed = "" if settings.shuffle is None else f", shuffled by {settings.shuffle}"
        ranks += f", {counted(settings.epochs, 'epoch')}{seed}"
    if tuple(phase.name for phase in phases) == (SINGLE_PHASE,):
        columns = () if "(" in phases[0].items else choose_length(log, phases[0].items)
        lists = set(columns) & set(log.list_columns)
        told = f"{phases[0].items}{' (values of a list)' if lists else ''}"
        return f"{name}: {told}, {ranks}, {costs[SINGLE_PHASE]}"
    by_default = all(phase.bytes_in == phase.bytes_out == 1 for phase in phases)
    unit = "; 1 byte an element (no bytes_in, bytes_out given)" if by_default else ""
    lines = [f"{name}: {', '.join(phase.name for phase in phases)}, {ranks}{unit}", of_costs(costs)]
    silent = [phase.name for phase in phases[:-1] if phase.outputs is None]
    if silent:
        put = "puts out" if len(silent) == 1 else "put out"
        lines.append(f"{', '.join(silent)}: {put} as many elements as taken in (no outputs given)")
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
