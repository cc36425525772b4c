"""What a layout takes and holds, by exact schedules of its steps."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import solvers
from balancer.problem.layout import StepLayout
from balancer.simulate.given import StepItems
from balancer.simulate.layout_bounds import LayoutCase, room_of, slots_held
from solvers.errors import SolverError, TimeLimitError
from solvers.pipeline import MultiplexResult, OpOrder, PipelineRun, run

__all__ = ["Priced", "Timeline", "price", "timeline"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
_PER_SECOND = 10**10  # units in which schedules count time
_UNIT_BYTES = 1024  # and what is held
_TASK_SHARE = 0.02  # of the room beside the states that an encoder's task may hold
_MOST_ALONE = 0.9  # of what is capped, for the pipeline to need no cap of its own beside encoders in gaps
_LLM_SHARE = 0.85  # of what is capped, where encoders run in gaps


@dataclass(frozen=True, slots=True)
class Priced:
    """What a layout takes, the mean over the steps.

    Attributes
    ----------
    layout : StepLayout
        With the number of micro-batches, and the most tokens that one may hold so that the memory is enough.
    seconds : float
        Of a step.
    lower_bound_s : float
        No schedule of this layout, with as many micro-batches, takes less.
    idle : float
        Part of the time of all GPUs in which they compute and exchange for no module.
    mfu : float
        Useful FLOPs over what all GPUs could do.
    bytes : float
        The most on any GPU in any of the steps.
    encoder_s, sync_s : float
        Of the seconds, encoders before the pipeline; gradients and parameters.
    """

    layout: StepLayout
    seconds: float
    lower_bound_s: float
    idle: float
    mfu: float
    bytes: float
    encoder_s: float
    sync_s: float

    def to_json(self) -> dict[str, Any]:
        """Return all numbers by name."""
        names = ("seconds", "lower_bound_s", "idle", "mfu", "bytes", "encoder_s", "sync_s")
        return {"layout": self.layout.to_json(), **{name: getattr(self, name) for name in names}}


class Timeline(NamedTuple):
    """One replica in tenths of nanoseconds; with tasks in its gaps, what they take, int64[t], and which generate."""

    run: PipelineRun | MultiplexResult
    forward: Ints
    backward: Ints
    late: Bools


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """One step as it was scheduled: seconds, a bound, bytes on the fullest GPU, and the slowest replica's run."""

    seconds: float
    bound: float
    encoder_s: float
    bytes: float
    slowest: Callable[[], Timeline]


def price(case: LayoutCase, time_budget: float, *, limited: bool = True) -> Priced | None:
    """Schedule all steps of a layout; None if no schedule was found that fits the memory.

    Parameters
    ----------
    case : LayoutCase
    time_budget : float
        Seconds' worth of work for each step.
    limited : bool
        Whether it has to fit.
    """
    given, layout = case.given, case.layout
    steps = [_scheduled(case, step, time_budget, limited) for step in given.steps]
    if any(step is None for step in steps):
        return None
    found = [step for step in steps if step is not None]
    count = len(found)
    seconds = sum(step.seconds for step in found) / count + case.sync_s
    useful = sum(map(given.useful_flops, given.steps)) / count
    chosen = replace(layout, micro_batches=case.num_slots, micro_batch_tokens=_token_cap(case))
    return Priced(
        chosen, seconds, sum(step.bound for step in found) / count + case.sync_s, 1 - _busy(case) / seconds,
        useful / (seconds * given.num_gpus * given.cluster.peak_flops), max(step.bytes for step in found),
        sum(step.encoder_s for step in found) / count, case.sync_s,
    )  # fmt: skip


def timeline(case: LayoutCase, time_budget: float) -> Timeline | None:
    """Return the slowest replica of the first step, None if no schedule fits the memory."""
    step = _scheduled(case, case.given.steps[0], time_budget)
    return None if step is None else step.slowest()


