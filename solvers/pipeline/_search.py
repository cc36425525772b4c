"""Solutions of a problem as arrays, and the kernels of the search called on them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solvers.groups import read_only
from solvers.pipeline._all_ways import any_way
from solvers.pipeline._deal import deal
from solvers.pipeline._exchange import exchange, fill, place
from solvers.pipeline._held import held_sets
from solvers.pipeline._kernels import all_ends_kernel
from solvers.pipeline._problem import PipelineProblem
from solvers.pipeline.orders import one_f_one_b

Ints = NDArray[np.int64]
SEED = 20_260_101


@dataclass(slots=True, eq=False)
class Solution:
    """Items in cells; see :mod:`solvers.pipeline._exchange` for the arrays."""

    problem: PipelineProblem
    members: Ints
    counts: Ints
    loads: Ints
    held: Ints
    first_set: Ints
    sets: Ints
    in_flight: Ints

    @classmethod
    def empty(cls, problem: PipelineProblem) -> "Solution":
        """No item anywhere."""
        cells, n = problem.num_cells, problem.items.shape[1]
        first_set, sets, limits = held_sets(problem.order, problem.flight_caps, len(problem.sizes))
        in_flight = np.zeros((problem.num_replicas + 1, len(limits)), dtype=np.int64)
        in_flight[-1] = limits
        return cls(
            problem, np.zeros((cells, min(n, 4 * n // cells + 32)), dtype=np.int64), np.zeros(cells, dtype=np.int64),
            np.zeros((cells, len(problem.items)), dtype=np.int64),
            np.zeros((cells, len(problem.sizes)), dtype=np.int64), read_only(first_set), read_only(sets), in_flight,
        )  # fmt: skip

    @classmethod
    def of(cls, problem: PipelineProblem, cell_of_item: Ints) -> "Solution":
        """Put every item where it is said to be; -1 is nowhere yet."""
        self = cls.empty(problem)
        most = int(np.bincount(cell_of_item[cell_of_item >= 0], minlength=1).max(initial=0))
        self.members = np.zeros((problem.num_cells, max(most, self.members.shape[1])), dtype=np.int64)
        place(
            read_only(cell_of_item), problem.items, problem.sizes, self.members, self.counts, self.loads, self.held,
            self.first_set, self.sets, self.in_flight,
        )  # fmt: skip
        return self

    @classmethod
    def filled(
        cls, problem: PipelineProblem, targets: NDArray[np.float64], cell_of_item: NDArray[np.int64]
    ) -> "Solution":
        """Put all items where the targets call for them, float64[cells, M'], but for those that have a cell already.

        Where the caps leave no such way any will do, as :func:`any_way` finds it, and raises where it finds none.
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
                self = cls.of(problem, given)
                rest = np.argsort(order, kind="stable")
                rest = rest[given[rest] < 0]
                if not self.fits():
                    break
                filled = fill(
                    read_only(rest), read_only(wanted), read_only(weights), problem.items, problem.sizes, problem.caps,
                    self.members, self.counts, self.loads, self.held, self.first_set, self.sets, self.in_flight,
                )  # fmt: skip
                if filled == len(rest):
                    return self
        if len(problem.sizes):  # caps that leave hardly any room: as even as can be
            self = cls.of(problem, _even_sizes(problem))
            if self.fits() and (problem.caps[-1] or self.counts.all()):
                return self
        return cls.of(problem, any_way(problem))

    def fits(self) -> bool:
        """Whether what cells hold, and what is in flight, is under the caps."""
        held = (self.held <= self.problem.caps[:-1]).all()
        return bool(held and (self.in_flight[:-1] <= self.in_flight[-1]).all())

    def exchanged(self, goal: int, work: int) -> int:
        """Exchange items for as much work as given, or until no makespan is above `goal`; return what is left."""
        problem, stages, order = self.problem, self.problem.merged, self.problem.order
        rows, lanes = lanes_of(problem, self.loads)
        rounds = order == one_f_one_b(problem.num_slots, order.num_stages, order.forward_only)
        done = exchange(
            np.array([SEED], dtype=np.int64), work, goal, problem.items, problem.sizes, problem.caps, self.members,
            self.counts, self.loads, self.held, self.first_set, self.sets, self.in_flight, rows, lanes, order.graph,
            rounds, order.forward_only, stages.hop, stages.unit, stages.fixed,
        )  # fmt: skip
        return work - int(done)

    def cell_of_item(self) -> Ints:
        """Cell of every item: int64[n]."""
        cells = np.empty(self.problem.items.shape[1], dtype=np.int64)
        for cell, count in enumerate(self.counts.tolist()):
            cells[self.members[cell, :count]] = cell
        return cells


def _even_sizes(problem: PipelineProblem) -> Ints:
    """Cell of every item, as even in sizes as they come, longest first."""
    cells = np.zeros(problem.sizes.shape[1], dtype=np.int64)
    shares = problem.sizes * (problem.num_cells / np.maximum(1, problem.sizes.sum(axis=1)))[:, None]
    order = read_only(np.argsort(-shares.max(axis=0, initial=0.0), kind="stable"))
    deal(order, read_only(shares), problem.sizes, problem.caps, cells, problem.num_cells)
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


def makespans_of(problem: PipelineProblem, cell_of_item: Ints) -> Ints:
    """Exact makespans of all replicas: int64[R]."""
    loads = loads_of(problem, cell_of_item)
    _, lanes = lanes_of(problem, loads)
    graph, ends = problem.order.graph, np.empty(problem.order.graph.shape[1], dtype=np.int64)
    found = [all_ends_kernel(graph, np.ascontiguousarray(lane), problem.merged.hop, ends) for lane in lanes]
    return np.broadcast_to(np.array(found, dtype=np.int64), problem.num_replicas).copy()
