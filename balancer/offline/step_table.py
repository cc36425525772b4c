"""The table of steps: a row a step and phase. All that is said of a run is a query on it.

It is an Arrow table, which concatenates: whoever plans a part of a log makes the rows of that part's steps. Rank-time,
in units of cost, is what all ranks together spend until the slowest is done; that of a run can be more than an int64
holds, so it is added up in float64, exactly but for one rounding of each row and one of the sum.
"""

import base64
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from balancer.cost import Sharing
from balancer.layouts.step_plan import LaidOutStepPlan
from balancer.plan.balance_report import even_rank_time
from balancer.plan.dispatch_plan import DispatchPlan
from balancer.plan.reasons import Reason, Reasons
from balancer.plan.step_plan import PhasePlan, StepPlan
from solvers.types import SolveStatus, relative_gap

__all__ = ["COLUMNS", "JSON_VERSION", "Column", "StepRows", "allowed_gap", "fallen_back", "full_steps", "joined_epochs",
           "phases_in", "ratio_columns", "ratios_in", "restored", "stored", "summary", "table_of", "total", "waiting",
           "with_epochs", "worst"]  # fmt: skip

JSON_VERSION = 2
"""Of the documents that ``--json`` prints; it rises when a name in them changes its meaning or goes."""

_ROWS_AT_ONCE = 1024

_EPOCHS = b"epochs"
"""In the table's metadata: what was found of each epoch whose samples run early or late."""


class Column(NamedTuple):
    """A column of the table: its name, its type, and what it says."""

    name: str
    type: pa.DataType
    says: str


Floats = NDArray[np.float64]

_TEXT, _COUNT, _TIME = pa.string(), pa.int64(), pa.float64()

COLUMNS = (
    Column("step", _COUNT, "Which step, from 0."),
    Column("phase", _TEXT, "A phase, or with several phases also a stream, such as vision:in: a row of traffic alone."),
    Column("short", pa.bool_(), "Whether the step is short of samples, as the last one of an epoch may be."),
    Column("samples", _COUNT, "Samples of the step."),
    Column("items", _COUNT, "Items of the phase: one a sample, none, or several."),
    Column("elements", _COUNT, "Sum of the items' lengths."),
    Column("longest", _COUNT, "The largest of them."),
    Column("cost", _TEXT, "What items are priced by."),
    Column("model", _TEXT, "Whose FLOPs that is, where it is known; else empty."),
    Column("ranks", _COUNT, "Ranks, or replicas where the phase has a layout."),
    Column("holder", _TEXT, "What a sample runs on: a rank, or a replica."),
    Column("makespan", _COUNT, "What the slowest rank takes, in units of cost."),
    Column("lower_bound", _COUNT, "Proven: no plan has a smaller makespan."),
    Column("bound_name", _TEXT, "What proves it."),
    Column("status", _TEXT, "How the search ended: optimal, within, feasible or time_limit."),
    Column("gap", _TIME, "(makespan - lower_bound) / lower_bound; infinite where only the bound is 0."),
    Column("stop_at", _TIME, "The gap that was enough."),
    Column("before", _TIME, "Rank-time as the samples lay."),
    Column("after", _TIME, "Rank-time as planned."),
    Column("bound", _TIME, "Rank-time at the lower bound."),
    Column("even_before", _TIME, "Rank-time of perfectly even ranks, as the samples lay."),
    Column("even", _TIME, "Rank-time of perfectly even ranks, as planned."),
    Column("joint_before", _TIME, "Of phases balanced together, in the last one's row: a step in one unit, before."),
    Column("joint_after", _TIME, "The same as planned."),
    Column("placement", _TEXT, "Where groups are placed: any, rearrange or relocate."),
    Column("eps", _TIME, "How much longer a step may be for staying near home."),
    Column("fell_back", _TEXT, "Why samples were not relocated; empty where they were, or were not asked to."),
    Column("fell_back_percent", _TIME, "The percentage in that reason, where it differs from step to step."),
    Column("cap_row", _COUNT, "The log's row of the one sample that alone costs more than a fair share, if there is."),
    Column("cap_length", _COUNT, "The length of that sample."),
    Column("idle_ranks", _COUNT, "Of several phases: ranks that get no item of this one in the whole step."),
    Column("dummy_ranks", _COUNT, "Those of them that must compute something all the same."),
    Column("slots", _COUNT, "Micro-batches of every rank."),
    Column("sync", _TEXT, "Where ranks wait, if the phase is cut into micro-batches."),
    Column("stages", _COUNT, "Stages of the pipeline; 0 without one."),
    Column("in_pipeline", pa.bool_(), "Whether the phase runs in the last phase's pipeline."),
    Column("degrees", _TEXT, "How many groups of so many ranks there are, over all slots, such as 1:120 8:3."),
    Column("loss_assumed", pa.bool_(), "Whether nothing says what ranks lose by sharing a sample."),
    Column("shared_items", _COUNT, "Items that several ranks share, where they may."),
    Column("shared_elements", _COUNT, "The lengths of these."),
    Column("prompts", _COUNT, "Prompts that several samples share."),
    Column("prompt_copies", _COUNT, "On how many ranks, or in how many micro-batches, these are computed in all."),
    Column("volume", _COUNT, "What moves or stays: elements of a single phase, bytes of a stream."),
    Column("crosses", _COUNT, "What of it crosses nodes."),
    Column("within", _COUNT, "What of it moves between the ranks of a node."),
    Column("must_cross", _COUNT, "What of it crosses nodes at least, where that is known."),
    Column("largest_send", _COUNT, "The most that one rank sends to other nodes."),
    Column("largest_receive", _COUNT, "The most that one rank receives from other nodes."),
)


