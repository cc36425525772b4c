"""The linear program of real loads instead of items, by column generation: a simplex kernel whose columns are paths.

Of all loads x[k, m], whose sums over the slots are given, find those of the least makespan: the largest over all paths
P of c_P + sum a_P[k, m] x[k, m]. The dual: weights of paths that sum to 1, such that every module's least
coefficient over the slots, times what it has to do, and the constants, sum to the most. Its columns are paths, and an
exact run of the pipeline finds the one that is missed most. Only sums, products and quotients of doubles, in one order:
the same on every machine.
"""

import numpy as np

from solvers._jit import helper, kernel
from solvers.pipeline._kernels import all_ends, critical_path, durations_of

_TOLERANCE = 1e-9
_BLUR = 1e-5  # of the makespan: by how much rows differ, so that few vertices coincide
_MIXED = 0.95  # of the best point met in that at which paths are sought: seven times fewer pivots than without
_CLOSE = 2e-4  # between the makespan found and what is proven, as a part of it
REST = 3  # marks a column that is no path, but what all that is done elsewhere takes


@helper
def _price(share, totals, unit, fixed, graph, hop, placed, loads, durations, ends, path):
    """Run the pipeline at ``share``, float64[K M], of all totals: its makespan, and a critical path's marks."""
    modules = len(totals)
    for k in range(loads.shape[0]):
        for m in range(modules):
            loads[k, m] = placed[k, m] + np.int64(max(0.0, share[k * modules + m]) * totals[m] + 0.5)
    durations_of(loads, unit, fixed, durations)
    makespan = all_ends(graph, durations, hop, ends)
    critical_path(graph, durations, ends, path)
    return makespan


@helper
def _column(path, totals, unit, fixed, graph, hop, placed, rest, norm, column):
    """Coefficients of a path: of what each module has in each slot as parts of its total, then 1. Returns c_P.

    All in parts of `norm`, so that numbers are about 1. A path that begins with the mark ``REST`` is `rest`.
    """
    modules, width = unit.shape
    for j in range(len(column)):
        column[j] = 0.0
    column[len(column) - 1] = 1.0
    constant = 0.0
    if path[0] == REST:
        for m in range(modules):
            column[placed.shape[0] * modules + m] = rest[m] / norm
        return rest[modules] / norm
    for op in range(len(path)):
        if path[op]:
            cell = graph[0, op]
            k, j = cell // width, cell % width
            for m in range(modules):
                column[k * modules + m] += totals[m] * unit[m, j] / norm
                constant += placed[k, m] * unit[m, j]
            constant += fixed[j]
            if path[op] == 2:
                constant += hop * graph[3, op]
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
    """Set B^-1 times the entering column: of a path, a module's least coefficient, or a surplus."""
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
    """Let the column enter whose reduced cost is `gain`; returns the row that leaves, or -1."""
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
def _elsewhere(share, rest, placed, modules):
    """Return what all that is done elsewhere takes."""
    total = 0.0
    if len(rest):
        total = rest[modules]
        for m in range(modules):
            total += rest[m] * max(0.0, share[placed.shape[0] * modules + m])
    return total


@helper
def _seek(
    best, share, totals, unit, fixed, graph, hop, placed, rest, norm, table, loads, durations, ends, path, column, inner
):
    """Run the pipeline at what the basis says, and first between that and the best share met: for a path to enter.

    Returns the least makespan met, whose share is kept, and of the path its constant and by how much it is missed.
    """
    rows, constant, gain = len(share), 0.0, 0.0
    for mixed in (_MIXED, 0.0):
        for i in range(rows):
            inner[i] = mixed * share[i] - (1.0 - mixed) * table[rows + 1, i]
        met = _price(inner, totals, unit, fixed, graph, hop, placed, loads, durations, ends, path) * 1.0
        met = max(met, _elsewhere(inner, rest, placed, len(totals)))
        if met < best:
            best = met
            for i in range(rows):
                share[i] = max(0.0, inner[i])
        constant = _column(path, totals, unit, fixed, graph, hop, placed, rest, norm, column)
        gain = _missed(column, constant, table)
        if gain > 0.1 * _CLOSE:
            break
    return best, constant, gain


@helper
def _renew(totals, unit, fixed, graph, hop, placed, rest, norm, column, paths, kinds, consts):
    """Set the constants of the paths of a basis, which may be of other work that is placed already."""
    for i in range(len(kinds)):
        if kinds[i] == len(kinds) - 1 + len(totals):
            consts[i] = _column(paths[i], totals, unit, fixed, graph, hop, placed, rest, norm, column)


