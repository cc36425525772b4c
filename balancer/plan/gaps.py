"""What runs in the gaps of pipelines: on which device and in which turn; and all that a device runs, in turn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from balancer.problem.cuts.pipeline_stages import PipelineStages
from balancer.problem.step_times import GapTasks, StepItems, StepTimes, TimedStep
from solvers.pipeline import MultiplexedResult, MultiplexResult, OpOrder, PipelineRun
from solvers.types import Record

__all__ = ["Between", "DeviceOp", "GapTable", "TaskPiece", "ops_in_turn", "run_after"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Between(NamedTuple):
    """When a replica's devices run tasks, forwards and backwards: what a timeline shows between the pipeline's ops.

    Attributes
    ----------
    device, start, takes : int64[b]
    """

    device: Ints
    start: Ints
    takes: Ints

    @classmethod
    def from_run(cls, run: MultiplexResult, tasks: GapTasks) -> "Between":
        """Read it off the run of a replica, whose tasks these are."""
        start = np.concatenate([run.task_forward_start, run.task_backward_start])
        ran, takes = np.flatnonzero(start >= 0), np.concatenate([tasks.forward, tasks.backward])
        return cls(np.tile(run.task_device, 2).astype(np.int64)[ran], start[ran], takes[ran])

    @classmethod
    def before(cls, num_devices: int, ahead: int) -> "Between":
        """Return encoders that take so long on all devices before the pipeline."""
        count = num_devices if ahead else 0
        return cls(np.arange(count), np.zeros(count, dtype=np.int64), np.full(count, ahead))


class TaskPiece(NamedTuple):
    """What a task computes of one item.

    Attributes
    ----------
    module : str
        The phase of an encoder.
    item : int
        Which of the sample's items in that phase, from 0.
    start, stop : int
        From which of its elements to which, the last not included.
    """

    module: str
    item: int
    start: int
    stop: int


class DeviceOp(NamedTuple):
    """One thing that a device of a pipeline runs.

    Attributes
    ----------
    slot : int
        The micro-batch.
    backward : bool
        Whether it is a backward, else a forward.
    stage : int or None
        Of the pipeline; None of encoders' work in its gaps.
    sample : int or None
        Whose, of such work: a sample of the global batch.
    part, parts : int
        Which part of the sample's work in all encoders, of how many alike: its pieces (tiles, or else items) are dealt
        out evenly, in their order.
    kind : str
        Of the backward of a stage, or of a task: ``"none"`` is run, it makes the ``"input"``'s gradient alone, or the
        ``"full"`` one, of parameters too. Forwards say it too, as they keep what that needs.
    recompute : bool
        Whether the backward of a stage runs the forward again, which then keeps its input alone.
    pieces : tuple of TaskPiece
        What a task computes, in the order of modules, items and elements.
    """

    slot: int
    backward: bool
    stage: int | None = None
    sample: int | None = None
    part: int = 0
    parts: int = 1
    kind: str = "full"
    recompute: bool = False
    pieces: tuple[TaskPiece, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class GapTable(Record):
    """Tasks in the gaps of all replicas' pipelines: parts of samples' work in all encoders."""

    # in the order of samples and parts; samples are those that the plan keeps
    tasks: GapTasks = field(compare=False)
    device: Ints  # int64[t]: of its sample's replica, where each runs, forward and backward
    # int64[t]: their places among all that the device runs, the pipeline's ops included, from 0; -1 where there
    # is no backward
    forward_turn: Ints
    backward_turn: Ints

    @classmethod
    def from_schedule(cls, tasks: GapTasks, found: MultiplexedResult) -> "GapTable":
        """Read turns off a schedule of these tasks."""
        columns = np.full((3, len(tasks.sample)), -1, dtype=np.int64)
        for replica, each in enumerate(found.replicas):
            mine = found.tasks_of(replica)
            columns[:, mine] = each.task_device, each.task_forward_turn, each.task_backward_turn
        return cls(tasks, *columns)

    def run(
        self, stages: PipelineStages, slots: Ints, replica: int, rank: NDArray[np.int32], slot: NDArray[np.int32]
    ) -> MultiplexResult:
        """Run a replica exactly; `slots`, int64[R, K, M], is work in each module, `rank` and `slot` are of samples."""
        owner = self.tasks.sample
        mine = np.flatnonzero(rank[owner] == replica)
        turns = self.device[mine], self.forward_turn[mine], self.backward_turn[mine]
        return stages.run_tasks(slots[replica], slot[owner[mine]].astype(np.int64), self.tasks.of(mine), turns)

    def on_device(
        self, device: int, chosen: NDArray[np.bool_], slot: NDArray[np.int32], timed: TimedStep
    ) -> dict[int, DeviceOp]:
        """Return what some tasks do on a device, by turn; `slot` is that of each sample, int32[n]."""
        (part, parts), found = self.tasks.part, {}
        items = ItemsBySample(timed.items)
        for i in np.flatnonzero(chosen & (self.device == device)).tolist():
            sample = int(self.tasks.sample[i])
            for back, turn in ((False, int(self.forward_turn[i])), (True, int(self.backward_turn[i]))):
                if turn >= 0:
                    whose = sample, int(part[i]), int(parts[i])
                    kind = "full" if self.tasks.backward[i] else "none"
                    pieces = items.part(sample, timed.times.encoders, timed.times.pieces, *whose[1:])
                    found[turn] = DeviceOp(int(slot[sample]), back, None, *whose, kind=kind, pieces=pieces)
        return found


class ItemsBySample:
    """The items of samples in each phase: what tasks are cut from."""

    def __init__(self, items: StepItems) -> None:
        self._lengths = items.lengths
        self._of: dict[str, list[Ints]] = {}
        for name, sample in items.sample.items():
            order = np.argsort(sample, kind="stable")
            bounds = np.searchsorted(sample[order], np.arange(1, items.num_samples))
            self._of[name] = np.split(order, bounds)

    def part(
        self, sample: int, names: Sequence[str], pieces: Mapping[str, int | None], part: int, parts: int
    ) -> tuple[TaskPiece, ...]:
        """Return one of so many parts of a sample's work in some modules: pieces in their order, dealt out evenly."""
        units = [unit for name in names for unit in self._units(sample, name, pieces.get(name))]
        mine = units[part * len(units) // parts : (part + 1) * len(units) // parts]
        found: list[TaskPiece] = []
        for unit in mine:  # pieces of one item that follow each other are one
            if found and found[-1][:2] == unit[:2]:
                unit = found.pop()._replace(stop=unit.stop)
            found.append(unit)
        return tuple(found)

    def _units(self, sample: int, name: str, piece: int | None) -> list[TaskPiece]:
        """Return what cannot be cut: whole items, or pieces of them, the last of an item with what is left over."""
        found = []
        for item, number in enumerate(self._of[name][sample].tolist()):
            length = int(self._lengths[name][number])
            count = max(1, length // piece) if piece else 1
            starts = [i * (piece or 0) for i in range(count)]
            stops = [*starts[1:], length]
            found += [TaskPiece(name, item, *both) for both in zip(starts, stops, strict=True) if length]
        return found


def run_after(run: PipelineRun, ahead: int) -> PipelineRun:
    """Return a run before which all devices have so long to work."""
    names = ("forward_start", "forward_end", "backward_start", "backward_end")
    later = {name: np.where(at < 0, at, at + ahead) for name in names for at in (getattr(run, name),)}
    return replace(run, makespan=run.makespan + ahead, busy=run.busy + ahead, **later)


def ops_in_turn(order: OpOrder, device: int, between: dict[int, DeviceOp], stages: PipelineStages) -> list[DeviceOp]:
    """Return all that a device runs, in turn: what has a turn of its own, and the pipeline's ops in all other turns."""
    own = order.ops_of(device)
    made = [(stages.kind_of_backward(stage), stages.recomputes(stage)) for stage in range(stages.num_stages)]
    ops = (DeviceOp(slot, back, stage, kind=made[stage][0], recompute=made[stage][1]) for slot, stage, back in own)
    # Tasks have numbered turns and pipeline ops have an order: so a plan needs no times, and a trainer no clock.
    return [between[turn] if turn in between else next(ops) for turn in range(len(own) + len(between))]


def held_in_cells(times: StepTimes, step: StepItems, cell: Ints, order: OpOrder) -> tuple[Floats, Floats]:
    """Return the most that devices of each replica have in flight, float64[R, D], and all at work, float64[D].

    `cell`, int64[n], is of each sample its replica times the slots, and its slot.
    """
    slots, devices, replicas = order.num_slots, order.num_devices, times.replicas
    volumes, at_work = (
        np.stack([np.bincount(cell, each[:, d], replicas * slots) for d in range(devices)], axis=1)
        for each in times.held(step)
    )
    # A forward adds what its slot holds until the backward of the same slot and stage takes it away. The first
    # `forward_only` stages have no backward, so they keep nothing.
    sign = np.where(order.backward, -1.0, 1.0) * (order.stage >= order.forward_only)
    steps = volumes.reshape(replicas, slots, devices)[:, order.slot, order.stage % devices] * sign
    held = [
        np.cumsum(steps[:, order.device_offsets[d] : order.device_offsets[d + 1]], axis=1).max(axis=1, initial=0.0)
        for d in range(devices)
    ]
    return np.stack(held, axis=1), at_work.max(axis=0)