def table_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column] = COLUMNS) -> pa.Table:
    """Return rows, each a mapping of names to values, as a table; a name that a row lacks is null there."""
    arrays = [_array([row.get(each.name) for row in rows], each.type) for each in columns]
    return pa.table(arrays, pa.schema([(each.name, each.type) for each in columns]))


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return an Arrow array, in which None is null; ``pa.array`` would import pandas where there is one (0.3 s)."""
    there = np.array([value is not None for value in values], dtype=bool)
    valid = None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
    if kind == _TEXT:
        encoded = [b"" if value is None else value.encode() for value in values]
        ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
        return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))])
    filled = np.array([0 if value is None else value for value in values], dtype=kind.to_pandas_dtype())
    if kind == pa.bool_():
        filled = np.packbits(filled, bitorder="little")
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(filled)])


def where(rows: pa.Table, wanted: Sequence[bool]) -> pa.Table:
    """Return the rows that are wanted."""
    return rows.filter(_array(wanted, pa.bool_()))


def numbers(rows: pa.Table, name: str) -> NDArray[Any]:
    """Return a column of numbers without nulls."""
    return np.array(rows[name].to_pylist(), dtype=rows[name].type.to_pandas_dtype())


class StepRows:
    """Gathers rows of the table, step by step."""

    def __init__(self, columns: Sequence[Column] = COLUMNS) -> None:
        self._columns, self._rows, self._tables = columns, list[Mapping[str, Any]](), list[pa.Table]()
        self.steps = self.samples = 0  # so far

    def add(self, step: int, plan: StepPlan, first_row: int = 0, short: bool = False) -> None:
        """Take in a step, which begins at `first_row` of the log, unless its samples say themselves where they are."""
        self.take(rows_of(step, plan, first_row, short), plan.num_samples)

    def take(self, rows: Iterable[Mapping[str, Any]], samples: int) -> None:
        """Take in the rows of a step of so many samples."""
        self._rows += rows
        self.steps += 1
        self.samples += samples
        if len(self._rows) >= _ROWS_AT_ONCE:  # as Python has them, rows take a hundred times the room
            self._tables.append(table_of(self._rows, self._columns))
            self._rows = []

    def table(self) -> pa.Table:
        """Return the table of all steps so far."""
        return pa.concat_tables([*self._tables, table_of(self._rows, self._columns)])


def rows_of(step: int, plan: StepPlan, first_row: int = 0, short: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the rows of one step: of its phases, and where there are several, of its streams."""
    of_step = {"step": step, "short": short, "samples": plan.num_samples}
    *encoders, last = plan.phases
    for name, phase in plan.phases.items():
        row = of_step | {"phase": name} | _of_phase(phase.plan)
        if not plan.is_single:
            row |= _of_idle(phase)
        row["in_pipeline"] = follows = plan.encoders_in_pipeline and name != last
        if phase.plan.cut.meets and not (plan.encoders_first and name in encoders):
            row["slots"], row["sync"] = phase.plan.num_slots, phase.plan.cut.meets
            row["stages"] = phase.plan.cut.num_stages
        if (cap := phase.plan.binding_sample) is not None and not follows:
            row["cap_row"] = int(plan.batch.rows_of(phase.items.sample_of_item[cap], first_row))
            row["cap_length"] = int(phase.plan.lengths[cap])
        if plan.is_single:
            several = phase.plan.topology.num_nodes > 1
            row |= _of_traffic(phase.plan.traffic, phase.plan.inter_node_bound if several else None)
        elif name == last and plan.setup.settings.mode != "separate" and not isinstance(plan, LaidOutStepPlan):
            row["joint_before"], row["joint_after"] = _joint(plan)
        yield row
    if not plan.is_single:
        for name in plan.stream_names:
            yield of_step | {"phase": name} | _of_traffic(plan.traffic_of(name), plan.least_inter_node(name))


