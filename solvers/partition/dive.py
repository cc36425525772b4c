"""Diving: patterns of the linear program's solution become groups, one after another, until all items are placed.

The linear program of :mod:`solvers.partition.patterns` says which patterns, in fractions, cover all items under T with
m groups. Give one group the pattern that it uses most, solve for what is left (a few steps of the simplex method, from
where it stands), and so on; the last few groups are filled by bin completion. Where the dive ends in items that need
more groups than are left, go back, usually not far, and let a generator with a fixed seed choose otherwise.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, inlined, kernel
from solvers._loops import copy, copy_table, draw, sum_of
from solvers.partition.bin_completion import WORK_PER_NODE, decide
from solvers.partition.patterns import copy_program, fix, solve

__all__ = ["dive"]

_LEVELS = 8  # saved on the way, to go back to
_LAST_GROUPS = 5  # by bin completion
_NODES = 20_000
_NOISE = 0.4


class _Saved(NamedTuple):
    """A program as it was on the way down, once for each level."""

    groups: NDArray[np.int64]  # filled by then
    counts: NDArray[np.int64]
    inverse: NDArray[np.float64]
    amounts: NDArray[np.float64]
    duals: NDArray[np.float64]
    basis: NDArray[np.int64]


@helper
def _save(saved, level, program, g):
    saved.groups[level] = g
    copy(saved.counts[level], program.counts)
    copy_table(saved.inverse[level], program.inverse)
    copy(saved.amounts[level], program.amounts)
    copy(saved.duals[level], program.duals)
    copy(saved.basis[level], program.basis)


@inlined
def _restore(saved, level, program):
    copy(program.counts, saved.counts[level])
    copy_table(program.inverse, saved.inverse[level])
    copy(program.amounts, saved.amounts[level])
    copy(program.duals, saved.duals[level])
    copy(program.basis, saved.basis[level])
    return saved.groups[level]


@inlined
def _finish(program, cap, used):
    """Fill the groups of `used` by bin completion; returns whether it could, and the work."""
    live = np.flatnonzero(program.counts)
    part = np.zeros((len(used), len(live)), dtype=np.int64)
    verdict, nodes = decide(program.values[live], program.counts[live], len(used), cap, part, _NODES)
    if verdict == 1:
        for g in range(len(used)):
            for k in range(len(live)):
                used[g, live[k]] = part[g, k]
    return verdict == 1, (_NODES - nodes) * WORK_PER_NODE


@helper
def _fill_groups(program, used, g, noise, state):
    """Fill groups from `g` on by the patterns that the program uses whole, or by one; returns the next.

    If it uses none whole, by the one that it uses most, after each amount was raised by up to `noise` of itself.
    """
    before, chosen, most = g, -1, 0.0
    for r in range(len(program.amounts)):
        if program.basis[r] < 0:
            continue
        while g < len(used) and program.amounts[r] > 0.99:
            fix(program, r, used[g])
            g += 1
        amount = program.amounts[r] * (1 + noise * draw(state, 1 << 23) / (1 << 23))
        if amount > most:
            chosen, most = r, amount
    if g == before and chosen >= 0:
        fix(program, chosen, used[g])
        g += 1
    return g


@helper
def _descend(program, saved, level, cap, used, table, noise, to_the_end, state, work):
    """One dive from a saved level; returns whether all items are in groups, the deepest level, the work."""
    num_groups = len(used)
    g = _restore(saved, level, program)
    used[g:] = 0
    while True:
        before = g
        g = _fill_groups(program, used, g, noise, state)
        if sum_of(program.counts) == 0:
            return True, level, work
        if g in (num_groups, before) or work <= 0:
            return False, level, work
        if num_groups - g <= _LAST_GROUPS:
            done, spent = _finish(program, cap, used[g:])
            return done, level, work - spent
        verdict, work = solve(program, cap, num_groups - g, to_the_end, True, table, work)
        if verdict != 1:
            return False, level, work
        if level + 1 < _LEVELS and 3 * (num_groups - g) <= 2 * (num_groups - saved.groups[level]):
            level += 1
            _save(saved, level, program, g)
            work -= program.inverse.size // 4


@kernel
def dive(root, cap, used, table, attempts, seed, work):
    """Fill ``used[g, v]``, how many items of value v group g gets, under `cap`, from the solved program `root`.

    With the seed 0 the first dive is by the amounts alone.
    Returns whether all items are in groups, and the work left.
    """
    d = len(root.values)
    saved = _Saved(
        np.zeros(_LEVELS, dtype=np.int64),
        np.zeros((_LEVELS, d), dtype=np.int64),
        np.zeros((_LEVELS, d, d)),
        np.zeros((_LEVELS, d)),
        np.zeros((_LEVELS, d)),
        np.zeros((_LEVELS, d), dtype=np.int64),
    )
    _save(saved, 0, root, 0)
    program = copy_program(root)
    level, noise = 0, 0.0 if seed == 0 else _NOISE
    state = np.empty(1, dtype=np.int64)
    state[0] = seed
    for attempt in range(1, attempts + 1):
        to_the_end = attempt & 8 == 0
        done, level, work = _descend(program, saved, level, cap, used, table, noise, to_the_end, state, work)
        if done or work <= 0:
            return done, work
        noise = _NOISE
        back = attempt
        while back % 4 == 0 and level > 0:  # four attempts from where it is, four times four from the level above
            back //= 4
            level -= 1
    return False, work
