"""List scheduling under constraints: each unit in turn to the group that it makes finish first, among those with room.

A tree over the groups keeps, for every subtree, the smallest load of each component, the largest room in each quantity
and the largest speed, so that the best group is found by descending and not by asking all. Units that may not be in
every group look through the groups that they may be in.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers.partitioning.constrained.state import State

Ints = NDArray[np.int64]

# Where no leaf has room.
_NO_LEAF = -1
# Later than any unit finishes.
_NEVER = 2**63 - 1


class Tree(NamedTuple):
    """Groups as leaves, f of them, from number f on; vertex v is above 2v and 2v + 1. All of it is written."""

    low: Ints  # int64[2f, c]: the least load below, by component
    room: Ints  # int64[2f, q]: the most room below, by quantity, the number of items last
    want: Ints  # int64[2f]: the most items that a group below lacks to its lowest count
    fast: Ints  # int64[2f]: the largest speed below


class Units(NamedTuple):
    """What is placed, and where it may be; nothing of it is written."""

    costs: Ints  # int64[u, c]
    amounts: Ints  # int64[u, q]
    mask_of_unit: Ints  # int64[u]
    starts: Ints  # int64[k + 1]: a mask's leaves are leaves[starts[mask] : starts[mask + 1]], none if it allows all
    leaves: Ints  # int64[]
    factor: Ints  # int64[q], as of State
    shift: Ints  # int64[q]


@helper
def _finish(tree, vertex, costs, unit, speed):
    """When the group (or at the earliest any group below the vertex) would finish with the unit. O(c)."""
    latest = np.int64(0)
    for k in range(costs.shape[1]):
        latest = max(latest, tree.low[vertex, k] + costs[unit, k])
    return latest if speed == 1 else -(-latest // speed)


@helper
def _fits(tree, units, vertex, unit, slack):
    """Whether there is room for the unit, and groups short of items can still get them: see :func:`_greedy`. O(q)."""
    amounts, last = units.amounts, units.amounts.shape[1] - 1
    fits = amounts[unit, last] - min(amounts[unit, last], tree.want[vertex]) <= slack
    for d in range(last + 1):
        fits = fits and amounts[unit, d] <= tree.room[vertex, d]
    return fits


@helper
def _pull(tree, vertex):
    """Bring a vertex up to date with the two below it."""
    left, right = 2 * vertex, 2 * vertex + 1
    for k in range(tree.low.shape[1]):
        tree.low[vertex, k] = min(tree.low[left, k], tree.low[right, k])
    for d in range(tree.room.shape[1]):
        tree.room[vertex, d] = max(tree.room[left, d], tree.room[right, d])
    tree.want[vertex] = max(tree.want[left], tree.want[right])
    tree.fast[vertex] = max(tree.fast[left], tree.fast[right])


@helper
def _search_tree(tree, units, unit, slack, stack):
    """The leaf at which the unit finishes first; of equal leaves the first that is met. O(log m) where rooms are even.

    What a vertex promises is the best of all below it, so that what is no better than a leaf found is passed over.
    """
    best, best_leaf = np.int64(_NEVER), np.int64(_NO_LEAF)
    first = len(tree.want) // 2
    stack[0] = 1
    size = 1
    while size > 0:
        size -= 1
        vertex = stack[size]
        if not _fits(tree, units, vertex, unit, slack):
            continue
        finish = _finish(tree, vertex, units.costs, unit, tree.fast[vertex])
        if finish >= best:
            continue
        if vertex >= first:
            best, best_leaf = finish, vertex
            continue
        left, right = 2 * vertex, 2 * vertex + 1
        right_finish = _finish(tree, right, units.costs, unit, tree.fast[right])
        # The better side first: what it finds rules out most of the other.
        if right_finish < _finish(tree, left, units.costs, unit, tree.fast[left]):
            left, right = right, left
        stack[size] = right
        stack[size + 1] = left  # is looked at next
        size += 2
    return best_leaf


@helper
def _search_list(tree, units, leaves, unit, slack):
    """As :func:`_search_tree`, among these leaves. O(leaves)."""
    best, best_leaf = np.int64(_NEVER), np.int64(_NO_LEAF)
    for leaf in leaves:
        if _fits(tree, units, leaf, unit, slack):
            finish = _finish(tree, leaf, units.costs, unit, tree.fast[leaf])
            if finish < best:
                best, best_leaf = finish, leaf
    return best_leaf


@helper
def _least_harm(tree, units, leaves, num_groups, unit):
    """Of the leaves that the unit may be in (all of them if `leaves` is empty), the one it overfills least. O(m q)."""
    best, best_leaf = np.int64(_NEVER), np.int64(_NO_LEAF)
    first, amounts, shift = len(tree.want) // 2, units.amounts, units.shift
    for k in range(len(leaves) if len(leaves) else num_groups):
        leaf = leaves[k] if len(leaves) else first + k
        harm = np.int64(0)
        for d in range(amounts.shape[1]):
            over = min(amounts[unit, d], amounts[unit, d] - tree.room[leaf, d])
            if over > 0:
                harm += ((over + (1 << shift[d]) - 1) >> shift[d]) * units.factor[d]
        if harm < best:
            best, best_leaf = harm, leaf
    return best_leaf


@kernel
def _greedy(order, units, tree, num_groups, slack, leaf_of_unit):
    """Place the units in `order`; those for which no group has room at the end. Returns how many those were.

    `slack` is how many items there are beyond those that the groups still want to reach their lowest count: an item
    that goes to a group which wants none takes one of it, and none may when it is gone.
    """
    for vertex in range(len(tree.want) // 2 - 1, 0, -1):
        _pull(tree, vertex)
    stack = np.empty(128, dtype=np.int64)  # two vertices a level
    left_over = np.empty(len(order), dtype=np.int64)
    failed = 0
    for turn in range(2 * len(order)):
        # First all units; then those that found no room, which go where they do least harm: a start for a repair.
        if turn < len(order):
            unit = order[turn]
        elif turn - len(order) < failed:
            unit = left_over[turn - len(order)]
        else:
            break
        mask = units.mask_of_unit[unit]
        leaves = units.leaves[units.starts[mask] : units.starts[mask + 1]]
        if turn >= len(order):
            leaf = _least_harm(tree, units, leaves, num_groups, unit)
        elif len(leaves):
            leaf = _search_list(tree, units, leaves, unit, slack)
        else:
            leaf = _search_tree(tree, units, unit, slack, stack)
        if leaf == _NO_LEAF:
            left_over[failed] = unit
            failed += 1
            continue
        leaf_of_unit[unit] = leaf
        items = units.amounts[unit, units.amounts.shape[1] - 1]
        wanted = min(items, tree.want[leaf])
        slack -= items - wanted
        tree.want[leaf] -= wanted
        for k in range(units.costs.shape[1]):
            tree.low[leaf, k] += units.costs[unit, k]
        for d in range(units.amounts.shape[1]):
            tree.room[leaf, d] -= units.amounts[unit, d]
        vertex = leaf // 2
        # What is above the leaf, up to the root: O(log m).
        while vertex > 0:
            _pull(tree, vertex)
            vertex //= 2
    return failed


def greedy(state: State, order: Ints) -> tuple[Ints, int]:
    """Place the units in `order`. Returns int64[u] groups, and how many units found no group with room.

    O(u log m) where loads are even and rooms seldom bind; O(u m) at worst, and with masks.
    """
    m, c = state.problem.num_groups, state.components
    first = 1 << max(1, (m - 1).bit_length())
    by_speed = np.argsort(-state.problem.speeds, kind="stable")  # so that subtrees have groups of one speed
    costs, before = _comparable(state)
    amounts = np.ascontiguousarray(state.amounts[:, c:])
    tree = Tree(
        np.full((2 * first, c), 2**62, dtype=np.int64), np.full((2 * first, amounts.shape[1]), -1, dtype=np.int64),
        np.zeros(2 * first, dtype=np.int64), np.ones(2 * first, dtype=np.int64),
    )  # fmt: skip
    leaf = np.empty(m, dtype=np.int64)
    leaf[by_speed] = np.arange(first, first + m)
    tree.low[leaf], tree.room[leaf] = before, state.upper[:, c:]
    tree.want[leaf], tree.fast[leaf] = state.lower[:, -1], state.problem.speeds
    slack = int(state.units.items.sum()) - int(state.lower[:, -1].sum())
    units = Units(
        costs, amounts, state.mask_of_unit, *_mask_lists(state, leaf), state.factor[c:], state.shift[c:]
    )  # fmt: skip
    leaf_of_unit = np.zeros(len(amounts), dtype=np.int64)
    failed = _greedy(order, units, tree, m, max(slack, 0), leaf_of_unit)
    return by_speed[leaf_of_unit - first], int(failed)


def _comparable(state: State) -> tuple[Ints, Ints]:
    """Costs and initial loads; those of several components scaled to about the same in an average group."""
    costs, before = state.units.costs, state.problem.initial
    if costs.shape[1] == 1:
        return costs, before
    scaled = [
        ((a[:, k] >> max(int(state.shift[k]), 0)) * int(state.factor[k]))
        for a in (costs, before)
        for k in range(a.shape[1])
    ]
    c = costs.shape[1]
    return np.ascontiguousarray(np.stack(scaled[:c], axis=1)), np.ascontiguousarray(np.stack(scaled[c:], axis=1))


def _mask_lists(state: State, leaf: Ints) -> tuple[Ints, Ints]:
    """Leaves that each mask allows, ascending, as compressed rows; an empty row for a mask that allows all."""
    rows = [np.sort(leaf[np.flatnonzero(mask)]) if not mask.all() else leaf[:0] for mask in state.allowed]
    starts = np.concatenate(([0], np.cumsum([len(row) for row in rows])))
    return starts.astype(np.int64), np.concatenate(rows)
