"""Karmarkar-Karp: largest differencing for any number of groups (Karmarkar & Karp 1982).

Every item starts as a tuple of its own, (c, 0, ..., 0). Again and again the two tuples with the largest spread are
merged so that the largest sum of one meets the smallest of the other, until one is left: the groups.

Three things make it fast here. Tuples are stored without their zeros, so that all of them together take O(n) memory
and not n * m. The sorted items are a queue already; only merged tuples need a heap. And merging a single item into a
tuple, by far the most frequent merge, moves one sum to its new place.
"""

import time

import numpy as np
from numpy.typing import ArrayLike

from solvers._budget import work_units
from solvers._jit import helper, kernel
from solvers._loops import copy_table
from solvers.arguments import as_budget
from solvers.partitioning._differencing import heap_pop, heap_push, label_groups, merge_tuples
from solvers.partitioning._problem import Assignment, PartitionProblem
from solvers.partitioning.bldm import assign_bldm
from solvers.partitioning.lpt import assign_lpt
from solvers.partitioning.refine import refine
from solvers.types import PartitionResult

_START, _SIZE, _ROOM = 0, 1, 2  # columns of `where`: a tuple's place in the storage; a bare item has size 0


@helper
def _insert_item(subsets, size, num_groups, cost, item, joined):
    """Merge one item into a tuple: as a subset of its own while there are fewer than m, else into the smallest."""
    place = min(size, num_groups - 1)
    total, head = cost, np.int64(item)
    if size == num_groups:
        total += subsets[place, 0]
        head = subsets[place, 1]
        joined[item] = head
    # Only this sum changed: one step of an insertion sort, O(m).
    while place > 0 and subsets[place - 1, 0] < total:
        subsets[place, 0], subsets[place, 1] = subsets[place - 1, 0], subsets[place - 1, 1]
        place -= 1
    subsets[place, 0], subsets[place, 1] = total, head
    return min(size + 1, num_groups)


@helper
def _move(where, name, source, target, to):
    start, size = where[name, _START], where[name, _SIZE]
    copy_table(target[to:], source[start : start + size])
    where[name, _START] = to
    return to + size


@helper
def _make_room(where, name, needed, heap, heap_size, storage, spare, end):
    """Move tuple `name` to where it has room for `needed` subsets; returns storage, spare and the end of what is used.

    Storage is handed out from the front. When it runs out, the living tuples, which hold at most n subsets, move to the
    spare storage; that happens at most once in n subsets handed out.
    """
    # Full: the living move together, at most once in n subsets handed out.
    if end + needed > len(storage):
        end = 0
        for k in range(heap_size):
            alive = heap[k, 1]
            end = _move(where, alive, storage, spare, end)
            where[alive, _ROOM] = where[alive, _SIZE]
        _move(where, name, storage, spare, end)
        storage, spare = spare, storage
    else:
        _move(where, name, storage, storage, end)
    where[name, _ROOM] = needed
    return storage, spare, end + needed


@helper
def _pop_first(costs, alone, heap, heap_size, queue):
    """Take the tuple with the largest spread, a merged one or the next bare item; returns name, heap size, queue."""
    bare = queue < len(costs)
    spread = costs[queue] * alone if bare else 0
    # Bare items descend already, so that they are a queue of their own, and only merged tuples need the heap.
    if heap_size and (not bare or heap[0, 0] > spread or (heap[0, 0] == spread and heap[0, 1] < queue)):
        return heap[0, 1], heap_pop(heap, heap_size), queue
    return np.int64(queue), heap_size, queue + 1


