"""What schedules of tasks in a pipeline's gaps return: devices and starts of everything, and a bound."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solvers.pipeline.orders import OpOrder
from solvers.pipeline.types import PipelineCut
from solvers.types import Proven


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
        The argument that proves it; see :mod:`solvers.pipeline.multiplex_bounds`.
    forward_start, forward_end, backward_start, backward_end : int64[K, S], read-only
        When the pipeline's ops start and end. Where a stage has no backward, -1.
    task_device : int32[t], read-only
        Where each task runs, forward and backward.
    task_forward_start, task_backward_start : int64[t], read-only
        When each starts; a task whose backward takes nothing has none, and -1.
    task_forward_turn, task_backward_turn : int64[t], read-only
        Their places among all that the device runs, from 0; -1 of a backward that is none, and of a generator's, which
        runs with its forward in one. The pipeline's ops take the turns between, in their order. Devices that take
        turns so never wait for each other forever, even where much takes no time.
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
        See :mod:`solvers.pipeline.multiplex_bounds`.
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
