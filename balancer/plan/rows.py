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


def open_writer(path: str | os.PathLike[str], setup: Setup, whole: bool = False, **more: Any) -> PlanWriter:
    """Return a writer with the columns that plans with this setup need; `whole` as in :func:`append_phase`.

    `more` is the writer's ``nominal_column``.
    """
    return PlanWriter(
        os.fspath(path), extra_columns=whole, item_column=setup.several_items,
        piece_columns=setup.shares, gap_columns=setup.in_gaps, **more,
    )  # fmt: skip


def append_phase(
    writer: PlanWriter, step: StepOfLog, batch: GlobalBatch, items: PhaseItems, plan: Any, setup: Setup,
    whole: bool = False,
) -> None:  # fmt: skip
    """Write the placements of one phase of a step.

    The setup, which is the writer's, says which columns there are; `whole`: with lengths and homes, for a file that has
    no log to go back to.
    """
    samples = items.sample_of_item
    rows, slots, lengths = batch.rows_of(samples, step.first_row), plan.slot_of_sample, items.lengths
    homes = batch.home.rank_of_sample[samples] if whole else None
    drawn = None if step.nominal is None else step.nominal[samples]
    several = setup.several_items
    item, place, piece = items.item_in_sample.astype(np.int32) if several else None, plan.target, None
    if setup.shares:
        held = plan.pieces
        of, place = held.sample, held.place
        piece = held.start, held.stop, plan.group_of_pieces(held)
        rows, slots, lengths = (of_sample[of] for of_sample in (rows, slots, lengths))
        homes = None if homes is None else homes[of]
        item, drawn = (None if each is None else each[of] for each in (item, drawn))
    writer.append(
        step.number,
        items.phase.name,
        rows,
        place.rank_of_sample,
        slots if plan.num_slots > 1 else 0,
        place.position_of_sample,
        length=lengths if whole else None,
        home_rank=homes if whole else None,
        item=item,
        piece=piece,
        gap=(np.full(len(rows), -1, dtype=np.int32),) * 2 if setup.in_gaps else None,
        nominal=drawn,
    )
    for name, each in plan.rows_beside.items():
        of = each.sample
        writer.append(
            step.number, f"{items.phase.name}:{name}", rows[of], plan.rank_of_sample[of], plan.slot_of_sample[of],
            each.position, length=None if homes is None else np.zeros(len(of), dtype=np.int64),
            home_rank=None if homes is None else homes[of], item=each.item, gap=(each.device, each.backward),
        )  # fmt: skip


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
