"""A log under several strategies on a cluster: the table of steps, with the strategy of each and its seconds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import stdev
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from balancer.errors import InputError
from balancer.io.log import LengthLog, choose_length, read_columns
from balancer.offline.settings import LogSettings
from balancer.offline.step_table import COLUMNS, Column, StepRows, rows_of, total
from balancer.offline.steps import compare_log
from balancer.plan.step_plan import StepPlan
from balancer.simulate.cluster import Cluster
from balancer.simulate.phase_model import PhaseModel
from balancer.simulate.step import StepTime, step_time
from balancer.strategies import strategies_for
from solvers.arguments import as_count

_TIME, _COUNT = pa.float64(), pa.int64()

SIMULATED = (
    Column("strategy", pa.string(), "By which strategy the step was planned."),
    Column("compute_s", _TIME, "Seconds that a rank computes, on the mean."),
    Column("waiting_s", _TIME, "Seconds that it waits for the slowest."),
    Column("useful_flops", _TIME, "FLOPs of all ranks."),
    Column("executed_flops", _TIME, "The same with padding and recomputation."),
    Column("peak_tokens", _COUNT, "Elements on the rank that holds most at a time, padding included."),
    Column("exchange_s", _TIME, "Of a stream: seconds of the slowest rank, nothing hidden."),
    Column("inter_node_bytes", _COUNT, "Of a stream: bytes that cross nodes, both ways together."),
    Column("intra_node_bytes", _COUNT, "Of a stream: bytes that stay within nodes."),
    Column("step_s", _TIME, "In the last phase's row: what the step takes, the sum of the next three."),
    Column("step_compute_s", _TIME, "In the last phase's row: seconds that a rank computes all phases, on the mean."),
    Column("step_waiting_s", _TIME, "In the last phase's row: seconds that a rank waits, on the mean."),
    Column("step_exchange_s", _TIME, "In the last phase's row: seconds of exchanges that computing does not hide."),
    Column("step_flops", _TIME, "In the last phase's row: useful FLOPs of all phases."),
    Column("peak_flops", _TIME, "In the last phase's row: FLOPs that all GPUs could do in a second."),
    Column("activation_bytes", _TIME, "In the last phase's row: activations of a GPU of the rank that holds most."),
    Column("step_slots", _COUNT, "In the last phase's row: micro-batches of every rank; 1 without them."),
)
"""What a simulation adds to the columns of the table of steps."""


@dataclass(frozen=True)
class Simulation:
    """What a simulation of a log found.

    Attributes
    ----------
    table : pyarrow.Table
        A row a step, strategy and phase or stream: the columns of the table of steps, and ``SIMULATED``.
    first : dict of str to StepTime
        The first step by each strategy, with what each rank takes.
    steps : int
        Simulated by each strategy.
    rows : int
        Of the log.
    passes : float
        How often the log was read: above 1 the same samples come again, in other batches unless the rows of the log are
        a multiple of a step's.
    """

    table: pa.Table
    first: Mapping[str, StepTime] = field(repr=False)
    steps: int
    rows: int
    passes: float

    def of(self, strategy: str) -> pa.Table:
        """Return the rows of a strategy."""
        return self.table.filter(pc.equal(self.table["strategy"], strategy))

    def seconds(self, strategy: str) -> list[float]:
        """Return what each step takes by a strategy."""
        seconds: list[float] = self.of(strategy)["step_s"].drop_null().to_pylist()
        return seconds

    @cached_property
    def strategies(self) -> dict[str, dict[str, Any]]:
        """What the steps of each strategy add up to, by the names of ``--json``."""
        return {strategy: _summary(self.of(strategy)) for strategy in self.first}


def _summary(rows: pa.Table) -> dict[str, Any]:
    """Return all numbers of a strategy by name; seconds and bytes are a step's mean."""
    whole = rows.filter(pc.is_valid(rows["step_s"]))
    phases, streams = rows.filter(pc.is_valid(rows["compute_s"])), rows.filter(pc.is_valid(rows["exchange_s"]))
    steps, seconds = len(whole), whole["step_s"].to_pylist()
    taken = total(whole["step_s"])
    peak = taken * whole["peak_flops"][0].as_py()

    def mean(of: pa.Table, *names: str) -> dict[str, float]:
        return {name: total(of[name]) / steps for name in names}

    def by_name(of: pa.Table) -> dict[str, pa.Table]:
        return {name: of.filter(pc.equal(of["phase"], name)) for name in pc.unique(of["phase"]).to_pylist()}

    return {
        "step_s": {
            "mean": taken / steps, "deviation": stdev(seconds) if steps > 1 else 0.0, "fastest": min(seconds),
            "slowest": max(seconds),
        },
        **{name: total(whole[f"step_{name}"]) / steps for name in ("compute_s", "waiting_s", "exchange_s")},
        "mfu": total(whole["step_flops"]) / peak if peak else 0.0,
        "samples_per_s": total(whole["samples"]) / taken if taken else 0.0,
        "activation_bytes": pc.max(whole["activation_bytes"]).as_py(),
        "micro_batches": dict(zip(("fewest", "most"), pc.min_max(whole["step_slots"]).as_py().values(), strict=True)),
        "phases": {
            name: mean(of, "compute_s", "waiting_s", "useful_flops", "executed_flops")
            | {"peak_tokens": pc.max(of["peak_tokens"]).as_py()}
            for name, of in by_name(phases).items()
        },
        "streams": {
            name: mean(of, "exchange_s", "inter_node_bytes", "intra_node_bytes")
            for name, of in by_name(streams).items()
        },
    }  # fmt: skip


