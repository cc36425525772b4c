"""Slots and tasks together: which item runs in which slot of which replica, its tasks in the pipelines' gaps.

Some ways to begin with (:func:`_starts`) race each other: each is listed, searched for a part of the budget, and the
better half goes on, until one is left and has the rest (:func:`_raced`).

*Slots to begin with.* They are what fills and drains the pipeline fast, and what its gaps can take.

By a pipeline alone the ramp is that of its linear program. With tasks, gaps at the beginning are short of forwards,
those at the end are not short of backwards: a steeper ramp up and a flatter one down, and more tasks in early slots,
except the first, for whose tasks the pipeline would wait. How much of that pays depends on the tasks: some are tried.

Where what is held has a cap, devices fill no more of the last gaps than what they may hold by then. So the last slots
are smaller and longer in coming, as a linear program of work that can be divided at will has them (slots' loads, tasks
of every slot and device, what is done in every gap of every device and held there): its solutions for 4, 8 and 16
devices, four times as many slots and room for the tasks of two slots a device are alike, and drawn here as curves. One
of them is tried without caps, too: on few devices its end is better than the others.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from solvers._budget import work_units
from solvers.arguments import as_budget
from solvers.bounds import Bound
from solvers.errors import ArgumentError, TimeLimitError
from solvers.groups import read_only
from solvers.pipeline._cells import Rules
from solvers.pipeline._gap_list import listed
from solvers.pipeline._gap_search import Gaps, Items
from solvers.pipeline._problem import PipelineProblem
from solvers.pipeline._tasks import NO_CAP, Tasks, held_by_any
from solvers.pipeline.bounds import multiplex_bound, multiplexed_bound
from solvers.pipeline.multiplex import result_of
from solvers.pipeline.ramp import Program, Ramp
from solvers.pipeline.run import Stages
from solvers.pipeline.solver import found, started, targets_of
from solvers.pipeline.types import MultiplexedResult, PipelineCut, PipelineRequest, TaskRequest
from solvers.types import status_of

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_STARTS = 6
"""At most, that are tried."""
_LISTED = 1_000
"""Units of work that the least lists of a start take for each op."""
_HEAT = 32
"""Part of the budget that each gets in every heat of their race."""
_TURNS = 4
"""Of the search for each replica: so often another may have become the longest."""


def schedule_multiplexed(asked: PipelineRequest, beside: TaskRequest, *, time_budget: float = 0.2) -> MultiplexedResult:
    """Put items into slots of replicas, and their tasks into the gaps of the replicas' pipelines.

    Parameters
    ----------
    asked : PipelineRequest
        The pipelines without tasks (the language model), not tied.
    beside : TaskRequest
        The tasks of the items (their encoders' work).
    time_budget : float
        Seconds' worth of work, counted and not timed.

    Returns
    -------
    MultiplexedResult

    Raises
    ------
    TypeError, ValueError
        Arguments of the wrong type, shape or range, or whose sums do not fit; pipelines that are tied.
    InfeasibleError
        Items fewer than slots, or over the caps, or whose tasks are, in whatever slots.
    TimeLimitError
        If no schedule under the caps was found.

    Examples
    --------
    >>> items = PipelineRequest([[3], [1], [2], [2]], [[1, 1]], [[2, 2]], num_replicas=1, num_slots=4)
    >>> tasks = TaskRequest([0, 2], [1, 2], [2, 4], window=2)
    >>> found = schedule_multiplexed(items, tasks, time_budget=1e-3)
    >>> found.makespan, found.lower_bound, found.bound_name
    (33, 29, 'all_work')
    """
    started = time.perf_counter()
    seconds = as_budget(time_budget)
    problem = PipelineProblem.from_request(asked)
    if problem.tied:
        raise ArgumentError("tied", "be False where tasks run in gaps: every replica has gaps of its own", "True")
    return _scheduled(
        problem, Tasks.from_request("task_item", beside, len(problem.work), problem.order), seconds, started
    )


def _scheduled(problem: PipelineProblem, tasks: Tasks, seconds: float, started: float) -> MultiplexedResult:
    tasks.check_room(problem.order, held_by_any(problem.order, tasks, problem.num_replicas))
    units = work_units(seconds)
    program = Program.of(problem)
    ramp = program.ramp()
    bound = multiplexed_bound(problem, tasks, ramp.cut)
    # a twentieth of the budget goes into the first start's exchanges, a tenth is set aside for lists
    starts = _starts(problem, tasks, program, ramp, bound.value, units // 20)
    replicas, left = _raced(_tried(problem, tasks, starts, units, bound.value), units - units // 10, bound.value)
    _searched(replicas, left, bound.value)
    cut = ramp.cut if bound.name == "fluid" else None
    return _result(problem, tasks, replicas, bound, cut, started)


@dataclass(slots=True, eq=False)
class _Replica:
    """Items of a replica, their slots, their tasks, and when all run; a search changes slots and times."""

    members: Ints
    slots: Ints
    chosen: Ints
    gaps: Gaps

    @classmethod
    def from_cells(
        cls, problem: PipelineProblem, tasks: Tasks, cells: Ints, replica: int, units: int, goal: int
    ) -> "_Replica":
        """Make list schedules of what is in the cells of a replica."""
        num_slots = problem.num_slots
        members = np.flatnonzero(cells // num_slots == replica)
        slot_of_item = cells % num_slots
        slots = slot_of_item[members]
        chosen = np.flatnonzero(cells[tasks.owner] // num_slots == replica)
        given = tasks.of_slots(slot_of_item[tasks.owner[chosen]], num_slots, chosen)
        rows = np.ascontiguousarray(problem.items[:, members].T @ problem.merged.unit)
        durations = np.tile(problem.merged.fixed, (num_slots, 1))
        np.add.at(durations, slots, rows)
        gaps = listed(durations, problem.order, problem.merged.hop, tasks, given, units, goal)
        if not len(problem.flight.caps):  # the search does not know what is in flight
            at = np.searchsorted(members, tasks.owner[chosen[given.each["number"]]])
            by_item = np.argsort(at, kind="stable")
            first = np.searchsorted(at[by_item], np.arange(len(members) + 1)).astype(np.int64)
            sizes = np.ascontiguousarray(problem.sizes[:, members])
            rows, first, by_item, sizes, at = map(read_only, (rows, first, by_item, sizes, at))
            gaps.items = Items(slots, rows, first, by_item, sizes, problem.caps, problem.may_be_empty, at)
        return cls(members, slots, chosen, gaps)


def _tried(
    problem: PipelineProblem, tasks: Tasks, starts: Iterable[Ints], units: int, goal: int
) -> list[list[_Replica]]:  # fmt: skip
    """Make list schedules of some starts, of those for which there are any."""
    # a quarter of the budget makes lists, the same for each start and replica
    share, tried = units // (4 * _STARTS * problem.num_replicas), []
    failed: TimeLimitError | None = None
    ops = problem.num_cells * 2 * problem.order.num_stages + 2 * len(tasks.owner)
    for cells in islice(starts, 2 + units // (_LISTED * ops)):
        try:
            tried.append(
                [_Replica.from_cells(problem, tasks, cells, r, share, goal) for r in range(problem.num_replicas)]
            )
        except TimeLimitError as error:
            failed = error
    if not tried and failed is not None:
        raise failed
    return tried


def _raced(tried: list[list[_Replica]], units: int, goal: int) -> tuple[list[_Replica], int]:
    """Search from all, then from the better half, and so on; return what is left, and of the budget."""
    left = units
    while len(tried) > 1:
        for each in tried:
            _searched(each, units // _HEAT, goal)
            left -= units // _HEAT
        tried = sorted(tried, key=lambda each: _longest(each).gaps.makespan)[: len(tried) // 2]
    return tried[0], left


def _longest(replicas: list[_Replica]) -> _Replica:
    return max(replicas, key=lambda each: each.gaps.makespan)


def _searched(replicas: list[_Replica], units: int, goal: int) -> None:
    """Search on whatever replica is longest, again and again, until all is done or the budget is."""
    share = 1 + units // (_TURNS * len(replicas))
    while units > 0 and _longest(replicas).gaps.makespan > goal:
        done = _longest(replicas).gaps.search(min(share, units), goal)
        if not done:
            return
        units -= done


def _result(
    problem: PipelineProblem, tasks: Tasks, replicas: list[_Replica], bound: Bound, cut: PipelineCut | None,
    started: float,
) -> MultiplexedResult:  # fmt: skip
    replica_of_item, slot_of_item = (np.zeros(len(problem.work), dtype=np.int32) for _ in range(2))
    results = []
    for r, each in enumerate(replicas):
        replica_of_item[each.members], slot_of_item[each.members] = r, each.slots
        slots = np.empty_like(each.gaps.plan.slot)
        slots[each.gaps.given.each["number"]] = each.gaps.plan.slot
        given = tasks.of_slots(slots, problem.num_slots, each.chosen)
        own = multiplex_bound(each.gaps.durations, problem.order, problem.merged.hop, given)
        results.append(result_of(each.gaps, own, time.perf_counter() - started))
    makespan = max(each.makespan for each in results)
    return MultiplexedResult(
        read_only(replica_of_item), read_only(slot_of_item), replica_of_item[tasks.owner], tuple(results), makespan,
        cut, lower_bound=bound.value, bound_name=bound.name, status=status_of(makespan, bound.value),
        runtime_s=time.perf_counter() - started,
    )  # fmt: skip


# --- slots to begin with ---------------------------------------------------------------------------------------------


class _Shape(NamedTuple):
    """What the first and the last S slots have of the pipeline's own ramp, and of tasks, the last on average.

    Early tasks are those of half a window more: their forwards fill the gaps before the first backward. Tasks are as
    the ramp with 0 of `even`, and the same in all slots with 2.
    """

    up: float
    down: float
    early: float
    late: float
    even: float = 1.0


_MOST, _ROUNDS = 1.9, 5  # times the mean
_EXCHANGES = 3  # of items, for each replica
_MOST_PAIRS = 1 << 24  # of two replicas' items in the same slots; of more, shares are even enough
_ALIKE = 0.05  # of a mean slot's work, at most, is between two: what a slot has more waits in every stage
# Rows *shape 0* to *shape 3* of benchmarks/ablation.py: the last one is worth 283 +- 116 ppm; without the first
# three, a small step with little room for tasks finds no schedule.
_SHAPES = (
    _Shape(1.0, 1.0, 1.0, 1.0), _Shape(0.9, 1.0, 1.5, 0.8), _Shape(0.9, 0.8, 1.5, 0.8), _Shape(0.8, 1.6, 1.5, 0.8),
)  # fmt: skip
_CURVES = ((1.0, 1.0), (1.2, 1.15))
"""Of the curves, what the first and the last slots have; without caps there is the first one alone."""
_UP = (0.0, 0.5, 0.85, 1.1, 1.5, 2.0), (0.26, 0.57, 0.93, 1.38, 1.54, 1.6)
_DOWN = (0.0, 0.3, 0.6, 0.85, 0.95, 1.5, 1.62, 2.1), (0.37, 0.56, 0.65, 0.77, 0.84, 0.97, 1.5, 1.6)
"""Slots for each device from the first slot on, or from the last one back, and parts of the mean load there."""
_EARLY, _LATE = ((0.15, 0.3, 1.1), (0.0, 1.9, 1.9)), ((0.15, 0.35, 1.05), (0.0, 1.9, 1.9))
_BETWEEN = 0.8
"""The same of tasks, as parts of the curve."""
_IN_FLIGHT = 0.65  # of all room, at most, is for the tasks of slots in flight: single tasks do not fill it


def _starts(
    problem: PipelineProblem, tasks: Tasks, program: Program, ramp: Ramp, goal: int, units: int
) -> Iterator[Ints]:
    """Yield cells of all items, some ways: the pipeline's own ramp, others for both, curves, under caps even slots."""
    for cells in _filled(problem, tasks, program, ramp, goal, units):
        yield cells if len(problem.sizes) else _evened(problem, tasks, cells)


def _filled(
    problem: PipelineProblem, tasks: Tasks, program: Program, ramp: Ramp, goal: int, units: int
) -> Iterator[Ints]:
    yield found(problem, program, ramp, goal, units)
    targets, large = targets_of(problem, program, ramp)
    own = np.maximum(targets, 0.0).reshape(problem.num_replicas, problem.num_slots, -1)  # nothing by a rounding less
    both = _with_tasks(problem, _spent(problem, tasks) // (2 * problem.order.num_devices))
    share = int(both.items[-1].sum()) / problem.num_replicas
    width = problem.order.num_devices
    if (tasks.caps < NO_CAP).any():
        size = max(1, int(tasks.size[tasks.backward > 0].sum()))
        most = min(1.0, _IN_FLIGHT * float(tasks.caps.sum(dtype=np.float64)) * problem.num_replicas / size)
        wanted = [_curved(own, share, ends, width, most) for ends in _CURVES]
        wanted += [_shaped(own, share, shape, width, tasks.window) for shape in _SHAPES[1:3]]
        even = [own.mean(axis=1, keepdims=True), np.full((len(own), 1, 1), share / problem.num_slots)]
        wanted.append(np.broadcast_to(np.concatenate(even, axis=2), wanted[0].shape))
    else:
        wanted = [_shaped(own, share, shape, width, tasks.window) for shape in _SHAPES]
        wanted.append(_curved(own, share, _CURVES[0], width, 1.0))
    rules = Rules.of(both)
    for each in wanted:
        aims = np.ascontiguousarray(each.reshape(problem.num_cells, -1))
        cells = started(both, rules, both.merged.unit.max(axis=1), aims, large, 0)
        if cells is not None:  # under caps the first start may be all there is
            yield cells.cell_of


def _spent(problem: PipelineProblem, tasks: Tasks) -> Ints:
    """Return what each item's tasks take."""
    spent = np.zeros(len(problem.work), dtype=np.int64)
    np.add.at(spent, tasks.owner, tasks.forward + tasks.backward)
    return spent


def _evened(problem: PipelineProblem, tasks: Tasks, cells: Ints) -> Ints:
    """Exchange items of the same slot of two replicas, alike but for their tasks, until all have as much work."""
    cells, replicas, slots = cells.copy(), problem.num_replicas, problem.num_slots
    own = problem.items.T @ problem.merged.unit.sum(axis=1)
    work, alike = own + _spent(problem, tasks), _ALIKE * float(own.sum()) / problem.num_cells
    by_cell, counts = np.argsort(cells, kind="stable"), np.bincount(cells, minlength=problem.num_cells)
    rows = np.full((problem.num_cells, int(counts.max(initial=0))), -1)
    rows[np.arange(rows.shape[1]) < counts[:, None]] = by_cell
    table = rows.reshape(replicas, slots, -1)
    totals = np.bincount(cells // slots, weights=work, minlength=replicas)
    # the two items whose exchange brings the longest and the shortest replica closest together, again and again
    for _ in range(_EXCHANGES * replicas if 0 < slots * rows.shape[1] ** 2 <= _MOST_PAIRS else 0):
        high, low = int(np.argmax(totals)), int(np.argmin(totals))
        more = work[table[high]][:, :, None] - work[table[low]][:, None, :]
        both = (table[high] >= 0)[:, :, None] & (table[low] >= 0)[:, None, :]
        off = np.where(both, np.abs(2 * more - (totals[high] - totals[low])), np.inf)
        unlike = np.abs(own[table[high]][:, :, None] - own[table[low]][:, None, :])
        off = np.where(unlike <= alike, off + unlike, np.inf)
        k, a, b = np.unravel_index(int(np.argmin(off)), off.shape)
        if off[k, a, b] >= totals[high] - totals[low]:
            break
        one, other = (high, k, a), (low, k, b)
        table[one], table[other] = table[other], table[one]
        totals[high] -= more[k, a, b]
        totals[low] += more[k, a, b]
        cells[table[one]], cells[table[other]] = high * slots + k, low * slots + k
    return cells


def _with_tasks(problem: PipelineProblem, spent: Ints) -> PipelineProblem:
    """Return the problem with what tasks take of a device as one module more."""
    merged = problem.merged
    unit = np.vstack([merged.unit, np.zeros_like(merged.unit[:1])])
    unit[-1] = 1
    return replace(
        problem, items=read_only(np.vstack([problem.items, spent[None, :]])),
        merged=Stages(read_only(unit), merged.fixed, merged.hop, merged.forward_only),
    )  # fmt: skip


def _shaped(own: Floats, share: float, shape: _Shape, width: int, window: int) -> Floats:
    """Return targets of modules and tasks, float64[R, K, M + 1], whose sums are as before."""
    slots = own.shape[1]
    width = min(width, slots)
    bend, more = np.ones(slots), np.ones(slots)
    bend[:width] *= shape.up
    bend[slots - width :] *= np.linspace(1.0, shape.down, width)
    more[: width + window // 2] *= shape.early
    more[slots - width :] *= np.linspace(1.0, shape.late, width)
    more[0] = 0.0 if slots > 1 else 1.0
    # the pipeline's own ramp, bent at both ends, and as much in all as before
    bent = own * bend[:, None]
    bent *= own.sum(axis=1, keepdims=True) / np.maximum(1e-300, bent.sum(axis=1, keepdims=True))
    # tasks by slot: between as the ramp and the same everywhere, more where the gaps can take them
    ramp = bent.sum(axis=2)
    part = _parts(ramp)
    mixed = ((2 - shape.even) * part + shape.even / slots) * more
    for _ in range(_ROUNDS):  # no slot has many more tasks than its items bring
        mixed = np.minimum(_parts(mixed), _MOST * part)
    mixed = share * _parts(np.where(mixed.any(axis=1, keepdims=True), mixed, part))  # the first may bring all there are
    return np.concatenate([bent, mixed[:, :, None]], axis=2)


def _curved(own: Floats, share: float, ends: tuple[float, float], width: int, most: float) -> Floats:
    """Return targets as the curves have them; no `width` slots in turn have more than the part `most` of all tasks."""
    slots = own.shape[1]
    # slots by how many a device they are from the first, and from the last
    at = np.arange(0.5, slots) / width
    back = at[::-1]
    curve = np.minimum(np.interp(at, *_UP), np.interp(back, *_DOWN))
    curve *= np.interp(at, (0.0, 0.5), (ends[0], 1.0)) * np.interp(back, (0.0, 0.7), (ends[1], 1.0))
    top, over = curve.max(), curve.sum() > slots
    for _ in range(_ROUNDS if over else 0):  # the ends stay as they are, whatever is between them
        top += (slots - np.minimum(curve, top).sum()) / (curve >= top).sum()
    curve = np.minimum(curve, top)
    tasks = np.where(at < _EARLY[0][-1], np.interp(at, *_EARLY), _BETWEEN)
    tasks = np.where(back < _LATE[0][-1], np.interp(back, *_LATE), tasks)
    tasks = _parts(curve * tasks if tasks.any() else curve)
    # where slots in flight together have more tasks than there is room for, these shrink, and others get them
    width = min(width, slots)
    for _ in range(_ROUNDS):
        part = np.minimum(1.0, most / np.maximum(1e-300, sliding_window_view(tasks, width).sum(axis=1)))
        least = sliding_window_view(np.pad(part, width - 1, constant_values=1.0), width).min(axis=1)
        tasks = _parts(tasks * least)
    bent = own.sum(axis=1, keepdims=True) * _parts(curve)[:, None]
    return np.concatenate([bent, np.broadcast_to(share * tasks[:, None], (len(own), slots, 1))], axis=2)


def _parts(rows: Floats) -> Floats:
    """Return each row as parts of its sum; of zeros, zeros."""
    whole: Floats = rows / np.maximum(1e-300, rows.sum(axis=-1, keepdims=True))
    return whole
