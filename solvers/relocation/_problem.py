"""A relocation problem, checked once: items, nodes, where the volume of each item lies, and what a rank may hold.

First what kernels see, then the problem, then how each argument is checked, in the order of :meth:`prepare`.
"""

import functools
import heapq
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._jit import kernel
from solvers._sort import sort_descending
from solvers.arguments import as_costs, as_int64, as_integer, as_labels, as_share
from solvers.errors import (
    ArgumentError,
    ArgumentTypeError,
    InfeasibilityCertificate,
    InfeasibleError,
    Named,
    UsageError,
)
from solvers.groups import group_loads, moved_amounts, read_only

NONE = -1
"""No item, no rank, no place: what a search in a kernel returns that finds nothing."""


class Items(NamedTuple):
    """Items as kernels see them. Read-only."""

    costs: NDArray[np.int64]  # int64[n]
    sizes: NDArray[np.int64]  # int64[n]: a second quantity; zeros where there is none
    home: NDArray[np.int32]  # int32[n]: the rank where most of each lies
    leave_rank: NDArray[np.int64]  # int64[n]: what moves more, at least, if it leaves that rank
    leave_node: NDArray[np.int64]  # int64[n]: what crosses more, at least, if it leaves that rank's node
    order: NDArray[np.int32]  # int32[n]: items by descending cost


class Nodes(NamedTuple):
    """Which ranks are on which nodes. Nobody writes to it, but its arrays are writable, as those that kernels make."""

    of_rank: NDArray[np.int32]  # int32[m]: nodes are numbered from 0 without holes
    ranks: NDArray[np.int64]  # int64[m]: node by node
    start: NDArray[np.int64]  # int64[k + 1]: node j has ``ranks[start[j] : start[j + 1]]``


class Limits(NamedTuple):
    """What a rank may hold. Nobody writes to it; `room` is writable as the arrays of :class:`Nodes` are."""

    cap: int  # of costs
    room: NDArray[np.int64]  # int64[m]: of sizes
    fewest: int  # items
    most: int


@kernel
def _measured(costs, sizes, rank_of_item, room, fewest, most):
    m = len(room)
    loads, held, counts = np.zeros(m, np.int64), np.zeros(m, np.int64), np.zeros(m, np.int64)
    for i in range(len(costs)):
        loads[rank_of_item[i]] += costs[i]
        held[rank_of_item[i]] += sizes[i]
        counts[rank_of_item[i]] += 1
    largest, fits = loads[0], True
    for r in range(m):
        largest = max(largest, loads[r])
        fits &= held[r] <= room[r] and fewest <= counts[r] <= most
    return largest, fits


@dataclass(frozen=True, slots=True)
class Affinity:
    """Homes, and what leaving them adds."""

    # int32[n]: the rank that holds most of the item among those of the node that holds most of it
    home: NDArray[np.int32]
    # int64[n]: volume that crosses more, at least, if the item leaves the node of its home
    leave_node: NDArray[np.int64]
    strongest: NDArray[np.int32]  # int32[n]: the rank that holds most of the item, in whatever node
    leave_rank: NDArray[np.int64]  # int64[n]: volume that moves more, at least, if the item leaves `strongest`
    # What crosses, and what moves, even if every item stays where most of it lies
    base_inter: int
    base_moved: int
    # (int64[n + 1], int64[k], int64[k]): offsets, ranks (ascending within an item, each once) and volumes; None where
    # all of an item is at its home
    rows: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]] | None

    def is_proportional_to(self, costs: NDArray[np.int64]) -> bool:
        """Whether what leaving a node adds is one whole number times the cost, for every item."""
        if self.leave_node is costs:
            return True
        largest = int(costs.max(initial=0))
        factor = int(self.leave_node.max(initial=0)) // max(largest, 1)
        return np.array_equal(self.leave_node, costs * factor)

    def volumes_of(self, rank_of_item: NDArray[np.int32], node_of_rank: NDArray[np.int32]) -> tuple[int, int]:
        """Volume that crosses nodes and volume that moves inside them, exactly."""
        if self.rows is None:
            homes, ranks, amounts = read_only(self.home), read_only(rank_of_item), read_only(self.leave_node)
            _, moved, crossing, _, _ = moved_amounts(homes, ranks, read_only(node_of_rank), amounts)
            return int(crossing), int(moved - crossing)
        offsets, ranks, volumes = self.rows
        target = np.repeat(rank_of_item, np.diff(offsets))
        stays = ranks == target
        inside = node_of_rank[ranks] == node_of_rank[target]
        return int(volumes[~inside].sum()), int(volumes[inside & ~stays].sum())


