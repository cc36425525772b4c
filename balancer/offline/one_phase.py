"""Offline planning: a log of lengths in, a plan for every step out; and back, a plan file replayed and checked.

A plan file's description holds the settings that planned it, so that a plan can be replayed from the two files.
"""

import hashlib
import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer._version import __version__
from balancer.cost import parse_cost
from balancer.errors import InputError, PlanError
from balancer.io.logs import LengthLog, choose_length, file_sha256, open_log, read_columns, unit_of
from balancer.io.plan_reader import PlanFile, PlanStep, open_plan
from balancer.offline.settings import LogSettings
from balancer.plan.dispatch_plan import SINGLE_PHASE, DispatchPlan
from balancer.plan.reasons import Reasons
from balancer.plan.step_plan import StepPlan
from balancer.planning.planner import plan_problem, replay_plan
from balancer.planning.ranks import effective, why_not_relocate
from balancer.problem.batch import HOMES, GlobalBatch, global_batches
from balancer.problem.block import Block
from balancer.problem.constraints import Constraints
from balancer.problem.micro_batches import MicroBatches
from balancer.problem.placement import Placement
from balancer.problem.problem import Problem
from balancer.problem.smallest_cap import AskedCap, most_needed
from balancer.problem.topology import Topology
from solvers.bounds import Bound
from solvers.errors import SolverError
from solvers.types import SolveStatus
from solvers.verify import TRUSTED_BOUNDS

__all__ = [
    "FellBack",
    "Homes",
    "PlanDigest",
    "Slots",
    "caps_of",
    "checked_target",
    "describe",
    "describe_source",
    "holds_phases",
    "load_plan",
    "load_plans",
    "log_of",
    "plan_log",
    "source_of",
]


class Homes:
    """Home placements by batch size; a log has two at most, full and last."""

    def __init__(self, home: str, num_ranks: int, batch_per_rank: int) -> None:
        self._home, self._num_ranks, self._batch_per_rank = home, num_ranks, batch_per_rank
        self._known: dict[int, Placement] = {}

    def of(self, num_samples: int) -> Placement:
        """Return where so many samples lie before dispatch."""
        if num_samples not in self._known:
            self._known[num_samples] = HOMES[self._home](num_samples, self._num_ranks, self._batch_per_rank)
        return self._known[num_samples]


def _blocks(log: LengthLog, settings: LogSettings) -> Iterator[Block]:
    """Read the columns that the settings name: lengths, capped quantities, keys and lists."""
    sums = {SINGLE_PHASE: settings.columns}
    sums |= {f"cap {columns}": choose_length(log, columns) for columns, _ in settings.caps}
    keys = () if settings.keep_together is None else (settings.keep_together,)
    lists = () if settings.allowed_ranks is None else (settings.allowed_ranks,)
    return read_columns(log, sums, keys, lists)


def _constraints(block: Block, settings: LogSettings) -> Constraints:
    """Put the constraints of one step together."""
    num_ranks = settings.topology.num_ranks
    mask = None
    if settings.allowed_ranks is not None:
        allowed = block.lists[settings.allowed_ranks]
        if (outside := allowed.values >= num_ranks).any():
            row = block.first_row + int(allowed.row_of_value[np.argmax(outside)])
            rank = allowed.values[np.argmax(outside)]
            raise ValueError(
                f"{settings.allowed_ranks} of row {row} must be ranks within 0..{num_ranks - 1}, got {rank}"
            )
        mask = np.zeros((len(block), num_ranks), dtype=np.bool_)
        mask[allowed.row_of_value, allowed.values] = True
    return Constraints.of(
        len(block),
        num_ranks,
        keep_together=None if settings.keep_together is None else block.keys[settings.keep_together],
        caps={columns: (block.sums[f"cap {columns}"], limit) for columns, limit in settings.caps},
        allowed_ranks=mask,
        **settings.constraints_of_ranks(),
    )


def _problems(log: LengthLog, settings: LogSettings) -> Iterator[Problem]:
    """Yield the problem of each step of a log."""
    homes = Homes(settings.home, settings.topology.num_ranks, settings.batch_per_rank)
    for block in global_batches(_blocks(log, settings), settings.samples_per_step, settings.drop_last):
        batch = GlobalBatch(block.sums[SINGLE_PHASE], homes.of(len(block)), block.first_row)
        try:
            constraints = _constraints(block, settings)
            problem = Problem.of(batch, settings.topology, settings.cost, constraints, settings.micro_batches)
        except ValueError as error:
            raise InputError(f"{log.path}: {'+'.join(settings.columns)}: {error}") from None
        yield problem


