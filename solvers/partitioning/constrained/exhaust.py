"""Depth-first search through every assignment that could still be better: for small problems, with proof.

Units in the given order, each to every group with room, the one that finishes first before the others. Groups that are
alike in everything (what they hold, limits, speed, masks) are tried once. A branch ends where the makespan of what is
placed, or the water filling of what is left, reaches the best known, or where groups can no longer get the items they
need.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers.partitioning.constrained.state import State

Ints = NDArray[np.int64]


class Rules(NamedTuple):
    """What is placed, and what groups may hold; nothing of it is written."""

    amounts: Ints  # int64[u, d]
    upper: Ints  # int64[m, d]
    lower: Ints  # int64[m, d]
    speeds: Ints  # int64[m]
    twin: Ints  # int64[m]: the same number for groups of the same limits, speed and masks
    allowed: NDArray[np.bool_]  # bool[k, m]
    mask_of_unit: Ints  # int64[u]
    components: int  # dimensions before this one are costs
    as_sum: bool  # whether the objective is the sum of the components' largest times, or the largest of all


class Filled(NamedTuple):
    """What is placed so far; all of it is written."""

    held: Ints  # int64[m, d]
    remaining: Ints  # int64[d]: of the units that are not placed


@helper
def _objective(rules, held):
    """What the units placed so far make of the objective. O(m c)."""
    total = np.int64(0)
    for k in range(rules.components):
        latest = np.int64(0)
        for g in range(len(held)):
            latest = max(latest, -(-held[g, k] // rules.speeds[g]))
        total = total + latest if rules.as_sum else max(total, latest)
    return total


@helper
def _hopeless(rules, filled, best):
    """Whether what remains cannot be placed below `best`, by sums alone: rooms, items that groups lack, times. O(m d).

    Sums are counted down, as all room together may not fit int64.
    """
    held, remaining = filled.held, filled.remaining
    m, dims = held.shape
    for d in range(rules.components, dims):
        over, short = remaining[d], np.int64(0)
        for g in range(m):
            over -= min(rules.upper[g, d] - held[g, d], over)
            short += max(rules.lower[g, d] - held[g, d], 0)
        if over > 0 or short > remaining[d]:
            return True
    if not rules.as_sum or rules.components == 1:
        for k in range(rules.components):
            over = remaining[k]
            for g in range(m):
                # Water filling: below `best` a group takes no more than that, and what remains must find room.
                over -= max(min((best - 1) * rules.speeds[g] - held[g, k], over), 0)
            if over > 0:
                return True
    return False


@helper
def _alike(rules, held, g, h):
    """Whether two groups hold the same under the same rules, so that one of them stands for both."""
    same = rules.twin[g] == rules.twin[h]
    for d in range(held.shape[1]):
        same = same and held[g, d] == held[h, d]
    return same


@helper
def _branches(rules, held, unit, out):
    """Groups for a unit, the least loaded first, one of those alike. Returns how many. O(m^2 d)."""
    mask, count = rules.mask_of_unit[unit], 0
    for g in range(len(held)):
        if not rules.allowed[mask, g]:
            continue
        fits = True
        for d in range(rules.components, held.shape[1]):
            if rules.amounts[unit, d] > rules.upper[g, d] - held[g, d]:
                fits = False
        for h in range(g):
            if fits and rules.allowed[mask, h] and _alike(rules, held, g, h):
                fits = False
        if not fits:
            continue
        k = count
        # Least loaded first: a good end early makes `best` small, and more branches hopeless.
        while k > 0 and held[out[k - 1], 0] > held[g, 0]:
            out[k] = out[k - 1]
            k -= 1
        out[k] = g
        count += 1
    return count


@helper
def _put(rules, filled, unit, g, times):
    """Put a unit into a group, or take it back with -1 `times`."""
    for d in range(filled.held.shape[1]):
        filled.held[g, d] += times * rules.amounts[unit, d]
        filled.remaining[d] -= times * rules.amounts[unit, d]


@kernel
def _exhaust(order, rules, filled, best, goal, work, best_groups):
    """Returns (best, work left); the search is complete, or has reached `goal`, if work is left.

    Without a stack of calls: of every depth its branches, and which of them is tried.
    """
    n, m = len(order), len(filled.held)
    branch = np.zeros((n + 1, m), dtype=np.int64)
    count = np.zeros(n + 1, dtype=np.int64)
    turn = np.zeros(n + 1, dtype=np.int64)
    depth, entering = 0, True
    step = m * (rules.amounts.shape[1] + 2)
    while depth >= 0 and work > 0 and best > goal:
        if entering:
            # A new vertex: a better end is kept, a hopeless one has no branches.
            work -= step
            turn[depth], count[depth] = 0, 0
            objective = _objective(rules, filled.held)
            if objective < best and not _hopeless(rules, filled, best):
                if depth == n:
                    best = objective
                    for i in range(n):
                        best_groups[order[i]] = branch[i, turn[i] - 1]
                else:
                    count[depth] = _branches(rules, filled.held, order[depth], branch[depth])
                    work -= m * m
            entering = False
            continue
        if turn[depth] > 0:  # the branch before is done: take back
            _put(rules, filled, order[depth], branch[depth, turn[depth] - 1], -1)
        if turn[depth] == count[depth]:
            depth -= 1
            continue
        _put(rules, filled, order[depth], branch[depth, turn[depth]], 1)
        turn[depth] += 1
        depth += 1
        entering = True
    return best, work


def exhaust(state: State, order: Ints, best: int, goal: int, work: int) -> tuple[Ints | None, int]:
    """Search below `best` in full; return an assignment that is better, if there is one, and the work left.

    That is positive if the search is complete, so that nothing is better than what it returns (or it is `goal`).
    """
    rows = np.column_stack([state.problem.speeds, state.upper, state.lower, state.allowed.T])
    twin = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    groups = np.full(len(order), -1, dtype=np.int64)
    rules = Rules(
        state.amounts, state.upper, state.lower, state.problem.speeds, twin, state.allowed, state.mask_of_unit,
        state.components, state.problem.objective == "sum",
    )  # fmt: skip
    filled = Filled(state.held_before.copy(), state.amounts.sum(axis=0))
    _, left = _exhaust(order, rules, filled, best, goal, work, groups)
    return (groups if len(order) == 0 or groups[0] >= 0 else None), int(left)
