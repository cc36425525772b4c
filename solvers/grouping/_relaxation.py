"""A linear program that every solution satisfies, and what its multipliers prove in integers.

Slots are told apart by height, in *classes*: those from one edge to the next. In each class and degree there are some
slots, groups and items; what must hold of them holds of their sums. No group of a class runs longer than the class is
tall, so of the items of more than 1 / (q + 1) of that, or of a group's room, it has at most q.

No number of the program is believed. Weak duality makes a bound of *any* non-negative multipliers (:func:`proven`): an
item is worth at most what its cheapest class and degree charge it for time, room and places; so the groups of a slot
are worth at most its ranks times what one rank of them can sell; and what a slot costs beyond that is left for each.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from solvers.grouping._problem import SequenceProblem
from solvers.grouping.types import SequenceBoundCertificate

Ints = NDArray[np.int64]
Whole = Literal["nothing", "slots", "groups"]
# Items of more than 1/2, 1/3 and 1/4. Each is two rows for each class and degree; SequenceBoundCertificate has as many.
_CUTS = 3
# Bits of a price. A float has 53, and the last of them are the simplex method's own error; fewer where times are so
# large that a price times a time would leave int64.
_MOST_BITS = 40
# HiGHS's own `mip_feasibility_tolerance`: by so much its rows may be broken, and its bound be too high.
_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Types:
    """Items that are alike, once: times and sizes, int64[D, u], how many of each; and what a group offers."""

    times: Ints  # int64[D, u]
    sizes: Ints  # int64[D, u]
    counts: Ints  # int64[u]
    degrees: Ints  # int64[D]
    rooms: Ints  # int64[D]
    extra: Ints  # int64[D]
    num_ranks: int
    overhead: int
    least_slots: int  # so many slots there are at least
    exact: bool  # there are no more

    @classmethod
    def of(cls, problem: SequenceProblem) -> "Types":
        """Merge the items of a problem."""
        both, counts = np.unique(np.vstack([problem.times, problem.sizes]), axis=1, return_counts=True)
        half = len(problem.times)
        degrees, rooms, extra = (problem.by_degree[name] for name in ("ranks", "room", "overhead"))
        return cls(
            both[:half], both[half:], counts.astype(np.int64), degrees, rooms, extra, problem.num_ranks,
            problem.overhead, problem.fewest_slots, problem.rules.most is not None,
        )  # fmt: skip

    def parts(self, top: int, d: int) -> tuple[NDArray[np.bool_], list[NDArray[np.bool_]], list[NDArray[np.bool_]]]:
        """Which types a group of a degree may hold in a class up to `top`, which are long there, and which large."""
        left = top - int(self.extra[d])
        may = (self.times[d] <= left) & (self.sizes[d] <= self.rooms[d])
        long = [may & (self.times[d] * (q + 1) > left) for q in range(1, _CUTS + 1)]
        large = [may & (self.sizes[d] * (q + 1) > self.rooms[d]) for q in range(1, _CUTS + 1)]
        return may, long, large


class _Rows:
    """Rows of ``A x <= b`` as they are written down, entry by entry."""

    def __init__(self) -> None:
        self.bounds: list[float] = []
        self._rows: list[NDArray[Any]] = []
        self._columns: list[NDArray[Any]] = []
        self._values: list[NDArray[Any]] = []

    def add(self, bound: float, *terms: tuple[Any, Any]) -> int:
        """Add a row of (columns, values) and return its number."""
        for columns, values in terms:
            wide = np.atleast_1d(np.asarray(columns))
            self._columns.append(wide)
            self._values.append(np.broadcast_to(np.asarray(values, dtype=float), wide.shape))
            self._rows.append(np.full(len(wide), len(self.bounds)))
        self.bounds.append(bound)
        return len(self.bounds) - 1

    def matrix(self, num_columns: int) -> Any:
        """Return A."""
        from scipy.sparse import csr_array

        places = np.concatenate(self._rows), np.concatenate(self._columns)
        return csr_array((np.concatenate(self._values), places), shape=(len(self.bounds), num_columns))


@dataclass(slots=True, eq=False)
class _Program:
    """The program; times in `unit`, sizes as parts of a group's room. Columns: slots, heights, groups, times, items."""

    rows: _Rows
    cost: NDArray[np.float64]
    item_columns: NDArray[np.int64]
    item_types: NDArray[np.int64]
    prices: dict[tuple[int, int], tuple[int, int, list[int], list[int]]]
    unit: float


