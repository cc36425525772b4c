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
                    _keep(pick, score, i, k, third, b0, np.int64(-1))
            if best <= good:
                break
            i += 1
    now[0]["steps"] += rated + max(0, end)


@helper
def pure_move(pick, give, size):
    """One, two or three items of the giver."""
    cost, now = give.cost, pick.now
    low, high, good = now[0]["low"], now[0]["high"], now[0]["good"]
    none, zero = np.int64(-1), np.int64(0)  # as variables: literals would have every callee compiled for each
    # One item, and then two: O(k), and often enough.
    for i in range(size):
        if low <= cost[i] <= high:
            score = _rate(cost[i], give.volume[i], give.size[i], now)
            if score < now[0]["score"]:
                _keep(pick, score, i, none, none, none, none)
    now[0]["steps"] += size
    if now[0]["score"] <= good:
        return
    _giver_pairs(pick, give, size, none, none, zero, zero, zero)
    # Three, the largest first: its partners are below it, so no triple is seen twice. O(k^2), hence the early end.
    work = 2 * size
    for k in range(size - 1, 1, -1):
        if now[0]["score"] <= good or (work > _ENOUGH and now[0]["score"] < NO_SCORE):
            break
        if cost[k] > high:
            continue
        if cost[k] + cost[k - 1] + cost[k - 2] < low:
            break
        work += k
        if cost[0] + cost[1] <= high - cost[k]:
            _giver_pairs(pick, give, k, k, none, cost[k], give.volume[k], give.size[k])


@helper
def _swaps(pick, give, size, take, taken):
    """One item of the giver for one of the taker."""
    cost, volumes, sizes, now = give.cost, give.volume, give.size, pick.now
    low, high, best = now[0]["low"], now[0]["high"], now[0]["score"]
    first, rated = 0, 0
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
                _keep(pick, score, a, np.int64(-1), np.int64(-1), b, np.int64(-1))
    now[0]["steps"] += rated + size + taken


@helper
def _for_two(pick, take, taken, a0, a1, amount, volume, size):
    """Give `amount` and take two items back."""
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
                _keep(pick, score, a0, a1, np.int64(-1), i, j)
            i += 1
    now[0]["steps"] += rated + taken


@helper
def _two_for_two(pick, give, size, take, taken, most):
    """Two items of the giver for two of the taker, until one fits or `most` steps are done."""
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
        if now[0]["score"] < NO_SCORE or now[0]["steps"] > most:
            break


@helper
def exchange(pick, give, size, take, taken, keep_counts, most):
    """Items of the giver for fewer, as many or more of the taker; long searches end after `most` steps.

    The score is the volume moved: what moves more already, or has no partners of such sums, is passed over at once.
    """
    now = pick.now
    low, high, none = now[0]["low"], now[0]["high"], np.int64(-1)
    # One for one first: it is the cheapest to find, and what it moves is what all others have to beat.
    _swaps(pick, give, size, take, taken)
    if keep_counts:
        if now[0]["score"] == NO_SCORE and taken > 1 and size * size * taken < _TOO_MANY:
            _two_for_two(pick, give, size, take, taken, most)
        return
    # Two for one, from the smallest that comes back: the larger it is, the more moves.
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
    # One for two: less goes than comes back in number, for givers of few large items.
    for a in range(size if taken > 1 else 0):
        cost, volume = give.cost[a], give.volume[a]
        if cost - (take.cost[taken - 1] + take.cost[taken - 2]) > high:
            break
        if volume < now[0]["score"] and cost - (take.cost[0] + take.cost[1]) >= low:
            _for_two(pick, take, taken, a, none, cost, volume, give.size[a])
    # Two for two tries most ways, and so comes last, where nothing else was found.
    if now[0]["score"] == NO_SCORE and taken > 1 and size * size * taken < _TOO_MANY:
        _two_for_two(pick, give, size, take, taken, most)
