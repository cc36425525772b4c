"""Two ranks at a time, from an assignment that keeps all rules to one that keeps them and of which less crosses nodes.

Where ranks hold a few items each and the cap leaves next to nothing, hardly any single move or swap is allowed. But two
ranks with eight items each have 65,536 ways to share these; those that keep the cap are found by meeting in the middle,
and the best of them is taken, also where it is as good as what is there: so a search goes on.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers._loops import draw, sum_of

WORK_A_RANK = 8000  # units, after which little is gained
WORK_TO_FIT = 500  # units an item
_OF_A_RANK = 8  # items shared at most; 2^8 subsets of them
_OF_A_RANK_ANEW = 6  # where there is nothing to mend: more pairs of ranks, in a third of the time each, find more
_EACH_PAIR = 16  # units
_ANY_LOSS = 2**61
_PASSES = 3
_TRIES = 64  # others that a rank shares with


class _Ways(NamedTuple):
    """All subsets of up to eight items, by mask, and their masks in ascending order of cost."""

    cost: NDArray[np.int64]
    gain: NDArray[np.int64]
    size: NDArray[np.int64]
    items: NDArray[np.int64]
    order: NDArray[np.int64]


class _Table(NamedTuple):
    """Room for what two ranks put in: the items of each, what they are worth, and the limits of what the first gets."""

    items: NDArray[np.int64]
    others: NDArray[np.int64]
    gains: NDArray[np.int64]
    other_gains: NDArray[np.int64]
    spare: NDArray[np.int64]
    limits: NDArray[np.int64]
    ranks: NDArray[np.int64]


class _State(NamedTuple):
    """What all ranks hold, and may."""

    loads: NDArray[np.int64]
    held: NDArray[np.int64]
    counts: NDArray[np.int64]
    room: NDArray[np.int64]


class _Rings(NamedTuple):
    """The items of every rank in a queue: `first` and `last` of each rank, and the one after each item; -1: none."""

    first: NDArray[np.int64]
    last: NDArray[np.int64]
    after: NDArray[np.int64]


@helper
def _make_ways():
    subsets = 1 << _OF_A_RANK
    return _Ways(
        np.zeros(subsets, np.int64), np.zeros(subsets, np.int64), np.zeros(subsets, np.int64),
        np.zeros(subsets, np.int64), np.zeros(subsets, np.int64),
    )  # fmt: skip


@helper
def _make_table():
    k = _OF_A_RANK
    return _Table(
        np.empty(k, np.int64), np.empty(k, np.int64), np.empty(k, np.int64), np.empty(k, np.int64),
        np.empty(1 << k, np.int64), np.empty(6, np.int64), np.empty(2, np.int64),
    )  # fmt: skip


@helper
def _push(rings, rank, item):
    rings.after[item] = -1
    if rings.first[rank] < 0:
        rings.first[rank] = item
    else:
        rings.after[rings.last[rank]] = item
    rings.last[rank] = item


@helper
def _pop(rings, rank):
    item = rings.first[rank]
    rings.first[rank] = rings.after[item]
    return item


@helper
def _make_rings(where, m):
    rings = _Rings(np.full(m, -1), np.full(m, -1), np.full(len(where), -1))
    for i in range(len(where)):
        _push(rings, np.int64(where[i]), i)
    return rings


@helper
def _fill(ways, items, costs, sizes, gains, spare):
    """All subsets of `items`, of which item i is worth ``gains[i]`` on the first of the two ranks. O(2^k)."""
    cost, order = ways.cost, ways.order
    subsets = 1
    for k in range(len(items)):
        c, gain, size = costs[items[k]], gains[k], sizes[items[k]]
        for s in range(subsets):
            cost[subsets + s] = cost[s] + c
            ways.gain[subsets + s] = ways.gain[s] + gain
            ways.size[subsets + s] = ways.size[s] + size
            ways.items[subsets + s] = ways.items[s] + 1
            spare[s] = order[s]
        without, with_it = 0, 0
        for at in range(2 * subsets):
            if with_it == subsets or (without < subsets and cost[spare[without]] <= cost[spare[with_it]] + c):
                order[at] = spare[without]
                without += 1
            else:
                order[at] = spare[with_it] + subsets
                with_it += 1
        subsets *= 2
    return subsets


@helper
def _best(mine, num_mine, other, num_other, limits, least_gain):
    """Of the subsets of both halves together that keep the limits, the one of most gain; (-1, -1) if none is enough.

    `limits` are the least and the most of cost, size and count. Last is how many were looked at. Another way than that
    of all of `mine` and none of the others.
    """
    a_best, b_best, gain, looked = -1, -1, least_gain - 1, 0
    top = num_other - 1
    for at in range(num_mine):
        a = mine.order[at]
        while top >= 0 and mine.cost[a] + other.cost[other.order[top]] > limits[1]:
            top -= 1
        down = top
        while down >= 0:
            b = other.order[down]
            if mine.cost[a] + other.cost[b] < limits[0]:
                break
            down -= 1
            if mine.gain[a] + other.gain[b] <= gain or (b == 0 and a == num_mine - 1):
                continue
            size, count = mine.size[a] + other.size[b], mine.items[a] + other.items[b]
            if limits[2] <= size <= limits[3] and limits[4] <= count <= limits[5]:
                a_best, b_best, gain = a, b, mine.gain[a] + other.gain[b]
        looked += top - down
    return a_best, b_best, looked


@helper
def _take(rings, rank, most, items, gains, near, far, home_node, volumes):
    """Take up to `most` items off the queue of `rank`: how many, and what each is worth on node `near`, not `far`."""
    size = 0
    while size < most and rings.first[rank] >= 0:
        i = _pop(rings, rank)
        home = home_node[i]
        items[size] = i
        gains[size] = 0 if near == far else volumes[i] if home == near else -volumes[i] if home == far else 0
        size += 1
    return size


@helper
def _put(rings, ranks, items, mask, where, counts):
    """Put those of `items` that are in `mask` on the first of two ranks, the others on the second."""
    for k in range(len(items)):
        rank = ranks[0] if (mask >> k) & 1 else ranks[1]
        where[items[k]] = rank
        counts[rank] += 1
        _push(rings, rank, items[k])


@helper
def _choose(rings, turn, chance, home_node, node_of_rank, node_start, ranks_by_node, where, last):
    """Two ranks: three times in four of the next item that is not at home, and one of the node where it is.

    That item then comes first on its rank. ``last[0]`` is that of the turn before; some item is not at home.
    """
    m, i = len(node_of_rank), last[0]
    if turn % 4 == 0:
        x = draw(chance, m)
        return x, (x + 1 + draw(chance, m - 1)) % m
    for _ in range(len(where)):
        i = (i + 1) % len(where)
        if home_node[i] != node_of_rank[where[i]]:
            break
    last[0] = i
    x, home = np.int64(where[i]), home_node[i]
    while rings.first[x] != i:
        _push(rings, x, _pop(rings, x))
    return x, ranks_by_node[node_start[home] + draw(chance, node_start[home + 1] - node_start[home])]


@helper
def _limit(limits, state, x, y, a, cost, size, caps, fewest, most):
    """Limits of what x gets, where it puts in `a` items that cost `cost` and are of `size`.

    `caps` are of the costs of x and y, then of their sizes.
    """
    limits[0], limits[1] = state.loads[y] + cost - caps[1], caps[0] - state.loads[x] + cost
    limits[2], limits[3] = state.held[y] + size - caps[3], caps[2] - state.held[x] + size
    limits[4] = max(fewest - state.counts[x] + a, state.counts[y] + a - most)
    limits[5] = min(most - state.counts[x] + a, state.counts[y] + a - fewest)


@helper
def _share(x, y, of_a_rank, caps, loss, costs, sizes, volumes, home_node, node_of_rank, where, rings, mine, other,
           table, state, fewest, most):  # fmt: skip
    """Two ranks share `of_a_rank` items of each anew, within `caps`, so that at most `loss` more crosses.

    Returns how much less crosses, and the work.
    """
    near, far = node_of_rank[x], node_of_rank[y]
    a = _take(rings, x, of_a_rank, table.items, table.gains, near, far, home_node, volumes)
    b = _take(rings, y, of_a_rank, table.others, table.other_gains, near, far, home_node, volumes)
    items, others = table.items[:a], table.others[:b]
    num_mine = _fill(mine, items, costs, sizes, table.gains, table.spare)
    num_other = _fill(other, others, costs, sizes, table.other_gains, table.spare)
    cost, size, gain = mine.cost[num_mine - 1], mine.size[num_mine - 1], mine.gain[num_mine - 1]
    _limit(table.limits, state, x, y, a, cost, size, caps, fewest, most)
    of_x, of_y, looked = _best(mine, num_mine, other, num_other, table.limits, max(gain, -_ANY_LOSS) - loss)
    if of_x < 0:
        of_x, of_y = num_mine - 1, 0
    cost, size = mine.cost[of_x] + other.cost[of_y] - cost, mine.size[of_x] + other.size[of_y] - size
    state.loads[x] += cost
    state.loads[y] -= cost
    state.held[x] += size
    state.held[y] -= size
    state.counts[x] -= a
    state.counts[y] -= b
    table.ranks[0], table.ranks[1] = x, y
    _put(rings, table.ranks, items, of_x, where, state.counts)
    _put(rings, table.ranks, others, of_y, where, state.counts)
    return mine.gain[of_x] + other.gain[of_y] - gain, _EACH_PAIR + 2 * (num_mine + num_other) + looked


@kernel
def share_anew(
    costs, volumes, sizes, home_node, node_of_rank, node_start, ranks_by_node, where, loads, held, cap, room, counts,
    fewest, most, enough, work,
):  # fmt: skip
    """Two ranks after another share some of their items anew, so that never more crosses, until that is `enough`.

    Changes `where`, `loads`, `held` and `counts`, which keep the rules; returns what crosses by `volumes` at the end.
    Ranks hold `fewest` to `most` items.
    """
    chance, turn, crossing = np.ones(1, np.int64), 0, np.int64(0)
    rings, mine, other, table = _make_rings(where, len(loads)), _make_ways(), _make_ways(), _make_table()
    state, caps, last = _State(loads, held, counts, room), np.empty(4, np.int64), np.zeros(1, np.int64)
    for i in range(len(costs)):
        crossing += volumes[i] if home_node[i] != node_of_rank[where[i]] else 0
    while work > 0 and crossing > enough:
        turn += 1
        x, y = _choose(rings, turn, chance, home_node, node_of_rank, node_start, ranks_by_node, where, last)
        caps[0], caps[1], caps[2], caps[3] = cap, cap, room[x], room[y]
        less, done = _share(
            x, y, _OF_A_RANK_ANEW, caps, np.int64(0), costs, sizes, volumes, home_node, node_of_rank, where, rings,
            mine, other, table, state, fewest, most,
        )  # fmt: skip
        crossing -= less
        work -= done
    return crossing


@helper
def _fits(state, x, cap, fewest, most):
    return state.loads[x] <= cap and state.held[x] <= state.room[x] and fewest <= state.counts[x] <= most


@kernel
def share_to_fit(
    costs, volumes, sizes, home_node, node_of_rank, node_start, ranks_by_node, where, loads, held, cap, room, counts,
    fewest, most, work,
):  # fmt: skip
    """Ranks over the cap, or that hold too much, too many or too few, share items anew with others, their node's first.

    Changes `where`, `loads`, `held` and `counts`; no rank that fits ceases to. Returns the work left, 0 where some do
    not fit.
    """
    chance, m = np.ones(1, np.int64), len(loads)
    rings, mine, other, table = _make_rings(where, m), _make_ways(), _make_ways(), _make_table()
    state, caps = _State(loads, held, counts, room), np.empty(4, np.int64)
    item, volume = sum_of(costs) // len(costs), sum_of(volumes) // len(costs)
    for again in range(_PASSES):
        left = 0
        for x in range(m):
            first, ranks = node_start[node_of_rank[x]], node_start[node_of_rank[x] + 1] - node_start[node_of_rank[x]]
            for turn in range(_TRIES):
                if work <= 0 or _fits(state, x, cap, fewest, most):
                    break
                inside = ranks > 1 and turn < _TRIES // 2
                y = ranks_by_node[first + draw(chance, ranks)] if inside else (x + 1 + draw(chance, m - 1)) % m
                if y == x:
                    continue
                keeps = 3 * (turn % 2)  # quarters of what is over: every other time only some of it has to go
                caps[0] = cap + max(0, loads[x] - cap) // 4 * keeps
                if caps[0] > cap:  # or less, where the other has not so much room
                    caps[0] = max(caps[0], loads[x] - max(1, (cap - loads[y]) // 2))
                caps[1] = max(cap, loads[y])
                caps[2] = room[x] + max(0, held[x] - room[x]) // 4 * keeps
                caps[3] = max(room[y], held[y])
                loss = np.int64(_ANY_LOSS)
                if again < _PASSES - 1:  # first no more than a few items' volume
                    loss = (max(0, loads[x] - cap) // max(1, item) + 1) * volume << 2 * again
                _, done = _share(
                    x, y, _OF_A_RANK, caps, loss, costs, sizes, volumes, home_node, node_of_rank, where,
                    rings, mine, other, table, state, fewest, most,
                )  # fmt: skip
                work -= done
            left += not _fits(state, x, cap, fewest, most)
        if left == 0:
            return max(work, 1)
    return 0
