"""Pipelines as data: what is asked for, as a caller gives it, and what schedules return.

Solvers and independent checkers both begin from requests; whoever takes one checks it, once.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers.pipeline.orders import OpOrder
from solvers.types import Proven, Record


@dataclass(frozen=True, slots=True, eq=False)
class PipelineRequest:
    """Items for pipelines, what their stages take, and the rules; whoever solves it checks it, once.

    Attributes
    ----------
    work : int64[n, M]
        Work of each item in each module; where slots are given (:func:`solvers.pipeline.run_turns`), of each slot.
    num_replicas, num_slots : int
        Needed where slots are to be found, and not where they are given, or a result is checked.
    forward, backward, forward_overhead, backward_overhead, sizes, cap, in_flight_cap, order, chunks, hop, tied, \
slots_multiple_of, allow_empty
        As in :func:`solvers.schedule_pipeline`.
    """

    work: ArrayLike
    forward: ArrayLike
    backward: ArrayLike
    num_replicas: SupportsIndex | None = None
    num_slots: SupportsIndex | None = None
    _: KW_ONLY
    forward_overhead: ArrayLike | None = None
    backward_overhead: ArrayLike | None = None
    sizes: ArrayLike | None = None
    cap: ArrayLike | None = None
    in_flight_cap: ArrayLike | None = None
    order: str | OpOrder = "1f1b"
    chunks: SupportsIndex = 1
    hop: int = 0
    tied: bool = False
    slots_multiple_of: SupportsIndex = 1
    allow_empty: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class TaskRequest:
    """Tasks in the gaps of pipelines, and the rules for them; whoever solves it checks it, once.

    Attributes
    ----------
    owner : int64[t]
        The item of each task (its encoder work; an item may have none, or several); where slots are given, the slot.
    forward, backward : int64[t]
        What its forward and backward take on one device.
    window, size, held_cap, devices
        As in :func:`solvers.pipeline.multiplex`, where two of them are called ``task_size`` and ``task_devices``.
    """

    owner: ArrayLike
    forward: ArrayLike
    backward: ArrayLike
    window: SupportsIndex
    size: ArrayLike | None = None
    held_cap: ArrayLike | None = None
    devices: ArrayLike | str = "any"

    def of_slots(self, slots: ArrayLike, chosen: NDArray[np.int64]) -> TaskRequest:
        """Return the tasks with these numbers, each of the slot given."""
        return replace(
            self, owner=slots, forward=np.asarray(self.forward)[chosen], backward=np.asarray(self.backward)[chosen],
            size=None if self.size is None else np.asarray(self.size)[chosen],
            devices=self.devices if isinstance(self.devices, str) else np.asarray(self.devices)[chosen],
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class PipelineCut(Record):
    """Critical paths with integer weights, added up op by op: a flow from first ops along the order to any ops.

    No replica ends before any of its paths, so not before their mean; and it is least where every module's work lies in
    the slot that counts least. *Any* such flow proves a bound, for any work; a linear program picks a good one.

    Attributes
    ----------
    from_device : int64[T], read-only
        By op of the order: weight of the paths that come to it from the op before it on its device, or begin with it,
        the device's first.
    from_neighbour : int64[T], read-only
        Weight of the paths that come to it from the op of the same slot that it follows.
    bits : int
        The weights of all paths sum to 2 to the power of this.
    """

    from_device: NDArray[np.int64]
    from_neighbour: NDArray[np.int64]
    bits: int


@dataclass(frozen=True, slots=True, eq=False)
class PipelineResult(Proven):
    """Items in slots of replicas, with a certificate.

    Attributes
    ----------
    replica_of_item, slot_of_item : int32[n], read-only
        In the order in which the items were given.
    makespans : int64[num_replicas], read-only
        When each replica's pipeline ends, exactly.
    makespan : int
        The largest of them.
    lower_bound : int
        Proven: no schedule with this op order has a smaller makespan.
    bound_name : str
        The argument that proves `lower_bound`; see :mod:`solvers.pipeline.bounds`.
    cut : PipelineCut or None
        What proves ``"fluid"``.
    order : OpOrder
        What every replica's devices run, in turn; it says K.
    status : SolveStatus
        ``OPTIMAL`` if and only if ``makespan == lower_bound``.
    runtime_s : float
        Seconds from call to return; the one field that differs between runs, so ``==`` leaves it out.
    """

    replica_of_item: NDArray[np.int32]
    slot_of_item: NDArray[np.int32]
    makespans: NDArray[np.int64]
    makespan: int
    cut: PipelineCut | None
    order: OpOrder

    @property
    def num_replicas(self) -> int:
        """R; replicas that hold nothing included."""
        return len(self.makespans)

    @property
    def num_slots(self) -> int:
        """K, the same on every replica."""
        return self.order.num_slots


@dataclass(frozen=True, slots=True, eq=False)
class MultiplexResult(Proven):
    """One step of one pipeline, with tasks in its gaps.

    Attributes
    ----------
    makespan : int
        When the last op or task ends; the first starts at 0.
    lower_bound : int
        Proven: no schedule of these slots and tasks with this op order has a smaller makespan.
    bound_name : str
        The argument that proves it; see :mod:`solvers.pipeline.bounds`.
    forward_start, forward_end, backward_start, backward_end : int64[K, S], read-only
        When the pipeline's ops start and end. Where a stage has no backward, -1.
    task_device : int32[t], read-only
        Where each task runs, forward and backward.
    task_forward_start, task_backward_start : int64[t], read-only
        When each starts; a task whose backward takes nothing has none, and -1.
    task_forward_turn, task_backward_turn : int64[t], read-only
        Their places among all that the device runs, from 0; -1 of a backward that is none. The pipeline's ops take the
        turns between, in their order. Devices that take turns so never wait for each other forever, even where much
        takes no time.
    order : OpOrder
        The pipeline's ops in turn.
    busy, idle : int64[D], read-only
        Time that each device spends in ops and tasks, and the rest of `makespan`.
    held : int64[D], read-only
        The most that each device holds at once of its tasks' sizes between their forwards and backwards.
    status : SolveStatus
        ``OPTIMAL`` if and only if ``makespan == lower_bound``.
    runtime_s : float
        Seconds from call to return; the one field that differs between runs, so ``==`` leaves it out.
    """

    makespan: int
    forward_start: NDArray[np.int64]
    forward_end: NDArray[np.int64]
    backward_start: NDArray[np.int64]
    backward_end: NDArray[np.int64]
    task_device: NDArray[np.int32]
    task_forward_start: NDArray[np.int64]
    task_backward_start: NDArray[np.int64]
    task_forward_turn: NDArray[np.int64]
    task_backward_turn: NDArray[np.int64]
    order: OpOrder
    busy: NDArray[np.int64]
    idle: NDArray[np.int64]
    held: NDArray[np.int64]

    @property
    def bubble(self) -> float:
        """Idle time of all devices as a part of all their time; 0.0 if nothing takes any."""
        return float(self.idle.sum() / (len(self.idle) * self.makespan)) if self.makespan else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class MultiplexedResult(Proven):
    """Items in slots of replicas, with their tasks in the gaps of the replicas' pipelines.

    Attributes
    ----------
    replica_of_item, slot_of_item : int32[n], read-only
        In the order in which the items were given.
    replica_of_task : int32[t], read-only
        That of its item.
    replicas : tuple of MultiplexResult
        Of each replica, with the tasks :meth:`tasks_of` it, in that order. Their bounds are of their own slots.
    makespan : int
        The largest of them.
    lower_bound : int
        Proven: no slots and no schedule with this op order have a smaller makespan.
    bound_name : str
        See :mod:`solvers.pipeline.bounds`.
    cut : PipelineCut or None
        What proves ``"fluid"``.
    status : SolveStatus
        ``OPTIMAL`` if and only if ``makespan == lower_bound``.
    runtime_s : float
        Seconds from call to return; the one field that differs between runs, so ``==`` leaves it out.
    """

    replica_of_item: NDArray[np.int32]
    slot_of_item: NDArray[np.int32]
    replica_of_task: NDArray[np.int32]
    replicas: tuple[MultiplexResult, ...]
    makespan: int
    cut: PipelineCut | None

    @property
    def num_replicas(self) -> int:
        """R."""
        return len(self.replicas)

    @property
    def order(self) -> OpOrder:
        """What every replica's devices run, in turn, besides tasks; it says K."""
        return self.replicas[0].order

    @property
    def num_slots(self) -> int:
        """K, the same on every replica."""
        return self.order.num_slots

    @property
    def makespans(self) -> NDArray[np.int64]:
        """When each replica ends: int64[R]."""
        return np.array([each.makespan for each in self.replicas], dtype=np.int64)

    def tasks_of(self, replica: int) -> NDArray[np.int64]:
        """Numbers of the tasks of a replica, as they were given."""
        return np.flatnonzero(self.replica_of_task == replica)
