"""The check of tasks in pipelines' gaps, from scratch, with no code of the solver: plain loops, exact numbers."""

import operator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solvers.check import require, require_status
from solvers.pipeline.types import MultiplexedResult, MultiplexResult, PipelineRequest, TaskRequest
from solvers.pipeline.verify import (
    Op,
    Pipe,
    check_bound,
    check_caps,
    check_items,
    check_ops,
    needed_by,
    rows_of,
    run_ops,
)

_Span = tuple[int, int, str]


def check_multiplex(asked: PipelineRequest, beside: TaskRequest, result: MultiplexResult) -> None:
    """Check a schedule against the slots, tasks and rules it was made from; return nothing if all holds.

    Parameters
    ----------
    asked : PipelineRequest
        Of the loads of slots. What devices run in turn is taken as the result has it.
    beside : TaskRequest
        The tasks of the slots.
    result : MultiplexResult

    Raises
    ------
    CertificateError
        Naming the first violated rule.

    Examples
    --------
    >>> from solvers.pipeline import check_multiplex, multiplex
    >>> loads, tasks = ([[4]] * 4, [[1, 1]], [[2, 2]]), ([0, 1, 2, 3], [4] * 4, [8] * 4)
    >>> found = multiplex(*loads, *tasks, window=2, time_budget=1e-4)
    >>> check_multiplex(PipelineRequest(*loads), TaskRequest(*tasks, window=2), found)
    """
    _check_one(rows_of(asked.work), Pipe.from_request(asked), beside, result)


def _check_one(rows: list[list[int]], pipe: Pipe, asked: TaskRequest, result: MultiplexResult) -> None:
    """Check one replica, whose slots have these loads."""
    order = result.order
    durations = [[f + sum(x * u[j] for x, u in zip(row, pipe.unit, strict=True)) for j, f in enumerate(pipe.fixed)]
                 for row in rows]  # fmt: skip
    require(order.num_slots == len(rows), f"the order is of {order.num_slots} slots, not {len(rows)}")
    ops = check_ops(order, len(rows), pipe)
    tasks = [list(map(int, np.asarray(column))) for column in (asked.owner, asked.forward, asked.backward)]
    spans = _pipeline_spans(result, ops, durations, pipe.hop)
    _check_tasks(result, tasks, spans, asked, pipe.hop)
    _check_turns(result, tasks, ops, operator.index(asked.window))
    _check_held(result, tasks, asked)
    last = max((end for each in spans for _, end, _ in each), default=0)
    require(result.makespan == last, f"makespan is {last}, not {result.makespan}")
    for device, each in enumerate(spans):
        busy = sum(end - start for start, end, _ in each)
        require(result.busy[device] == busy, f"device {device} is busy for {busy}, not {result.busy[device]}")
        require(result.idle[device] == last - busy, f"device {device} idles for {last - busy}")
    _check_own_bound(result, durations, tasks, ops, asked.devices, pipe.hop)


def _pipeline_spans(result: MultiplexResult, ops: list[Any], durations: list[list[int]], hop: int) -> list[list[_Span]]:
    """Check the pipeline's ops among themselves; return when each device runs which."""
    stages, spans = result.order.num_stages, []
    times = {
        (k, s, back): (int(starts[k, s]), int(ends[k, s]))
        for back, starts, ends in ((False, result.forward_start, result.forward_end),
                                   (True, result.backward_start, result.backward_end))
        for k in range(len(durations)) for s in range(stages)
    }  # fmt: skip
    for device, listed in enumerate(ops):
        each, clock = [], 0
        for op in listed:
            start, end = times[op]
            took = durations[op[0]][op[1] + (stages if op[2] else 0)]
            require(end - start == took, f"{op} takes {took}, not {end - start}")
            require(start >= clock, f"{op} starts at {start}, before the op before it on device {device} has ended")
            needed = needed_by(op, stages)
            if needed is not None:
                ready = times[needed][1] + (hop if needed[1] % len(ops) != device else 0)
                require(start >= ready, f"{op} starts at {start}, before {needed} is there at {ready}")
            clock = end
            each.append((start, end, str(op)))
        spans.append(each)
    return spans