def _of_phase(plan: DispatchPlan) -> dict[str, Any]:
    """Return what a phase's plan says of itself."""
    ranks, reason = plan.num_ranks, plan.fell_back
    row = {
        "cost": str(plan.cost), "model": plan.cost.model, "ranks": ranks, "holder": plan.cut.holder,
        "items": plan.num_samples, "elements": int(plan.lengths.sum()), "longest": int(plan.lengths.max(initial=0)),
        "makespan": int(plan.makespan), "lower_bound": int(plan.lower_bound), "bound_name": plan.bound_name,
        "status": str(plan.status), "gap": plan.gap, "stop_at": float(plan.stop_at),
        "before": float(plan.home_makespan * ranks), "after": float(plan.makespan * ranks),
        "bound": float(plan.lower_bound * ranks), "even_before": float(even_rank_time(plan, home=True)),
        "even": float(even_rank_time(plan)), "placement": plan.placement, "eps": plan.eps, "fell_back": str(reason),
        "fell_back_percent": reason.percent if isinstance(reason, Reason) else None,
    }  # fmt: skip
    if plan.constraints.prefix is not None:
        row["prompts"], row["prompt_copies"] = len(plan.prompt_copies), int(plan.prompt_copies.sum())
    if (table := plan.group_table) is not None:
        counts = zip(*np.unique(table.degree, return_counts=True), strict=True)
        row["degrees"] = " ".join(f"{degree}:{count}" for degree, count in counts)
        row["loss_assumed"] = plan.cost.sharing == Sharing()
        if plan.cut.own_slots:
            shared = table.degree_of_sample > 1
            row["shared_items"], row["shared_elements"] = int(shared.sum()), int(plan.lengths[shared].sum())
    return row


def _of_idle(phase: PhasePlan) -> dict[str, Any]:
    idle = len(phase.idle_ranks)
    return {"idle_ranks": idle, "dummy_ranks": idle if phase.items.phase.every_rank_nonempty else 0}


def _of_traffic(traffic: Any, least: int | None) -> dict[str, Any]:
    """Return what moves, and what crosses nodes at least, if that is known."""
    return {
        "volume": traffic.total, "crosses": traffic.inter_node, "within": traffic.intra_node, "must_cross": least,
        "largest_send": traffic.largest_send, "largest_receive": traffic.largest_receive,
    }  # fmt: skip


def _joint(plan: StepPlan) -> tuple[float, float]:
    """Return what a step takes before and after in the unit of all phases, as ranks do not wait between encoders."""
    *encoders, last = (phase.plan for phase in plan.phases.values())
    before = int(np.sum([each.home_loads for each in encoders], axis=0).max()) + int(last.home_makespan)
    after = int(np.sum([each.loads for each in encoders], axis=0).max()) + int(last.makespan)
    return float(before), float(after)


# A part's stretch of the table, as its file has it -----------------------------------------------------------------


_DERIVED = ("gap", "after", "bound")
"""Columns that follow from others, and so take no room in a file."""
_CODEC, _LEVEL = "zstd", 9


def stored(steps: pa.Table) -> str:
    """Return the table as text that goes into a file's metadata; the same bytes for the same steps."""
    kept, sink = steps.drop_columns([*_DERIVED]).combine_chunks(), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, kept.schema) as writer:
        writer.write_table(kept)
    stream = sink.getvalue()
    # As a whole: many columns are alike, which compressing each by itself would not see.
    squeezed = pa.Codec(_CODEC, compression_level=_LEVEL).compress(stream, asbytes=True)
    return f"{stream.size}:{base64.b64encode(squeezed).decode()}"


