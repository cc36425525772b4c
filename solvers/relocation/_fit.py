"""Which few items must change sides so that a rank loses an amount within a window: subset sums by two pointers.

A *side* is the items of one rank in ascending order of cost. Of the giving side up to three items, of the taking side
up to two, found by sliding two indices towards each other: pairs in O(k), triples and "two for one" in O(k^2) for k
items a side. Sixty items have 34,220 triples, so a window of a few units is mostly hit.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper

NO_SCORE = 2**63 - 1
_RATED = 1
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
    the net size may be at most (taker's) and, negated, at least (giver's). ``steps`` counts the work of searches, in
    work units: one a step of a pointer, `_RATED` a choice rated.
    """

    chosen: NDArray[np.int64]
    score: NDArray[np.int64]
    limits: NDArray[np.int64]
    steps: NDArray[np.int64]


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
    return Pick(
        np.empty(5, dtype=np.int64),
        np.empty(1, dtype=np.int64),
        np.empty(7, dtype=np.int64),
        np.zeros(1, dtype=np.int64),
    )


@helper
def _rate(amount, volume, size, limits):
    """Score of a choice whose net amount is allowed; NO_SCORE if its net size is not."""
    if size > limits[6] or -size > limits[5]:
        return np.int64(NO_SCORE)
    return volume if limits[4] else abs(amount - limits[2])


@helper
def _keep(pick, score, a0, a1, a2, b0, b1):
    pick.score[0] = score
    chosen = pick.chosen
    chosen[0], chosen[1], chosen[2], chosen[3], chosen[4] = a0, a1, a2, b0, b1


@helper
def _giver_pairs(pick, give, first, end, third, b0, amount, volume, size, low, high):
    """Pairs of ``give[first:end]`` whose sum lies in low..high.

    `third` and `b0` go with them: they add `amount`, `volume` and `size`.
    """
    # Arrays by name: taking one out of a tuple counts references, which costs more than a step.
    cost, volumes, sizes, limits = give.cost, give.volume, give.size, pick.limits
    best, good = pick.score[0], limits[3]
    i, j = first, end - 1
    rated = 0
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
                score = _rate(amount + total, volume + volumes[i] + volumes[k], size + sizes[i] + sizes[k], limits)
                if score < best:
                    best = score
                    _keep(pick, score, i, k, third, b0, np.int64(-1))
            if best <= good:
                break
            i += 1
    pick.steps[0] += rated + max(0, end - first)


@helper
def pure_move(pick, give, size):
    """One, two or three items of the giver."""
    cost, limits = give.cost, pick.limits
    low, high, good = limits[0], limits[1], limits[3]
    none, zero = np.int64(-1), np.int64(0)  # as variables: literals would have every callee compiled for each
    for i in range(size):
        if low <= cost[i] <= high:
            score = _rate(cost[i], give.volume[i], give.size[i], limits)
            if score < pick.score[0]:
                _keep(pick, score, i, none, none, none, none)
    pick.steps[0] += size
    if pick.score[0] <= good:
        return
    _giver_pairs(pick, give, zero, size, none, none, zero, zero, zero, low, high)
    work = 2 * size
    for k in range(size - 1, 1, -1):
        if pick.score[0] <= good or (work > _ENOUGH and pick.score[0] < NO_SCORE):
            break
        if cost[k] > high:
            continue
        if cost[k] + cost[k - 1] + cost[k - 2] < low:
            break
        work += k
        low_left, high_left = low - cost[k], high - cost[k]
        if cost[0] + cost[1] <= high_left:
            _giver_pairs(pick, give, zero, k, k, none, cost[k], give.volume[k], give.size[k], low_left, high_left)


@helper
def _swaps(pick, give, size, take, taken):
    cost, volumes, sizes, limits, best = give.cost, give.volume, give.size, pick.limits, pick.score[0]
    low, high = limits[0], limits[1]
    first, rated = 0, 0
    for b in range(taken):
        back, back_volume, back_size = take.cost[b], take.volume[b], take.size[b]
        while first < size and cost[first] < low + back:
            first += 1
        for a in range(first, size):
            if cost[a] > high + back:
                break
            rated += _RATED
            score = _rate(cost[a] - back, volumes[a] + back_volume, sizes[a] - back_size, limits)
            if score < best:
                best = score
                _keep(pick, score, a, np.int64(-1), np.int64(-1), b, np.int64(-1))
    pick.steps[0] += rated + size + taken


@helper
def _for_two(pick, take, taken, a0, a1, amount, volume, size):
    """Give `amount` and take two items back."""
    cost, volumes, sizes, limits, best = take.cost, take.volume, take.size, pick.limits, pick.score[0]
    least, most = amount - limits[1], amount - limits[0]
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
            score = _rate(amount - total, volume + volumes[i] + volumes[j], size - sizes[i] - sizes[j], limits)
            if score < best:
                best = score
                _keep(pick, score, a0, a1, np.int64(-1), i, j)
            i += 1
    pick.steps[0] += rated + taken


@helper
def _two_for_two(pick, give, size, take, taken, most):
    """Two items of the giver for two of the taker, until one fits or `most` steps are done."""
    cost = give.cost
    low, high = pick.limits[0], pick.limits[1]
    least_back, most_back = take.cost[0] + take.cost[1], take.cost[taken - 1] + take.cost[taken - 2]
    most += pick.steps[0]
    for a in range(np.int64(1), size):
        for c in range(a):
            amount, volume = cost[a] + cost[c], give.volume[a] + give.volume[c]
            if amount - least_back >= low and amount - most_back <= high and volume < pick.score[0]:
                net_size = give.size[a] + give.size[c]
                _for_two(pick, take, taken, a, c, amount, volume, net_size)
        if pick.score[0] < NO_SCORE or pick.steps[0] > most:
            break


@helper
def exchange(pick, give, size, take, taken, keep_counts, most):
    """Items of the giver for fewer, as many or more of the taker; long searches end after `most` steps.

    The score is the volume moved: what moves more already, or has no partners of such sums, is passed over at once.
    """
    low, high, score = pick.limits[0], pick.limits[1], pick.score
    none, zero = np.int64(-1), np.int64(0)
    _swaps(pick, give, size, take, taken)
    if keep_counts:
        if pick.score[0] == NO_SCORE and taken > 1 and size * size * taken < _TOO_MANY:
            _two_for_two(pick, give, size, take, taken, most)
        return
    for b in range(taken if size > 1 else 0):
        cost, volume = take.cost[b], take.volume[b]
        # Where volumes are costs, at least low + 2 cost moves: not to be added up, as nothing may be chosen yet.
        if (cost == volume and score[0] - cost < low + cost) or give.cost[size - 1] + give.cost[size - 2] - cost < low:
            break
        if volume >= score[0] or give.cost[0] + give.cost[1] - cost > high:
            continue
        _giver_pairs(pick, give, zero, size, none, b, -cost, volume, -take.size[b], low + cost, high + cost)
    for a in range(size if taken > 1 else 0):
        cost, volume = give.cost[a], give.volume[a]
        if cost - (take.cost[taken - 1] + take.cost[taken - 2]) > high:
            break
        if volume < score[0] and cost - (take.cost[0] + take.cost[1]) >= low:
            _for_two(pick, take, taken, a, none, cost, volume, give.size[a])
    if pick.score[0] == NO_SCORE and taken > 1 and size * size * taken < _TOO_MANY:
        _two_for_two(pick, give, size, take, taken, most)