def _rows(number: int, strategy: str, plan: StepPlan, step: StepTime) -> list[dict[str, Any]]:
    """Return the rows of a step."""
    rows = {row["phase"]: row for row in rows_of(number, plan, number * plan.num_samples)}
    for name, phase in step.phases.items():
        rows[name] |= {
            "compute_s": phase.compute_s, "waiting_s": phase.waiting_s, "useful_flops": phase.useful_flops,
            "executed_flops": phase.executed_flops, "peak_tokens": phase.peak_tokens,
        }  # fmt: skip
    rows[[*plan.phases][-1]] |= {
        "step_s": step.seconds, "step_compute_s": step.compute_s, "step_waiting_s": step.waiting_s,
        "step_exchange_s": step.exchange_s, "step_flops": step.useful_flops, "peak_flops": step.peak_flops,
        "activation_bytes": step.activation_bytes, "step_slots": step.num_slots,
    }  # fmt: skip
    for name, exchange in step.exchanges.items():
        row = rows.setdefault(name, {"step": number, "phase": name, "samples": plan.num_samples})
        row |= {
            "exchange_s": exchange.seconds, "inter_node_bytes": exchange.inter_node_bytes,
            "intra_node_bytes": exchange.intra_node_bytes,
        }  # fmt: skip
    return [row | {"strategy": strategy} for row in rows.values()]


def simulate_log(
    log: LengthLog,
    settings: LogSettings,
    models: Mapping[str, PhaseModel],
    cluster: Cluster,
    *,
    strategies: Sequence[str] | None = None,
    num_steps: int | None = None,
    overlap: float = 0.0,
    waits: str = "phase",
    tick: Callable[[int], None] = lambda _: None,
) -> Simulation:
    """Simulate a log under several strategies.

    Parameters
    ----------
    log : LengthLog
    settings : LogSettings
        How the log becomes global batches and how they are planned. All steps are full.
    models : mapping of str to PhaseModel
        Of every phase.
    cluster : Cluster
    strategies : sequence of str
        Names in :data:`balancer.strategies.STRATEGIES`; by default all that the settings allow.
    num_steps : int, optional
        If it exceeds the log, the log is read again from its start. By default all steps of the log, at least one.
    overlap, waits
        As :func:`balancer.simulate.step_time` takes them.
    tick : callable
        Called with the samples of every step that is done.

    Returns
    -------
    Simulation

    Raises
    ------
    InputError, ValueError
        A log, a row, a strategy or an argument that cannot be used.
    """
    missing = [phase.name for phase in settings.setup.phases if phase.name not in models]
    if missing:
        raise ValueError(f"phase {missing[0]!r} has no model; there are models for {', '.join(models) or 'none'}")
    rows = _count_rows(log, settings)
    endless, steps = True, None if num_steps is None else as_count("num_steps", num_steps)
    if settings.across is not None:  # as many steps as an epoch has
        endless, settings = steps is not None, replace(settings, drop_last=True)
    elif steps is None:
        steps = max(1, rows // settings.samples_per_step)
    strategies = strategies or strategies_for(settings.setup)
    found = {strategy: StepRows((*COLUMNS, *SIMULATED)) for strategy in strategies}
    first: dict[str, StepTime] = {}
    for strategy, plan in compare_log(log, settings, strategies, steps, endless=endless):
        step = step_time(plan, models, cluster, overlap=overlap, waits=waits)
        first.setdefault(strategy, step)
        found[strategy].take(_rows(found[strategy].steps, strategy, plan, step), plan.num_samples)
        tick(plan.num_samples)
    if not first:
        raise InputError(f"{log.path}: fills no step, and a short one is not simulated")
    table, any_of = pa.concat_tables([each.table() for each in found.values()]), found[strategies[0]]
    return Simulation(table, first, any_of.steps, rows, any_of.samples / rows)


def _count_rows(log: LengthLog, settings: LogSettings) -> int:
    """Read one column to its end; a damaged log is found out before the work."""
    phase = settings.setup.phases[-1]
    return len(read_columns(log, {"": choose_length(log, phase.length)}))