def held_in(text: str) -> pa.Table:
    """Return what :func:`stored` kept: the table without columns that follow from others; ValueError if it is none."""
    size, _, squeezed = text.partition(":")
    try:
        stream = pa.Codec(_CODEC).decompress(base64.b64decode(squeezed, validate=True), int(size))
        found = pa.ipc.open_stream(stream).read_all()
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        raise ValueError(f"no table of steps: {error}") from None
    kept = [(each.name, each.type) for each in COLUMNS if each.name not in _DERIVED]
    if [(each.name, each.type) for each in found.schema] != kept:
        raise ValueError("a table of steps with other columns than this release writes")
    return found


def restored(text: str) -> pa.Table:
    """Return the table that :func:`stored` gave; what is none raises ValueError."""
    found = held_in(text)
    makespan, bound, ranks = (found[name].to_pylist() for name in ("makespan", "lower_bound", "ranks"))
    derived = {
        "gap": [None if m is None else relative_gap(m, b) for m, b in zip(makespan, bound, strict=True)],
        "after": [None if m is None else float(m * n) for m, n in zip(makespan, ranks, strict=True)],
        "bound": [None if b is None else float(b * n) for b, n in zip(bound, ranks, strict=True)],
    }
    arrays = [_array(derived[each.name], each.type) if each.name in derived else found[each.name] for each in COLUMNS]
    return pa.table(arrays, pa.schema([(each.name, each.type) for each in COLUMNS], found.schema.metadata))


