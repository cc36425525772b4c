"""Checks of schedules of pipelines, with tasks in their gaps or without, from scratch: plain loops, exact numbers.

A check looks at feasibility, at exact times, by one event loop (:func:`_starts`), and at the proof that a result
carries. Bounds in closed form (:mod:`solvers.pipeline.bounds`) carry none, and are not derived a second time.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from solvers.check import require, require_status
from solvers.errors import CertificateError
from solvers.pipeline.orders import OpOrder
from solvers.pipeline.types import (
    MultiplexedResult,
    MultiplexResult,
    PipelineCut,
    PipelineRequest,
    PipelineResult,
    TaskRequest,
)

Op = tuple[int, int, bool]
"""Slot, stage, and whether it is the backward. A task's is its number, and whether."""
Needs = Mapping[Any, Sequence[tuple[Any, int]]]
"""Of an op, after which others it starts, and how long after their start."""
Scheduled = PipelineResult | MultiplexedResult
_CLOSED = ("work", "largest_item", "all_work", "item_with_tasks", "pipeline", "ends")
"""Names of bounds in closed form."""


def check_pipeline(
    work: ArrayLike,
    forward: ArrayLike,
    backward: ArrayLike,
    result: PipelineResult,
    *,
    forward_overhead: ArrayLike | None = None,
    backward_overhead: ArrayLike | None = None,
    sizes: ArrayLike | None = None,
    cap: ArrayLike | None = None,
    in_flight_cap: ArrayLike | None = None,
    hop: int = 0,
    tied: bool = False,
    slots_multiple_of: int = 1,
    allow_empty: bool = False,
) -> None:
    """Check a schedule against the items and rules it was made from; return nothing if all holds.

    The pipelines are run anew, op by op, and the bound is computed from its cut in integers.

    Parameters
    ----------
    work, forward, backward, forward_overhead, backward_overhead, sizes, cap, in_flight_cap, hop, tied, \
slots_multiple_of, allow_empty
        As given to :func:`solvers.schedule_pipeline`.
    result : PipelineResult
        Its order is taken as it is, but must be free of deadlock.

    Raises
    ------
    CertificateError
        Naming the first violated rule.

    Examples
    --------
    >>> import solvers
    >>> given = [[3], [1], [2], [2]], [[1, 1]], [[2, 2]]
    >>> solvers.check_pipeline(*given, solvers.schedule_pipeline(*given, 1, 3))
    """
    asked = PipelineRequest(
        work, forward, backward, forward_overhead=forward_overhead, backward_overhead=backward_overhead, sizes=sizes,
        cap=cap, in_flight_cap=in_flight_cap, hop=hop, tied=tied, slots_multiple_of=slots_multiple_of,
        allow_empty=allow_empty,
    )  # fmt: skip
    items, pipe, order = _rows_of(work), _Pipe.from_request(asked), result.order
    cells, ops = _check_items(result, asked), _check_ops(order, order.num_slots, pipe)
    replicas = [
        [pipe.takes(items[i] for i in cells.get((replica, slot), [])) for slot in range(order.num_slots)]
        for replica in range(result.num_replicas)
    ]
    # tied: every op is as long as the slowest of its like
    if tied:
        slowest = [[max(column) for column in zip(*rows, strict=True)] for rows in zip(*replicas, strict=True)]
        replicas = [slowest] * result.num_replicas
    ends = []
    for rows in replicas:
        took, needs = _rules_of_ops(ops, rows, pipe.hop)
        starts = _starts(ops, took, needs)
        ends.append(max((start + took[op] for op, start in starts.items()), default=0))
    require(ends == result.makespans.tolist(), f"makespans are {ends}, not {result.makespans.tolist()}")
    require(max(ends) == result.makespan, f"makespan is {max(ends)}, not {result.makespan}")
    _check_caps(result, cells, ops, asked)
    _check_bound(result, items, pipe, ops)


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
    _check_one(_rows_of(asked.work), _Pipe.from_request(asked), beside, result)


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
    items, pipe, order = _rows_of(asked.work), _Pipe.from_request(asked), result.order
    cells, ops = _check_items(result, asked), [order.ops_of(d) for d in range(order.num_devices)]
    _check_caps(result, cells, ops, asked)
    # tasks are where their items are, and every replica is right by itself
    owner = [int(i) for i in np.asarray(beside.owner)]
    replicas = [int(result.replica_of_item[i]) for i in owner]
    require(replicas == result.replica_of_task.tolist(), "a task is not on its item's replica")
    for r, each in enumerate(result.replicas):
        require(each.order == order, f"replica {r} has an order of its own")
        loads = [
            [sum(column) for column in zip(*(items[i] for i in cells.get((r, k), [])), strict=True)]
            or [0] * len(pipe.unit)
            for k in range(order.num_slots)
        ]
        mine = [t for t, replica in enumerate(replicas) if replica == r]
        slot = [int(result.slot_of_item[owner[t]]) for t in mine]
        _check_one(loads, pipe, beside.of_slots(slot, np.array(mine, dtype=np.int64)), each)
    most = max(result.makespans.tolist())
    require(most == result.makespan, f"makespan is {most}")
    _check_bound(result, items, pipe, ops)