@dataclass(frozen=True, slots=True)
class RelocationProblem:
    """Checked and sorted."""

    costs: NDArray[np.int64]  # int64[n]
    order: NDArray[np.int32]  # int32[n]: items in stable descending order of cost
    # Of the costs
    largest: int
    total: int
    nodes: Nodes
    affinity: Affinity
    volumes_are_costs: bool  # what leaving a node adds is one whole number times the cost, for every item
    # A second quantity and what each rank may hold of it; ``sizes`` is None where there is none
    sizes: NDArray[np.int64] | None
    room: NDArray[np.int64]
    total_size: int
    equal_counts: bool
    # The fewest and the most items of a rank where that is asked for: not by `prepare`, and not with equal counts
    counts: tuple[int, int] | None = None

    @property
    def num_ranks(self) -> int:
        return len(self.nodes.of_rank)

    @property
    def num_nodes(self) -> int:
        return len(self.nodes.start) - 1

    @classmethod
    def prepare(
        cls,
        costs: ArrayLike,
        home_rank: ArrayLike | None,
        node_of_rank: ArrayLike,
        volumes: ArrayLike | None,
        affinity: object,
        equal_counts: bool,
        sizes: ArrayLike | None,
        caps: ArrayLike | None,
    ) -> "RelocationProblem":
        """Check and sort. Raises TypeError, ValueError or InfeasibleError that name argument, place and rule."""
        array, largest, total = as_costs(costs)
        nodes = _nodes_and_ranks(node_of_rank)
        num_ranks = len(nodes.of_rank)
        if (home_rank is None) == (affinity is None):
            raise UsageError("give either {home_rank} or {affinity} ({home_rank}=None), not both and not neither")
        if affinity is None:
            home = homes_from(home_rank, len(array), num_ranks)  # type: ignore[arg-type]
            moved = array if volumes is None or volumes is costs else as_costs(volumes, "volumes")[0]
            if len(moved) != len(array):
                raise ArgumentError("volumes", f"have {len(array)} entries, as {{costs}} has", len(moved))
            where = Affinity(home, moved, home, moved, 0, 0, None)
        else:
            if volumes is not None:
                raise ArgumentError("volumes", "be None where {affinity} is given: it holds the volumes")
            where = _affinity_of_rows(affinity, array, nodes.of_rank)
        given_sizes, room, total_size = _as_room(sizes, caps, len(array), num_ranks)
        given_sizes = None if given_sizes is None else read_only(given_sizes)
        order, _ = sort_descending(array, largest)
        return cls(array, order, largest, total, nodes, where, where.is_proportional_to(array), given_sizes, room,
                   total_size, bool(equal_counts))  # fmt: skip

    @property
    def all_sizes(self) -> NDArray[np.int64]:
        """Sizes, or zeros where there are none: int64[n], read-only."""
        return _zeros(len(self.costs)) if self.sizes is None else self.sizes

    @property
    def items(self) -> Items:
        """Items as kernels see them."""
        of = self.affinity
        return Items(
            self.costs, self.all_sizes, read_only(of.home), read_only(of.leave_rank), read_only(of.leave_node),
            read_only(self.order),
        )  # fmt: skip

    def limits(self, cap: int) -> Limits:
        """Return what ranks may hold under a cap, which binds nothing beyond the sum of all costs."""
        return Limits(min(cap, self.total), self.room, *self.fewest_and_most)

    def measured(self, rank_of_item: NDArray[np.int32]) -> tuple[int, bool]:
        """Return the largest load, and whether sizes and counts keep their rules."""
        fewest, most = self.fewest_and_most
        largest, fits = _measured(self.costs, self.all_sizes, read_only(rank_of_item), self.room, fewest, most)
        return int(largest), bool(fits)

    def is_feasible(self, rank_of_item: NDArray[np.int32], cap: int) -> bool:
        """Whether every rule holds."""
        largest, fits = self.measured(rank_of_item)
        return fits and largest <= cap

    @property
    def fewest_and_most(self) -> tuple[int, int]:
        """How many items a rank may hold."""
        if not self.equal_counts:
            return self.counts or (0, len(self.costs))
        few, longer = divmod(len(self.costs), self.num_ranks)
        return few, few + (longer > 0)


def _nodes_and_ranks(node_of_rank: ArrayLike) -> Nodes:
    if isinstance(node_of_rank, np.ndarray) and node_of_rank.dtype == np.int32 and node_of_rank.ndim == 1:
        return _known_nodes(node_of_rank.tobytes())
    return _as_nodes(node_of_rank)


@functools.lru_cache(maxsize=8)  # a run has one, and asks for it at every step
def _known_nodes(node_of_rank: bytes) -> Nodes:
    # Not made read-only, though nobody may write to them: kernels would be compiled once more for that.
    return _as_nodes(np.frombuffer(node_of_rank, dtype=np.int32))