def plan_log(log: LengthLog, settings: LogSettings) -> Iterator[DispatchPlan]:
    """Plan every global batch of a log, one after the other; memory does not grow with the log.

    Raises
    ------
    InputError
        A row that cannot be used.
    InfeasibleError, SolverError
        A step that no plan, or none that was found, satisfies; the message names the step.
    """
    problems = _problems(log, settings)
    for step in itertools.count():
        try:
            problem = next(problems, None)
            if problem is None:
                return
            plan = plan_problem(problem, settings.method, settings.time_budget, settings.placement, settings.eps)
        except SolverError as error:
            further = _most_needed(log, settings, step)
            raise type(error)(f"{log.path}: step {step}: {error}{further}") from None
        yield plan


def _most_needed(log: LengthLog, settings: LogSettings, failed: int) -> str:
    """Say which step further on needs the largest caps."""
    num_ranks = settings.topology.num_ranks
    asked = caps_of(SINGLE_PHASE, settings.max_tokens_per_rank, settings.micro_batches, num_ranks)
    if not asked:
        return ""
    blocks = read_columns(log, {SINGLE_PHASE: settings.columns})
    steps = global_batches(blocks, settings.samples_per_step, settings.drop_last)
    return most_needed(asked, (block.sums for block in steps), failed)


def caps_of(
    phase: str, max_tokens: int | None, micro_batches: MicroBatches | None, num_ranks: int, name: str = ""
) -> list[AskedCap]:
    """Return the caps on the tokens of a phase."""
    asked = [] if max_tokens is None else [AskedCap(phase, f"max_tokens_per_rank{name}", max_tokens, num_ranks)]
    if micro_batches is not None and micro_batches.over_long == "error":
        count = micro_batches.count
        bins = num_ranks * count if isinstance(count, int) else None
        asked.append(AskedCap(phase, "micro_batch_tokens", micro_batches.max_tokens, bins))
    return asked


