"""Tasks in the gaps of a pipeline: encoder work that shares all devices with the stages of a language model."""

import time

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._budget import work_units
from solvers.arguments import as_budget
from solvers.bounds import Bound
from solvers.errors import ArgumentError
from solvers.pipeline._gaps import Gaps, no_items
from solvers.pipeline._problem import as_order
from solvers.pipeline._request import PipelineRequest, TaskRequest
from solvers.pipeline._stages import Stages, as_table
from solvers.pipeline._tasks import SlotTasks, Tasks, held_by_given
from solvers.pipeline.multiplex_bounds import multiplex_bound
from solvers.pipeline.multiplex_types import MultiplexResult
from solvers.pipeline.orders import OpOrder
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
    task_after: ArrayLike | None = None,
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
    task_after : bool[t], optional
        Which tasks are a generator's (a decoder of audio or images), by default none. They run after their slot's
        forward in the last stage and before its backward there, forward and backward in one, and hold nothing.
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
    beside = TaskRequest(task_slot, task_forward, task_backward, window, task_size, task_after, held_cap, task_devices)
    started = time.perf_counter()
    seconds = as_budget(time_budget)
    stages, table, ops, tasks, given = slots_of(asked, beside)
    tasks.check_room(ops, held_by_given(ops, given))
    durations, units = stages.durations(table), work_units(seconds)
    bound = multiplex_bound(durations, ops, stages.hop, given)
    gaps = Gaps.listed(durations, ops, stages.hop, tasks, given, no_items(), units // 4, bound.value)
    left = units - gaps.search(units, bound.value)
    return result_of(gaps, bound, left > 0, time.perf_counter() - started)


def slots_of(asked: PipelineRequest, beside: TaskRequest) -> tuple[Stages, Ints, OpOrder, Tasks, SlotTasks]:
    """Check a request of given slots; return stages, loads, order, and the tasks: as given, and sorted by slot."""
    stages = Stages.of_request(asked)
    table = as_table("loads", asked.work)
    if table.shape[1] != len(stages.unit) or not len(table):
        raise ArgumentError("loads", f"have the shape (K, {len(stages.unit)})", table.shape)
    ops = as_order(asked.order, asked.chunks, len(table), stages)
    stages.check_sums(table.sum(axis=0, dtype=object), len(table))
    tasks = Tasks.of("task_slot", beside, len(table), ops)
    return stages, table, ops, tasks, tasks.of_slots(tasks.owner, len(table), np.arange(len(tasks.owner)))


def result_of(gaps: Gaps, bound: Bound, ended: bool, runtime_s: float) -> MultiplexResult:
    """Return a schedule with its bound, tasks in the order in which they were given."""
    order, n, k, s = gaps.order, len(gaps.device), gaps.order.num_slots, gaps.order.num_stages
    durations = gaps.durations
    front = durations.size
    starts = gaps.starts[:front].reshape(k, 2 * s)
    ends = np.where(starts >= 0, starts + durations, -1)
    ahead, back = gaps.starts[front : front + n], gaps.starts[front + n :]
    apart = gaps.given.table[5]
    back = np.where(apart >= 0, ahead + apart, back)
    busy = np.zeros(order.num_devices, dtype=np.int64)
    np.add.at(busy, np.arange(2 * s) % s % order.num_devices, np.where(starts >= 0, durations, 0).sum(axis=0))
    np.add.at(busy, gaps.device, gaps.ops[front : front + n, 0] + gaps.ops[front + n :, 0])
    place = np.argsort(gaps.given.order)
    first, then = _turns(gaps)[:, place]
    return MultiplexResult(
        gaps.makespan, starts[:, :s].copy(), ends[:, :s].copy(), starts[:, s:].copy(),
        ends[:, s:].copy(), gaps.device[place].astype(np.int32), ahead[place], back[place], first, then, order,
        busy, gaps.makespan - busy, _held(gaps), lower_bound=bound.value, bound_name=bound.name,
        status=status_of(gaps.makespan, bound.value, ended=ended), runtime_s=runtime_s,
    )  # fmt: skip


def _turns(gaps: Gaps) -> Ints:
    """Return the places of tasks' forwards and backwards among all that their devices run: int64[2, t]."""
    n = len(gaps.device)
    turns = np.full(gaps.num_ops, -1, dtype=np.int64)
    for row in gaps.sequence:
        turns[row[1 : row[0] + 1]] = np.arange(row[0])
    return turns[gaps.num_ops - 2 * n :].reshape(2, n)


def _held(gaps: Gaps) -> Ints:
    """Return the most that each device holds between forwards and backwards."""
    n, sizes = len(gaps.device), gaps.given.table[3]
    front = gaps.num_ops - 2 * n
    change = np.zeros(gaps.num_ops, dtype=np.int64)
    kept = gaps.ops[front + n :, 0] > 0
    change[front : front + n], change[front + n :] = sizes * kept, -sizes * kept
    held = np.zeros(gaps.order.num_devices, dtype=np.int64)
    for d, row in enumerate(gaps.sequence):
        held[d] = np.cumsum(change[row[1 : row[0] + 1]]).max(initial=0)
    return held