def _check_tasks(
    result: MultiplexResult, tasks: list[list[int]], spans: list[list[_Span]], asked: TaskRequest, hop: int
) -> None:  # fmt: skip
    """Check every task against its slot, add it to its device's spans, and check that none overlap."""
    devices, window = asked.devices, operator.index(asked.window)
    for i, (slot, ahead, back) in enumerate(zip(*tasks, strict=True)):
        device, start = int(result.task_device[i]), int(result.task_forward_start[i])
        require(0 <= device < len(spans), f"task {i} is on device {device} of {len(spans)}")
        allowed = isinstance(devices, str) or bool(np.asarray(devices)[i, device])
        require(allowed, f"task {i} may not run on device {device}")
        away = hop if device else 0
        begins = int(result.forward_start[slot, 0])
        require(start >= 0, f"task {i} starts at {start}")
        require(start + ahead + away <= begins, f"task {i} is there at {start + ahead + away}, its slot at {begins}")
        if slot >= window:
            opened = int(result.forward_start[slot - window, 0])
            require(start >= opened, f"task {i} starts at {start}, and slot {slot - window} at {opened} only")
        spans[device].append((start, start + ahead, f"task {i}"))
        later = int(result.task_backward_start[i])
        if back == 0:
            require(later == -1, f"task {i} has no backward, and one that starts at {later}")
            continue
        ready = int(result.backward_end[slot, 0]) + away
        require(later >= ready, f"the backward of task {i} starts at {later}, and is ready at {ready}")
        spans[device].append((later, later + back, f"task {i}, backwards"))
    # a device runs one at a time; what takes no time overlaps with nothing
    for device, each in enumerate(spans):
        ran = sorted(span for span in each if span[0] < span[1])
        for (_, end, name), (start, _, other) in pairwise(ran):
            require(end <= start, f"{name} ends at {end} on device {device}, where {other} starts at {start}")


def _check_turns(result: MultiplexResult, tasks: list[list[int]], ops: list[Any], window: int) -> None:
    """Check that devices run everything if they take these turns, and nothing before its turn."""
    gates: dict[Any, list[Any]] = {}
    found: list[dict[int, Any]] = [{} for _ in ops]
    for i, (slot, _, back) in enumerate(zip(*tasks, strict=True)):
        gates.setdefault((slot, 0, False), []).append((i, False))
        device, own = int(result.task_device[i]), back > 0
        ahead, then = int(result.task_forward_turn[i]), int(result.task_backward_turn[i])
        require(own or then == -1, f"the backward of task {i} has turn {then}, and does not run by itself")
        for turn, op in ((ahead, (i, False)), (then, (i, True)))[: 1 + own]:
            require(turn not in found[device], f"two tasks have turn {turn} on device {device}")
            found[device][turn] = op
    sequence = []
    for device, (listed, places) in enumerate(zip(ops, found, strict=True)):
        own_ops, turns = iter(listed), range(len(listed) + len(places))
        require(all(turn in turns for turn in places), f"turns of device {device} are within 0..{len(turns) - 1}")
        sequence.append([places[turn] if turn in places else next(own_ops) for turn in turns])
    _check_sequence(result, sequence, tasks, gates, window)


