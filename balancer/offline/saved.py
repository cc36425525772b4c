"""A plan file that holds its own lengths and homes, as :meth:`balancer.StepPlan.save` writes it, read and checked."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from balancer.cuts.rooms import ROOMS
from balancer.errors import PlanError
from balancer.io.plan_reader import PlanFile
from balancer.io.plan_rows import PlanStep
from balancer.offline.claims import SavedClaims, read_from
from balancer.offline.replay import of_plan, replay_step
from balancer.plan.step_plan import StepPlan
from balancer.problem.batch import GlobalBatch
from balancer.problem.limits import without_columns
from balancer.problem.phases import PhaseItems, check_volumes, default_own
from balancer.problem.ragged import Ragged
from balancer.step_planner import Step


def load_saved(plan_file: PlanFile) -> StepPlan:
    """Read the one step plan of a file."""
    placed, path = _rows(plan_file), plan_file.path
    claims = SavedClaims(plan_file)
    setup, found = claims.setup, dict(placed)
    with read_from(plan_file):
        for name in (phase.name for phase in setup.phases):
            if name in placed:
                found[name] = ROOMS[setup.cut_of(name).name].kind.read(str(path), placed[name]).firsts
        items = _items(claims, found)
    with of_plan(str(path)):
        batch = _batch(claims, items[-1], found.get(items[-1].phase.name))
        step = Step(setup, batch, items)
        plan = replay_step(str(path), step, placed, claims.of_step(0), 0, claims.strategy)
    for each in items:
        name, homes = each.phase.name, batch.home.rank_of_sample[each.sample_of_item]
        if name in found and not np.array_equal(np.asarray(found[name].home_rank), homes):
            raise PlanError(f"{path}: phase {name!r} says home ranks that are not those of its samples")
    claims.check(plan.digest(), plan.num_samples, {name: plan[name].makespan for name in plan.phases})
    return plan


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


def _items(claims: SavedClaims, found: Mapping[str, PlanStep]) -> tuple[PhaseItems, ...]:
    """Put together what every phase computes; what it asks of each sample but keys is not in the file."""
    phases = claims.setup.phases
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
        outputs, pieces, keys, prompts = claims.beside(phase, len(lengths), len(samples))
        if is_last := phase is phases[-1]:
            sample = np.arange(len(samples))  # each once, whatever the rows say
        if pieces is None and is_last:
            pieces = default_own(lengths, read.values())
        pieces = Ragged.of([[]] * len(samples)) if pieces is None else pieces
        outputs = lengths if outputs is None else outputs
        check_volumes(phase, "bytes_in", phase.bytes_in, lengths, pieces.values)
        check_volumes(phase, "bytes_out", phase.bytes_out, outputs)
        together = phase.keep_together if keys is not None else None
        bare, cost = replace(phase, keep_together=together, caps={}, allowed_ranks=None), phase.cost
        read[name] = PhaseItems(bare, cost, is_last, sample, lengths, outputs, pieces, keys, prefix=prompts,
                                limits=without_columns(phase.limits, len(lengths)))  # fmt: skip
    return tuple(read.values())


def _batch(claims: SavedClaims, last: PhaseItems, rows: PlanStep | None) -> GlobalBatch:
    homes = np.empty(0, dtype=np.int32) if rows is None else rows.home_rank
    return GlobalBatch.from_lengths(last.lengths, claims.setup.topology.num_ranks, homes, last.own_prefixes)