@kernel
def solve_fluid(
    totals, ratios, unit, fixed, graph, hop, placed, rest, enough, most_pivots, share, paths, table, kinds, consts, norm
):
    """Solve the program for ``ratios[m] * totals[m]``, float64[M].

    Returns the least makespan met, what is proven, and the number of pivots.

    ``placed``, int64[K, M], is in the slots already, and comes on top. ``rest``, float64[0] or float64[M + 1], makes
    one more slot: what is in it, of parts of `totals`, takes so much elsewhere, and the last number. ``share``,
    float64[K M] of `totals`, is the point to begin with, and in the end the best. ``paths``, int8[KM + 1, T],
    ``table``, float64[KM + 2, KM + 2], ``kinds``, int64[KM + 1], and ``consts``, float64[KM + 1], are the basis, which
    may be that of other ratios or other work that is placed; ``norm``, float64[1], is 0 where there is none yet. Rows
    of kind ``KM + M`` are paths, and their weights are in the last column of the table. It ends once `enough` is
    proven.
    """
    modules, width = unit.shape
    rows, num_ops = len(share), graph.shape[1]
    loads, durations = np.empty_like(placed), np.empty((placed.shape[0], width), np.int64)
    ends, path = np.empty(num_ops, np.int64), np.empty(num_ops, np.int8)
    column, inner, direction = np.empty(rows + 1), np.empty(rows), np.empty(rows + 1)
    best = _price(share, totals, unit, fixed, graph, hop, placed, loads, durations, ends, path) * 1.0
    best = max(best, _elsewhere(share, rest, placed, modules))
    if norm[0] == 0.0:
        norm[0] = max(1.0, best)
        consts[rows] = _column(path, totals, unit, fixed, graph, hop, placed, rest, norm[0], column)
        _start(column, modules, table, kinds, _BLUR / rows)
        paths[rows, :] = path
    else:
        _renew(totals, unit, fixed, graph, hop, placed, rest, norm[0], column, paths, kinds, consts)
    _set_prices(ratios, kinds, consts, table)
    pivots = np.int64(0)
    while pivots < most_pivots:
        value = table[rows + 1, rows]  # what the paths in the basis prove
        if value * norm[0] >= enough:
            break
        kind, gain = _worst_share(ratios, table)
        constant = 0.0
        if kind < 0 and len(rest):
            path[0] = REST
            constant = _column(path, totals, unit, fixed, graph, hop, placed, rest, norm[0], column)
            gain = _missed(column, constant, table)
            kind = rows + modules if gain > 0.1 * _CLOSE else kind
        if kind < 0:
            best, constant, gain = _seek(
                best, share, totals, unit, fixed, graph, hop, placed, rest, norm[0], table, loads, durations, ends,
                path, column, inner,
            )  # fmt: skip
            kind = rows + modules if gain > 0.1 * _CLOSE else kind
            if kind < 0 or best - value * norm[0] < _CLOSE * best:
                break
        _enter(kind, column, modules, table, direction)
        leaves = _pivot(table, direction, gain)
        if leaves < 0:
            break
        kinds[leaves] = kind
        if kind == rows + modules:
            consts[leaves] = constant
            paths[leaves, :] = path
        pivots += 1
    return best, table[rows + 1, rows] * norm[0], pivots


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


@kernel
def smooth_fluid(totals, ratios, unit, fixed, graph, hop, num_slots, least, level, most_steps, share):
    """Move `share` to where the makespan is at most `level`, not far from where it was; return the least one met.

    ``least``, float64[K M], is what shares may not fall below. Polyak's steps along subgradients: none takes it further
    from any point that is good enough.
    """
    modules, width = unit.shape
    loads, durations = np.empty((num_slots, modules), np.int64), np.empty((num_slots, width), np.int64)
    ends, path = np.empty(graph.shape[1], np.int64), np.empty(graph.shape[1], np.int8)
    column, best = np.empty(len(share) + 1), share.copy()
    placed, rest = np.zeros_like(loads), np.empty(0)
    met = _price(share, totals, unit, fixed, graph, hop, placed, loads, durations, ends, path)
    lowest = met
    for _ in range(most_steps):
        if met <= level:
            break
        _column(path, totals, unit, fixed, graph, hop, placed, rest, 1.0, column)
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
        met = _price(share, totals, unit, fixed, graph, hop, placed, loads, durations, ends, path)
        if met < lowest:
            lowest = met
            for i in range(len(share)):
                best[i] = share[i]
    for i in range(len(share)):
        share[i] = best[i]
    return lowest
