"""Two ranks at a time, from an assignment that keeps all rules to one that keeps them and of which less crosses nodes.

Where ranks hold a few items each and the cap leaves next to nothing, hardly any single move or swap is allowed. But two
ranks with eight items each have 65,536 ways to share these; those that keep the cap are found by meeting in the middle,
and the best of them is taken, also where it is as good as what is there: so a search goes on.

Two searches do so: :func:`share_to_fit` for ranks that break a rule, :func:`share_anew` for what crosses without need.
Below them is :func:`_share`, one pair of ranks from queues to queues, and then its steps.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers._loops import draw, sum_of
from solvers.relocation._problem import NONE

WORK_A_RANK = 8000  # units, after which little is gained
WORK_TO_FIT = 500  # units an item
_OF_A_RANK = 8  # items shared at most; 2^8 subsets of them
_OF_A_RANK_ANEW = 6  # where there is nothing to mend: more pairs of ranks, in a third of the time each, find more
_EACH_PAIR = 16  # units
_ANY_LOSS = 2**61
_PASSES = 3
_TRIES = 64  # others that a rank shares with

_TRADE = np.dtype(
    [
        # The two ranks
        ("x", np.int64),
        ("y", np.int64),
        # What they may hold after it
        ("cap_x", np.int64),
        ("cap_y", np.int64),
        ("room_x", np.int64),
        ("room_y", np.int64),
        ("loss", np.int64),  # by how much more may cross
        # What x may get of all that both put in: cost, size and number
        ("least_cost", np.int64),
        ("most_cost", np.int64),
        ("least_size", np.int64),
        ("most_size", np.int64),
        ("fewest", np.int64),
        ("most", np.int64),
        ("last", np.int64),  # the last item that a pair was chosen for
    ]
)
"""What two ranks share now, and within which limits."""


class Totals(NamedTuple):
    """What ranks hold. Writable."""

    loads: NDArray[np.int64]  # int64[m]
    sizes: NDArray[np.int64]  # int64[m]
    counts: NDArray[np.int64]  # int64[m]


class _Places(NamedTuple):
    """Where items are, and the queue of each rank. Writable."""

    where: NDArray[np.int32]  # int32[n]: the rank of each item
    home_node: NDArray[np.int64]  # int64[n]: the node of its home
    first: NDArray[np.int64]  # int64[m]: the item that comes first on each rank; NONE: none
    last: NDArray[np.int64]  # int64[m]: the one that comes last
    after: NDArray[np.int64]  # int64[n]: the one behind each; NONE: none


class _Half(NamedTuple):
    """Up to k items that a rank puts in, and all their subsets, by mask. Writable."""

    items: NDArray[np.int64]  # int64[k]
    gains: NDArray[np.int64]  # int64[k]: how much less of each crosses on the first rank than on the second
    cost: NDArray[np.int64]  # int64[2^k]
    gain: NDArray[np.int64]  # int64[2^k]
    size: NDArray[np.int64]  # int64[2^k]
    number: NDArray[np.int64]  # int64[2^k]
    order: NDArray[np.int64]  # int64[2^k]: masks, ascending in cost


class _Table(NamedTuple):
    """Room for what two ranks put in. Writable."""

    trade: NDArray[np.void]  # _TRADE[1]
    mine: _Half
    other: _Half
    spare: NDArray[np.int64]  # int64[2^k]


@kernel
def share_to_fit(items, nodes, limits, where, totals, work):
    """Ranks over the cap, or that hold too much, too many or too few, share items anew with others, their node's first.

    Changes `where` and `totals`; no rank that fits ceases to. Returns whether all do then.
    """
    chance, m, n = np.ones(1, np.int64), len(nodes.of_rank), len(where)
    places, table = _make_places(items, nodes, where), _make_table()
    item, volume = sum_of(items.costs) // n, sum_of(items.leave_node) // n
    # In each pass more may cross than in the one before, and in the last one whatever it takes.
    for again in range(_PASSES):
        left = 0
        for x in range(m):
            node = nodes.of_rank[x]
            first, ranks = nodes.start[node], nodes.start[node + 1] - nodes.start[node]
            # The first half of the tries are for its own node, where nothing crosses.
            for turn in range(_TRIES):
                if work <= 0 or _fits(limits, totals, x):
                    break
                inside = ranks > 1 and turn < _TRIES // 2
                y = nodes.ranks[first + draw(chance, ranks)] if inside else (x + 1 + draw(chance, m - 1)) % m
                if y == x:
                    continue
                # Every other time only some of what is over has to go: small steps are possible where large ones fail.
                _set_trade(table.trade, limits, totals, x, y, 3 * (turn % 2))
                loss = np.int64(_ANY_LOSS)
                if again < _PASSES - 1:  # first no more than a few items' volume
                    over = max(0, totals.loads[x] - limits.cap) // max(1, item)
                    loss = (over + 1) * volume << 2 * again
                table.trade[0]["loss"] = loss
                _, done = _share(items, nodes, limits, places, totals, table, _OF_A_RANK)
                work -= done
            left += not _fits(limits, totals, x)
        if left == 0:
            break
    # Who was looked at early in the last pass may have come to fit as another's partner.
    fit = True
    for x in range(m):
        fit &= _fits(limits, totals, x)
    return fit


@helper
def _fits(limits, totals, x):
    """Whether a rank keeps all limits."""
    within = totals.loads[x] <= limits.cap and totals.sizes[x] <= limits.room[x]
    return within and limits.fewest <= totals.counts[x] <= limits.most


@helper
def _set_trade(trade, limits, totals, x, y, keeps):
    """Two ranks, of which the first may keep so many quarters of what it has too much, and the second fits after it."""
    cap, load = limits.cap, totals.loads[x]
    trade[0]["x"], trade[0]["y"] = x, y
    cap_x = cap + max(0, load - cap) // 4 * keeps
    if cap_x > cap:  # or less, where the other has not so much room
        cap_x = max(cap_x, load - max(1, (cap - totals.loads[y]) // 2))
    trade[0]["cap_x"], trade[0]["cap_y"] = cap_x, max(cap, totals.loads[y])
    trade[0]["room_x"] = limits.room[x] + max(0, totals.sizes[x] - limits.room[x]) // 4 * keeps
    trade[0]["room_y"] = max(limits.room[y], totals.sizes[y])


@kernel
def share_anew(items, nodes, limits, where, totals, enough, work):
    """Two ranks after another share some of their items anew, so that never more crosses, until that is `enough`.

    Changes `where` and `totals`, which keep the limits; returns what crosses at the end.
    """
    chance, turn, crossing = np.ones(1, np.int64), 0, np.int64(0)
    places, table = _make_places(items, nodes, where), _make_table()
    trade = table.trade
    for i in range(len(where)):
        crossing += items.leave_node[i] if places.home_node[i] != nodes.of_rank[where[i]] else 0
    # Ways that are as good as what is there are taken too: so each pair finds other items than the last time.
    trade[0]["loss"], trade[0]["cap_x"], trade[0]["cap_y"] = 0, limits.cap, limits.cap
    while work > 0 and crossing > enough:
        turn += 1
        x, y = _choose(nodes, places, trade, turn, chance)
        trade[0]["x"], trade[0]["y"] = x, y
        trade[0]["room_x"], trade[0]["room_y"] = limits.room[x], limits.room[y]
        less, done = _share(items, nodes, limits, places, totals, table, _OF_A_RANK_ANEW)
        crossing -= less
        work -= done
    return crossing


@helper
def _choose(nodes, places, trade, turn, chance):
    """Two ranks: three times in four of the next item that is not at home, and one of the node where it is.

    That item then comes first on its rank. Some item is not at home.
    """
    n, m, i = len(places.where), len(nodes.of_rank), trade[0]["last"]
    # Any two, now and then: what is at home may stand in the way of what is not.
    if turn % 4 == 0:
        x = draw(chance, m)
        return x, (x + 1 + draw(chance, m - 1)) % m
    for _ in range(n):
        i = (i + 1) % n
        if places.home_node[i] != nodes.of_rank[places.where[i]]:
            break
    trade[0]["last"] = i
    x, home = np.int64(places.where[i]), places.home_node[i]
    while places.first[x] != i:
        _push(places, x, _pop(places, x))
    return x, nodes.ranks[nodes.start[home] + draw(chance, nodes.start[home + 1] - nodes.start[home])]


@helper
def _share(items, nodes, limits, places, totals, table, of_a_rank):
    """Two ranks, those of ``table.trade``, share `of_a_rank` items of each anew.

    Returns how much less crosses, and the work.
    """
    trade, mine, other = table.trade, table.mine, table.other
    x, y = trade[0]["x"], trade[0]["y"]
    near, far = nodes.of_rank[x], nodes.of_rank[y]
    # 1. What comes first in both queues is taken off, and all subsets of it are listed: O(2^k) for k items of a rank.
    a = _take(items, places, x, of_a_rank, near, far, mine)
    b = _take(items, places, y, of_a_rank, near, far, other)
    num_mine, num_other = _fill(mine, a, items, table.spare), _fill(other, b, items, table.spare)
    # 2. The best way to share it, of those that keep the limits; else all stays where it is. O(2^k + ways within cost).
    cost, size, gain = mine.cost[num_mine - 1], mine.size[num_mine - 1], mine.gain[num_mine - 1]
    _set_limits(trade, limits, totals, a, cost, size)
    of_x, of_y, looked = _best(mine, num_mine, other, num_other, trade, max(gain, -_ANY_LOSS) - trade[0]["loss"])
    if of_x == NONE:
        of_x, of_y = num_mine - 1, 0
    cost, size = mine.cost[of_x] + other.cost[of_y] - cost, mine.size[of_x] + other.size[of_y] - size
    totals.loads[x] += cost
    totals.loads[y] -= cost
    totals.sizes[x] += size
    totals.sizes[y] -= size
    totals.counts[x] -= a
    totals.counts[y] -= b
    # 3. It comes last in the queues, so that other items are next.
    _put(places, mine, a, of_x, x, y, totals.counts)
    _put(places, other, b, of_y, x, y, totals.counts)
    return mine.gain[of_x] + other.gain[of_y] - gain, _EACH_PAIR + 2 * (num_mine + num_other) + looked


@helper
def _take(items, places, rank, most, near, far, half):
    """Take up to `most` items off the queue of `rank`: how many, and what each is worth on node `near`, not `far`."""
    size = 0
    while size < most and places.first[rank] != NONE:
        i = _pop(places, rank)
        home, volume = places.home_node[i], items.leave_node[i]
        half.items[size] = i
        half.gains[size] = 0 if near == far else volume if home == near else -volume if home == far else 0
        size += 1
    return size


@helper
def _fill(half, num_items, items, spare):
    """All subsets of the first items of a half. O(2^k)."""
    cost, order = half.cost, half.order
    subsets = 1
    for k in range(num_items):
        i, gain = half.items[k], half.gains[k]
        c, size = items.costs[i], items.sizes[i]
        for s in range(subsets):
            cost[subsets + s] = cost[s] + c
            half.gain[subsets + s] = half.gain[s] + gain
            half.size[subsets + s] = half.size[s] + size
            half.number[subsets + s] = half.number[s] + 1
            spare[s] = order[s]
        # Subsets without the item are in order already, and so are those with it: merged, they need no sort.
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
def _set_limits(trade, limits, totals, num_items, cost, size):
    """Limits of what x gets, where it puts in so many items of this cost and size."""
    x, y, counts = trade[0]["x"], trade[0]["y"], totals.counts
    trade[0]["least_cost"] = totals.loads[y] + cost - trade[0]["cap_y"]
    trade[0]["most_cost"] = trade[0]["cap_x"] - totals.loads[x] + cost
    trade[0]["least_size"] = totals.sizes[y] + size - trade[0]["room_y"]
    trade[0]["most_size"] = trade[0]["room_x"] - totals.sizes[x] + size
    trade[0]["fewest"] = max(limits.fewest - counts[x] + num_items, counts[y] + num_items - limits.most)
    trade[0]["most"] = min(limits.most - counts[x] + num_items, counts[y] + num_items - limits.fewest)


@helper
def _best(mine, num_mine, other, num_other, trade, least_gain):
    """Of the subsets of both halves together that keep the limits, the one of most gain; NONE twice if none is enough.

    Last is how many were looked at. Another way than that of all of `mine` and none of the others.
    """
    least_cost, most_cost = trade[0]["least_cost"], trade[0]["most_cost"]
    least_size, most_size = trade[0]["least_size"], trade[0]["most_size"]
    fewest, most = trade[0]["fewest"], trade[0]["most"]
    # The more a subset of `mine` costs, the fewer of the others go with it: `top` only falls.
    a_best, b_best, gain, looked = NONE, NONE, least_gain - 1, 0
    top = num_other - 1
    for at in range(num_mine):
        a = mine.order[at]
        while top >= 0 and mine.cost[a] + other.cost[other.order[top]] > most_cost:
            top -= 1
        down = top
        while down >= 0:
            b = other.order[down]
            if mine.cost[a] + other.cost[b] < least_cost:
                break
            down -= 1
            if mine.gain[a] + other.gain[b] <= gain or (b == 0 and a == num_mine - 1):
                continue
            size, count = mine.size[a] + other.size[b], mine.number[a] + other.number[b]
            if least_size <= size <= most_size and fewest <= count <= most:
                a_best, b_best, gain = a, b, mine.gain[a] + other.gain[b]
        looked += top - down
    return a_best, b_best, looked


@helper
def _put(places, half, num_items, mask, x, y, counts):
    """Put those items of a half that are in `mask` on rank x, the others on rank y."""
    for k in range(num_items):
        rank = x if (mask >> k) & 1 else y
        places.where[half.items[k]] = rank
        counts[rank] += 1
        _push(places, rank, half.items[k])


@helper
def _push(places, rank, item):
    """Let an item come last on a rank."""
    places.after[item] = NONE
    if places.first[rank] == NONE:
        places.first[rank] = item
    else:
        places.after[places.last[rank]] = item
    places.last[rank] = item


@helper
def _pop(places, rank):
    """Take the item off a rank that comes first there."""
    item = places.first[rank]
    places.first[rank] = places.after[item]
    return item


@helper
def _make_places(items, nodes, where):
    """Items in the queues of their ranks, by number."""
    n, m = len(where), len(nodes.of_rank)
    places = _Places(where, np.empty(n, np.int64), np.full(m, NONE), np.full(m, NONE), np.full(n, NONE))
    for i in range(n):
        places.home_node[i] = nodes.of_rank[items.home[i]]
        _push(places, np.int64(where[i]), i)
    return places


@helper
def _make_table():
    return _Table(np.zeros(1, dtype=_TRADE), _make_half(), _make_half(), np.empty(1 << _OF_A_RANK, np.int64))


@helper
def _make_half():
    k, subsets = _OF_A_RANK, 1 << _OF_A_RANK
    return _Half(
        np.empty(k, np.int64), np.empty(k, np.int64), np.zeros(subsets, np.int64), np.zeros(subsets, np.int64),
        np.zeros(subsets, np.int64), np.zeros(subsets, np.int64), np.zeros(subsets, np.int64),
    )  # fmt: skip
