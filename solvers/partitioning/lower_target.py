"""Target lowering: bring every load under a target by small exchanges, then lower the target, by bisection.

Let T be the target, half way between what is known to be too low and the largest load. A group with load L > T must
lose at least L - T, and the group that takes it must stay under T. Because the items are sorted by cost, the partner
for an item of cost a is found by binary search among *all* items, not group by group: an item of cost at most a - (L
- T) that lies in a group with room for the difference. Where no swap does, two items of the group for one of another
mostly do: there are thousands of pairs.

No exchange makes any load larger than T, and T is below the largest load: stopped at any time, the result is no worse
than what it was given, and more work never makes it worse.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers._loops import first_at_most, largest_of, smallest_of
from solvers.partitioning._problem import Assignment, PartitionProblem

# Partners looked at for each item before it is the next one's turn: where 64 groups in a row had no room, more seldom
# do.
_TRIES = 64
# Work units of one binary search; they stand for 50 nanoseconds.
_SEARCH = 20


class _State(NamedTuple):
    """Groups while they change. Positions are items in descending order of cost."""

    costs: NDArray[np.int64]
    group: NDArray[np.int32]
    loads: NDArray[np.int64]
    start: NDArray[np.int64]  # group g lists its members from start[g] on, with room to grow up to start[g + 1]
    sizes: NDArray[np.int64]
    members: NDArray[np.int32]
    place: NDArray[np.int32]  # where in `members` each position is listed


@helper
def _make_state(costs, group, loads):
    n, num_groups = len(costs), len(loads)
    sizes = np.zeros(num_groups, dtype=np.int64)
    for g in group:
        sizes[g] += 1
    start = np.zeros(num_groups + 1, dtype=np.int64)
    for g in range(num_groups):
        # Room for twice as many, or for an average group more: lists that are full take no second item, and few are
        # ever full.
        start[g + 1] = start[g] + sizes[g] + max(sizes[g], n // num_groups) + 4
    members = np.empty(start[num_groups], dtype=np.int32)
    place = np.empty(n, dtype=np.int32)
    sizes[:] = 0
    for position in range(n):
        g = group[position]
        place[position] = start[g] + sizes[g]
        members[place[position]] = position
        sizes[g] += 1
    return _State(costs, group, loads, start, sizes, members, place)


@helper
def _relocate(state, position, g):
    """Take `position` out of its group and list it in group g, which has room."""
    old = state.group[position]
    state.sizes[old] -= 1
    last = state.members[state.start[old] + state.sizes[old]]
    state.members[state.place[position]] = last
    state.place[last] = state.place[position]
    state.place[position] = state.start[g] + state.sizes[g]
    state.members[state.place[position]] = position
    state.sizes[g] += 1
    state.group[position] = g
    state.loads[old] -= state.costs[position]
    state.loads[g] += state.costs[position]


@helper
def _swap(state, g, target, room):
    """Swap an item of group g for a smaller one. Returns whether it did, and the work."""
    costs, loads = state.costs, state.loads
    excess = loads[g] - target
    work = 0
    for k in range(state.start[g], state.start[g] + state.sizes[g]):
        p = state.members[k]
        # Its going is not enough, whatever comes back.
        if costs[p] < excess:
            continue
        # Partners are all items cheap enough, the dearest first: one binary search, and few of them are looked at.
        first = first_at_most(costs, p + 1, costs[p] - excess)
        work += _SEARCH
        for q in range(first, min(first + _TRIES, len(costs))):
            h, gain = state.group[q], costs[p] - costs[q]
            if gain > room:
                break
            work += 1
            # The taker stays under the target, so that no step undoes another.
            if loads[h] + gain <= target and h != g:
                state.group[p], state.group[q] = h, g
                state.members[k], state.members[state.place[q]] = q, p
                state.place[p], state.place[q] = state.place[q], k
                loads[g] -= gain
                loads[h] += gain
                return True, work
    return False, work


@helper
def _two_for_one(state, g, target, room, limit):
    """Give two items of group g for one of another. Returns whether it did, and the work."""
    costs, loads = state.costs, state.loads
    excess = loads[g] - target
    begin = state.start[g]
    work = 0
    # Pairs are many, so that one of them mostly has a partner; each takes one binary search.
    for k in range(begin + 1, begin + state.sizes[g]):
        for other in range(begin, k):
            p, r = np.int64(state.members[k]), np.int64(state.members[other])
            wanted = costs[p] + costs[r] - excess
            if wanted < 0 or wanted > costs[0]:
                continue
            first = first_at_most(costs, 0, wanted)
            work += _SEARCH
            for q in range(first, min(first + _TRIES, len(costs))):
                h, gain = np.int64(state.group[q]), costs[p] + costs[r] - costs[q]
                if gain > room:
                    break
                work += 1
                has_room = state.sizes[h] + 1 < state.start[h + 1] - state.start[h]
                if loads[h] + gain <= target and h != g and has_room:
                    _relocate(state, q, g)
                    _relocate(state, p, h)
                    _relocate(state, r, h)
                    return True, work
            if work > limit:
                return False, work
    return False, work


@helper
def _bring_under(state, target, keep_counts, work):
    """Bring all groups under `target`, or stop at the first that cannot be. Returns the work left."""
    room = target - smallest_of(state.loads)  # in the emptiest group; what is smallest never becomes smaller
    work -= len(state.loads)
    for g in range(len(state.loads)):
        while state.loads[g] > target:
            if work <= 0:
                return work
            # Swaps first: they keep counts, and there are only as many as items.
            done, spent = _swap(state, g, target, room)
            work -= spent
            if not done and not keep_counts:
                done, spent = _two_for_one(state, g, target, room, work)
                work -= spent
            if not done:
                return work
    return work


@kernel(turns=30)
def _lower_target(costs, group, num_groups, bound, keep_counts, work):
    loads = np.zeros(num_groups, dtype=np.int64)
    for position in range(len(costs)):
        loads[group[position]] += costs[position]
    state = _make_state(costs, group, loads)
    work -= len(costs)
    largest, too_low = largest_of(loads), bound - 1
    while work > 0 and largest > bound and largest - too_low > 1:
        # Half way: a target that cannot be met is not tried again, nor any below it.
        target = max(bound, too_low + (largest - too_low) // 2)
        work = _bring_under(state, target, keep_counts, work)
        largest = largest_of(loads)
        if largest > target:
            too_low = target
    return work


def lower_target(problem: PartitionProblem, assignment: Assignment, work: int, *, keep_counts: bool) -> int:
    """Improve `assignment` in place; with `keep_counts` by swaps alone, which is faster and less thorough.

    Never makes it worse. Returns the work left, positive if the search ended by itself. A swap takes one binary search
    for an item of the group, a few for most; O(log(makespan)) targets; O(n + m) memory.
    """
    keep_counts = keep_counts or problem.equal_counts
    bound = problem.goal
    return int(_lower_target(problem.sorted_costs, assignment, problem.num_groups, bound, keep_counts, work))
