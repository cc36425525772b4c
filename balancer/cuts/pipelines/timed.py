"""Schedules of a layout's steps within its memory: pipelines, with encoders in their gaps or without."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import solvers
from balancer.plan.gaps import Between, held_in_cells
from balancer.problem.step_times import UNIT_BYTES, StepItems, StepTimes
from solvers.errors import SolverError, TimeLimitError
from solvers.pipeline import (
    MultiplexedResult,
    MultiplexResult,
    PipelineRequest,
    PipelineResult,
    PipelineRun,
    TaskRequest,
    run,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
# Tries: without caps, under those that follow from it, and under those that follow from that.
_ROUNDS = 3
# Times what slots held before: under other caps slots are others, and may hold more.
_MORE = 1.01
# Of what is capped: a pipeline that held less than this alone needs no cap of its own beside encoders in gaps.
_MOST_ALONE = 0.9
# Of what is capped, for the pipeline, where encoders run in gaps: the rest holds their tasks.
_LLM_SHARE = 0.85


class Timeline(NamedTuple):
    """One replica in tenths of nanoseconds, and the tasks in its gaps, if it has some."""

    run: PipelineRun | MultiplexResult
    between: Between | None = None


class Timed(NamedTuple):
    """A schedule; and the bytes that devices hold most in flight, without encoders in gaps, and at work."""

    result: PipelineResult | MultiplexedResult
    held: Floats
    alone: Floats
    at_work: Floats
    slowest: Callable[[], Timeline]

    @property
    def bytes(self) -> Floats:
        """The most that each device holds besides its states."""
        return self.held + self.at_work


def scheduled(
    times: StepTimes, step: StepItems, room: Floats, time_budget: float, *, limited: bool = True
) -> Timed | None:
    """Schedule a step; again, twice at most, under caps on what is in flight, if it holds too much. None if none fits.

    `room`, float64[D], is what each device has, in bytes, for what is in flight and at work. Unless it is `limited`, it
    need not fit.
    """
    schedule = _in_gaps if times.encoders else _pipelined
    caps: Floats | None = None
    alone = np.zeros(times.num_devices)
    for _ in range(_ROUNDS):
        if caps is not None and (caps <= 0).any():
            return None
        try:
            found = schedule(times, step, caps, alone, time_budget)
        except SolverError:
            return None
        if not limited or (found.bytes <= room).all():
            return found
        caps, alone = room - found.at_work, np.maximum(_MORE * alone, found.alone)
    return None


def asked_of(times: StepTimes, step: StepItems) -> dict[str, Any]:
    """Return the arguments of :func:`solvers.schedule_pipeline`, without caps and budget."""
    return {
        "work": times.work(step),
        "num_replicas": times.replicas,
        "num_slots": times.slots,
        "chunks": times.chunks,
        "allow_empty": step.num_samples < times.replicas * times.slots,
        **times.of_ops(),
    }


def _pipelined(times: StepTimes, step: StepItems, caps: Floats | None, alone: Floats, time_budget: float) -> Timed:
    """Schedule the pipelines of a step."""
    asked = asked_of(times, step)
    result = solvers.schedule_pipeline(**asked, **_flight(times, step, caps), time_budget=time_budget)
    held, at_work = held_in_cells(times, step, _cells(result), result.order)

    def slowest() -> Timeline:
        here = result.replica_of_item == int(np.argmax(result.makespans))
        loads = np.zeros((result.num_slots, asked["work"].shape[1]), dtype=np.int64)
        np.add.at(loads, result.slot_of_item[here], asked["work"][here])
        return Timeline(run(loads, order=result.order, **times.of_ops()))

    most = held.max(axis=0)
    return Timed(result, most, most, at_work, slowest)


def _in_gaps(times: StepTimes, step: StepItems, caps: Floats | None, alone: Floats, time_budget: float) -> Timed:
    """Schedule the pipelines of a step with encoders in their gaps; `alone`: what a pipeline held without a cap."""
    tasks, rules, held_cap = times.tasks(step), {}, None
    if caps is not None:
        fits = bool((alone < _MOST_ALONE * caps).all())
        flight = alone if fits else _LLM_SHARE * caps
        rules = {} if fits else _flight(times, step, flight)
        held_cap = np.floor((caps - flight) / UNIT_BYTES).astype(np.int64)
        if int(tasks.size.max(initial=0)) > int(held_cap.max()):
            raise TimeLimitError("no room for the largest task")
    result = solvers.schedule_multiplexed(
        PipelineRequest(**asked_of(times, step), **rules),
        TaskRequest(tasks.sample, tasks.forward, tasks.backward, times.num_devices, tasks.size, held_cap),
        time_budget=time_budget,
    )  # fmt: skip
    alone_, at_work = held_in_cells(times, step, _cells(result), result.order)
    held = alone_ + UNIT_BYTES * np.stack([each.held for each in result.replicas])

    def slowest() -> Timeline:
        replica = int(np.argmax(result.makespans))
        ran = result.replicas[replica]
        return Timeline(ran, Between.from_run(ran, tasks.of(result.tasks_of(replica))))

    return Timed(result, held.max(axis=0), alone_.max(axis=0), at_work, slowest)


def _flight(times: StepTimes, step: StepItems, caps: Floats | None) -> dict[str, Any]:
    """Return keywords that cap what devices hold in flight."""
    if caps is None:
        return {}
    # Rounded up for samples and down for caps: a schedule that keeps to these keeps to the bytes.
    sizes = np.ceil(times.held(step)[0] / UNIT_BYTES).astype(np.int64)
    return {
        "sizes": np.tile(sizes, times.chunks),
        "in_flight_cap": np.floor(caps / UNIT_BYTES).astype(np.int64),
    }


def _cells(result: PipelineResult | MultiplexedResult) -> Ints:
    return result.replica_of_item.astype(np.int64) * result.num_slots + result.slot_of_item
