"""Relocation: items start at home, and only what balance needs moves, first inside nodes.

The file is told from top to bottom: what a caller asks and gets (:func:`relocate`), the arguments, the least that must
cross nodes (:func:`crossing_bound`), the checker, and then the kernel, whose steps are these:

1. Nodes over what their ranks may carry share items with nodes that have room, as if nodes were ranks. What comes to a
   node goes to a rank there (:func:`_settle`).
2. Inside each node, ranks over a limit share items with ranks that have room (:func:`_inside`).
3. Where each rank needs a number of items, one that a large item all but fills needs the smallest that there are: those
   that a partition has beside the item come (:func:`_stand_by`), and nodes and ranks start again.
4. What is still over shares with any rank.
5. Where more crosses than must, ranks share what crossed with ranks of its home node (:func:`_improve`), and what fits
   at home returns (:func:`_return_home`). The same puts a partition right that was laid on ranks, if nothing was found.

All of it is one step, :func:`_share`: two places put up to seven items each on the table, and of all 16,384 ways to
share these again the one is taken that moves what is wanted, keeps all limits and moves least from home. Equal counts,
token caps, swaps and sums of items are limits on that step.

The task is load rebalancing (Aggarwal, Motwani & Zhu, "The load rebalancing problem", Journal of Algorithms 60(1),
2006), with nodes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._jit import helper, kernel
from solvers._loops import draw
from solvers._sort import sort_descending
from solvers.arguments import INT64_MAX, as_costs, as_int64, as_integer, as_labels, as_share
from solvers.check import require
from solvers.errors import (
    ArgumentError,
    ArgumentTypeError,
    InfeasibilityCertificate,
    InfeasibleError,
    Named,
    SolverError,
    UsageError,
)
from solvers.groups import group_loads
from solvers.partitioning import partition
from solvers.rearrangement import group_volumes, rearrange
from solvers.types import Record

_ENOUGH = 100
"""One part in so many of all volume may cross beyond what must before ranks share what crossed."""

LAID = "no relocation under the cap was found; ranks share anew what a partition brought them"
"""Why an answer did not start from the homes."""

_PARTITION_S = 0.005  # worth of work, where no partition is given: its makespan falls little after that


@dataclass(frozen=True, slots=True, eq=False)
class Relocation(Record):
    """Items on ranks under a cap, with what moved and what had to.

    Attributes
    ----------
    rank_of_item : int32[n], read-only
        The rank of each item.
    loads : int64[num_ranks], read-only
        The load of each rank.
    makespan : int
        The largest load; at most `cap`.
    cap : int
        What no load exceeds.
    inter_node_volume, intra_node_volume : int
        Prices of what lies on another node than its home, and of what lies on another rank of its home's node.
    inter_node_bound : int
        Proven: no assignment under the cap moves less across nodes.
    fell_back : str
        Empty; or why the answer came of the partition, laid on ranks, and not of the homes.
    runtime_s : float
        Seconds from call to return; ``==`` leaves it out.
    """

    rank_of_item: NDArray[np.int32]
    loads: NDArray[np.int64]
    makespan: int
    cap: int
    inter_node_volume: int
    intra_node_volume: int
    inter_node_bound: int
    fell_back: str = ""
    runtime_s: float = field(default=0.0, compare=False)


def relocate(
    costs: ArrayLike,
    home_rank: ArrayLike,
    node_of_rank: ArrayLike,
    *,
    volumes: ArrayLike | None = None,
    prices: tuple[ArrayLike, ArrayLike] | None = None,
    eps: object = "0.1%",
    cap: SupportsIndex | None = None,
    equal_counts: bool = False,
    counts: tuple[SupportsIndex, SupportsIndex] | None = None,
    sizes: ArrayLike | None = None,
    caps: ArrayLike | None = None,
    groups: ArrayLike | None = None,
) -> Relocation:
    """Put items on ranks so that no load is over a cap and little moves: first across nodes, then inside them.

    Parameters
    ----------
    costs : int64[n]
        Non-negative integers whose sum fits int64.
    home_rank : int64[n]
        The rank that each item lies on now.
    node_of_rank : int64[num_ranks]
        The node of each rank, any non-negative numbers; nodes may differ in size.
    volumes : int64[n], optional
        What moving an item moves; by default its cost.
    prices : (int64[n], int64[n]), optional
        In place of `volumes`: what moves where an item lies on another rank of its home's node, and what crosses where
        it lies on another node. So an item whose parts lie on several ranks has a price for each.
    eps : int, float, str or Fraction
        ``cap = max(largest cost, floor((1 + eps) M))``, M the makespan that :func:`solvers.partition` reaches under
        the same limits, or that of the homes if smaller. A float is read as the decimal number that Python prints for
        it, once: 5e-5 is exactly 1/20000.
    cap : int, optional
        The cap itself, in place of `eps`.
    equal_counts : bool
        Exactly n/m items a rank, within one where m does not divide n.
    counts : (int, int), optional
        The fewest and the most items of a rank, in place of `equal_counts`.
    sizes, caps : int64[n] and int or int64[num_ranks], optional
        A second quantity (tokens), and what each rank may hold of it.
    groups : int32[n], optional
        The group of each item in a known partition under the same limits: it gives M, and is what is fallen back on.

    Returns
    -------
    Relocation
        Never over its cap. ``fell_back`` says why where it came of the partition.

    Raises
    ------
    TypeError, ValueError
        On arguments of the wrong kind, naming the argument, the place and the rule.
    InfeasibleError
        Proven: no assignment keeps the cap, or the token caps.
    SolverError
        None was found, with a `cap` below what the partition reaches or with token caps, nor was it proven that there
        is none.

    Notes
    -----
    The work is counted, and bounded: about O(n log n) and some tens of microseconds a rank, 0.1 s at thousands of
    ranks. O(n + m) memory.

    Examples
    --------
    >>> result = relocate([5, 4, 3, 2, 1, 1], [0, 0, 0, 1, 2, 3], [0, 0, 1, 1], cap=7)
    >>> result.loads.tolist(), result.inter_node_volume, result.intra_node_volume, result.inter_node_bound
    ([7, 7, 1, 1], 0, 5, 0)
    """
    started = time.perf_counter()
    # 1. The arguments.
    cost, largest, _ = as_costs(costs)
    node, tolerance = _as_nodes(node_of_rank), as_share("eps", eps)
    n, m = len(cost), len(node)
    home = _as_ranks("home_rank", home_rank, n, m)
    near, far = _as_prices(cost, volumes, prices)
    size, room = _as_room(sizes, caps, n, m)
    fewest, most = _as_counts(equal_counts, counts, n, m)
    group = None if groups is None else _as_ranks("groups", groups, n, m)
    limits = _Limits(cost, size, room, fewest, most)
    # 2. The cap: that asked for, or just above what a partition reaches.
    proven = 0
    if group is None:
        kept: dict[str, Any] = {"equal_counts": True} if equal_counts else {}
        if counts is not None:
            kept = {"min_items": fewest, "max_items": max(most, 1)}
        if sizes is not None:
            kept |= {"sizes": size, "caps": room}
        known = partition(cost, m, time_budget=_PARTITION_S, **kept)
        group, proven = known.group_of_item, known.lower_bound
    reached, _ = limits.measured(group)
    at_home, fits = limits.measured(home)
    if cap is None:
        measure = at_home if fits and at_home < reached else reached
        limit = max(largest, min(measure + tolerance.numerator * measure // tolerance.denominator, INT64_MAX))
    else:
        limit = _as_cap(cap, cost, m)
    if limit < proven:
        raise InfeasibleError(
            f"no assignment keeps every load within {{cap}} = {limit}: the largest is proven to be at least {proven}"
        )
    # 3. From the homes; and where nothing is found, from the partition.
    bound = _crossing_bound(cost, far, home, node, limit, None if sizes is None else size, room)
    where, fell_back = home.astype(np.int64), ""
    if not (fits and at_home <= limit):
        asked = _Asked.of(limits, limit, home, node, near, far, bound)
        if not asked.search(where, group, True):
            fell_back = LAID
            if reached > limit:
                raise SolverError(
                    f"no assignment under {{cap}} = {limit} was found, nor was it proven that there is none: the "
                    f"partition reaches {reached}", "raise {cap} or {eps}",
                )  # fmt: skip
            where = _laid(group, home, node, far, limits).astype(np.int64)
            asked.search(where, group, False)
    # 4. What it comes to.
    found = where.astype(np.int32)
    loads, moved, crossed = group_loads(cost, found, m), found != home, node[found] != node[home]
    return Relocation(
        found, loads, int(loads.max()), limit, int(far[crossed].sum()), int(near[moved & ~crossed].sum()), bound,
        fell_back, time.perf_counter() - started,
    )  # fmt: skip


# --- arguments -------------------------------------------------------------------------------------------------------


class _Limits(NamedTuple):
    """What is put on ranks, and what each may hold besides a load under the cap."""

    costs: NDArray[np.int64]  # int64[n]
    sizes: NDArray[np.int64]  # int64[n]: zeros where there are none
    room: NDArray[np.int64]  # int64[m]: of sizes
    fewest: int  # items
    most: int

    def measured(self, rank_of_item: NDArray[np.int32]) -> tuple[int, bool]:
        """Return the largest load, and whether sizes and counts keep their limits."""
        m, fits = len(self.room), True
        if self.fewest > 0 or self.most < len(rank_of_item):
            counts = np.bincount(rank_of_item, minlength=m)
            fits = bool(self.fewest <= counts.min() and counts.max() <= self.most)
        if self.sizes.any():
            fits = fits and bool((group_loads(self.sizes, rank_of_item, m) <= self.room).all())
        return int(group_loads(self.costs, rank_of_item, m).max()), fits


def _as_nodes(node_of_rank: ArrayLike) -> NDArray[np.int64]:
    """Nodes from outside, renumbered 0, 1, ... in ascending order."""
    nodes = as_int64("node_of_rank", node_of_rank)
    if len(nodes) == 0:
        raise ArgumentError("node_of_rank", "name at least one rank", "none")
    if nodes.min() < 0:
        rank = int(np.argmax(nodes < 0))
        raise ArgumentError("node_of_rank", "be >= 0", nodes[rank], rank)
    steps = nodes[1:] - nodes[:-1]
    if nodes[0] == 0 and steps.min(initial=0) == 0 and steps.max(initial=0) <= 1:
        return nodes.copy()  # they are so already: mostly ranks are listed node by node
    return np.unique(nodes, return_inverse=True)[1].astype(np.int64)


def _as_ranks(name: str, ranks: ArrayLike, num_items: int, num_ranks: int) -> NDArray[np.int32]:
    found = as_labels(name, ranks, num_ranks)
    if len(found) != num_items:
        raise ArgumentError(name, f"have {num_items} entries, as {{costs}} has", len(found))
    return found


def _as_prices(
    costs: NDArray[np.int64], volumes: ArrayLike | None, prices: tuple[ArrayLike, ArrayLike] | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of lying on another rank of the home's node, and on another node."""
    given: Sequence[ArrayLike]
    if prices is None:
        given, names = (costs if volumes is None else volumes,), ["volumes"]
    elif volumes is not None:
        raise UsageError("give either {volumes} or {prices}, not both")
    else:
        given, names = prices, ["prices[0]", "prices[1]"]
        if not isinstance(prices, Sequence) or len(prices) != 2:
            raise ArgumentTypeError("prices", "be two arrays: inside the node of home, and across nodes")
        if prices[0] is prices[1]:  # mostly one array, which is checked once
            given, names = prices[:1], names[:1]
    found = [as_costs(each, name)[0] for each, name in zip(given, names, strict=True)]
    for array, name in zip(found, names, strict=True):
        if len(array) != len(costs):
            raise ArgumentError(name, f"have {len(costs)} entries, as {{costs}} has", len(array))
    return found[0], found[-1]