def _write(types: Types, edges: Ints) -> _Program:
    num_classes, num_degrees = len(edges) - 1, len(types.degrees)
    # Scaled so that numbers of the program are about 1. The last class may be far taller than all others, as it
    # reaches up to the makespan that is known.
    unit = float(max(1, edges[-2] if num_classes > 1 else edges[-1]))
    cell = np.arange(num_classes * num_degrees).reshape(num_classes, num_degrees)
    slots, heights = np.arange(num_classes), num_classes + np.arange(num_classes)
    groups = 2 * num_classes + cell
    spent = groups + cell.size
    rows, columns, kinds = _Rows(), [], []
    prices: dict[tuple[int, int], tuple[int, int, list[int], list[int]]] = {}
    next_column = 2 * num_classes + 2 * cell.size
    for j in range(num_classes):
        low, top = edges[j] / unit, edges[j + 1] / unit
        # Sums over the slots of a class: of heights, of the ranks that groups take, and of rank-time.
        rows.add(0, (heights[j], 1), (slots[j], -top))
        rows.add(0, (heights[j], -1), (slots[j], low))
        rows.add(0, (groups[j], types.degrees), (slots[j], -types.num_ranks))
        rows.add(0, (spent[j], types.degrees), (heights[j], -types.num_ranks))
        for d in range(num_degrees):
            may, long, large = types.parts(int(edges[j + 1]), d)
            inside = np.flatnonzero(may)
            here = next_column + np.arange(len(inside))
            number = np.full(len(may), -1)
            number[inside] = here
            next_column += len(inside)
            columns.append(here)
            kinds.append(inside)
            rows.add(0, (spent[j, d], 1), (groups[j, d], -top))
            rows.add(0, (spent[j, d], -1), (groups[j, d], low))
            own = types.extra[d] / unit
            time = rows.add(0, (here, types.times[d, inside] / unit), (groups[j, d], own), (spent[j, d], -1))
            room = rows.add(0, (here, types.sizes[d, inside] / float(types.rooms[d])), (groups[j, d], -1))
            # A group holds at most q items of more than 1/(q + 1) of it. Fractions of items would pass without these
            # rows.
            long_rows, large_rows = (
                [rows.add(0, (number[marked], 1), (groups[j, d], -q)) for q, marked in enumerate(kind, 1)]
                for kind in (long, large)
            )
            prices[j, d] = time, room, long_rows, large_rows
    # An equation only where the number of slots was given: else more of them are allowed, and cost their overhead.
    rows.add(-types.least_slots, (slots, -1))
    if types.exact:
        rows.add(types.least_slots, (slots, 1))
    cost = np.zeros(next_column)
    cost[slots], cost[heights] = types.overhead / unit, 1
    return _Program(rows, cost, np.concatenate(columns), np.concatenate(kinds), prices, unit)


def solve_relaxation(
    types: Types, edges: Ints, whole: Whole, seconds: float
) -> tuple[float, SequenceBoundCertificate | None, NDArray[np.bool_]]:
    """Solve the program by HiGHS, with slots, or slots and groups, in whole numbers, or with neither.

    Returns its bound as a float (lowered by the tolerance of a mixed-integer program, 0 if it found none), the
    multipliers of the linear one, and which classes its solution uses.
    """
    from scipy import optimize
    from scipy.sparse import csr_array

    program = _write(types, edges)
    size, num_classes = len(program.cost), len(edges) - 1
    matrix, count = program.rows.matrix(size), np.ones(len(program.item_columns))
    each = csr_array((count, (program.item_types, program.item_columns)), shape=(len(types.counts), size))
    if whole == "nothing":
        found = optimize.linprog(
            program.cost,
            matrix,
            program.rows.bounds,
            each,
            types.counts,
            method="highs",
            options={"time_limit": seconds},
        )
        if found.status != 0:
            # No bound is better than one of a program that was not solved to its end.
            return 0.0, None, np.zeros(num_classes, dtype=bool)
        # Only multipliers of inequalities are charged. Those of "each item somewhere" follow: the least charge of an
        # item.
        prices = -found.ineqlin.marginals
        return found.fun * program.unit, as_certificate(types, edges, program, prices), found.x[:num_classes] > 1e-3
    integral = np.zeros(size)
    integral[:num_classes] = 1
    if whole == "groups":
        integral[2 * num_classes : 2 * num_classes + num_classes * len(types.degrees)] = 1
    limits = [
        optimize.LinearConstraint(matrix, -np.inf, program.rows.bounds),
        optimize.LinearConstraint(each, types.counts, types.counts),
    ]
    found = optimize.milp(
        program.cost, constraints=limits, integrality=integral, options={"time_limit": seconds, "mip_rel_gap": 1e-3}
    )
    bound = 0.0 if found.mip_dual_bound is None else max(0.0, found.mip_dual_bound * program.unit * (1 - _TOLERANCE))
    used = np.ones(num_classes, dtype=bool) if found.x is None else found.x[:num_classes] > 0.5
    return bound, None, used


