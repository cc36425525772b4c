"""The linear program of real loads instead of items, by column generation: a simplex kernel whose columns are paths.

Of all loads x[k, m], whose sums over the slots are given, find those of the least makespan: the largest over all paths
P of c_P + sum a_P[k, m] x[k, m]. The dual: weights of paths that sum to 1, such that every module's least
coefficient over the slots, times what it has to do, and the constants, sum to the most. Its columns are paths, and an
exact run of the pipeline finds the one that is missed most. Only sums, products and quotients of doubles, in one order:
the same on every machine.

The simplex method is :func:`solve_fluid`. Its point is a vertex, where slots may be very unlike each other;
:func:`smooth_fluid` then moves from a gentle point to one that is nearly as good.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers.pipeline.run import all_ends, critical_path, durations_of

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_TOLERANCE = 1e-9
"""Reduced costs and pivots that are no larger count as 0: numbers are about 1, and doubles hold 16 digits of them."""
_BLUR = 1e-5
"""Of the makespan: by how much rows differ, so that few vertices coincide, and the simplex does not stand still."""
_MIXED = 0.95
"""Of the best point met in that at which paths are sought: seven times fewer pivots than without, measured."""
_CLOSE = 2e-4
"""Between the makespan found and what is proven, as a part of it: the end. A path that is missed by less than a tenth
of that is not worth a pivot."""


class Program(NamedTuple):
    """What there is to do, and what ops take. Read-only."""

    totals: Floats  # float64[M]: work of each module, of which a ratio is to be done
    unit: Ints  # int64[M, 2 S]: time of one unit of it in every forward and backward
    fixed: Ints  # int64[2 S]: what each takes besides
    graph: Ints  # int64[4, T]: see solvers.pipeline.run
    hop: int
    num_slots: int


class Basis(NamedTuple):
    """Columns, and the inverse of their matrix, for ``rows = K M`` shares. Writable.

    It may have been left by another solution, of other ratios.
    """

    paths: NDArray[np.int8]  # int8[rows + 1, T]: marks of the ops of each column that is a path
    # float64[rows + 2, rows + 2]: the inverse; the last column are values, the last row prices
    table: Floats
    # int64[rows + 1]: what each column is. Below rows: what a share exceeds its module's least coefficient by; from
    # there on a module's least coefficient; rows + M: a path, whose weight is in the last column of the table
    kinds: Ints
    consts: Floats  # float64[rows + 1]: c_P of paths
    norm: Floats  # float64[1]: the makespan that numbers are parts of; 0 where there is no basis yet

    def copied(self) -> "Basis":
        """Return one that may be changed by itself."""
        paths, table, kinds, consts, norm = self
        return Basis(paths.copy(), table.copy(), kinds.copy(), consts.copy(), norm.copy())


class Runs(NamedTuple):
    """Room for runs of the pipeline. Writable."""

    loads: Ints  # int64[K, M]
    durations: Ints  # int64[K, 2 S]
    ends: Ints  # int64[T]
    marks: NDArray[np.int8]  # int8[T]: see solvers.pipeline.run.critical_path
    column: Floats  # float64[rows + 1]: coefficients of the path
    inner: Floats  # float64[rows]: where a path is sought


class Solved(NamedTuple):
    """The least makespan met, and what is proven."""

    makespan: float
    proven: float


def empty_basis(rows: int, num_ops: int) -> Basis:
    """Return what the kernel begins from where nothing is known."""
    return Basis(
        np.zeros((rows + 1, num_ops), dtype=np.int8), np.zeros((rows + 2, rows + 2)),
        np.zeros(rows + 1, dtype=np.int64), np.zeros(rows + 1), np.zeros(1),
    )  # fmt: skip


@helper
def _room_for_runs(program, rows):
    """Make room for runs."""
    modules, width = program.unit.shape
    num_slots, num_ops = program.num_slots, program.graph.shape[1]
    return Runs(
        np.empty((num_slots, modules), np.int64), np.empty((num_slots, width), np.int64), np.empty(num_ops, np.int64),
        np.empty(num_ops, np.int8), np.empty(rows + 1), np.empty(rows),
    )  # fmt: skip


@helper
def _price(share, program, runs):
    """Run the pipeline at ``share``, float64[K M], of all totals: its makespan, and a critical path's marks. O(T)."""
    loads, totals = runs.loads, program.totals
    modules = len(totals)
    for k in range(loads.shape[0]):
        for m in range(modules):
            loads[k, m] = np.int64(max(0.0, share[k * modules + m]) * totals[m] + 0.5)
    durations_of(loads, program.unit, program.fixed, runs.durations)
    makespan = all_ends(program.graph, runs.durations, program.hop, runs.ends)
    critical_path(program.graph, runs.durations, runs.ends, runs.marks)
    return makespan


