"""One step of a plan file, checked against its problem; loads and bounds are recomputed from its placements."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer.errors import PlanError
from balancer.io.plan_format import GAP, GAPS
from balancer.io.plan_reader import PlanStep
from balancer.offline.regroup import Regrouped
from balancer.plan.dispatch_plan import DispatchPlan
from balancer.plan.gaps import GapTable
from balancer.plan.pieces import GroupTable
from balancer.plan.placed import PlacedGroups, WholeShares, placed
from balancer.plan.step_plan import StepPlan
from balancer.planning.pipelines import over_memory
from balancer.planning.planner import replay_plan
from balancer.planning.step import Step, encoder_problem, finished
from balancer.problem.cuts.micro_batches import MicroBatches
from balancer.problem.cuts.sequence_groups import SequenceGroups
from balancer.problem.phases import PhaseItems
from balancer.problem.placement import Placement
from balancer.problem.problem import Problem
from balancer.problem.ragged import Ragged
from balancer.problem.settings import PlanSettings
from balancer.problem.step_times import GapTasks
from solvers.bounds import Bound
from solvers.errors import SolverError
from solvers.types import SolveStatus

__all__ = ["Claims", "of_plan", "replay_step"]

Slots = tuple[NDArray[np.int32], int]
"""The slot of each sample, and how many slots there are."""


@contextmanager
def of_plan(where: str) -> Iterator[None]:
    """Let what a description asks for in vain be an error of the plan, and what is infeasible name it."""
    try:
        yield
    except (ValueError, OverflowError) as error:
        raise PlanError(f"{where}: {error}") from None
    except SolverError as error:
        raise error.within(where) from None


class Claims:
    """What a replay takes over from a file; by default that nothing fell back, and no bound."""

    def fell_back(self, phase: str) -> str:
        """Say why samples of a phase were not relocated."""
        return ""

    def bound(self, phase: str) -> Callable[[Bound, int], Bound] | None:
        """Return what to make of the bound that a replay proves, and the makespan."""
        return None

    def status(self, phase: str) -> SolveStatus | None:
        """Return how the solver ended."""
        return None


def replay_step(
    where: str,
    step: Step,
    found: Mapping[str, PlanStep],
    claims: Claims,
    first_row: int = 0,
    strategy: str = "orchestrated",
    part_order: Ragged | None = None,
) -> StepPlan:
    """Check every phase of a step, the last one first, and put the step plan together.

    `where` names file and step in errors, `found` has the rows of each phase that has any, and `first_row` is what
    samples are numbered from.
    """
    plans: dict[str, DispatchPlan] = {}
    last: DispatchPlan | None = None
    between = f"{step.items[-1].phase.name}:{GAPS}" if step.setup.in_gaps else None
    if unknown := set(found) - {between, *(items.phase.name for items in step.items)}:
        raise PlanError(f"{where}: places samples in a phase {min(unknown)!r}, which its description does not name")
    _check_no_gaps(where, {name: rows for name, rows in found.items() if name != between})
    for items in reversed(step.items):
        name = items.phase.name
        inside = f"{where}: phase {name!r}" if len(step.items) > 1 else where
        cut, rows = step.setup.sharing_of(name), found.get(name)
        shared = None
        if cut is not None and rows is not None:
            shared = Regrouped.of(inside, rows)
            rows = shared.samples
        order, rows = _ordered(inside, step, items, rows, first_row)
        num_slots = _num_slots(step.settings.micro_batches if cut is None else cut, rows)
        if last is not None and cut is None:
            num_slots = last.num_slots
        slots = rows.slot[order], num_slots
        if last is not None and cut is None:
            _check_slots(inside, items, slots, last)
            _check_replicas(inside, items, rows.rank[order], slots, last)
        problem = step.problem(items)
        if last is not None and step.settings.micro_batches is not None:
            problem = encoder_problem(step, items, num_slots)
        if problem.timed is not None:
            problem = replace(problem, timed=problem.timed.in_slots(num_slots))
        if cut is not None:
            groups = _checked_groups(inside, step, items, cut, shared, order, num_slots, first_row)
            kept, lengths = problem.constraints, problem.batch.lengths
            broken = groups.broken(kept, lengths, cut, step.topology.num_ranks, num_slots, problem.batch.numbers)
            if broken is not None:
                raise PlanError(f"{inside}: {broken}")
            where_to: WholeShares = PlacedGroups.of(problem, groups, num_slots)
            _check_groups(inside, step.setup.group_size_of(name), problem, rows.rank[order])
        else:
            target = _checked_target(inside, rows.rank[order], rows.position[order], slots, problem)
            _check_groups(inside, step.setup.group_size_of(name), problem, rows.rank[order])
            gaps: tuple[GapTable, ...] = ()
            if last is None and problem.timed is not None:
                tasks = problem.timed.tasks
                gaps = (_checked_gaps(inside, step, tasks, found.get(str(between)), (rows, order), first_row),)
            where_to = placed(problem, target, *slots, *gaps)
        alone = step.settings.group_size is None and (last is None or step.settings.micro_batches is None)
        plans[name] = _replayed(
            inside, where_to, step.settings, search=alone,
            fell_back=claims.fell_back(name), settle=claims.bound(name), status=claims.status(name),
        )  # fmt: skip
        last = last or plans[name]
    return finished(step, plans, strategy, part_order=part_order)


def _replayed(where: str, placed: WholeShares, settings: PlanSettings, **more: Any) -> DispatchPlan:
    """Make a phase's plan anew; what is in gaps runs, within the memory that there is."""
    plan = replay_plan(placed, settings, **more)
    if broken := over_memory(plan.problem, plan):
        raise PlanError(f"{where}: {broken}")
    return plan


