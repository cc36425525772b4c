"""The exact run of a schedule that is given as sequences; what is on a longest path of it, and what comes after an op.

Ops have numbers: the pipeline's are ``k * 2 S + cell`` (see :mod:`solvers.pipeline._kernels`), then come the tasks'
forwards from `front` on, then their backwards from `backs` on; a task of a generator is one op, among the forwards.
What is known of each op, ``ops``, int64[ops, 5]: the time that it takes; the op for whose end it waits (a forward of a
task: for whose start), or -1; how long after that; the gate that it waits for, and the gate that it is a part of, else
-1. Slot k has two: all forwards of its tasks, k, open its first op, all its generators' tasks, K + k, its backward in
the last stage. Of a schedule: ``sequence``, int64[D, 1 + L], how many ops a device runs, and which, in turn;
``device``, int64[t]; ``starts``, int64[ops], -1 of what does not run. The first three are a ``plan``.

``shape``: `front`, `backs`, 2 S, K, the window, the hop, and the device of the last stage. ``room`` for a run: what is
left of each gate and when it opens, int64[2 K]; which op of a device is next, when it is free, and the rest of its ops.
"""

import numpy as np

from solvers._jit import helper
from solvers._loops import first_largest

NEVER, NO_CAP = 2**62, 2**60
TOOK, AFTER, LAG, OPENED, GATE = range(5)  # columns of what is known of ops


@helper
def place_of(sequence, d, time, starts):
    """Where an op that starts at a time belongs."""
    low, high = 1, sequence[d, 0] + 1
    while low < high:
        mid = (low + high) // 2
        if starts[sequence[d, mid]] < time:
            low = mid + 1
        else:
            high = mid
    return low


@helper
def away(d, gate, shape):
    """What passes between a device and the one that a gate is on: the first, or that of the last stage."""
    return shape[5] if d != (shape[6] if gate >= shape[3] else 0) else np.int64(0)


@helper
def since(op, d, plan, starts, shape):
    """When what an op waits for lets it start, but for its gate; -1 where that has not run."""
    ops, before = plan[1], plan[1][op, AFTER]
    time = np.int64(0)
    if before >= 0:
        time = starts[before]
        if time >= 0 and op < shape[0]:
            time += ops[op, LAG] + ops[before, TOOK]
        elif time >= 0 and (op >= shape[1] or ops[op, GATE] >= shape[3]):
            time += ops[before, TOOK] + away(d, ops[op, GATE], shape)
    return time


@helper
def _resume(begin, plan, starts, shape, room):
    """Find the ops that do not start before `begin`; returns how many, and sets their starts to -1."""
    sequence, ops, device = plan
    left, ready, at, free, rest = room
    front = shape[0]
    for k in range(len(left)):
        left[k], ready[k] = 0, 0
    for i in range(len(device)):
        k, start = ops[front + i, GATE], starts[front + i]
        if start < begin:
            ready[k] = max(ready[k], start + ops[front + i, TOOK] + away(device[i], k, shape))
        else:
            left[k] += 1
    total = np.int64(0)
    for d in range(sequence.shape[0]):
        p = place_of(sequence, d, begin, starts)
        at[d], free[d], rest[d] = p, 0, 0
        if p > 1:
            free[d] = starts[sequence[d, p - 1]] + ops[sequence[d, p - 1], TOOK]
        for q in range(p, sequence[d, 0] + 1):
            op = sequence[d, q]
            starts[op] = -1
            rest[d] += ops[op, TOOK]
        total += sequence[d, 0] + 1 - p
    return total


@helper
def run(begin, most, tails, plan, starts, shape, room):
    """Run all ops that do not start before `begin`, where nothing has changed.

    Returns the makespan, or NEVER where it is over `most` or ops wait for each other. ``tails`` are least times from
    the start of an op to the end of all.
    """
    sequence, ops, _ = plan
    left, ready, at, free, rest = room
    front, backs, num_devices = shape[0], shape[1], sequence.shape[0]
    total = _resume(begin, plan, starts, shape, room)
    moved, up = True, True
    while moved and total > 0:
        moved = False
        for turn in range(num_devices):
            d = turn if up else num_devices - 1 - turn
            p, last, end = at[d], sequence[d, 0], free[d]
            while p <= last:
                op = sequence[d, p]
                time, k = since(op, d, plan, starts, shape), ops[op, OPENED]
                if time < 0 or (k >= 0 and left[k] > 0):
                    break
                start = max(end, time)
                if k >= 0:
                    start = max(start, ready[k])
                if start + max(tails[op], rest[d]) > most:
                    return np.int64(NEVER)
                starts[op] = start
                end = start + ops[op, TOOK]
                rest[d] -= ops[op, TOOK]
                if front <= op < backs:
                    k = ops[op, GATE]
                    left[k] -= 1
                    ready[k] = max(ready[k], end + away(d, k, shape))
                p += 1
                total -= 1
                moved = True
            at[d], free[d] = p, end
        up = not up
    if total > 0:
        return np.int64(NEVER)
    return free[first_largest(free)]


