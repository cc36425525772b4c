"""Tasks in the gaps of a pipeline: encoder work that shares all devices with the stages of a language model.

Schedules are searched for slots that are given (:func:`multiplex`), or run again as turns that are given
(:func:`run_turns`).
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._budget import work_units
from solvers.arguments import as_budget, as_labels
from solvers.bounds import Bound
from solvers.errors import ArgumentError, UsageError
from solvers.pipeline._gap_list import listed
from solvers.pipeline._gap_run import NEVER
from solvers.pipeline._gap_search import Gaps
from solvers.pipeline._problem import PipelineProblem, as_order
from solvers.pipeline._tasks import SlotTasks, Tasks, held_by_given
from solvers.pipeline.bounds import multiplex_bound, multiplexed_bound
from solvers.pipeline.orders import OpOrder
from solvers.pipeline.ramp import Program
from solvers.pipeline.run import Stages, as_table
from solvers.pipeline.types import MultiplexResult, PipelineRequest, TaskRequest
from solvers.types import status_of

Ints = NDArray[np.int64]


def multiplex(
    loads: ArrayLike,
    forward: ArrayLike,
    backward: ArrayLike,
    task_slot: ArrayLike,
    task_forward: ArrayLike,
    task_backward: ArrayLike,
    *,
    window: int,
    task_size: ArrayLike | None = None,
    held_cap: ArrayLike | None = None,
    task_devices: ArrayLike | str = "any",
    order: OpOrder | None = None,
    forward_overhead: ArrayLike | None = None,
    backward_overhead: ArrayLike | None = None,
    hop: int = 0,
    time_budget: float = 0.05,
) -> MultiplexResult:
    """Run tasks in the gaps of a pipeline whose order of ops is fixed, so that all ends early.

    A slot's tasks (its encoder work) run before its forward on the first stage and, backwards, after its backward
    there, each on one device.

    Parameters
    ----------
    loads : int64[K, M]
        Work of each slot in each module of the pipeline.
    forward, backward : int64[M, S]
        Time of one unit of a module's work in each stage.
    task_slot, task_forward, task_backward : int64[t]
        Slot of each task, and what its forward and backward take; 0 of a backward: it has none.
    window : int
        A forward of slot k starts only once the first stage has started slot ``k - window``.
    task_size : int64[t], optional
        What a task holds on its device from the start of its forward to the end of its backward; by default 1.
    held_cap : int or int64[D], optional
        The sizes that each device may hold at most.
    task_devices : "any" or bool[t, D]
        Where each task may run.
    order : OpOrder, optional
        What the devices run in turn, besides tasks, slots begun in the order of their numbers; by default 1F1B.
    forward_overhead, backward_overhead : int64[S], optional
        What a pipeline's op takes besides.
    hop : int
        What passes between the end of an op or task and the start of the next on another device, for the same slot.
    time_budget : float
        Seconds' worth of work, counted and not timed.

    Returns
    -------
    MultiplexResult

    Raises
    ------
    TypeError, ValueError
        Arguments of the wrong type, shape or range, or whose sums do not fit.
    InfeasibleError
        If slots that are in flight at once have tasks over `held_cap` on all devices together.
    TimeLimitError
        If no schedule under `held_cap` was found.

    References
    ----------
    MegaScale-Omni (arXiv:2605.08962), Optimus (arXiv:2408.03505), BigMac (arXiv:2605.25451).

    Examples
    --------
    >>> found = multiplex([[4]] * 4, [[1, 1]], [[2, 2]], [0, 1, 2, 3], [4] * 4, [8] * 4, window=2, time_budget=1e-4)
    >>> found.makespan, found.lower_bound, found.bound_name
    (76, 72, 'work')
    """
    asked = PipelineRequest(
        loads, forward, backward, forward_overhead=forward_overhead, backward_overhead=backward_overhead, hop=hop,
        order="1f1b" if order is None else order,
    )  # fmt: skip
    beside = TaskRequest(task_slot, task_forward, task_backward, window, task_size, held_cap, task_devices)
    started = time.perf_counter()
    seconds = as_budget(time_budget)
    stages, durations, ops, tasks, given = _checked(asked, beside)
    tasks.check_room(ops, held_by_given(ops, given))
    units, bound = work_units(seconds), multiplex_bound(durations, ops, stages.hop, given)
    gaps = listed(durations, ops, stages.hop, tasks, given, units // 4, bound.value)
    gaps.search(units, bound.value)
    return result_of(gaps, bound, time.perf_counter() - started)


def _checked(asked: PipelineRequest, beside: TaskRequest) -> tuple[Stages, Ints, OpOrder, Tasks, SlotTasks]:
    """Check a request of given slots; return stages, what ops take, order, and the tasks: as given, and by slot."""
    stages = Stages.from_request(asked)
    table = as_table("loads", asked.work)
    if table.shape[1] != len(stages.unit) or not len(table):
        raise ArgumentError("loads", f"have the shape (K, {len(stages.unit)})", table.shape)
    ops = as_order(asked.order, asked.chunks, len(table), stages)
    stages.check_sums(table.sum(axis=0, dtype=object), len(table))
    tasks = Tasks.from_request("task_slot", beside, len(table), ops)
    given = tasks.of_slots(tasks.owner, len(table), np.arange(len(tasks.owner)))
    return stages, stages.durations(table), ops, tasks, given


def result_of(gaps: Gaps, bound: Bound, runtime_s: float) -> MultiplexResult:
    """Return a schedule with its bound, tasks in the order in which they were given."""
    order, device, given, k, s = gaps.order, gaps.plan.device, gaps.given, gaps.order.num_slots, gaps.order.num_stages
    n, durations = len(device), gaps.durations
    front = durations.size
    starts = gaps.starts[:front].reshape(k, 2 * s)
    ends = np.where(starts >= 0, starts + durations, -1)
    ahead, back = gaps.starts[front : front + n], gaps.starts[front + n :]
    busy = np.zeros(order.num_devices, dtype=np.int64)
    np.add.at(busy, np.arange(2 * s) % s % order.num_devices, np.where(starts >= 0, durations, 0).sum(axis=0))
    took = gaps.plan.ops["took"]
    np.add.at(busy, device, took[front : front + n] + took[front + n :])
    # tasks back from the order by slot to that in which they were given
    place = np.argsort(given.each["number"])
    first, then = _turns(gaps)[:, place]
    return MultiplexResult(
        gaps.makespan, starts[:, :s].copy(), ends[:, :s].copy(), starts[:, s:].copy(),
        ends[:, s:].copy(), device[place].astype(np.int32), ahead[place], back[place], first, then, order,
        busy, gaps.makespan - busy, _held(gaps), lower_bound=bound.value, bound_name=bound.name,
        status=status_of(gaps.makespan, bound.value), runtime_s=runtime_s,
    )  # fmt: skip


def _turns(gaps: Gaps) -> Ints:
    """Return the places of tasks' forwards and backwards among all that their devices run: int64[2, t]."""
    n = len(gaps.plan.device)
    turns = np.full(gaps.num_ops, -1, dtype=np.int64)
    for row in gaps.plan.sequence:
        turns[row[1 : row[0] + 1]] = np.arange(row[0])
    return turns[gaps.num_ops - 2 * n :].reshape(2, n)