def _busy(case: LayoutCase) -> float:
    """Seconds that all GPUs there are would take if none waited."""
    given, total = case.given, 0.0
    rates = zip(case.times.names, case.times.rates, strict=True)
    for name, rate in (*rates, *case.apart.items()):
        flops, elements = given.total(name)
        one = case.layout.modules[name]
        gpus = one.device_gpus
        if case.layout.mode == "multiplexed" or name in case.times.names:
            gpus = case.layout.llm.device_gpus if name in case.apart else one.num_gpus // (case.layout.llm.dp * one.pp)
        total += gpus * (1 + rate.backward) * (rate.per_flop * flops + rate.per_element * elements)
    return total / (len(given.steps) * given.num_gpus)


def _token_cap(case: LayoutCase) -> int | None:
    """Return how many tokens of the language model a micro-batch may hold, all in flight being as large."""
    llm = case.layout.llm_name
    per_token = case.memory.kept[llm] * slots_held(case.layout, case.num_slots) + case.memory.at_work[llm]
    room = room_of(case.given) - case.memory.states
    if not per_token.any():
        return None
    return max(1, int((room[per_token > 0] / per_token[per_token > 0]).min()))


class _Before(NamedTuple):
    """Encoders before the pipeline: seconds, a bound, and what their ranks hold until their backward."""

    seconds: float
    bound: float
    held: float


class _Found(NamedTuple):
    """A schedule: times in units; the most that devices hold in flight, without encoders in gaps, and at work."""

    makespan: int
    bound: int
    held: Floats
    alone: Floats
    at_work: Floats
    slowest: Callable[[], Timeline]


class _Table(NamedTuple):
    """A step's samples in the pipeline: keywords of solvers, and bytes of each on every device, float64[n, devices]."""

    ask: dict[str, Any]
    held: Floats
    at_work: Floats


def _scheduled(case: LayoutCase, step: StepItems, time_budget: float, limited: bool = True) -> _Step | None:
    """Schedule a step; again under caps on what is in flight, if it holds too much."""
    table, before = _table(case, step), _before(case, step, time_budget)
    room = room_of(case.given) - case.memory.states - before.held
    schedule = _in_gaps if case.layout.mode == "multiplexed" and case.apart else _pipelined
    caps: Floats | None = None
    alone = np.zeros(len(case.memory.states))
    for _ in range(2):
        if caps is not None and (caps <= 0).any():
            return None
        try:
            found = schedule(case, step, table, caps, alone, time_budget)
        except SolverError:
            return None
        total = found.held + found.at_work
        if not limited or (total <= room).all():
            fullest = float((total + case.memory.states).max()) + before.held
            seconds, bound = before.seconds + found.makespan / _PER_SECOND, before.bound + found.bound / _PER_SECOND
            return _Step(seconds, bound, before.seconds, fullest, found.slowest)
        caps, alone = room - found.at_work, found.alone
    return None


def _table(case: LayoutCase, step: StepItems) -> _Table:
    times, layout, parts = case.times, case.layout, case.times.parts.sum(axis=1)
    seconds = np.stack(
        [rate.seconds(*step.of_sample[name]) for name, rate in zip(times.names, times.rates, strict=True)], axis=1
    )
    held, at_work = np.zeros((2, step.num_samples, len(case.memory.states)))
    for name in times.names:
        held += step.of_sample[name][1][:, None] * case.memory.kept[name]
        at_work += step.of_sample[name][1][:, None] * case.memory.at_work[name]
    backward = times.parts * times.backward[:, None]
    ask: dict[str, Any] = {
        "work": _units(seconds / parts),
        "forward": times.parts,
        "backward": backward,
        "num_replicas": layout.llm.dp,
        "num_slots": case.num_slots,
        "forward_overhead": _units(times.forward_overhead),
        "backward_overhead": _units(times.backward_overhead),
        "hop": round(times.hop * _PER_SECOND),
        "chunks": layout.llm.chunks,
        "allow_empty": step.num_samples < layout.llm.dp * case.num_slots,
    }
    return _Table(ask, held, at_work)


def _units(seconds: Floats) -> Ints:
    return np.rint(seconds * _PER_SECOND).astype(np.int64)