def _check_sequence(
    result: MultiplexResult, sequence: list[list[Any]], tasks: list[list[int]], gates: dict[Any, list[Any]], window: int
) -> None:  # fmt: skip
    """Check that what devices run in turn is one after the other, and that they do not wait for each other forever."""
    slots, stages = tasks[0], result.order.num_stages

    def span(op: Any) -> tuple[int, int]:
        back = op[-1]
        if len(op) == 3:
            starts, ends = (result.forward_start, result.backward_start), (result.forward_end, result.backward_end)
            return int(starts[back][op[:2]]), int(ends[back][op[:2]])
        begins = int((result.task_forward_start, result.task_backward_start)[back][op[0]])
        return begins, begins + tasks[1 + back][op[0]]

    def needs(op: Any) -> list[Any]:
        if len(op) == 3:
            return [*gates.get(op, ()), *filter(None, [needed_by(op, stages)])]
        slot = slots[op[0]]
        return [(slot, 0, True)] if op[1] else [(slot - window, 0, False)] * (slot >= window)

    for device, each in enumerate(sequence):
        for one, then in pairwise(each):
            require(span(one)[1] <= span(then)[0], f"{one} on device {device} ends after {then}, its next, has started")
    # in these turns, with no clock: does every device get to its end?
    ran, at, moved = set[Any](), [0] * len(sequence), True
    while moved:
        moved = False
        for device, each in enumerate(sequence):
            while at[device] < len(each) and ran.issuperset(needs(each[at[device]])):
                ran.add(each[at[device]])
                at[device], moved = at[device] + 1, True
    waiting = [each[place] for each, place in zip(sequence, at, strict=True) if place < len(each)]
    require(not waiting, f"in these turns {waiting[:1]} waits forever")


def _check_held(result: MultiplexResult, tasks: list[list[int]], asked: TaskRequest) -> None:
    devices, held_cap = result.order.num_devices, asked.held_cap
    given = [1] * len(tasks[0]) if asked.size is None else list(map(int, np.asarray(asked.size)))
    caps = None if held_cap is None else [int(x) for x in np.broadcast_to(np.asarray(held_cap), devices)]
    for device in range(devices):
        changes = []
        for i, back in enumerate(tasks[2]):
            if back and result.task_device[i] == device:
                changes.append((int(result.task_forward_start[i]), 1, given[i]))
                changes.append((int(result.task_backward_start[i]) + back, 0, -given[i]))
        # at one time what is let go comes first
        now = most = 0
        for _, _, change in sorted(changes):
            now += change
            most = max(most, now)
        require(result.held[device] == most, f"device {device} holds {most}, not {result.held[device]}")
        if caps is not None:
            require(most <= caps[device], f"device {device} holds {most}, over held_cap = {caps[device]}")


