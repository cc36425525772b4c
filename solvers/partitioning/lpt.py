"""LPT: the longest item first, each to the least loaded group (Graham 1969).

A group's load and number are packed into one integer, its *key*: ``load << bits | group``. So one comparison finds the
least load, ties to the lowest group. Where loads are too large for that there is a slower twin of each kernel (*wide*).
A `kernel` is compiled and called by Python, a `helper` is compiled into the kernels that call it.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._heap import group_bits, sift_down_packed, sift_down_wide
from solvers._jit import helper, kernel
from solvers._loops import largest_of, numbers, smallest_of
from solvers._sort import insertion_sort, radix_sort
from solvers.groups import read_only
from solvers.partitioning._problem import Assignment, PartitionProblem, solve
from solvers.types import PartitionResult

# Up to so many nearly sorted keys insertion sort is faster than radix sort. It came in with SLACK in two kernels, and
# LPT only where SLACK is not optimal: together they halved the time of small batches.
_FEW_GROUPS = 64
# Bits of a digit of radix sort: its table of 512 counts stays in the fastest cache.
_ROUND_DIGIT_BITS = 9
# A round of less than 1/8 of the groups costs more to sort than a heap.
_SHORT_ROUND = 8


@helper
def _sort_keys(keys, scratch, digits, mask):
    """Sort packed keys by the bits in which they differ."""
    base = smallest_of(keys) & ~mask
    spread = largest_of(keys) - base
    width = 0
    while spread >> width:
        width += 1
    keys -= base
    radix_sort(keys, scratch, digits, np.int64(0), width)
    keys += base


@kernel
def _lpt_rounds(costs, num_groups, bits, group_of_position):
    """Positive costs, in the order in which they are placed; (largest load) << bits fits int64.

    Keep the keys, load << bits | group, sorted. The next items go to keys 0, 1, 2, ... in this order for as long as the
    next key is below every key that this round has raised, which is mostly the whole round: loads differ by less than
    one item. Then sort anew, which is quick, as the keys differ little: two to four times faster than a heap (measured:
    benchmarks/README.md). When rounds become short, a heap takes over.
    """
    keys = numbers(num_groups)  # all loads are 0, so that a key is its group
    scratch = np.empty(num_groups, dtype=np.int64)  # room for the sort, and below for its counts of digits
    counts = np.empty(1 << _ROUND_DIGIT_BITS, dtype=np.int64)
    mask = (1 << bits) - 1  # the group in a key
    n = len(costs)
    i = 0
    while i < n:
        lowest_raised = np.int64(2**63 - 1)
        turn = 0
        # A round: the least loaded groups in order get an item each, up to the first that is no longer least.
        while turn < num_groups and i < n and keys[turn] < lowest_raised:
            key = keys[turn]
            group_of_position[i] = key & mask
            raised = key + (costs[i] << bits)
            keys[turn] = raised
            lowest_raised = min(lowest_raised, raised)
            turn += 1
            i += 1
        # The keys are nearly sorted: cheap by insertion where they are few, by their differing bits else.
        if num_groups <= _FEW_GROUPS:
            insertion_sort(keys, num_groups)
        else:
            _sort_keys(keys, scratch, counts, mask)
        if turn * _SHORT_ROUND < num_groups:
            break
    while i < n:  # a sorted array is a heap
        key = keys[0]
        group_of_position[i] = key & mask
        sift_down_packed(keys, num_groups, key + (costs[i] << bits))
        i += 1


@kernel
def _lpt_wide(costs, num_groups, group_of_position):
    """As :func:`_lpt_rounds`, by a heap, for loads of any size."""
    loads = np.zeros(num_groups, dtype=np.int64)
    groups = numbers(num_groups)
    for i in range(len(costs)):
        group_of_position[i] = groups[0]
        sift_down_wide(loads, groups, num_groups, loads[0] + costs[i], groups[0])


@kernel
def _level_counts(num_groups, bits, group_of_position, first):
    """Give the positions from `first` on, whose cost is zero, to the groups that hold the fewest items."""
    counts = np.zeros(num_groups, dtype=np.int64)
    for i in range(first):
        counts[group_of_position[i]] += 1
    # The same rule as for loads, with the number of items in place of the load.
    keys = counts << bits | numbers(num_groups)
    width = bits
    while largest_of(counts) >> (width - bits):
        width += 1
    radix_sort(
        keys, np.empty(num_groups, dtype=np.int64), np.empty(1 << _ROUND_DIGIT_BITS, dtype=np.int64), np.int64(0), width
    )
    for i in range(first, len(group_of_position)):
        key = keys[0]
        group_of_position[i] = key & ((1 << bits) - 1)
        sift_down_packed(keys, num_groups, key + (1 << bits))


@kernel
def _lpt_quotas(costs, num_groups, bits, group_of_position):
    """Equal counts, by rounds as :func:`_lpt_rounds`: a full group leaves; n mod m groups may take one item more."""
    n = len(costs)
    quota = n // num_groups
    longer = n - quota * num_groups
    keys = numbers(num_groups)
    scratch = np.empty(num_groups, dtype=np.int64)
    digits = np.empty(1 << _ROUND_DIGIT_BITS, dtype=np.int64)
    counts = np.zeros(num_groups, dtype=np.int64)
    mask = (1 << bits) - 1
    size = num_groups
    i = 0
    while i < n:
        lowest_raised = np.int64(2**63 - 1)
        turn, kept = 0, 0  # keys looked at in this round, and those of them that can take more: these move to the front
        while turn < size and i < n and keys[turn] < lowest_raised:
            key = keys[turn]
            turn += 1
            g = key & mask
            if counts[g] == quota and longer == 0:  # full, and nobody may take one item more: its key is dropped
                continue
            # One of the n mod m groups that may take one item more is used up.
            longer -= counts[g] == quota
            counts[g] += 1
            group_of_position[i] = g
            key += costs[i] << bits
            i += 1
            if counts[g] <= quota and (counts[g] < quota or longer > 0):
                keys[kept] = key
                kept += 1
                lowest_raised = min(lowest_raised, key)
        # Close the gap that dropped keys left.
        rest = size - turn
        for k in range(rest):
            keys[kept + k] = keys[turn + k]
        size = kept + rest
        if size <= _FEW_GROUPS:
            insertion_sort(keys, size)
        else:
            _sort_keys(keys[:size], scratch[:size], digits, mask)
        if turn * _SHORT_ROUND < size:
            break
    while i < n:  # a sorted array is a heap
        g = keys[0] & mask
        if counts[g] > quota or (counts[g] == quota and longer == 0):  # full: the heap shrinks by its root
            size -= 1
            sift_down_packed(keys, size, keys[size])
            continue
        longer -= counts[g] == quota
        counts[g] += 1
        group_of_position[i] = g
        sift_down_packed(keys, size, keys[0] + (costs[i] << bits))
        i += 1


@kernel
def _lpt_quotas_wide(costs, num_groups, group_of_position):
    """As :func:`_lpt_quotas`, for loads of any size."""
    n = len(costs)
    quota = n // num_groups
    longer = n - quota * num_groups
    loads = np.zeros(num_groups, dtype=np.int64)
    groups = numbers(num_groups)
    counts = np.zeros(num_groups, dtype=np.int64)
    size = num_groups
    i = 0
    while i < n:
        g = groups[0]
        if counts[g] > quota or (counts[g] == quota and longer == 0):
            size -= 1
            sift_down_wide(loads, groups, size, loads[size], groups[size])
            continue
        longer -= counts[g] == quota
        counts[g] += 1
        group_of_position[i] = g
        sift_down_wide(loads, groups, size, loads[0] + costs[i], g)
        i += 1


def assign_in_order(problem: PartitionProblem, costs: NDArray[np.int64]) -> Assignment:
    """List scheduling: each of `costs` in turn to the least loaded group, or, with equal counts, one that is not full.

    `costs` are the problem's in any order in which those that are zero stand last; the groups returned are in it too.
    """
    num_groups, costs = problem.num_groups, read_only(costs)
    assignment = np.empty(len(costs), dtype=np.int32)
    bits = group_bits(num_groups)
    largest = int(problem.sorted_costs[0]) if len(costs) else 0
    # No load is larger than an even share and one item (Graham), but with quotas one may be the sum of all.
    largest_load = problem.total if problem.equal_counts else problem.total // num_groups + largest
    packed = largest_load.bit_length() + bits <= 63
    if problem.equal_counts:
        if packed:
            _lpt_quotas(costs, num_groups, bits, assignment)
        else:
            _lpt_quotas_wide(costs, num_groups, assignment)
        return assignment
    positive = problem.num_positive
    if packed:
        _lpt_rounds(costs[:positive], num_groups, bits, assignment)
    else:
        _lpt_wide(costs[:positive], num_groups, assignment)
    if positive < len(costs):
        _level_counts(num_groups, bits, assignment, positive)
    return assignment


def assign_lpt(problem: PartitionProblem) -> Assignment:
    """LPT on a prepared problem; with quotas where the problem asks for equal counts."""
    return assign_in_order(problem, problem.sorted_costs)


def lpt(costs: ArrayLike, num_groups: int, *, equal_counts: bool = False, time_budget: float = 0.01) -> PartitionResult:
    """Partition by longest processing time first.

    Items in descending order of cost, each to the group with the smallest load, ties to the lowest group. Items of
    cost zero, which no load can steer, go to the groups that hold the fewest items.

    Parameters
    ----------
    costs : int64[n]
        Non-negative integers.
    num_groups : int
        At least 1; may exceed n.
    equal_counts : bool
        Exactly n/m items a group, within one where m does not divide n: full groups take no more.
    time_budget : float
        Not read: one pass, whatever the budget.

    Returns
    -------
    PartitionResult
        Without `equal_counts` its makespan is at most 4/3 - 1/(3m) times the optimum.

    Raises
    ------
    TypeError, ValueError
        On arguments of the wrong kind, negative costs, or a sum of costs past int64.

    Notes
    -----
    O(n log m) time after the sort and O(n + m) memory.

    References
    ----------
    Graham, "Bounds on multiprocessing timing anomalies", SIAM Journal on Applied Mathematics 17(2), 1969.

    Examples
    --------
    >>> lpt([5, 4, 3, 3, 3], 2).loads.tolist()
    [8, 10]
    """
    return solve(costs, num_groups, equal_counts, "lpt", assign_lpt)
