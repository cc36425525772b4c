"""What the differencing methods share: tuples of subset sums, a heap of them by spread, and how two are merged.

A *tuple* is a partial partition: int64[size, 2], for each of up to m subsets its sum and its *head*, one of its
items, by descending sum. ``joined[item]`` leads from an item to another of its subset, and so on to the head, for
which it is -1. The spread of a tuple is its largest minus its smallest sum. The *queue* (a heap, int64[., 2]) holds
spread and name of each tuple: larger spread first, ties to the lower name.
"""

from solvers._jit import helper
from solvers._loops import copy_table


@helper
def _before(heap, a, b):
    return heap[a, 0] > heap[b, 0] or (heap[a, 0] == heap[b, 0] and heap[a, 1] < heap[b, 1])


@helper
def _exchange(heap, a, b):
    heap[a, 0], heap[b, 0] = heap[b, 0], heap[a, 0]
    heap[a, 1], heap[b, 1] = heap[b, 1], heap[a, 1]


@helper
def heap_push(heap, size, spread, name):
    """Push a tuple on the heap of `size` tuples; returns the new size. O(log size)."""
    heap[size, 0], heap[size, 1] = spread, name
    child = size
    # Up, past all of smaller spread.
    while child > 0 and _before(heap, child, (child - 1) // 2):
        _exchange(heap, child, (child - 1) // 2)
        child = (child - 1) // 2
    return size + 1


@helper
def heap_pop(heap, size):
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
def merge_tuples(a, b, num_groups, joined, merged, spare):
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
def label_groups(joined, subsets, label, group_of_position):
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
