"""Items in the slots of replicas: what caps allow, how slots are filled by targets, and how they come closer to these.

A *cell* is a slot of a replica, ``replica * K + slot``. Where caps leave no room an item goes where they are broken
least, and exchanges mend that.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers._loops import draw
from solvers.groups import read_only
from solvers.pipeline._flight import FlightSets
from solvers.pipeline._problem import PipelineProblem

Ints = NDArray[np.int64]
NONE = np.int64(-1)
"""In place of an item where there is none."""


class Rules(NamedTuple):
    """The items, and what cells may hold of them. Read-only."""

    work: Ints  # int64[n, M]: of each item in each module
    sizes: Ints  # int64[n, C]: what an item holds; C is 0 where nothing is said to
    caps: Ints  # int64[C]: what a cell may hold of each
    may_be_empty: bool  # whether a cell may hold no item
    num_slots: int
    flight: FlightSets

    @classmethod
    def of(cls, problem: PipelineProblem) -> "Rules":
        """Return those of a problem."""
        work, sizes = np.ascontiguousarray(problem.items.T), np.ascontiguousarray(problem.sizes.T)
        rest = problem.caps, problem.may_be_empty, problem.num_slots, problem.flight
        return cls(read_only(work), read_only(sizes), *rest)


class Cells(NamedTuple):
    """Which items lie where, and what of sizes that sums up to. Writable."""

    cell_of: Ints  # int64[n]: -1 where an item has no cell yet
    counts: Ints  # int64[cells]: of items
    held: Ints  # int64[cells, C]
    in_flight: Ints  # int64[R, sets]: what each set of each replica holds

    @classmethod
    def of(cls, rules: Rules, cell_of_item: Ints, num_cells: int) -> "Cells":
        """Put every item where it is said to be."""
        sets = np.zeros((num_cells // rules.num_slots, len(rules.flight.caps)), dtype=np.int64)
        held = np.zeros((num_cells, rules.sizes.shape[1]), dtype=np.int64)
        found = cls(cell_of_item.copy(), np.zeros(num_cells, dtype=np.int64), held, sets)
        place_all(read_only(cell_of_item), rules, found)
        return found


# --- caps ------------------------------------------------------------------------------------------------------------


@helper
def _over(cell, rules, cells):
    """By how much a cell, and what is in flight with it, is over the caps. O(C + sets of the slot)."""
    over = np.int64(0)
    for c in range(len(rules.caps)):
        over += max(0, cells.held[cell, c] - rules.caps[c])
    sets, replica, slot = rules.flight, cell // rules.num_slots, cell % rules.num_slots
    for e in range(sets.first[slot], sets.first[slot + 1]):
        number = sets.entries[e]["number"]
        over += max(0, cells.in_flight[replica, number] - sets.caps[number])
    return over


@helper
def _add_sizes(item, cell, sign, rules, cells):
    """Add what an item holds to a cell, or take it away; of no item, nothing."""
    if item < 0:
        return
    for c in range(rules.sizes.shape[1]):
        cells.held[cell, c] += sign * rules.sizes[item, c]
    sets, replica, slot = rules.flight, cell // rules.num_slots, cell % rules.num_slots
    for e in range(sets.first[slot], sets.first[slot + 1]):
        entry = sets.entries[e]
        cells.in_flight[replica, entry["number"]] += sign * rules.sizes[item, entry["column"]] * entry["times"]


@helper
def _pass_sizes(i, j, a, b, rules, cells):
    """Cell a gives item i to b, and gets j, in sizes alone; j may be none."""
    _add_sizes(i, a, -1, rules, cells)
    _add_sizes(j, b, -1, rules, cells)
    _add_sizes(i, b, 1, rules, cells)
    _add_sizes(j, a, 1, rules, cells)


@helper
def exchange_if_kept(i, j, a, b, rules, cells):
    """Exchange item i of cell a and j of b if no cap is broken then, or what was is less so; returns 0 if not so.

    Else 1, or 2 where caps were broken before. Item j may be none; a cell's last item stays unless it may be empty.
    """
    if j < 0 and cells.counts[a] == 1 and not rules.may_be_empty:
        return 0
    kind = 1
    if rules.sizes.shape[1] > 0:
        before = _over(a, rules, cells) + _over(b, rules, cells)
        _pass_sizes(i, j, a, b, rules, cells)
        after = _over(a, rules, cells) + _over(b, rules, cells)
        if after > 0 and after >= before:
            _pass_sizes(i, j, b, a, rules, cells)
            return 0
        kind = 2 if before > 0 else 1
    _settle(i, j, a, b, cells)
    return kind


@helper
def exchange_back(i, j, a, b, rules, cells):
    """Undo an exchange."""
    _pass_sizes(i, j, b, a, rules, cells)
    _settle(i, j, b, a, cells)


@helper
def _settle(i, j, a, b, cells):
    cells.cell_of[i] = b
    if j >= 0:
        cells.cell_of[j] = a
    else:
        cells.counts[a] -= 1
        cells.counts[b] += 1


@helper
def _over_all(rules, cells):
    """By how much all cells, and what is in flight, are over the caps; 0 only if none is."""
    over = np.int64(0)
    for cell in range(len(cells.counts)):
        over += _over(cell, rules, cells)
    return over


over_all = kernel(_over_all)


@helper
def put_all(cell_of, rules, cells):
    """Put all items where they are said to be; -1 is nowhere yet."""
    for cell in range(len(cells.counts)):
        cells.counts[cell] = 0
        for c in range(cells.held.shape[1]):
            cells.held[cell, c] = 0
    for replica in range(cells.in_flight.shape[0]):
        for number in range(cells.in_flight.shape[1]):
            cells.in_flight[replica, number] = 0
    for i in range(len(cell_of)):
        cells.cell_of[i] = cell_of[i]
        if cell_of[i] >= 0:
            cells.counts[cell_of[i]] += 1
            _add_sizes(i, cell_of[i], 1, rules, cells)


place_all = kernel(put_all)


# --- items to cells, by targets --------------------------------------------------------------------------------------


@helper
def _left_of(targets, weights, rules, cells):
    """What is left of the targets, weighed: float64[cells, M]."""
    left = np.empty(targets.shape)
    for cell in range(targets.shape[0]):
        for m in range(targets.shape[1]):
            left[cell, m] = targets[cell, m] * weights[m]
    for i in range(len(cells.cell_of)):
        if cells.cell_of[i] >= 0:
            for m in range(targets.shape[1]):
                left[cells.cell_of[i], m] -= rules.work[i, m] * weights[m]
    return left


@kernel(turns=1000)
def fill(order, targets, weights, rules, cells):
    """Put items into cells, in this order, each where what is left of the targets shrinks most.

    ``targets``, float64[cells, M], are loads; ``weights``, float64[M], say what a unit of each module counts. Where no
    cell has room, an item goes to the one that then is over its caps by least. O(n cells M): every item looks at every
    cell.
    """
    num_cells, modules = targets.shape
    left, vector, empty = _left_of(targets, weights, rules, cells), np.empty(modules), np.int64(0)
    for cell in range(num_cells):
        empty += cells.counts[cell] == 0
    for at in range(len(order)):
        item = order[at]
        for m in range(modules):
            vector[m] = rules.work[item, m] * weights[m]
        # once there are no more items than empty cells, each has to go into one of these
        forced = not rules.may_be_empty and len(order) - at <= empty
        best, most, least = NONE, -np.inf, np.int64(2**62)
        for cell in range(num_cells):
            if forced and cells.counts[cell] > 0:
                continue
            # the squared distance to the targets shrinks by twice this, less what is the same for all cells
            gain = 0.0
            for m in range(modules):
                gain += left[cell, m] * vector[m]
            if least > 0 or gain > most:
                _add_sizes(item, cell, 1, rules, cells)
                over = _over(cell, rules, cells)
                _add_sizes(item, cell, -1, rules, cells)
                if over < least or (over == least and gain > most):
                    best, most, least = cell, gain, over
        empty -= cells.counts[best] == 0
        for m in range(modules):
            left[best, m] -= vector[m]
        _add_sizes(item, best, 1, rules, cells)
        cells.cell_of[item] = best
        cells.counts[best] += 1


@kernel(turns=1000)
def fit(state, work, targets, weights, rules, cells):
    """Exchange two items, or move one, where that brings cells closer to their targets, in squares, or to the caps.

    As many tries as `work`; ``state``, int64[1], draws them.
    """
    n, modules = rules.work.shape
    left, more = _left_of(targets, weights, rules, cells), np.empty(modules)
    broken = _over_all(rules, cells) > 0
    for _ in range(work):
        i, j = draw(state, n), NONE
        if draw(state, 4):
            j = draw(state, n)
            b = cells.cell_of[j]
        else:
            b = draw(state, len(cells.counts))
        a = cells.cell_of[i]
        if a == b:
            continue
        worse = 0.0
        for m in range(modules):
            more[m] = rules.work[i, m] * weights[m]
            if j >= 0:
                more[m] -= rules.work[j, m] * weights[m]
            worse += more[m] * (left[a, m] - left[b, m] + more[m])
        if worse > -1e-15 and not broken:
            continue
        kind = exchange_if_kept(i, j, a, b, rules, cells)
        if kind == 1 and worse > -1e-15:
            exchange_back(i, j, a, b, rules, cells)
        elif kind > 0:
            for m in range(modules):
                left[a, m] += more[m]
                left[b, m] -= more[m]
            broken = broken and (kind == 1 or _over_all(rules, cells) > 0)
