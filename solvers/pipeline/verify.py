"""The check of a schedule of pipelines, from scratch, with no code of the solver: plain loops, exact numbers."""

from __future__ import annotations

import operator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from solvers.check import require, require_status
from solvers.errors import CertificateError
from solvers.pipeline.orders import OpOrder
from solvers.pipeline.types import MultiplexedResult, PipelineCut, PipelineRequest, PipelineResult

Op = tuple[int, int, bool]
Scheduled = PipelineResult | MultiplexedResult


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
    items, pipe = rows_of(work), Pipe.from_request(asked)
    order, stages = result.order, result.order.num_stages
    cells = check_items(result, asked)
    ops = check_ops(order, order.num_slots, pipe)
    # what every op takes, item by item, in the order replica, slot
    durations = []
    for replica in range(result.num_replicas):
        for slot in range(order.num_slots):
            row = list(pipe.fixed)
            for item in cells.get((replica, slot), []):
                for m, amount in enumerate(items[item]):
                    row = [x + amount * u for x, u in zip(row, pipe.unit[m], strict=True)]
            durations.append(row)
    k = order.num_slots
    replicas = [durations[r * k : (r + 1) * k] for r in range(result.num_replicas)]
    # tied: every op is as long as the slowest of its like
    if tied:
        slowest = [[max(column) for column in zip(*rows, strict=True)] for rows in zip(*replicas, strict=True)]
        replicas = [slowest] * result.num_replicas
    ends = [run_ops(ops, rows, stages, pipe.hop) for rows in replicas]
    require(ends == result.makespans.tolist(), f"makespans are {ends}, not {result.makespans.tolist()}")
    require(max(ends) == result.makespan, f"makespan is {max(ends)}, not {result.makespan}")
    check_caps(result, cells, ops, asked)
    check_bound(result, items, pipe, ops)


class Pipe(NamedTuple):
    """Time of a unit of each module's work in all stages, forwards and backwards; what every op takes besides; hop."""

    unit: list[list[int]]
    fixed: list[int]
    hop: int

    @classmethod
    def from_request(cls, asked: PipelineRequest) -> Pipe:
        """Read it from a request, as it is given."""
        ahead, back = rows_of(asked.forward), rows_of(asked.backward)
        unit = [[*a, *b] for a, b in zip(ahead, back, strict=True)]
        none = [0] * len(ahead[0])
        fixed = [none if each is None else each for each in (asked.forward_overhead, asked.backward_overhead)]
        return cls(unit, [int(x) for each in fixed for x in np.asarray(each)], int(asked.hop))


def rows_of(table: ArrayLike) -> list[list[int]]:
    """Return a table's rows in Python's integers, which do not overflow."""
    return [list(map(int, row)) for row in np.asarray(table)]


def check_items(result: Scheduled, asked: PipelineRequest) -> dict[tuple[int, int], list[int]]:
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


def check_ops(order: OpOrder, num_slots: int, pipe: Pipe) -> list[list[Op]]:
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


def needed_by(op: Op, stages: int) -> Op | None:
    """Return the op of the same slot that must end before this one."""
    slot, stage, backward = op
    if backward:
        return (slot, stage + 1, True) if stage + 1 < stages else (slot, stage, False)
    return (slot, stage - 1, False) if stage else None


def run_ops(ops: list[list[Op]], durations: list[list[int]], stages: int, hop: int) -> int:
    """Simulate: every device runs its next op as soon as it and what it needs are ready."""
    ends: dict[Op, int] = {}
    clock, at = [0] * len(ops), [0] * len(ops)
    moved = True
    while moved:
        moved = False
        for device, listed in enumerate(ops):
            while at[device] < len(listed):
                op = listed[at[device]]
                needed = needed_by(op, stages)
                if needed is not None and needed not in ends:
                    break
                ready = 0
                if needed is not None:
                    ready = ends[needed] + (hop if needed[1] % len(ops) != device else 0)
                took = durations[op[0]][op[1] + (stages if op[2] else 0)]
                clock[device] = ends[op] = max(clock[device], ready) + took
                at[device] += 1
                moved = True
    require(at == [len(listed) for listed in ops], f"the order deadlocks: devices stop at ops {at}")
    return max(ends.values(), default=0)


def check_caps(
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


def check_bound(result: Scheduled, items: list[list[int]], pipe: Pipe, ops: list[list[Op]]) -> None:
    """Check that the bound's argument proves it."""
    bound, makespan, (unit, fixed, hop) = result.lower_bound, result.makespan, pipe
    require_status(result.status, bound, makespan)
    stages, replicas, k = result.order.num_stages, result.num_replicas, result.num_slots
    totals = [sum(column) for column in zip(*items, strict=True)] or [0] * len(unit)
    proven = 0
    if result.bound_name == "work":
        for device in range(len(ops)):
            own = [s + back for s in range(device, stages, len(ops)) for back in (0, stages)]
            spent = sum(t * sum(row[s] for s in own) for t, row in zip(totals, unit, strict=True))
            proven = max(proven, -(-spent // replicas) + k * sum(fixed[s] for s in own))
    elif result.bound_name == "largest_item":
        trips = [sum(a * sum(row) for a, row in zip(amounts, unit, strict=True)) for amounts in items]
        back = sum(1 for s in range(stages - 1) if any((0, s, True) in listed for listed in ops))
        proven = max(trips, default=0) + sum(fixed) + (hop * (stages - 1 + back) if len(ops) > 1 else 0)
    elif result.bound_name == "fluid":
        if not isinstance(result.cut, PipelineCut):
            raise CertificateError("lower_bound is by 'fluid', and there is no cut")
        prices, constant = _priced(result.cut, result, pipe, ops)
        least = [min(column) for column in zip(*prices, strict=True)]
        total = sum(x * t for x, t in zip(least, totals, strict=True)) + replicas * constant
        proven = int(-(-total // (replicas << result.cut.bits)))
    else:
        require(False, f"lower_bound is by an unknown argument {result.bound_name!r}")
    require(bound <= proven, f"lower_bound = {bound}, but '{result.bound_name}' proves {proven} at most")


def _priced(
    cut: PipelineCut, result: Scheduled, pipe: Pipe, ops: list[list[Op]]
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
            needed = needed_by(op, stages)
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