class PlanDigest:
    """The digest of a plan file: SHA-256 over the digests of its plans in order; and what no replay can find out."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._steps = 0
        self._reasons: dict[str, Reasons] = {}
        self._runs: dict[tuple[str, tuple[str, ...]], list[list[int]]] = {}

    def add(self, plan: DispatchPlan | StepPlan) -> None:
        """Take in the next plan."""
        self._hash.update(bytes.fromhex(plan.digest()))
        one = {SINGLE_PHASE: plan} if isinstance(plan, DispatchPlan) else {}
        plans = one if isinstance(plan, DispatchPlan) else {name: phase.plan for name, phase in plan.phases.items()}
        for name, phase in plans.items():
            if phase.fell_back:
                kind = self._reasons.setdefault(name, Reasons()).add(phase.fell_back)
                runs = self._runs.setdefault((name, kind), [])
                if runs and runs[-1][1] == self._steps - 1:
                    runs[-1][1] = self._steps
                else:
                    runs.append([self._steps, self._steps])
        self._steps += 1

    @property
    def fell_back(self) -> dict[str, dict[str, list[list[int]]]]:
        """Of each phase why samples were not relocated, and in which steps: first and last of each run.

        Reasons that differ in a percentage alone are one, told with its range: so there are few.
        """
        return {
            name: {text: self._runs[name, kind] for kind, text in reasons.told().items()}
            for name, reasons in self._reasons.items()
        }

    def hexdigest(self) -> str:
        """Digest of the plans so far."""
        return self._hash.hexdigest()


def describe(log: LengthLog, settings: LogSettings, steps: int, samples: int, digest: PlanDigest) -> dict[str, Any]:
    """Return the description that goes into a plan file: enough to replay it from the log."""
    described = settings.to_json() | describe_source(log, steps, samples, digest)
    described["source"]["unit"] = unit_of(log, settings.columns)
    return described


def describe_source(log: LengthLog, steps: int, samples: int, digest: PlanDigest) -> dict[str, Any]:
    """Return the part of a description that says what was planned, and with which result."""
    return {
        "source": {"file": str(log.path), "sha256": file_sha256(log.path), "format": log.format},
        "steps": steps,
        "samples": samples,
        "digest": digest.hexdigest(),
        "version": __version__,
        **({"fell_back": digest.fell_back} if digest.fell_back else {}),
    }


class FellBack:
    """Why a plan file says that samples were not relocated, by phase and step."""

    def __init__(self, plan_file: PlanFile) -> None:
        self._runs: dict[str, list[tuple[int, int, str]]] = {}
        try:
            for phase, reasons in plan_file.description.get("fell_back", {}).items():
                runs = [(int(first), int(last), reason) for reason, of in reasons.items() for first, last in of]
                self._runs[phase] = sorted(runs)
        except (AttributeError, TypeError, ValueError) as error:
            raise InputError(f"{plan_file.path}: its description is not one this version reads: {error!r}") from None

    def of(self, phase: str, step: int) -> str:
        """Return why in this step, empty if they were; steps are asked for in order."""
        runs = self._runs.get(phase, [])
        while runs and runs[0][1] < step:
            runs.pop(0)
        return runs[0][2] if runs and runs[0][0] <= step else ""


def load_plans(path: str | os.PathLike[str], log: str | os.PathLike[str] | None = None) -> Iterator[DispatchPlan]:
    """Read the plans of a plan file one by one, everything recomputed from placements and lengths, and checked.

    Parameters
    ----------
    path : path
        A plan file or folder.
    log : path, optional
        The log it was made from; by default the one that its description names, looked for from the working folder
        and from beside the plan. A plan saved by :meth:`DispatchPlan.save` needs none.

    Yields
    ------
    DispatchPlan
        One a step.

    Raises
    ------
    InputError
        A file that cannot be used, or a log that is not the one the plan was made from.
    PlanError
        A plan that is not complete, or whose digest is not the one it claims.
    """
    plan_file = open_plan(path)
    if isinstance(plan_file.description.get("phases"), list):
        raise InputError(
            f"{path}: plans several phases; use balancer.load_steps(path), and plan['NAME'] of each step for one phase"
        )
    digest = PlanDigest()
    steps = 0
    if {"length", "home_rank"} <= set(plan_file.columns):
        plan = _self_contained(plan_file)
        if plan.digest() != plan_file.description.get("digest"):
            raise PlanError(f"{path}: the plan's digest is {plan.digest()}, not what its description says")
        yield plan
        return
    for plan in _replay_log(plan_file, log):
        digest.add(plan)
        steps += 1
        yield plan
    if digest.hexdigest() != plan_file.description.get("digest"):
        raise PlanError(f"{path}: the digest of its {steps} steps is {digest.hexdigest()}, not what it says")


def holds_phases(path: str | os.PathLike[str]) -> bool:
    """Whether a plan file plans several phases: then :func:`balancer.load_steps` reads it."""
    return isinstance(open_plan(path).description.get("phases"), list)


def log_of(path: str | os.PathLike[str]) -> str | None:
    """Return the log that a plan file says it was made from; None where it holds its own lengths."""
    source = open_plan(path).description.get("source")
    return str(source["file"]) if isinstance(source, dict) and "file" in source else None


def _settings_of(plan_file: PlanFile) -> LogSettings:
    try:
        return LogSettings.from_json(plan_file.description)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{plan_file.path}: its description is not one this version reads: {error!r}") from None


def source_of(plan_file: PlanFile, log: str | os.PathLike[str] | None) -> LengthLog:
    """Open the log that a plan file was made from, which must be the same to the byte."""
    source = plan_file.description.get("source")
    if not isinstance(source, dict) or not isinstance(source.get("file"), str):
        raise InputError(f"{plan_file.path}: its description does not name the log it was made from")
    if log is None:
        recorded = Path(source["file"])
        beside = Path(plan_file.path).parent / recorded.name
        log = recorded if recorded.is_file() else beside
        if not log.is_file():
            raise InputError(f"{plan_file.path}: the log it was made from, {recorded}, is not there; give it as --log")
    opened = open_log(log)
    if file_sha256(opened.path) != source.get("sha256"):
        raise InputError(f"{plan_file.path}: was not made from {opened.path}: the log's SHA-256 differs")
    return opened


def _replay_log(plan_file: PlanFile, log: str | os.PathLike[str] | None) -> Iterator[DispatchPlan]:
    settings = _settings_of(plan_file)
    placed, fell_back = iter(plan_file.steps()), FellBack(plan_file)
    step = 0
    for step, problem in enumerate(_problems(source_of(plan_file, log), settings)):
        placements = next(placed, None) if len(problem.costs) else _nothing(step)
        if placements is None or placements.step != step:
            raise PlanError(f"{plan_file.path}: step {step} is missing")
        target, slots = _target(plan_file, placements, problem)
        plan = replay_plan(problem, target, settings.method, settings.time_budget, slots)
        why = ""
        if settings.placement == "relocate":
            why = fell_back.of(SINGLE_PHASE, step) or why_not_relocate(problem)
        yield replace(plan, placement=effective(problem, settings.placement), eps=settings.eps, fell_back=why)
    if next(placed, None) is not None:
        raise PlanError(f"{plan_file.path}: has more steps than the log, which ends at step {step}")


Slots = tuple[NDArray[np.int32], int]
"""The slot of each sample, and how many slots there are."""


def _target(plan_file: PlanFile, placements: PlanStep, problem: Problem) -> tuple[Placement, Slots]:
    """Check that a step places each of its samples exactly once, within the constraints; return where, and slots."""
    where = f"{plan_file.path}: step {placements.step}"
    order = np.argsort(placements.sample, kind="stable")
    expected = problem.batch.numbers
    if not np.array_equal(placements.sample[order], expected):
        missing = np.setdiff1d(expected, placements.sample)
        what = f"sample {missing[0]} is not placed" if len(missing) else "samples are placed twice or belong elsewhere"
        raise PlanError(f"{where}: {what}")
    used = int(placements.slot.max(initial=0)) + 1
    slots = placements.slot[order], used if problem.micro_batches is None else problem.micro_batches.slots_for(used)
    return checked_target(where, placements.rank[order], placements.position[order], slots, problem), slots


def checked_target(
    where: str, rank: NDArray[np.int32], position: NDArray[np.int32], slots: Slots, problem: Problem
) -> Placement:
    """Check that a placement is one, and keeps to the constraints of its problem."""
    topology, num_slots = problem.topology, slots[1]
    most = max(1, len(rank))
    if problem.micro_batches is not None:
        most = problem.micro_batches.slots_for(most)
    if num_slots > most or num_slots * topology.num_ranks >= 2**31:
        raise PlanError(f"{where}: {len(rank)} samples cannot be in {num_slots} micro-batches a rank")
    try:
        target = Placement.checked(rank, topology.num_ranks, position)
    except ValueError as error:
        raise PlanError(f"{where}: {error}") from None
    tokens = problem.cost.tokens(problem.batch.lengths, target.rank_of_sample, topology.num_ranks)
    broken = problem.constraints.violation(target.rank_of_sample, tokens, problem.batch.numbers)
    broken = broken or _broken_slots(problem, target, *slots)
    if broken is not None:
        raise PlanError(f"{where}: {broken}")
    return target


def _broken_slots(problem: Problem, target: Placement, slots: NDArray[np.int32], num_slots: int) -> str | None:
    """Say what is wrong with a step's micro-batches; None if nothing is."""
    if problem.micro_batches is None:
        return "has micro-batch slots, which its description does not mention" if slots.any() else None
    if (slots < 0).any():
        return f"slot must be >= 0, got {slots.min()}"
    ordered, rank = slots[target.samples], target.rank_of_sample[target.samples]
    if ((ordered[1:] < ordered[:-1]) & (rank[1:] == rank[:-1])).any():
        return "a rank's samples must stand in order of their slots"
    ranks = target.rank_of_sample
    return problem.micro_batches.violation(problem.batch.lengths, ranks, slots, target.num_ranks, num_slots)