# --- what is given ---------------------------------------------------------------------------------------------------


class _Pipe(NamedTuple):
    """Time of a unit of each module's work in all stages, forwards and backwards; what every op takes besides; hop."""

    unit: list[list[int]]
    fixed: list[int]
    hop: int

    @classmethod
    def from_request(cls, asked: PipelineRequest) -> _Pipe:
        """Read it from a request, as it is given."""
        ahead, back = _rows_of(asked.forward), _rows_of(asked.backward)
        unit = [[*a, *b] for a, b in zip(ahead, back, strict=True)]
        none = [0] * len(ahead[0])
        fixed = [none if each is None else each for each in (asked.forward_overhead, asked.backward_overhead)]
        return cls(unit, [int(x) for each in fixed for x in np.asarray(each)], int(asked.hop))

    def takes(self, loads: Iterable[Sequence[int]]) -> list[int]:
        """Return what the ops of a slot with these loads take."""
        row = list(self.fixed)
        for load in loads:
            for amount, unit in zip(load, self.unit, strict=True):
                row = [x + amount * u for x, u in zip(row, unit, strict=True)]
        return row


def _rows_of(table: ArrayLike) -> list[list[int]]:
    """Return a table's rows in Python's integers, which do not overflow."""
    return [list(map(int, row)) for row in np.asarray(table)]


def _check_items(result: Scheduled, asked: PipelineRequest) -> dict[tuple[int, int], list[int]]:
    """Check that every item is in a slot, and every slot has one; return the items of each replica's slots."""
    n, multiple = len(np.asarray(asked.work)), operator.index(asked.slots_multiple_of)
    for name in ("replica_of_item", "slot_of_item"):
        array = getattr(result, name)
        require(
            array.dtype == np.int32 and array.shape == (n,) and not array.flags.writeable,
            f"{name} must be read-only int32[{n}], got {array.dtype} of shape {array.shape}",
        )
    require(result.num_slots % multiple == 0, f"{result.num_slots} slots are no multiple of {multiple}")
    cells: dict[tuple[int, int], list[int]] = {}
    for item, cell in enumerate(zip(result.replica_of_item.tolist(), result.slot_of_item.tolist(), strict=True)):
        inside = 0 <= cell[0] < result.num_replicas and 0 <= cell[1] < result.num_slots
        require(inside, f"item {item} is in slot {cell[1]} of replica {cell[0]}, of {result.num_slots} slots of "
                         f"{result.num_replicas} replicas")  # fmt: skip
        cells.setdefault(cell, []).append(item)
    full = result.num_replicas * result.num_slots
    require(asked.allow_empty or len(cells) == full, f"{full - len(cells)} slots are empty")
    return cells


