"""One step of a plan file, checked against its problem; loads and bounds are recomputed from its placements."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from balancer.cuts.rooms import ROOMS
from balancer.errors import PlanError
from balancer.io.plan_rows import PlanStep
from balancer.offline.claims import FileClaim
from balancer.plan.dispatch_plan import DispatchPlan
from balancer.plan.item_rows import ItemRows, OneEach, in_order_of
from balancer.plan.step_plan import StepPlan
from balancer.planner import replay_plan
from balancer.problem.cuts import Cut
from balancer.problem.phases import PhaseItems
from balancer.problem.problem import Problem
from balancer.step_planner import Step, encoder_problem, finished
from solvers.errors import SolverError


@contextmanager
def of_plan(where: str) -> Iterator[None]:
    """Let what a description asks for in vain be an error of the plan, and what is infeasible name it."""
    try:
        yield
    except (ValueError, OverflowError) as error:
        raise PlanError(f"{where}: {error}") from None
    except SolverError as error:
        raise error.within(where) from None


def replay_step(
    where: str,
    step: Step,
    found: Mapping[str, PlanStep],
    claims: Mapping[str, FileClaim],
    first_row: int = 0,
    strategy: str = "orchestrated",
) -> StepPlan:
    """Check every phase of a step, the last one first, and put the step plan together.

    `where` names file and step in errors, `found` has the rows of each phase that has any, `claims` what else the file
    says of phases, and `first_row` is what samples are numbered from.
    """
    plans: dict[str, DispatchPlan] = {}
    last: DispatchPlan | None = None
    of_last = f"{step.items[-1].phase.name}:"  # what else it has rows of
    beside = {of_last + name: name for name in ROOMS[step.settings.cut.name].kind.names_beside}
    if unknown := set(found) - {*beside, *(items.phase.name for items in step.items)}:
        raise PlanError(f"{where}: places samples in a phase {min(unknown)!r}, which its description does not name")
    _check_no_gaps(where, {name: rows for name, rows in found.items() if name not in beside})
    # The last phase first: slots of its samples bound those of encoder items.
    for items in reversed(step.items):
        name = items.phase.name
        inside = f"{where}: phase {name!r}" if len(step.items) > 1 else where
        cut, rows, claim = step.setup.cut_of(name), found.get(name), claims.get(name, FileClaim())
        read = OneEach(_no_rows(name), _no_rows(name)) if rows is None else ROOMS[cut.name].kind.read(inside, rows)
        sample = step.batch.rows_of(items.sample_of_item, first_row)
        order, slot = in_order_of(items, sample, read.firsts, inside), read.firsts.slot
        num_slots = _num_slots(inside, cut, int(slot.max(initial=0)) + 1, claim.num_slots)
        problem = step.problem(items)
        if last is not None and not cut.own_slots:  # in the slots of the last phase
            num_slots = last.num_slots
            _check_slots(inside, items, slot[order], num_slots, last)
            _check_replicas(inside, items, read.firsts.rank[order], slot[order], last)
            problem = encoder_problem(step, items, num_slots)
        others = {short: found[of] for of, short in beside.items() if of in found} if last is None else {}
        matched = ItemRows(inside, read, order, sample, items.item_in_sample, num_slots, others)
        placed = ROOMS[problem.cut.name].kind.from_rows(problem, matched)
        if broken := _leaves_group(step.setup.group_size_of(name), problem, matched.rank) or placed.broken():
            raise PlanError(f"{inside}: {broken}")
        alone = step.settings.group_size is None and (last is None or step.settings.cut.encoders == "first")
        plans[name] = claim.kept(replay_plan(placed, step.settings, fell_back=claim.fell_back, search=alone))
        last = last or plans[name]
    return finished(step, plans, strategy)


def _num_slots(where: str, cut: Cut, used: int, claimed: int) -> int:
    """Return how many slots there are, of which the `used`-th is the last that holds something."""
    if claimed and (claimed < used or cut.slots_for(claimed) != claimed):
        raise PlanError(f"{where}: claims {claimed} micro-batches a rank, which cannot be with {used} in its rows")
    return claimed or cut.slots_for(used)


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
