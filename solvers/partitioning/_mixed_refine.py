"""Local search for mixed costs: move an item, or swap two, between the largest group and another.

A group keeps its members sorted, its count, the sum of its costs; its two longest rows are its first two members. So
what an exchange makes of both loads is known at once. Giving more, or taking less, makes the giver's load smaller and
the taker's larger, as for additive costs: the best partner of each item is where the two cross, and crosses later for a
smaller item, so that the best exchange between two groups is found by walking both once.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._exchange import Members, exchange, items_of, may_grow, members_of
from solvers._jit import helper, kernel
from solvers._loops import first_largest, first_smallest

# Work units of a member that is walked, which takes two loads with their padding: measured by benchmarks/padded.py.
_WORK_OF_MEMBER = 56


class Items(NamedTuple):
    """Costs of items, descending together; nothing of it is written."""

    costs: NDArray[np.int64]  # int64[n]
    rows: NDArray[np.int64]  # int64[n]: what each costs in padding if it is the longest of its group


class Held(NamedTuple):
    """What groups hold; all of it is written."""

    members: Members
    sums: NDArray[np.int64]  # int64[m]: costs
    loads: NDArray[np.int64]  # int64[m]: with padding


@helper
def _after(costs, rows, held, total, out, entering):
    """Load of a group, `total` the sum of its costs, without its member number `out` and with position `entering`.

    Nothing leaves if `out` is the number of members; nothing enters if `entering` is -1.
    """
    size = len(held)
    longest = np.int64(0)
    # Only the longest matters for padding, and members descend: the second is it once the first has gone.
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
        # Both lists descend, so that the crossing only moves on: two walks for all pairs.
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
def _best_partner(items, held, g, enough, equal_counts, work):
    """The group to exchange with, what to exchange, and the work left: the first that leaves both at `enough` or less.

    The emptiest group first, then all in turn; where none is enough, the best of all; -1 where none helps.
    """
    costs, rows, members, loads, sums = items.costs, items.rows, held.members, held.loads, held.sums
    num_groups = len(loads)
    longer = len(costs) // num_groups + 1  # a group with this many items may give one to a group with one less
    least = first_smallest(loads)
    best, best_h, best_i, best_j = loads[g], -1, 0, 0
    given = items_of(members, g)
    for turn in range(num_groups):
        h = (least + turn) % num_groups
        if h == g:
            continue
        longer_gives = members.size[g] == longer and members.size[h] == longer - 1
        may_move = may_grow(members, h) and (not equal_counts or longer_gives)
        taken = items_of(members, h)
        work -= _WORK_OF_MEMBER * (len(given) + len(taken))
        larger, i, j = _best_exchange(costs, rows, given, sums[g], taken, sums[h], may_move)
        if larger < best:
            best, best_h, best_i, best_j = larger, h, i, j
            if larger <= enough:
                break
        if work <= 0:
            break
    return best_h, best_i, best_j, work


@helper
def _set_load(items, held, g):
    """Bring the load of a group up to date: the first of its items has the longest row."""
    mine = items_of(held.members, g)
    held.loads[g] = held.sums[g] + (len(mine) * items.rows[mine[0]] if len(mine) > 0 else 0)


@kernel
def refine_mixed(costs, rows, group_of_position, num_groups, target, equal_counts, work):
    """Improve an assignment of sorted items in place until no load exceeds `target`, or nothing helps.

    Returns the work left: positive if the search ended by itself.
    """
    items = Items(costs, rows)
    members = members_of(group_of_position, num_groups, len(costs) // num_groups + 1)
    held = Held(members, np.zeros(num_groups, dtype=np.int64), np.zeros(num_groups, dtype=np.int64))
    loads, sums = held.loads, held.sums
    for i in range(len(costs)):
        sums[group_of_position[i]] += costs[i]
    for g in range(num_groups):
        _set_load(items, held, g)
    work -= len(costs)
    while work > 0:
        g = first_largest(loads)
        work -= 2 * num_groups
        if loads[g] <= target:
            break
        # An exchange that takes away half of what is too much is good enough: looking on would cost more than it gains.
        enough = target + (loads[g] - target) // 2
        h, i, j, work = _best_partner(items, held, g, enough, equal_counts, work)
        if h < 0:
            break
        leaving, entering = exchange(members, group_of_position, g, i, h, j)
        moved = costs[leaving] - (costs[entering] if entering >= 0 else 0)
        sums[g] -= moved
        sums[h] += moved
        _set_load(items, held, g)
        _set_load(items, held, h)
    return work