def _before(case: LayoutCase, step: StepItems, time_budget: float) -> _Before:
    """Deal encoders' items out evenly to their ranks: those of encoders with equally many ranks together.

    Pieces are dealt out one by one.
    """
    seconds = bound = held = 0.0
    if case.layout.mode != "before":
        return _Before(0.0, 0.0, 0.0)
    for ranks in sorted({case.layout.modules[name].dp for name in case.apart}):
        names = [name for name in case.apart if case.layout.modules[name].dp == ranks]
        times, bytes_ = [], []
        for name in names:
            rate, piece = case.apart[name], case.given.pieces.get(name)
            count = np.maximum(1, np.ceil(step.lengths[name] / (piece or np.inf))).astype(np.int64)
            each, lengths = rate.seconds(step.flops[name], step.lengths[name]), step.lengths[name]
            times.append(np.repeat((1 + rate.backward) * each / count, count))
            bytes_.append(np.repeat(lengths / count, count) * float(case.memory.kept[name].max()))
        found = solvers.partition(_units(np.concatenate(times)), ranks, time_budget=time_budget)
        seconds, bound = seconds + found.makespan / _PER_SECOND, bound + found.lower_bound / _PER_SECOND
        held += float(np.bincount(found.group_of_item, np.concatenate(bytes_), ranks).max())
    return _Before(seconds, bound, held)


def _pipelined(
    case: LayoutCase, step: StepItems, table: _Table, caps: Floats | None, alone: Floats, time_budget: float
) -> _Found:  # fmt: skip
    """Schedule the pipelines of a step."""
    result = solvers.schedule_pipeline(**table.ask, **_flight(case, table, caps), time_budget=time_budget)
    cell = result.replica_of_item.astype(np.int64) * result.num_slots + result.slot_of_item
    held, at_work = _held(table, cell, result.order, case.layout.llm.dp)

    def slowest() -> Timeline:
        here = result.replica_of_item == int(np.argmax(result.makespans))
        loads = np.zeros((result.num_slots, table.ask["work"].shape[1]), dtype=np.int64)
        np.add.at(loads, result.slot_of_item[here], table.ask["work"][here])
        names = ("forward", "backward", "forward_overhead", "backward_overhead", "hop")
        none = np.zeros(0, dtype=np.int64)
        return Timeline(
            run(loads, order=result.order, **{name: table.ask[name] for name in names}), none, none, none > 0
        )

    most = held.max(axis=0)
    return _Found(result.makespan, result.lower_bound, most, most, at_work, slowest)


class _Tasks(NamedTuple):
    """Work of samples in gaps: of which sample each task is, units both ways, what it holds, whether it generates."""

    sample: Ints
    forward: Ints
    backward: Ints
    size: Ints
    late: Bools

    @property
    def at_work(self) -> float:
        """Bytes of the largest generator's task, which holds them while it runs, forward and backward in one."""
        return float(_UNIT_BYTES * self.size[self.late].max(initial=0))


def _tasks(case: LayoutCase, step: StepItems, room: float) -> _Tasks:
    """Return a task for each sample with encoder work, and for each with a generator's; see :func:`_parted`."""
    found = [_parted(case, step, room, names) for names in (case.layout.encoders, case.layout.after)]
    sample, forward, backward, size = (np.concatenate(columns) for columns in zip(*found, strict=True))
    return _Tasks(sample, forward, backward, size, np.repeat([False, True], [len(each[0]) for each in found]))


