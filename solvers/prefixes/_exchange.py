"""Equal counts: the fullest group exchanges items of one prefix for as many of another's, while its load falls.

What an exchange leaves is the larger of the two loads, copies of prefixes charged exactly. Of a prefix's items in a
group, the largest or the smallest go; of the other's those next to each other, in order of cost, that make both loads
most alike.
"""

from typing import NamedTuple

import numpy as np

from solvers._jit import helper, kernel
from solvers._loops import stable_order
from solvers.groups import read_only
from solvers.prefixes._problem import Ints, PrefixProblem

_EMPTIEST = 12  # groups that the fullest one tries; more only where none of them takes anything

# Places in the best exchange: what it leaves, how many items go, from which of the prefix on, which group they go to,
# and from which of the other prefix on as many come back
_VALUE, _SIZE, _GIVEN, _FROM, _TO, _BACK, _BACK_FROM = range(7)


class State(NamedTuple):
    """Groups while they change; written."""

    group_of: Ints  # int64[n]
    loads: Ints  # int64[m]
    head: Ints  # int64[m]: an item of each group, -1 of none; the others follow
    after: Ints  # int64[n]: the next item of the same group, or -1
    before: Ints  # int64[n]: the one before, or -1
    ascending: Ints  # int64[m]: groups by load
    place: Ints  # int64[m]: where each stands in that order


class Part(NamedTuple):
    """The items of a prefix that one group has, the largest first; written."""

    items: Ints  # int64[longest]
    sums: Ints  # int64[longest + 1]: of the costs of those before


@helper
def _count_in(given, state, p, g):
    """Return how many items of a prefix a group has."""
    count = 0
    for i in range(given.starts[p], given.starts[p + 1]):
        count += state.group_of[i] == g
    return count


@helper
def _gather(given, state, p, g, part):
    """Fill `part`, and return how many items it has."""
    count = 0
    for i in range(given.starts[p], given.starts[p + 1]):
        if state.group_of[i] == g:
            part.items[count] = i
            part.sums[count + 1] = part.sums[count] + given.costs[i]
            count += 1
    return count


@helper
def _is_first_of_part(given, state, i):
    """Whether no item of the same prefix and group comes before this one."""
    first = True
    for j in range(given.starts[given.prefix_of[i]], i):
        first = first and state.group_of[j] != state.group_of[i]
    return first


@helper
def _resort(state, g):
    """Move a group to its place in the order after its load has changed."""
    k, last = state.place[g], len(state.loads) - 1
    while k < last and state.loads[state.ascending[k + 1]] < state.loads[g]:
        state.ascending[k] = state.ascending[k + 1]
        state.place[state.ascending[k]] = k
        k += 1
    while k > 0 and state.loads[state.ascending[k - 1]] > state.loads[g]:
        state.ascending[k] = state.ascending[k - 1]
        state.place[state.ascending[k]] = k
        k -= 1
    state.ascending[k] = g
    state.place[g] = k


@helper
def _link(state, i, g):
    """Put an item at the head of a group's list."""
    state.before[i], state.after[i] = -1, state.head[g]
    if state.head[g] >= 0:
        state.before[state.head[g]] = i
    state.head[g] = i
    state.group_of[i] = g


@helper
def _move(given, state, part, begin, size, target):
    """Move some items of a part to another group."""
    for k in range(begin, begin + size):
        i = part.items[k]
        p, source = given.prefix_of[i], state.group_of[i]
        # The copy of the prefix goes with the last of its items, and comes with the first.
        if _count_in(given, state, p, source) == 1:
            state.loads[source] -= given.once[p]
        if _count_in(given, state, p, target) == 0:
            state.loads[target] += given.once[p]
        state.loads[source] -= given.costs[i]
        state.loads[target] += given.costs[i]
        if state.before[i] >= 0:
            state.after[state.before[i]] = state.after[i]
        else:
            state.head[source] = state.after[i]
        if state.after[i] >= 0:
            state.before[state.after[i]] = state.before[i]
        _link(state, i, target)