def _check_own_bound(
    result: MultiplexResult, durations: list[list[int]], tasks: list[list[int]], ops: list[Any], devices: Any, hop: int
) -> None:  # fmt: skip
    count, stages, proven = len(ops), result.order.num_stages, 0
    if result.bound_name == "work":
        own = [sum(durations[k][s + (stages if back else 0)] for k, s, back in each) for each in ops]
        total = sum(own) + sum(tasks[1]) + sum(tasks[2])
        for i, (_, ahead, back) in enumerate(zip(*tasks, strict=True)):
            where = [0] * count if isinstance(devices, str) else np.flatnonzero(np.asarray(devices)[i]).tolist()
            if count == 1 or len(where) == 1:
                own[where[0]] += ahead + back
        proven = max(*own, -(-total // count))
    elif result.bound_name in ("pipeline", "ends"):
        proven = run_ops(ops, durations, stages, hop)
        if result.bound_name == "ends":
            require(ops[0][-1] == (len(durations) - 1, 0, True), "the first stage does not end with the last slot")
            for column, slot in ((tasks[1], 0), (tasks[2], len(durations) - 1)):
                here = [took for took, k in zip(column, tasks[0], strict=True) if k == slot]
                proven += max(max(here, default=0), -(-sum(here) // count))
    else:
        require(False, f"lower_bound is by an unknown argument {result.bound_name!r}")
    _require_proven(result, proven)


def _require_proven(result: MultiplexResult | MultiplexedResult, proven: int) -> None:
    require_status(result.status, result.lower_bound, result.makespan)
    bound, name = result.lower_bound, result.bound_name
    require(bound <= proven, f"lower_bound = {bound}, but '{name}' proves {proven} at most")


def check_multiplexed(asked: PipelineRequest, beside: TaskRequest, result: MultiplexedResult) -> None:
    """Check slots and tasks against the items and rules they were made from; return nothing if all holds.

    Parameters
    ----------
    asked : PipelineRequest
    beside : TaskRequest
        As given to :func:`solvers.schedule_multiplexed`; number and order of slots are those of the result.
    result : MultiplexedResult

    Raises
    ------
    CertificateError
        Naming the first violated rule.

    Examples
    --------
    >>> from solvers.pipeline import schedule_multiplexed
    >>> items = PipelineRequest([[3], [1], [2], [2]], [[1, 1]], [[2, 2]], num_replicas=1, num_slots=4)
    >>> tasks = TaskRequest([0, 2], [1, 2], [2, 4], window=2)
    >>> check_multiplexed(items, tasks, schedule_multiplexed(items, tasks, time_budget=1e-4))
    """
    items, pipe, order = rows_of(asked.work), Pipe.from_request(asked), result.order
    cells, ops = check_items(result, asked), [order.ops_of(d) for d in range(order.num_devices)]
    check_caps(result, cells, ops, asked)
    _check_replicas(np.asarray(asked.work), cells, pipe, beside, result)
    most = max(result.makespans.tolist())
    require(most == result.makespan, f"makespan is {most}")
    _check_bound_of_all(result, items, pipe, beside, ops)


def _check_replicas(
    table: NDArray[Any], cells: dict[tuple[int, int], list[int]], pipe: Pipe, asked: TaskRequest,
    result: MultiplexedResult,
) -> None:  # fmt: skip
    """Check that tasks are where their items are, and every replica by itself."""
    owner = [int(i) for i in np.asarray(asked.owner)]
    replicas = [int(result.replica_of_item[i]) for i in owner]
    require(replicas == result.replica_of_task.tolist(), "a task is not on its item's replica")
    for r, each in enumerate(result.replicas):
        require(each.order == result.order, f"replica {r} has an order of its own")
        loads = [[sum(int(table[i, m]) for i in cells.get((r, k), [])) for m in range(table.shape[1])]
                 for k in range(result.num_slots)]  # fmt: skip
        mine = [t for t, replica in enumerate(replicas) if replica == r]
        slot = [int(result.slot_of_item[owner[t]]) for t in mine]
        _check_one(loads, pipe, asked.of_slots(slot, np.array(mine, dtype=np.int64)), each)


def _check_bound_of_all(
    result: MultiplexedResult, items: list[list[int]], pipe: Pipe, asked: TaskRequest, ops: list[list[Op]]
) -> None:
    order, (unit, fixed, hop) = result.order, pipe
    owner, *tasks = [list(map(int, np.asarray(column))) for column in (asked.owner, asked.forward, asked.backward)]
    trips = [sum(x * sum(u) for x, u in zip(row, unit, strict=True)) for row in items]
    if result.bound_name == "all_work":
        total = sum(trips) + result.num_replicas * result.num_slots * sum(fixed) + sum(map(sum, tasks))
        proven = -(-total // (result.num_replicas * order.num_devices))
    elif result.bound_name == "item_with_tasks":
        around = [[0, 0] for _ in items]
        for i, *spent in zip(owner, *tasks, strict=True):
            around[i] = [max(a, b) for a, b in zip(around[i], spent, strict=True)]
        back = sum(1 for s in range(order.num_stages - 1) if any((0, s, True) in listed for listed in ops))
        hops = hop * (order.num_stages - 1 + back) if len(ops) > 1 else 0
        proven = max((t + sum(a) for t, a in zip(trips, around, strict=True)), default=0) + sum(fixed) + hops
    else:
        check_bound(result, items, pipe, ops)
        return
    _require_proven(result, proven)
