"""Bin completion: a depth-first search for an assignment under a given makespan, or the proof that there is none.

The decision problem, can all items be put into m groups of capacity T, is searched group by group. The largest item
left goes into the next group, and all ways to complete that group are tried, larger items first. With s = m T -
sum(c) units to spare in all groups together, a group may be left at most s units short, which rules out most of them;
and one that leaves room for an item not placed yet need not be tried, because adding the item can only help (Martello
& Toth 1990). Equal items are counted, not listed, so that no assignment is tried twice.
"""

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers.arguments import INT64_MAX
from solvers.bounds import Bound
from solvers.partitioning._problem import Assignment, PartitionProblem

# A node is a few additions, about 5 ns: two work units, calibrated with the other searches of the portfolio.
WORK_PER_NODE = 2
# Distinct costs times groups: the search is hopeless long before, and its table would take megabytes.
_MOST_CELLS = 200_000


@helper
def _begin_group(left, values, suffix):
    """Sums of the items left from each value on; returns the largest value that is left."""
    total = np.int64(0)
    first = len(values)
    for v in range(len(values) - 1, -1, -1):
        total += left[v] * values[v]
        suffix[v] = total
        if left[v]:
            first = v
    return first


@helper
def _fits_another(left, values, capacity):
    """Whether an item that is left fits `capacity`."""
    for v in range(len(values) - 1, -1, -1):
        if values[v] > capacity:
            return False
        if left[v]:
            return True
    return False


@helper
def _go_back(values, left, used, first, v, capacity, nodes):
    """Take values off a group down to the last of which one item less may be in it; `v` is below `first` if none is."""
    v -= 1
    while v >= first and used[v] == (1 if v == first else 0):
        left[v] += used[v]
        capacity += used[v] * values[v]
        used[v] = 0
        v -= 1
        nodes -= 1
    return v, capacity, nodes


@helper
def decide(values, left, num_groups, makespan, used, nodes):
    """Fill ``used[g, v]``, how many items of value v group g gets; returns a verdict, and the nodes left.

    The verdict is 1 if all items fit, 0 if they cannot, -1 if the nodes ran out.

    `values` descend strictly and are positive; `left` counts the items of each and comes back changed.
    """
    num_values = len(values)
    suffix = np.zeros((num_groups, num_values + 1), dtype=np.int64)
    spare = np.zeros(num_groups + 1, dtype=np.int64)
    first = np.zeros(num_groups, dtype=np.int64)
    spare[0] = num_groups * makespan
    for v in range(num_values):
        spare[0] -= left[v] * values[v]
    # More than the groups hold together, or an item that no group holds.
    if spare[0] < 0 or makespan < values[0]:
        return 0, nodes
    g, capacity = 0, makespan
    first[0] = _begin_group(left, values, suffix[0])
    v = first[0]
    forward = True
    while True:
        nodes -= 1
        if nodes < 0:
            return -1, 0
        if forward and v == num_values:  # the group is complete
            # No more room may stay than there is to spare, and none that an item left would fill: adding it cannot
            # hurt.
            if capacity <= spare[g] and not _fits_another(left, values, capacity):
                spare[g + 1] = spare[g] - capacity
                if g >= num_groups - 2:  # what is left fits the last group, because so much is to spare
                    if g == num_groups - 2:
                        used[g + 1] = left
                    return 1, nodes
                g += 1
                nodes -= num_values // 4
                capacity = makespan
                first[g] = _begin_group(left, values, suffix[g])
                v = first[g]
                if v == num_values:  # nothing left: the other groups stay empty
                    used[g:] = 0
                    return 1, nodes
                continue
            forward = False
            continue
        if forward:
            # As many as fit first: full groups of large items leave the small ones, which fit anywhere.
            used[g, v] = min(left[v], capacity // values[v])
        else:
            v, capacity, nodes = _go_back(values, left, used[g], first[g], v, capacity, nodes)
            if v < first[g]:
                if g == 0:
                    return 0, nodes
                g -= 1
                v = num_values
                capacity = spare[g] - spare[g + 1]
                continue
            left[v] += used[g, v]
            capacity += used[g, v] * values[v]
            used[g, v] -= 1
        left[v] -= used[g, v]
        capacity -= used[g, v] * values[v]
        forward = capacity - suffix[g, v + 1] <= spare[g]
        if not forward:  # even all smaller items leave too much room, and with less of this one still more
            kept = 1 if v == first[g] else 0
            left[v] += used[g, v] - kept
            capacity += (used[g, v] - kept) * values[v]
            used[g, v] = kept
        v += 1


decide_kernel = kernel(decide, turns=1000)


def distinct_costs(problem: PartitionProblem) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct positive costs, descending, and how many items have each."""
    positive = problem.sorted_costs[: np.count_nonzero(problem.sorted_costs)]
    ascending, counts = np.unique(positive, return_counts=True)
    return np.ascontiguousarray(ascending[::-1]), np.ascontiguousarray(counts[::-1])


def assign_counts(used: NDArray[np.int64], problem: PartitionProblem) -> Assignment:
    """Give each position a group, as many of each value as ``used[g, v]`` says; items of cost zero follow group 0."""
    assignment = np.zeros(len(problem.sorted_costs), dtype=np.int32)
    groups = [np.repeat(np.arange(len(used), dtype=np.int32), used[:, v]) for v in range(used.shape[1])]
    positive = np.concatenate(groups) if groups else assignment[:0]
    assignment[: len(positive)] = positive
    return assignment


def close_gap(problem: PartitionProblem, assignment: Assignment, work: int) -> tuple[Assignment, Bound | None, int]:
    """Search for assignments below `assignment` until there is provably none, or `work` is spent.

    Without equal counts. Returns the best assignment, which is the one given if none is better, a bound if that is
    proven optimal, and the work left. Exponential in the worst case. It pays where n/m is small or costs are few: then
    few sets of items fill a group.

    References
    ----------
    Martello & Toth, "Lower bounds and reduction procedures for the bin packing problem", Discrete Applied Mathematics
    28, 1990; Schreiber, Korf & Moffitt, "Optimal multi-way number partitioning", Journal of the ACM 65(4), 2018.
    """
    values, counts = distinct_costs(problem)
    makespan = problem.makespan_of(assignment)
    if problem.num_groups * len(values) > _MOST_CELLS or problem.num_groups * makespan > INT64_MAX:
        return assignment, None, work
    # One below the best each time, until that is proven impossible or the work is spent.
    while makespan > problem.goal:
        used = np.zeros((problem.num_groups, len(values)), dtype=np.int64)
        verdict, nodes = decide_kernel(
            values, counts.copy(), problem.num_groups, makespan - 1, used, work // WORK_PER_NODE
        )
        work = nodes * WORK_PER_NODE
        if verdict == 0:
            return assignment, Bound(makespan, "search"), work
        if verdict < 0:
            break
        assignment = assign_counts(used, problem)
        makespan = problem.makespan_of(assignment)
    return assignment, None, work