def _self_contained(plan_file: PlanFile) -> DispatchPlan:
    """Read a plan that holds its own lengths and homes."""
    steps = list(plan_file.steps())
    description = plan_file.description
    try:
        topology = Topology(description["topology"]["node_sizes"])
        cost = parse_cost(description["cost"])
        solver, certificate = description["solver"], description["certificate"]
        method, constraints = str(solver["method"]), dict(solver["constraints"])
        bound = Bound(int(certificate["lower_bound"]), str(certificate["bound_name"]))
        status = SolveStatus(certificate["status"])
        micro_batches = MicroBatches(**description["micro_batches"]) if description["micro_batches"] else None
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{plan_file.path}: its description is not one this version reads: {error!r}") from None
    if len(steps) > 1:
        raise PlanError(f"{plan_file.path}: holds {len(steps)} steps, but a plan with its own lengths has one")
    step = steps[0] if steps else _nothing(0)
    by_sample = np.argsort(step.sample, kind="stable")
    lengths, homes = np.asarray(step.length)[by_sample], np.asarray(step.home_rank)[by_sample]
    try:
        dropped, dropped_lengths = _dropped(description, len(lengths))
        batch = GlobalBatch.of(lengths, topology.num_ranks, homes)
        batch = replace(batch, dropped=dropped, dropped_lengths=dropped_lengths)
        kept = Constraints.of(len(lengths), topology.num_ranks, **constraints)
        problem = Problem.of(batch, topology, cost, kept, micro_batches)
    except ValueError as error:
        raise PlanError(f"{plan_file.path}: {error}") from None
    target, slots = _target(plan_file, step, problem)
    budget = None if micro_batches is None else _SCHEDULE_BUDGET
    plan = replay_plan(problem, target, method, budget, slots)
    return _with_certificate(plan_file, plan, bound, status)


