"""A relocation problem, checked once, and the result made from what a method returns."""

import functools
import heapq
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._jit import kernel
from solvers._sort import sort_descending
from solvers.arguments import as_costs, as_int64, as_integer, as_share
from solvers.errors import (
    ArgumentError,
    InfeasibilityCertificate,
    InfeasibleError,
    Named,
    UsageError,
)
from solvers.groups import group_loads, read_only
from solvers.relocation._affinity import Affinity, affinity_of_homes, affinity_of_rows, homes_from


def as_eps(eps: Any) -> Fraction:
    """Return the tolerance as an exact fraction."""
    if isinstance(eps, str) and eps == "knee":  # which 0.2.0 took
        raise UsageError("{eps} = 'knee' is gone: see the change log", "give a number, such as {eps} = 0.003")
    return as_share("eps", eps)


def _as_nodes(node_of_rank: ArrayLike) -> NDArray[np.int32]:
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
    return nodes.astype(np.int32)


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


def _nodes_and_ranks(node_of_rank: ArrayLike) -> Nodes:
    if isinstance(node_of_rank, np.ndarray) and node_of_rank.dtype == np.int32 and node_of_rank.ndim == 1:
        return _known_nodes(node_of_rank.tobytes())
    return _grouped(_as_nodes(node_of_rank))


@functools.lru_cache(maxsize=8)  # a run has one, and asks for it at every step
def _known_nodes(node_of_rank: bytes) -> Nodes:
    # Not made read-only, though nobody may write to them: kernels would be compiled once more for that.
    return _grouped(_as_nodes(np.frombuffer(node_of_rank, dtype=np.int32)))


def _grouped(nodes: NDArray[np.int32]) -> Nodes:
    start = np.concatenate(([0], np.cumsum(np.bincount(nodes)))).astype(np.int64)
    return Nodes(nodes, np.argsort(nodes, kind="stable").astype(np.int64), start)


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
            where = affinity_of_homes(home, moved)
        else:
            if volumes is not None:
                raise ArgumentError("volumes", "be None where {affinity} is given: it holds the volumes")
            where = affinity_of_rows(affinity, len(array), nodes.of_rank)
            _choose_missing_homes(array, where, num_ranks)
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


def _choose_missing_homes(costs: NDArray[np.int64], affinity: Affinity, num_ranks: int) -> None:
    """Items of which nothing lies anywhere may start anywhere: longest first, each on the least loaded rank."""
    missing = np.flatnonzero(affinity.home < 0)
    if len(missing) == 0:
        return
    settled = affinity.home >= 0
    loads = group_loads(costs[settled], affinity.home[settled], num_ranks)
    heap = [(load, rank) for rank, load in enumerate(loads.tolist())]
    heapq.heapify(heap)
    for item in missing[np.argsort(-costs[missing], kind="stable")].tolist():
        load, rank = heap[0]
        affinity.home[item] = affinity.strongest[item] = rank
        heapq.heapreplace(heap, (load + int(costs[item]), rank))


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