def _check_no_gaps(where: str, found: Mapping[str, PlanStep]) -> None:
    """Raise PlanError where a row of a phase names a device or a backward's turn, which tasks in gaps alone have."""
    for name, rows in found.items():
        for column, values in (("device", rows.device), ("backward", rows.backward)):
            if values is not None and (odd := values[values != -1]).size:
                raise PlanError(f"{where}: phase {name!r}: {column} must be -1 but for what is in gaps, got {odd[0]}")


def _checked_gaps(
    where: str, step: Step, tasks: GapTasks, rows: PlanStep | None, samples: tuple[PlanStep, NDArray[np.int64]],
    first_row: int,
) -> GapTable:  # fmt: skip
    """Return what runs in gaps, a row for each task, each on its sample's rank and in its slot."""
    if rows is None:
        none = np.empty(0, dtype=np.int64)
        rows = PlanStep(0, "", none, none, none, none, item=none, device=none, backward=none)  # type: ignore[arg-type]
    if rows.item is None or rows.device is None or rows.backward is None:
        lacking = ", ".join(repr(name) for name in ("item", *GAP) if getattr(rows, name) is None)
        raise PlanError(f"{where}: encoders run in gaps, and there is no column {lacking}")
    (last, order), of, number = samples, tasks.sample, step.batch.rows_of(step.batch.kept, first_row)
    wanted = np.stack([number[of], tasks.number, last.rank[order][of], last.slot[order][of]])
    held = np.stack([rows.sample, rows.item, rows.rank, rows.slot])
    ways = [np.lexsort((each[1], each[0])) for each in (held, wanted)]
    if held.shape != wanted.shape or (held[:, ways[0]] != wanted[:, ways[1]]).any():
        raise PlanError(
            f"{where}: what is in gaps must be each part of each sample's encoder work once, on the sample's rank and "
            f"in its slot: {wanted.shape[1]} parts"
        )
    at = np.empty_like(ways[0])
    at[ways[1]] = ways[0]
    device, forward, backward = (
        np.asarray(each)[at].astype(np.int64) for each in (rows.device, rows.position, rows.backward)
    )
    return GapTable(tasks, device, forward, backward)


def _checked_groups(
    where: str, step: Step, items: PhaseItems, cut: SequenceGroups, shared: Regrouped | None,
    order: NDArray[np.int64], num_slots: int, first_row: int,
) -> GroupTable:  # fmt: skip
    """Return the groups that share a phase's samples or items, checked."""
    if shared is None:
        return GroupTable.none()
    groups, numbers = shared.ordered(order), step.batch.rows_of(step.batch.kept[items.sample_of_item], first_row)
    shared.check(where, groups, (numbers, items.item_in_sample), items.lengths, cut, step.topology, num_slots)
    return groups


