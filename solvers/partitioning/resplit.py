"""Two groups at a time, divided anew by differencing: this evens out what exchanges leave uneven.

Put the items of two groups together and divide them by Karmarkar-Karp: with a hundred items the two new loads differ
by next to nothing, however the old ones did. A sweep does so with the largest and the smallest group, the second
largest and the second smallest, and so on, which at least halves the spread. When sweeps no longer help, the largest
group is tried with all others, one after another. No division is kept that makes the larger of its two loads larger.

With equal counts the differencing starts from pairs of neighbours in the sorted order (Yakir 1996), which keeps them.
"""

import numpy as np

from solvers._exchange import items_of, members_of
from solvers._jit import helper, kernel
from solvers._loops import first_largest, largest_of, stable_order
from solvers.groups import group_loads
from solvers.partitioning._problem import Assignment, PartitionProblem

# Work units of an item that is divided: it goes through a heap twice.
_WORK_PER_ITEM = 28


@helper
def _push(heap, size, value, item):
    """Insert into a heap of (value, item), largest value first; ties to the lowest item."""
    k = size
    while k > 0:
        parent = (k - 1) // 2
        if heap[parent, 0] > value or (heap[parent, 0] == value and heap[parent, 1] < item):
            break
        heap[k, 0], heap[k, 1] = heap[parent, 0], heap[parent, 1]
        k = parent
    heap[k, 0], heap[k, 1] = value, item


@helper
def _sink(heap, size, value, item):
    """Replace the root of a heap of `size` entries."""
    k = 0
    while True:
        child = 2 * k + 1
        if child >= size:
            break
        other = child + 1
        if other < size and (
            heap[other, 0] > heap[child, 0] or (heap[other, 0] == heap[child, 0] and heap[other, 1] < heap[child, 1])
        ):
            child = other
        if value > heap[child, 0] or (value == heap[child, 0] and item < heap[child, 1]):
            break
        heap[k, 0], heap[k, 1] = heap[child, 0], heap[child, 1]
        k = child
    heap[k, 0], heap[k, 1] = value, item


@helper
def difference_two(costs, in_pairs, heap, merged, side):
    """Divide `costs`, which descend, in two by differencing: ``side[i]`` is 0 or 1; returns by how much sums differ.

    `heap` and `merged` are int64, at least n by 2; with `in_pairs` items 2i and 2i + 1 part.
    """
    n = len(costs)
    if n == 0:
        return np.int64(0)
    step = 2 if in_pairs else 1
    size, merges = 0, 0
    for i in range(0, n, step):
        value = costs[i]
        if in_pairs and i + 1 < n:
            value -= costs[i + 1]
            merged[merges, 0], merged[merges, 1] = i, i + 1
            merges += 1
        _push(heap, size, value, i)
        size += 1
    # Two largest differences part: one entry for both, whose value is what is left of them.
    while size > 1:
        value, item = heap[0, 0], heap[0, 1]
        size -= 1
        _sink(heap, size, heap[size, 0], heap[size, 1])
        merged[merges, 0], merged[merges, 1] = item, heap[0, 1]
        merges += 1
        _sink(heap, size, value - heap[0, 0], item)
    side[heap[0, 1]] = 0
    # Sides are told backwards: whoever was merged lies opposite.
    for k in range(merges - 1, -1, -1):
        side[merged[k, 1]] = 1 - side[merged[k, 0]]
    return heap[0, 0]


@helper
def _merge(one, other, out):
    """Merge two ascending lists of positions."""
    i, j = 0, 0
    for k in range(len(one) + len(other)):
        if j == len(other) or (i < len(one) and one[i] < other[j]):
            out[k] = one[i]
            i += 1
        else:
            out[k] = other[j]
            j += 1


@helper
def _divide(costs, group, loads, members, g, h, in_pairs, scratch):
    """Divide groups g and h anew if that makes the larger load smaller; returns whether it did."""
    positions, values, heap, merged, side = scratch
    start, sizes = members.start, members.size
    n = sizes[g] + sizes[h]
    _merge(items_of(members, g), items_of(members, h), positions)
    for k in range(n):
        values[k] = costs[positions[k]]
    spread = difference_two(values[:n], in_pairs, heap, merged, side)
    if spread >= abs(loads[g] - loads[h]):
        return False
    first = 0
    for k in range(n):
        first += side[k] == 0
    # With equal counts the longer group has to stay the longer.
    swap = (sizes[g] > sizes[h]) != (first > n - first)  # the longer stays the longer
    to_g = 1 if swap else 0
    size_g = n - first if swap else first
    if size_g > start[g + 1] - start[g] or n - size_g > start[h + 1] - start[h]:
        return False
    sizes[g], sizes[h], loads[g], loads[h] = 0, 0, 0, 0
    for k in range(n):
        to = g if side[k] == to_g else h
        members.item[start[to] + sizes[to]] = positions[k]
        sizes[to] += 1
        loads[to] += values[k]
        group[positions[k]] = to
    return True


@kernel(turns=60)
def _resplit(costs, group, loads, bound, in_pairs, work):
    num_groups = len(loads)
    members = members_of(group, num_groups, len(costs) // num_groups + 1)
    start, sizes = members.start, members.size
    most = 0
    for g in range(num_groups):
        most = max(most, start[g + 1] - start[g])
    shape = (2 * most, 2)
    scratch = (
        np.empty(2 * most, dtype=np.int32),
        np.empty(2 * most, dtype=np.int64),
        np.empty(shape, dtype=np.int64),
        np.empty(shape, dtype=np.int64),
        np.empty(2 * most, dtype=np.int64),
    )
    work -= len(costs)
    while work > 0:
        largest = largest_of(loads)
        order = stable_order(loads)
        work -= 10 * num_groups
        # A sweep: the largest with the smallest, and so on. Each division costs its items times their logarithm.
        for k in range(num_groups // 2):
            g, h = order[num_groups - 1 - k], order[k]
            if loads[g] <= bound or loads[g] - loads[h] < 2 or work <= 0:
                break
            work -= _WORK_PER_ITEM * (sizes[g] + sizes[h])
            _divide(costs, group, loads, members, g, h, in_pairs, scratch)
        if largest_of(loads) < largest:
            continue
        # A sweep in vain: the largest with each other, the smallest first, until one division helps.
        g = first_largest(loads)
        done = False
        for h in order:
            if done or loads[g] <= bound or loads[g] - loads[h] < 2 or work <= 0:
                break
            if h != g:
                work -= _WORK_PER_ITEM * (sizes[g] + sizes[h])
                done = _divide(costs, group, loads, members, g, h, in_pairs, scratch)
        if not done:
            break
    return work


def resplit(problem: PartitionProblem, assignment: Assignment, work: int) -> int:
    """Improve `assignment` in place, keeping equal counts where the problem asks for them.

    Never makes it worse. Returns the work left, positive if the search ended by itself. Dividing s items takes
    O(s log s); a sweep over all groups O(n log(n/m) + m log m); O(n + m) memory.

    References
    ----------
    Karmarkar & Karp, "The differencing method of set partitioning", Berkeley, 1982; with equal counts: Yakir, "The
    differencing algorithm LDM for partitioning: a proof of a conjecture of Karmarkar and Karp", Mathematics of
    Operations Research 21(1), 1996.
    """
    loads = group_loads(problem.sorted_costs, assignment, problem.num_groups)
    if problem.num_groups < 2:
        return work
    return int(_resplit(problem.sorted_costs, assignment, loads, problem.goal, problem.equal_counts, work))
