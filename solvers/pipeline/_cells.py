"""Items in the slots of replicas: what a search knows of them, what caps allow, and how slots are filled to begin with.

A *cell* is a slot of a replica, ``replica * K + slot``. Cells are filled in this order, until one way succeeds:

1. every item goes where it serves the targets (the ramp) best, large items first into the cells kept for them;
2. the same without cells that are kept, and then with the same target in every cell, which holds least in flight;
3. longest first to the emptiest cell, by sizes alone.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers.errors import TimeLimitError, as_words
from solvers.groups import read_only
from solvers.pipeline._problem import PipelineProblem
from solvers.pipeline.orders import OpOrder

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
NONE = np.int64(-1)
"""In place of an item, or a cell, where there is none."""
_MOST_COMPARED = 2_000
"""Sets of slots in flight that are compared in pairs, to leave out those that others contain: 4 million at most."""


IN_SET = np.dtype(
    [
        ("number", np.int64),  # of the set
        ("column", np.int64),  # the column of sizes that counts there
        ("times", np.int64),  # how often, by the stages of the device
    ]
)
"""That a slot is in a set."""


class FlightSets(NamedTuple):
    """What each device has in flight at once, wherever in its order that may be most: sets of slots. Read-only.

    Slot k is in the sets of ``entries[first[k] : first[k + 1]]``.
    """

    first: Ints  # int64[K + 1]
    entries: NDArray[np.void]  # IN_SET[e], sorted by slot
    caps: Ints  # int64[sets]: the most that each may hold


class Rules(NamedTuple):
    """The items, and what cells may hold of them. Read-only."""

    work: Ints  # int64[M, n]: of each item in each module
    sizes: Ints  # int64[C, n]: what an item holds; C is 0 where nothing is said to
    caps: Ints  # int64[C]: what a cell may hold of each
    may_be_empty: bool  # whether a cell may hold no item
    in_flight: FlightSets


class Cells(NamedTuple):
    """Which items lie where, and what that sums up to. Writable."""

    members: Ints  # int64[cells, width]: items of each cell, of which there are
    counts: Ints  # int64[cells]: so many
    loads: Ints  # int64[cells, M]: their work
    held: Ints  # int64[cells, C]: their sizes
    in_flight: Ints  # int64[R, sets]: what each set of each replica holds


@helper
def _has_room_for(cell, came, went, rules, cells):
    """Whether a cell's sizes stay under their caps when an item comes and another goes. O(C)."""
    sizes, fits = rules.sizes, True
    for c in range(sizes.shape[0]):
        size = cells.held[cell, c]
        if came >= 0:
            size += sizes[c, came]
        if went >= 0:
            size -= sizes[c, went]
        if size > rules.caps[c]:
            fits = False
    return fits


@helper
def _has_room_in_flight(cell, other, came, went, rules, cells):
    """Whether what is in flight stays under its caps; the cell `other`, or -1, gets the item that goes.

    O(sets of the slot). Only sets that grow beyond their cap are looked at twice: the other cell may be in the same
    set, which then loses as much as it gets.
    """
    sets, sizes, in_flight = rules.in_flight, rules.sizes, cells.in_flight
    num_slots = len(sets.first) - 1
    replica, slot = cell // num_slots, cell % num_slots
    second = other % num_slots if other >= 0 and other // num_slots == replica else -1
    for e in range(sets.first[slot], sets.first[slot + 1]):
        s, column = sets.entries[e]["number"], sets.entries[e]["column"]
        more = np.int64(0)
        if came >= 0:
            more += sizes[column, came]
        if went >= 0:
            more -= sizes[column, went]
        total = in_flight[replica, s] + more * sets.entries[e]["times"]
        if more <= 0 or total <= sets.caps[s]:
            continue
        if second >= 0:
            for f in range(sets.first[second], sets.first[second + 1]):
                if sets.entries[f]["number"] == s and sets.entries[f]["column"] == column:
                    total -= more * sets.entries[f]["times"]
        if total > sets.caps[s]:
            return False
    return True


