"""Lower bounds on the largest send, from multipliers: no rank's send is below a weighted mean of all ranks' sends.

For any multipliers >= 0, the least weighted sum of sends over all bijections, divided by the sum of the multipliers, is
a lower bound (Lagrangian relaxation). All equal, it is the least sum shared out evenly. All on one node, it needs no
transport: a node of c ranks keeps, at best, the c groups that are worth most to it, each element counted with its
rank's multiplier. Few nodes decide, so this one is the better of the two where there are many. Multipliers only steer:
whatever they are, the bound is proven by them and by the prices that go with them.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers._loops import copy, largest_of, stable_order, sum_of
from solvers._sort import sort_descending
from solvers.rearrangement._problem import ProvenBound, RearrangementProblem, Rows
from solvers.rearrangement._swap_search import SwapSearch
from solvers.rearrangement.types import BoundCertificate

_UNIT = 1 << 16  # the mean of the multipliers
LARGEST_MULTIPLIER = 16 * _UNIT
_ROUNDS = 40
_MOST_CELLS = 1 << 24  # of a view, at most: with more, one node is not few
_SEND_BITS = 20  # of the sends that steer multipliers


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
        mean = bound >> shift
        reach = max((largest_of(totals) >> shift) * (4 + turn) // 4, 1)
        for j in range(num_ranks):
            off = ((totals[j] - kept[j]) >> shift) - mean
            multiplier[j] = max(multiplier[j] + multiplier[j] * 2 * off // reach, 1)
        total = sum_of(multiplier)
        for j in range(num_ranks):
            multiplier[j] = max(multiplier[j] * unit // total * num_ranks, 1)
    copy(multiplier, best_multiplier)
    return best


def _node_bound(problem: RearrangementProblem, view: NodeView, multiplier: NDArray[np.int64]) -> ProvenBound:
    """Return the bound of these multipliers on one node's ranks, with its prices: the last group taken sets them."""
    weight = int(problem.weights[0])
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
    largest_node = int(np.bincount(problem.unit_of_rank[0]).max())
    if len(problem.weights) > 1 or not problem.fits(4 * _UNIT * largest_node):
        return None, 0
    by_node = _even_bounds(problem, rows)
    first = int(problem.unit_of_rank[0][int(np.argmax(sends))])
    nodes = [first, *(n for n in np.argsort(-by_node, kind="stable")[:tried].tolist() if n != first)]
    best: ProvenBound | None = None
    work = 4 * len(rows.kept)
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
    nodes = problem.unit_of_rank[0]
    present = np.zeros(int(nodes.max()) + 1, dtype=np.int64)
    np.add.at(present, nodes[problem.volumes.ranks], problem.volumes.amounts * int(problem.weights[0]))
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
