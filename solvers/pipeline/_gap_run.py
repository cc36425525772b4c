"""The exact run of a schedule that is given as sequences; what comes after an op, and so which are on longest paths.

Ops have numbers: the pipeline's are ``k * 2 S + cell`` (see :mod:`solvers.pipeline.run`), then come the tasks' forwards
from `front` on, then their backwards from `backs` on. Every slot has a *gate*: all forwards of its tasks open its first
op.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper
from solvers._loops import first_largest
from solvers.pipeline._tasks import SlotTasks
from solvers.pipeline.orders import OpOrder

Ints = NDArray[np.int64]
NEVER = 2**62
"""A makespan of no schedule: ops that wait for each other, or more than was asked for."""
OP = np.dtype(
    [
        ("took", np.int64),  # the time that it takes
        ("follows", np.int64),  # the op for whose end it waits (a forward of a task: for whose start), or -1
        ("lag", np.int64),  # how long after that
        ("opened_by", np.int64),  # the slot whose gate it waits for, or -1
        ("gate", np.int64),  # the slot whose gate it is a part of, or -1
    ]
)
"""What is known of an op: one record, as a run needs all of it at once."""


class Pipeline(NamedTuple):
    """What does not change from schedule to schedule: numbers alone, as hot helpers take it."""

    front: int  # the first task's forward
    backs: int  # the first task's backward
    width: int  # 2 S
    num_slots: int  # K
    window: int  # slots by which tasks may run ahead
    hop: int


class Plan(NamedTuple):
    """A schedule: what runs where, in which order. Writable."""

    sequence: Ints  # int64[D, 1 + L]: how many ops a device runs, and which, in turn
    ops: NDArray[np.void]  # OP[ops]
    device: Ints  # int64[t]: where each task runs
    slot: Ints  # int64[t]: the slot of each task


class Clock(NamedTuple):
    """How far a run is. Writable."""

    left: Ints  # int64[K]: tasks that still keep each gate shut
    ready: Ints  # int64[K]: when it opens, by those that have run
    at: Ints  # int64[D]: the place of each device's next op
    free: Ints  # int64[D]: when its last one ends
    rest: Ints  # int64[D]: what all that follow take


def pipeline_of(order: OpOrder, num_tasks: int, window: int, hop: int) -> Pipeline:
    """Return what runs and moves know of an order."""
    stages, slots = order.num_stages, order.num_slots
    front = slots * 2 * stages
    return Pipeline(front, front + num_tasks, 2 * stages, slots, window, hop)


def ops_of(durations: Ints, order: OpOrder, hop: int, given: SlotTasks, window: int) -> NDArray[np.void]:
    """Return what is known of each op: OP[K 2 S + 2 t]."""
    slots, width = durations.shape
    stages, devices, n = width // 2, order.num_devices, len(given.each)
    front = slots * width
    ops = np.zeros(front + 2 * n, dtype=OP)
    for name in ("follows", "opened_by", "gate"):
        ops[name] = -1
    slot = given.each["slot"]
    ops["took"] = np.concatenate([durations.ravel(), given.each["forward"], given.each["backward"]])
    # the pipeline's ops: forwards follow those of the stage before, backwards those of the stage behind
    cell = np.arange(width)
    before = np.where(cell < stages, cell - 1, np.where(cell == width - 1, stages - 1, cell + 1))
    base = np.arange(slots)[:, None] * width
    ops["follows"][:front] = np.where(before >= 0, base + before, -1).ravel()
    far = (before >= 0) & (cell % stages % devices != before % stages % devices)
    ops["lag"][:front] = np.tile(np.where(far, hop, 0), slots)
    ops["opened_by"][:front:width] = np.arange(slots)
    # the tasks'
    ops["follows"][front : front + n] = np.where(slot >= window, (slot - window) * width, -1)
    ops["gate"][front : front + n] = slot
    ops["follows"][front + n :] = slot * width + stages
    return ops


@helper
def place_of(sequence, d, time, starts):
    """Where an op that starts at a time belongs. O(log L)."""
    low, high = 1, sequence[d, 0] + 1
    while low < high:
        mid = (low + high) // 2
        if starts[sequence[d, mid]] < time:
            low = mid + 1
        else:
            high = mid
    return low


@helper
def away(d, pipe):
    """What passes between a device and the first one, on which gates are."""
    return pipe.hop if d > 0 else np.int64(0)


@helper
def since(op, d, ops, starts, pipe):
    """When what an op waits for lets it start, but for its gate; -1 where that has not run."""
    before, time = ops[op]["follows"], np.int64(0)
    if before >= 0:
        time = starts[before]
        if time >= 0 and op < pipe.front:
            time += ops[op]["lag"] + ops[before]["took"]
        elif time >= 0 and op >= pipe.backs:
            time += ops[before]["took"] + away(d, pipe)
    return time


@helper
def _resume(begin, plan, starts, pipe, clock):
    """Find the ops that do not start before `begin`; returns how many, and sets their starts to -1. O(ops)."""
    sequence, ops, device, _ = plan
    left, ready, at, free, rest = clock
    for k in range(len(left)):
        left[k], ready[k] = 0, 0
    for i in range(len(device)):
        k, start = ops[pipe.front + i]["gate"], starts[pipe.front + i]
        if start < begin:
            ready[k] = max(ready[k], start + ops[pipe.front + i]["took"] + away(device[i], pipe))
        else:
            left[k] += 1
    total = np.int64(0)
    for d in range(sequence.shape[0]):
        p = place_of(sequence, d, begin, starts)
        at[d], free[d], rest[d] = p, 0, 0
        if p > 1:
            free[d] = starts[sequence[d, p - 1]] + ops[sequence[d, p - 1]]["took"]
        for q in range(p, sequence[d, 0] + 1):
            op = sequence[d, q]
            starts[op] = -1
            rest[d] += ops[op]["took"]
        total += sequence[d, 0] + 1 - p
    return total


@helper
def run_ops(begin, most, plan, starts, pipe, clock):
    """Run all ops that do not start before `begin`, where nothing has changed.

    Returns the makespan, or NEVER where it is over `most` or ops wait for each other. Devices are visited from the
    first to the last and back, as forwards and backwards go. O(ops) where they wait for few others.
    """
    sequence, ops, _, _ = plan
    left, ready, at, free, rest = clock
    front, backs, num_devices = pipe.front, pipe.backs, sequence.shape[0]
    total = _resume(begin, plan, starts, pipe, clock)
    moved, up = True, True
    while moved and total > 0:
        moved = False
        for turn in range(num_devices):
            d = turn if up else num_devices - 1 - turn
            p, last, end = at[d], sequence[d, 0], free[d]
            while p <= last:
                op = sequence[d, p]
                time, k = since(op, d, ops, starts, pipe), ops[op]["opened_by"]
                if time < 0 or (k >= 0 and left[k] > 0):
                    break
                start = max(end, time)
                if k >= 0:
                    start = max(start, ready[k])
                if start + rest[d] > most:
                    return np.int64(NEVER)
                starts[op] = start
                end = start + ops[op]["took"]
                rest[d] -= ops[op]["took"]
                if front <= op < backs:
                    k = ops[op]["gate"]
                    left[k] -= 1
                    ready[k] = max(ready[k], end + away(d, pipe))
                p += 1
                total -= 1
                moved = True
            at[d], free[d] = p, end
        up = not up
    if total > 0:
        return np.int64(NEVER)
    return free[first_largest(free)]


# --- longest paths ---------------------------------------------------------------------------------------------------


@helper
def late_tasks(starts, after, makespan, pipe, path):
    """List the tasks' ops that are on longest paths; returns how many they are."""
    count = np.int64(0)
    for op in range(pipe.front, len(starts)):
        if starts[op] >= 0 and starts[op] + after[op] == makespan:
            path[count] = op
            count += 1
    return count