@helper
def _column(marks, program, norm, column):
    """Coefficients of a path: of what each module has in each slot as parts of its total, then 1. Returns c_P.

    All in parts of `norm`, so that numbers are about 1. O(T M).
    """
    unit, graph = program.unit, program.graph
    modules, width = unit.shape
    for j in range(len(column)):
        column[j] = 0.0
    column[len(column) - 1] = 1.0
    constant = 0.0
    for op in range(len(marks)):
        if marks[op]:
            cell = graph[0, op]
            k, j = cell // width, cell % width
            for m in range(modules):
                column[k * modules + m] += program.totals[m] * unit[m, j] / norm
            constant += program.fixed[j]
            if marks[op] == 2:
                constant += program.hop * graph[3, op]
    return constant / norm


@helper
def _start(column, modules, table, kinds, blur):
    """Set the inverse of the first basis: one path, its least coefficient of each module, and what others exceed it."""
    rows = len(column) - 1
    for i in range(rows + 2):
        for j in range(rows + 2):
            table[i, j] = 0.0
    table[rows, rows], table[rows, rows + 1], kinds[rows] = 1.0, 1.0, rows + modules
    for m in range(modules):
        low = m
        for i in range(m, rows, modules):
            if column[i] + blur * i < column[low] + blur * low:
                low = i
        for i in range(m, rows, modules):
            # what i exceeds: its coefficient less the least; of `low` itself the least, which is another variable
            kinds[i] = i
            table[i, rows] = column[i] - column[low]
            table[i, i], table[i, low] = -1.0, 1.0
            table[i, rows + 1] = column[i] + blur * i - column[low] - blur * low
        kinds[low] = rows + m
        table[low, low], table[low, rows] = -1.0, column[low]
        table[low, rows + 1] = column[low] + blur * low


@helper
def _set_prices(ratios, kinds, consts, table):
    """Set the last row, prices and value: a path is worth its constant, a least coefficient its module's ratio."""
    size = len(kinds)
    for j in range(size + 1):
        table[size, j] = 0.0
    for i in range(size):
        worth = 0.0
        if kinds[i] >= size - 1:
            m = kinds[i] - (size - 1)
            worth = ratios[m] if m < len(ratios) else consts[i]
        if worth != 0.0:
            for j in range(size + 1):
                table[size, j] += worth * table[i, j]


@helper
def _enter(kind, column, modules, table, direction):
    """Set B^-1 times the entering column: of a path, a module's least coefficient, or a surplus. O((K M)^2)."""
    size = table.shape[0] - 1
    rows = size - 1
    for i in range(size):
        total = 0.0
        if kind < rows:
            total = -table[i, kind]
        elif kind < rows + modules:
            for j in range(kind - rows, rows, modules):
                total -= table[i, j]
        else:
            for j in range(size):
                total += table[i, j] * column[j]
        direction[i] = total


@helper
def _pivot(table, direction, gain):
    """Let the column enter whose reduced cost is `gain`; returns the row that leaves, or -1. O((K M)^2)."""
    size = table.shape[0] - 1
    leaves, least = -1, np.inf
    for i in range(size):
        if direction[i] > _TOLERANCE:
            ratio = max(0.0, table[i, size]) / direction[i]
            if ratio < least or (ratio == least and direction[i] > direction[leaves]):
                leaves, least = i, ratio
    if leaves < 0:
        return leaves
    scale = 1.0 / direction[leaves]
    for j in range(size + 1):
        table[leaves, j] *= scale
    for i in range(size + 1):
        factor = -gain if i == size else direction[i]
        if i != leaves and factor != 0.0:
            for j in range(size + 1):
                table[i, j] -= factor * table[leaves, j]
    return leaves


@helper
def _worst_share(ratios, table):
    """Return the kind of variable that is most below 0 in the dual, a share or what is over of a total; -1: none."""
    modules, rows = len(ratios), table.shape[0] - 2
    kind, gain = np.int64(-1), _TOLERANCE
    for i in range(rows):  # a share below 0
        if table[rows + 1, i] > gain:
            kind, gain = i, table[rows + 1, i]
    for m in range(modules):
        total = ratios[m]
        for i in range(m, rows, modules):
            total += table[rows + 1, i]
        if total > max(gain, 1e-7):
            kind, gain = rows + m, total
    return kind, gain


@helper
def _missed(column, constant, table):
    """Return by how much a column is worth more than what is in the basis."""
    rows = table.shape[0] - 2
    gain = constant - table[rows + 1, rows]
    for i in range(rows):
        gain -= table[rows + 1, i] * column[i]
    return gain


