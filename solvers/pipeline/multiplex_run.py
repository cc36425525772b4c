"""Schedules of tasks in gaps that are given as turns: their exact run, and their bound anew."""

import time
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers.arguments import as_labels
from solvers.bounds import Bound
from solvers.errors import ArgumentError, UsageError
from solvers.pipeline._gap_run import NEVER
from solvers.pipeline._gaps import Gaps, no_items, ops_of
from solvers.pipeline._problem import PipelineProblem
from solvers.pipeline._profile import profile_of
from solvers.pipeline._request import PipelineRequest, TaskRequest
from solvers.pipeline._tasks import SlotTasks, Tasks
from solvers.pipeline.multiplex import result_of, slots_of
from solvers.pipeline.multiplex_bounds import multiplex_bound, multiplexed_bound
from solvers.pipeline.multiplex_types import MultiplexResult
from solvers.pipeline.orders import OpOrder

Ints = NDArray[np.int64]


def run_turns(
    asked: PipelineRequest,
    beside: TaskRequest,
    task_device: ArrayLike,
    forward_turn: ArrayLike,
    backward_turn: ArrayLike,
) -> MultiplexResult:
    """Run a pipeline with tasks in its gaps, exactly, every op and task as early as the turns of its device let it.

    Parameters
    ----------
    asked : PipelineRequest
        Of the loads of slots, and what its devices run in turn.
    beside : TaskRequest
        The tasks of the slots.
    task_device, forward_turn, backward_turn : int64[t]
        Where each task runs, and the places of its forward and backward there, as
        :class:`~solvers.pipeline.MultiplexResult` has them.

    Returns
    -------
    MultiplexResult
        Its bound is that of :func:`solvers.pipeline.multiplex`.

    Raises
    ------
    TypeError, ValueError
        Arguments of the wrong type or shape, or turns that no device can run: two in one place, places that nothing
        has, or ops and tasks that wait for each other forever.

    Examples
    --------
    >>> pipe, tasks = PipelineRequest([[4]] * 2, [[1]], [[2]]), TaskRequest([0, 1], [4] * 2, [8] * 2, window=2)
    >>> run_turns(pipe, tasks, [0, 0], [0, 2], [4, 7]).makespan
    48
    """
    started = time.perf_counter()
    stages, table, order, tasks, given = slots_of(asked, beside)
    device = as_labels("task_device", task_device, order.num_devices).astype(np.int64)
    if len(device) != len(tasks.owner):
        raise ArgumentError("task_device", f"hold one for each of {len(tasks.owner)} tasks", len(device))
    durations = stages.durations(table)
    sequence = _sequences(device, np.asarray(forward_turn), np.asarray(backward_turn), given, order)
    bound = multiplex_bound(durations, order, stages.hop, given)
    starts = np.full(durations.size + 2 * len(device), -1, dtype=np.int64)  # of what does not run
    for row in sequence:
        starts[row[1 : row[0] + 1]] = 0
    gaps = Gaps(
        order, stages.hop, tasks, given, 0, device[given.order], starts, given.table[0].copy(),
        ops_of(durations, order, stages.hop, given, tasks.window), sequence, no_items(), np.zeros(1, dtype=np.int64),
    )  # fmt: skip
    gaps.search(0, 0)  # which begins with an exact run
    if gaps.makespan >= NEVER:
        raise UsageError("in these turns ops and tasks wait for each other: none of them comes first")
    return result_of(gaps, bound, True, time.perf_counter() - started)


def _sequences(device: Ints, ahead: Ints, back: Ints, given: SlotTasks, order: OpOrder) -> Ints:
    """Return each device's ops in turn, as exact runs have them."""
    width, n = 2 * order.num_stages, len(device)
    front = order.num_slots * width
    op = order.slot * width + order.stage + order.num_stages * order.backward
    runs_back = given.table[2] > 0
    numbers = np.concatenate([front + np.arange(n), (front + n + np.arange(n))[runs_back]])
    if ahead.shape != (n,) or back.shape != (n,) or ((back >= 0) != runs_back[np.argsort(given.order)]).any():
        raise UsageError(
            "every task must have a turn of its forward, and one of its backward exactly if that takes any and is no "
            "generator's"
        )
    where = np.concatenate([device[given.order], device[given.order][runs_back]])
    turn = np.concatenate([ahead[given.order], back[given.order][runs_back]])
    own = np.diff(order.device_offsets)
    counts = own + np.bincount(where, minlength=order.num_devices)
    sequence = np.zeros((order.num_devices, int(own.max()) + 2 * n + 2), dtype=np.int64)
    for d in range(order.num_devices):
        mine = np.flatnonzero(where == d)
        places = turn[mine]
        if len(mine) and (places.min() < 0 or places.max() >= counts[d] or len(np.unique(places)) < len(places)):
            raise UsageError(f"the turns of tasks on device {d} must be distinct and within 0..{counts[d] - 1}")
        row = np.full(counts[d], -1, dtype=np.int64)
        row[places] = numbers[mine]
        row[row < 0] = op[order.device_offsets[d] : order.device_offsets[d + 1]]
        sequence[d, 0], sequence[d, 1 : counts[d] + 1] = counts[d], row
    return sequence


def multiplexed_lower_bound(asked: PipelineRequest, beside: TaskRequest) -> Bound:
    """Return the bound that :func:`solvers.schedule_multiplexed` proves, with no search, also of empty slots.

    Examples
    --------
    >>> items = PipelineRequest([[3], [1], [2], [2]], [[1, 1]], [[2, 2]], num_replicas=1, num_slots=4)
    >>> multiplexed_lower_bound(items, TaskRequest([0, 2], [1, 2], [2, 4], window=2))
    Bound(value=29, name='all_work')
    """
    problem = PipelineProblem.of(replace(asked, allow_empty=True))
    tasks = Tasks.of("task_item", beside, len(problem.work), problem.order)
    profile = profile_of(problem.items.sum(axis=1), problem.merged, problem.order, problem.num_replicas)
    return multiplexed_bound(problem, tasks, profile)