@helper
def change_items(cell, came, went, rules, cells):
    """Put an item into a cell, and take another out. O(items of the cell, for the one that goes)."""
    sets = rules.in_flight
    num_slots = len(sets.first) - 1
    if went >= 0:
        k = 0
        while cells.members[cell, k] != went:
            k += 1
        cells.counts[cell] -= 1
        cells.members[cell, k] = cells.members[cell, cells.counts[cell]]
    if came >= 0:
        cells.members[cell, cells.counts[cell]] = came
        cells.counts[cell] += 1
    for sign in (-1, 1):
        item = came if sign > 0 else went
        if item >= 0:
            for m in range(rules.work.shape[0]):
                cells.loads[cell, m] += sign * rules.work[m, item]
            for c in range(rules.sizes.shape[0]):
                cells.held[cell, c] += sign * rules.sizes[c, item]
            for e in range(sets.first[cell % num_slots], sets.first[cell % num_slots + 1]):
                entry = sets.entries[e]
                more = sign * rules.sizes[entry["column"], item] * entry["times"]
                cells.in_flight[cell // num_slots, entry["number"]] += more


@helper
def may_exchange(a, b, i, j, rules, cells):
    """Whether item i of cell a and item j of cell b may change places; one of them may be none."""
    width, counts = cells.members.shape[1], cells.counts
    return (
        (j >= 0 or rules.may_be_empty or counts[a] > 1)
        and (i >= 0 or rules.may_be_empty or counts[b] > 1)
        and (i >= 0 or counts[a] < width)
        and (j >= 0 or counts[b] < width)
        and _has_room_for(a, j, i, rules, cells)
        and _has_room_for(b, i, j, rules, cells)
        and _has_room_in_flight(a, b, j, i, rules, cells)
        and _has_room_in_flight(b, a, i, j, rules, cells)
    )


@kernel(turns=1000)
def _place(cell_of_item, rules, cells):
    """Put every item into its cell; of -1, nowhere."""
    for item in range(len(cell_of_item)):
        if cell_of_item[item] >= 0:
            change_items(cell_of_item[item], item, NONE, rules, cells)


@kernel(turns=1000)
def _fill(order, targets, weights, rules, cells):
    """Put more items, in an order, each where what is left of the targets shrinks most; returns how many have a place.

    ``targets``, float64[cells, M], are loads; ``weights``, float64[M], say what a unit of each module counts.
    O(n cells M): every item looks at every cell.
    """
    num_cells, modules = targets.shape
    left, vector = np.empty((num_cells, modules)), np.empty(modules)
    empty = np.int64(0)
    for cell in range(num_cells):
        empty += cells.counts[cell] == 0
        for m in range(modules):
            left[cell, m] = (targets[cell, m] - cells.loads[cell, m]) * weights[m]
    for at in range(len(order)):
        item = order[at]
        for m in range(modules):
            vector[m] = rules.work[m, item] * weights[m]
        # once there are no more items than empty cells, each has to go into one of these
        forced = not rules.may_be_empty and len(order) - at <= empty
        best, most = -1, -np.inf
        for cell in range(num_cells):
            # the squared distance to the targets shrinks by twice this, less what is the same for all cells
            gain = 0.0
            for m in range(modules):
                gain += left[cell, m] * vector[m]
            if (
                gain > most
                and cells.counts[cell] < cells.members.shape[1]
                and not (forced and cells.counts[cell] > 0)
                and _has_room_for(cell, item, NONE, rules, cells)
                and _has_room_in_flight(cell, NONE, item, NONE, rules, cells)
            ):
                best, most = cell, gain
        if best < 0:
            return at
        empty -= cells.counts[best] == 0
        for m in range(modules):
            left[best, m] -= vector[m]
        change_items(best, item, NONE, rules, cells)
    return len(order)


@kernel(turns=200)
def deal(order, items, sizes, caps, may_be_empty, cell_of_item, cells):
    """Put items, in an order, where the largest component then is smallest; return how many have a place.

    ``items``, float64[M, n], are work as parts of a mean slot's. An empty cell is as good as any other that is as low.
    O(n cells M).
    """
    modules = items.shape[0]
    loads, held = np.zeros((cells, modules)), np.zeros((cells, sizes.shape[0]), np.int64)
    counts, empty = np.zeros(cells, np.int64), cells
    for at in range(len(order)):
        item = order[at]
        forced = not may_be_empty and len(order) - at <= empty
        best, least, sum_of_best = -1, np.inf, np.inf
        for cell in range(cells):
            fits = not (forced and counts[cell] > 0)
            for c in range(sizes.shape[0]):
                fits &= held[cell, c] + sizes[c, item] <= caps[c]
            if not fits:
                continue
            largest, total = 0.0, 0.0
            for m in range(modules):
                largest = max(largest, loads[cell, m] + items[m, item])
                total += loads[cell, m]
            if largest < least or (largest == least and total < sum_of_best):
                best, least, sum_of_best = cell, largest, total
        if best < 0:
            return at
        empty -= counts[best] == 0
        counts[best] += 1
        cell_of_item[item] = best
        for m in range(modules):
            loads[best, m] += items[m, item]
        for c in range(sizes.shape[0]):
            held[best, c] += sizes[c, item]
    return len(order)


@dataclass(slots=True, eq=False)
class Solution:
    """Items in cells."""

    problem: PipelineProblem
    rules: Rules
    cells: Cells

    @classmethod
    def from_cells(cls, problem: PipelineProblem, cell_of_item: Ints) -> "Solution":
        """Put every item where it is said to be; -1 is nowhere yet."""
        num_cells, n = problem.num_cells, problem.items.shape[1]
        sets = _flight_sets(problem.order, problem.flight_caps, len(problem.sizes))
        rules = Rules(problem.items, problem.sizes, problem.caps, problem.may_be_empty, sets)
        # rows are so wide that few exchanges find them full: four times the mean, and some more
        most = int(np.bincount(cell_of_item[cell_of_item >= 0], minlength=1).max(initial=0))
        width = max(most, min(n, 4 * n // num_cells + 32))
        columns = (width,), (), (len(problem.items),), (len(problem.sizes),)
        members, counts, loads, held = (np.zeros((num_cells, *shape), dtype=np.int64) for shape in columns)
        in_flight = np.zeros((problem.num_replicas, len(sets.caps)), dtype=np.int64)
        cells = Cells(members, counts, loads, held, in_flight)
        _place(read_only(cell_of_item), rules, cells)
        return cls(problem, rules, cells)

    @classmethod
    def filled(cls, problem: PipelineProblem, targets: Floats, cell_of_item: Ints) -> "Solution":
        """Put all items without a cell where the targets, float64[cells, M'], call for them.

        Where the caps leave no such way any will do; TimeLimitError where none was found.
        """
        tops = problem.merged.unit.max(axis=1)
        vectors = problem.items * tops[:, None]  # whole numbers, so that their sums are the same everywhere
        weights = tops * (problem.num_cells / max(1, int(vectors.sum())))
        orders = [-vectors.sum(axis=0)]
        if len(problem.sizes):  # where room is short, what takes most of it comes first
            orders.append(-problem.sizes.max(axis=0))
        nowhere = np.full_like(cell_of_item, -1)
        even = np.broadcast_to(targets.mean(axis=0), targets.shape)  # which holds least in flight
        for wanted, given in ((targets, cell_of_item), (targets, nowhere), (even, nowhere)):
            for order in orders:
                self = cls.from_cells(problem, given)
                rest = np.argsort(order, kind="stable")
                rest = rest[given[rest] < 0]
                if not self.fits():
                    break
                if _fill(read_only(rest), read_only(wanted), read_only(weights), self.rules, self.cells) == len(rest):
                    return self
        if len(problem.sizes):  # caps that leave hardly any room: as even as can be
            self = cls.from_cells(problem, _even_sizes(problem))
            if self.fits() and (problem.may_be_empty or self.cells.counts.all()):
                return self
        raise _none_found(problem)

    def fits(self) -> bool:
        """Whether what cells hold, and what is in flight, is under the caps."""
        held = (self.cells.held <= self.rules.caps).all()
        return bool(held and (self.cells.in_flight <= self.rules.in_flight.caps).all())

    def cell_of_item(self) -> Ints:
        """Cell of every item: int64[n]."""
        cells = np.empty(self.problem.items.shape[1], dtype=np.int64)
        for cell, count in enumerate(self.cells.counts.tolist()):
            cells[self.cells.members[cell, :count]] = cell
        return cells


def _none_found(problem: PipelineProblem) -> TimeLimitError:
    """Return what to raise where no cells were found for all items: there may be some all the same."""
    n = len(problem.work)
    names = ["cap"] if (problem.caps < problem.sizes.sum(axis=1)).any() else []
    names += [] if problem.flight_caps is None else ["in_flight_cap"]
    where = f"for all {n} {{items}} in {problem.num_slots} slots on each of {problem.num_replicas} replicas"
    remedies = [f"give a larger {as_words(names, ' or ')}"]
    remedies += ["more {num_slots}"] if problem.may_be_empty or n > problem.num_cells else []
    return TimeLimitError(f"found no place under {as_words(names, ' and ')}, {where}", remedies)


def _even_sizes(problem: PipelineProblem) -> Ints:
    """Cell of every item, as even in sizes as they come, longest first."""
    cells = np.zeros(problem.sizes.shape[1], dtype=np.int64)
    shares = problem.sizes * (problem.num_cells / np.maximum(1, problem.sizes.sum(axis=1)))[:, None]
    order = read_only(np.argsort(-shares.max(axis=0, initial=0.0), kind="stable"))
    deal(order, read_only(shares), problem.sizes, problem.caps, problem.may_be_empty, cells, problem.num_cells)
    return cells


def lanes_of(problem: PipelineProblem, loads: Ints) -> tuple[Ints, Ints]:
    """Return durations by cell, int64[cells, 2 S], and by lane, int64[lanes, K, 2 S]; the same memory unless tied."""
    rows = problem.merged.durations(loads)
    lanes = rows.reshape(problem.num_replicas, problem.num_slots, -1)
    return rows, lanes.max(axis=0, keepdims=True) if problem.tied else lanes


def loads_of(problem: PipelineProblem, cell_of_item: Ints) -> Ints:
    """Work of every cell by module: int64[cells, M']."""
    loads = np.zeros((problem.num_cells, len(problem.items)), dtype=np.int64)
    for m, row in enumerate(problem.items):
        np.add.at(loads[:, m], cell_of_item, row)
    return loads


# --- what is in flight at once ---------------------------------------------------------------------------------------

Ops = tuple[tuple[tuple[int, int, bool], ...], ...]


def _flight_sets(order: OpOrder, caps: Ints | None, num_columns: int) -> FlightSets:
    """Return what is in flight at once wherever that may be most; with no caps, nothing."""
    if caps is None:
        none = np.zeros(order.num_slots + 1, np.int64), np.zeros(0, IN_SET), np.zeros(0, np.int64)
        return FlightSets(*map(read_only, none))
    lists = tuple(tuple(order.ops_of(device)) for device in range(order.num_devices))
    return _entries(lists, order.num_slots, order.forward_only, tuple(caps.tolist()), num_columns)


@lru_cache(maxsize=8)
def _entries(lists: Ops, num_slots: int, lead: int, caps: tuple[int, ...], num_columns: int) -> FlightSets:
    counts, limits = _moments(lists, num_slots, lead, caps, num_columns)
    sets, slots, columns = np.nonzero(counts)
    by_slot = np.lexsort((columns, sets, slots))
    first = np.searchsorted(slots[by_slot], np.arange(num_slots + 1))
    entries = np.empty(len(slots), IN_SET)
    entries["number"], entries["column"] = sets[by_slot], columns[by_slot]
    entries["times"] = counts[sets, slots, columns][by_slot]
    return FlightSets(read_only(first.astype(np.int64)), read_only(entries), read_only(limits.astype(np.int64)))


def _moments(lists: Ops, num_slots: int, lead: int, caps: tuple[int, ...], num_columns: int) -> tuple[Ints, Ints]:
    """Return how often each set holds each slot and column, int64[sets, K, C], and the cap of each set.

    What is held is most right before a backward, or at the end.
    """
    found: list[Ints] = []
    limits: list[int] = []
    for listed, cap in zip(lists, caps, strict=True):
        held = np.zeros((num_slots, num_columns), dtype=np.int64)
        ops = [op for op in listed if op[1] >= lead]
        for at, (slot, stage, backward) in enumerate(ops):
            held[slot, stage if num_columns > 1 else 0] += -1 if backward else 1
            if not backward and (at + 1 == len(ops) or ops[at + 1][2]):
                found.append(held.copy())
                limits.append(cap)
    if not found:
        return np.zeros((0, num_slots, num_columns), dtype=np.int64), np.zeros(0, dtype=np.int64)
    flat = np.array([[*each.ravel(), limit] for each, limit in zip(found, limits, strict=True)])
    flat = np.unique(flat, axis=0)
    if len(flat) <= _MOST_COMPARED:  # a set that is part of another with no larger a cap is under its own
        part = (flat[:, None, :-1] <= flat[None, :, :-1]).all(axis=2) & (flat[:, None, -1] >= flat[None, :, -1])
        np.fill_diagonal(part, False)
        flat = flat[~part.any(axis=1)]
    return flat[:, :-1].reshape(-1, num_slots, num_columns), flat[:, -1]
