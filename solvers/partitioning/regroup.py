"""Large neighbourhoods: a group over the target and a few others are taken apart and solved anew, exactly.

Single exchanges fail where groups hold few items, because there are too few of them to choose from. But a handful of
groups together can be divided in so many ways that one of them is mostly under the target, and with 20 to 40 items the
search for it (:mod:`solvers.partitioning.bin_completion`) is short. Which groups join is drawn by a generator with a
fixed seed, so that every rank draws the same.
"""

import numpy as np

from solvers._jit import helper, kernel
from solvers._loops import draw, largest_of
from solvers.arguments import INT64_MAX
from solvers.groups import group_loads
from solvers.partitioning._problem import Assignment, PartitionProblem
from solvers.partitioning.bin_completion import WORK_PER_NODE, decide

# Groups that are solved anew together. With seven items each that is some 40 items, for which bin completion is short.
_MOST_GROUPS = 6
# Nodes of one search: it ends early with a way, or seldom at all. Few items lose 139 +- 49 ppm without `regroup`.
_NODES = 4_000


@helper
def _choose(loads, over, count, target, chosen, state):
    """Choose group `over` and ``count - 1`` others that together have room for all; returns whether it found them."""
    chosen[0] = over
    room = target - loads[over]
    for k in range(1, count):
        # Groups that are under the target and not chosen yet; twenty draws, then it gives up.
        for _ in range(20):
            g = draw(state, len(loads))
            fresh = loads[g] <= target
            for other in range(k):
                fresh &= chosen[other] != g
            # The last one must have room to give.
            if fresh and (loads[g] < target or k + 1 < count):
                break
        if not fresh:
            return False
        chosen[k] = g
        room += target - loads[g]
    return room >= 0


@helper
def _solve_anew(costs, group, loads, chosen, count, target):
    """Divide the items of the chosen groups anew under `target`; returns success and the nodes searched."""
    index = np.full(len(loads), -1, dtype=np.int64)
    for k in range(count):
        index[chosen[k]] = k
    positions = np.array([p for p in range(len(costs)) if index[group[p]] >= 0 and costs[p] > 0])
    values = np.empty(len(positions), dtype=np.int64)
    left = np.zeros(len(positions), dtype=np.int64)
    size = 0
    for p in positions:  # positions ascend, so costs descend
        if size == 0 or values[size - 1] != costs[p]:
            values[size] = costs[p]
            size += 1
        left[size - 1] += 1
    used = np.zeros((count, size), dtype=np.int64)
    verdict, nodes = decide(values[:size], left[:size], count, target, used, _NODES)
    # A way was found: it says how many of each cost a group gets, and equal items are alike.
    if verdict == 1:
        for k in range(count):
            loads[chosen[k]] = 0
        v, k = 0, 0
        for p in positions:
            if values[v] != costs[p]:
                v, k = v + 1, 0
            while used[k, v] == 0:
                k += 1
            used[k, v] -= 1
            group[p] = chosen[k]
            loads[chosen[k]] += costs[p]
    return verdict == 1, _NODES - nodes


@helper
def _bring_under(costs, group, loads, target, state, work):
    """Bring all groups under `target`, one after another; returns the work left."""
    chosen = np.empty(_MOST_GROUPS, dtype=np.int64)
    most = min(_MOST_GROUPS, len(loads))
    for over in range(len(loads)):
        attempt = 0
        while loads[over] > target:
            if work <= 0:
                return work
            # Two groups, then three and more: few are quick to search, many have more ways.
            count = min(2 + attempt % (most - 1), most)
            attempt += 1
            work -= 20 * count
            if _choose(loads, over, count, target, chosen, state):
                _, nodes = _solve_anew(costs, group, loads, chosen, count, target)
                work -= len(costs) + WORK_PER_NODE * nodes
    return work


@kernel
def _regroup(costs, group, loads, bound, state, each, work):
    largest, too_low = largest_of(loads), bound - 1
    while work > 0 and largest > bound:
        if largest - too_low <= 1:  # begin again: it draws otherwise
            too_low = bound - 1
        # Half way between what failed and what is reached, as other searches do.
        target = max(bound, too_low + (largest - too_low) // 2)
        spent = min(each, work)
        work -= spent - _bring_under(costs, group, loads, target, state, spent)
        largest = largest_of(loads)
        if largest > target:
            too_low = target
    return work


def regroup(problem: PartitionProblem, assignment: Assignment, work: int, each: int, seed: int) -> int:
    """Improve `assignment` in place, without equal counts; returns the work left.

    Never makes it worse. After the work `each`, a target is given up for the next, half way up. O(n + m) memory; an
    attempt takes O(n) and at most 4,000 nodes of search.
    """
    loads = group_loads(problem.sorted_costs, assignment, problem.num_groups)
    if problem.num_groups < 2 or int(loads.max()) > INT64_MAX // _MOST_GROUPS:
        return work
    state = np.array([seed])
    return int(_regroup(problem.sorted_costs, assignment, loads, problem.goal, state, each, work))
