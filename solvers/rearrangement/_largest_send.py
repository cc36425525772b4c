"""The largest send: swaps that lower it, and lower bounds on it.

From top to bottom: :class:`SwapSearch`, which exchanges a group of the rank that sends most against another, and bounds
from *multipliers*. No rank's send is below a weighted mean of all ranks' sends: for any multipliers >= 0, the least
weighted sum of sends over all bijections, divided by the sum of the multipliers, is a lower bound (Lagrangian
relaxation). All equal, it is the least sum shared out evenly. All on one node, it needs no transport: a node of c ranks
keeps, at best, the c groups that are worth most to it, each element counted with its rank's multiplier. Few nodes
decide, so this one is the better of the two where there are many. Multipliers only steer: whatever they are, the bound
is proven by them and by the prices that go with them.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers._loops import copy, largest_of, stable_order, sum_of
from solvers._sort import sort_descending
from solvers.rearrangement._problem import Entries, ProvenBound, RearrangementProblem, Units
from solvers.rearrangement._transport import Rows
from solvers.rearrangement.types import BoundCertificate

# The mean of the multipliers: they are told apart to a part in 65,536 of it.
_UNIT = 1 << 16
# Kept in bounds, so that amounts times multipliers fit int64; no multiplier of a good bound comes near.
LARGEST_MULTIPLIER = 16 * _UNIT
# Rounds for the multipliers of one node. Bounds of nodes are worth 389 +- 67 ppm (row *a node's bound*).
_ROUNDS = 40
# Cells of a view: with more of them, one node is not small.
_MOST_CELLS = 1 << 24
# Bits of the sends that steer multipliers, so that a product of both fits int64.
_SEND_BITS = 20


class _Columns(NamedTuple):
    """The entries by rank; within a rank, groups ascending. Written when it is made."""

    starts: NDArray[np.int64]  # int64[m + 1]
    groups: NDArray[np.int32]  # int32[k]
    amounts: NDArray[np.int64]  # int64[k]


class _Given(NamedTuple):
    """What swaps need of a problem; nothing of it changes."""

    entries: Entries
    columns: _Columns
    units: Units
    class_of_rank: NDArray[np.int64]  # int64[m]
    # int64[num_nodes + 1], int32[m]: node k has the ranks ``node_ranks[node_starts[k] : node_starts[k + 1]]``
    node_starts: NDArray[np.int64]
    node_ranks: NDArray[np.int32]
    busy: NDArray[np.int64]  # ranks that hold something: no other ever sends


class _State(NamedTuple):
    """Who is where; all of it is written."""

    rank_of_group: NDArray[np.int32]  # int32[m]
    group_of_rank: NDArray[np.int32]  # int32[m]
    sends: NDArray[np.int64]  # int64[m]
    # int64[m], zeros between two looks: what a move changes of each send, and what a rank holds of each group
    change: NDArray[np.int64]
    amount_of_group: NDArray[np.int64]


# --- swaps -----------------------------------------------------------------------------------------------------------


@kernel
def _transpose(entries, columns):
    """Fill `columns`, whose starts are zeros: O(entries)."""
    offsets, ranks, amounts = entries
    starts, groups, column_amounts = columns
    for r in ranks:
        starts[r + 1] += 1
    for r in range(1, len(starts)):
        starts[r] += starts[r - 1]
    filled = starts[:-1].copy()
    for g in range(len(offsets) - 1):
        for e in range(offsets[g], offsets[g + 1]):
            r = ranks[e]
            groups[filled[r]] = g
            column_amounts[filled[r]] = amounts[e]
            filled[r] += 1


@helper
def _move(g, source, target, entries, units, change):
    """Add to `change` what each rank sends more if group g goes from rank `source` to rank `target`."""
    offsets, ranks, amounts = entries
    of_rank, weights = units.of_rank, units.weights
    for e in range(offsets[g], offsets[g + 1]):
        r = ranks[e]
        for level in range(len(of_rank)):
            u = of_rank[level, r]
            if u == of_rank[level, source]:
                if u != of_rank[level, target]:
                    change[r] += weights[level] * amounts[e]
            elif u == of_rank[level, target]:
                change[r] -= weights[level] * amounts[e]


@helper
def _largest_after(g, entries, sends, change):
    """The largest of the sends that moving group g changes, and the sum of the changes; forgets them."""
    offsets, ranks, _ = entries
    largest, total = np.int64(0), np.int64(0)
    for e in range(offsets[g], offsets[g + 1]):
        r = ranks[e]
        if change[r] != 0:
            largest = max(largest, sends[r] + change[r])
            total += change[r]
            change[r] = 0
    return largest, total


@helper
def _best_swap(given, state, top, peers):
    """The swap after which the ranks it touches send least at most: (outsider, insider, work); -1 if none helps.

    `peers` are ranks of the node of rank `top`. An outsider, of which `top` holds more, comes to one of them. O(groups
    of `top` times peers times their entries).
    """
    entries, units, sends, change = given.entries, given.units, state.sends, state.change
    starts, groups, amounts = given.columns
    offsets, amount_of_group = entries.offsets, state.amount_of_group
    for k in range(starts[top], starts[top + 1]):
        amount_of_group[groups[k]] = amounts[k]
    # A swap that lowers the largest send comes first; of such, the one that lowers the sum of sends most.
    outsider, insider, work = -1, -1, np.int64(0)
    least, least_sum = sends[top], np.int64(0)
    for k in range(starts[top], starts[top + 1]):
        h = groups[k]
        target = state.rank_of_group[h]
        if units.of_rank[0, target] == units.of_rank[0, top]:
            continue
        for source in peers:
            g = state.group_of_rank[source]
            work += 4
            unlike = given.class_of_rank[source] != given.class_of_rank[target]
            if amount_of_group[g] >= amount_of_group[h] or unlike:
                continue
            _move(h, target, source, entries, units, change)
            _move(g, source, target, entries, units, change)
            first, first_sum = _largest_after(h, entries, sends, change)
            second, second_sum = _largest_after(g, entries, sends, change)
            largest = max(first, second)
            work += 3 * len(units.of_rank) * (offsets[h + 1] - offsets[h] + offsets[g + 1] - offsets[g]) // 2
            if largest < least or (largest == least and outsider >= 0 and first_sum + second_sum < least_sum):
                least, least_sum = largest, first_sum + second_sum
                outsider, insider = h, g
    for k in range(starts[top], starts[top + 1]):
        amount_of_group[groups[k]] = 0
    return outsider, insider, work


@helper
def _unlike(ranks, group_of_rank, offsets, class_of_rank, seen, turn):
    """The ranks whose groups differ: of groups that hold nothing, the first of each class stands for all."""
    unlike = np.empty(len(ranks), dtype=ranks.dtype)
    count = 0
    for r in ranks:
        g, kind = group_of_rank[r], class_of_rank[r]
        holds_nothing = offsets[g] == offsets[g + 1]
        if holds_nothing and seen[kind] == turn:
            continue
        if holds_nothing:
            seen[kind] = turn
        unlike[count] = r
        count += 1
    return unlike[:count]


@kernel
def _swap_while_it_helps(given, rank_of_group, sends, goal, work):
    """Swap, as long as the rank that sends most is over `goal` and a swap lowers it. Returns the work left."""
    m = len(rank_of_group)
    units, busy = given.units, given.busy
    zeros = np.zeros(m, dtype=np.int64)
    state = _State(rank_of_group, np.empty(m, dtype=np.int32), sends, zeros, zeros.copy())
    group_of_rank = state.group_of_rank
    for g in range(m):
        group_of_rank[rank_of_group[g]] = g
    seen, turn = np.full(largest_of(given.class_of_rank) + 1, -1, dtype=np.int64), 0
    while work >= 0 and len(busy) > 0:
        top = busy[0]
        for r in busy:
            if sends[r] > sends[top]:
                top = r
        if sends[top] <= goal:
            break
        node = units.of_rank[0, top]
        peers = given.node_ranks[given.node_starts[node] : given.node_starts[node + 1]]
        unlike = _unlike(peers, group_of_rank, given.entries.offsets, given.class_of_rank, seen, turn)
        turn += 1
        h, g, spent = _best_swap(given, state, top, unlike)
        work -= len(busy) + len(peers) - len(unlike) + spent
        if h < 0:
            break
        source, target = rank_of_group[g], rank_of_group[h]
        _move(h, target, source, given.entries, units, sends)
        _move(g, source, target, given.entries, units, sends)
        rank_of_group[h], rank_of_group[g] = source, target
        group_of_rank[source], group_of_rank[target] = h, g
    return work


class SwapSearch:
    """What the search needs of a problem, made once for many starts."""

    def __init__(self, problem: RearrangementProblem) -> None:
        self.problem = problem
        m, entries = problem.num_ranks, len(problem.volumes.ranks)
        columns = _Columns(np.zeros(m + 1, dtype=np.int64), np.empty(entries, np.int32), np.empty(entries, np.int64))
        _transpose(problem.entries, columns)
        nodes = problem.node_of_rank
        ranks = np.argsort(nodes, kind="stable").astype(np.int32)
        self.given = _Given(
            problem.entries,
            columns,
            problem.units,
            np.searchsorted(problem.class_places, problem.place_of_rank, side="right") - 1,
            np.searchsorted(nodes[ranks], np.arange(int(nodes.max()) + 2)),
            ranks,
            np.flatnonzero(np.diff(columns.starts)),
        )

    @property
    def class_of_rank(self) -> NDArray[np.int64]:
        """int64[m]."""
        return self.given.class_of_rank

    def lower(self, rank_of_group: NDArray[np.int32], goal: int, work: int) -> int:
        """Lower the largest send in place until it is `goal`, stuck, or `work` is spent; returns the work left.

        Every swap leaves all ranks that it touches below what the largest sent before: the largest send falls, or
        fewer ranks send as much. So it ends, and never makes the largest send larger.
        """
        return int(_swap_while_it_helps(self.given, rank_of_group, self.problem.sends(rank_of_group), goal, work))

    def entries_of(self, ranks: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return how many groups hold something of each of `ranks`."""
        starts: NDArray[np.int64] = self.given.columns.starts
        return starts[ranks + 1] - starts[ranks]

    def ranks_of_node(self, node: int) -> NDArray[np.int32]:
        """Ranks of `node`, ascending."""
        return self.given.node_ranks[self.given.node_starts[node] : self.given.node_starts[node + 1]]

    def column(self, rank: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the groups that hold something of `rank`, and how much."""
        starts, groups, amounts = self.given.columns
        here = slice(int(starts[rank]), int(starts[rank + 1]))
        return groups[here], amounts[here]


# --- bounds from multipliers -----------------------------------------------------------------------------------------


class NodeView(NamedTuple):
    """What one node's ranks have where: group ``groups[i]`` holds ``amounts[i, j]`` of its rank ``ranks[j]``."""

    inside: NDArray[np.int32]  # all ranks of the node
    ranks: NDArray[np.int32]  # those that have something
    groups: NDArray[np.int32]
    amounts: NDArray[np.int64]
    totals: NDArray[np.int64]  # what each of the ranks has in all
    kinds: NDArray[np.int64]  # the class of each of the groups
    rooms: NDArray[np.int64]  # how many groups of each class the node takes


def node_view(problem: RearrangementProblem, search: SwapSearch, node: int) -> NodeView | None:
    """Gather what the ranks of `node` have in which groups; None where that is nothing, or too much to look at."""
    inside = search.ranks_of_node(node)
    entries = search.entries_of(inside)
    ranks = inside[entries > 0]
    if not 0 < len(ranks) * int(entries.sum()) <= _MOST_CELLS:
        return None
    columns = [search.column(int(r)) for r in ranks]
    groups = np.unique(np.concatenate([c[0] for c in columns]))
    amounts = np.zeros((len(groups), len(ranks)), dtype=np.int64)
    for j, (holders, volumes) in enumerate(columns):
        amounts[np.searchsorted(groups, holders), j] = volumes
    num_classes = len(problem.class_places) - 1
    class_of_group = np.empty(problem.num_ranks, dtype=np.int64)
    class_of_group[problem.group_order] = np.repeat(np.arange(num_classes), np.diff(problem.class_groups))
    rooms = np.bincount(search.class_of_rank[inside], minlength=num_classes)
    return NodeView(inside, ranks, groups.astype(np.int32), amounts, amounts.sum(axis=0), class_of_group[groups], rooms)


@helper
def _kept_at_best(amounts, kinds, rooms, multiplier, kept):
    """Take the groups worth most to the node, as many as it takes of each class; what each rank keeps, their worth."""
    worth = np.zeros(len(amounts), dtype=np.int64)
    for i in range(len(amounts)):
        for j in range(len(multiplier)):
            worth[i] += amounts[i, j] * multiplier[j]
    room = rooms.copy()
    kept[:] = 0
    total = np.int64(0)
    for i in stable_order(-worth):
        if room[kinds[i]] > 0:
            room[kinds[i]] -= 1
            total += worth[i]
            for j in range(len(multiplier)):
                kept[j] += amounts[i, j]
    return total


@kernel
def _raise_bound(amounts, totals, kinds, rooms, multiplier, rounds, unit, send_bits):
    """Steer `multiplier` in place to those that prove most; returns the bound, by the division's floor."""
    num_ranks = len(totals)
    best, best_multiplier = np.int64(-1), multiplier.copy()
    kept = np.empty(num_ranks, dtype=np.int64)
    # Multipliers are steered by sends of twenty bits, so that products fit int64.
    shift = 0
    while largest_of(totals) >> (shift + send_bits):
        shift += 1
    for turn in range(rounds):
        worth = _kept_at_best(amounts, kinds, rooms, multiplier, kept)
        everything, weight = np.int64(0), np.int64(0)
        for j in range(num_ranks):
            everything += totals[j] * multiplier[j]
            weight += multiplier[j]
        bound = (everything - worth) // weight
        if bound > best:
            best = bound
            copy(best_multiplier, multiplier)
        # Ranks that send more than the mean count for more, in ever smaller steps.
        mean = bound >> shift
        reach = max((largest_of(totals) >> shift) * (4 + turn) // 4, 1)
        for j in range(num_ranks):
            off = ((totals[j] - kept[j]) >> shift) - mean
            multiplier[j] = max(multiplier[j] + multiplier[j] * 2 * off // reach, 1)
        # Their mean stays one unit, or sums would leave int64.
        total = sum_of(multiplier)
        for j in range(num_ranks):
            multiplier[j] = max(multiplier[j] * unit // total * num_ranks, 1)
    copy(multiplier, best_multiplier)
    return best


def _node_bound(problem: RearrangementProblem, view: NodeView, multiplier: NDArray[np.int64]) -> ProvenBound:
    """Return the bound of these multipliers on one node's ranks, with its prices: the last group taken sets them."""
    # As the certificate says it: the room of each place times its price, and what groups are worth beyond it.
    weight = int(problem.units.weights[0])
    worth = weight * (view.amounts @ multiplier)
    price = np.zeros(problem.num_places, dtype=np.int64)
    places = problem.place_of_rank[view.inside]
    kept = 0
    for k, room in enumerate(view.rooms.tolist()):
        descending = np.sort(worth[view.kinds == k])[::-1]
        kept += int(descending[:room].sum())
        if 0 < room < len(descending):
            here = (places >= problem.class_places[k]) & (places < problem.class_places[k + 1])
            price[places[here][0]] = descending[room - 1]
    spread = np.zeros(problem.num_ranks, dtype=np.int64)
    spread[view.ranks] = multiplier
    everything = weight * int((view.totals * multiplier).sum())
    value = -(-(everything - kept) // int(multiplier.sum()))
    return ProvenBound(value, "dual", BoundCertificate(spread, price))


def best_node_bound(
    problem: RearrangementProblem, search: SwapSearch, rows: Rows, tried: int, sends: NDArray[np.int64]
) -> tuple[ProvenBound | None, int]:
    """Return the best bound that one node proves, and the work it took.

    None where there are deeper levels, or numbers near int64's end. Tried are, of all nodes, the `tried` that prove
    most with equal multipliers, and the node whose rank sends most now.
    """
    largest_node = int(np.bincount(problem.node_of_rank).max())
    if len(problem.units.weights) > 1 or not problem.fits(4 * _UNIT * largest_node):
        return None, 0
    by_node = _even_bounds(problem, rows)
    first = int(problem.node_of_rank[int(np.argmax(sends))])
    nodes = [first, *(n for n in np.argsort(-by_node, kind="stable")[:tried].tolist() if n != first)]
    best: ProvenBound | None = None
    work = 4 * len(rows.kept)
    # Forty rounds a node: what one costs is known before, and booked.
    for node in nodes:
        view = node_view(problem, search, node)
        if view is None:
            continue
        work += _ROUNDS * len(view.groups) * (len(view.ranks) + 8)
        multiplier = np.full(len(view.ranks), _UNIT, dtype=np.int64)
        _raise_bound(view.amounts, view.totals, view.kinds, view.rooms, multiplier, _ROUNDS, _UNIT, _SEND_BITS)
        bound = _node_bound(problem, view, multiplier)
        if best is None or bound.value > best.value:
            best = bound
    return best, work


@kernel
def _keep_largest(order, places, kept, room, best):
    """Sum for each place the largest of its entries, as many as it has room for; `order` lists them descending."""
    for e in order:
        p = places[e]
        if room[p] > 0:
            room[p] -= 1
            best[p] += kept[e]


def _even_bounds(problem: RearrangementProblem, rows: Rows) -> NDArray[np.int64]:
    """What each node proves with equal multipliers, floored: it keeps what most is worth to it, place by place."""
    order, _ = sort_descending(rows.kept, int(rows.kept.max(initial=0)))
    best = np.zeros(problem.num_places, dtype=np.int64)
    _keep_largest(order, rows.places, rows.kept, np.diff(problem.starts), best)
    nodes = problem.node_of_rank
    present = np.zeros(int(nodes.max()) + 1, dtype=np.int64)
    np.add.at(present, nodes[problem.volumes.ranks], problem.volumes.amounts * int(problem.units.weights[0]))
    np.subtract.at(present, nodes[problem.rank_of_slot[problem.starts[:-1]]], best)
    return present // np.bincount(nodes)


def even_multipliers(problem: RearrangementProblem) -> NDArray[np.int64]:
    """Return the multipliers to start from, which count every rank alike."""
    return np.full(problem.num_ranks, _UNIT, dtype=np.int64)


def shift_multipliers(multiplier: NDArray[np.int64], sends: NDArray[np.int64], turn: int) -> NDArray[np.int64]:
    """Return multipliers that count ranks for more that send more than the mean, and for less the others."""
    shift = max(0, int(sends.max()).bit_length() - _SEND_BITS)
    scaled = sends >> shift
    reach = max(int(scaled.max()) * (4 + turn) // 4, 1)
    mean = int(scaled.sum()) // len(scaled)
    moved = np.maximum(multiplier + multiplier * 2 * (scaled - mean) // reach, 1)
    raised = moved * _UNIT // max(int(moved.sum()) // len(moved), 1)
    clipped: NDArray[np.int64] = np.clip(raised, 1, LARGEST_MULTIPLIER)
    return clipped
