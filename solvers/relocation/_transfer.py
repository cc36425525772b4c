"""Moving an exact amount from one rank to another: the step of which relocation is made."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper
from solvers.relocation._fit import NO_SCORE, Pick, Side, exchange, make_pick, make_side, pure_move
from solvers.relocation._problem import Nodes

PURE, EXCHANGE, EVERYTHING = range(3)
_VARIANTS = 4
_STARTS = 16
_CANDIDATES = 64  # of least volume for their cost, among which an exact amount is sought
_GATHER = 4  # work units an item: it lies anywhere in memory
_TRANSFER = 300  # work units, whatever it moves
_LEAST_WORK = 1 << 26  # that one exchange of many items may take where less is left: some tenths of a second


NOW = np.dtype(
    [
        ("cap", np.int64),  # of a load
        ("slack", np.int64),  # how far ranks that are not done may stay below the cap, together
        ("active", np.int64),  # how many these are
        ("work", np.int64),  # units left
        ("typical", np.int64),  # the mean cost of items that have any
        ("keep_counts", np.int64),  # whether every rank keeps its number of items
        ("crossing", np.int64),  # whether items go to other nodes: then it counts what leaving a node adds
        ("means", np.int64),  # PURE, EXCHANGE or EVERYTHING
        ("by_volume", np.int64),  # whether items of least volume for their cost are sought, in `cheap`
        ("plain", np.int64),  # whether plain sums are tried with all takers before any exchange
    ]
)
"""How far a search is, and what it may do now."""


class State(NamedTuple):
    """Items and ranks while they change; n items, m ranks."""

    # Read-only
    costs: NDArray[np.int64]  # int64[n]
    sizes: NDArray[np.int64]  # int64[n]: of a second quantity, or zeros
    # Nobody writes to these, but nodes may be searched as if they were ranks, of which a kernel makes its own
    nodes: Nodes
    room: NDArray[np.int64]  # int64[m]: the most that ranks may hold of the sizes
    # Writable
    leave_rank: NDArray[np.int64]  # int64[n]: what moves more if the item leaves the rank that it is on
    leave_node: NDArray[np.int64]  # int64[n]: what crosses more if it leaves the node that it is on
    where: NDArray[np.int32]  # int32[n]: the rank of each item
    loads: NDArray[np.int64]  # int64[m]
    held: NDArray[np.int64]  # int64[m]: sizes of the items of each rank
    start: NDArray[np.int64]  # int64[m + 1]: rank r had ``items[start[r] : start[r + 1]]`` when they were listed
    items: NDArray[np.int32]  # int32[n]: ascending in cost, rank by rank
    cheap: NDArray[np.int32]  # int32[n] or [0]: as `items`, least volume for its cost first; read by volume alone
    marks: NDArray[np.int64]  # int64[n + 1] or [1]: the last search that had the item as a candidate; the last search
    now: NDArray[np.void]  # NOW[1]


class Scratch(NamedTuple):
    """Room for one transfer; k is as many items as any rank holds. Writable."""

    give: Side
    take: Side
    pick: Pick
    peeled: NDArray[np.int64]  # int64[k]: items that go in any case
    returned: NDArray[np.int64]  # int64[k]: items that come back for them, where counts are kept


class Window(NamedTuple):
    """The amount that is to move: within low..high, as near to the target as may be."""

    low: int
    high: int
    target: int


@helper
def make_scratch(capacity):
    return Scratch(
        make_side(capacity),
        make_side(capacity),
        make_pick(),
        np.empty(capacity, np.int64),
        np.empty(capacity, np.int64),
    )


@helper
def _gather(state, side, rank):
    """List the items that are still where the lists say, ascending in cost. Items of cost zero move no load."""
    size = 0
    zero = not state.now[0]["keep_counts"]  # where counts must stay, an item of cost zero is a partner
    volumes = state.leave_node if state.now[0]["crossing"] else state.leave_rank
    items, where, costs, sizes = state.items, state.where, state.costs, state.sizes
    cost, volume, item_size, item = side.cost, side.volume, side.size, side.item
    state.now[0]["work"] -= _GATHER * (state.start[rank + 1] - state.start[rank])
    for k in range(state.start[rank], state.start[rank + 1]):
        i = items[k]
        if where[i] == rank and not (zero and costs[i] == 0):
            cost[size] = costs[i]
            volume[size] = volumes[i]
            item_size[size] = sizes[i]
            item[size] = i
            size += 1
    return size


@helper
def move(state, item, rank):
    """Put an item on a rank."""
    old = state.where[item]
    state.where[item] = rank
    cost, size = state.costs[item], state.sizes[item]
    state.loads[old] -= cost
    state.loads[rank] += cost
    state.held[old] -= size
    state.held[rank] += size
    # It is not at home any more, so that it costs nothing to send it on.
    state.leave_rank[item] = 0
    if state.nodes.of_rank[old] != state.nodes.of_rank[rank]:
        state.leave_node[item] = 0


@helper
def _peel(scratch, size, low, reserve):
    """Set large items aside until what is left to give is a matter of three items. Returns size, number, sum."""
    give = scratch.give
    total = np.int64(0)
    usable = 0
    # The mean of what may go at all: three such items reach what is left once `low` is within three of them.
    for k in range(size):
        if give.cost[k] > low:
            break
        total += give.cost[k]
        usable += 1
    set_aside = 0
    amount = np.int64(0)
    size_amount = np.int64(0)
    mean = total // max(usable, 1)
    while size > 0 and low > amount and (reserve == 0 or (low - amount) // 3 > mean):
        # The largest that leaves a reserve: few items go, and the sums of small ones fill the rest exactly.
        limit = low - amount - mean // 2 * reserve
        best = -1
        for k in range(size - 1, -1, -1):
            if give.cost[k] <= limit:
                best = k
                break
        if best < 0:
            break
        scratch.peeled[set_aside] = give.item[best]
        set_aside += 1
        amount += give.cost[best]
        size_amount += give.size[best]
        for k in range(best, size - 1):
            give.cost[k], give.volume[k] = give.cost[k + 1], give.volume[k + 1]
            give.size[k], give.item[k] = give.size[k + 1], give.item[k + 1]
        size -= 1
    return size, set_aside, amount, size_amount


@helper
def _gather_cheapest(state, scratch, rank, low, reserve):
    """Set aside items of least volume for their cost until little is left to give, and list the next ones.

    Returns as :func:`_peel` does.
    """
    give, peeled, cost, volume = scratch.give, scratch.peeled, scratch.give.cost, scratch.give.volume
    items, cheap, where, costs, marks = state.items, state.cheap, state.where, state.costs, state.marks
    limit = max(0, low - reserve * state.now[0]["typical"])
    first, end = state.start[rank], state.start[rank + 1]
    state.now[0]["work"] -= _GATHER * (end - first)
    # Marks of earlier searches are lower, so that nothing has to be cleared.
    stamp = marks[-1] + 1
    marks[-1] = stamp
    set_aside, candidates = 0, 0
    amount, size_amount = np.int64(0), np.int64(0)
    for k in range(first, end):
        i = cheap[k]
        if where[i] != rank or costs[i] == 0:
            continue
        if amount + costs[i] <= limit:
            peeled[set_aside] = i
            set_aside += 1
            amount += costs[i]
            size_amount += state.sizes[i]
        else:
            marks[i] = stamp
            candidates += 1
            if candidates == _CANDIDATES:
                break
    # Two pointers need the candidates ascending in cost, as the other list has them.
    size = 0
    for k in range(first, end):
        i = items[k]
        if marks[i] == stamp:
            cost[size], volume[size] = costs[i], state.leave_node[i]
            give.size[size], give.item[size] = state.sizes[i], i
            size += 1
    return size, set_aside, amount, size_amount


@helper
def _apply(state, scratch, giver, taker, set_aside):
    """Move what was set aside, and what was picked."""
    for k in range(set_aside):
        move(state, scratch.peeled[k], taker)
    for k in range(5):
        index = scratch.pick.chosen[k]
        if index >= 0 and k < 3:
            move(state, np.int64(scratch.give.item[index]), taker)
        elif index >= 0:
            move(state, np.int64(scratch.take.item[index]), giver)


@helper
def _set_limits(state, pick, giver, taker, window, amount, size):
    """Let what is picked come to the window, where `amount`, of this size, goes from giver to taker in any case."""
    now, by_volume = pick.now, state.now[0]["by_volume"]
    now[0]["score"] = NO_SCORE
    now[0]["low"], now[0]["high"] = window.low - amount, window.high - amount
    now[0]["target"], now[0]["by_volume"] = window.target - amount, by_volume
    # An eighth of the window from the target is near enough, but of least volume there is no telling.
    now[0]["good"] = -1 if by_volume else min((window.high - window.low) // 8, state.now[0]["typical"] // 64)
    now[0]["room_giver"] = state.room[giver] - state.held[giver] + size
    now[0]["room_taker"] = state.room[taker] - state.held[taker] - size


@helper
def _large_against_small(state, scratch, giver, taker, window):
    """Give an item that is more than enough, and take the change back in smaller ones."""
    give, take, pick = scratch.take, scratch.give, scratch.pick  # the taker is who gives change
    count = _gather(state, take, giver)
    tried = 0
    for k in range(count):
        item, cost, item_size = take.item[k], take.cost[k], take.size[k]
        if cost <= window.high:  # plain sums have tried it
            continue
        size = _gather(state, give, taker)
        change = Window(cost - window.high, cost - window.low, cost - window.target)
        turned = Scratch(give, take, pick, scratch.peeled, scratch.returned)
        size, set_aside, amount, size_amount = _peel(turned, size, change.low, np.int64(5))
        _set_limits(state, pick, taker, giver, change, amount, size_amount - item_size)
        pure_move(pick, give, size)
        if pick.now[0]["score"] != NO_SCORE:
            move(state, np.int64(item), taker)
            _apply(state, turned, taker, giver, set_aside)
            return True
        tried += 1
        if tried == 4:
            return False
    return False


@helper
def _take_out(side, k, size):
    """Close the gap that an item leaves."""
    for j in range(k, size - 1):
        side.cost[j], side.volume[j] = side.cost[j + 1], side.volume[j + 1]
        side.size[j], side.item[j] = side.size[j + 1], side.item[j + 1]


@helper
def _set_pairs_aside(scratch, size, taken, low, reserve, skip, most):
    """Large against small, until one swap may do the rest. Returns the number of pairs, their amount and net size.

    `skip` of the giver's largest are left out of the first pair, so that another `skip` ends elsewhere. At most `most`
    pairs, each of which takes (size + taken) steps.
    """
    give, take = scratch.give, scratch.take
    pairs = 0
    amount, net_size = np.int64(0), np.int64(0)
    while size > 1 and taken > 1 and low - amount > reserve and pairs < most:
        # The largest that goes for the largest that stays below what is to move: most is done by the fewest pairs.
        limit = low - amount - reserve // 2
        a = size - 1 - (skip if pairs == 0 else 0)
        while a >= 0 and give.cost[a] - take.cost[taken - 1] > limit:
            a -= 1
        if a < 0:
            break
        b = 0
        while give.cost[a] - take.cost[b] > limit:
            b += 1
        if give.cost[a] <= take.cost[b]:
            break
        scratch.peeled[pairs], scratch.returned[pairs] = give.item[a], take.item[b]
        amount += give.cost[a] - take.cost[b]
        net_size += give.size[a] - take.size[b]
        pairs += 1
        _take_out(give, a, size)
        _take_out(take, b, taken)
        size -= 1
        taken -= 1
    return pairs, amount, net_size


@helper
def _transfer_by_swaps(state, scratch, giver, taker, window):
    """As :func:`transfer`; every rank keeps its number of items."""
    pick, now = scratch.pick, state.now
    # Pairs are chosen greedily, so that what is left after them may be out of reach: other first pairs end elsewhere.
    for skip in range(_STARTS):
        if _work_left(state, pick) <= 0:
            return False
        size = _gather(state, scratch.give, giver)
        taken = _gather(state, scratch.take, taker)
        reserve = now[0]["typical"] * (1 + skip % 2)
        most = max(now[0]["work"], _LEAST_WORK) // (size + taken + 1)
        pairs, amount, net_size = _set_pairs_aside(scratch, size, taken, window.low, reserve, skip // 2, most)
        now[0]["work"] -= pairs * (size + taken)
        if pairs == 0 and skip > 0:
            continue
        # One exchange does the rest, of least volume, as a swap moves both items.
        _set_limits(state, pick, giver, taker, window, amount, net_size)
        pick.now[0]["by_volume"] = 1
        exchange(
            pick, scratch.give, size - pairs, scratch.take, taken - pairs, now[0]["keep_counts"], max(0, now[0]["work"])
        )
        if pick.now[0]["score"] != NO_SCORE:
            for k in range(pairs):
                move(state, scratch.returned[k], giver)
            _apply(state, scratch, giver, taker, pairs)
            return True
    return False


@helper
def _near_then_wide(pick, give, size, near):
    """As :func:`pure_move`, first near the target: two pointers find most sums of a wide window at its far end."""
    now = pick.now
    low, high, target = now[0]["low"], now[0]["high"], now[0]["target"]
    if high - low > near:
        now[0]["low"], now[0]["high"] = max(low, target - near), target + min(near, high - target)
        pure_move(pick, give, size)
        now[0]["low"], now[0]["high"] = low, high
        if now[0]["score"] != NO_SCORE:
            return
    pure_move(pick, give, size)


@helper
def _work_left(state, pick):
    """Book the steps of searches, and return the work that is left."""
    state.now[0]["work"] -= pick.now[0]["steps"]
    pick.now[0]["steps"] = 0
    return state.now[0]["work"]


@helper
def transfer(state, scratch, giver, taker, window):
    """Move items so that what `giver` loses to `taker` is within the window. Returns whether it did."""
    now = state.now
    now[0]["work"] -= _TRANSFER
    if now[0]["keep_counts"]:
        return now[0]["means"] > PURE and _transfer_by_swaps(state, scratch, giver, taker, window)
    give, take, pick = scratch.give, scratch.take, scratch.pick
    sought, taken = pick.now, -1
    # What is set aside first decides what sums are left; the last variant leaves next to nothing for them.
    for variant in range(_VARIANTS):
        if _work_left(state, pick) <= 0:
            return False
        reserve = np.int64((5, 3, 4, 0)[variant])
        if now[0]["by_volume"]:
            size, set_aside, amount, size_amount = _gather_cheapest(state, scratch, giver, window.low, reserve)
        else:
            size = _gather(state, give, giver)
            size, set_aside, amount, size_amount = _peel(scratch, size, window.low, reserve)
            now[0]["work"] -= (1 + set_aside) * size
        if variant > 0 and set_aside == 0:
            continue
        _set_limits(state, pick, giver, taker, window, amount, size_amount)
        exact = set_aside > 0 and window.low == amount
        if exact and sought[0]["room_giver"] >= 0 and sought[0]["room_taker"] >= 0:
            pick.chosen[:] = -1
            sought[0]["score"] = 0
        else:
            _near_then_wide(pick, give, size, now[0]["typical"] // 16)
        # Exchanges move more than the amount and take longer: only where plain sums fail, of the first and the last.
        if sought[0]["score"] == NO_SCORE and now[0]["means"] > PURE and (variant == 0 or variant == _VARIANTS - 1):
            if taken < 0:
                taken = _gather(state, take, taker)
            sought[0]["by_volume"] = 1
            exchange(pick, give, size, take, taken, now[0]["keep_counts"], max(0, now[0]["work"]))
        if sought[0]["score"] != NO_SCORE:
            _apply(state, scratch, giver, taker, set_aside)
            return True
    if now[0]["means"] < EVERYTHING:
        return False
    return _large_against_small(state, scratch, giver, taker, window)
