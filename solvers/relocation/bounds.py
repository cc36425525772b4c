"""Lower bounds on the volume that any assignment under a cap moves.

Take a node whose residents (the items of which most lies there) cost more than its ranks may carry together. Whatever
the assignment, items whose cost reaches the excess leave, and each adds at least what leaving adds. The cheapest such
set is a knapsack:

============== =====================================================================================================
name           the least volume of items whose cost reaches the excess
============== =====================================================================================================
``fractional`` items may be cut: the dual value at the price of the item that is cut, in exact integers, rounded up
``integer``    whole items, by meeting in the middle, where few items reside (at most 32)
``rounded``    costs rounded down to units of just over cap / k, k = 2..8: a rank holds k - 1 units at most, one item
               over half the cap, two over a third of it; where ranks have few items (at most 8)
``exchange``   where counts are equal: as many items come as go, and what comes has a cost too, and crosses
============== =====================================================================================================

Summed over nodes, plus what crosses even if all stay, it bounds what crosses; with ranks in place of nodes, what moves
in all. Token caps and equal counts give an excess in tokens and in items, rounding one in units, and the largest of
these bounds counts.
Where volumes are costs, the fractional bound is the excess itself. An assignment that crosses no more than X moves at
least (bound on all) - X inside nodes.

For ``exchange`` take all nodes over what they may carry as one. If j items leave it, j (more or less, where it does not
hold as many as it shall) come in, at least the smallest of the others: those that leave cost at least the excess and
these, which bounds j from below by the largest that may leave; and what comes crosses beside what goes.

Rounding is a dual feasible function, as in :mod:`solvers.dual_feasible`.

Load rebalancing: Aggarwal, Motwani & Zhu, "The load rebalancing problem", Journal of Algorithms 60(1), 2006.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers.groups import group_loads, members_by_group, read_only
from solvers.relocation._problem import RelocationProblem

MOST_ITEMS = 32  # 2^16 subsets a half
FEW_A_RANK = 8  # items a rank, on average
_MOST_SUBSETS = 1 << 15  # in all sets together, about 2 ms
_INT63 = 62
_PARTS_OF_A_CAP = range(2, 9)


class Dimension(NamedTuple):
    """A quantity of which each set holds no more than `most`; whether it is a cost that was rounded."""

    weight: NDArray[np.int64]
    most: NDArray[np.int64]
    rounded: bool = False


class MoveBounds(NamedTuple):
    """Proven least volumes, with the arguments that prove them."""

    inter: int
    inter_name: str
    leave: int
    leave_name: str


@helper
def _sift(heap, size, place, volume, weight):
    """Least volume per weight on top, by exact cross multiplication; ties to the lower item."""
    item = heap[place]
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and _before(heap[child + 1], heap[child], volume, weight):
            child += 1
        if not _before(heap[child], item, volume, weight):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = item


@helper
def _before(a, b, volume, weight):
    left, right = volume[a] * weight[b], volume[b] * weight[a]
    return left < right or (left == right and a < b)


@helper
def _cut(members, volume, weight, excess, heap):
    """Least volume of `members`, the last one cut, that weighs `excess`. All products fit int64."""
    # A heap, as mostly few items reach the excess: O(k + as many times log k), where a sort takes k log k.
    size = 0
    for i in members:
        if weight[i] > 0:
            heap[size] = i
            size += 1
    for place in range(size // 2 - 1, -1, -1):
        _sift(heap, size, place, volume, weight)
    least = np.int64(0)
    while size > 0 and excess > 0:
        i = heap[0]
        if weight[i] >= excess:
            return least + (volume[i] * excess + weight[i] - 1) // weight[i]
        least += volume[i]
        excess -= weight[i]
        size -= 1
        heap[0] = heap[size]
        _sift(heap, size, 0, volume, weight)
    return least


class _Subsets(NamedTuple):
    """Room for the subsets of both halves of a set, of s at most. Writable."""

    volumes: NDArray[np.int64]  # int64[2 s]: of each subset, the first half's first
    weights: NDArray[np.int64]  # int64[2 s]: ascending within each half
    spare: NDArray[np.int64]  # int64[s, 2]: volumes and weights while they are merged


@helper
def _fill_subsets(members, volume, weight, subsets, at):
    """All subsets of `members` from place `at`, ascending in weight. Returns their number. O(2^k)."""
    volumes, weights, spare = subsets.volumes, subsets.weights, subsets.spare
    volumes[at], weights[at] = 0, 0
    size = 1
    for i in members:
        v, w = volume[i], weight[i]
        for k in range(size):
            spare[k, 0], spare[k, 1] = volumes[at + k], weights[at + k]
        without, with_it = 0, 0
        for k in range(at, at + 2 * size):  # those without the item and those with it, merged
            if with_it == size or (without < size and spare[without, 1] <= spare[with_it, 1] + w):
                volumes[k], weights[k] = spare[without, 0], spare[without, 1]
                without += 1
            else:
                volumes[k], weights[k] = spare[with_it, 0] + v, spare[with_it, 1] + w
                with_it += 1
        size *= 2
    return size


@helper
def _whole(members, volume, weight, excess, subsets):
    """Least volume of whole `members` that weigh `excess`, by meeting in the middle. O(2^(k/2))."""
    volumes, weights, middle = subsets.volumes, subsets.weights, len(members) // 2
    size = _fill_subsets(members[:middle], volume, weight, subsets, np.int64(0))
    end = size + _fill_subsets(members[middle:], volume, weight, subsets, size)
    # The lighter a subset of one half, the fewer of the other half go with it: the heaviest, of which the least counts.
    least, least_there = np.int64(2**63 - 1), np.int64(2**63 - 1)
    there = size
    for k in range(size, end):
        while there > 0 and weights[there - 1] + weights[k] >= excess:
            there -= 1
            least_there = min(least_there, volumes[there])
        if there < size:
            least = min(least, volumes[k] + least_there)
    return least


@kernel
def _cut_all(members, offsets, volume, weight, excess, is_weight, found):
    """Per set, the fractional bound."""
    heap = np.empty(len(members), dtype=np.int64)
    # Where volumes are weights, of which cut items weigh just the excess, nothing has to be chosen.
    for s in range(len(excess)):
        if excess[s] <= 0:
            found[s] = 0
        elif is_weight:
            found[s] = excess[s]
        else:
            found[s] = _cut(members[offsets[s] : offsets[s + 1]], volume, weight, excess[s], heap)


@kernel
def _whole_all(members, offsets, volume, weight, excess, most_items, found):
    """Per small set, the integer bound. Returns whether one was better."""
    better = False
    # One table for all sets, of the largest that is not too large.
    most = 0
    for s in range(len(excess)):
        count = offsets[s + 1] - offsets[s]
        if excess[s] > 0 and count <= most_items:
            most = max(most, count)
    half = 1 << (most - most // 2)
    subsets = _Subsets(np.empty(2 * half, np.int64), np.empty(2 * half, np.int64), np.empty((half, 2), np.int64))
    for s in range(len(excess)):
        if excess[s] > 0 and offsets[s + 1] - offsets[s] <= most_items:
            value = _whole(members[offsets[s] : offsets[s + 1]], volume, weight, excess[s], subsets)
            if value > found[s]:
                found[s] = value
                better = True
    return better


@kernel
def plain_inter_bound(costs, volumes, home, node_of_rank, num_nodes, cap):
    """As :func:`inter_bound`, in one pass, where costs alone count and volumes are a multiple of them; -1 where not.

    Then cut items prove just the excess of each node. Where so few lie on a node that whole ones might prove more, it
    is -1 too, and where ranks have so few that rounded costs might.
    """
    if len(costs) <= FEW_A_RANK * len(node_of_rank):
        return np.int64(-1)
    largest, most_volume, total = np.int64(0), np.int64(0), np.int64(0)
    held, count = np.zeros(num_nodes, np.int64), np.zeros(num_nodes, np.int64)
    for i in range(len(costs)):
        largest, most_volume = max(largest, costs[i]), max(most_volume, volumes[i])
        total += costs[i]
        held[node_of_rank[home[i]]] += costs[i]
        count[node_of_rank[home[i]]] += 1
    factor = most_volume // max(largest, 1)
    for i in range(len(costs)):
        if volumes[i] != costs[i] * factor:
            return np.int64(-1)
    ranks = np.zeros(num_nodes, np.int64)
    for node in node_of_rank:
        ranks[node] += 1
    bound = np.int64(0)
    for k in range(num_nodes):
        most = total if cap >= (total + ranks[k] - 1) // ranks[k] else cap * ranks[k]
        if held[k] > most:
            if count[k] <= MOST_ITEMS:
                return np.int64(-1)
            bound += (held[k] - most) * factor
    return bound


def _scaled(
    volume: NDArray[np.int64], weight: NDArray[np.int64], excess: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], int]:
    """Shift until products fit int64: volumes and excess rounded down, weights up, so that bounds stay bounds."""
    volume_bits, weight_bits = (int(a.max(initial=0)).bit_length() for a in (volume, weight))
    over = max(0, volume_bits + weight_bits - _INT63 + 1)
    weight_shift = min(over, max(0, weight_bits - 31))
    volume_shift = over - weight_shift
    if weight_shift:
        weight = (weight >> weight_shift) + 1
        excess = excess >> weight_shift
    return volume >> volume_shift if volume_shift else volume, weight, excess, volume_shift


def _least(
    sets: tuple[NDArray[np.int64], NDArray[np.int64]],
    volume: NDArray[np.int64],
    weight: NDArray[np.int64],
    excess: NDArray[np.int64],
    divisible: bool,
) -> tuple[NDArray[np.int64], bool]:
    """Least volume that must leave each set, and whether whole items proved more than cut ones."""
    members, offsets = sets
    found = np.zeros(len(excess), dtype=np.int64)
    if not (excess > 0).any():
        return found, False
    factor = int(volume.max(initial=0)) // max(int(weight.max(initial=0)), 1)
    is_weight = np.array_equal(volume, weight * factor)  # of which cut items are just the excess
    v, w, e, shift = (volume, weight, excess, 0) if is_weight else _scaled(volume, weight, excess)
    _cut_all(members, offsets, read_only(v), read_only(w), e, is_weight, found)
    if is_weight:
        found *= factor
    if shift:
        found <<= shift
    if divisible:
        return found, False
    most_items = _affordable(np.diff(offsets)[excess > 0])
    return found, bool(_whole_all(members, offsets, read_only(volume), read_only(weight), excess, most_items, found))


def _affordable(counts: NDArray[np.int64]) -> int:
    """Return up to how many items a set may have for all such sets together to be cheap to solve."""
    small = np.sort(counts[counts <= MOST_ITEMS])
    subsets = np.cumsum(1 << ((small + 1) // 2))
    taken = int(np.searchsorted(subsets, _MOST_SUBSETS, side="right"))
    if taken == len(small):
        return MOST_ITEMS
    return int(small[taken]) - 1


def _bound_on_sets(
    home: NDArray[np.int32],
    volume: NDArray[np.int64],
    dimensions: list[Dimension],
    divisible: bool = False,
) -> tuple[NDArray[np.int64], str]:
    """Return the least volume that leaves each set, and the strongest argument that was needed."""
    num_sets = len(dimensions[0].most)
    members, offsets, _ = members_by_group(home, num_sets)
    best = np.zeros(num_sets, dtype=np.int64)
    name = "fractional"
    for weight, most, rounded in dimensions:
        held = group_loads(weight, home, num_sets)
        found, better = _least((members, offsets), volume, weight, held - most, divisible)
        if rounded and (found > best).any():
            name = "rounded"
        elif better and name == "fractional":
            name = "integer"
        best = np.maximum(best, found)
    return best, name


def _dimensions(
    problem: RelocationProblem, cap: int, place_of_rank: NDArray[np.int32], ranks_in_place: NDArray[np.int64],
    divisible: bool = False,
) -> list[Dimension]:  # fmt: skip
    """All of which a place (a node, or a rank itself) holds no more than its ranks may; costs come first."""
    # Beyond the sum of all costs a cap binds nothing, and cap * ranks might not fit: hence Python's integers.
    most = np.array([min(cap * k, problem.total) for k in ranks_in_place.tolist()], dtype=np.int64)
    found = [Dimension(problem.costs, most)]
    if problem.sizes is not None:
        room_of_place = [0] * len(ranks_in_place)
        for place, room in zip(place_of_rank.tolist(), problem.room.tolist(), strict=True):
            room_of_place[place] += room
        most = np.array([min(room, problem.total_size) for room in room_of_place], dtype=np.int64)
        found.append(Dimension(problem.sizes, most))
    if problem.equal_counts:
        few, longer = divmod(len(problem.costs), problem.num_ranks)
        ones = np.ones(len(problem.costs), dtype=np.int64)
        found.append(Dimension(ones, ranks_in_place * few + np.minimum(ranks_in_place, longer)))
    # Costs in units of which a rank holds k - 1 at most, for several k; not where ranks have more than few items.
    if not divisible and len(problem.costs) <= FEW_A_RANK * problem.num_ranks:
        for k in _PARTS_OF_A_CAP:
            unit = cap // k + 1
            if unit <= problem.largest:
                found.append(Dimension(problem.costs // unit, ranks_in_place * (cap // unit), True))
    return found


def _exchanged(
    problem: RelocationProblem, most_per_node: NDArray[np.int64], ranks_in_node: NDArray[np.int64],
    least: NDArray[np.int64],
) -> int:  # fmt: skip
    """Least volume across nodes where as many items come as go, beyond what crosses if all stay; `least` leaves each.

    The least number of items that leave the nodes that are over is taken from the largest of them.
    """
    # 1. What resides where, and which nodes are over: what has nothing to lose by leaving resides nowhere.
    costs, volume = problem.costs, problem.affinity.leave_node
    node_of_item = problem.nodes.of_rank[problem.affinity.home]
    resident = volume > 0
    excess = group_loads(costs[resident], node_of_item[resident], problem.num_nodes) - most_per_node
    over = excess > 0
    inside = over[node_of_item] & resident
    if not over.any() or inside.all():
        return 0
    # 2. How many leave at least: sums of the largest inside against those of the smallest that then come.
    more = int(ranks_in_node[over].sum()) * (len(costs) // problem.num_ranks) - int(np.count_nonzero(inside))
    mine = inside[problem.order]
    go = np.concatenate(([0], np.cumsum(costs[problem.order[mine]])))
    come = np.concatenate(([0], np.cumsum(costs[problem.order[~mine]][::-1])))
    number = np.arange(len(go)) + more
    possible = number < len(come)
    need = int(excess[over].sum()) + come[np.maximum(number[possible], 0)]
    enough = go[possible] >= need
    if not enough.any():
        return 0
    # 3. The cheapest that may leave, cut, and the cheapest that may come in that number.
    first = int(np.argmax(enough))
    back = max(0, first + more)
    sets = np.flatnonzero(inside), np.array([0, np.count_nonzero(inside)])
    leaves, _ = _least(sets, volume, costs, need[first : first + 1], True)
    others = volume[~inside]
    smallest = int(np.partition(others, back - 1)[:back].sum()) if back else 0
    return max(int(leaves[0]), int(least[over].sum())) + smallest


def inter_bound(problem: RelocationProblem, cap: int, divisible: bool = False) -> tuple[int, str]:
    """Proven least volume across nodes of any assignment of `problem` under `cap`, and the argument.

    Items that are `divisible` may be on several ranks, cost and volume in equal parts.
    """
    affinity, of_rank = problem.affinity, problem.nodes.of_rank
    ranks_in_node = np.diff(problem.nodes.start)
    # 1. Each node by itself, in all that it holds.
    nodes = _dimensions(problem, cap, of_rank, ranks_in_node, divisible)
    least, name = _bound_on_sets(of_rank[affinity.home], affinity.leave_node, nodes, divisible)
    bound = int(least.sum())
    # 2. Nodes that are over together, where as many items come as go.
    if problem.equal_counts and not divisible:
        exchanged = _exchanged(problem, nodes[0].most, ranks_in_node, least)
        if exchanged > bound:
            bound, name = exchanged, "exchange"
    return affinity.base_inter + bound, name


def move_bounds(problem: RelocationProblem, cap: int) -> MoveBounds:
    """Proven least volume across nodes, and in all, of any assignment of `problem` under `cap`."""
    affinity, m = problem.affinity, problem.num_ranks
    inter, inter_name = inter_bound(problem, cap)
    # What leaves a rank moves, whether it crosses or not.
    ranks = _dimensions(problem, cap, np.arange(m, dtype=np.int32), np.ones(m, dtype=np.int64))
    stays, leave_name = _bound_on_sets(affinity.strongest, affinity.leave_rank, ranks)
    return MoveBounds(inter, inter_name, max(affinity.base_moved + int(stays.sum()), inter), leave_name)
