"""A plan file that holds its own lengths and homes, as :meth:`balancer.StepPlan.save` writes it, read and checked."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer.errors import PlanError
from balancer.io.plan_reader import PlanFile
from balancer.io.plan_rows import PlanStep
from balancer.offline.description import unreadable
from balancer.offline.replay import Claims, of_plan, replay_step
from balancer.plan.placed import PLACED
from balancer.plan.step_plan import StepPlan
from balancer.planning.step import Step
from balancer.planning.strategies import SHARING, STRATEGIES, with_outputs_home
from balancer.problem.batch import GlobalBatch
from balancer.problem.constraints import PER_SAMPLE
from balancer.problem.phases import Phase, PhaseItems, check_volumes, default_own, feeding
from balancer.problem.ragged import Ragged
from balancer.problem.setup import Setup
from solvers.bounds import Bound
from solvers.types import SolveStatus
from solvers.verify import TRUSTED_BOUNDS

__all__ = ["is_saved", "load_saved"]


def is_saved(plan_file: PlanFile) -> bool:
    """Whether a plan file needs no log."""
    return {"length", "home_rank"} <= set(plan_file.columns)


def load_saved(plan_file: PlanFile) -> StepPlan:
    """Read the one step plan of a file."""
    description, placed = plan_file.description, _rows(plan_file)
    try:
        setup = Setup.from_json(description)
        found = dict(placed)
        for name in (phase.name for phase in setup.phases):
            if name in placed:
                found[name] = PLACED[setup.cut_of(name).name].read(str(plan_file.path), placed[name]).firsts
        claims = _Claimed(plan_file, setup, description["saved"])
        items = _items(setup.phases, found, claims.saved)
        strategy, order = description["strategy"], description["part_order"]
        if strategy not in (known := STRATEGIES | SHARING):
            raise ValueError(f"unknown strategy {strategy!r:.60}; known ones are {', '.join(known)}")
        part_order = None if order is None else Ragged.checked(*map(_whole_numbers, order))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise unreadable(plan_file, error) from None
    with of_plan(str(plan_file.path)):
        batch = _batch(setup, items[-1], found.get(items[-1].phase.name), description)
        plan = replay_step(str(plan_file.path), Step(setup, batch, items), placed, claims, 0, strategy, part_order)
    for each in items:
        name, homes = each.phase.name, batch.home.rank_of_sample[each.sample_of_item]
        if name in found and not np.array_equal(np.asarray(found[name].home_rank), homes):
            raise PlanError(f"{plan_file.path}: phase {name!r} says home ranks that are not those of its samples")
    if plan.digest() != description.get("digest"):
        raise PlanError(f"{plan_file.path}: the plan's digest is {plan.digest()}, not what its description says")
    said = description.get("steps"), description.get("samples"), claims.makespan
    held = 1, plan.num_samples, {name: plan[name].makespan for name in plan.phases}
    if said != held:
        names = "steps, samples and makespans"
        raise PlanError(f"{plan_file.path}: {names} must be {held}, as its rows have them, got {said!r:.200}")
    return with_outputs_home(plan) if strategy == "per_phase_home" else plan


def _rows(plan_file: PlanFile) -> dict[str, PlanStep]:
    """Return the rows of each phase, ordered by sample and item."""
    found: dict[str, PlanStep] = {}
    for run in plan_file.steps():
        if run.step != 0 or run.phase in found:
            raise PlanError(f"{plan_file.path}: holds several steps, but a plan with its own lengths has one")
        item = np.zeros(len(run.sample), dtype=np.int32) if run.item is None else run.item
        order = np.lexsort((item, run.sample))
        names = ("sample", "rank", "slot", "position", "length", "home_rank", "start", "stop", "group", "device",
                 "backward")  # fmt: skip
        there = {name: getattr(run, name) for name in names if getattr(run, name) is not None}
        arrays: dict[str, Any] = {name: np.asarray(array)[order] for name, array in there.items()}
        found[run.phase] = replace(run, **arrays, item=item[order])
    return found


def _items(
    phases: tuple[Phase, ...], found: Mapping[str, PlanStep], saved: Mapping[str, Any]
) -> tuple[PhaseItems, ...]:
    """Put together what every phase computes; constraints with a value for each sample are not in the file."""
    feeds, fed_by = feeding(phases)
    samples = found[phases[-1].name].sample if phases[-1].name in found else np.empty(0, dtype=np.int64)
    read: dict[str, PhaseItems] = {}
    for phase in phases:
        name, rows = phase.name, found.get(phase.name)
        lengths = np.empty(0, dtype=np.int64) if rows is None else np.asarray(rows.length, dtype=np.int64)
        sample = np.empty(0, dtype=np.int64) if rows is None else np.searchsorted(samples, rows.sample)
        if lengths.min(initial=0) < 0:
            i = int(lengths.argmin())
            raise ValueError(f"phase {name!r}: lengths[{i}] must be >= 0, got {lengths[i]}")
        if sample.max(initial=-1) >= len(samples):
            raise ValueError(f"phase {name!r} has items of samples that are in no phase after it")
        outputs, pieces = _lengths_beside(phase, saved[name], lengths, len(samples))
        if whole := bool(fed_by[name]) or feeds[name] is None:
            sample = np.arange(len(samples))  # each once, whatever the rows say
        if pieces is None and whole:
            pieces = default_own(lengths, [read[feeder] for feeder in fed_by[name]])
        pieces = Ragged.of([[]] * len(samples)) if pieces is None else pieces
        check_volumes(phase, "bytes_in", phase.bytes_in, lengths, pieces.values)
        check_volumes(phase, "bytes_out", phase.bytes_out, outputs)
        read[name] = PhaseItems(
            replace(phase, keep_together=None, caps={}, allowed_ranks=None), phase.cost, feeds[name], fed_by[name],  # type: ignore[arg-type]
            sample, lengths, outputs, pieces,
        )  # fmt: skip
    return tuple(read.values())


def _lengths_beside(
    phase: Phase, saved: Mapping[str, Any], lengths: NDArray[np.int64], num_samples: int
) -> tuple[NDArray[np.int64], Ragged | None]:
    """Return what a phase puts out and what its samples bring in besides, which are in the file if it asks for them."""
    outputs, own = saved["outputs"], saved["own"]
    for name, given in (("outputs", outputs), ("own", own)):
        if (given is None) != (getattr(phase, name) is None):
            raise ValueError(f"phase {phase.name!r} must have {name} in the file if it asks for them, and else none")
    put_out = lengths if outputs is None else np.asarray(_whole_numbers(outputs), dtype=np.int64)
    if put_out.shape != lengths.shape:
        raise ValueError(f"phase {phase.name!r} must put out a length for each of its {len(lengths)} items")
    pieces = None if own is None else Ragged.checked(*map(_whole_numbers, own))
    if pieces is not None and len(pieces) != num_samples:
        raise ValueError(f"phase {phase.name!r} must have own lengths of each of its {num_samples} samples")
    return put_out, pieces


def _whole_numbers(values: Any) -> list[int]:
    """Return a list of numbers that JSON has as such, each a length; numpy would take text and fractions too."""
    if not isinstance(values, list) or not all(type(value) is int and 0 <= value < 2**63 for value in values):
        raise ValueError(f"must be a list of whole numbers from 0, got {values!r:.60}")
    return values


def _batch(setup: Setup, last: PhaseItems, rows: PlanStep | None, description: Mapping[str, Any]) -> GlobalBatch:
    homes = np.empty(0, dtype=np.int32) if rows is None else rows.home_rank
    batch = GlobalBatch.of(last.lengths, setup.topology.num_ranks, homes)
    dropped, lengths = _dropped(description, setup, len(last.lengths))
    return replace(batch, dropped=dropped, dropped_lengths=lengths)


def _dropped(
    description: Mapping[str, Any], setup: Setup, num_kept: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
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
    setup.settings.cut.check_dropped([length for _, length in pairs])  # nothing of the plan of the way back
    columns = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    return columns[:, 0].copy(), columns[:, 1].copy()


class _Claimed(Claims):
    """The certificates of a saved plan: a search may have proven more than a formula can."""

    def __init__(self, plan_file: PlanFile, setup: Setup, saved: Any) -> None:
        self.saved, self._where = dict(saved), str(plan_file.path)
        self._bounds, self._status, self.makespan = {}, {}, {}
        if set(self.saved) != {phase.name for phase in setup.phases}:
            raise ValueError(f"certificates are of {', '.join(self.saved)}, not of its phases")
        for phase in setup.phases:
            name, claimed = phase.name, self.saved[phase.name]
            certificate, left_out = claimed["certificate"], claimed["left_out"]
            makespan, bound = _whole_numbers([certificate[key] for key in ("makespan", "lower_bound")])
            if not isinstance(certificate["bound_name"], str) or not isinstance(claimed["fell_back"], str):
                raise ValueError(f"phase {name!r}: bound_name and fell_back must be text")
            if not isinstance(left_out, list) or not set(left_out) <= set(PER_SAMPLE):
                raise ValueError(f"phase {name!r}: left_out must be of {', '.join(PER_SAMPLE)}, got {left_out!r:.60}")
            if unchecked := [key for key in PER_SAMPLE if getattr(phase, key) and key not in left_out]:
                raise ValueError(f"phase {name!r}: {unchecked[0]} cannot be checked without the log, and is said to be")
            self._bounds[name] = Bound(bound, certificate["bound_name"])
            self._status[name] = SolveStatus(certificate["status"])
            self.makespan[name] = makespan

    def fell_back(self, phase: str) -> str:
        return str(self.saved[phase]["fell_back"])

    def status(self, phase: str) -> SolveStatus | None:
        return self._status[phase]

    def bound(self, phase: str) -> Callable[[Bound, int], Bound]:
        """Take over the bound that the file claims, if it holds as far as can be told.

        Constraints with a value for each sample are not in the file; what they proved cannot be proven again without.
        """
        claimed, status = self._bounds[phase], self._status[phase]

        def settle(proven: Bound, makespan: int) -> Bound:
            if self.saved[phase]["left_out"] and claimed.value > proven.value:
                return proven
            holds = 0 <= claimed.value <= makespan
            if not holds or (claimed.name not in TRUSTED_BOUNDS and claimed.value > proven.value):
                claim = f"lower_bound = {claimed.value} ('{claimed.name}')"
                raise PlanError(f"{self._where}: claims {claim}, which does not hold")
            if (status is SolveStatus.OPTIMAL) != (claimed.value == makespan):
                raise PlanError(f"{self._where}: claims status '{status}' with lower_bound = {claimed.value}")
            return claimed

        return settle
