"""Local search for mixed costs: move an item, or swap two, between the largest group and another.

A group keeps its members sorted, its count, the sum of its costs; its two longest rows are its first two members. So
what an exchange makes of both loads is known at once. Giving more, or taking less, makes the giver's load smaller and
the taker's larger, as for additive costs: the best partner of each item is where the two cross, and crosses later for a
smaller item, so that the best exchange between two groups is found by walking both once.
"""

import numpy as np

from solvers._jit import helper, kernel
from solvers._loops import first_largest, first_smallest
from solvers.partitioning.refine import members_by_group, replace_member

__all__ = ["refine_mixed"]

_WORK_OF_MEMBER = 56  # measured: benchmarks/padded.py


@helper
def _after(costs, rows, held, total, out, entering):
    """Load of a group, `total` the sum of its costs, without its member number `out` and with position `entering`.

    Nothing leaves if `out` is the number of members; nothing enters if `entering` is -1.
    """
    size = len(held)
    longest = np.int64(0)
    if out == 0:
        if size > 1:
            longest = rows[held[1]]
    elif size > 0:
        longest = rows[held[0]]
    count = size
    if out < size:
        total -= costs[held[out]]
        count -= 1
    if entering >= 0:
        total += costs[entering]
        longest = max(longest, rows[entering])
        count += 1
    return total + count * longest


@helper
def _best_exchange(costs, rows, given, given_sum, taken, taken_sum, may_move):
    """The smallest larger load that one exchange leaves, and its member numbers (len(taken): nothing comes back)."""
    best, best_i, best_j = np.int64(2**63 - 1), -1, -1
    last = len(taken) + (1 if may_move else 0)
    j = 0
    for i in range(len(given)):
        while j < last:  # until the giver's load is no longer the larger: taking less back only raises the taker's
            back = taken[j] if j < len(taken) else -1
            mine = _after(costs, rows, given, given_sum, i, back)
            theirs = _after(costs, rows, taken, taken_sum, j, given[i])
            if max(mine, theirs) < best:
                best, best_i, best_j = max(mine, theirs), i, j
            if mine <= theirs:
                break
            j += 1
        if j > 0 and j - 1 < len(taken):
            mine = _after(costs, rows, given, given_sum, i, taken[j - 1])
            theirs = _after(costs, rows, taken, taken_sum, j - 1, given[i])
            if max(mine, theirs) < best:
                best, best_i, best_j = max(mine, theirs), i, j - 1
    return best, best_i, best_j


@helper
def _best_partner(costs, rows, state, loads, sums, g, enough, equal_counts, work):
    """The group to exchange with, what to exchange, and the work left: the first that leaves both at `enough` or less.

    The emptiest group first, then all in turn; where none is enough, the best of all; -1 where none helps.
    """
    members, start, sizes = state
    num_groups = len(loads)
    longer = len(costs) // num_groups + 1  # a group with this many items may give one to a group with one less
    least = first_smallest(loads)
    best, best_h, best_i, best_j = loads[g], -1, 0, 0
    given = members[start[g] : start[g] + sizes[g]]
    for turn in range(num_groups):
        h = (least + turn) % num_groups
        if h == g:
            continue
        has_room = sizes[h] < start[h + 1] - start[h]
        may_move = has_room and (not equal_counts or (sizes[g] == longer and sizes[h] == longer - 1))
        taken = members[start[h] : start[h] + sizes[h]]
        work -= _WORK_OF_MEMBER * (sizes[g] + sizes[h])
        larger, i, j = _best_exchange(costs, rows, given, sums[g], taken, sums[h], may_move)
        if larger < best:
            best, best_h, best_i, best_j = larger, h, i, j
            if larger <= enough:
                break
        if work <= 0:
            break
    return best_h, best_i, best_j, work


@kernel
def refine_mixed(costs, rows, group_of_position, num_groups, target, equal_counts, work):
    """Improve an assignment of sorted items in place until no load exceeds `target`, or nothing helps.

    Returns the work left: positive if the search ended by itself.
    """
    longer = len(costs) // num_groups + 1
    state = members_by_group(group_of_position, num_groups, longer)
    members, start, sizes = state
    sums = np.zeros(num_groups, dtype=np.int64)
    for i in range(len(costs)):
        sums[group_of_position[i]] += costs[i]
    loads = sums.copy()
    for g in range(num_groups):
        if sizes[g] > 0:
            loads[g] += sizes[g] * rows[members[start[g]]]
    work -= len(costs)
    while work > 0:
        g = first_largest(loads)
        work -= 2 * num_groups
        if loads[g] <= target:
            break
        enough = target + (loads[g] - target) // 2
        h, i, j, work = _best_partner(costs, rows, state, loads, sums, g, enough, equal_counts, work)
        if h < 0:
            break
        leaving = np.int64(members[start[g] + i])
        entering = members[start[h] + j] if j < sizes[h] else -1
        sizes[g] = replace_member(members[start[g] : start[g + 1]], sizes[g], i, entering)
        sizes[h] = replace_member(members[start[h] : start[h + 1]], sizes[h], j, leaving)
        sums[g] -= costs[leaving]
        sums[h] += costs[leaving]
        group_of_position[leaving] = h
        if entering >= 0:
            sums[g] += costs[entering]
            sums[h] -= costs[entering]
            group_of_position[entering] = g
        for changed in (g, h):
            longest = rows[members[start[changed]]] if sizes[changed] > 0 else 0
            loads[changed] = sums[changed] + sizes[changed] * longest
    return work
