"""Karmarkar-Karp: largest differencing for any number of groups (Karmarkar & Karp 1982).

Every item starts as a tuple of its own, (c, 0, ..., 0). Again and again the two tuples with the largest spread are
merged so that the largest sum of one meets the smallest of the other, until one is left: the groups.

Three things make it fast here. Tuples are stored without their zeros, so that all of them together take O(n) memory
and not n * m. The sorted items are a queue already; only merged tuples need a heap. And merging a single item into a
tuple, by far the most frequent merge, moves one sum to its new place.

A *tuple* is a partial partition: int64[size, 2], for each of up to m subsets its sum and its *head*, one of its
items, by descending sum. ``joined[item]`` leads from an item to another of its subset, and so on to the head, for
which it is -1. The spread of a tuple is its largest minus its smallest sum. The heap of tuples holds spread and name
of each: larger spread first, ties to the lower name.
"""

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers._loops import copy_table
from solvers.groups import read_only

_START, _SIZE, _ROOM = 0, 1, 2  # columns of `where`: a tuple's place in the storage; a bare item has size 0


@helper
def _before(heap, a, b):
    return heap[a, 0] > heap[b, 0] or (heap[a, 0] == heap[b, 0] and heap[a, 1] < heap[b, 1])


@helper
def _exchange(heap, a, b):
    heap[a, 0], heap[b, 0] = heap[b, 0], heap[a, 0]
    heap[a, 1], heap[b, 1] = heap[b, 1], heap[a, 1]


@helper
def _heap_push(heap, size, spread, name):
    """Push a tuple on the heap of `size` tuples; returns the new size. O(log size)."""
    heap[size, 0], heap[size, 1] = spread, name
    child = size
    # Up, past all of smaller spread.
    while child > 0 and _before(heap, child, (child - 1) // 2):
        _exchange(heap, child, (child - 1) // 2)
        child = (child - 1) // 2
    return size + 1


@helper
def _heap_pop(heap, size):
    """Drop the first tuple of the heap; returns the new size. O(log size)."""
    size -= 1
    heap[0, 0], heap[0, 1] = heap[size, 0], heap[size, 1]
    parent = 0
    while 2 * parent + 1 < size:
        child = 2 * parent + 1
        # Down, past the one of its two children that comes first.
        if child + 1 < size and _before(heap, child + 1, child):
            child += 1
        if not _before(heap, child, parent):
            break
        _exchange(heap, child, parent)
        parent = child
    return size


@helper
def _sort_by_sum(subsets, size, spare):
    """Bottom-up merge sort of ``subsets[:size]`` by descending sum, stable. O(size log size)."""
    width = 1
    while width < size:
        for low in range(0, size, 2 * width):
            middle, high = min(low + width, size), min(low + 2 * width, size)
            i, j = low, middle
            for k in range(low, high):
                if i < middle and (j >= high or subsets[i, 0] >= subsets[j, 0]):
                    spare[k, 0], spare[k, 1] = subsets[i, 0], subsets[i, 1]
                    i += 1
                else:
                    spare[k, 0], spare[k, 1] = subsets[j, 0], subsets[j, 1]
                    j += 1
        copy_table(subsets, spare[:size])
        width *= 2


@helper
def _merge_tuples(a, b, num_groups, joined, merged, spare):
    """Merge tuples `a` and `b`, the largest subset of one with the smallest of the other, into `merged`.

    `merged` and `spare` are int64[num_groups, 2]. Returns the number of subsets. O(size log size).
    """
    copy_table(merged, a)
    # Subsets descend in both: the largest of one with the smallest of the other, so that spreads cancel.
    for k in range(len(b)):
        partner = num_groups - 1 - k
        if partner < len(a):
            merged[partner, 0] += b[k, 0]
            joined[b[k, 1]] = merged[partner, 1]
        else:  # the partner is an empty subset
            merged[len(a) + k, 0], merged[len(a) + k, 1] = b[k, 0], b[k, 1]
    size = min(len(a) + len(b), num_groups)
    _sort_by_sum(merged, size, spare)
    return size


@helper
def _label_groups(joined, subsets, label, group_of_position):
    """Give each item the index of its subset in `subsets`. Near linear: paths are halved as they are walked."""
    for g in range(len(subsets)):
        label[subsets[g, 1]] = g
    for i in range(len(group_of_position)):
        item = i
        # Up to the head, halving the path on the way, so that later walks are short.
        while joined[item] >= 0:
            above = joined[item]
            if joined[above] >= 0:
                joined[item] = joined[above]
            item = above
        group_of_position[i] = label[item]


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
        return heap[0, 1], _heap_pop(heap, heap_size), queue
    return np.int64(queue), heap_size, queue + 1


@kernel(turns=30)
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
            size = _merge_tuples(
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
        heap_size = _heap_push(heap, heap_size, spread, name)
    start, size = where[heap[0, 1], _START], where[heap[0, 1], _SIZE]
    _label_groups(joined, storage[start : start + size], np.empty(n, dtype=np.int32), group_of_position)


def kk_in_order(costs: NDArray[np.int64], num_groups: int) -> NDArray[np.int32]:
    """Partition descending costs by largest differencing; returns int32[n]. Counts are as they come.

    O(n (m + log n)) time, where moving a sum inside a tuple costs the m, and O(n + m) memory.

    References
    ----------
    Karmarkar & Karp, "The differencing method of set partitioning", UC Berkeley CSD-83-113, 1982.

    Examples
    --------
    >>> kk_in_order(np.array([8, 7, 6, 5, 4]), 2)
    array([1, 0, 1, 0, 0], dtype=int32)
    """
    groups = np.zeros(len(costs), dtype=np.int32)
    if len(costs) > 1:
        _karmarkar_karp(read_only(costs), num_groups, groups)
    return groups
