"""Slots and tasks together: which item runs in which slot of which replica, its tasks in the pipelines' gaps.

Told from top to bottom, in the order in which it runs (:func:`_scheduled`):

1. *Starts* (:func:`_starts`) say which item is in which cell. One is the pipeline's own ramp, as if there were no
   tasks. Others aim at a curve by which the gaps can take tasks: gaps at the beginning are short of forwards, those at
   the end are not short of backwards. So it rises steeply and falls slowly, and has more tasks in early slots, except
   the first, for whose tasks the pipeline would wait. Where what is held has a cap, devices fill no more of the last
   gaps than what they may hold by then: the last slots have few tasks. How much of the curve pays depends on the tasks,
   so a way between it and the ramp is tried too.
2. Each is *evened*: replicas exchange items until all have as much work.
3. Each is *listed* (:mod:`solvers.pipeline._gap_list`) and searched for a part of the budget
   (:mod:`solvers.pipeline._gap_search`). The best one has the rest.

The curve is drawn after a linear program of work that can be divided at will (slots' loads, tasks of every slot and
device, what is done in every gap of every device and held there): its solutions for 4, 8 and 16 devices, four times as
many slots and room for the tasks of two slots a device are alike.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

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
from solvers.pipeline._tasks import Tasks, held_by_any
from solvers.pipeline.bounds import multiplex_bound, multiplexed_bound
from solvers.pipeline.multiplex import result_of
from solvers.pipeline.ramp import Program, Ramp
from solvers.pipeline.run import Stages
from solvers.pipeline.solver import found, started, targets_of
from solvers.pipeline.types import MultiplexedResult, PipelineCut, PipelineRequest, TaskRequest
from solvers.types import status_of

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_STARTS, _PART = 4, 24
"""Starts, at most, and the part of the budget that each is listed by, and searched for."""
_START = 1_000
"""Units of work, for each op, that there must be for every start above two: the least that lists take."""
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
    # 1. Some starts that lists find a schedule of, each searched for a part of the budget. A tenth is set aside for
    #    lists.
    ops = problem.num_cells * 2 * problem.order.num_stages + 2 * len(tasks.owner)
    most = min(_STARTS, 2 + units // (_START * ops))
    part, tried, failed = units // _PART, list[list[_Replica]](), list[TimeLimitError]()
    for cells in _starts(problem, tasks, program, ramp, bound.value, part):
        try:
            tried.append(_listed(problem, tasks, cells, part, bound.value))
        except TimeLimitError as error:
            failed.append(error)
            continue
        _searched(tried[-1], part, bound.value)
        if len(tried) == most:
            break
    if not tried:
        raise failed[0]
    # 2. The best one goes on.
    replicas = min(tried, key=lambda each: _longest(each).gaps.makespan)
    _searched(replicas, units - units // 10 - len(tried) * part, bound.value)
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


def _listed(problem: PipelineProblem, tasks: Tasks, cells: Ints, units: int, goal: int) -> list[_Replica]:
    """Make list schedules of all replicas; raises TimeLimitError where there are none."""
    share = units // problem.num_replicas
    return [_Replica.from_cells(problem, tasks, cells, r, share, goal) for r in range(problem.num_replicas)]


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


_ROUNDS = 5  # of bringing targets within their limits
_EXCHANGES = 3  # of items, for each replica
_MOST_PAIRS = 1 << 24  # of two replicas' items in the same slots; of more, shares are even enough
_ALIKE = 0.05  # of a mean slot's work, at most, is between two: what a slot has more waits in every stage
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
    """Yield cells of all items, some ways: the pipeline's own, by the curve, between it and the ramp, and flatter."""
    own = found(problem, program, ramp, goal, units)
    yield own if len(problem.sizes) else _evened(problem, tasks, own)
    targets, large = targets_of(problem, program, ramp)
    targets = targets.reshape(problem.num_replicas, problem.num_slots, -1)
    both = _with_tasks(problem, _spent(problem, tasks) // (2 * problem.order.num_devices))
    share = int(both.items[-1].sum()) / problem.num_replicas
    size = max(1, int(tasks.size[tasks.backward > 0].sum()))
    room = _IN_FLIGHT * float(tasks.caps.sum(dtype=np.float64)) * problem.num_replicas / size
    curve = _curved(targets, share, problem.order.num_devices, min(1.0, room))
    ramped = np.concatenate([targets, curve[:, :, -1:]], axis=2)
    even = np.broadcast_to(curve.mean(axis=1, keepdims=True), curve.shape)
    # the last two are for tight room: slots that are alike hold less in flight
    for wanted in (curve, (curve + ramped) / 2, ramped, (curve + even) / 2, even):
        aims = np.ascontiguousarray(wanted.reshape(problem.num_cells, -1))
        cells = started(both, Rules.of(both), both.merged.unit.max(axis=1), aims, large, 0)
        if cells is not None:
            yield cells.cell_of if len(problem.sizes) else _evened(problem, tasks, cells.cell_of)


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


def _curved(own: Floats, share: float, width: int, most: float) -> Floats:
    """Return targets of modules and tasks, float64[R, K, M + 1], as the curve has them, whose sums are as before.

    No `width` slots in turn have more than the part `most` of all tasks.
    """
    slots = own.shape[1]
    # slots by how many a device they are from the first, and from the last
    at = np.arange(0.5, slots) / width
    back = at[::-1]
    curve = np.minimum(np.interp(at, *_UP), np.interp(back, *_DOWN))
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