def _as_nodes(node_of_rank: ArrayLike) -> Nodes:
    """Nodes from outside, renumbered 0, 1, ... in ascending order."""
    nodes = as_int64("node_of_rank", node_of_rank)
    if len(nodes) == 0:
        raise ArgumentError("node_of_rank", "name at least one rank", "none")
    if nodes.min() < 0:
        rank = int(np.argmax(nodes < 0))
        raise ArgumentError("node_of_rank", "be >= 0", nodes[rank], rank)
    steps = np.diff(nodes)
    if nodes[0] or ((steps != 0) & (steps != 1)).any():  # not numbered so yet
        nodes = np.unique(nodes, return_inverse=True)[1]
    of_rank = nodes.astype(np.int32)
    start = np.concatenate(([0], np.cumsum(np.bincount(of_rank)))).astype(np.int64)
    return Nodes(of_rank, np.argsort(of_rank, kind="stable").astype(np.int64), start)


def homes_from(home_rank: ArrayLike, num_items: int, num_ranks: int, name: str = "home_rank") -> NDArray[np.int32]:
    """Homes from outside, or other ranks called `name`, checked."""
    home = as_labels(name, home_rank, num_ranks)
    if len(home) != num_items:
        raise ArgumentError(name, f"have {num_items} entries, as {{costs}} has", len(home))
    return home


