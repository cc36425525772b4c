"""Which few items must change sides so that a rank loses an amount within a window: subset sums by two pointers.

A *side* is the items of one rank in ascending order of cost. Of the giving side up to three items, of the taking side
up to two, found by sliding two indices towards each other: pairs in O(k), triples and "two for one" in O(k^2) for k
items a side. Sixty items have 34,220 triples, so a window of a few units is mostly hit.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import kernel

__all__ = ["Pick", "Side", "exchange", "make_pick", "make_side", "pure_move"]

NO_SCORE = 2**63 - 1
_ENOUGH = 4_000  # steps after which the best triple so far is taken
_TOO_MANY = 4_000_000  # steps for which two items for two are not tried


class Side(NamedTuple):
    """Items of one rank, ascending in cost, with room for as many as any rank holds."""

    cost: NDArray[np.int64]
    volume: NDArray[np.int64]  # what moving the item would add
    size: NDArray[np.int64]
    item: NDArray[np.int32]


class Pick(NamedTuple):
    """The best found so far: ``chosen[:3]`` of the giver, ``chosen[3:]`` of the taker, -1 for none; its score.

    ``limits`` holds ``[low, high, target, good, by_volume, room_giver, room_taker]``: the net amount lies in low..high;
    the score is the distance to the target, or the volume moved; a score up to `good` ends the search; rooms are what
    the net size may be at most (taker's) and, negated, at least (giver's).
    """

    chosen: NDArray[np.int64]
    score: NDArray[np.int64]
    limits: NDArray[np.int64]


@kernel
def make_side(capacity):
    return Side(
        np.empty(capacity, dtype=np.int64),
        np.empty(capacity, dtype=np.int64),
        np.empty(capacity, dtype=np.int64),
        np.empty(capacity, dtype=np.int32),
    )


@kernel
def make_pick():
    return Pick(np.empty(5, dtype=np.int64), np.empty(1, dtype=np.int64), np.empty(7, dtype=np.int64))


@kernel
def _consider(pick, give, take, a0, a1, a2, b0, b1):
    """Keep these items if their net amount and size are allowed and their score is better."""
    amount, volume, size = give.cost[a0], give.volume[a0], give.size[a0]
    if a1 >= 0:
        amount += give.cost[a1]
        volume += give.volume[a1]
        size += give.size[a1]
    if a2 >= 0:
        amount += give.cost[a2]
        volume += give.volume[a2]
        size += give.size[a2]
    if b0 >= 0:
        amount -= take.cost[b0]
        volume += take.volume[b0]
        size -= take.size[b0]
    if b1 >= 0:
        amount -= take.cost[b1]
        volume += take.volume[b1]
        size -= take.size[b1]
    limits = pick.limits
    if amount < limits[0] or amount > limits[1] or size > limits[6] or -size > limits[5]:
        return
    score = volume if limits[4] else abs(amount - limits[2])
    if score < pick.score[0]:
        pick.score[0] = score
        chosen = pick.chosen
        chosen[0], chosen[1], chosen[2], chosen[3], chosen[4] = a0, a1, a2, b0, b1


@kernel
def _giver_pairs(pick, give, take, first, end, third, b0, low, high):
    """Pairs of ``give[first:end]`` whose sum lies in low..high, with `third` and `b0` beside them."""
    cost = give.cost
    none = np.int64(-1)
    i, j = first, end - 1
    while i < j:
        total = cost[i] + cost[j]
        if total > high:
            j -= 1
        elif total < low:
            i += 1
        else:  # this one and the next below: enough, as hits are many where they matter
            for k in range(j, max(i, j - 2), -1):
                if cost[i] + cost[k] < low:
                    break
                _consider(pick, give, take, i, k, third, b0, none)
            if pick.score[0] <= pick.limits[3]:
                return
            i += 1


@kernel
def pure_move(pick, give, size, take):
    """One, two or three items of the giver. Returns the work."""
    cost = give.cost
    low, high = pick.limits[0], pick.limits[1]
    none, start = np.int64(-1), np.int64(0)  # as variables: literals would have every callee compiled for each
    for i in range(size):
        if low <= cost[i] <= high:
            _consider(pick, give, take, i, none, none, none, none)
    if pick.score[0] <= pick.limits[3]:
        return size
    _giver_pairs(pick, give, take, start, size, none, none, low, high)
    work = 2 * size
    for k in range(size - 1, 1, -1):
        if pick.score[0] <= pick.limits[3] or (work > _ENOUGH and pick.score[0] < NO_SCORE):
            break
        if cost[k] > high:
            continue
        if cost[k] + cost[k - 1] + cost[k - 2] < low:
            break
        _giver_pairs(pick, give, take, start, k, k, none, low - cost[k], high - cost[k])
        work += k
    return work


@kernel
def _swaps(pick, give, size, take, taken):
    low, high = pick.limits[0], pick.limits[1]
    none, first = np.int64(-1), 0
    for b in range(taken):
        while first < size and give.cost[first] < low + take.cost[b]:
            first += 1
        for a in range(first, size):
            if give.cost[a] > high + take.cost[b]:
                break
            _consider(pick, give, take, a, none, none, b, none)


@kernel
def _one_for_two(pick, give, size, take, taken):
    """One item of the giver for two of the taker."""
    low, high = pick.limits[0], pick.limits[1]
    none = np.int64(-1)
    for a in range(size):
        i, j = np.int64(0), taken - 1
        while i < j:
            net = give.cost[a] - take.cost[i] - take.cost[j]
            if net < low:
                j -= 1
            elif net > high:
                i += 1
            else:
                _consider(pick, give, take, a, none, none, i, j)
                i += 1


@kernel
def _two_for_two(pick, give, size, take, taken):
    """Two items of the giver for two of the taker, until one fits. Returns the work."""
    low, high = pick.limits[0], pick.limits[1]
    work = size * taken * 0
    for a in range(1, size):
        for c in range(a):
            amount = give.cost[a] + give.cost[c]
            if amount - take.cost[0] - take.cost[1] < low:
                continue
            work += taken
            i, j = np.int64(0), taken - 1
            while i < j:
                net = amount - take.cost[i] - take.cost[j]
                if net < low:
                    j -= 1
                elif net > high:
                    i += 1
                else:
                    _consider(pick, give, take, a, c, np.int64(-1), i, j)
                    i += 1
        if pick.score[0] < NO_SCORE:
            break
    return work


@kernel
def exchange(pick, give, size, take, taken, keep_counts):
    """Items of the giver for fewer, as many or more of the taker. Returns the work."""
    low, high = pick.limits[0], pick.limits[1]
    none, start = np.int64(-1), np.int64(0)
    _swaps(pick, give, size, take, taken)
    if keep_counts:
        work = 2 * (size + taken)
        if pick.score[0] == NO_SCORE and taken > 1 and size * size * taken < _TOO_MANY:
            work += _two_for_two(pick, give, size, take, taken)
        return work
    for b in range(taken):
        # Where volumes are costs, at least low + 2 cost moves.
        if pick.limits[4] and (pick.score[0] - low) // 2 < take.cost[b] == take.volume[b]:
            break
        _giver_pairs(pick, give, take, start, size, none, b, low + take.cost[b], high + take.cost[b])
    _one_for_two(pick, give, size, take, taken)
    work = 2 * size * taken + size + taken
    if pick.score[0] == NO_SCORE and taken > 1 and size * size * taken < _TOO_MANY:
        work += _two_for_two(pick, give, size, take, taken)
    return work