@kernel
def _karmarkar_karp(costs, num_groups, group_of_position):
    """At least two items."""
    n = len(costs)
    alone = np.int64(num_groups > 1)  # a bare item's spread is its cost, but 0 in the only group
    storage = np.empty((4 * n + 2, 2), dtype=np.int64)
    spare = np.empty((4 * n + 2, 2), dtype=np.int64)
    where = np.zeros((n, 3), dtype=np.int64)  # a tuple keeps the name of the first of the two it came from
    joined = np.full(n, -1, dtype=np.int32)
    heap = np.empty((n, 2), dtype=np.int64)
    merged, merge_spare = np.empty((num_groups, 2), dtype=np.int64), np.empty((num_groups, 2), dtype=np.int64)
    heap_size, end, queue = 0, 0, 0
    for _ in range(n - 1):
        # The two tuples of largest spread; the name of the first goes on.
        a, heap_size, queue = _pop_first(costs, alone, heap, heap_size, queue)
        b, heap_size, queue = _pop_first(costs, alone, heap, heap_size, queue)
        name, item = a, b
        # A bare item joins the tuple, whichever of the two came first: that moves one sum, the other way all.
        if where[a, _SIZE] == 0 and where[b, _SIZE] > 0:
            where[a], item = where[b], a
        both = where[b, _SIZE] > 0 and item == b
        start, size = where[name, _START], max(where[name, _SIZE], 1)
        if both:
            there = where[b, _START]
            size = merge_tuples(
                storage[start : start + size],
                storage[there : there + where[b, _SIZE]],
                num_groups,
                joined,
                merged,
                merge_spare,
            )
        needed = size if both else min(size + 1, num_groups)
        # Twice the room that is needed, so that a tuple moves seldom.
        if where[name, _ROOM] < needed:
            roomy = min(2 * needed, num_groups)
            storage, spare, end = _make_room(where, name, roomy, heap, heap_size, storage, spare, end)
        start = where[name, _START]
        if both:
            copy_table(storage[start:], merged[:size])
        else:
            if where[name, _SIZE] == 0:
                storage[start, 0], storage[start, 1] = costs[name], name
            size = _insert_item(storage[start:], size, num_groups, costs[item], item, joined)
        where[name, _SIZE] = size
        spread = storage[start, 0] - (storage[start + size - 1, 0] if size == num_groups else 0)
        heap_size = heap_push(heap, heap_size, spread, name)
    start, size = where[heap[0, 1], _START], where[heap[0, 1], _SIZE]
    label_groups(joined, storage[start : start + size], np.empty(n, dtype=np.int32), group_of_position)


def assign_karmarkar_karp(problem: PartitionProblem) -> Assignment:
    """Largest differencing on a prepared problem; counts are as they come."""
    assignment = np.zeros(len(problem.sorted_costs), dtype=np.int32)
    if len(assignment) > 1:
        _karmarkar_karp(problem.sorted_costs, problem.num_groups, assignment)
    return assignment


def karmarkar_karp(
    costs: ArrayLike, num_groups: int, *, equal_counts: bool = False, time_budget: float = 0.01
) -> PartitionResult:
    """Partition by largest differencing; with equal counts, by the best start and swaps that keep the counts.

    Parameters
    ----------
    costs, num_groups
        As for :func:`solvers.partition`, and so are the errors.
    equal_counts : bool
        Exactly n/m items a group, within one where m does not divide n: the better of :func:`bldm` and :func:`lpt`
        with quotas, improved by swaps; never worse than either.
    time_budget : float
        Seconds' worth of work that the swaps may take. Differencing itself is one pass, whatever the budget.

    Returns
    -------
    PartitionResult

    Notes
    -----
    O(n (m + log n)) time, where moving a sum inside a tuple costs the m, and O(n + m) memory.

    References
    ----------
    Karmarkar & Karp, "The differencing method of set partitioning", UC Berkeley CSD-83-113, 1982.

    Examples
    --------
    >>> karmarkar_karp([8, 7, 6, 5, 4], 2).loads.tolist()
    [16, 14]
    """
    started = time.perf_counter()
    problem = PartitionProblem.prepare(costs, num_groups, equal_counts)
    if not problem.equal_counts:
        return problem.result(assign_karmarkar_karp(problem), "karmarkar_karp", started)
    starts = assign_lpt(problem), assign_bldm(problem)
    best = min(starts, key=problem.makespan_of)  # ties to LPT
    refine(problem, best, work_units(as_budget(time_budget)))
    return problem.result(best, "karmarkar_karp", started)