def _affinity_of_rows(affinity: Any, costs: NDArray[np.int64], node_of_rank: NDArray[np.int32]) -> Affinity:
    """Items spread over ranks: (indptr int64[n + 1], ranks int64[k], volumes int64[k]). O(n + k log k)."""
    num_items, num_ranks = len(costs), len(node_of_rank)
    offsets, ranks, volumes = _canonical(affinity, num_items, num_ranks)
    rows = np.repeat(np.arange(num_items), np.diff(offsets))
    # 1. First the node that holds most, as what crosses nodes counts first; then the rank of it that does.
    node_keys, node_volumes = _add_up(rows * num_ranks + node_of_rank[ranks], volumes)
    node, most, next_most = _two_largest(node_keys // num_ranks, node_keys % num_ranks, node_volumes, num_items)
    in_best_node = node_of_rank[ranks] == node[rows]
    home, _, _ = _two_largest(rows[in_best_node], ranks[in_best_node], volumes[in_best_node], num_items)
    # 2. Whatever it moves to holds the second most at best: what leaving adds is at least the difference.
    strongest, strong, next_strong = _two_largest(rows, ranks, volumes, num_items)
    # 3. What no rank holds anything of gets a home as well, so that all that follows knows homes alone.
    missing = np.flatnonzero(home < 0)
    if len(missing) > 0:
        home[missing] = strongest[missing] = _homes_by_room(costs, home, missing, num_ranks)
    total = int(volumes.sum())
    return Affinity(
        home.astype(np.int32),
        most - next_most,
        strongest.astype(np.int32),
        strong - next_strong,
        total - int(most.sum()),
        total - int(strong.sum()),
        (offsets, ranks, volumes),
    )


def _homes_by_room(
    costs: NDArray[np.int64], home: NDArray[np.int64], missing: NDArray[np.int64], num_ranks: int
) -> list[int]:
    """Items of which nothing lies anywhere may start anywhere: longest first, each on the least loaded rank."""
    settled = home >= 0
    loads = group_loads(costs[settled], home[settled].astype(np.int32), num_ranks)
    heap = [(load, rank) for rank, load in enumerate(loads.tolist())]
    heapq.heapify(heap)
    rank_of = {}
    for item in missing[np.argsort(-costs[missing], kind="stable")].tolist():
        load, rank_of[item] = heap[0]
        heapq.heapreplace(heap, (load + int(costs[item]), rank_of[item]))
    return [rank_of[item] for item in missing.tolist()]


def _canonical(
    affinity: Any, num_items: int, num_ranks: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Check rows from outside; sort each by rank; add up ranks named twice; drop volumes of zero."""
    try:
        first, second, third = affinity
    except (TypeError, ValueError):
        raise ArgumentTypeError("affinity", "be three arrays (indptr, ranks, volumes)") from None
    offsets, ranks = as_int64("affinity indptr", first), as_labels("affinity ranks", second, num_ranks)
    volumes, _, _ = as_costs(third, "affinity volumes")
    if len(offsets) != num_items + 1:
        rule = f"have {num_items + 1} entries, one more than {{items}}"
        raise ArgumentError("affinity indptr", rule, len(offsets))
    if offsets[0] != 0 or offsets[-1] != len(ranks) or (np.diff(offsets) < 0).any():
        raise ArgumentError("affinity indptr", f"ascend from 0 to {len(ranks)}, the number of ranks listed")
    if len(ranks) != len(volumes):
        rule = f"have {len(ranks)} entries, as {{affinity}} ranks has"
        raise ArgumentError("affinity volumes", rule, len(volumes))
    keys = np.repeat(np.arange(num_items), np.diff(offsets)) * num_ranks + ranks
    keys, volumes = _add_up(keys[volumes > 0], volumes[volumes > 0])
    counts = np.bincount(keys // num_ranks, minlength=num_items)
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64), keys % num_ranks, volumes


def _add_up(keys: NDArray[np.int64], volumes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sum the volumes of equal keys; keys come out ascending."""
    order = np.argsort(keys, kind="stable")
    keys, volumes = keys[order], volumes[order]
    if len(keys) == 0:
        return keys, volumes
    first = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    return keys[first], np.add.reduceat(volumes, first)


def _two_largest(
    rows: NDArray[np.int64], places: NDArray[np.int64], volumes: NDArray[np.int64], num_items: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Per item: the place of the largest volume (ties to the lowest place; -1 for none), it, and the second.

    Places ascend within an item; volumes are positive. O(n + k).
    """
    best = np.full(num_items, -1, dtype=np.int64)
    largest, second = np.zeros(num_items, dtype=np.int64), np.zeros(num_items, dtype=np.int64)
    _keep_two_largest(read_only(rows), read_only(places), read_only(volumes), best, largest, second)
    return best, largest, second


@kernel
def _keep_two_largest(rows, places, volumes, best, largest, second):
    for j in range(len(rows)):
        i = rows[j]
        if volumes[j] > largest[i]:
            second[i] = largest[i]
            largest[i] = volumes[j]
            best[i] = places[j]
        elif volumes[j] > second[i]:
            second[i] = volumes[j]


def _as_room(
    sizes: ArrayLike | None, caps: ArrayLike | None, num_items: int, num_ranks: int
) -> tuple[NDArray[np.int64] | None, NDArray[np.int64], int]:
    """Sizes, and the most that each rank may hold of them (one cap for all, or one each)."""
    if (sizes is None) != (caps is None):
        raise UsageError("{sizes} and {caps} go together: give both or neither")
    if sizes is None:
        return None, np.zeros(num_ranks, dtype=np.int64), 0
    array, _, total = as_costs(sizes, "sizes")
    if len(array) != num_items:
        raise ArgumentError("sizes", f"have {num_items} entries, as {{costs}} has", len(array))
    room = as_int64("caps", np.full(num_ranks, caps) if np.ndim(caps) == 0 else caps)  # type: ignore[arg-type]
    if len(room) != num_ranks:
        raise ArgumentError("caps", f"be one number or {num_ranks}, one a rank", len(room))
    if room.min() < 0:
        rank = int(np.argmax(room < 0))
        raise ArgumentError("caps", "be >= 0", room[rank], rank)
    if len(array) and array.max() > room.max():
        item = int(np.argmax(array > room.max()))
        named: dict[str, Any] = {"item": Named("item", item), "sizes[i] =": f"sizes[{item}] ="}
        raise InfeasibleError(
            f"no rank can hold {{item}}: {{sizes[i] =}} {array[item]} is over every cap",
            InfeasibilityCertificate("caps", [item], range(num_ranks), int(array[item]), int(room.max()), 0),
            **named,
        )
    # As Python's integers: rooms of all ranks together need not fit int64.
    if total > (most := sum(room.tolist())):
        raise InfeasibleError(
            f"{{caps}}: the {{sizes}} of all {{items}} sum to {total}, and the {num_ranks} ranks hold {most}: "
            f"{total - most} too much",
            InfeasibilityCertificate("caps", range(num_items), range(num_ranks), total, most, 0),
        )
    return array, np.minimum(room, total), total


@functools.lru_cache(maxsize=8)  # a run asks for it at every step
def _zeros(count: int) -> NDArray[np.int64]:
    return read_only(np.zeros(count, dtype=np.int64))


def as_eps(eps: Any) -> Fraction:
    """Return the tolerance as an exact fraction."""
    return as_share("eps", eps)


def as_cap(cap: SupportsIndex, problem: RelocationProblem, divisible: bool = False) -> int:
    """Return a cap from outside as an int that fits int64 and that no item and not the mean load is over, or raise.

    Items that are divisible may be over it.
    """
    value, num_ranks = as_integer("cap", cap), problem.num_ranks
    if value < problem.largest and not divisible:
        item = int(problem.order[0])
        raise InfeasibleError(
            f"no rank can hold {{item}}: its cost {problem.largest} is over {{cap}} = {value}",
            InfeasibilityCertificate("cap", [item], range(num_ranks), problem.largest, value),
            item=Named("item", item),
        )
    if value * num_ranks < problem.total:
        raise InfeasibleError(
            f"the {{costs}} sum to {problem.total}, over {num_ranks} ranks of {value} by "
            f"{problem.total - value * num_ranks}",
            InfeasibilityCertificate(
                "cap", range(len(problem.costs)), range(num_ranks), problem.total, value * num_ranks
            ),
        )
    return value