@helper
def _last_task(k, before, ops, starts, shape):
    """Return which task of a gate ends last, of those that do so by some time, or -1."""
    found, latest = np.int64(-1), np.int64(-1)
    for op in range(shape[0], shape[1]):
        end = starts[op] + ops[op, TOOK]
        if ops[op, GATE] == k and latest < end <= before:
            found, latest = op, end
    return found


@helper
def _where(op, sequence, starts, found):
    """Set device and place of an op."""
    for d in range(sequence.shape[0]):
        p = place_of(sequence, d, starts[op], starts)
        while p <= sequence[d, 0] and starts[sequence[d, p]] == starts[op]:
            if sequence[d, p] == op:
                found[0], found[1] = d, p
                return
            p += 1


@helper
def critical(plan, starts, shape, free, path, on):
    """List the tasks' ops on one longest path, and mark all its ops in ``on``; returns how many are tasks'."""
    sequence, ops, _ = plan
    count, here = np.int64(0), np.empty(2, np.int64)
    here[0] = first_largest(free)
    here[1] = sequence[here[0], 0]
    on[:] = 0
    for _ in range(len(starts)):
        d, p = here[0], here[1]
        if p < 1:
            break
        op = sequence[d, p]
        on[op] = 1
        if op >= shape[0]:
            path[count] = op
            count += 1
        before = sequence[d, p - 1] if p > 1 else np.int64(-1)
        if before >= 0 and starts[before] + ops[before, TOOK] == starts[op]:
            here[1] = p - 1
            continue
        cause = ops[op, AFTER]
        if ops[op, OPENED] >= 0:
            last = _last_task(ops[op, OPENED], starts[op], ops, starts, shape)
            cause = last if last >= 0 else cause
        if cause < 0 or starts[op] == 0:
            break
        _where(cause, sequence, starts, here)
    return count


@helper
def set_tails(graph, plan, slots, shape, tails):
    """Set the least time from every op's start to the end, by the pipeline's own order."""
    front, backs, width, num_slots, _, hop, _ = shape
    ops = plan[1]
    for op in range(len(tails)):
        tails[op] = ops[op, TOOK]
    for at in range(graph.shape[1] - 1, -1, -1):
        tail = tails[graph[0, at]]
        for row in (1, 2):
            if graph[row, at] >= 0:
                op = graph[0, graph[row, at]]
                more = hop * graph[3, at] if row == 2 else np.int64(0)
                tails[op] = max(tails[op], ops[op, TOOK] + more + tail)
    for i in range(backs - front):
        tails[front + i] += tails[slots[i] * width + (width - 1 if ops[front + i, GATE] >= num_slots else 0)]


@helper
def gate_op(op, ops, shape):
    """The pipeline's op that a task's forward opens."""
    k = ops[op, GATE]
    return k * shape[2] if k < shape[3] else (k - shape[3] + 1) * shape[2] - 1


@helper
def set_after(plan, starts, shape, need, count, at, after):
    """Set the longest time from every op's start to the end of all, as the devices run them.

    ``need``, int64[ops, 2], and ``count`` are room: what comes after an op's end and its start, and how many ops wait.
    """
    sequence, ops, _ = plan
    front, backs = shape[0], shape[1]
    after[:], need[:], count[:] = -1, 0, 0
    for d in range(sequence.shape[0]):
        at[d] = sequence[d, 0]
        for p in range(1, sequence[d, 0] + 1):
            if ops[sequence[d, p], AFTER] >= 0:
                count[ops[sequence[d, p], AFTER]] += 1
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
                if front <= op < backs and starts[gate_op(op, ops, shape)] >= 0:
                    rest = after[gate_op(op, ops, shape)]
                    if rest < 0:
                        break
                    tail = max(tail, rest + away(d, ops[op, GATE], shape))
                if p < sequence[d, 0]:
                    tail = max(tail, after[sequence[d, p + 1]])
                after[op] = max(need[op, 1], ops[op, TOOK] + tail)
                _demand(op, d, plan, shape, after[op], need, count)
                p -= 1
                moved = True
            at[d] = p


@helper
def _demand(op, d, plan, shape, tail, need, count):
    """Tell the op that an op waits for what comes after it."""
    ops, before = plan[1], plan[1][op, AFTER]
    if before >= 0:
        count[before] -= 1
        if op < shape[0]:
            need[before, 0] = max(need[before, 0], tail + ops[op, LAG])
        elif op >= shape[1] or ops[op, GATE] >= shape[3]:
            need[before, 0] = max(need[before, 0], tail + away(d, ops[op, GATE], shape))
        else:
            need[before, 1] = max(need[before, 1], tail)