def _dropped(description: Mapping[str, Any], num_kept: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the samples that a plan with its own lengths left out, and their lengths; checked."""
    pairs = description.get("dropped", [])
    size = num_kept + (len(pairs) if isinstance(pairs, list) else 0)
    rule = f"dropped must be distinct samples within 0..{size - 1} in order, each with its length, got {pairs!r:.80}"
    if not isinstance(pairs, list) or any(not isinstance(pair, list) or len(pair) != 2 for pair in pairs):
        raise ValueError(rule)
    dropped = [sample for sample, _ in pairs]
    whole = all(type(number) is int and 0 <= number < 2**63 for pair in pairs for number in pair)
    if not whole or sorted(set(dropped)) != dropped or any(sample >= size for sample in dropped):
        raise ValueError(rule)
    micro_batches = description["micro_batches"]  # which the plan of the way back has none of
    if dropped and micro_batches and micro_batches.get("over_long") != "drop":
        raise ValueError("samples are left out, but not because over_long='drop' asks for it")
    columns = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    return columns[:, 0].copy(), columns[:, 1].copy()


def _nothing(step: int) -> PlanStep:
    """Return the rows of a step whose samples are all left out."""
    long, short = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32)
    return PlanStep(step, SINGLE_PHASE, long, short, short, short, long, short)


_SCHEDULE_BUDGET = 0.01  # seconds' worth: the bound on a schedule comes with a schedule


def _with_certificate(plan_file: PlanFile, plan: DispatchPlan, bound: Bound, status: SolveStatus) -> DispatchPlan:
    """Take over the bound that a file claims: a search may have proven more than a formula can.

    Constraints with a value for each sample are not in the file; what they proved cannot be proven again without.
    """
    if plan_file.description.get("left_out") and bound.value > plan.lower_bound:
        return plan
    if not 0 <= bound.value <= plan.makespan or (bound.name not in TRUSTED_BOUNDS and bound.value > plan.lower_bound):
        raise PlanError(f"{plan_file.path}: claims lower_bound = {bound.value} ('{bound.name}'), which does not hold")
    if (status is SolveStatus.OPTIMAL) != (bound.value == plan.makespan):
        raise PlanError(f"{plan_file.path}: claims status '{status}' with lower_bound = {bound.value}")
    return replace(plan, lower_bound=bound.value, bound_name=bound.name, status=status)


def load_plan(
    path: str | os.PathLike[str], step: int | None = None, log: str | os.PathLike[str] | None = None
) -> DispatchPlan:
    """Read one plan from a plan file; the whole file is read and checked, so for many steps use :func:`load_plans`.

    Parameters
    ----------
    path : path
        Written by :meth:`DispatchPlan.save` or ``balancer plan --out``.
    step : int, optional
        Which step; needed where the file holds more than one.
    log : path, optional
        The log that the plan was made from, if it is not where the plan says.

    Returns
    -------
    DispatchPlan

    Raises
    ------
    InputError
        A file that cannot be used; a step that is not there, or not given where there are several.
    PlanError
        A plan that does not hold what it claims.
    """
    description = open_plan(path).description
    steps = description.get("steps")
    if step is None and steps != 1 and not isinstance(description.get("phases"), list):
        raise InputError(f"{path}: holds {steps} steps; say which, as load_plan(path, step=0)")
    step = 0 if step is None else step
    if step < 0:
        raise InputError(f"{path}: step must be >= 0, got {step}")
    wanted = None
    for number, plan in enumerate(load_plans(path, log)):  # to the end, where the digest of all steps is checked
        if number == step:
            wanted = plan
    if wanted is None:
        raise InputError(f"{path}: has no step {step}")
    return wanted