@helper
def gate_op(op, ops, pipe):
    """The pipeline's op that a task's forward opens."""
    return ops[op]["gate"] * pipe.width


@helper
def set_after(plan, starts, pipe, need, count, at, after):
    """Set the longest time from every op's start to the end of all, as the devices run them.

    ``need``, int64[ops, 2], and ``count`` are room: what comes after an op's end and its start, and how many ops wait.
    A run backwards: every device from its last op on, as far as what waits for each op is known. O(ops).
    """
    sequence, ops, _, _ = plan
    front, backs = pipe.front, pipe.backs
    after[:], need[:], count[:] = -1, 0, 0
    for d in range(sequence.shape[0]):
        at[d] = sequence[d, 0]
        for p in range(1, sequence[d, 0] + 1):
            before = ops[sequence[d, p]]["follows"]
            if before >= 0:
                count[before] += 1
    moved = True
    while moved:
        moved = False
        for turn in range(sequence.shape[0]):
            d = sequence.shape[0] - 1 - turn
            p = at[d]
            while p > 0:
                op = sequence[d, p]
                tail = need[op, 0]
                if count[op] > 0:
                    break
                if front <= op < backs and starts[gate_op(op, ops, pipe)] >= 0:
                    rest = after[gate_op(op, ops, pipe)]
                    if rest < 0:
                        break
                    tail = max(tail, rest + away(d, pipe))
                if p < sequence[d, 0]:
                    tail = max(tail, after[sequence[d, p + 1]])
                after[op] = max(need[op, 1], ops[op]["took"] + tail)
                _demand(op, d, ops, pipe, after[op], need, count)
                p -= 1
                moved = True
            at[d] = p


@helper
def _demand(op, d, ops, pipe, tail, need, count):
    """Tell the op that an op waits for what comes after it."""
    before = ops[op]["follows"]
    if before >= 0:
        count[before] -= 1
        if op < pipe.front:
            need[before, 0] = max(need[before, 0], tail + ops[op]["lag"])
        elif op >= pipe.backs:
            need[before, 0] = max(need[before, 0], tail + away(d, pipe))
        else:
            need[before, 1] = max(need[before, 1], tail)