@helper
def _seek(best, share, program, basis, runs):
    """Run the pipeline at what the basis says, and first between that and the best share met: for a path to enter.

    Returns the least makespan met, whose share is kept, and of the path its constant and by how much it is missed.
    Paths found between are of use for many bases to come; those at the basis itself are for this one alone.
    """
    table, inner = basis.table, runs.inner
    rows, constant, gain = len(share), 0.0, 0.0
    for mixed in (_MIXED, 0.0):
        for i in range(rows):
            inner[i] = mixed * share[i] - (1.0 - mixed) * table[rows + 1, i]
        met = _price(inner, program, runs) * 1.0
        if met < best:
            best = met
            for i in range(rows):
                share[i] = max(0.0, inner[i])
        constant = _column(runs.marks, program, basis.norm[0], runs.column)
        gain = _missed(runs.column, constant, table)
        if gain > 0.1 * _CLOSE:
            break
    return best, constant, gain


@kernel(turns=1000)
def solve_fluid(program, ratios, most_pivots, share, basis):
    """Solve the program for ``ratios[m] * totals[m]``, float64[M], by the simplex method.

    ``share``, float64[K M] of the totals, is the point to begin with, and in the end the best that was met.
    A pivot takes O((K M)^2), and a run of the pipeline.
    """
    table, kinds, norm = basis.table, basis.kinds, basis.norm
    modules, rows = len(program.totals), len(share)
    runs, direction = _room_for_runs(program, rows), np.empty(rows + 1)
    # 1. The first point gives a bound from above; without a basis, its critical path is the first column.
    best = _price(share, program, runs) * 1.0
    if norm[0] == 0.0:
        norm[0] = max(1.0, best)
        basis.consts[rows] = _column(runs.marks, program, norm[0], runs.column)
        _start(runs.column, modules, table, kinds, _BLUR / rows)
        basis.paths[rows, :] = runs.marks
    _set_prices(ratios, kinds, basis.consts, table)
    for _ in range(most_pivots):
        value = table[rows + 1, rows]  # what the paths in the basis prove
        # 2. Which column enters: a share or a total that is wrong, at no cost; then a path, for which the pipeline has
        #    to run.
        kind, gain = _worst_share(ratios, table)
        constant = 0.0
        if kind < 0:
            best, constant, gain = _seek(best, share, program, basis, runs)
            kind = rows + modules if gain > 0.1 * _CLOSE else kind
            if kind < 0 or best - value * norm[0] < _CLOSE * best:
                break
        # 3. It enters, and what it drives to 0 first leaves.
        _enter(kind, runs.column, modules, table, direction)
        leaves = _pivot(table, direction, gain)
        if leaves < 0:
            break
        kinds[leaves] = kind
        if kind == rows + modules:
            basis.consts[leaves] = constant
            basis.paths[leaves, :] = runs.marks
    return Solved(best, table[rows + 1, rows] * norm[0])


@helper
def _onto_simplex(share, least, ratios):
    """Make shares at least so much, and every module's sum up to its ratio, moving them as little as possible."""
    modules = len(ratios)
    for m in range(modules):
        for _ in range(len(share)):
            total, count, below = 0.0, 0, False
            for i in range(m, len(share), modules):
                if share[i] > least[i]:
                    count += 1
                total += max(share[i], least[i])
            excess = (total - ratios[m]) / max(1, count)
            for i in range(m, len(share), modules):
                share[i] = share[i] - excess if share[i] > least[i] else least[i]
                below |= share[i] < least[i]
            if not below:
                break


@kernel(turns=1000)
def smooth_fluid(program, ratios, least, level, most_steps, share):
    """Move `share` to where the makespan is at most `level`, not far from where it was; return the least one met.

    ``least``, float64[K M], is what shares may not fall below. Polyak's steps along subgradients: none takes it further
    from any point that is good enough. A step takes a run of the pipeline.
    """
    modules, num_slots = len(program.totals), program.num_slots
    runs, best = _room_for_runs(program, len(share)), share.copy()
    column = runs.column
    met = _price(share, program, runs)
    lowest = met
    for _ in range(most_steps):
        if met <= level:
            break
        _column(runs.marks, program, 1.0, column)
        # within the plane where every module's shares sum up to its ratio
        square = 0.0
        for m in range(modules):
            mean = 0.0
            for i in range(m, len(share), modules):
                mean += column[i]
            mean /= num_slots
            for i in range(m, len(share), modules):
                column[i] -= mean
                square += column[i] * column[i]
        if square <= 0.0:
            break
        for i in range(len(share)):
            share[i] -= (met - level) / square * column[i]
        _onto_simplex(share, least, ratios)
        met = _price(share, program, runs)
        if met < lowest:
            lowest = met
            for i in range(len(share)):
                best[i] = share[i]
    for i in range(len(share)):
        share[i] = best[i]
    return lowest
