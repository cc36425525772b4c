"""List scheduling under constraints: each unit in turn to the group that it makes finish first, among those with room.

A tree over the groups keeps, for every subtree, the smallest load of each component, the largest room in each quantity
and the largest speed, so that the best group is found by descending and not by asking all. Units that may not be in
every group look through the groups that they may be in.
"""

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers.partitioning.constrained.state import State

Ints = NDArray[np.int64]


@helper
def _finish(low, node, costs, unit, speed):
    """When the group (or at the earliest any group below the node) would finish with the unit."""
    latest = np.int64(0)
    for k in range(costs.shape[1]):
        latest = max(latest, low[node, k] + costs[unit, k])
    return latest if speed == 1 else -(-latest // speed)


@helper
def _fits(room, node, amounts, unit):
    fits = True
    for d in range(amounts.shape[1]):
        fits = fits and amounts[unit, d] <= room[node, d]
    return fits


@helper
def _keeps_slack(want, node, amount, slack):
    """Whether the groups short of items can still get them after `amount` items went here: see :func:`_greedy`."""
    return amount - min(amount, want[node]) <= slack


@helper
def _build(low, room, want, fast, first):
    for node in range(first - 1, 0, -1):
        _pull(low, room, want, fast, node)


@helper
def _pull(low, room, want, fast, node):
    left, right = 2 * node, 2 * node + 1
    for k in range(low.shape[1]):
        low[node, k] = min(low[left, k], low[right, k])
    for d in range(room.shape[1]):
        room[node, d] = max(room[left, d], room[right, d])
    want[node] = max(want[left], want[right])
    fast[node] = max(fast[left], fast[right])


@helper
def _search_tree(low, room, want, fast, first, costs, amounts, unit, slack, stack):
    """The leaf at which the unit finishes first, or -1; of equal leaves the first that is met."""
    best, best_leaf = np.int64(2**63 - 1), -1
    items = amounts[unit, amounts.shape[1] - 1]
    stack[0] = 1
    size = 1
    while size > 0:
        size -= 1
        node = stack[size]
        if not _fits(room, node, amounts, unit) or not _keeps_slack(want, node, items, slack):
            continue
        finish = _finish(low, node, costs, unit, fast[node])
        if finish >= best:
            continue
        if node >= first:
            best, best_leaf = finish, node
            continue
        left, right = 2 * node, 2 * node + 1
        if _finish(low, right, costs, unit, fast[right]) < _finish(low, left, costs, unit, fast[left]):
            left, right = right, left
        stack[size] = right
        stack[size + 1] = left
        size += 2
    return best_leaf


@helper
def _search_list(low, room, want, fast, leaves, costs, amounts, unit, slack):
    best, best_leaf = np.int64(2**63 - 1), -1
    items = amounts[unit, amounts.shape[1] - 1]
    for leaf in leaves:
        if _fits(room, leaf, amounts, unit) and _keeps_slack(want, leaf, items, slack):
            finish = _finish(low, leaf, costs, unit, fast[leaf])
            if finish < best:
                best, best_leaf = finish, leaf
    return best_leaf


@helper
def _least_harm(room, first, num_groups, leaves, amounts, unit, factor, shift):
    """Of the leaves that the unit may be in (all of them if `leaves` is empty), the one it overfills least."""
    best, best_leaf = np.int64(2**63 - 1), -1
    for k in range(len(leaves) if len(leaves) else num_groups):
        leaf = leaves[k] if len(leaves) else first + k
        harm = np.int64(0)
        for d in range(amounts.shape[1]):
            over = min(amounts[unit, d], amounts[unit, d] - room[leaf, d])
            if over > 0:
                harm += ((over + (1 << shift[d]) - 1) >> shift[d]) * factor[d]
        if harm < best:
            best, best_leaf = harm, leaf
    return best_leaf


@kernel
def _greedy(order, costs, amounts, low, room, want, fast, num_groups, slack, starts, leaves, mask_of_unit, factor,
            shift, leaf_of_unit):  # fmt: skip
    """Place the units in `order`; those for which no group has room at the end. Returns how many those were.

    `slack` is how many items there are beyond those that the groups still want to reach their lowest count: an item
    that goes to a group which wants none takes one of it, and none may when it is gone.
    """
    first = len(low) // 2
    _build(low, room, want, fast, first)
    stack = np.empty(128, dtype=np.int64)
    left_over = np.empty(len(order), dtype=np.int64)
    failed = 0
    for turn in range(2 * len(order)):
        if turn < len(order):
            unit = order[turn]
        elif turn - len(order) < failed:
            unit = left_over[turn - len(order)]
        else:
            break
        mine = leaves[starts[mask_of_unit[unit]] : starts[mask_of_unit[unit] + 1]]
        if turn >= len(order):
            leaf = _least_harm(room, first, num_groups, mine, amounts, unit, factor, shift)
        elif len(mine):
            leaf = _search_list(low, room, want, fast, mine, costs, amounts, unit, slack)
        else:
            leaf = _search_tree(low, room, want, fast, first, costs, amounts, unit, slack, stack)
        if leaf < 0:
            left_over[failed] = unit
            failed += 1
            continue
        leaf_of_unit[unit] = leaf
        items = amounts[unit, amounts.shape[1] - 1]
        slack -= items - min(items, want[leaf])
        want[leaf] -= min(items, want[leaf])
        for k in range(costs.shape[1]):
            low[leaf, k] += costs[unit, k]
        for d in range(amounts.shape[1]):
            room[leaf, d] -= amounts[unit, d]
        node = leaf // 2
        while node > 0:
            _pull(low, room, want, fast, node)
            node //= 2
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
    low = np.full((2 * first, c), 2**62, dtype=np.int64)
    room = np.full((2 * first, amounts.shape[1]), -1, dtype=np.int64)
    want, fast = np.zeros(2 * first, dtype=np.int64), np.ones(2 * first, dtype=np.int64)
    leaf = np.empty(m, dtype=np.int64)
    leaf[by_speed] = np.arange(first, first + m)
    low[leaf], room[leaf] = before, state.upper[:, c:]
    want[leaf], fast[leaf] = state.lower[:, -1], state.problem.speeds
    slack = int(state.units.items.sum()) - int(state.lower[:, -1].sum())
    starts, leaves = _mask_lists(state, leaf)
    leaf_of_unit = np.zeros(len(amounts), dtype=np.int64)
    failed = _greedy(
        order, costs, amounts, low, room, want, fast, m, max(slack, 0), starts, leaves, state.mask_of_unit,
        state.factor[c:], state.shift[c:], leaf_of_unit,
    )  # fmt: skip
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
