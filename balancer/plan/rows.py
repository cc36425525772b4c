"""Plans as rows of a plan file, and a file that holds all of one step's plan, its lengths too."""

import os
import tempfile
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from balancer._version import __version__
from balancer.errors import PlanError
from balancer.io.plan_writer import PlanWriter
from balancer.problem.batch import GlobalBatch
from balancer.problem.constraints import PER_SAMPLE
from balancer.problem.limits import LIMITS_ASKED, of_columns
from balancer.problem.phases import Phase, PhaseItems
from balancer.problem.placement import Placement
from balancer.problem.setup import Setup
from solvers.errors import not_installed


class StepOfLog(NamedTuple):
    """Where a plan's samples come from."""

    number: int = 0
    first_row: int = 0  # that of the first sample in the log, unless the batch says itself which rows it has
    nominal: NDArray[np.int64] | None = None  # the step for which each sample was drawn, where some run early or late


def open_writer(path: str | os.PathLike[str], setup: Setup, whole: bool = False, nominal: bool = False) -> PlanWriter:
    """Return a writer with the columns that plans with this setup need; `whole` as in :func:`append_phase`.

    `nominal`: whether samples run early or late.
    """
    asked = {"length home_rank": whole, "item": setup.several_items, "start stop group": setup.shares,
             "device backward": setup.in_gaps, "nominal_step": nominal}  # fmt: skip
    return PlanWriter(path, " ".join(names for names, is_asked in asked.items() if is_asked).split())


def append_phase(
    writer: PlanWriter, step: StepOfLog, batch: GlobalBatch, items: PhaseItems, plan: Any, setup: Setup,
    whole: bool = False,
) -> None:  # fmt: skip
    """Write the placements of one phase of a step.

    The setup, which is the writer's, says which columns there are; `whole`: with lengths and homes, for a file that has
    no log to go back to.
    """
    samples, place = items.sample_of_item, plan.target
    sample, slot = batch.rows_of(samples, step.first_row), plan.slot_of_sample
    more: dict[str, Any] = {}
    if whole:
        more = {"length": items.lengths, "home_rank": batch.home.rank_of_sample[samples]}
    if setup.several_items:
        more["item"] = items.item_in_sample.astype(np.int32)
    if step.nominal is not None:
        more["nominal_step"] = step.nominal[samples]
    if setup.shares:
        held = plan.pieces
        of, place = held.sample, held.place
        sample, slot, more = sample[of], slot[of], {name: each[of] for name, each in more.items()}
        more |= {"start": held.start, "stop": held.stop, "group": plan.group_of_pieces(held)}
    if setup.in_gaps:
        more |= dict.fromkeys(("device", "backward"), np.full(len(sample), -1, dtype=np.int32))
    slot = slot if plan.num_slots > 1 else 0
    writer.append(step.number, items.phase.name, sample=sample, rank=place.rank_of_sample, slot=slot,
                  position=place.position_of_sample, **more)  # fmt: skip
    for name, each in plan.rows_beside.items():
        of = each.sample
        more = {"item": each.item, "device": each.device, "backward": each.backward}
        if whole:
            homes = batch.home.rank_of_sample[samples][of]
            more |= {"length": np.zeros(len(of), dtype=np.int64), "home_rank": homes}
        writer.append(step.number, f"{items.phase.name}:{name}", sample=sample[of], rank=plan.rank_of_sample[of],
                      slot=plan.slot_of_sample[of], position=each.position, **more)  # fmt: skip


def slots_beyond_rows(plan: Any) -> int:
    """Return a plan's number of slots if rows do not show it: where more are empty at the end than its cut asks for."""
    used = int(plan.slot_of_sample.max(initial=0)) + 1
    return 0 if plan.num_slots == plan.cut.slots_for(used) else int(plan.num_slots)


def save(
    path: str | os.PathLike[str], setup: Setup, batch: GlobalBatch, phases: Mapping[str, tuple[PhaseItems, Any]],
    digest: str, strategy: str = "orchestrated",
) -> None:  # fmt: skip
    """Write a plan file that holds all of one step's plan, given of each phase its items and dispatch plan."""
    if batch.home != Placement.by_sample_order(batch.home.rank_of_sample, setup.topology.num_ranks):
        raise PlanError("a plan file tells home ranks but no home positions: home must be in sample order")
    asked = {phase.name: phase for phase in setup.phases}
    description: dict[str, Any] = setup.to_json() | {
        "saved": {name: _described(asked[name], *phase) for name, phase in phases.items()},
        "strategy": strategy,
        "steps": 1,
        "samples": len(batch.lengths),
        "digest": digest,
        "producer": __version__,
    }
    slots = {name: slots_beyond_rows(plan) for name, (_, plan) in phases.items()}
    if any(slots.values()):
        description["slots"] = {name: count for name, count in slots.items() if count}
    with open_writer(path, setup, whole=True) as writer:
        for phase, plan in phases.values():
            append_phase(writer, StepOfLog(), batch, phase, plan, setup, whole=True)
        writer.close(description)


def as_table(plan: Any) -> Any:
    """Return the rows of a plan as an Arrow table, as a file that it is saved to has them."""
    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "plan.parquet")
        plan.save(path)
        return pq.read_table(path)


def data_frame(table: Callable[[], Any]) -> Any:
    """Return the Arrow table that `table` makes as a pandas DataFrame.

    Raises
    ------
    ImportError
        Before the table is made, if pandas is not installed.
    """
    try:
        import pandas  # noqa: F401
    except ImportError:
        raise ImportError(not_installed("to_pandas()", "pandas", "pandas")) from None
    return table().to_pandas()


def _described(asked: Phase, mine: PhaseItems, plan: Any) -> dict[str, Any]:
    """Return what rows do not tell of a phase: its certificate, and the lengths that it asks for besides its items."""
    held = "keep_together" in plan.constraints.per_sample
    left_out = [name for name in PER_SAMPLE if name in plan.constraints.per_sample or getattr(asked, name)]
    if of_columns(asked.limits):
        left_out.append(LIMITS_ASKED)
    found = {
        "certificate": {
            "makespan": plan.makespan,
            "lower_bound": plan.lower_bound,
            "bound_name": plan.bound_name,
            "status": plan.status.value,
        },
        "fell_back": plan.fell_back,
        "left_out": [name for name in left_out if name != "prefix" and not (held and name == "keep_together")],
        "outputs": None if asked.outputs is None else mine.outputs.tolist(),
        "own": None if asked.own is None else [mine.own.values.tolist(), mine.own.offsets.tolist()],
    }
    if held:
        found["keys"] = plan.constraints.keep_together.tolist()
    shared, own = plan.constraints.prefix, plan.problem.batch.prefixes
    if shared is not None:
        found["prompts"] = [shared.keys.tolist(), shared.lengths.tolist()]
    elif own is not None:
        found["prompts"] = [None, own.tolist()]
    return found