def _check_ops(order: OpOrder, num_slots: int, pipe: _Pipe) -> list[list[Op]]:
    """Check that every device runs each of its ops once, and return them; first stages may go without backwards."""
    ops, stages = [order.ops_of(d) for d in range(order.num_devices)], order.num_stages
    trained = [any(row[stages + s] for row in pipe.unit) or pipe.fixed[stages + s] > 0 for s in range(stages)]
    first = trained.index(True) if True in trained else stages
    for device, listed in enumerate(ops):
        require(len(set(listed)) == len(listed), f"device {device} runs an op twice")
        own = [s for s in range(stages) if s % len(ops) == device]
        needed = {(k, s, False) for k in range(num_slots) for s in own}
        back = {(k, s, True) for k in range(num_slots) for s in own}
        require(needed <= set(listed) <= needed | back, f"device {device} does not run the forwards of its stages")
        missing = {s for _, s, _ in back - set(listed)}
        require(all(s < first for s in missing), f"device {device} leaves out backwards of stages {sorted(missing)}")
    return ops


# --- exact times -----------------------------------------------------------------------------------------------------


def _needed_by(op: Op, stages: int) -> Op | None:
    """Return the op of the same slot that must end before this one."""
    slot, stage, backward = op
    if backward:
        return (slot, stage + 1, True) if stage + 1 < stages else (slot, stage, False)
    return (slot, stage - 1, False) if stage else None


def _rules_of_ops(ops: list[list[Op]], rows: list[list[int]], hop: int) -> tuple[dict[Any, int], dict[Any, Any]]:
    """Return what each op of a pipeline takes, and what it waits for."""
    stages = len(rows[0]) // 2
    took = {(k, s, back): rows[k][s + stages * back] for each in ops for k, s, back in each}
    needs: dict[Any, list[tuple[Any, int]]] = {}
    for device, each in enumerate(ops):
        for op in each:
            before = _needed_by(op, stages)
            far = before is not None and before[1] % len(ops) != device
            needs[op] = [] if before is None else [(before, took[before] + hop * far)]
    return took, needs


def _starts(sequence: Sequence[Sequence[Any]], took: Mapping[Any, int], needs: Needs) -> dict[Any, int]:
    """Simulate: every device runs its next op as soon as it and what that waits for are ready."""
    starts: dict[Any, int] = {}
    clock, at, moved = [0] * len(sequence), [0] * len(sequence), True
    while moved:
        moved = False
        for device, each in enumerate(sequence):
            while at[device] < len(each) and all(other in starts for other, _ in needs[each[at[device]]]):
                op = each[at[device]]
                starts[op] = max([clock[device], *(starts[other] + gap for other, gap in needs[op])])
                clock[device] = starts[op] + took[op]
                at[device], moved = at[device] + 1, True
    waiting = [each[place] for each, place in zip(sequence, at, strict=True) if place < len(each)]
    require(not waiting, f"in these turns {waiting[:1]} waits forever")
    return starts


def _check_one(rows: list[list[int]], pipe: _Pipe, asked: TaskRequest, result: MultiplexResult) -> None:
    """Check one replica, whose slots have these loads, with its tasks."""
    order, window = result.order, operator.index(asked.window)
    require(order.num_slots == len(rows), f"the order is of {order.num_slots} slots, not {len(rows)}")
    ops = _check_ops(order, len(rows), pipe)
    took, needs = _rules_of_ops(ops, [pipe.takes([row]) for row in rows], pipe.hop)
    sequence = _in_turn(result, asked, ops)
    # a slot's tasks open its first op, and wait for one `window` before; then for its last op
    for i, (slot, ahead, back) in enumerate(
        zip(*map(_ints, (asked.owner, asked.forward, asked.backward)), strict=True)
    ):
        away = pipe.hop if result.task_device[i] else 0
        took[i, False], took[i, True] = ahead, back
        needs[slot, 0, False].append(((i, False), ahead + away))
        needs[i, False] = [((slot - window, 0, False), 0)] if slot >= window else []
        needs[i, True] = [((slot, 0, True), took.get((slot, 0, True), 0) + away)]
    starts = _starts(sequence, took, needs)
    for op, spent in took.items():
        told, when = _told(result, op), (starts[op], starts[op] + spent) if op in starts else (-1, -1)
        require(told == when[: len(told)], f"{op} is said to run at {told}, and runs at {when[: len(told)]}")
    last = max((start + took[op] for op, start in starts.items()), default=0)
    require(result.makespan == last, f"makespan is {last}, not {result.makespan}")
    for device, each in enumerate(sequence):
        busy = sum(took[op] for op in each)
        require(result.busy[device] == busy, f"device {device} is busy for {busy}, not {result.busy[device]}")
        require(result.idle[device] == last - busy, f"device {device} idles for {last - busy}")
    _check_held(result, sequence, asked)
    require_status(result.status, result.lower_bound, result.makespan)
    require(result.bound_name in _CLOSED, f"lower_bound is by an unknown argument {result.bound_name!r}")


