"""What no steps undercut: tall items need tall steps, and a tall step wastes what its pool cannot fill.

A step of height h takes num_bins * h of all bins' time. Its *pool*, the items whose windows hold it, fills at most
V(h) of that under the step's limits, by weak duality with any prices of tokens and items. So it *wastes* num_bins * h -
V(h) at least. Every row has a largest item, which lies in some step of its window; the least waste of steps that hold
all of these is found by dynamic programming over intervals of steps: of the rows whose windows lie within an interval,
the one with the tallest item takes a step that cuts the interval in two, and covers all rows whose windows hold it.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import kernel
from solvers.deferral._problem import ITEMS, TOKENS, UNLIMITED, Problem
from solvers.deferral.types import MOST_STEPS
from solvers.groups import read_only

Ints = NDArray[np.int64]

# Items of a pool that its prices are found from: any prices prove something.
_SAMPLED = 8192


class Prices(NamedTuple):
    """Of a token and of an item in every step."""

    values: Ints  # int64[2, T], in 2**-bits
    bits: int


class Cover(NamedTuple):
    """Steps that hold the tallest item of every row at the least waste, by what is proven of it."""

    heights: Ints  # int64[T]: the tallest item for which a step was taken, 0 for none
    wasted: int  # proven: so much of all bins' time at least, in the units of volumes


def price_steps(problem: Problem) -> Prices:
    """Price tokens and items of each step so that its pool is worth little above what fits. O(T S log S), S sampled."""
    largest, bits = 1, 0
    pools = [_pool(problem, t) for t in range(problem.num_steps)]
    for pool in pools:
        largest = max(largest, int(problem.volumes[pool].sum()))
    bits = max(0, min(20, 59 - largest.bit_length()))
    values = np.zeros((2, problem.num_steps), dtype=np.int64)
    for t, pool in enumerate(pools):
        values[:, t] = _price(problem, t, pool, bits)
    return Prices(values, bits)


def _pool(problem: Problem, t: int) -> slice:
    """Return the items whose windows hold step t: rows are neighbours, as windows do not overtake each other."""
    low, high = np.searchsorted(problem.last, t), np.searchsorted(problem.first, t, side="right")
    return slice(int(problem.row_starts[low]), int(problem.row_starts[high]))


def _price(problem: Problem, t: int, pool: slice, bits: int) -> tuple[int, int]:
    """Return prices at which items worth more than they pay fill the step, and hardly more."""
    size = pool.stop - pool.start
    chosen = np.arange(pool.start, pool.stop, max(1, -(-size // _SAMPLED)))
    if not len(chosen):
        return 0, 0
    worth, tokens = problem.volumes[chosen] << bits, problem.tokens[chosen]
    highest = (UNLIMITED >> 2) // max(1, int(problem.tokens[pool].max()))  # so that no product leaves int64
    share = size / len(chosen)
    room, least, most = (
        limit / share for limit in (problem.most[t, TOKENS], problem.least[t, ITEMS], problem.most[t, ITEMS])
    )
    by_tokens = min(highest, _density(worth, tokens, room)) if tokens.sum() > room else 0
    if least <= np.count_nonzero(worth > by_tokens * tokens) <= most:
        return by_tokens, 0
    _, price = _price_of_items(worth, least, most)
    if problem.most[t, TOKENS] == UNLIMITED or tokens[worth >= price].sum() <= room:
        return 0, price
    low, high = 0, min(highest, int((worth // np.maximum(tokens, 1)).max()) + 1)
    for _ in range(bits + 8):  # a price of tokens at which the best items, so many as there may be, have few enough
        middle = (low + high) // 2
        net, price = _price_of_items(worth - middle * tokens, least, most)
        low, high = (middle, high) if tokens[net >= price].sum() > room else (low, middle)
    return high, _price_of_items(worth - high * tokens, least, most)[1]


def _density(worth: Ints, tokens: Ints, room: float) -> int:
    """Return the worth of a token of the item at which the densest have filled the room."""
    dense = worth // np.maximum(tokens, 1)
    order = np.argsort(-dense, kind="stable")
    filled = np.cumsum(tokens[order])
    return int(dense[order[min(int(np.searchsorted(filled, room)), len(order) - 1)]])


def _price_of_items(net: Ints, least: float, most: float) -> tuple[Ints, int]:
    """Return the price at which between `least` and `most` items are worth it: negative where too few are."""
    ordered = np.sort(net)[::-1]
    upper = int(ordered[min(int(most), len(ordered) - 1)]) if most < len(ordered) else 0
    if upper > 0:
        return net, upper
    lower = int(ordered[min(max(int(least) - 1, 0), len(ordered) - 1)]) if least >= 1 else 0
    return net, min(0, lower)


def cover_bound(problem: Problem, prices: Prices) -> Cover:
    """Find the least waste of steps that hold every row's tallest item. O(n D + T^2 D) by blocks, D a window's steps.

    Returns
    -------
    Cover
        ``num_bins * (sum of makespans) >= sum of volumes + wasted``.
    """
    tallest = np.full(len(problem.first), -1, dtype=np.int64)  # of an empty row, which asks for no step
    np.maximum.at(tallest, problem.rows, problem.heights)
    waste = _waste_of_rows(problem, prices, tallest)
    heights, total = np.zeros(problem.num_steps, dtype=np.int64), 0
    for begin in range(0, problem.num_steps, MOST_STEPS):
        end = min(begin + MOST_STEPS, problem.num_steps)
        inside = (problem.first >= begin) & (problem.last < end) & (tallest >= 0)
        if inside.any():
            rows = np.flatnonzero(inside)
            size = end - begin
            best = np.zeros((size + 1, size + 1), dtype=np.int64)
            cut, row = np.full((size + 1, size + 1), -1, dtype=np.int64), np.empty((size + 1, size + 1), dtype=np.int64)
            first, last = problem.first[rows] - begin, problem.last[rows] - begin
            here, wasted = np.ascontiguousarray(tallest[rows]), np.ascontiguousarray(waste[rows])
            _least_cover(read_only(first), read_only(last), read_only(here), read_only(wasted), best, cut, row)
            total += int(best[0, size])
            _note(heights[begin:end], here, cut, row)
    return Cover(heights, total)


def _note(heights: Ints, tallest: Ints, cut: Ints, row: Ints) -> None:
    """Write down the height of each step that the least cover takes."""
    waiting = [(0, len(heights))]
    while waiting:
        low, high = waiting.pop()
        if (t := int(cut[low, high])) >= 0:
            heights[t] = tallest[row[low, high]]
            waiting += [(low, t), (t + 1, high)]


def _waste_of_rows(problem: Problem, prices: Prices, tallest: Ints) -> Ints:
    """Return what a step wastes at least that holds a row's tallest item: int64[R, D], by steps of the row's window."""
    width = int((problem.last - problem.first).max()) + 1
    waste = np.zeros((len(problem.first), width), dtype=np.int64)
    for t in range(problem.num_steps):
        low, high = np.searchsorted(problem.last, t), np.searchsorted(problem.first, t, side="right")
        if low < high and problem.row_starts[low] < problem.row_starts[high]:
            at = np.arange(low, high)
            waste[at, t - problem.first[at]] = _waste(problem, prices, t, tallest[at])
    return waste


def _waste(problem: Problem, prices: Prices, t: int, tallest: Ints) -> Ints:
    """Return for each of these heights what step t wastes at least if it has an item so tall."""
    pool = _pool(problem, t)
    heights, volumes = problem.heights[pool], problem.volumes[pool]
    token_price, item_price = (int(price) for price in prices.values[:, t])
    worth = np.maximum(
        (volumes << prices.bits) - token_price * problem.tokens[pool] - item_price * problem.counts[pool], 0
    )
    paid = token_price * int(problem.most[t, TOKENS])
    paid += item_price * int((problem.most if item_price > 0 else problem.least)[t, ITEMS])
    lowest = int(tallest.min())
    tall = np.flatnonzero(heights >= lowest)
    order = tall[np.argsort(-heights[tall], kind="stable")]
    # Of items so tall or lower: all are worth so much, less what the taller are. Python's numbers do not overflow.
    all_worth, all_volume = paid + _sum(worth), int(volumes.sum())
    taller_worth, taller_volume = _before(worth[order]), _before(volumes[order])
    tops = heights[order]
    filled = np.array(
        [min((all_worth - w) >> prices.bits, all_volume - v) for w, v in zip(taller_worth, taller_volume, strict=True)],
        dtype=np.int64,
    )
    # Of items of one height the first has all others below it, and so the least waste of them
    least = np.minimum.accumulate(np.maximum(problem.num_bins * tops - filled, 0))
    return least[np.searchsorted(-tops, -tallest, side="right") - 1]


def _sum(values: Ints) -> int:
    """Sum non-negative numbers below 2**62, many of which may leave int64."""
    low, high = values & 0xFFFFFFFF, values >> 32
    return (int(high.sum()) << 32) + int(low.sum())


def _before(values: Ints) -> list[int]:
    """Return for each number the sum of those before it."""
    sums, total = [], 0
    for value in values.tolist():
        sums.append(total)
        total += value
    return sums


@kernel(turns=200)
def _least_cover(first, last, tallest, waste, best, cut, row):
    """Fill `best`, `cut` and `row` for all intervals ``low .. high - 1`` of steps. O(T^2 D).

    `cut` is the step that holds the tallest item of the rows within, `row` that row; -1 where no row is within.
    """
    num_rows, num_steps = len(first), best.shape[0] - 1
    begin = num_rows
    for low in range(num_steps, -1, -1):
        while begin > 0 and first[begin - 1] >= low:
            begin -= 1
        at, highest = begin, -1
        for high in range(low + 1, num_steps + 1):
            # A longer interval has the same rows and more: the tallest is kept up to date
            while at < num_rows and last[at] < high:
                if highest < 0 or tallest[at] > tallest[highest]:
                    highest = at
                at += 1
            if highest < 0:
                continue
            least, where = np.int64(-1), np.int64(-1)
            for t in range(first[highest], last[highest] + 1):
                wasted = waste[highest, t - first[highest]] + best[low, t] + best[t + 1, high]
                if least < 0 or wasted < least:
                    least, where = wasted, np.int64(t)
            best[low, high], cut[low, high], row[low, high] = least, where, highest