def _parted(case: LayoutCase, step: StepItems, room: float, names: Collection[str]) -> tuple[Ints, Ints, Ints, Ints]:
    """Return a task for each sample with work in some modules; several alike where long or large, and to be parted."""
    forward, backward, size, pieces = np.zeros((4, step.num_samples))
    for name in names:
        rate, bytes_ = case.apart[name], case.memory.kept[name].max()
        each = rate.seconds(*step.of_sample[name])
        forward += each
        backward += rate.backward * each
        size += step.of_sample[name][1] * float(bytes_)
        parts = np.maximum(1, step.lengths[name] // (case.given.pieces.get(name) or np.inf))
        pieces += np.bincount(step.sample[name], parts * (step.lengths[name] > 0), step.num_samples)
    times = case.times
    op = float(times.totals(step).sum()) / (case.layout.llm.dp * case.num_slots * times.parts.shape[1])
    wanted = np.ceil(np.maximum(forward / max(op, 1e-9), size / (_TASK_SHARE * max(room, 1.0))))
    count = np.where(forward > 0, np.clip(wanted, 1, np.maximum(1, pieces)), 0).astype(np.int64)
    sample = np.repeat(np.arange(step.num_samples), count)
    each = np.maximum(1, count)
    sizes = np.ceil(size / each / _UNIT_BYTES).astype(np.int64)
    return sample, _units(forward / each)[sample], _units(backward / each)[sample], sizes[sample]


def _in_gaps(
    case: LayoutCase, step: StepItems, table: _Table, caps: Floats | None, alone: Floats, time_budget: float
) -> _Found:
    """Schedule the pipelines of a step with encoders in their gaps; `alone`: what a pipeline held without a cap."""
    room = float((room_of(case.given) - case.memory.states).min())
    tasks, rules = _tasks(case, step, room), {}
    if caps is not None:
        fits = bool((alone < _MOST_ALONE * caps).all())
        flight = alone if fits else _LLM_SHARE * caps
        rules = {} if fits else _flight(case, table, flight)
        rules["held_cap"] = np.floor((caps - flight) / _UNIT_BYTES).astype(np.int64)
        if int(tasks.size[~tasks.late].max(initial=0)) > int(rules["held_cap"].max()):
            raise TimeLimitError("no room for the largest task")
    result = solvers.schedule_multiplexed(
        **table.ask, **rules, task_item=tasks.sample, task_forward=tasks.forward, task_backward=tasks.backward,
        task_size=tasks.size, task_after=tasks.late, window=len(case.memory.states), time_budget=time_budget,
    )  # fmt: skip
    cell = result.replica_of_item.astype(np.int64) * result.num_slots + result.slot_of_item
    alone_, at_work = _held(table, cell, result.order, case.layout.llm.dp)
    held = alone_ + _UNIT_BYTES * np.stack([each.held for each in result.replicas])
    makespans = [each.makespan for each in result.replicas]

    def slowest() -> Timeline:
        replica = int(np.argmax(makespans))
        here = result.tasks_of(replica)
        return Timeline(result.replicas[replica], tasks.forward[here], tasks.backward[here], tasks.late[here])

    at_work = at_work + tasks.at_work
    return _Found(result.makespan, result.lower_bound, held.max(axis=0), alone_.max(axis=0), at_work, slowest)


def _flight(case: LayoutCase, table: _Table, caps: Floats | None) -> dict[str, Any]:
    """Return keywords that cap what devices hold in flight."""
    if caps is None:
        return {}
    sizes = np.ceil(table.held / _UNIT_BYTES).astype(np.int64)
    return {
        "sizes": np.tile(sizes, case.layout.llm.chunks),
        "in_flight_cap": np.floor(caps / _UNIT_BYTES).astype(np.int64),
    }


def _held(table: _Table, cell: Ints, order: OpOrder, replicas: int) -> tuple[Floats, Floats]:
    """Return the most that devices of each replica have in flight, float64[R, devices], and of all at work."""
    slots, devices = order.num_slots, order.num_devices
    at_work, volumes = (
        np.stack([np.bincount(cell, each[:, d], replicas * slots) for d in range(devices)], axis=1)
        for each in (table.at_work, table.held)
    )
    sign = np.where(order.backward, -1.0, 1.0) * (order.stage >= order.forward_only)
    steps = volumes.reshape(replicas, slots, devices)[:, order.slot, order.stage % devices] * sign
    held = [
        np.cumsum(steps[:, order.device_offsets[d] : order.device_offsets[d + 1]], axis=1).max(axis=1, initial=0.0)
        for d in range(devices)
    ]
    return np.stack(held, axis=1), at_work.max(axis=0)