@helper
def _consider(given, state, mine, theirs, sizes, best):
    """Judge exchanges of a part of the fullest group and one of another, whose `sizes` are given; return the work."""
    a, b = sizes
    i, j = mine.items[0], theirs.items[0]
    p, q, g, to = given.prefix_of[i], given.prefix_of[j], state.group_of[i], state.group_of[j]
    new_here = given.once[q] if _count_in(given, state, q, g) == 0 else np.int64(0)
    new_there = given.once[p] if _count_in(given, state, p, to) == 0 else np.int64(0)
    # As many go as come back: all that the smaller part has, then half as many, and so on, the largest or the smallest.
    size, work = min(a, b), given.starts[p + 1] - given.starts[p] + given.starts[q + 1] - given.starts[q]
    while size > 0:
        here = state.loads[g] + new_here - (given.once[p] if size == a and p != q else 0)
        there = state.loads[to] + new_there - (given.once[q] if size == b and p != q else 0)
        for begin in (0, a - size):
            gone = mine.sums[begin + size] - mine.sums[begin]
            wanted = (there - here) // 2 + gone  # that comes back, so that both loads are alike
            low, high = 0, b - size
            # Sums of neighbours descend, so that the one nearest to what is wanted is found by halving.
            while low < high:
                middle = (low + high) // 2
                if theirs.sums[middle + size] - theirs.sums[middle] <= wanted:
                    high = middle
                else:
                    low = middle + 1
            for at in (low, max(0, low - 1)):
                back = theirs.sums[at + size] - theirs.sums[at]
                value = max(here - gone + back, there + gone - back)
                if value < best[_VALUE]:
                    best[_VALUE], best[_SIZE], best[_GIVEN], best[_FROM] = value, size, p, begin
                    best[_TO], best[_BACK], best[_BACK_FROM] = to, q, at
            work += 8
        size //= 2
    return work


@kernel
def _begin(given, group_of, state):
    """Fill the state from groups of items."""
    for g in range(len(state.loads)):
        state.head[g] = -1
    for i in range(len(group_of)):
        p, g = given.prefix_of[i], group_of[i]
        state.loads[g] += given.costs[i]
        _link(state, i, g)
        if _is_first_of_part(given, state, i):
            state.loads[g] += given.once[p]
    order = stable_order(state.loads)
    for k in range(len(order)):
        state.ascending[k] = order[k]
        state.place[order[k]] = k


@kernel
def _descend(given, state, mine, theirs, low, work):
    """Let the fullest group exchange while it can, until the makespan is `low` or the work is spent."""
    best = np.zeros(7, dtype=np.int64)
    while work > 0:
        g = state.ascending[len(state.loads) - 1]
        if state.loads[g] <= low:
            break
        best[_VALUE], best[_SIZE] = state.loads[g], 0
        # The emptiest groups first: they have most to offer, and mostly it is one of them.
        for k in range(len(state.loads) - 1):
            if k >= _EMPTIEST and best[_SIZE] > 0:
                break
            to, i = state.ascending[k], state.head[g]
            while i >= 0:
                if _is_first_of_part(given, state, i):
                    a, j = _gather(given, state, given.prefix_of[i], g, mine), state.head[to]
                    while j >= 0:
                        if _is_first_of_part(given, state, j):
                            b = _gather(given, state, given.prefix_of[j], to, theirs)
                            work -= _consider(given, state, mine, theirs, (a, b), best)
                        j = state.after[j]
                i = state.after[i]
        if best[_SIZE] == 0:
            break
        # Both parts are listed anew, as those of other exchanges were since.
        to = best[_TO]
        _gather(given, state, best[_GIVEN], g, mine)
        _gather(given, state, best[_BACK], to, theirs)
        _move(given, state, mine, best[_FROM], best[_SIZE], to)
        _move(given, state, theirs, best[_BACK_FROM], best[_SIZE], g)
        _resort(state, g)
        _resort(state, to)


def exchanged(problem: PrefixProblem, group_of: Ints, low: int, work: int) -> tuple[Ints, Ints]:
    """Return groups of as many items each as before, and their loads."""
    n, m, longest = len(group_of), problem.num_groups, int(np.diff(problem.given.starts).max(initial=0))
    state = State(*(np.zeros(size, dtype=np.int64) for size in (n, m, m, n, n, m, m)))
    parts = [Part(np.zeros(longest, dtype=np.int64), np.zeros(longest + 1, dtype=np.int64)) for _ in range(2)]
    _begin(problem.given, read_only(group_of.copy()), state)
    _descend(problem.given, state, *parts, low, work)
    return state.group_of, state.loads
