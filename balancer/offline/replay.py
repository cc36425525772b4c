"""One step of a plan file, checked against its problem; loads and bounds are recomputed from its placements."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from balancer.errors import PlanError
from balancer.io.plan_rows import GAPS, PlanStep
from balancer.plan.dispatch_plan import DispatchPlan
from balancer.plan.placed import PLACED
from balancer.plan.placed.item_rows import ItemRows, OneEach, in_order_of
from balancer.plan.step_plan import StepPlan
from balancer.planning.planner import replay_plan
from balancer.planning.step import Step, encoder_problem, finished
from balancer.problem.phases import PhaseItems
from balancer.problem.problem import Problem
from balancer.problem.ragged import Ragged
from solvers.bounds import Bound
from solvers.errors import SolverError
from solvers.types import SolveStatus

__all__ = ["Claims", "of_plan", "replay_step"]


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
    between = f"{step.items[-1].phase.name}:{GAPS}" if step.setup.in_gaps else ""
    if unknown := set(found) - {between, *(items.phase.name for items in step.items)}:
        raise PlanError(f"{where}: places samples in a phase {min(unknown)!r}, which its description does not name")
    _check_no_gaps(where, {name: rows for name, rows in found.items() if name != between})
    for items in reversed(step.items):
        name = items.phase.name
        inside = f"{where}: phase {name!r}" if len(step.items) > 1 else where
        cut, rows = step.setup.cut_of(name), found.get(name)
        read = OneEach(_no_rows(name), _no_rows(name)) if rows is None else PLACED[cut.name].read(inside, rows)
        sample = step.batch.rows_of(step.batch.kept[items.sample_of_item], first_row)
        order, slot = in_order_of(items, sample, read.firsts, inside), read.firsts.slot
        num_slots = cut.slots_for(int(slot.max(initial=0)) + 1)
        problem = step.problem(items)
        if last is not None and not cut.own_slots:  # in the slots of the last phase
            num_slots = last.num_slots
            _check_slots(inside, items, slot[order], num_slots, last)
            _check_replicas(inside, items, read.firsts.rank[order], slot[order], last)
            problem = encoder_problem(step, items, num_slots)
        beside = {GAPS: found[between]} if last is None and between in found else {}
        matched = ItemRows(inside, read, order, sample, items.item_in_sample, num_slots, beside)
        where_to = PLACED[problem.cut.name].from_rows(problem, matched)
        if broken := _leaves_group(step.setup.group_size_of(name), problem, matched.rank) or where_to.broken():
            raise PlanError(f"{inside}: {broken}")
        alone = step.settings.group_size is None and (last is None or step.settings.cut.encoders == "first")
        plans[name] = replay_plan(
            where_to, step.settings, search=alone,
            fell_back=claims.fell_back(name), settle=claims.bound(name), status=claims.status(name),
        )  # fmt: skip
        last = last or plans[name]
    return finished(step, plans, strategy, part_order=part_order)


def _no_rows(phase: str) -> PlanStep:
    """Return the rows of a phase that has none."""
    long, short = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32)
    return PlanStep(0, phase, long, short, short, short, long, short, short)


def _check_no_gaps(where: str, found: Mapping[str, PlanStep]) -> None:
    """Raise PlanError where a row of a phase names a device or a backward's turn, which tasks in gaps alone have."""
    for name, rows in found.items():
        for column, values in (("device", rows.device), ("backward", rows.backward)):
            if values is not None and (odd := values[values != -1]).size:
                raise PlanError(f"{where}: phase {name!r}: {column} must be -1 but for what is in gaps, got {odd[0]}")


def _check_slots(
    where: str, items: PhaseItems, slot: NDArray[np.int32], num_slots: int, last: DispatchPlan
) -> None:  # fmt: skip
    """Refuse slots out of range, and items that come later than their samples."""
    if len(slot) and not 0 <= slot.min() <= slot.max() < num_slots:
        wrong = slot.min() if slot.min() < 0 else slot.max()
        raise PlanError(f"{where}: slot must be within 0..{num_slots - 1}, got {wrong}")
    late = slot > last.slot_of_sample[items.sample_of_item]
    if late.any():
        item = int(np.argmax(late))
        raise PlanError(f"{where}: item {item} is in slot {slot[item]}, after its sample")


def _check_replicas(
    where: str, items: PhaseItems, rank: NDArray[np.int32], slot: NDArray[np.int32], last: DispatchPlan
) -> None:  # fmt: skip
    """Refuse items of a pipeline's encoder that are not on the replica of their sample, in its slot."""
    if not last.cut.encoders_in_stages:
        return
    sample = items.sample_of_item
    away = (rank != last.rank_of_sample[sample]) | (slot != last.slot_of_sample[sample])
    if away.any():
        item = int(np.argmax(away))
        raise PlanError(
            f"{where}: item {item} is on rank {rank[item]} in slot {slot[item]}, but its sample's pipeline is on "
            f"rank {last.rank_of_sample[sample[item]]}, in slot {last.slot_of_sample[sample[item]]}"
        )


def _leaves_group(size: int | None, problem: Problem, rank: NDArray[np.int32]) -> str:
    """Say which item leaves the group of ranks that is planned by itself; nothing if none does."""
    if size is None or not (leaves := problem.batch.home.rank_of_sample // size != rank // size).any():
        return ""
    return f"item {int(np.argmax(leaves))} leaves its group of {size} ranks, which the description rules out"
