"""Local search: move an item, or swap two, between the largest group and another, until the bound is reached.

For a group with load L and another with load K < L, giving an item of cost a for one of cost b changes both by d = a
- b; the larger of the two becomes smaller for 0 < d < L - K, least for d nearest to (L - K) / 2. Both groups are kept
sorted, so that the best pair is found by walking both once and not by trying all pairs. (A move is a swap with
nothing, b = 0.)
"""

import numpy as np

from solvers._jit import helper, kernel
from solvers._loops import first_largest, first_smallest
from solvers.groups import group_loads
from solvers.partitioning._problem import Assignment, PartitionProblem

__all__ = ["members_by_group", "refine", "replace_member"]


@helper
def _best_swap(costs, given, taken, difference, may_move):
    """Return the best d and where in `given` and `taken` its items are (len(taken): nothing). d is 0 if none helps.

    `given` and `taken` hold positions in ascending order, so costs in descending order.
    """
    best, best_i, best_j = np.int64(0), 0, 0
    best_larger = difference  # max(d, difference - d): how much more than the smaller load the larger then is
    last = len(taken) + (1 if may_move else 0)
    j = 0
    for i in range(len(given)):
        a = costs[given[i]]
        while j < last:
            d = a - (costs[taken[j]] if j < len(taken) else 0)
            if d > 0 and d >= difference - d:
                break
            j += 1
        for k in range(max(j - 1, 0), min(j + 1, last)):
            d = a - (costs[taken[k]] if k < len(taken) else 0)
            if 0 < d < difference and max(d, difference - d) < best_larger:
                best, best_i, best_j, best_larger = d, i, k, max(d, difference - d)
        if best_larger - (difference - best_larger) <= 1:
            break
    return best, best_i, best_j


@helper
def replace_member(members, size, out, entering):
    """In ``members[:size]``, ascending, drop index `out` (none if `size`) and insert `entering` (none if -1)."""
    if out < size:
        for k in range(out, size - 1):
            members[k] = members[k + 1]
        size -= 1
    if entering >= 0:
        k = size
        while k > 0 and members[k - 1] > entering:
            members[k] = members[k - 1]
            k -= 1
        members[k] = entering
        size += 1
    return size


@helper
def members_by_group(group_of_position, num_groups, longer):
    """Positions by group, ascending, with room for each group to grow: members, start[m + 1], sizes."""
    sizes = np.zeros(num_groups, dtype=np.int64)
    for g in group_of_position:
        sizes[g] += 1
    start = np.zeros(num_groups + 1, dtype=np.int64)
    for g in range(num_groups):
        start[g + 1] = start[g] + sizes[g] + max(sizes[g], longer) + 4
    members = np.empty(start[num_groups], dtype=np.int32)
    sizes[:] = 0
    for position in range(len(group_of_position)):
        g = group_of_position[position]
        members[start[g] + sizes[g]] = position
        sizes[g] += 1
    return members, start, sizes


@kernel
def _refine(costs, group_of_position, loads, target, equal_counts, work):
    """Improve in place. Returns the work left: positive if the search ended by itself."""
    num_groups = len(loads)
    longer = len(costs) // num_groups + 1  # a group with this many items may give one to a group with one less
    members, start, sizes = members_by_group(group_of_position, num_groups, longer)
    while work > 0:
        g = first_largest(loads)
        least = first_smallest(loads)
        work -= num_groups
        if loads[g] <= target:
            break
        best, best_h, best_i, best_j = np.int64(0), -1, 0, 0
        best_makespan = loads[g]
        given = members[start[g] : start[g] + sizes[g]]
        for turn in range(num_groups):
            h = (least + turn) % num_groups  # the emptiest group first, then all in turn
            difference = loads[g] - loads[h]
            if difference < 2 or loads[h] + (difference + 1) // 2 >= best_makespan:
                continue  # not even the ideal exchange would be the best
            has_room = sizes[h] < start[h + 1] - start[h]
            may_move = has_room and (not equal_counts or (sizes[g] == longer and sizes[h] == longer - 1))
            taken = members[start[h] : start[h] + sizes[h]]
            work -= sizes[g] + sizes[h]
            d, i, j = _best_swap(costs, given, taken, difference, may_move)
            makespan = max(loads[g] - d, loads[h] + d)
            if d > 0 and makespan < best_makespan:
                best, best_h, best_i, best_j, best_makespan = d, h, i, j, makespan
                if makespan <= target:
                    break
            if work <= 0:
                break
        if best_h < 0:
            break
        leaving = np.int64(given[best_i])
        entering = members[start[best_h] + best_j] if best_j < sizes[best_h] else -1
        sizes[g] = replace_member(given, sizes[g], best_i, entering)
        sizes[best_h] = replace_member(members[start[best_h] : start[best_h + 1]], sizes[best_h], best_j, leaving)
        loads[g] -= best
        loads[best_h] += best
        group_of_position[leaving] = best_h
        if entering >= 0:
            group_of_position[entering] = g
    return work


def refine(problem: PartitionProblem, assignment: Assignment, work: int) -> int:
    """Improve `assignment` in place by moves and swaps, keeping equal counts where the problem asks for them.

    Never makes it worse. Returns the work left, positive if the search ended by itself: at the bound, or where no move
    or swap helps. One step walks the largest group and, until one fits, each other group: O(n + m) at most, mostly far
    less.
    """
    loads = group_loads(problem.sorted_costs, assignment, problem.num_groups)
    left = _refine(problem.sorted_costs, assignment, loads, problem.goal, problem.equal_counts, work)
    return int(left)