def _as_counts(
    equal_counts: bool, counts: tuple[SupportsIndex, SupportsIndex] | None, num_items: int, num_ranks: int
) -> tuple[int, int]:
    """Return the fewest and the most items of a rank."""
    few, more = divmod(num_items, num_ranks)
    if equal_counts and counts is not None:
        raise UsageError("give either {equal_counts} or {counts}, not both")
    if equal_counts:
        return few, few + (more > 0)
    if counts is None:
        return 0, num_items
    fewest, most = (as_integer("counts", value) for value in counts)
    if fewest > few or most < few + (more > 0):
        raise InfeasibleError(
            f"{{counts}} = ({fewest}, {most}) cannot be kept: {num_items} {{items}} on {num_ranks} ranks"
        )
    return fewest, min(most, num_items)


def _as_room(
    sizes: ArrayLike | None, caps: ArrayLike | None, num_items: int, num_ranks: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sizes, and the most that each rank may hold of them (one cap for all, or one each); zeros without any."""
    if (sizes is None) != (caps is None):
        raise UsageError("{sizes} and {caps} go together: give both or neither")
    if sizes is None:
        return np.zeros(num_items, dtype=np.int64), np.zeros(num_ranks, dtype=np.int64)
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
    return array, np.minimum(room, total)


def _as_cap(cap: SupportsIndex, costs: NDArray[np.int64], num_ranks: int, divisible: bool = False) -> int:
    """Return a cap from outside that no item and not the mean load is over, or raise. Divisible items may be over."""
    value, total = as_integer("cap", cap), int(costs.sum())
    if value < costs.max(initial=0) and not divisible:
        item = int(costs.argmax())
        raise InfeasibleError(
            f"no rank can hold {{item}}: its cost {costs[item]} is over {{cap}} = {value}",
            InfeasibilityCertificate("cap", [item], range(num_ranks), int(costs[item]), value),
            item=Named("item", item),
        )
    if value * num_ranks < total:
        raise InfeasibleError(
            f"the {{costs}} sum to {total}, over {num_ranks} ranks of {value} by {total - value * num_ranks}",
            InfeasibilityCertificate("cap", range(len(costs)), range(num_ranks), total, value * num_ranks),
        )
    return value


def _laid(
    groups: NDArray[np.int32], home: NDArray[np.int32], node: NDArray[np.int64], far: NDArray[np.int64], limits: _Limits
) -> NDArray[np.int32]:
    """Lay the partition's groups on ranks, so that little crosses; as they are where ranks may not hold alike."""
    placed = rearrange(group_volumes(groups, home, far, len(node)), node, "greedy").rank_of_group[groups]
    return placed if limits.measured(placed)[1] else groups


class _Asked(NamedTuple):
    """What the kernel is asked, in its own numbers."""

    items: Items
    order: NDArray[np.int64]  # int64[n]: items by descending cost
    ranks: Places
    nodes: Places
    by_node: NDArray[np.int64]  # int64[m]: ranks, node by node
    begin: NDArray[np.int64]  # int64[k + 1]: where each node begins there
    enough: int  # so much may cross

    @classmethod
    def of(
        cls, limits: _Limits, cap: int, home: NDArray[np.int32], node: NDArray[np.int64], near: NDArray[np.int64],
        far: NDArray[np.int64], bound: int,
    ) -> _Asked:  # fmt: skip
        """Nodes keep half of the slack, as their ranks need it; a cap binds nothing beyond the sum of all."""
        cost, n, m, size = limits.costs, len(limits.costs), len(node), np.bincount(node)
        total, all_sizes, all_far = int(cost.sum()), int(limits.sizes.sum()), int(far.sum())
        # 1. Prices, of which no sum leaves int64.
        volume = all_far if near is far else max(int(near.sum()), all_far)
        shift = max(0, volume.bit_length() + FAR.bit_length() - 61)
        price = np.stack([near >> shift, (far >> shift) * FAR])
        amount = np.stack([cost, limits.sizes, np.ones(n, dtype=np.int64)])
        # 2. What ranks may hold, and nodes of them. As Python's integers where sums of ranks might not fit.
        cap = min(cap, total)
        room = _summed(limits.room.tolist(), node.tolist(), len(size))
        kept = min(max(0, m * cap - total) // (2 * m), cap // _MOST_KEPT)
        of_nodes = [(min(s * cap, total) - s * kept, min(r, all_sizes), min(s * limits.most, n))
                    for s, r in zip(size.tolist(), room, strict=True)]  # fmt: skip
        of_ranks = np.stack([np.full(m, cap), limits.room, np.full(m, limits.most)]).astype(np.int64)
        ranks = Places(of_ranks, np.full(m, limits.fewest), node)
        nodes = Places(np.array(of_nodes, dtype=np.int64).T.copy(), size * limits.fewest, np.arange(len(size)))
        begin = np.concatenate(([0], np.cumsum(size)))
        enough = ((bound + all_far // _ENOUGH) >> shift) * FAR
        order = sort_descending(cost, int(cost.max(initial=0)))[0].astype(np.int64)
        return cls(Items(amount, home.astype(np.int64), price), order, ranks, nodes, np.argsort(node, kind="stable"),
                   begin, enough)  # fmt: skip

    def search(self, where: NDArray[np.int64], groups: NDArray[np.int32], from_home: bool) -> bool:
        """Bring all under the limits, changing `where`; or only move less, if not from home. Whether limits hold."""
        m = len(self.by_node)
        work = min(m * _WORK_A_RANK, _MOST_WORK)
        return not relocate_kernel(
            self.items, self.order, self.ranks, self.nodes, self.by_node, self.begin, groups.astype(np.int64),
            self.enough, from_home, work, where,
        )  # fmt: skip


# --- what must cross -------------------------------------------------------------------------------------------------


def crossing_bound(
    costs: ArrayLike, volumes: ArrayLike | None, home_rank: ArrayLike, node_of_rank: ArrayLike, cap: SupportsIndex,
    *, sizes: ArrayLike | None = None, caps: ArrayLike | None = None,
) -> int:  # fmt: skip
    """Return a volume that any assignment with loads of at most `cap` moves across nodes at least: proven.

    A node that holds more than its ranks may carry sends the excess away, at best what has least volume for its cost,
    the last item cut. So it also holds where ranks share items, cost and volume alike. Parameters as for
    :func:`relocate`; an item may be over the cap. O(n log n).

    Examples
    --------
    >>> crossing_bound([5, 4, 3, 2, 1, 1], None, [0, 0, 0, 1, 2, 3], [0, 0, 1, 1], cap=6)
    2
    """
    cost, node = as_costs(costs)[0], _as_nodes(node_of_rank)
    home = _as_ranks("home_rank", home_rank, len(cost), len(node))
    far = _as_prices(cost, volumes, None)[1]
    size, room = _as_room(sizes, caps, len(cost), len(node))
    limit = _as_cap(cap, cost, len(node), divisible=True)
    return _crossing_bound(cost, far, home, node, limit, None if sizes is None else size, room)


def _crossing_bound(
    costs: NDArray[np.int64], volumes: NDArray[np.int64], home: NDArray[np.int32], node: NDArray[np.int64], cap: int,
    sizes: NDArray[np.int64] | None, room: NDArray[np.int64],
) -> int:  # fmt: skip
    at, ranks = node[home], np.bincount(node)
    best = [0] * len(ranks)
    given = [(costs, [cap * count for count in ranks.tolist()])]
    if sizes is not None:
        given.append((sizes, _summed(room.tolist(), node.tolist(), len(ranks))))
    for weight, may in given:
        held = group_loads(weight, at.astype(np.int32), len(ranks)).tolist()
        over = [k for k in range(len(ranks)) if held[k] > may[k]]
        factor = int(volumes.max(initial=0)) // max(int(weight.max(initial=0)), 1)
        alike = bool(over) and np.array_equal(volumes, weight * factor)  # then what leaves is just the excess
        for k in over:
            excess = held[k] - may[k]
            mine = None if alike else at == k
            found = excess * factor if mine is None else _least_leaving(volumes[mine], weight[mine], excess)
            best[k] = max(best[k], found)
    return sum(best)


def _least_leaving(volumes: NDArray[np.int64], weights: NDArray[np.int64], excess: int) -> int:
    """Least volume of items that weigh `excess` together, the last one cut; rounded up.

    For any price p of a unit of weight, ``p excess - sum(max(0, p weight - volume))`` is a bound (linear programming's
    duality); that of the item which is cut is the best. So floats may choose the item, and nothing has to be exact but
    the sum: volumes and the excess are rounded down, weights up, until it fits int64.
    """
    heavy = weights > 0
    volumes, weights = volumes[heavy], weights[heavy]
    shift = max(0, int(weights.sum()).bit_length() - 40)
    weights, excess = (weights >> shift) + (shift > 0), excess >> shift
    if excess <= 0:
        return 0
    drop = max(0, int(volumes.max()).bit_length() + int(weights.sum()).bit_length() - 62)
    volumes = volumes >> drop
    order = np.argsort(volumes / weights, kind="stable")
    cut = order[min(int(np.searchsorted(np.cumsum(weights[order]), excess)), len(order) - 1)]
    volume, weight = int(volumes[cut]), int(weights[cut])
    gains = np.maximum(volume * weights - volumes * weight, 0)
    return max(0, -(-((volume * excess - int(gains.sum())) << drop) // weight))


# --- the checker, with no code of the solver -------------------------------------------------------------------------


def check_relocation(
    costs: ArrayLike, home_rank: ArrayLike, node_of_rank: ArrayLike, result: Relocation, *,
    volumes: ArrayLike | None = None, prices: tuple[ArrayLike, ArrayLike] | None = None, cap: int | None = None,
    equal_counts: bool = False, counts: tuple[int, int] | None = None, sizes: ArrayLike | None = None,
    caps: ArrayLike | None = None,
) -> None:  # fmt: skip
    """Check a relocation against what it was made from; return nothing if all holds.

    Loads, limits, volumes and the bound are computed from scratch. Parameters as given to :func:`relocate`; `cap` is
    the cap that was asked for, by default ``result.cap`` as it is.

    Raises
    ------
    CertificateError
        Naming the first violated rule.

    Notes
    -----
    O(n log n) in Python's fractions; meant for tests and debugging.

    Examples
    --------
    >>> result = relocate([3, 2, 1], [0, 0, 1], [0, 1])
    >>> check_relocation([3, 2, 1], [0, 0, 1], [0, 1], result)
    """
    array, nodes, ranks = np.asarray(costs).tolist(), np.asarray(node_of_rank).tolist(), result.rank_of_item
    n, m = len(array), len(nodes)
    require(ranks.shape == (n,) and ranks.dtype == np.int32, f"rank_of_item must be int32[{n}]")
    where = ranks.tolist()
    require(all(0 <= r < m for r in where), f"every rank must be within 0..{m - 1}")
    # 1. Loads, and the other limits.
    loads = _summed(array, where, m)
    require(loads == result.loads.tolist(), "loads must be the sums of the costs on each rank")
    require(result.makespan == max(loads), f"the largest load is {max(loads)}, not {result.makespan}")
    require(result.makespan <= result.cap, f"the largest load {result.makespan} is over cap = {result.cap}")
    require(cap is None or cap == result.cap, f"the cap is {cap}, not {result.cap}")
    fewest, most = (n // m, -(-n // m)) if equal_counts else counts or (0, n)
    require(all(fewest <= c <= most for c in _summed([1] * n, where, m)), f"counts must be within {fewest}..{most}")
    room = [] if caps is None else np.broadcast_to(np.asarray(caps), (m,)).tolist()
    size = [] if sizes is None else np.asarray(sizes).tolist()
    for r, held in enumerate(_summed(size, where, m) if size else []):
        require(held <= room[r], f"rank {r} holds {held}, more than its token cap {room[r]}")
    # 2. What moved.
    homes = np.asarray(home_rank).tolist()
    near, far = (np.asarray(p).tolist() for p in prices or [costs if volumes is None else volumes] * 2)
    crossed = [nodes[h] != nodes[r] for h, r in zip(homes, where, strict=True)]
    inter = sum(far[i] for i in range(n) if crossed[i])
    intra = sum(near[i] for i in range(n) if homes[i] != where[i] and not crossed[i])
    require(inter == result.inter_node_volume, f"{inter} crosses nodes, not {result.inter_node_volume}")
    require(intra == result.intra_node_volume, f"{intra} moves inside nodes, not {result.intra_node_volume}")
    # 3. The bound: of each node the cheapest items for their cost, or size, leave until what is left fits.
    least = dict.fromkeys(nodes, 0)
    for weight, may in ((array, [result.cap] * m), (size, room)):
        for k in least if weight else ():
            excess = Fraction(-sum(may[r] for r in range(m) if nodes[r] == k))
            mine = [i for i in range(n) if nodes[homes[i]] == k and weight[i] > 0]
            excess, leaves = excess + sum(weight[i] for i in mine), Fraction(0)
            for i in sorted(mine, key=lambda i: Fraction(far[i], weight[i])):
                part = max(Fraction(0), min(Fraction(1), excess / weight[i]))
                leaves, excess = leaves + part * far[i], excess - weight[i]
            least[k] = max(least[k], -(-leaves.numerator // leaves.denominator))
    bound, proven = result.inter_node_bound, sum(least.values())
    require(0 <= bound <= inter, f"inter_node_bound = {bound} must be within 0..{inter}")
    require(bound <= proven, f"inter_node_bound = {bound}, but {proven} is proven at most")


def _summed(weights: list[int], ranks: list[int], num_ranks: int) -> list[int]:
    sums = [0] * num_ranks
    for weight, rank in zip(weights, ranks, strict=True):
        sums[rank] += weight
    return sums


# --- the kernel: what it sees ----------------------------------------------------------------------------------------

POOL = 7  # items of each place on the table
MANY = 28  # items of a rank that may get a giant
FEWER = 5  # where less depends on it: more tables in the same time
ROW = 8  # subsets whose lowest price is known
NONE = -1
NEVER = 2**61
FAR = 32  # what crosses nodes counts as much as so much moved inside one
PARTS = (1, 2, 4, 16)  # of what is over all, a half, ... is tried to move
TRIES = 64  # others that a place shares with in vain
ACROSS = 200  # and where nodes are crossed
RATE = 1.3  # of a low price, in prices of as much cost on average
DEARER = 0.125  # items that more may cross after each try in vain
LARGE = 3  # items on a table are the largest, where counts are limited: few change places then
SMALL = 4  # one part in so many of a node's items comes back for larger ones, the smallest first
WINDOW = 256  # places that are looked at for the one most over
ROUNDS = 6  # of bringing small items beside the large ones
SIDEWAYS = 2.0  # items' volume that may move inside nodes so that other items meet
CHECKS = 16  # times that it is asked whether less crosses
LITTLE = 128  # one part in so many less is not worth more work
_MOST_KEPT = 1000  # a node keeps no more than one part in so many of the cap
_WORK_A_RANK = 400_000  # units, of two nanoseconds or so
_MOST_WORK = 60_000_000


class Places(NamedTuple):
    """Ranks, or nodes as if they were ranks, and what they may hold. Read alone, as are items."""

    limit: NDArray[np.int64]  # int64[3, m]: the most cost, size and items
    fewest: NDArray[np.int64]  # int64[m]: the fewest items
    node: NDArray[np.int64]  # int64[m]


class Items(NamedTuple):
    """Items, in writable arrays: numba compiles a kernel once more for others."""

    amount: NDArray[np.int64]  # int64[3, n]: cost, size (or 0) and 1
    home: NDArray[np.int64]  # int64[n]: the place where each lies
    price: NDArray[np.int64]  # int64[2, n]: of lying elsewhere in the node of home, and in another node


class State(NamedTuple):
    """Where items are, and what places hold. The items of place r wait in queue r, or m + r for the smallest of all."""

    where: NDArray[np.int64]  # int64[n]
    held: NDArray[np.int64]  # int64[3, m]
    first: NDArray[np.int64]  # int64[2 m]
    last: NDArray[np.int64]  # int64[2 m]
    after: NDArray[np.int64]  # int64[n]
    fixed: NDArray[np.bool_]  # bool[n]: in no queue, as it stands by a large item
    chance: NDArray[np.int64]  # int64[1]
    work: NDArray[np.int64]  # int64[1]: left


class Hand(NamedTuple):
    """Items that a place puts on the table, and all their subsets, ascending in cost."""

    item: NDArray[np.int64]  # int64[POOL]
    queue: NDArray[np.int64]  # int64[POOL]: 0, or m for those of the second queue
    amount: NDArray[np.int64]  # int64[3, 2^POOL]
    price: NDArray[np.int64]  # int64[2^POOL]: of moving the subset to the other place
    mask: NDArray[np.int64]  # int64[2^POOL]


@helper
def _price(items, node, i, r):
    h = items.home[i]
    return 0 if r == h else items.price[0, i] if node[r] == node[h] else items.price[1, i]


@helper
def _push(state, q, i):
    state.after[i] = NONE
    if state.first[q] == NONE:
        state.first[q] = i
    else:
        state.after[state.last[q]] = i
    state.last[q] = i


@helper
def _pop(state, q):
    i = state.first[q]
    state.first[q] = state.after[i]
    return i


@helper
def _move(items, state, i, new):
    """Item i is at `new`."""
    old = state.where[i]
    state.where[i] = new
    for d in range(3):
        state.held[d, old] -= items.amount[d, i]
        state.held[d, new] += items.amount[d, i]


# --- the one step ----------------------------------------------------------------------------------------------------


@helper
def _lay_out(items, node, state, hand, pool, x, y, by, worth, queue):
    """Take up to `pool` items off the queues of x, this one first; list their subsets with the price of moving to y.

    Less what the move is worth, so much for a unit.
    """
    amount, price, mask, k, n = hand.amount, hand.price, hand.mask, 0, 1
    for d in range(3):
        amount[d, 0] = 0
    price[0] = mask[0] = 0
    while k < pool:
        q = queue if state.first[queue] != NONE else 2 * x + len(node) - queue
        if state.first[q] == NONE:
            break
        i = _pop(state, q)
        hand.item[k], hand.queue[k] = i, q - x
        more = _price(items, node, i, y) - _price(items, node, i, x) - np.int64(worth * items.amount[by, i])
        a = b = n - 1  # those without the item and those with it are merged from the end, so in place
        for at in range(2 * n - 1, -1, -1):
            if a < 0 or (b >= 0 and amount[by, a] <= amount[by, b] + items.amount[by, i]):
                for d in range(3):
                    amount[d, at] = amount[d, b] + items.amount[d, i]
                price[at], mask[at] = price[b] + more, mask[b] | (1 << k)
                b -= 1
            else:
                for d in range(3):
                    amount[d, at] = amount[d, a]
                price[at], mask[at] = price[a], mask[a]
                a -= 1
        n *= 2
        k += 1
    return k, n


@helper
def _choose(mine, num_mine, other, num_other, low, high, best, by):
    """Which subsets change sides, of price below `best`, so that x loses low..high in cost, size and count; and work.

    Both ascend in quantity `by`, so that the partners of each are a window that only moves on. Something moves.
    """
    of_mine, of_other, least, begin, beside, looked = NONE, NONE, np.int64(0), 0, 1 - by, 0
    # The lowest price of each few subsets in a row: most of a window is too dear, and passed over.
    lowest = np.full((1 << POOL) // ROW, NEVER)
    for b in range(num_other):
        lowest[b // ROW] = min(lowest[b // ROW], other.price[b])
        least = min(least, other.price[b])
    for a in range(num_mine):
        while begin < num_other and mine.amount[by, a] - other.amount[by, begin] > high[by]:
            begin += 1
        b = begin if mine.price[a] + least < best else num_other
        while b < num_other and mine.amount[by, a] - other.amount[by, b] >= low[by]:
            looked += 1
            if b % ROW == 0 and mine.price[a] + lowest[b // ROW] >= best:
                b += ROW
                continue
            if mine.price[a] + other.price[b] < best and mine.mask[a] + other.mask[b] > 0:
                size = mine.amount[beside, a] - other.amount[beside, b]
                count = mine.amount[2, a] - other.amount[2, b]
                if low[beside] <= size <= high[beside] and low[2] <= count <= high[2]:
                    of_mine, of_other, best = a, b, mine.price[a] + other.price[b]
            b += 1
    return of_mine, of_other, looked


@helper
def _share(items, node, state, table, pool, x, y, low, high, parts, rate, worth, beyond):
    """Let x lose low..high to y in the cheapest way; if there is none, part of it. Whether.

    The price is at most `rate` for each unit that has to go, and `beyond`; each that goes is `worth` so much less.
    """
    mine, other = table
    by = 1 if low[0] <= 0 < low[1] else 0  # what is over
    # The other gives its smallest first, where it has to give as many items as it gets.
    k, num_mine = _lay_out(items, node, state, mine, pool, x, y, by, worth, x)
    j, num_other = _lay_out(items, node, state, other, pool, y, x, by, -worth, len(node) + y)
    a, b, least = NONE, NONE, low.copy()
    state.work[0] -= 500 + 8 * (num_mine + num_other)
    for p in range(parts):
        for d in range(3):  # no more than is on the table
            some = min(low[d], mine.amount[d, num_mine - 1]) // PARTS[p]
            least[d] = low[d] if low[d] <= 0 else max(np.int64(1), some)
        best = np.int64(min(float(NEVER), rate * max(np.int64(1), least[by]) + beyond)) + 1
        a, b, looked = _choose(mine, num_mine, other, num_other, least, high, best, by)
        state.work[0] -= 2 * (looked + num_mine + num_other)
        if a != NONE:
            break
    go, come = (mine.mask[a], other.mask[b]) if a != NONE else (np.int64(0), np.int64(0))
    for at in range(k + j - 1, -1, -1):  # each comes last in the queue where it is now
        i, queue = (mine.item[at], mine.queue[at]) if at < k else (other.item[at - k], other.queue[at - k])
        to = (y if go >> at & 1 else x) if at < k else (x if come >> (at - k) & 1 else y)
        if to != state.where[i]:
            _push(state, to, i)
            _move(items, state, i, to)
        elif queue == 0:
            _push(state, to, i)
        else:  # but the smallest come first again
            if state.first[to + queue] == NONE:
                state.last[to + queue] = i
            state.after[i] = state.first[to + queue]
            state.first[to + queue] = i
    return a != NONE


# --- who shares with whom --------------------------------------------------------------------------------------------


@helper
def _limits(places, state, x, y, low, high):
    """What x may lose to y so that both keep all limits."""
    held, limit = state.held, places.limit
    for d in range(3):
        low[d], high[d] = held[d, x] - limit[d, x], limit[d, y] - held[d, y]
    low[2] = max(low[2], min(places.fewest[y] - held[2, y], 0))
    high[2] = min(high[2], held[2, x] - places.fewest[x])


# Called for each place of a window: arrays alone, as machine code copies a whole tuple for each call.
@helper
def _is_full(limit, held, r):
    """Whether a place holds too much or too many."""
    return held[0, r] > limit[0, r] or held[1, r] > limit[1, r] or held[2, r] > limit[2, r]


@helper
def _is_over(limit, held, fewest, r):
    """Whether a place breaks a limit: it holds too much, too many or too few."""
    return _is_full(limit, held, r) or held[2, r] < fewest[r]


@helper
def _room(limit, held, fewest, r, d):
    """What a place may get of cost, size or items; or, if d is 3, how many items it may give."""
    return held[2, r] - fewest[r] if d == 3 else limit[d, r] - held[d, r]


@helper
def _pair(places, state, some, at, window, tries, tried):
    """Of the next few places the one most over, or NONE, and the one with most room; now and then any other instead.

    Both may be the same, where no other has room for what is wrong.
    """
    limit, fewest, held = places.limit, places.fewest, state.held
    state.work[0] -= 2 * window
    x, y, most, least = np.int64(NONE), np.int64(NONE), np.int64(0), np.int64(0)
    for j in range(at, at + window):
        r = some[j if j < len(some) else j - len(some)]
        over = held[0, r] - limit[0, r]
        if tried[r] < tries and (x == NONE or over > most) and _is_over(limit, held, fewest, r):
            x, most = r, over
        if (y == NONE or over < least) and not _is_full(limit, held, r):
            y, least = r, over
    if x == NONE:
        return x, y
    wrong = 0  # what x has too much of: cost, size, items; or too few items
    while wrong < 3 and _room(limit, held, fewest, x, wrong) >= 0:
        wrong += 1
    # The one with most room in cost has none for all of what is wrong: then the one with most room for just that.
    if y == NONE or (wrong > 0 and _room(limit, held, fewest, y, wrong) < -_room(limit, held, fewest, x, wrong)):
        state.work[0] -= 2 * window
        y, most = np.int64(NONE), np.int64(0)
        for j in range(at, at + window):
            r = some[j if j < len(some) else j - len(some)]
            room = _room(limit, held, fewest, r, wrong)
            if room > most:
                y, most = r, room
    if tried[x] % 4 > 0 or x == y or y == NONE:  # as it did not work
        z = some[draw(state.chance, len(some))]
        fits = _room(limit, held, fewest, z, wrong) > (0 if wrong > 0 else NONE)
        y = z if y == NONE or fits else y
    return x, y


@helper
def _bring_under(items, places, state, table, some, of_ranks, tries, rate, item):
    """Of these places the one most over gives to the one with most room, again and again. How many are still over.

    A unit of cost has a price of `rate` at most, and `item` is that of an item on average, which adds to it try by try.
    """
    low, high, tried = np.zeros(3, np.int64), np.zeros(3, np.int64), np.zeros(len(places.node), np.int64)
    inside, slack = rate == np.inf, np.int64(0)
    # Where nodes are crossed, places pass on what they are over only late, as it has a price.
    pool, late = (np.int64(FEWER), np.int64(0)) if inside else (np.int64(POOL), tries // 8)
    cost, count = 0.0, 1.0
    for r in some:
        slack += places.limit[0, r] - state.held[0, r]
        cost, count = cost + state.held[0, r], count + state.held[2, r]
    usual = np.int64(cost / count * pool / 2)
    fine = max(np.int64(0), slack) // (2 * len(some))  # so much of its room a place may be left with
    window, at, idle = min(len(some), WINDOW), 0, 0
    while state.work[0] > 0 and idle < len(some):
        # 1. Who gives, and who gets.
        x, y = _pair(places, state, some, at, window, tries, tried)
        if x == NONE:
            at, idle = (at + window) % len(some), idle + window
            continue
        idle, turn = 0, tried[x]
        if x == y:
            tried[x] += 1
            continue
        # 2. How much: all that is over, or as much as the other has room for; never nothing, so that it ends.
        _limits(places, state, x, y, low, high)
        passing, part, ceiling, worth, hand = turn > late and turn % 2 == 1, turn % 2 == 1, rate, 0.0, pool
        # A rank of two giants gives one to a rank of many small items, which then passes small ones on.
        giving = passing and of_ranks and turn % 8 == 7 and low[0] > 0 and state.held[2, y] >= MANY
        if giving:
            high[0], ceiling = NEVER, np.inf
        elif passing:
            _pass_on(state, low, high)
        short = high[2] < 0  # x has too few items: then it gets some, if the other has any to spare
        if short:
            high[2] = 0 if low[0] > 0 else -1
        for d in range(2 if short else 3):
            if low[d] > high[d]:
                low[d], part = max(np.int64(1), high[d] - (fine if d == 0 else 0)), True
        part |= low[0] > usual  # nor more than a few items are
        # 3. At what price: of less than all, as much as is worth it.
        if part and not passing and not inside:
            ceiling, worth, hand = 0.0, rate, np.int64(FEWER)
            for d in range(3):
                if low[d] > 0:
                    low[d], high[d] = max(np.int64(1), low[d] // 16), min(high[d], low[d] + (fine if d == 0 else 0))
        parts, beyond = np.int64(len(PARTS) if inside or passing else 1), turn * item * DEARER
        done = _share(items, places.node, state, table, hand, x, y, low, high, parts, ceiling, worth, beyond)
        tried[x] = turn // 2 if done else turn + 1
        if done and passing:
            tried[x], tried[y] = (turn + 1 if _is_over(places.limit, state.held, places.fewest, x) else 0), turn + 1
    left = 0
    for r in some:
        left += _is_over(places.limit, state.held, places.fewest, r)
    return left


@helper
def _pass_on(state, low, high):
    """Let x lose all that is over to a place that may be as much over for it, which finds other items to share.

    At least some random part of what the two have: so it does not come back.
    """
    for d in range(2):
        if 0 < low[d] < NEVER and 0 <= high[d] < NEVER:
            high[d] += low[d]
            unit = (high[d] - low[d]) // 2**22 + 1
            low[d] += draw(state.chance, (high[d] - low[d]) // unit + 1) * unit


@helper
def _inside(items, ranks, state, table, by_node, begin):
    """Bring the ranks of each node under their limits, whatever moves there. How many are still over."""
    left = 0
    for k in range(len(begin) - 1):
        some = by_node[begin[k] : begin[k + 1]]
        left += _bring_under(items, ranks, state, table, some, True, np.int64(TRIES), np.inf, 0.0)
    return left


@helper
def _settle(items, order, places, state, goal, by_node, begin):
    """What shall be in another node goes to the rank there with most room, the largest first; queues are not kept."""
    for i in order:  # first all leave, so that there is room
        if goal[i] != places.node[state.where[i]]:
            for d in range(3):
                state.held[d, state.where[i]] -= items.amount[d, i]
            state.where[i] = NONE
    for i in order:
        if state.where[i] == NONE:
            best, least, lowest = np.int64(NONE), np.int64(0), 3
            for r in by_node[begin[goal[i]] : begin[goal[i] + 1]]:
                over = state.held[0, r] - places.limit[0, r]
                count = state.held[2, r]  # first those with too few items, and last those that are full of them
                level = 0 if count < places.fewest[r] else 1 if count < places.limit[2, r] else 2
                if level < lowest or (level == lowest and over < least):
                    best, least, lowest = r, over, level
            state.where[i] = best
            for d in range(3):
                state.held[d, best] += items.amount[d, i]


@helper
def _stand_by(items, order, places, state, groups, k):
    """Where ranks are still over, what a partition has beside their largest items comes for what is larger. How many.

    No two items share what they have beside them there, so that all are served. Only as many come as it takes, the
    smallest first. Neither the large items nor what stands by them moves again.
    """
    m, n, came = len(places.node), len(order), 0
    # 1. Which ranks are over, and what the smallest items of their nodes come to beside each of them.
    largest, over, needs = np.full(m, NONE), np.zeros(m, np.bool_), np.zeros(k, np.int64)
    for i in order:
        if largest[state.where[i]] == NONE:
            largest[state.where[i]] = i
    for x in range(m):
        over[x] = largest[x] != NONE and _is_over(places.limit, state.held, places.fewest, x)
        needs[places.node[x]] += over[x] * (places.fewest[x] - 1)
    small, taken = np.zeros(k, np.float64), np.zeros(k, np.int64)
    for back in range(n - 1, -1, -1):
        node = places.node[state.where[order[back]]]
        if taken[node] < needs[node]:
            taken[node] += 1
            small[node] += items.amount[0, order[back]]
    for x in range(m):
        node = places.node[x]
        if over[x]:
            room = float(places.limit[0, x] - items.amount[0, largest[x]])
            over[x] = small[node] * (places.fewest[x] - 1) > room * taken[node]
            state.fixed[largest[x]] |= over[x]
    # 2. By group: which rank its large item is on.
    rank = np.full(m, NONE)
    for x in range(m):
        if over[x] and rank[groups[largest[x]]] == NONE:
            rank[groups[largest[x]]] = x
    # 3. For each that comes, the largest that may go from such a rank goes.
    begin, listed = _listed(order, state.where, m)
    go = begin[:-1].copy()
    for back in range(n - 1, -1, -1):
        p = order[back]
        x = rank[groups[p]]
        if x == NONE or state.fixed[p]:
            continue
        if state.where[p] == x:
            state.fixed[p] = True
            continue
        while go[x] < begin[x + 1] and state.fixed[listed[go[x]]]:
            go[x] += 1
        if state.held[0, x] <= places.limit[0, x] or go[x] == begin[x + 1]:
            continue
        q = listed[go[x]]
        if items.amount[0, q] > items.amount[0, p]:
            state.fixed[p] = True
            go[x] += 1
            _move(items, state, q, state.where[p])
            _move(items, state, p, x)
            came += 1
    return came


@helper
def _crossing(items, node, where):
    crossing = np.int64(0)
    for i in range(len(where)):
        crossing += items.price[1, i] if node[where[i]] != node[items.home[i]] else 0
    return crossing


@helper
def _improve(items, places, state, table, by_node, begin, enough, work):
    """Ranks that hold what crossed share with ranks of its home node, until no more crosses than is enough.

    Ways are taken too that only move a little inside nodes: so other items meet. Now and then any two ranks share.
    """
    low, high, n, m, i, turn = np.zeros(3, np.int64), np.zeros(3, np.int64), len(state.where), len(places.node), 0, 0
    beyond, before, check = 0.0, np.int64(NEVER), work
    for j in range(n):
        beyond += SIDEWAYS * items.price[0, j] / n
    state.work[0] = work
    while state.work[0] > 0:
        if state.work[0] <= check:
            now = _crossing(items, places.node, state.where)
            if now <= enough or before - now < now // LITTLE:
                return
            before, check = now, check - work // CHECKS
            state.work[0] -= n
        seen = 0
        while seen < n and places.node[state.where[i]] == places.node[items.home[i]]:
            i, seen = (i + 1) % n, seen + 1
        if seen == n:
            return
        turn += 1
        x, y = draw(state.chance, m), draw(state.chance, m)
        if turn % 4 > 0:
            x, k = state.where[i], places.node[items.home[i]]
            y = by_node[begin[k] + draw(state.chance, begin[k + 1] - begin[k])]
            while state.first[x] != i:  # so that it is on the table
                _push(state, x, _pop(state, x))
            i = (i + 1) % n
        state.work[0] -= seen
        if x != y:
            _limits(places, state, x, y, low, high)
            _share(items, places.node, state, table, np.int64(FEWER), x, y, low, high, np.int64(1), 0.0, 0.0, beyond)


@helper
def _return_home(items, order, places, state):
    """What fits at home now returns, what crossed first; until nothing does."""
    held, limit, node, returned = state.held, places.limit, places.node, 1
    while returned > 0:
        returned = 0
        for crossed in (True, False):
            for i in order:
                r, h = state.where[i], items.home[i]
                if r != h and (node[r] != node[h]) == crossed and held[2, r] > places.fewest[r]:
                    fits = True
                    for d in range(3):
                        fits &= held[d, h] + items.amount[d, i] <= limit[d, h]
                    if fits:
                        _move(items, state, i, h)
                        returned += 1


# --- all of it -------------------------------------------------------------------------------------------------------


@helper
def _listed(order, where, m):
    """Items place by place, in each by descending cost, and where each place begins."""
    begin, listed = np.zeros(m + 1, np.int64), np.empty(len(order), np.int64)
    for r in where:
        begin[r + 1] += 1
    for r in range(m):
        begin[r + 1] += begin[r]
    end = begin.copy()
    for i in order:
        listed[end[where[i]]] = i
        end[where[i]] += 1
    return begin, listed


@helper
def _fill_queues(order, state, small):
    """Queue the items of each place such that any few in a row are of all sizes, but the smallest in a second queue."""
    m = len(state.first) // 2
    begin, listed = _listed(order, state.where, m)
    for q in range(2 * m):
        state.first[q] = NONE
    for r in range(m):
        count = begin[r]  # those that are not fixed, moved together
        for at in range(begin[r], begin[r + 1]):
            if not state.fixed[listed[at]]:
                listed[count] = listed[at]
                count += 1
        last = count - (count - begin[r]) // SMALL if small else count
        for at in range(count - 1, last - 1, -1):
            _push(state, m + r, listed[at])
        tables = (last - begin[r] + POOL - 1) // POOL
        large = LARGE if small else 0
        for t in range(tables):
            for at in range(begin[r] + t * large, min(begin[r] + (t + 1) * large, last)):
                _push(state, r, listed[at])
            for at in range(begin[r] + tables * large + t, last, tables):
                _push(state, r, listed[at])


@helper
def _make_state(items, order, where, m, fixed, work, small):
    n = len(where)
    state = State(
        where, np.zeros((3, m), np.int64), np.full(2 * m, NONE), np.full(2 * m, NONE), np.full(n, NONE), fixed,
        np.ones(1, np.int64), work,
    )  # fmt: skip
    for i in range(n):
        for d in range(3):
            state.held[d, where[i]] += items.amount[d, i]
    _fill_queues(order, state, small)
    return state


@helper
def _hand():
    s = 1 << POOL
    return Hand(
        np.empty(POOL, np.int64), np.empty(POOL, np.int64), np.empty((3, s), np.int64), np.empty(s, np.int64),
        np.empty(s, np.int64),
    )  # fmt: skip


@kernel(turns=200)
def relocate_kernel(items, order, ranks, nodes, by_node, begin, groups, enough, from_home, work, where):
    """Bring all under the limits, changing `where`; `nodes` as if they were ranks. How many ranks are still over."""
    n, m, k, few = len(where), len(ranks.node), len(nodes.node), ranks.fewest[0] > 0
    table = (_hand(), _hand())
    price, cost = 0.0, 1.0
    for i in range(n):
        price, cost = price + items.price[1, i], cost + items.amount[0, i]
    rate, item = RATE * price / cost, price / max(1, n)
    left_work, fixed = np.full(1, work), np.zeros(n, np.bool_)
    of_nodes = Items(items.amount, ranks.node[items.home], items.price)
    state = _make_state(items, order, where, m, fixed, left_work, False)
    left, rounds = 0, (ROUNDS if few else 1) if from_home else 0
    for turn in range(rounds):
        # 1. Nodes.
        if k > 1:
            goal = _make_state(of_nodes, order, ranks.node[where], k, fixed, left_work, few)
            _bring_under(of_nodes, nodes, goal, table, np.arange(k), False, np.int64(TRIES), rate, item)
            _settle(items, order, ranks, state, goal.where, by_node, begin)
            _fill_queues(order, state, False)
        # 2. Ranks of each node.
        left = _inside(items, ranks, state, table, by_node, begin)
        # 3. What stands by large items.
        if left == 0 or turn == rounds - 1 or _stand_by(items, order, ranks, state, groups, k) == 0:
            break
        _fill_queues(order, state, False)
    # 4. Any ranks.
    for i in range(n):
        fixed[i] = False
    if left > 0:
        _fill_queues(order, state, few)
        left = _bring_under(items, ranks, state, table, by_node, True, np.int64(ACROSS), rate, item)
    # 5. Home again.
    if left == 0:
        if _crossing(items, ranks.node, where) > enough:
            _fill_queues(order, state, False)
            _improve(items, ranks, state, table, by_node, begin, enough, work // 2 if from_home else work)
        _return_home(items, order, ranks, state)
    return left
