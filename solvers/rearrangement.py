"""Rearrangement: finished groups get ranks so that little crosses nodes.

Groups have no names, so any rank may run any group, and no load changes. The two levels are those of OrchMLLM (Zheng et
al., arXiv:2503.23830, 2025): groups to nodes, so that little crosses; then the groups of each node to its ranks, so
that little moves inside. The file is told from top to bottom: what lies where (:func:`group_volumes`), what a caller
asks and gets (:func:`rearrange`), the arguments, the two levels (:class:`_Level`), the three methods, the checker.

Groups change places only among ranks of one *class*: alike in speed, initial load and whatever else counts. So a level
is always the same problem: groups and *boxes* (on the first level a class of ranks in a node, on the second one rank)
stand in parts, and each part has as many seats in its boxes as groups.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, SupportsIndex, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._jit import kernel
from solvers._sort import sort_descending
from solvers.arguments import as_budget, as_costs, as_count, as_int64, as_labels, unknown
from solvers.check import require, require_status
from solvers.errors import ArgumentError, ArgumentTypeError, InfeasibleError, UsageError
from solvers.groups import group_loads, members_by_group, moved_amounts, read_only
from solvers.types import Record, SolveStatus, status_of

Objective = Literal["sum", "max"]

_EXACT_BITS = 50
"""Amounts whose largest, times the groups and seats of a part, is within so many bits are matched exactly: no number in
SciPy's search is over four times that, and float64 holds every integer of 53 bits."""

_TOLERANCE = 1e-6
"""How far from 0 or 1 HiGHS may leave a variable that it calls whole."""


# --- what lies where --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Volumes(Record):
    """How much of each group lies on each rank now. As many groups as ranks; what is not listed is 0.

    Attributes
    ----------
    offsets : int64[m + 1], read-only
        Group g has the entries ``offsets[g] .. offsets[g + 1] - 1``.
    ranks : int32[k], read-only
        The rank of each entry; a rank that a group lists twice holds both.
    amounts : int64[k], read-only
        The volume of each entry, at least 0; their sum fits int64.
    """

    offsets: NDArray[np.int64]
    ranks: NDArray[np.int32]
    amounts: NDArray[np.int64]

    @property
    def num_ranks(self) -> int:
        """Number of ranks, and of groups."""
        return len(self.offsets) - 1

    @property
    def total(self) -> int:
        """Sum of all volumes."""
        return int(self.amounts.sum())


def group_volumes(
    group_of_item: ArrayLike, home_rank: ArrayLike, volume: ArrayLike, num_ranks: SupportsIndex
) -> Volumes:
    """Sum what items weigh by group and home rank.

    Parameters
    ----------
    group_of_item : int[n]
        Within 0..num_ranks-1: as many groups as ranks, empty ones included.
    home_rank : int[n]
        Where each item lies now, within 0..num_ranks-1.
    volume : int64[n]
        What moving it costs, at least 0; the sum fits int64.
    num_ranks : int
        At least 1.

    Returns
    -------
    Volumes

    Raises
    ------
    TypeError, ValueError
        On arrays of the wrong kind or of different lengths, and on entries outside their range, by index.

    Notes
    -----
    O(n + num_ranks).

    Examples
    --------
    >>> volumes = group_volumes([0, 1, 0, 0], [1, 0, 1, 0], [5, 3, 2, 1], 2)
    >>> volumes.offsets.tolist(), volumes.ranks.tolist(), volumes.amounts.tolist()
    ([0, 2, 3], [1, 0, 0], [7, 1, 3])
    """
    num_ranks = as_count("num_ranks", num_ranks)
    groups = as_labels("group_of_item", group_of_item, num_ranks)
    homes = as_labels("home_rank", home_rank, num_ranks)
    amounts, _, _ = as_costs(volume, "volume")
    for name, array in (("home_rank", homes), ("volume", amounts)):
        if len(array) != len(groups):
            raise ArgumentError(name, f"have {len(groups)} entries, one an item", len(array))
    members, starts, _ = members_by_group(groups, num_ranks)
    return Volumes(*_merged(members, starts, homes, amounts, num_ranks))