def as_certificate(
    types: Types, edges: Ints, program: _Program, prices: NDArray[np.float64]
) -> SequenceBoundCertificate:
    """Round multipliers down to integers."""
    bits = min(_MOST_BITS, 60 - int(edges[-1] + types.overhead).bit_length())
    one = 2.0**bits * (1 - _TOLERANCE)  # so that errors of the program's own arithmetic leave no slot in debt
    shape = len(edges) - 1, len(types.degrees)
    time, room = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    long, large = np.zeros((_CUTS, *shape), dtype=np.int64), np.zeros((_CUTS, *shape), dtype=np.int64)
    for (j, d), (time_row, room_row, long_rows, large_rows) in program.prices.items():
        time[j, d] = int(max(0.0, prices[time_row]) * one)
        room[j, d] = int(max(0.0, prices[room_row]) * one * program.unit / float(types.rooms[d]))
        long[:, j, d] = [int(max(0.0, prices[row]) * one * program.unit) for row in long_rows]
        large[:, j, d] = [int(max(0.0, prices[row]) * one * program.unit) for row in large_rows]
    if types.overhead == 0:  # a slot of no height sells nothing
        room[0], long[:, 0], large[:, 0] = 0, 0, 0
    return SequenceBoundCertificate(edges, time, room, long, large, bits)


def proven(types: Types, certificate: SequenceBoundCertificate) -> int:
    """Return what the multipliers prove, in exact integers, of all solutions whose slots end by the last edge."""
    c, one = certificate, 1 << certificate.bits
    # Python's integers (`object`): sums of prices times times may be larger than int64.
    worth = np.full(len(types.counts), -1, dtype=object)  # of an item at most
    left = one * types.overhead  # of what a slot costs, for each slot
    for j in range(len(c.edges) - 1):
        ends = [int(c.edges[j]), int(c.edges[j + 1])]
        left = min(left, one * (ends[0] + types.overhead))
        for d, degree in enumerate(types.degrees.tolist()):
            may, long, large = types.parts(ends[1], d)
            time, room = int(c.time_price[j, d]), int(c.room_price[j, d])
            charged = types.times[d].astype(object) * time + types.sizes[d].astype(object) * room
            sold = room * int(types.rooms[d])
            for q in range(_CUTS):
                charged = charged + np.where(long[q], int(c.long_price[q, j, d]), 0)
                charged = charged + np.where(large[q], int(c.large_price[q, j, d]), 0)
                sold += (q + 1) * (int(c.long_price[q, j, d]) + int(c.large_price[q, j, d]))
            worth = np.where(may & ((worth < 0) | (charged < worth)), charged, worth)
            if not may.any():
                continue  # no such group holds anything
            # What a slot sells is linear in its height, and so is what it costs: one of both ends of a class is the
            # worst.
            for height in ends:
                # Rounded up, against the bound: a rank sells a fraction of what its group does.
                all_sold = types.num_ranks * (sold + time * max(0, height - int(types.extra[d])))
                left = min(left, one * (height + types.overhead) - -(-all_sold // degree))
    # A slot that sells more than it costs would be opened without end, unless the number of slots is given.
    if (worth < 0).any() or (left < 0 and not types.exact):
        return 0
    return -(-(int((worth * types.counts).sum()) + left * types.least_slots) // one)
