"""Moving an exact amount from one rank to another: the step of which relocation is made."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper
from solvers.relocation._fit import NO_SCORE, Pick, Side, exchange, make_pick, make_side, pure_move

CAP, SLACK, ACTIVE, WORK, TYPICAL, KEEP_COUNTS, CROSSING, MEANS, BY_VOLUME, PLAIN = range(10)
PURE, EXCHANGE, EVERYTHING = range(3)
_VARIANTS = 4
_STARTS = 16
_CANDIDATES = 64  # of least volume for their cost, among which an exact amount is sought
_GATHER = 4  # work units an item: it lies anywhere in memory
_TRANSFER = 300  # work units, whatever it moves
_LEAST_WORK = 1 << 26  # that one exchange of many items may take where less is left: some tenths of a second


class State(NamedTuple):
    """Items and ranks while they change."""

    costs: NDArray[np.int64]
    sizes: NDArray[np.int64]
    leave_rank: NDArray[np.int64]
    leave_node: NDArray[np.int64]
    where: NDArray[np.int32]
    node: NDArray[np.int32]
    loads: NDArray[np.int64]
    held: NDArray[np.int64]
    room: NDArray[np.int64]
    start: NDArray[np.int64]
    items: NDArray[np.int32]
    cheap: NDArray[np.int32]  # as `items`, least volume for its cost first; read by volume alone
    marks: NDArray[np.int64]
    numbers: NDArray[np.int64]


class Scratch(NamedTuple):
    give: Side
    take: Side
    pick: Pick
    peeled: NDArray[np.int64]
    returned: NDArray[np.int64]


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
    zero = not state.numbers[KEEP_COUNTS]  # where counts must stay, an item of cost zero is a partner
    volumes = state.leave_node if state.numbers[CROSSING] else state.leave_rank
    items, where, costs, sizes = state.items, state.where, state.costs, state.sizes
    cost, volume, item_size, item = side.cost, side.volume, side.size, side.item
    state.numbers[WORK] -= _GATHER * (state.start[rank + 1] - state.start[rank])
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
    old = state.where[item]
    state.where[item] = rank
    cost, size = state.costs[item], state.sizes[item]
    state.loads[old] -= cost
    state.loads[rank] += cost
    state.held[old] -= size
    state.held[rank] += size
    state.leave_rank[item] = 0
    if state.node[old] != state.node[rank]:
        state.leave_node[item] = 0


@helper
def _peel(scratch, size, low, reserve):
    """Set large items aside until what is left to give is a matter of three items. Returns size, number, sum."""
    give = scratch.give
    total = np.int64(0)
    usable = 0
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
    limit = max(0, low - reserve * state.numbers[TYPICAL])
    first, end = state.start[rank], state.start[rank + 1]
    state.numbers[WORK] -= _GATHER * (end - first)
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
    for k in range(set_aside):
        move(state, scratch.peeled[k], taker)
    for k in range(5):
        index = scratch.pick.chosen[k]
        if index >= 0 and k < 3:
            move(state, np.int64(scratch.give.item[index]), taker)
        elif index >= 0:
            move(state, np.int64(scratch.take.item[index]), giver)


@helper
def _set_limits(state, pick, giver, taker, low, high, target, amount, size_amount):
    limits = pick.limits
    pick.score[0] = NO_SCORE
    limits[0], limits[1], limits[2] = low - amount, high - amount, target - amount
    by_volume = state.numbers[BY_VOLUME]
    limits[3] = -1 if by_volume else min((high - low) // 8, state.numbers[TYPICAL] // 64)
    limits[4] = by_volume
    limits[5] = state.room[giver] - state.held[giver] + size_amount
    limits[6] = state.room[taker] - state.held[taker] - size_amount


@helper
def _large_against_small(state, scratch, giver, taker, low, high, target):
    """Give an item that is more than enough, and take the change back in smaller ones."""
    give, take, pick = scratch.take, scratch.give, scratch.pick  # the taker is who gives change
    count = _gather(state, take, giver)
    tried = 0
    for k in range(count):
        item, cost, item_size = take.item[k], take.cost[k], take.size[k]
        if cost <= high:
            continue
        size = _gather(state, give, taker)
        size, set_aside, amount, size_amount = _peel(
            Scratch(give, take, pick, scratch.peeled, scratch.returned), size, cost - high, np.int64(5)
        )
        _set_limits(state, pick, taker, giver, cost - high, cost - low, cost - target, amount, size_amount - item_size)
        pure_move(pick, give, size)
        if pick.score[0] != NO_SCORE:
            move(state, np.int64(item), taker)
            _apply(state, Scratch(give, take, pick, scratch.peeled, scratch.returned), taker, giver, set_aside)
            return True
        tried += 1
        if tried == 4:
            return False
    return False


@helper
def _take_out(side, k, size):
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
def _transfer_by_swaps(state, scratch, giver, taker, low, high, target):
    """As :func:`transfer`; every rank keeps its number of items."""
    pick = scratch.pick
    for skip in range(_STARTS):
        if _work_left(state, pick) <= 0:
            return False
        size = _gather(state, scratch.give, giver)
        taken = _gather(state, scratch.take, taker)
        reserve = state.numbers[TYPICAL] * (1 + skip % 2)
        most = max(state.numbers[WORK], _LEAST_WORK) // (size + taken + 1)
        pairs, amount, net_size = _set_pairs_aside(scratch, size, taken, low, reserve, skip // 2, most)
        state.numbers[WORK] -= pairs * (size + taken)
        if pairs == 0 and skip > 0:
            continue
        _set_limits(state, pick, giver, taker, low, high, target, amount, net_size)
        pick.limits[4] = 1
        exchange(
            pick,
            scratch.give,
            size - pairs,
            scratch.take,
            taken - pairs,
            state.numbers[KEEP_COUNTS],
            max(0, state.numbers[WORK]),
        )
        if pick.score[0] != NO_SCORE:
            for k in range(pairs):
                move(state, scratch.returned[k], giver)
            _apply(state, scratch, giver, taker, pairs)
            return True
    return False


@helper
def _near_then_wide(pick, give, size, near):
    """As :func:`pure_move`, first near the target: two pointers find most sums of a wide window at its far end."""
    limits = pick.limits
    low, high, target = limits[0], limits[1], limits[2]
    if high - low > near:
        limits[0], limits[1] = max(low, target - near), target + min(near, high - target)
        pure_move(pick, give, size)
        limits[0], limits[1] = low, high
        if pick.score[0] != NO_SCORE:
            return
    pure_move(pick, give, size)


@helper
def _work_left(state, pick):
    """Book the steps of searches, and return the work that is left."""
    state.numbers[WORK] -= pick.steps[0]
    pick.steps[0] = 0
    return state.numbers[WORK]


@helper
def transfer(state, scratch, giver, taker, low, high, target):
    """Move items so that `giver` loses low..high to `taker`, as near to `target` as may be. Returns whether it did."""
    state.numbers[WORK] -= _TRANSFER
    if state.numbers[KEEP_COUNTS]:
        return state.numbers[MEANS] > PURE and _transfer_by_swaps(state, scratch, giver, taker, low, high, target)
    give, take, pick = scratch.give, scratch.take, scratch.pick
    limits = pick.limits
    numbers = state.numbers
    taken = -1
    for variant in range(_VARIANTS):
        if _work_left(state, pick) <= 0:
            return False
        reserve = np.int64((5, 3, 4, 0)[variant])
        if numbers[BY_VOLUME]:
            size, set_aside, amount, size_amount = _gather_cheapest(state, scratch, giver, low, reserve)
        else:
            size = _gather(state, give, giver)
            size, set_aside, amount, size_amount = _peel(scratch, size, low, reserve)
            numbers[WORK] -= (1 + set_aside) * size
        if variant > 0 and set_aside == 0:
            continue
        _set_limits(state, pick, giver, taker, low, high, target, amount, size_amount)
        if set_aside > 0 and low == amount and limits[5] >= 0 and limits[6] >= 0:
            pick.chosen[:] = -1
            pick.score[0] = 0
        else:
            _near_then_wide(pick, give, size, numbers[TYPICAL] // 16)
        if pick.score[0] == NO_SCORE and state.numbers[MEANS] > PURE and (variant == 0 or variant == _VARIANTS - 1):
            if taken < 0:
                taken = _gather(state, take, taker)
            limits[4] = 1
            exchange(pick, give, size, take, taken, numbers[KEEP_COUNTS], max(0, numbers[WORK]))
        if pick.score[0] != NO_SCORE:
            _apply(state, scratch, giver, taker, set_aside)
            return True
    if state.numbers[MEANS] < EVERYTHING:
        return False
    return _large_against_small(state, scratch, giver, taker, low, high, target)
