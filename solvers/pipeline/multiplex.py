"""Tasks in the gaps of a pipeline: encoder work that shares all devices with the stages of a language model."""

import time

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers.arguments import as_budget
from solvers.errors import ArgumentError, TimeLimitError
from solvers.groups import read_only
from solvers.pipeline._dispatch import NEVER, dispatch
from solvers.pipeline._stages import Stages, as_table
from solvers.pipeline._tasks import SlotTasks, Tasks
from solvers.pipeline.multiplex_bounds import multiplex_bound
from solvers.pipeline.multiplex_types import MultiplexResult
from solvers.pipeline.orders import OpOrder, one_f_one_b
from solvers.types import SolveStatus

__all__ = ["fill_gaps", "multiplex"]

Ints = NDArray[np.int64]
_RULES = [(lead, over, slack, 0) for lead in (1, 2, 3) for over in (0, 64) for slack in (0, 0.01, 0.03, 0.1)]
"""Slots ahead that are urgent, parts of 256 by which a task may exceed its gap, parts of the mean over it."""


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
        What the devices run in turn, besides tasks; by default 1F1B.
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
    TimeLimitError
        If no schedule under `held_cap` was found.

    References
    ----------
    MegaScale-Omni (arXiv:2605.08962), Optimus (arXiv:2408.03505), BigMac (arXiv:2605.25451).

    Examples
    --------
    >>> found = multiplex([[4]] * 4, [[1, 1]], [[2, 2]], [0, 1, 2, 3], [4] * 4, [8] * 4, window=2)
    >>> found.makespan, found.lower_bound, found.bound_name
    (80, 72, 'work')
    """
    started = time.perf_counter()
    seconds = as_budget(time_budget)
    stages = Stages.of(forward, backward, forward_overhead, backward_overhead, hop)
    table = as_table("loads", loads)
    if table.shape[1] != len(stages.unit) or not len(table):
        raise ArgumentError("loads", f"have the shape (K, {len(stages.unit)})", table.shape)
    ops = one_f_one_b(len(table), stages.num_stages, stages.forward_only) if order is None else order
    if (ops.num_slots, ops.num_stages) != (len(table), stages.num_stages):
        rule = f"be of {len(table)} slots and {stages.num_stages} stages"
        raise ArgumentError("order", rule, f"{ops.num_slots} and {ops.num_stages}")
    stages.check_sums(table.sum(axis=0, dtype=object), len(table))
    tasks = Tasks.of(
        "task_slot", task_slot, len(table), task_forward, task_backward, task_size, task_devices, held_cap, window,
        ops.num_devices, ops.forward_only,
    )  # fmt: skip
    given = tasks.of_slots(tasks.owner, len(table), np.arange(len(tasks.owner)))
    return fill_gaps(stages.durations(table), ops, stages.hop, given, tasks, seconds, started)


def fill_gaps(
    durations: Ints, order: OpOrder, hop: int, given: SlotTasks, tasks: Tasks, seconds: float, started: float
) -> MultiplexResult:
    """Return the best schedule found for one pipeline."""
    bound = multiplex_bound(durations, order, hop, given)
    k, s, n = order.num_slots, order.num_stages, given.table.shape[1]
    cells = read_only(order.stage + s * order.backward)
    mean = (int(durations.sum()) + int(given.table[1:3].sum())) // order.num_devices
    best = NEVER
    kept: tuple[Ints, Ints, Ints] | None = None
    window = tasks.window
    while kept is None and window:
        for lead, over, slack, back in _RULES:
            rule = np.array([lead, over, int(slack * mean), back], dtype=np.int64)
            ends, device = np.empty((k, 2 * s), dtype=np.int64), np.empty(n, dtype=np.int64)
            starts = np.empty((2, n), dtype=np.int64)
            makespan = dispatch(
                rule, durations, order.device_offsets, order.slot, cells, given.table, given.first, given.allowed,
                tasks.caps, window, hop, ends, device, starts,
            )  # fmt: skip
            if makespan < best:
                best, kept = int(makespan), (ends, device, starts)
            if best == bound.value:
                break
        window //= 2
    if kept is None:
        raise TimeLimitError("found no schedule under {held_cap}", "give a larger {held_cap}")
    ends, device, starts = kept
    ran = np.where(ends >= 0, ends - durations, -1)
    busy, held = _use(durations, ends, given, device, starts, order)
    back = np.argsort(given.order)
    status = SolveStatus.OPTIMAL if best == bound.value else SolveStatus.FEASIBLE
    return MultiplexResult(
        best, bound.value, bound.name, ran[:, :s].copy(), ends[:, :s].copy(), ran[:, s:].copy(),
        ends[:, s:].copy(), device[back].astype(np.int32), starts[0, back], starts[1, back], order, busy, best - busy,
        held, status, time.perf_counter() - started,
    )  # fmt: skip


def _use(
    durations: Ints, ends: Ints, given: SlotTasks, device: Ints, starts: Ints, order: OpOrder
) -> tuple[Ints, Ints]:
    """Return what each device does, and the most that it holds."""
    busy, held = np.zeros(order.num_devices, dtype=np.int64), np.zeros(order.num_devices, dtype=np.int64)
    ran = np.where(ends >= 0, durations, 0).sum(axis=0)
    stage = np.arange(order.num_stages) % order.num_devices
    np.add.at(busy, np.concatenate([stage, stage]), ran)
    np.add.at(busy, device, given.table[1] + given.table[2])
    kept = starts[1] >= 0
    for d in range(order.num_devices):
        here = np.flatnonzero(kept & (device == d))
        until = starts[1, here] + given.table[2, here]
        times = np.concatenate([until, starts[0, here]])  # at one time what ends goes before what starts
        change = np.concatenate([-given.table[3, here], given.table[3, here]])
        held[d] = np.cumsum(change[np.argsort(times, kind="stable")]).max(initial=0)
    return busy, held