def with_epochs(steps: pa.Table, epochs: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return the table with what was found of each epoch whose samples run early or late, if there are some."""
    return steps.replace_schema_metadata({_EPOCHS: json.dumps(epochs)} if epochs else None)


# Queries -----------------------------------------------------------------------------------------------------------


def total(values: pa.ChunkedArray) -> float:
    """Add up a column, of which nulls count for nothing; the same in whatever order."""
    return math.fsum(values.drop_null().to_pylist())


def full_steps(steps: pa.Table) -> pa.Table:
    """Return the rows of the steps that plans are judged by: of all but short ones, if there are others."""
    full = steps.filter(pc.invert(steps["short"]))
    return full if len(full) else steps


def phases_in(steps: pa.Table) -> dict[str, pa.Table]:
    """Return the rows of each phase, without streams."""
    return _by_name(steps.filter(pc.is_valid(steps["makespan"])))


def streams_in(steps: pa.Table) -> dict[str, pa.Table]:
    """Return the rows of each stream."""
    return _by_name(steps.filter(pc.is_null(steps["makespan"])))


def _by_name(steps: pa.Table) -> dict[str, pa.Table]:
    phases = steps["phase"].to_pylist()
    return {name: where(steps, [phase == name for phase in phases]) for name in dict.fromkeys(phases)}


def ratios_in(rows: pa.Table) -> tuple[float, float, float]:
    """Return the imbalance ratio of a phase's steps: as they lay, as planned, and at the proven bound.

    Ratios over many steps are of rank-time, so a long step counts for more than a short one.
    """
    before, after, bound, even_before, even = (
        total(rows[name]) for name in ("before", "after", "bound", "even_before", "even")
    )
    return _over(before, even_before), _over(after, even), _over(bound, even)


def ratio_columns(rows: pa.Table) -> tuple[Floats, Floats, Floats]:
    """Return the imbalance ratio of each row: as samples lay, as planned, and at the proven bound: float64[n] each."""
    spent, even = (
        [numbers(rows, name) for name in names] for names in (("before", "after", "bound"), ("even_before", "even"))
    )
    before, after, bound = (
        np.divide(each, of, out=np.ones(len(rows)), where=of > 0)
        for each, of in zip(spent, (even[0], even[1], even[1]), strict=True)
    )
    return before, after, bound


def _over(spent: float, even: float) -> float:
    return spent / even if even else 1.0


def waiting(ratio: float) -> float:
    """Return the share of rank-time that is waiting, at an imbalance ratio; a bound may be under 1."""
    return max(0.0, 1 - 1 / ratio) if ratio else 0.0


def allowed_gap(eps: float, stop_at: float) -> float:
    """Return the gap that relocation may have: that of the groups it begins with, and `eps` beyond them."""
    return (1 + eps) * (1 + stop_at) - 1


def reason_of(text: str | None, percent: float | None) -> str:
    """Return why samples were not relocated, as the plan had it, given two cells of the table."""
    before, number, after = (text or "").partition(f" {percent:g} % ") if percent is not None else (text or "", "", "")
    return Reason(before, percent, after) if number and percent is not None else before


def fallen_back(rows: pa.Table) -> Reasons:
    """Return why samples of a phase were not relocated, counted."""
    found = Reasons()
    for each in zip(rows["fell_back"].to_pylist(), rows["fell_back_percent"].to_pylist(), strict=True):
        if each[0]:
            found.add(reason_of(*each))
    return found


def summary(steps: pa.Table) -> dict[str, Any]:
    """Return what a run adds up to, as ``--json`` prints it; `phases` are of full steps, if there are any."""
    judged = phases_in(full_steps(steps))
    first = {name: rows.slice(0, 1).to_pylist()[0] for name, rows in judged.items()}
    each_once = phases_in(steps)[next(iter(judged))] if judged else steps
    document: dict[str, Any] = {
        "version": JSON_VERSION, "steps": len(each_once), "samples": int(total(each_once["samples"])),
        "cost": {name: row["cost"] for name, row in first.items()},
    }  # fmt: skip
    if models := {name: row["model"] for name, row in first.items() if row["model"]}:
        document["models"] = models
    document["fell_back_steps"] = sum(len(fallen_back(rows)) for rows in judged.values())
    document["phases"] = {name: phase_summary(rows) for name, rows in judged.items()}
    short = each_once.filter(each_once["short"])
    if len(short):
        document["short_steps"] = {
            "steps": len(short), "samples": int(total(short["samples"])),
            "phases": {name: phase_summary(rows) for name, rows in phases_in(steps.filter(steps["short"])).items()},
        }  # fmt: skip
    if streams := streams_in(steps):
        document["streams"] = {name: _stream_summary(rows) for name, rows in streams.items()}
    if epochs := (steps.schema.metadata or {}).get(_EPOCHS):
        document["across_steps"] = joined_epochs(json.loads(epochs))
    return document


def phase_summary(rows: pa.Table) -> dict[str, Any]:
    """Return what the steps of one phase add up to; an infinite gap is null."""
    ratios, gaps, capped = ratios_in(rows), numbers(rows, "gap"), rows.filter(pc.is_valid(rows["cap_row"]))
    eps, stop_at = pc.max(rows["eps"]).as_py(), pc.max(rows["stop_at"]).as_py()
    allowed = [allowed_gap(*of) for of in zip(rows["eps"].to_pylist(), rows["stop_at"].to_pylist(), strict=True)]
    proven = sum(each in (SolveStatus.OPTIMAL, SolveStatus.WITHIN) for each in rows["status"].to_pylist())
    found: dict[str, Any] = {
        **dict(zip((f"imbalance_ratio_{when}" for when in _WHEN), ratios, strict=True)),
        **dict(zip((f"waiting_{when}" for when in _WHEN), map(waiting, ratios), strict=True)),
        "gap_mean": _finite(total(rows["gap"]) / len(rows)), "gap_largest": _finite(float(gaps.max())),
        "steps_proven_optimal": int((gaps == 0).sum()), "steps_proven_within": proven,
        "stop_at": stop_at, "steps_within_eps": int((gaps <= np.array(allowed)).sum()), "eps": eps,
        "placement": rows["placement"][-1].as_py(), "fell_back": dict(fallen_back(rows).counted()),
        "capped_steps": len(capped), "capping_sample": _worst_cap(capped),
    }  # fmt: skip
    if rows["volume"].null_count:  # of several phases, whose streams move
        found["items"] = int(total(rows["items"]))
        found["idle_ranks_mean"] = total(rows["idle_ranks"]) / len(rows)
        found["idle_ranks_most"], found["dummy_ranks_most"] = (
            pc.max(rows[name]).as_py() for name in ("idle_ranks", "dummy_ranks")
        )
    else:
        volume = total(rows["volume"]) or 1.0
        found["crosses_nodes"], found["must_cross_nodes"], found["moves_within_nodes"] = (
            total(rows[name]) / volume for name in ("crosses", "must_cross", "within")
        )
        found["largest_send"] = pc.max(rows["largest_send"]).as_py()
    if rows["slots"].null_count < len(rows):
        found["sync"] = rows["sync"].drop_null()[-1].as_py()
        found["micro_batches_fewest"], found["micro_batches_most"] = pc.min_max(rows["slots"]).as_py().values()
    if stages := pc.max(rows["stages"]).as_py():
        found["pipeline_stages"] = stages
    if pc.any(rows["in_pipeline"]).as_py():
        found["in_pipeline"] = True
    if groups := _groups(rows):
        found["groups_of_degree"] = groups
    sharing = rows.filter(pc.is_valid(rows["shared_items"]))
    if elements := total(sharing["elements"]):
        found["shared_items"] = int(total(sharing["shared_items"]))
        found["shared_fraction"] = total(sharing["shared_elements"]) / elements
    if prompts := total(rows["prompts"]):
        found["copies_of_a_prompt"] = total(rows["prompt_copies"]) / prompts
    return found


_WHEN = ("before", "after", "best_possible")


def _worst_cap(capped: pa.Table) -> dict[str, Any] | None:
    """Return, of all steps that one sample caps, the worst one's sample: its row is what a reader can look up."""
    if not len(capped):
        return None
    ratio = ratio_columns(capped)[-1]
    at = int(np.argmax(ratio))
    step, row, length = (capped[name][at].as_py() for name in ("step", "cap_row", "cap_length"))
    return {"step": step, "row": row, "length": length, "imbalance_ratio_best_possible": float(ratio[at])}


def _groups(rows: pa.Table) -> dict[str, int]:
    """Return how many groups there are of each degree, ascending."""
    found: dict[int, int] = {}
    for pair in " ".join(rows["degrees"].drop_null().to_pylist()).split():
        degree, count = map(int, pair.split(":"))
        found[degree] = found.get(degree, 0) + count
    return {str(degree): found[degree] for degree in sorted(found)}


def _stream_summary(rows: pa.Table) -> dict[str, Any]:
    """Return what one stream moves, in bytes; the largest ones are of one rank in one step, across nodes."""
    volume, crosses, within, must = (int(total(rows[each])) for each in ("volume", "crosses", "within", "must_cross"))
    send, receive = (pc.max(rows[name]).as_py() for name in ("largest_send", "largest_receive"))
    return {
        "bytes": volume, "crosses_nodes_bytes": crosses, "within_nodes_bytes": within,
        "crosses_nodes": crosses / volume if volume else 0.0, "largest_send_bytes": send,
        "largest_receive_bytes": receive,
        **({"must_cross_nodes_bytes": must} if rows["must_cross"].null_count < len(rows) else {}),
    }  # fmt: skip


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def worst(steps: pa.Table, count: int = 10) -> list[dict[str, Any]]:
    """Return the most uneven rows, the worst first and of equals the earlier: step, phase, ratios, and what caps it."""
    ratios = ratio_columns(steps)
    first = np.argsort(-ratios[1], kind="stable")[:count]
    shown = steps.select(["step", "phase", "cap_row", "cap_length"]).take(first).to_pylist()
    return [
        row | dict(zip(_WHEN, (float(each[i]) for each in ratios), strict=True))
        for row, i in zip(shown, first, strict=True)
    ]


# Epochs whose samples run early or late ----------------------------------------------------------------------------

_SUMS = ("steps", "even_share", "floor", "chosen_floor", "lower_bound")
_LARGEST = ("largest_displacement", "long_from")


def joined_epochs(epochs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the numbers of all epochs, or their parts, together: sums of costs, the largest displacement, else means.

    Means are of steps.
    """
    found: dict[str, Any] = {name: sum(epoch[name] for epoch in epochs) for name in _SUMS}
    for name in sorted(epochs[0].keys() - set(_SUMS)):
        values = [epoch[name] for epoch in epochs]
        if name in _LARGEST:
            found[name] = max(values)
        elif isinstance(values[0], float):
            found[name] = _mean_of_steps(values, epochs)
        else:  # before and after
            found[name] = [_mean_of_steps(of, epochs) for of in zip(*values, strict=True)]
    even = found["even_share"]
    for name, part in (("without", "floor"), ("of_steps", "chosen_floor"), ("best_possible", "lower_bound")):
        found[f"imbalance_ratio_{name}"] = found[part] / even if even else 1.0
    return dict(sorted(found.items()))


def _mean_of_steps(values: Iterable[float], epochs: Sequence[Mapping[str, Any]]) -> float:
    values = list(values)
    if len(values) == 1:  # exactly, without rounding
        return float(values[0])
    weighted = sum(value * epoch["steps"] for value, epoch in zip(values, epochs, strict=True))
    return cast(float, weighted / max(1, sum(epoch["steps"] for epoch in epochs)))
