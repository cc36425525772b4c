"""Slots and tasks together: which item runs in which slot of which replica, its tasks in the pipelines' gaps."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solvers._budget import work_units
from solvers.arguments import as_budget
from solvers.bounds import Bound
from solvers.errors import ArgumentError, TimeLimitError
from solvers.groups import read_only
from solvers.pipeline._gaps import Gaps, no_items
from solvers.pipeline._multiplex_starts import starts_of
from solvers.pipeline._problem import PipelineProblem
from solvers.pipeline._profile import profile_of
from solvers.pipeline._request import PipelineRequest, TaskRequest
from solvers.pipeline._tasks import Tasks, held_by_any
from solvers.pipeline.multiplex import result_of
from solvers.pipeline.multiplex_bounds import multiplex_bound, multiplexed_bound
from solvers.pipeline.multiplex_types import MultiplexedResult
from solvers.pipeline.types import PipelineCut
from solvers.types import status_of

Ints = NDArray[np.int64]
_STARTS = 6  # at most, that are tried
_LISTED = 1_000  # units of work that the least lists of a start take for each op
_HEAT = 32  # part of the budget that each gets in every heat of their race
_TURNS = 4  # of the search for each replica


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
    (32, 29, 'all_work')
    """
    started = time.perf_counter()
    seconds = as_budget(time_budget)
    problem = PipelineProblem.of(asked)
    if problem.tied:
        raise ArgumentError("tied", "be False where tasks run in gaps: every replica has gaps of its own", "True")
    return _scheduled(problem, Tasks.of("task_item", beside, len(problem.work), problem.order), seconds, started)


def _scheduled(problem: PipelineProblem, tasks: Tasks, seconds: float, started: float) -> MultiplexedResult:
    tasks.check_room(problem.order, held_by_any(problem.order, tasks, problem.num_replicas))
    units = work_units(seconds)
    profile = profile_of(problem.items.sum(axis=1), problem.merged, problem.order, problem.num_replicas)
    bound = multiplexed_bound(problem, tasks, profile)
    starts = starts_of(problem, tasks, profile, bound.value, seconds / 20)
    replicas, left = _raced(_tried(problem, tasks, starts, units, bound.value), units - units // 10, bound.value)
    ended = _searched(replicas, left, bound.value)
    cut = profile.cut if bound.name == "fluid" else None
    return _result(problem, tasks, replicas, bound, cut, ended, started)


@dataclass(slots=True, eq=False)
class _Replica:
    """Items of a replica, their slots, their tasks, and when all run; a search changes slots and times."""

    members: Ints
    slots: Ints
    chosen: Ints
    gaps: Gaps

    @classmethod
    def of(cls, problem: PipelineProblem, tasks: Tasks, cells: Ints, replica: int, units: int, goal: int) -> "_Replica":
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
        items: tuple[Any, ...] = no_items()
        if problem.flight_caps is None:  # the search does not know what is in flight
            at = np.searchsorted(members, tasks.owner[chosen[given.order]])
            by_item = np.argsort(at, kind="stable")
            first = np.searchsorted(at[by_item], np.arange(len(members) + 1)).astype(np.int64)
            sizes = np.ascontiguousarray(problem.sizes[:, members])
            items = (
                slots,
                read_only(rows),
                read_only(first),
                read_only(by_item),
                read_only(sizes),
                problem.caps,
                read_only(at),
            )
        gaps = Gaps.listed(durations, problem.order, problem.merged.hop, tasks, given, items, units, goal)
        return cls(members, slots, chosen, gaps)


def _tried(
    problem: PipelineProblem, tasks: Tasks, starts: Iterable[Ints], units: int, goal: int
) -> list[list[_Replica]]:  # fmt: skip
    """Make list schedules of some starts, of those for which there are any."""
    share, tried = units // (4 * _STARTS * problem.num_replicas), []
    failed: TimeLimitError | None = None
    ops = problem.num_cells * 2 * problem.order.num_stages + 2 * len(tasks.owner)
    for cells in islice(starts, 2 + units // (_LISTED * ops)):
        try:
            tried.append([_Replica.of(problem, tasks, cells, r, share, goal) for r in range(problem.num_replicas)])
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


def _searched(replicas: list[_Replica], units: int, goal: int) -> bool:
    """Search on whatever replica is longest, again and again; return whether all is done before the budget is."""
    share = 1 + units // (_TURNS * len(replicas))
    while units > 0 and _longest(replicas).gaps.makespan > goal:
        done = _longest(replicas).gaps.search(min(share, units), goal)
        if not done:
            return True
        units -= done
    return units > 0


def _result(
    problem: PipelineProblem, tasks: Tasks, replicas: list[_Replica], bound: Bound, cut: PipelineCut | None,
    ended: bool, started: float,
) -> MultiplexedResult:  # fmt: skip
    replica_of_item, slot_of_item = (np.zeros(len(problem.work), dtype=np.int32) for _ in range(2))
    results = []
    for r, each in enumerate(replicas):
        replica_of_item[each.members], slot_of_item[each.members] = r, each.slots
        slots = np.empty_like(each.gaps.slots)
        slots[each.gaps.given.order] = each.gaps.slots
        given = tasks.of_slots(slots, problem.num_slots, each.chosen)
        own = multiplex_bound(each.gaps.durations, problem.order, problem.merged.hop, given)
        results.append(result_of(each.gaps, own, ended, time.perf_counter() - started))
    makespan = max(each.makespan for each in results)
    return MultiplexedResult(
        read_only(replica_of_item), read_only(slot_of_item), replica_of_item[tasks.owner], tuple(results), makespan,
        cut, lower_bound=bound.value, bound_name=bound.name, status=status_of(makespan, bound.value, ended=ended),
        runtime_s=time.perf_counter() - started,
    )  # fmt: skip