def _ordered(
    where: str, step: Step, items: PhaseItems, rows: PlanStep | None, first_row: int
) -> tuple[NDArray[np.int64], PlanStep]:
    """Check that a phase's rows place each of its items exactly once; return their order by items."""
    if rows is None:
        long, short = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32)
        rows = PlanStep(0, items.phase.name, long, short, short, short, long, short, short)
    item = np.zeros(len(rows.sample), dtype=np.int32) if rows.item is None else rows.item
    order = np.lexsort((item, rows.sample))
    expected = step.batch.rows_of(step.batch.kept[items.sample_of_item], first_row), items.item_in_sample
    if len(order) == len(expected[0]):  # a shuffled step's rows do not ascend
        ascending, order = order, np.empty_like(order)
        order[np.lexsort((expected[1], expected[0]))] = ascending
    if np.array_equal(rows.sample[order], expected[0]) and np.array_equal(item[order], expected[1]):
        return order, rows
    found = set(zip(rows.sample.tolist(), item.tolist(), strict=True))
    for sample, index in zip(expected[0].tolist(), expected[1].tolist(), strict=True):
        if (sample, index) not in found:
            whole = items.feeds is None or bool(items.fed_by)
            what = f"sample {sample}" if whole else f"item {index} of sample {sample}"
            raise PlanError(f"{where}: {what} is not placed")
    what = "samples" if items.feeds is None else "items"
    raise PlanError(f"{where}: {what} are placed twice or belong elsewhere")


def _num_slots(cut: MicroBatches | SequenceGroups | None, rows: PlanStep) -> int:
    """Return how many micro-batches a phase has: what was asked for, or what its rows say."""
    used = int(rows.slot.max(initial=0)) + 1
    return used if cut is None else cut.slots_for(used)


def _check_slots(where: str, items: PhaseItems, slots: Slots, last: DispatchPlan) -> None:
    """Refuse slots out of range, and items that come later than their samples."""
    slot, num_slots = slots
    if len(slot) and not 0 <= slot.min() <= slot.max() < num_slots:
        wrong = slot.min() if slot.min() < 0 else slot.max()
        raise PlanError(f"{where}: slot must be within 0..{num_slots - 1}, got {wrong}")
    late = slot > last.slot_of_sample[items.sample_of_item]
    if late.any():
        item = int(np.argmax(late))
        raise PlanError(f"{where}: item {item} is in slot {slot[item]}, after its sample")


def _check_replicas(where: str, items: PhaseItems, rank: NDArray[np.int32], slots: Slots, last: DispatchPlan) -> None:
    """Refuse items of a pipeline's encoder that are not on the replica of their sample, in its slot."""
    cut = last.micro_batches
    if cut is None or cut.stages is None or cut.encoders != "slot":
        return
    sample = items.sample_of_item
    away = (rank != last.rank_of_sample[sample]) | (slots[0] != last.slot_of_sample[sample])
    if away.any():
        item = int(np.argmax(away))
        raise PlanError(
            f"{where}: item {item} is on rank {rank[item]} in slot {slots[0][item]}, but its sample's pipeline is on "
            f"rank {last.rank_of_sample[sample[item]]}, in slot {last.slot_of_sample[sample[item]]}"
        )


def _checked_target(
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
    if not isinstance(problem.micro_batches, MicroBatches):
        return "has micro-batch slots, which its description does not mention" if slots.any() else None
    if (slots < 0).any():
        return f"slot must be >= 0, got {slots.min()}"
    ordered, rank = slots[target.samples], target.rank_of_sample[target.samples]
    if ((ordered[1:] < ordered[:-1]) & (rank[1:] == rank[:-1])).any():
        return "a rank's samples must stand in order of their slots"
    ranks = target.rank_of_sample
    return problem.micro_batches.violation(problem.batch.lengths, ranks, slots, target.num_ranks, num_slots)


def _check_groups(where: str, size: int | None, problem: Problem, rank: NDArray[np.int32]) -> None:
    if size is None:
        return
    leaves = problem.batch.home.rank_of_sample // size != rank // size
    if leaves.any():
        item = int(np.argmax(leaves))
        raise PlanError(f"{where}: item {item} leaves its group of {size} ranks, which the description rules out")
