"""Slots and tasks together: which item runs in which slot of which replica, its tasks in the pipelines' gaps."""

import time
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers.arguments import as_budget
from solvers.bounds import Bound
from solvers.pipeline._stages import Stages
from solvers.pipeline._tasks import Tasks
from solvers.pipeline.multiplex import fill_gaps
from solvers.pipeline.multiplex_types import MultiplexedResult, MultiplexResult
from solvers.pipeline.orders import OpOrder
from solvers.pipeline.solver import schedule_pipeline
from solvers.pipeline.types import PipelineResult
from solvers.types import SolveStatus

__all__ = ["schedule_multiplexed"]

Ints = NDArray[np.int64]


def schedule_multiplexed(
    work: ArrayLike,
    forward: ArrayLike,
    backward: ArrayLike,
    task_item: ArrayLike,
    task_forward: ArrayLike,
    task_backward: ArrayLike,
    num_replicas: int,
    num_slots: int,
    *,
    window: int,
    task_size: ArrayLike | None = None,
    held_cap: ArrayLike | None = None,
    task_devices: ArrayLike | str = "any",
    forward_overhead: ArrayLike | None = None,
    backward_overhead: ArrayLike | None = None,
    sizes: ArrayLike | None = None,
    cap: ArrayLike | None = None,
    in_flight_cap: ArrayLike | None = None,
    order: str | OpOrder = "1f1b",
    chunks: int = 1,
    hop: int = 0,
    slots_multiple_of: int = 1,
    allow_empty: bool = False,
    time_budget: float = 0.2,
) -> MultiplexedResult:
    """Put items into slots of replicas, and their tasks into the gaps of the replicas' pipelines.

    Parameters
    ----------
    work : int64[n, M]
        Work of each item in each module of the pipeline (the language model).
    forward, backward : int64[M, S]
        Time of one unit of a module's work in each stage.
    task_item, task_forward, task_backward : int64[t]
        The item of each task (its encoder work; an item may have none, or several), and what its forward and backward
        take on one device.
    num_replicas, num_slots : int
        R pipelines of K slots (micro-batches) each.
    window, task_size, held_cap, task_devices
        As in :func:`solvers.pipeline.multiplex`.
    forward_overhead, backward_overhead, sizes, cap, in_flight_cap, order, chunks, hop, slots_multiple_of, allow_empty
        As in :func:`solvers.schedule_pipeline`, of the pipeline without tasks.
    time_budget : float
        Seconds' worth of work, counted and not timed.

    Returns
    -------
    MultiplexedResult

    Raises
    ------
    TypeError, ValueError
        Arguments of the wrong type, shape or range, or whose sums do not fit.
    InfeasibleError
        Items fewer than slots, or over the caps.
    TimeLimitError
        If no schedule under the caps was found.

    Examples
    --------
    >>> found = schedule_multiplexed([[3], [1], [2], [2]], [[1, 1]], [[2, 2]], [0, 2], [1, 2], [2, 4], 1, 4, window=2)
    >>> found.makespan, found.lower_bound, found.bound_name
    (33, 29, 'all_work')
    """
    started = time.perf_counter()
    seconds = as_budget(time_budget)
    rules: dict[str, Any] = {
        "forward_overhead": forward_overhead, "backward_overhead": backward_overhead, "sizes": sizes, "cap": cap,
        "in_flight_cap": in_flight_cap, "order": order, "chunks": chunks, "hop": hop,
        "slots_multiple_of": slots_multiple_of, "allow_empty": allow_empty,
    }  # fmt: skip
    stages = Stages.of(forward, backward, forward_overhead, backward_overhead, hop)
    found: list[MultiplexedResult] = []
    for method in ("auto", "vector_lpt"):
        slots = schedule_pipeline(
            work, forward, backward, num_replicas, num_slots, method, time_budget=seconds / 2, **rules
        )
        tasks = Tasks.of(
            "task_item", task_item, len(slots.slot_of_item), task_forward, task_backward, task_size, task_devices,
            held_cap, window, slots.order.num_devices, slots.order.forward_only,
        )  # fmt: skip
        found.append(_filled(np.asarray(work), stages, slots, tasks, seconds, started))
    return min(found, key=lambda each: each.makespan)


def _filled(
    work: Ints, stages: Stages, slots: PipelineResult, tasks: Tasks, seconds: float, started: float
) -> MultiplexedResult:
    """Put the tasks of given slots into their pipelines' gaps."""
    replicas: list[MultiplexResult] = []
    replica_of_task = slots.replica_of_item[tasks.owner]
    for replica in range(slots.num_replicas):
        mine = slots.replica_of_item == replica
        loads = np.zeros((slots.num_slots, work.shape[1]), dtype=np.int64)
        np.add.at(loads, slots.slot_of_item[mine], work[mine])
        chosen = np.flatnonzero(replica_of_task == replica)
        given = tasks.of_slots(slots.slot_of_item[tasks.owner[chosen]].astype(np.int64), slots.num_slots, chosen)
        replicas.append(
            fill_gaps(stages.durations(loads), slots.order, stages.hop, given, tasks, seconds, time.perf_counter())
        )
    makespan = max(each.makespan for each in replicas)
    bound = max(_mean_work(work, stages, slots, tasks), Bound(slots.lower_bound, slots.bound_name),
                key=lambda each: each.value)  # fmt: skip
    return MultiplexedResult(
        slots.replica_of_item, slots.slot_of_item, replica_of_task, tuple(replicas), makespan, bound.value, bound.name,
        SolveStatus.OPTIMAL if makespan == bound.value else SolveStatus.FEASIBLE, time.perf_counter() - started,
    )  # fmt: skip


def _mean_work(work: Ints, stages: Stages, slots: PipelineResult, tasks: Tasks) -> Bound:
    spent = sum(int(t) * int(u) for t, u in zip(work.sum(axis=0), stages.unit.sum(axis=1), strict=True))
    cells = slots.num_replicas * slots.num_slots
    spent += cells * int(stages.fixed.sum()) + int(tasks.forward.sum()) + int(tasks.backward.sum())
    return Bound(-(-spent // (slots.num_replicas * slots.order.num_devices)), "all_work")