def _merged(
    members: NDArray[np.int64], starts: NDArray[np.int64], keys: NDArray[np.int32], amounts: NDArray[np.int64],
    num_keys: int,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:  # fmt: skip
    """Add up the amounts of each group's members by key: offsets, keys and sums; zeros are left out."""
    offsets, found = np.zeros(len(starts), dtype=np.int64), np.empty(len(members), dtype=np.int32)
    sums = np.empty(len(members), dtype=np.int64)
    _merge(read_only(members), read_only(starts), read_only(keys), read_only(amounts), num_keys, offsets, found, sums)
    return offsets, found[: offsets[-1]].copy(), sums[: offsets[-1]].copy()


@kernel
def _merge(members, starts, keys, amounts, num_keys, offsets, found, sums):
    """A row lists its keys in the order of their first member."""
    filled = 0
    entry_of_key = np.full(num_keys, -1, dtype=np.int64)
    for g in range(len(starts) - 1):
        first = filled
        for k in range(starts[g], starts[g + 1]):
            i = members[k]
            if amounts[i] == 0:
                continue
            key = keys[i]
            if entry_of_key[key] < first:  # an entry of an earlier group, or none
                entry_of_key[key] = filled
                found[filled] = key
                sums[filled] = 0
                filled += 1
            sums[entry_of_key[key]] += amounts[i]
        offsets[g + 1] = filled


# --- what a caller asks and gets --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Rearrangement(Record):
    """Groups on ranks, and what that moves. Volumes are in the units that the caller's volumes are in.

    Attributes
    ----------
    rank_of_group : int32[m], read-only
        A bijection.
    inter_node_volume, intra_node_volume : int
        The volume that crosses between nodes, and that moves between ranks of one node.
    largest_send : int
        The most that any rank sends to other nodes.
    lower_bound : int
        Of what the objective measures, `inter_node_volume` or `largest_send`. Proven: no bijection (within the classes)
        has less. 0 with the method ``"greedy"``, which proves nothing.
    status : SolveStatus
        ``OPTIMAL`` if and only if the bound is reached; ``TIME_LIMIT`` of a program that did not end in time.
    objective, method : str
        As they were asked for.
    runtime_s : float
        Seconds from call to return; ``==`` leaves it out.
    """

    rank_of_group: NDArray[np.int32]
    inter_node_volume: int
    intra_node_volume: int
    largest_send: int
    lower_bound: int
    status: SolveStatus
    objective: Objective
    method: str
    runtime_s: float = field(default=0.0, compare=False)


def rearrange(
    volumes: Volumes | ArrayLike,
    node_of_rank: ArrayLike,
    method: str = "greedy",
    *,
    objective: Objective = "sum",
    class_of_group: ArrayLike | None = None,
    class_of_rank: ArrayLike | None = None,
    time_limit: float = 10.0,
) -> Rearrangement:
    """Put finished groups on ranks, one each, so that little crosses nodes, and then little moves inside them.

    Parameters
    ----------
    volumes : Volumes or int64[m, m]
        How much of each group lies on each rank now: :func:`group_volumes`, or a matrix ``[group, rank]`` of
        non-negative integers. As many groups as ranks, empty ones included.
    node_of_rank : int[m]
        The node of each rank; nodes may differ in size, and labels are any integers.
    method : str
        A name in :data:`REARRANGERS`.

        - ``"greedy"``: takes what a group keeps in a node from the largest on, wherever group and node are still free;
          then the same inside each node. Ties go to the lower group, then to what its row lists first; groups that are
          left take what is free in ascending order. It keeps at least half of what the best keeps, as greedy does for
          two partition matroids (Korte & Hausmann, Annals of Discrete Mathematics 2, 1978).
        - ``"sum"``: the least sum, by SciPy's ``linear_sum_assignment``; then inside each node the same. Exact where
          amounts times ranks stay within 50 bits; beyond that the lowest bits are dropped while it searches, and the
          bound says by how much that may miss the least.
        - ``"ilp"``: OrchMLLM's integer program, by SciPy's ``milp`` (HiGHS): a baseline to compare with. What it proves
          rests on HiGHS, so the bound leaves room for its tolerance, one part in a million of what it weighs.
    objective : str
        ``"sum"``: all that crosses; ``"max"``, for the method ``"ilp"`` alone: the most that any one rank sends across.
    class_of_group, class_of_rank : int[m], optional
        Both or neither: labels of which each has as many groups as ranks. A group only goes to ranks of its class.
    time_limit : float
        Seconds for ``"ilp"``, by the clock.

    Returns
    -------
    Rearrangement
        No worse in the objective than where the k-th group of each class stays on its k-th rank.

    Raises
    ------
    TypeError
        Arguments of the wrong type.
    ValueError
        An unknown method or objective, a matrix that is not square or has a negative entry, arrays of the wrong length.
    InfeasibleError
        If a class has more groups than ranks, or fewer.

    Notes
    -----
    Greedy is O(entries) after a radix sort, and the same on every machine. The others break ties as SciPy does: plan
    with them on one rank and send the result. ``"sum"`` takes O(b^2) memory and O(b^3) time at worst, b the groups of a
    class that hold something.

    Examples
    --------
    Four ranks on two nodes; group 0 lies on rank 3 for the most part, so it goes to node 1.

    >>> volumes = [[1, 0, 0, 8], [9, 0, 1, 0], [0, 0, 7, 2], [0, 5, 0, 0]]
    >>> result = rearrange(volumes, [0, 0, 1, 1])
    >>> result.rank_of_group.tolist(), result.inter_node_volume, result.intra_node_volume
    ([3, 0, 2, 1], 2, 2)
    >>> rearrange(volumes, [0, 0, 1, 1], "sum").status.value
    'optimal'
    """
    started = time.perf_counter()
    solver = _METHODS.get(method)
    if solver is None:
        raise unknown("method", method, REARRANGERS)
    if objective not in get_args(Objective):
        raise unknown("objective", objective, get_args(Objective))
    if objective == "max" and method != "ilp":
        raise UsageError("{objective} 'max' is for {method} 'ilp' alone, not for {given!r}", given=method)
    problem = _Problem.of(volumes, node_of_rank, class_of_group, class_of_rank)
    found = solver(problem, objective, as_budget(time_limit, "time_limit"))
    value, crosses, moves, sends, ranks = min(
        (problem.measured(candidate, objective) for candidate in (*found.candidates, problem.stay())),
        key=lambda measured: measured[:3],  # of those alike the first
    )
    status = status_of(value, found.bound, out_of_time=found.out_of_time)
    return Rearrangement(
        ranks, crosses, moves, sends, found.bound, status, objective, method, time.perf_counter() - started
    )


# --- arguments --------------------------------------------------------------------------------------------------------


def _as_volumes(volumes: Volumes | ArrayLike) -> Volumes:
    """Return `volumes` as they are, or made from a dense matrix ``[group, rank]``; or raise."""
    if isinstance(volumes, Volumes):
        return _checked(volumes)
    try:
        matrix = np.asarray(volumes)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentTypeError("volumes", "be Volumes or a matrix of integers: {why}", why=str(error)) from None
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
        raise ArgumentError("volumes", "be a square matrix [group, rank] of at least one", f"shape {matrix.shape}")
    flat = as_int64("volumes (row by row)", matrix.ravel())
    if (flat < 0).any():
        group, rank = divmod(int(np.argmax(flat < 0)), len(matrix))
        raise ArgumentError("volumes", "be >= 0", matrix[group, rank], f"{group}, {rank}")
    as_costs(flat, "volumes (row by row)")  # their sum fits int64
    # Row by row, so entries come by group; ranks ascend within one.
    groups, ranks = np.nonzero(flat.reshape(matrix.shape))
    offsets = np.searchsorted(groups, np.arange(len(matrix) + 1)).astype(np.int64)
    return Volumes(offsets, ranks.astype(np.int32), flat[flat != 0])


def _checked(volumes: Volumes) -> Volumes:
    """What a caller built by hand could break, so that no kernel reads out of bounds."""
    offsets, ranks, amounts = volumes.offsets, volumes.ranks, volumes.amounts
    kinds = offsets.dtype == np.int64 and ranks.dtype == np.int32 and amounts.dtype == np.int64
    flat = offsets.ndim == ranks.ndim == amounts.ndim == 1
    if not kinds or not flat or not all(a.flags.c_contiguous for a in (offsets, ranks, amounts)):
        rule = "hold contiguous arrays int64[m + 1], int32[k], int64[k]"
        raise ArgumentTypeError("volumes", rule, remedy="use group_volumes")
    m = len(offsets) - 1
    fits = m >= 1 and offsets[0] == 0 and offsets[-1] == len(ranks) == len(amounts) and (np.diff(offsets) >= 0).all()
    if not fits:
        raise ArgumentError("volumes.offsets", f"ascend from 0 to {len(ranks)} = len(ranks) = len(amounts)")
    if len(ranks) and (int(ranks.min()) < 0 or int(ranks.max()) >= m):
        where = int(np.argmax((ranks < 0) | (ranks >= m)))
        raise ArgumentError("volumes.ranks", f"be within 0..{m - 1}", ranks[where], where)
    as_costs(amounts, "volumes.amounts")
    return volumes


def _as_nodes(node_of_rank: ArrayLike, num_ranks: int) -> NDArray[np.int32]:
    """Nodes from outside, renumbered 0, 1, ... in ascending order."""
    labels = as_int64("node_of_rank", node_of_rank)
    if len(labels) != num_ranks:
        raise ArgumentError("node_of_rank", f"have {num_ranks} entries, one a rank", len(labels))
    return np.unique(labels, return_inverse=True)[1].astype(np.int32)


def _as_classes(
    class_of_group: ArrayLike | None, class_of_rank: ArrayLike | None, num_ranks: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Classes of groups and of ranks, numbered from 0, and how many there are."""
    if class_of_group is None and class_of_rank is None:
        return np.zeros(num_ranks, dtype=np.int64), np.zeros(num_ranks, dtype=np.int64), 1
    if class_of_group is None or class_of_rank is None:
        given, missing = ("rank", "group") if class_of_group is None else ("group", "rank")
        raise UsageError(f"{{class_of_{given}}} was given without {{class_of_{missing}}}", "give both or neither")
    groups, ranks = as_int64("class_of_group", class_of_group), as_int64("class_of_rank", class_of_rank)
    for name, array in (("class_of_group", groups), ("class_of_rank", ranks)):
        if len(array) != num_ranks:
            raise ArgumentError(name, f"have {num_ranks} entries", len(array))
    names, labels = np.unique(np.concatenate([groups, ranks]), return_inverse=True)
    of_groups, of_ranks = labels[:num_ranks], labels[num_ranks:]
    have = np.bincount(of_groups, minlength=len(names)), np.bincount(of_ranks, minlength=len(names))
    if (unequal := have[0] != have[1]).any():
        k = int(np.argmax(unequal))
        raise InfeasibleError(f"class {names[k]} has {have[0][k]} groups but {have[1][k]} ranks")
    return of_groups, of_ranks, len(names)


# --- the two levels ---------------------------------------------------------------------------------------------------


class _Level(NamedTuple):
    """Groups that are to go into boxes, and what each keeps near home in each. What is not listed is 0.

    Groups and boxes stand in parts: box b is of part ``part_of_box[b]``, ascending, and takes groups of that part
    alone. The seats of a part's boxes are as many as its groups.
    """

    group: NDArray[np.int32]  # int32[k]: of each entry; ascending
    box: NDArray[np.int32]  # int32[k]
    kept: NDArray[np.int64]  # int64[k]
    part_of_group: NDArray[np.integer[Any]]  # [m]
    part_of_box: NDArray[np.int64]  # int64[num_boxes]
    room: NDArray[np.int64]  # int64[num_boxes]: seats

    def filled(self, box_of_group: NDArray[np.int32]) -> NDArray[np.int32]:
        """Give groups that have no box (-1) the seats that are free, both in ascending order within their part."""
        by_part = np.argsort(self.part_of_group, kind="stable")
        left = by_part[box_of_group[by_part] < 0]
        free = self.room - np.bincount(box_of_group[box_of_group >= 0], minlength=len(self.room))
        box_of_group[left] = np.repeat(np.arange(len(free), dtype=np.int32), free)
        return box_of_group


class _Problem(NamedTuple):
    """Checked volumes on a checked topology. A *place* is the ranks of one class in one node."""

    volumes: Volumes
    node: NDArray[np.int32]  # int32[m], of each rank
    group: NDArray[np.int32]  # int32[k], of each entry
    # int32[k], of each entry: the place in the node that it lies in which its group may go to, or -1
    place: NDArray[np.int32]
    class_of_group: NDArray[np.int64]  # int64[m]
    class_of_rank: NDArray[np.int64]  # int64[m]
    place_of_rank: NDArray[np.int64]  # int64[m]: places are numbered by class, then by node
    class_of_place: NDArray[np.int64]  # int64[num_places]
    room: NDArray[np.int64]  # int64[num_places]: ranks

    @classmethod
    def of(
        cls, volumes: Volumes | ArrayLike, node_of_rank: ArrayLike, class_of_group: ArrayLike | None,
        class_of_rank: ArrayLike | None,
    ) -> _Problem:  # fmt: skip
        """Check everything. Raises TypeError, ValueError or InfeasibleError that name the argument and the rule."""
        checked = _as_volumes(volumes)
        m = checked.num_ranks
        node = _as_nodes(node_of_rank, m)
        of_group, of_rank, num_classes = _as_classes(class_of_group, class_of_rank, m)
        num_nodes = int(node.max()) + 1
        pairs, place_of_rank, room = np.unique(of_rank * num_nodes + node, return_inverse=True, return_counts=True)
        group = np.repeat(np.arange(m, dtype=np.int32), np.diff(checked.offsets))
        place = node[checked.ranks]
        if num_classes > 1:
            wanted = of_group[group] * num_nodes + place
            place = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1).astype(np.int32)
            place[pairs[place] != wanted] = -1
        return cls(checked, node, group, place, of_group, of_rank, place_of_rank, pairs // num_nodes, room)

    def of_places(self) -> _Level:
        """Return the first level: groups to places."""
        near = np.where(self.place >= 0, self.volumes.amounts, 0)
        entries, place = np.arange(len(near)), np.maximum(self.place, 0)
        offsets, places, kept = _merged(entries, self.volumes.offsets, place, near, len(self.room))
        group = np.repeat(np.arange(len(self.node), dtype=np.int32), np.diff(offsets))
        return _Level(group, places, kept, self.class_of_group, self.class_of_place, self.room)

    def ranks_in(
        self, place_of_group: NDArray[np.int32], solve: Callable[[_Level], NDArray[np.int32]]
    ) -> NDArray[np.int32]:
        """Solve the second level, groups to the ranks of their places: int32[m]."""
        rank_of_box = np.argsort(self.place_of_rank, kind="stable").astype(np.int32)
        box_of_rank = np.empty_like(rank_of_box)
        box_of_rank[rank_of_box] = np.arange(len(rank_of_box))
        here = np.flatnonzero(self.place_of_rank[self.volumes.ranks] == place_of_group[self.group])
        box, room = box_of_rank[self.volumes.ranks[here]], np.ones(len(rank_of_box), dtype=np.int64)
        places = self.place_of_rank[rank_of_box]
        ranks: NDArray[np.int32] = rank_of_box[
            solve(_Level(self.group[here], box, self.volumes.amounts[here], place_of_group, places, room))
        ]
        return ranks

    def stay(self) -> NDArray[np.int32]:
        """Return the rank of each group where none is rearranged: the k-th group of a class on its k-th rank."""
        ranks = np.empty(len(self.node), dtype=np.int32)
        ranks[np.argsort(self.class_of_group, kind="stable")] = np.argsort(self.class_of_rank, kind="stable")
        return ranks

    def measured(self, ranks: NDArray[np.int32], objective: Objective) -> tuple[int, int, int, int, NDArray[np.int32]]:
        """Return the objective's value, what crosses nodes, what moves inside, the largest send, and `ranks`."""
        source, target, node = read_only(self.volumes.ranks), read_only(ranks[self.group]), read_only(self.node)
        _, moved, crosses, sends, _ = moved_amounts(source, target, node, read_only(self.volumes.amounts))
        value = sends if objective == "max" else crosses
        return int(value), int(crosses), int(moved - crosses), int(sends), ranks


# --- the methods ------------------------------------------------------------------------------------------------------


class _Found(NamedTuple):
    """What a method found, each a rank for each group, and what it proved."""

    candidates: tuple[NDArray[np.int32], ...]
    bound: int
    out_of_time: bool = False


def _greedy(problem: _Problem, objective: Objective, time_limit: float) -> _Found:
    return _Found((problem.ranks_in(_taken(problem.of_places()), _taken),), 0)


def _taken(level: _Level) -> NDArray[np.int32]:
    """Take the largest amount first, wherever its group is without a box and its box has room."""
    # The sort is stable, so that of equal amounts the one that is listed first comes first.
    order, _ = sort_descending(level.kept, int(level.kept.max(initial=0)))
    box_of_group = np.full(len(level.part_of_group), -1, dtype=np.int32)
    _take(read_only(order), read_only(level.group), read_only(level.box), level.room.copy(), box_of_group)
    return level.filled(box_of_group)


@kernel
def _take(order, group, box, room, box_of_group):
    for e in order:
        g, b = group[e], box[e]
        if box_of_group[g] < 0 and room[b] > 0:
            box_of_group[g] = b
            room[b] -= 1


def _least_sum(problem: _Problem, objective: Objective, time_limit: float) -> _Found:
    places, most = _matched(problem.of_places())
    ranks = problem.ranks_in(places, lambda inside: _matched(inside)[0])
    return _Found((ranks,), max(0, problem.volumes.total - most))


def _matched(level: _Level) -> tuple[NDArray[np.int32], int]:
    """Keep the most, part by part; return the boxes, and a proven limit on what any can keep.

    Groups that keep nothing stay out, and boxes in which nothing is kept: so idle ranks cost nothing.
    """
    from scipy.optimize import linear_sum_assignment  # heavy, and most callers take the greedy

    box_of_group, most = np.full(len(level.part_of_group), -1, dtype=np.int32), 0
    part = level.part_of_group[level.group]
    order = np.argsort(part, kind="stable")
    starts = np.flatnonzero(np.diff(part[order], prepend=-1))
    for entries in np.split(order, starts[1:]) if len(order) else []:
        groups, row = np.unique(level.group[entries], return_inverse=True)
        boxes, column = np.unique(level.box[entries], return_inverse=True)
        seats = np.repeat(np.arange(len(boxes)), np.minimum(level.room[boxes], len(groups)))
        kept = np.zeros((len(groups), len(boxes)), dtype=np.int64)
        np.add.at(kept, (row, column), level.kept[entries])
        # SciPy counts in float64. The lowest bits of what is too large for that are dropped; a group that lost some
        # keeps less than `1 << dropped` more than was counted.
        dropped = max(0, int(kept.max()).bit_length() + (len(groups) + len(seats)).bit_length() - _EXACT_BITS)
        counted = kept >> dropped
        rows, chosen = linear_sum_assignment(counted[:, seats], maximize=True)
        columns = seats[chosen]
        box_of_group[groups[rows]] = boxes[columns]
        most += (int(counted[rows, columns].sum()) << dropped) + len(rows) * ((1 << dropped) - 1)
    return level.filled(box_of_group), most


def _program(problem: _Problem, objective: Objective, time_limit: float) -> _Found:
    """Solve the integer program: a variable says that a group goes to a place of its class."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    # 1. A variable for each group and place; for the largest send one more, which no rank's send is over.
    level, amounts, m = problem.of_places(), problem.volumes.amounts, len(problem.node)
    first = np.searchsorted(level.part_of_box, level.part_of_group)
    count = np.searchsorted(level.part_of_box, level.part_of_group, side="right") - first
    start = np.cumsum(count) - count
    group, number = np.repeat(np.arange(m), count), int(count.sum())
    place = np.arange(number) - np.repeat(start - first, count)
    size = number + (objective == "max")
    # 2. Each group has one place, each place as many groups as ranks.
    ones, rooms = np.ones(number), level.room
    rows = [
        LinearConstraint(coo_array((ones, (group, np.arange(number))), shape=(m, size)), 1, 1),
        LinearConstraint(coo_array((ones, (place, np.arange(number))), shape=(len(rooms), size)), rooms, rooms),
    ]
    # 3. The objective, in units in which float64 and HiGHS's tolerances are fine enough.
    total, aim, whole = problem.volumes.total, np.zeros(size), np.ones(size)
    unit, weight = max(1.0, total / 1e6), total
    most = np.ones(size)
    if objective == "sum":
        aim[start[level.group] + level.box - first[level.group]] = -level.kept / unit
    else:  # what a rank holds, less what is kept in its node, is at most the last variable
        held = group_loads(amounts, problem.volumes.ranks, m)
        aim[-1], whole[-1], most[-1], weight = 1, 0, np.inf, int(held.max())
        near = np.flatnonzero(problem.place >= 0)
        mine = problem.group[near]
        values = np.append(-amounts[near] / unit, -np.ones(m))
        at = np.append(problem.volumes.ranks[near], np.arange(m))
        cells = np.append(start[mine] + problem.place[near] - first[mine], np.full(m, number))
        rows.append(LinearConstraint(coo_array((values, (at, cells)), shape=(m, size)), -np.inf, -held / unit))
    options = {"time_limit": time_limit, "mip_rel_gap": 0}
    found = milp(aim, constraints=rows, integrality=whole, bounds=Bounds(0, most), options=options)
    # 4. What was found, beside greedy; and what was proven, less the tolerance.
    proven, candidates = found.get("mip_dual_bound"), _greedy(problem, objective, time_limit).candidates
    bound = 0
    if proven is not None and math.isfinite(proven):
        bound = max(0, math.ceil(proven * unit + (total if objective == "sum" else 0) - _TOLERANCE * weight))
    if found.x is not None:
        places, chosen = np.full(m, -1, dtype=np.int32), np.flatnonzero(found.x[:number] > 0.5)
        places[group[chosen]] = place[chosen]
        candidates = (problem.ranks_in(level.filled(places), lambda inside: _matched(inside)[0]), *candidates)
    return _Found(candidates, bound, found.status == 1)


_METHODS: dict[str, Callable[[_Problem, Objective, float], _Found]] = {
    "greedy": _greedy,
    "sum": _least_sum,
    "ilp": _program,
}
REARRANGERS = tuple(_METHODS)
"""Every method of :func:`rearrange`, by name."""


# --- the checker ------------------------------------------------------------------------------------------------------


def check_rearrangement(
    volumes: Volumes | ArrayLike,
    node_of_rank: ArrayLike,
    result: Rearrangement,
    *,
    class_of_group: ArrayLike | None = None,
    class_of_rank: ArrayLike | None = None,
) -> None:
    """Check a rearrangement against what it was made from; return nothing if all holds.

    Every number is recomputed in plain NumPy, with no code of the methods. The lower bound rests on SciPy: it must not
    be over what was found.

    Parameters
    ----------
    volumes, node_of_rank, class_of_group, class_of_rank
        What the result was made from, as for :func:`rearrange`.
    result : Rearrangement

    Raises
    ------
    CertificateError
        Naming the first violated rule.

    Examples
    --------
    >>> volumes = [[0, 5], [4, 1]]
    >>> check_rearrangement(volumes, [0, 1], rearrange(volumes, [0, 1]))
    """
    if isinstance(volumes, Volumes):
        m, ranks, amounts = len(volumes.offsets) - 1, volumes.ranks.astype(np.int64), volumes.amounts
        groups = np.repeat(np.arange(m), np.diff(volumes.offsets))
    else:
        matrix = np.asarray(volumes, dtype=np.int64)
        m, (groups, ranks) = len(matrix), np.nonzero(matrix)
        amounts = matrix[groups, ranks]
    node, target = np.asarray(node_of_rank), result.rank_of_group.astype(np.int64)
    require(np.array_equal(np.sort(target), np.arange(m)), f"rank_of_group must hold each of 0..{m - 1} once")
    if class_of_group is not None and class_of_rank is not None:
        of_group, of_rank = np.asarray(class_of_group), np.asarray(class_of_rank)[target]
        strange = int(np.argmax(of_group != of_rank))
        require(
            bool((of_group == of_rank).all()),
            f"group {strange} is of class {of_group[strange]}, its rank {target[strange]} of {of_rank[strange]}",
        )
    crosses = node[ranks] != node[target[groups]]
    sends = np.zeros(m, dtype=np.int64)
    np.add.at(sends, ranks[crosses], amounts[crosses])
    numbers = {
        "inter_node_volume": int(sends.sum()),
        "intra_node_volume": int(amounts[~crosses & (ranks != target[groups])].sum()),
        "largest_send": int(sends.max()),
    }
    for name, number in numbers.items():
        require(getattr(result, name) == number, f"{name} is {number}, not {getattr(result, name)}")
    name = "largest_send" if result.objective == "max" else "inter_node_volume"
    require_status(result.status, result.lower_bound, numbers[name], name)
