"""Depth-first search through every assignment that could still be better: for small problems, with proof.

Units in the given order, each to every group with room, the one that finishes first before the others. Groups that are
alike in everything (what they hold, limits, speed, masks) are tried once. A branch ends where the makespan of what is
placed, or the water filling of what is left, reaches the best known, or where groups can no longer get the items they
need.
"""

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers.partitioning.constrained.state import State

Ints = NDArray[np.int64]


@helper
def _objective(held, speeds, components, as_sum):
    total = np.int64(0)
    for k in range(components):
        latest = np.int64(0)
        for g in range(len(held)):
            latest = max(latest, -(-held[g, k] // speeds[g]))
        total = total + latest if as_sum else max(total, latest)
    return total


@helper
def _hopeless(held, upper, lower, remaining, speeds, components, as_sum, best):
    """Whether what remains cannot be placed below `best`, by sums alone."""
    m, dims = held.shape
    for d in range(components, dims):
        over, short = remaining[d], np.int64(0)  # counted down, as all room together may not fit int64
        for g in range(m):
            over -= min(upper[g, d] - held[g, d], over)
            short += max(lower[g, d] - held[g, d], 0)
        if over > 0 or short > remaining[d]:
            return True
    if not as_sum or components == 1:
        for k in range(components):
            over = remaining[k]
            for g in range(m):
                over -= max(min((best - 1) * speeds[g] - held[g, k], over), 0)
            if over > 0:
                return True
    return False


@helper
def _alike(held, twin, g, h):
    same = twin[g] == twin[h]
    for d in range(held.shape[1]):
        same = same and held[g, d] == held[h, d]
    return same


@helper
def _branches(unit, amounts, held, upper, twin, allowed, mask, components, out):
    """Groups for a unit, the least loaded first, one of those alike. Returns how many."""
    count = 0
    for g in range(len(held)):
        if not allowed[mask, g]:
            continue
        fits = True
        for d in range(components, held.shape[1]):
            if amounts[unit, d] > upper[g, d] - held[g, d]:
                fits = False
        for h in range(g):
            if fits and allowed[mask, h] and _alike(held, twin, g, h):
                fits = False
        if not fits:
            continue
        k = count
        while k > 0 and held[out[k - 1], 0] > held[g, 0]:
            out[k] = out[k - 1]
            k -= 1
        out[k] = g
        count += 1
    return count


@kernel
def _exhaust(order, amounts, held, upper, lower, speeds, components, as_sum, twin, allowed, mask_of_unit, best, goal,
             work, best_groups):  # fmt: skip
    """Returns (best, work left); the search is complete, or has reached `goal`, if work is left."""
    n, m = len(order), len(held)
    remaining = amounts.sum(axis=0)
    branch = np.zeros((n + 1, m), dtype=np.int64)
    count = np.zeros(n + 1, dtype=np.int64)
    turn = np.zeros(n + 1, dtype=np.int64)
    depth, entering = 0, True
    step = m * (amounts.shape[1] + 2)
    while depth >= 0 and work > 0 and best > goal:
        if entering:
            work -= step
            turn[depth] = 0
            count[depth] = 0
            objective = _objective(held, speeds, components, as_sum)
            if objective < best and not _hopeless(held, upper, lower, remaining, speeds, components, as_sum, best):
                if depth == n:
                    best = objective
                    for i in range(n):
                        best_groups[order[i]] = branch[i, turn[i] - 1]
                else:
                    unit = order[depth]
                    count[depth] = _branches(unit, amounts, held, upper, twin, allowed, mask_of_unit[unit], components,
                                             branch[depth])  # fmt: skip
                    work -= m * m
            entering = False
            continue
        if turn[depth] > 0:  # take back
            g, unit = branch[depth, turn[depth] - 1], order[depth]
            for d in range(held.shape[1]):
                held[g, d] -= amounts[unit, d]
                remaining[d] += amounts[unit, d]
        if turn[depth] == count[depth]:
            depth -= 1
            continue
        g, unit = branch[depth, turn[depth]], order[depth]
        for d in range(held.shape[1]):
            held[g, d] += amounts[unit, d]
            remaining[d] -= amounts[unit, d]
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
    _, left = _exhaust(
        order, state.amounts, state.held_before.copy(), state.upper, state.lower, state.problem.speeds,
        state.components, state.problem.objective == "sum", twin, state.allowed, state.mask_of_unit, best, goal, work,
        groups,
    )  # fmt: skip
    return (groups if len(order) == 0 or groups[0] >= 0 else None), int(left)