def _held(gaps: Gaps) -> Ints:
    """Return the most that each device holds between forwards and backwards."""
    n, sizes = len(gaps.plan.device), gaps.given.each["size"]
    front = gaps.num_ops - 2 * n
    change = np.zeros(gaps.num_ops, dtype=np.int64)
    kept = gaps.plan.ops["took"][front + n :] > 0
    change[front : front + n], change[front + n :] = sizes * kept, -sizes * kept
    held = np.zeros(gaps.order.num_devices, dtype=np.int64)
    for d, row in enumerate(gaps.plan.sequence):
        held[d] = np.cumsum(change[row[1 : row[0] + 1]]).max(initial=0)
    return held


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
    stages, durations, order, tasks, given = _checked(asked, beside)
    device = as_labels("task_device", task_device, order.num_devices).astype(np.int64)
    if len(device) != len(tasks.owner):
        raise ArgumentError("task_device", f"hold one for each of {len(tasks.owner)} tasks", len(device))
    sequence = _sequences(device, np.asarray(forward_turn), np.asarray(backward_turn), given, order)
    bound = multiplex_bound(durations, order, stages.hop, given)
    gaps = Gaps.of(durations, order, stages.hop, tasks, given, device[given.each["number"]], sequence)
    if gaps.makespan >= NEVER:
        raise UsageError("in these turns ops and tasks wait for each other: none of them comes first")
    return result_of(gaps, bound, time.perf_counter() - started)


def _sequences(device: Ints, ahead: Ints, back: Ints, given: SlotTasks, order: OpOrder) -> Ints:
    """Return each device's ops in turn, as exact runs have them."""
    width, n = 2 * order.num_stages, len(device)
    front = order.num_slots * width
    op = order.slot * width + order.stage + order.num_stages * order.backward
    number = given.each["number"]
    runs_back = given.each["backward"] > 0
    numbers = np.concatenate([front + np.arange(n), (front + n + np.arange(n))[runs_back]])
    if ahead.shape != (n,) or back.shape != (n,) or ((back >= 0) != runs_back[np.argsort(number)]).any():
        raise UsageError(
            "every task must have a turn of its forward, and one of its backward exactly if that takes any"
        )
    where = np.concatenate([device[number], device[number][runs_back]])
    turn = np.concatenate([ahead[number], back[number][runs_back]])
    own = np.diff(order.device_offsets)
    counts = own + np.bincount(where, minlength=order.num_devices)
    sequence = np.zeros((order.num_devices, int(own.max()) + 2 * n + 2), dtype=np.int64)
    for d in range(order.num_devices):
        # tasks have the places that they are said to have, and the pipeline's ops those between
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
    problem = PipelineProblem.from_request(replace(asked, allow_empty=True))
    tasks = Tasks.from_request("task_item", beside, len(problem.work), problem.order)
    return multiplexed_bound(problem, tasks, Program.of(problem).ramp().cut)