def _ints(column: ArrayLike) -> list[int]:
    return list(map(int, np.asarray(column)))


def _told(result: MultiplexResult, op: Any) -> tuple[int, ...]:
    """Return when an op is said to start, and of the pipeline's also to end."""
    if len(op) == 2:
        return (int((result.task_forward_start, result.task_backward_start)[op[1]][op[0]]),)
    k, s, back = op
    both = (result.backward_start, result.backward_end) if back else (result.forward_start, result.forward_end)
    return int(both[0][k, s]), int(both[1][k, s])


def _in_turn(result: MultiplexResult, asked: TaskRequest, ops: list[list[Op]]) -> list[list[Any]]:
    """Check devices and turns of tasks; return what each device runs in turn."""
    places: list[dict[int, Any]] = [{} for _ in ops]
    for i, back in enumerate(_ints(asked.backward)):
        device, own = int(result.task_device[i]), back > 0
        require(0 <= device < len(ops), f"task {i} is on device {device} of {len(ops)}")
        allowed = isinstance(asked.devices, str) or bool(np.asarray(asked.devices)[i, device])
        require(allowed, f"task {i} may not run on device {device}")
        ahead, then = int(result.task_forward_turn[i]), int(result.task_backward_turn[i])
        require(own or then == -1, f"the backward of task {i} has turn {then}, and does not run by itself")
        for turn, op in ((ahead, (i, False)), (then, (i, True)))[: 1 + own]:
            require(turn not in places[device], f"two tasks have turn {turn} on device {device}")
            places[device][turn] = op
    sequence = []
    for device, (listed, mine) in enumerate(zip(ops, places, strict=True)):
        own_ops, turns = iter(listed), range(len(listed) + len(mine))
        require(all(turn in turns for turn in mine), f"turns of device {device} are within 0..{len(turns) - 1}")
        sequence.append([mine[turn] if turn in mine else next(own_ops) for turn in turns])
    return sequence


def _check_held(result: MultiplexResult, sequence: list[list[Any]], asked: TaskRequest) -> None:
    """Check what devices hold between forwards and backwards of tasks."""
    back, caps = _ints(asked.backward), asked.held_cap
    sizes = [1] * len(back) if asked.size is None else _ints(asked.size)
    for device, each in enumerate(sequence):
        now = most = 0
        for op in each:
            if len(op) == 2 and back[op[0]]:
                now += -sizes[op[0]] if op[1] else sizes[op[0]]
                most = max(most, now)
        require(result.held[device] == most, f"device {device} holds {most}, not {result.held[device]}")
        if caps is not None:
            cap = int(np.broadcast_to(np.asarray(caps), len(sequence))[device])
            require(most <= cap, f"device {device} holds {most}, over held_cap = {cap}")


# --- caps, and what is proven ----------------------------------------------------------------------------------------


