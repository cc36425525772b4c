"""Schedules of tasks in gaps that are given as turns: their exact run, and their bound anew."""

import time

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers.arguments import as_labels
from solvers.bounds import Bound
from solvers.errors import ArgumentError, UsageError
from solvers.pipeline._gap_run import NEVER
from solvers.pipeline._gaps import Gaps, no_items, ops_of
from solvers.pipeline._problem import PipelineProblem
from solvers.pipeline._profile import profile_of
from solvers.pipeline._request import TaskRequest
from solvers.pipeline._stages import Stages, as_table
from solvers.pipeline._tasks import SlotTasks, Tasks
from solvers.pipeline.multiplex import result_of
from solvers.pipeline.multiplex_bounds import multiplex_bound, multiplexed_bound
from solvers.pipeline.multiplex_types import MultiplexResult
from solvers.pipeline.orders import OpOrder

__all__ = ["multiplexed_lower_bound", "run_turns"]

Ints = NDArray[np.int64]


def run_turns(
    loads: ArrayLike,
    forward: ArrayLike,
    backward: ArrayLike,
    task_slot: ArrayLike,
    task_forward: ArrayLike,
    task_backward: ArrayLike,
    task_device: ArrayLike,
    forward_turn: ArrayLike,
    backward_turn: ArrayLike,
    order: OpOrder,
    *,
    window: int,
    task_size: ArrayLike | None = None,
    task_after: ArrayLike | None = None,
    forward_overhead: ArrayLike | None = None,
    backward_overhead: ArrayLike | None = None,
    hop: int = 0,
) -> MultiplexResult:
    """Run a pipeline with tasks in its gaps, exactly, every op and task as early as the turns of its device let it.

    Parameters
    ----------
    loads, forward, backward, task_slot, task_forward, task_backward, order, window, task_size, task_after, \
forward_overhead, backward_overhead, hop
        As for :func:`solvers.pipeline.multiplex`.
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
    >>> from solvers.pipeline import one_f_one_b
    >>> pipe = [[4]] * 2, [[1]], [[2]]
    >>> run_turns(*pipe, [0, 1], [4] * 2, [8] * 2, [0, 0], [0, 2], [4, 7], one_f_one_b(2, 1), window=2).makespan
    48
    """
    started = time.perf_counter()
    stages = Stages.of(forward, backward, forward_overhead, backward_overhead, hop)
    table = as_table("loads", loads)
    if table.shape != (order.num_slots, len(stages.unit)):
        raise ArgumentError("loads", f"have the shape ({order.num_slots}, {len(stages.unit)})", table.shape)
    asked = TaskRequest("task_slot", task_slot, task_forward, task_backward, window, task_size, task_after)
    tasks = Tasks.of(asked, len(table), order)
    given = tasks.of_slots(tasks.owner, len(table), np.arange(len(tasks.owner)))
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


def multiplexed_lower_bound(
    work: ArrayLike,
    forward: ArrayLike,
    backward: ArrayLike,
    task_item: ArrayLike,
    task_forward: ArrayLike,
    task_backward: ArrayLike,
    num_replicas: int,
    num_slots: int,
    *,
    task_after: ArrayLike | None = None,
    forward_overhead: ArrayLike | None = None,
    backward_overhead: ArrayLike | None = None,
    chunks: int = 1,
    hop: int = 0,
) -> Bound:
    """Return the bound that :func:`solvers.pipeline.schedule_multiplexed` proves, with no search, whatever the caps.

    Parameters
    ----------
    work, forward, backward, task_item, task_forward, task_backward, num_replicas, num_slots, task_after, \
forward_overhead, backward_overhead, chunks, hop
        As there.

    Examples
    --------
    >>> items, tasks = [[3], [1], [2], [2]], ([0, 2], [1, 2], [2, 4])
    >>> multiplexed_lower_bound(items, [[1, 1]], [[2, 2]], *tasks, 1, 4)
    Bound(value=29, name='all_work')
    """
    problem = PipelineProblem.of(
        work, forward, backward, num_replicas, num_slots, forward_overhead, backward_overhead, chunks=chunks, hop=hop,
        allow_empty=True,
    )  # fmt: skip
    asked = TaskRequest("task_item", task_item, task_forward, task_backward, num_slots, after=task_after)
    tasks = Tasks.of(asked, len(problem.work), problem.order)
    profile = profile_of(problem.items.sum(axis=1), problem.merged, problem.order, problem.num_replicas)
    return multiplexed_bound(problem, tasks, profile)
