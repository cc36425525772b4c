"""Moving an exact amount from one rank to another: the step of which relocation is made.

Which few items must change sides so that a rank loses an amount within a window? These are subset sums, by two
pointers. A *side* is the items of one rank in ascending order of cost. Of the giving side up to three items, of the
taking side up to two, found by sliding two indices towards each other: pairs in O(k), triples and "two for one" in
O(k^2) for k items a side. Sixty items have 34,220 triples, so a window of a few units is mostly hit. A larger amount is
brought down to that first: the giver sets large items aside, which go in any case.

First :func:`transfer` and what it is made of, then where every rank keeps its number of items, then the sums.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper
from solvers.relocation._problem import NONE, Nodes

NO_SCORE = 2**63 - 1
_VARIANTS = 4
_STARTS = 16
_CANDIDATES = 64  # of least volume for their cost, among which an exact amount is sought
_GATHER = 4  # work units an item: it lies anywhere in memory
_TRANSFER = 300  # work units, whatever it moves
_LEAST_WORK = 1 << 26  # that one exchange of many items may take where less is left: some tenths of a second
_RATED = 1
_ENOUGH = 4_000  # steps after which the best triple so far is taken
_TOO_MANY = 4_000_000  # steps for which two items for two are not tried

NOW = np.dtype(
    [
        ("cap", np.int64),  # of a load
        ("slack", np.int64),  # how far ranks that are not done may stay below the cap, together
        ("active", np.int64),  # how many these are
        ("work", np.int64),  # units left
        ("typical", np.int64),  # the mean cost of items that have any
        ("keep_counts", np.int64),  # whether every rank keeps its number of items
        ("crossing", np.int64),  # whether items go to other nodes: then it counts what leaving a node adds
        ("exchanges", np.int64),  # whether items may come back for those that go, or just plain sums go
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


class Window(NamedTuple):
    """The amount that is to move: within low..high, as near to the target as may be."""

    low: int
    high: int
    target: int


class Side(NamedTuple):
    """Items of one rank, ascending in cost; k is as many as any rank holds. Writable."""

    cost: NDArray[np.int64]  # int64[k]
    volume: NDArray[np.int64]  # int64[k]: what moving the item would add
    size: NDArray[np.int64]  # int64[k]
    item: NDArray[np.int32]  # int32[k]


PICK = np.dtype(
    [
        ("score", np.int64),  # of the best found so far; NO_SCORE if nothing was
        ("steps", np.int64),  # work units of searches: one a step of a pointer, `_RATED` a choice rated
        # the net amount lies in low..high
        ("low", np.int64),
        ("high", np.int64),
        ("target", np.int64),  # the score is the distance to it
        ("by_volume", np.int64),  # or the volume moved
        ("good", np.int64),  # a score up to this ends the search
        # what the net size may be at most (taker's) and, negated, at least (giver's)
        ("room_giver", np.int64),
        ("room_taker", np.int64),
    ]
)
"""What is sought, and how far a search is."""


class Pick(NamedTuple):
    """The best choice found so far. Writable."""

    chosen: NDArray[np.int64]  # int64[5]: places of three items of the giver, then of two of the taker; -1: none
    now: NDArray[np.void]  # PICK[1]


@helper
def _found(pick):
    """Whether a choice comes to the window."""
    return pick.now[0]["score"] != NO_SCORE


class Scratch(NamedTuple):
    """Room for one transfer; k is as many items as any rank holds. Writable."""

    give: Side
    take: Side
    pick: Pick
    peeled: NDArray[np.int64]  # int64[k]: items that go in any case
    returned: NDArray[np.int64]  # int64[k]: items that come back for them, where counts are kept


@helper
def make_scratch(capacity):
    """Room for transfers between ranks of up to so many items."""
    return Scratch(
        make_side(capacity),
        make_side(capacity),
        make_pick(),
        np.empty(capacity, np.int64),
        np.empty(capacity, np.int64),
    )


@helper
def make_side(capacity):
    return Side(
        np.empty(capacity, dtype=np.int64),
        np.empty(capacity, dtype=np.int64),
        np.empty(capacity, dtype=np.int64),
        np.empty(capacity, dtype=np.int32),
    )


@helper
def make_pick():
    return Pick(np.empty(5, dtype=np.int64), np.zeros(1, dtype=PICK))


@helper
def transfer(state, scratch, giver, taker, window):
    """Move items so that what `giver` loses to `taker` is within the window. Returns whether it did.

    O(k^2) for k items a side, in steps that are booked as work.
    """
    now = state.now
    now[0]["work"] -= _TRANSFER
    if now[0]["keep_counts"]:
        return now[0]["exchanges"] == 1 and _transfer_by_swaps(state, scratch, giver, taker, window)
    give, take, pick = scratch.give, scratch.take, scratch.pick
    sought, taken = pick.now, NONE  # `take` is listed when it is first needed
    # What is set aside first decides what sums are left; the last variant leaves next to nothing for them.
    for variant in range(_VARIANTS):
        if _work_left(state, pick) <= 0:
            return False
        # 1. Items that go in any case, until three more can do the rest. O(k), or O(k) for each that is set aside.
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
        # 2. One to three of the others, whose sum is what is left: nothing comes back, so no more moves than must.
        exact = set_aside > 0 and window.low == amount
        if exact and sought[0]["room_giver"] >= 0 and sought[0]["room_taker"] >= 0:
            pick.chosen[:] = NONE
            sought[0]["score"] = 0
        else:
            _near_then_wide(pick, give, size, now[0]["typical"] // 16)
        # 3. Exchanges move more than the amount and take longer: only where plain sums fail, of the first and the last.
        if not _found(pick) and now[0]["exchanges"] and (variant == 0 or variant == _VARIANTS - 1):
            if taken == NONE:
                taken = _gather(state, take, taker)
            sought[0]["by_volume"] = 1
            exchange(pick, give, size, take, taken, now[0]["keep_counts"], max(0, now[0]["work"]))
        if _found(pick):
            _apply(state, scratch, giver, taker, set_aside)
            return True
    # 4. What moves most, and so comes last.
    return now[0]["exchanges"] == 1 and _large_against_small(state, scratch, giver, taker, window)


@helper
def _work_left(state, pick):
    """Book the steps of searches, and return the work that is left."""
    state.now[0]["work"] -= pick.now[0]["steps"]
    pick.now[0]["steps"] = 0
    return state.now[0]["work"]


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
def _peel(scratch, size, low, reserve):
    """Set large items aside until what is left to give is a matter of three items. Returns size, number, sum."""
    give = scratch.give
    total = np.int64(0)
    usable = 0
    # 1. The mean of what may go at all: three such items reach what is left once `low` is within three of them.
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
        # 2. The largest that leaves a reserve: few items go, and the sums of small ones fill the rest exactly.
        limit = low - amount - mean // 2 * reserve
        best = NONE
        for k in range(size - 1, -1, -1):
            if give.cost[k] <= limit:
                best = k
                break
        if best == NONE:
            break
        scratch.peeled[set_aside] = give.item[best]
        set_aside += 1
        amount += give.cost[best]
        size_amount += give.size[best]
        _take_out(give, best, size)
        size -= 1
    return size, set_aside, amount, size_amount


@helper
def _take_out(side, k, size):
    """Close the gap that an item leaves."""
    for j in range(k, size - 1):
        side.cost[j], side.volume[j] = side.cost[j + 1], side.volume[j + 1]
        side.size[j], side.item[j] = side.size[j + 1], side.item[j + 1]


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
    # 1. What goes in any case, and the next few as candidates: O(k), one pass over the list, which is sorted already.
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
    # 2. Two pointers need the candidates ascending in cost, as the other list has them.
    size = 0
    for k in range(first, end):
        i = items[k]
        if marks[i] == stamp:
            cost[size], volume[size] = costs[i], state.leave_node[i]
            give.size[size], give.item[size] = state.sizes[i], i
            size += 1
    return size, set_aside, amount, size_amount


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
def _near_then_wide(pick, give, size, near):
    """As :func:`pure_move`, first near the target: two pointers find most sums of a wide window at its far end."""
    now = pick.now
    low, high, target = now[0]["low"], now[0]["high"], now[0]["target"]
    if high - low > near:
        now[0]["low"], now[0]["high"] = max(low, target - near), target + min(near, high - target)
        pure_move(pick, give, size)
        now[0]["low"], now[0]["high"] = low, high
        if _found(pick):
            return
    pure_move(pick, give, size)


@helper
def _apply(state, scratch, giver, taker, set_aside):
    """Move what was set aside, and what was picked."""
    for k in range(set_aside):
        move(state, scratch.peeled[k], taker)
    for k in range(5):
        index = scratch.pick.chosen[k]
        if index != NONE and k < 3:
            move(state, np.int64(scratch.give.item[index]), taker)
        elif index != NONE:
            move(state, np.int64(scratch.take.item[index]), giver)


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
def _large_against_small(state, scratch, giver, taker, window):
    """Give an item that is more than enough, and take the change back in smaller ones."""
    give, take, pick = scratch.take, scratch.give, scratch.pick  # the taker is who gives change
    count = _gather(state, take, giver)
    tried = 0
    # The smallest such item first: it asks for the least change. Four tries, as each lists the other side anew.
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
        if _found(pick):
            move(state, np.int64(item), taker)
            _apply(state, turned, taker, giver, set_aside)
            return True
        tried += 1
        if tried == 4:
            return False
    return False


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
        # 1. Pairs until one swap may do the rest. Each takes as many steps as there are items, so work limits them.
        reserve = now[0]["typical"] * (1 + skip % 2)
        most = max(now[0]["work"], _LEAST_WORK) // (size + taken + 1)
        pairs, amount, net_size = _set_pairs_aside(scratch, size, taken, window.low, reserve, skip // 2, most)
        now[0]["work"] -= pairs * (size + taken)
        if pairs == 0 and skip > 0:
            continue
        # 2. One exchange does the rest, of least volume, as a swap moves both items.
        _set_limits(state, pick, giver, taker, window, amount, net_size)
        pick.now[0]["by_volume"] = 1
        exchange(
            pick, scratch.give, size - pairs, scratch.take, taken - pairs, now[0]["keep_counts"], max(0, now[0]["work"])
        )
        if _found(pick):
            for k in range(pairs):
                move(state, scratch.returned[k], giver)
            _apply(state, scratch, giver, taker, pairs)
            return True
    return False


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
def pure_move(pick, give, size):
    """One, two or three items of the giver."""
    cost, now = give.cost, pick.now
    low, high, good = now[0]["low"], now[0]["high"], now[0]["good"]
    none, zero = np.int64(NONE), np.int64(0)  # as variables: literals would have every callee compiled for each
    # 1. One item, and then two: O(k), and often enough.
    for i in range(size):
        if low <= cost[i] <= high:
            score = _rate(cost[i], give.volume[i], give.size[i], now)
            if score < now[0]["score"]:
                _keep(pick, score, i, none, none, none, none)
    now[0]["steps"] += size
    if now[0]["score"] <= good:
        return
    _giver_pairs(pick, give, size, none, none, zero, zero, zero)
    # 2. Three, the largest first: its partners are below it, so no triple is seen twice. O(k^2), hence the early end.
    work = 2 * size
    for k in range(size - 1, 1, -1):
        if now[0]["score"] <= good or (work > _ENOUGH and _found(pick)):
            break
        if cost[k] > high:
            continue
        if cost[k] + cost[k - 1] + cost[k - 2] < low:
            break
        work += k
        if cost[0] + cost[1] <= high - cost[k]:
            _giver_pairs(pick, give, k, k, none, cost[k], give.volume[k], give.size[k])


@helper
def _giver_pairs(pick, give, end, third, b0, amount, volume, size):
    """Pairs of ``give[:end]`` that come to an allowed net amount.

    `third` and `b0` go with them: they add `amount`, `volume` and `size`.
    """
    # Arrays by name: taking one out of a tuple counts references, which costs more than a step.
    cost, volumes, sizes, now = give.cost, give.volume, give.size, pick.now
    best, good = now[0]["score"], now[0]["good"]
    low, high = now[0]["low"] - amount, now[0]["high"] - amount
    i, j = np.int64(0), end - 1
    rated = 0
    # Two pointers: a sum that is too large can only do without its larger item, one too small without its smaller.
    while i < j:
        total = cost[i] + cost[j]
        if total > high:
            j -= 1
        elif total < low:
            i += 1
        else:  # this one and the next below: enough, as hits are many where they matter
            for k in range(j, max(i, j - 2), -1):
                total = cost[i] + cost[k]
                if total < low:
                    break
                rated += _RATED
                score = _rate(amount + total, volume + volumes[i] + volumes[k], size + sizes[i] + sizes[k], now)
                if score < best:
                    best = score
                    _keep(pick, score, i, k, third, b0, np.int64(NONE))
            if best <= good:
                break
            i += 1
    now[0]["steps"] += rated + max(0, end)


@helper
def exchange(pick, give, size, take, taken, keep_counts, most):
    """Items of the giver for fewer, as many or more of the taker; long searches end after `most` steps.

    The score is the volume moved: what moves more already, or has no partners of such sums, is passed over at once.
    """
    now = pick.now
    low, high, none = now[0]["low"], now[0]["high"], np.int64(NONE)
    # 1. One for one first: it is the cheapest to find, and what it moves is what all others have to beat.
    _swaps(pick, give, size, take, taken)
    if keep_counts:
        if not _found(pick) and taken > 1 and size * size * taken < _TOO_MANY:
            _two_for_two(pick, give, size, take, taken, most)
        return
    # 2. Two for one, from the smallest that comes back: the larger it is, the more moves.
    for b in range(taken if size > 1 else 0):
        cost, volume = take.cost[b], take.volume[b]
        # Where volumes are costs, at least low + 2 cost moves: not to be added up, as nothing may be chosen yet.
        if (cost == volume and now[0]["score"] - cost < low + cost) or give.cost[size - 1] + give.cost[
            size - 2
        ] - cost < low:
            break
        if volume >= now[0]["score"] or give.cost[0] + give.cost[1] - cost > high:
            continue
        _giver_pairs(pick, give, size, none, b, -cost, volume, -take.size[b])
    # 3. One for two: less goes than comes back in number, for givers of few large items.
    for a in range(size if taken > 1 else 0):
        cost, volume = give.cost[a], give.volume[a]
        if cost - (take.cost[taken - 1] + take.cost[taken - 2]) > high:
            break
        if volume < now[0]["score"] and cost - (take.cost[0] + take.cost[1]) >= low:
            _for_two(pick, take, taken, a, none, cost, volume, give.size[a])
    # 4. Two for two tries most ways, and so comes last, where nothing else was found.
    if not _found(pick) and taken > 1 and size * size * taken < _TOO_MANY:
        _two_for_two(pick, give, size, take, taken, most)


@helper
def _swaps(pick, give, size, take, taken):
    """One item of the giver for one of the taker. O(k and the pairs within the window)."""
    cost, volumes, sizes, now = give.cost, give.volume, give.size, pick.now
    low, high, best = now[0]["low"], now[0]["high"], now[0]["score"]
    first, rated, none = 0, 0, np.int64(NONE)
    # What comes back ascends, and so does the first item that is enough for it: it is never sought from the start.
    for b in range(taken):
        back, back_volume, back_size = take.cost[b], take.volume[b], take.size[b]
        while first < size and cost[first] < low + back:
            first += 1
        for a in range(first, size):
            if cost[a] > high + back:
                break
            rated += _RATED
            score = _rate(cost[a] - back, volumes[a] + back_volume, sizes[a] - back_size, now)
            if score < best:
                best = score
                _keep(pick, score, a, none, none, b, none)
    now[0]["steps"] += rated + size + taken


@helper
def _for_two(pick, take, taken, a0, a1, amount, volume, size):
    """Give `amount` and take two items back. O(k)."""
    cost, volumes, sizes, now = take.cost, take.volume, take.size, pick.now
    least, most, best = amount - now[0]["high"], amount - now[0]["low"], now[0]["score"]
    i, j = np.int64(0), taken - 1
    rated = 0
    while i < j:
        total = cost[i] + cost[j]
        if total > most:
            j -= 1
        elif total < least:
            i += 1
        else:
            rated += _RATED
            score = _rate(amount - total, volume + volumes[i] + volumes[j], size - sizes[i] - sizes[j], now)
            if score < best:
                best = score
                _keep(pick, score, a0, a1, np.int64(NONE), i, j)
            i += 1
    now[0]["steps"] += rated + taken


@helper
def _two_for_two(pick, give, size, take, taken, most):
    """Two items of the giver for two of the taker, until one fits or `most` steps are done. O(k^3)."""
    cost, now = give.cost, pick.now
    low, high = now[0]["low"], now[0]["high"]
    # A pair that no two items of the taker can make up for is passed over in one comparison.
    least_back, most_back = take.cost[0] + take.cost[1], take.cost[taken - 1] + take.cost[taken - 2]
    most += now[0]["steps"]
    for a in range(np.int64(1), size):
        for c in range(a):
            amount, volume = cost[a] + cost[c], give.volume[a] + give.volume[c]
            if amount - least_back >= low and amount - most_back <= high and volume < now[0]["score"]:
                net_size = give.size[a] + give.size[c]
                _for_two(pick, take, taken, a, c, amount, volume, net_size)
        if _found(pick) or now[0]["steps"] > most:
            break


@helper
def _rate(amount, volume, size, now):
    """Score of a choice whose net amount is allowed; NO_SCORE if its net size is not."""
    if size > now[0]["room_taker"] or -size > now[0]["room_giver"]:
        return np.int64(NO_SCORE)
    return volume if now[0]["by_volume"] else abs(amount - now[0]["target"])


@helper
def _keep(pick, score, a0, a1, a2, b0, b1):
    pick.now[0]["score"] = score
    chosen = pick.chosen
    chosen[0], chosen[1], chosen[2], chosen[3], chosen[4] = a0, a1, a2, b0, b1
