"""Patterns: a linear program over what groups can hold, whose dual weights prove that a makespan is impossible.

A *pattern* is a set of items that one group can hold under a makespan T. If m groups can hold all items under T, then
the items can be covered by patterns that, fractions allowed, number m at most (Gilmore & Gomory 1961; the flow of
Valerio de Carvalho 1999 has the same optimum). The dual of this linear program gives each item a weight such that no
pattern weighs more than 1: all items together then weigh at most m, or T is out of reach.

The program is solved by column generation: a simplex method with a row for each distinct cost, and a knapsack that
finds the heaviest pattern there is. The simplex method calculates in floating point, but proofs do not depend on it:
its weights are rounded down to integers, and the exact knapsack says what these prove.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers._loops import copy, first_smallest, stable_order, sum_of

# The weight that stands for 1: a weight is rounded by less than a part in four million.
UNIT = 1 << 22
# So many units still fit int32, of which the table is made: half the memory of int64, and twice as many at once.
MOST_ITEMS = 500
# Room for patterns. The program ends where it is full, without a proof; few come near.
_MOST_PATTERNS = 6_000
# Patterns taken from one table, which takes far longer to fill than they to be read off.
_MOST_AT_ONCE = 8
# Pivots between two tables: duals of a program that is not solved steer well enough, and proofs need none of it.
_PIVOTS = 30
# How far duals are moved towards the weights that prove most: half way takes a third of the time of none (see `solve`).
_INWARDS = 0.5
# Reduced costs and pivots below it count as 0: numbers are about 1, and doubles hold 16 digits.
_TINY = 1e-7


class Program(NamedTuple):
    """The linear program of some items and groups, and the state of the simplex method.

    Row r holds pattern ``basis[r]`` in the amount ``amounts[r]``, or, below 0, the surplus of value ``-1 - basis[r]``.
    """

    values: NDArray[np.int64]  # descending strictly, positive
    counts: NDArray[np.int64]  # how many items have each, at least one
    inverse: NDArray[np.float64]
    amounts: NDArray[np.float64]
    duals: NDArray[np.float64]
    weights: NDArray[np.int64]  # in units: those that the last table was filled with
    inner: NDArray[np.float64]  # weights that prove most so far: no pattern is heavier than 1, or hardly
    basis: NDArray[np.int64]
    pool: NDArray[np.int16]  # all patterns made: lists of values by index, filled up with -1
    size: NDArray[np.int64]  # [how many patterns that are]


@kernel
def make_program(values, counts, longest):
    """Return the program of these items, with room for patterns of up to `longest` items."""
    d = len(values)
    return Program(
        values,
        counts,
        np.zeros((d, d)),
        np.zeros(d),
        np.zeros(d),
        np.zeros(d, dtype=np.int64),
        np.zeros(d),
        np.zeros(d, dtype=np.int64),
        np.full((_MOST_PATTERNS, longest), -1, dtype=np.int16),
        np.zeros(1, dtype=np.int64),
    )


@kernel(turns=1)
def begin(program, cap):
    """Start from the patterns that hold one value only."""
    program.inverse[:] = 0
    program.inner[:] = program.values / cap
    for v in range(len(program.values)):
        count = program.counts[v]
        # As many items of this value as a group holds, or as there are.
        copies = min(count, cap // program.values[v])
        k = program.size[0]
        program.pool[k] = -1
        program.pool[k, :copies] = v
        program.size[0] = k + 1
        program.basis[v] = k
        program.inverse[v, v] = 1 / copies
        program.amounts[v] = (count + 1e-5 * ((v * 7919) % 101 + 1)) / copies  # so that no two rows empty at once
        program.duals[v] = 1 / copies


@helper
def _fill_table(program, cap, table, item):
    """Fill ``table[k, c]``, the most that the first k items weigh under c, for c <= cap; return the last k.

    ``item[k]`` becomes the value, by index, of item k; those of weight 0 are left out.
    """
    table[0, : cap + 1] = 0
    k = 0
    for v in range(len(program.values)):
        value, weight = program.values[v], np.int32(program.weights[v])
        if weight <= 0 or value > cap:
            continue
        # Item by item, each at most once: a row of the table each, O(cap).
        for _ in range(min(program.counts[v], cap // value)):
            old, new = table[k], table[k + 1]
            copy(new, old[:value])
            to, same, less = new[value : cap + 1], old[value : cap + 1], old[: cap + 1 - value]
            for c in range(len(to)):
                one, other = same[c], np.int32(less[c] + weight)
                to[c] = one if one > other else other
            item[k] = v
            k += 1
    return k


@helper
def _add_pattern(program, cap, table, item, k):
    """Read the heaviest pattern whose last item is ``item[k - 1]`` off the table, into the pool if it helps.

    Returns whether it does.
    """
    pattern = program.pool[program.size[0]]
    pattern[:] = -1
    pattern[0] = item[k - 1]
    length = 1
    cap -= program.values[item[k - 1]]
    k -= 1
    while k > 0:
        # This item made the difference, so it is in the pattern.
        if table[k, cap] != table[k - 1, cap]:
            pattern[length] = item[k - 1]
            length += 1
            cap -= program.values[item[k - 1]]
        k -= 1
    reduced = 1.0
    for v in pattern[:length]:
        reduced -= program.duals[v]
    if reduced < -_TINY:
        program.size[0] += 1
    return reduced < -_TINY


@helper
def _add_heavy(program, cap, table, item, k):
    """Add the heaviest patterns that there are, of each value that is smallest in one at most one; returns how many."""
    weight = np.zeros(len(program.values), dtype=np.int64)
    last = np.zeros(len(program.values), dtype=np.int64)
    for j in range(1, k + 1):
        v = item[j - 1]
        heaviest = np.int64(table[j - 1, cap - program.values[v]]) + program.weights[v]
        if heaviest > weight[v]:
            weight[v], last[v] = heaviest, j
    added = 0
    for v in stable_order(-weight)[:_MOST_AT_ONCE]:
        # No heavier than 1: it would not help; nor is there room without end.
        if weight[v] <= UNIT or program.size[0] == len(program.pool):
            break
        added += _add_pattern(program, cap, table, item, last[v])
    return added


@helper
def _replace(program, leaving, change, reduced, name):
    """Bring a column into the basis in place of row `leaving`.

    `change` is the inverse times the column, `reduced` its reduced cost.
    """
    inverse, amounts, duals = program.inverse, program.amounts, program.duals
    amount = amounts[leaving] / change[leaving]
    pivot = inverse[leaving]
    pivot /= change[leaving]
    for r in range(len(change)):
        if r != leaving and change[r] != 0:
            amounts[r] -= change[r] * amount
            factor, row = change[r], inverse[r]
            for v in range(len(row)):
                row[v] -= factor * pivot[v]
    amounts[leaving] = amount
    for v in range(len(duals)):
        duals[v] += reduced * pivot[v]
    program.basis[leaving] = name


@helper
def _enter(program, change, reduced, name):
    """Bring a column into the basis; it replaces the row that it empties first. Returns whether there is one."""
    amounts = program.amounts
    leaving, least = -1, 0.0
    for r in range(len(change)):
        if change[r] > _TINY:
            ratio = max(amounts[r], 0.0) / change[r]
            # The row that is empty first; of equals the one whose pivot is largest, for the sake of rounding.
            if leaving < 0 or ratio < least - 1e-11 or (ratio <= least + 1e-11 and change[r] > change[leaving]):
                leaving, least = r, ratio
    if leaving >= 0:
        amounts[leaving] = max(amounts[leaving], 0.0)
        _replace(program, leaving, change, reduced, name)
    return leaving >= 0


@helper
def _inverse_times(program, k):
    """The inverse times pattern k."""
    change = np.zeros(len(program.duals))
    for v in program.pool[k]:
        if v < 0:
            break
        change += program.inverse[:, v]
    return change


@helper
def _enter_best(program):
    """Bring in the column with the most negative reduced cost; returns whether there is one."""
    v = first_smallest(program.duals)
    best, least = -1 - v, min(program.duals[v], -_TINY)
    pool, duals = program.pool, program.duals
    for k in range(program.size[0]):
        reduced = 1.0
        for j in range(pool.shape[1]):
            v = pool[k, j]
            if v < 0:
                break
            reduced -= duals[v]
        if reduced < least:
            best, least = k, reduced
    if least >= -_TINY:
        return False
    change = _inverse_times(program, best) if best >= 0 else -program.inverse[:, -1 - best]
    return _enter(program, change, least, best)


@helper
def _work_of_pivot(program):
    d = len(program.values)
    return d * d // 8 + 8 * d + program.size[0] + 200


@helper
def _set_weights(program, inwards):
    """Set the weights to the duals, moved inwards by so much of the way; returns what all items weigh."""
    weight = np.int64(0)
    for v in range(len(program.values)):
        dual = (1 - inwards) * max(program.duals[v], 0.0) + inwards * program.inner[v]
        program.weights[v] = min(np.int64(dual * UNIT), UNIT)
        weight += program.weights[v] * program.counts[v]
    return weight


@kernel
def solve(program, cap, num_groups, to_the_end, table, work):
    """Solve on from the basis that there is; no pattern may exceed `cap`. Returns a verdict and the work left.

    The verdict is 0 if the weights prove that more than `num_groups` groups are needed; 1 if they do not and will not,
    because the program is solved or, unless it shall be solved `to_the_end`, because so many groups suffice for it; -1
    if the work or the room for patterns ran out. `table` is int32, at least (1 + items) by (1 + cap).

    Duals that are optimal for the patterns known so far leap from one extreme to the next. So the table is filled with
    weights half way between them and the best that were proven (Ben-Ameur & Neto 2007), which takes a third of the
    time.
    """
    d = len(program.values)
    item = np.empty(len(table), dtype=np.int64)
    filling = min(sum_of(program.counts), len(table)) * (cap + 1) // 14
    inwards = _INWARDS
    while True:
        pivots = 0
        # Simplex steps over the patterns known so far, O(values^2) each.
        while work > 0 and pivots < _PIVOTS and _enter_best(program):
            work -= _work_of_pivot(program)
            pivots += 1
        if not to_the_end and (program.duals * program.counts).sum() <= num_groups + _TINY:
            return 1, work
        weight = _set_weights(program, inwards)
        k = _fill_table(program, cap, table, item)
        heaviest = np.int64(table[k, cap])
        work -= filling + 3 * _MOST_AT_ONCE * k
        # No group weighs more than the heaviest pattern, in integers: so many groups cannot hold all items.
        if weight > num_groups * heaviest:
            return 0, work
        if work <= 0 or program.size[0] == len(program.pool):
            return -1, work
        if weight > (program.inner * program.counts).sum() * heaviest:
            program.inner[:] = program.weights / heaviest
        # New patterns, if any helps; else nearer to the duals themselves, and at last the program is solved.
        if heaviest > UNIT + d and _add_heavy(program, cap, table, item, k) > 0:
            inwards = _INWARDS
        elif inwards > 0:
            inwards = inwards / 2 if inwards > 0.1 else 0.0
        elif pivots < _PIVOTS:
            return 1, work


@kernel(turns=1000)
def refuted_below(program, cap, reached, num_groups, table):
    """Return the first cap, after one that the weights refute, that they do not refute; `reached` if all below it are.

    What is refuted is that all items fit `num_groups` groups.
    """
    item = np.empty(len(table), dtype=np.int64)
    k = _fill_table(program, reached - 1, table, item)
    weight = sum_of(program.weights * program.counts)
    # One table has the heaviest pattern of every cap up to its own: the same weights may refute many.
    while cap < reached and weight > num_groups * np.int64(table[k, cap]):
        cap += 1
    program.inner[:] = program.weights / np.int64(table[k, min(cap, reached - 1)])
    return cap