def _check_caps(
    result: Scheduled, cells: dict[tuple[int, int], list[int]], ops: list[list[Op]], asked: PipelineRequest
) -> None:
    """Check what slots hold, and what devices hold of slots that are in flight."""
    if asked.sizes is None:
        return
    given = np.asarray(asked.sizes)
    columns = [given.tolist()] if given.ndim == 1 else given.T.tolist()
    held = {cell: [sum(column[i] for i in inside) for column in columns] for cell, inside in cells.items()}
    none = [0] * len(columns)
    if asked.cap is not None:
        caps = [int(x) for x in np.broadcast_to(np.asarray(asked.cap), len(columns))]
        for (replica, slot), sums in held.items():
            for total, most in zip(sums, caps, strict=True):
                require(total <= most, f"slot {slot} of replica {replica} holds {total}, over cap = {most}")
    if asked.in_flight_cap is None:
        return
    caps = [int(x) for x in np.broadcast_to(np.asarray(asked.in_flight_cap), len(ops))]
    for replica in range(result.num_replicas):
        for device, listed in enumerate(ops):
            # a stage without a backward keeps nothing
            kept = {(k, s) for k, s, backward in listed if backward}
            now = 0
            for slot, stage, backward in listed:
                if (slot, stage) in kept:
                    size = held.get((replica, slot), none)[stage if len(columns) > 1 else 0]
                    now += -size if backward else size
                require(now <= caps[device], f"device {device} of replica {replica} has {now} in flight, over "
                                              f"in_flight_cap = {caps[device]}")  # fmt: skip


def _check_bound(result: Scheduled, items: list[list[int]], pipe: _Pipe, ops: list[list[Op]]) -> None:
    """Check that the bound is below the makespan, and, where there is a cut, that this proves it."""
    bound, replicas = result.lower_bound, result.num_replicas
    require_status(result.status, bound, result.makespan)
    if result.bound_name != "fluid":
        require(result.bound_name in _CLOSED, f"lower_bound is by an unknown argument {result.bound_name!r}")
        return
    if not isinstance(result.cut, PipelineCut):
        raise CertificateError("lower_bound is by 'fluid', and there is no cut")
    totals = [sum(column) for column in zip(*items, strict=True)] or [0] * len(pipe.unit)
    prices, constant = _priced(result.cut, result, pipe, ops)
    least = [min(column) for column in zip(*prices, strict=True)]
    total = sum(x * t for x, t in zip(least, totals, strict=True)) + replicas * constant
    proven = int(-(-total // (replicas << result.cut.bits)))
    require(bound <= proven, f"lower_bound = {bound}, but '{result.bound_name}' proves {proven} at most")


def _priced(
    cut: PipelineCut, result: Scheduled, pipe: _Pipe, ops: list[list[Op]]
) -> tuple[list[list[int]], int]:  # fmt: skip
    """Check that a cut is paths that weigh no more than they may; return its prices by slot, and its constant."""
    stages, (unit, fixed, hop) = result.order.num_stages, pipe
    listed = [op for each in ops for op in each]
    require(len(cut.from_device) == len(cut.from_neighbour) == len(listed), "the cut is not of the order's ops")
    require(min(*cut.from_device.tolist(), *cut.from_neighbour.tolist()) >= 0, "the cut has negative weights")
    # a flow: what leaves an op came to it, so that it falls into paths, none of which weighs more than begins
    into = dict(zip(listed, (cut.from_device + cut.from_neighbour).tolist(), strict=True))
    out = dict.fromkeys(listed, 0)
    begun, at, constant = 0, 0, 0
    prices = [[0] * len(unit) for _ in range(result.num_slots)]
    for device, each in enumerate(ops):
        for place, op in enumerate(each):
            along, across = int(cut.from_device[at]), int(cut.from_neighbour[at])
            at += 1
            if place:
                out[each[place - 1]] += along
            else:
                begun += along
            needed = _needed_by(op, stages)
            if needed is not None:
                out[needed] += across
                constant += across * hop if needed[1] % len(ops) != device else 0
            else:
                require(across == 0, f"the cut comes to {op} from a neighbour that it does not have")
            j = op[1] + (stages if op[2] else 0)
            constant += into[op] * fixed[j]
            for m, row in enumerate(unit):
                prices[op[0]][m] += into[op] * row[j]
    require(begun <= 1 << cut.bits, f"the cut's paths weigh {begun}, over 2**{cut.bits}")
    for op in listed:
        require(out[op] <= into[op], f"more of the cut leaves {op} than comes to it")
    return prices, constant
