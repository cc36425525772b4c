"""The search: hosts for tall items, filled from their neighbours.

A *host* is a step with a height up to which it takes items from others. A plan follows from heights alone
(:func:`fill`): items that are tall, the tallest first, go to the host of their window that is short of most, and in
return the host gives up what uses its room least. So the search is over heights: it begins at the cover that the bound
takes (:mod:`solvers.deferral.bounds`), and changes one host at a time while that makes the exact sum smaller.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers._loops import copy, copy_table
from solvers.deferral._problem import ITEMS, TOKENS, UNLIMITED, VOLUME, Problem, bin_times, sums_of
from solvers.deferral.bounds import Prices
from solvers.groups import read_only

Ints = NDArray[np.int64]

_STRETCH = 96
"""Steps whose hosts are changed while all others are left alone. A fill of so many costs the same in any log."""

# After so many exchanges that broke a limit a host asks for no more.
_MOST_REFUSALS = 8
# Items looked at that may not go where an exchange would send them, which bounds what one exchange costs.
_MOST_UNFIT = 32


# Rows of `State.tops`: the tallest item of a step; the N-th tallest, the last that has a bin for itself; the next one,
# which must share a bin with one of the N, so that the step takes as long as both.
_TALLEST, _LAST_ALONE, _FIRST_SHARING = range(3)
# Rows of `State.counts`: items seen from the tallest down; items of at least half the host's height, of which a bin
# takes one; exchanges that broke a limit.
_SEEN, _HALF_AS_TALL, _REFUSED = range(3)

# Of what a window holds, so much at most may be pulled into hosts. With 1.3 in place of 4 steps of 40,000 lognormal
# lengths, 8 steps either way, take 27 to 35 % longer; with 3 and 4.5 they take as long.
_SHARE_OF_ALL = 0.65  # of all items, a fair share of windows of two steps
_SHARE_OF_WINDOW = 4  # of one step's items, in longer windows


class Orders(NamedTuple):
    """In which order items are looked at; read-only."""

    by_height: Ints  # int64[n]: the tallest first
    num_tall: int  # of these so many may be pulled into hosts
    to_give: Ints  # int64[n]: items by the step they start in, first those that use its room least
    to_return: Ints  # int64[n]: so too, the lowest first
    starts: Ints  # int64[T + 1]: where steps begin in both
    sums: Ints  # int64[T, 3 + q]: what each step has at the start
    reach: Ints  # int64[n, 3]: height, first and last step of an item, side by side as they are read together


class State(NamedTuple):
    """A plan while it is filled; written."""

    step: Ints  # int64[n]
    sums: Ints  # int64[T, 3 + q]: what each step has
    heights: Ints  # int64[T]: up to which steps take items
    tops: Ints  # int64[3, T]: heights of items, by row: _TALLEST, _LAST_ALONE, _FIRST_SHARING
    counts: Ints  # int64[3, T]: by row: _SEEN, _HALF_AS_TALL, _REFUSED
    next_given: Ints  # int64[T]: where to look next in `to_give`
    exchanged: Ints  # int64[n]: items that an exchange has moved, to take it back


@helper
def _move(step, sums, weights, i, source, target):
    """Move an item, and what its steps hold. It takes arrays, not all that they are of: it is called most."""
    step[i] = target
    for k in range(weights.shape[1]):
        sums[source, k] -= weights[i, k]
        sums[target, k] += weights[i, k]


@helper
def _next(step, reach, order, p, end, wanted):
    """Return where the next item is that is in step ``wanted[0]``, may be in ``wanted[1]``, and is lower than
    ``wanted[2]``; or -1.
    """  # noqa: D205 (one sentence)
    source, target, ceiling = wanted
    unfit = 0
    while p < end and unfit < _MOST_UNFIT:
        j = order[p]
        if step[j] == source and reach[j, 0] < ceiling:
            if reach[j, 1] <= target <= reach[j, 2]:
                return p
            unfit += 1
        p += 1
    return -1


@helper
def _keeps_limits(sums, least, most, t):
    """Whether a step keeps all limits."""
    kept = True
    for k in range(sums.shape[1]):
        kept &= least[t, k] <= sums[t, k] <= most[t, k]
    return kept


@helper
def _exchange(problem, orders, state, i, host):
    """Move a tall item to a host, others back until both steps keep their limits; False, and nothing, if none do.

    The host gives its least useful items while it has too much, or the donor too little. Where it then has too few
    items, the donor adds its lowest: so counts stay as they are while tokens stay within theirs.
    """
    step, sums, weights, least, most = state.step, state.sums, problem.weights, problem.least, problem.most
    donor, ceiling, reach = step[i], problem.heights[i], orders.reach
    for k in range(ITEMS + 1, weights.shape[1]):  # others on their way back do not make room for this
        if sums[host, k] + weights[i, k] > most[host, k]:
            return False
    _move(step, sums, weights, i, donor, host)
    state.exchanged[0] = i
    size, given, returned = 1, state.next_given[host], orders.starts[donor]
    while size < len(step):
        if (
            sums[host, TOKENS] > most[host, TOKENS] or sums[donor, TOKENS] < least[donor, TOKENS]
            or sums[host, ITEMS] > most[host, ITEMS] or sums[donor, ITEMS] < least[donor, ITEMS]
        ):  # fmt: skip
            given = _next(step, reach, orders.to_give, given, orders.starts[host + 1], (host, donor, ceiling))
            if given < 0:
                break
            j, source, target = orders.to_give[given], host, donor
        elif sums[host, ITEMS] < least[host, ITEMS] or sums[donor, ITEMS] > most[donor, ITEMS]:
            end = orders.starts[donor + 1]
            returned = _next(step, reach, orders.to_return, returned, end, (donor, host, ceiling))
            if returned < 0:
                break
            j, source, target = orders.to_return[returned], donor, host
        else:
            break
        _move(step, sums, weights, j, source, target)
        state.exchanged[size] = j
        size += 1
    if _keeps_limits(sums, least, most, host) and _keeps_limits(sums, least, most, donor):
        return True
    for k in range(size - 1, -1, -1):
        j = state.exchanged[k]
        at = step[j]
        _move(step, sums, weights, j, at, host if at == donor else donor)
    return False


@helper
def _host_of(heights, sums, counts, item, bins, whole, forced):
    """Return the step of an item's window that wants it most, -1 if none does; `item` is its row of `reach`.

    That is the host short of most volume, which may be its own. A `forced` item, too tall for its own step, goes to
    one that is tall enough in any case.
    """
    height = item[0]
    best, most, fallback, lowest = np.int64(-1), np.int64(0), np.int64(-1), np.int64(UNLIMITED)
    for t in range(item[1], item[2] + 1):
        if heights[t] < height or counts[_REFUSED, t] >= _MOST_REFUSALS:
            continue
        short = bins * heights[t] - sums[t, VOLUME]
        # Two items of more than half the host's height share no bin
        crowded = whole and 2 * height > heights[t] and counts[_HALF_AS_TALL, t] >= bins
        if short > most and not crowded:
            best, most = np.int64(t), short
        if sums[t, VOLUME] < lowest:
            fallback, lowest = np.int64(t), sums[t, VOLUME]
    return fallback if best < 0 and forced else best


@helper
def _begin(problem, orders, heights, state):
    """Put all items where they start."""
    copy(state.step, problem.start)
    copy_table(state.sums, orders.sums)
    copy(state.heights, heights)
    copy(state.next_given, orders.starts[:-1])
    for t in range(len(heights)):
        for k in range(3):
            state.counts[k, t] = state.tops[k, t] = 0


@helper
def _advance(to_give, step, p, end, t):
    """Return where the first item is that a step has not given yet."""
    while p < end and step[to_give[p]] != t:
        p += 1
    return p


@helper
def _tops(problem, orders, state):
    """Find the tallest item of every step, and the last two of the num_bins + 1 tallest."""
    open_steps, bins = len(state.heights), problem.num_bins
    for i in orders.by_height:
        t = state.step[i]
        seen = state.counts[_SEEN, t]
        if seen == 0:
            state.tops[_TALLEST, t] = problem.heights[i]
        if seen == bins - 1:
            state.tops[_LAST_ALONE, t] = problem.heights[i]
        if seen == bins:
            state.tops[_FIRST_SHARING, t] = problem.heights[i]
            open_steps -= 1
            if open_steps == 0:
                break
        state.counts[_SEEN, t] = seen + 1


@helper
def _floor(problem, state, t):
    """Return what all bins of a step take together at least, idle time included."""
    most = max(state.sums[t, VOLUME], problem.num_bins * state.tops[_TALLEST, t])
    if problem.whole and state.tops[_FIRST_SHARING, t] > 0:
        most = max(most, problem.num_bins * (state.tops[_LAST_ALONE, t] + state.tops[_FIRST_SHARING, t]))
    return most


@kernel(turns=200)
def fill(problem, orders, heights, state):
    """Fill hosts of these heights, and return the sum of all floors, in bin time. O(n + tall items * window)."""
    _begin(problem, orders, heights, state)
    for k in range(orders.num_tall):
        i = orders.by_height[k]
        home, height = state.step[i], problem.heights[i]
        if home != problem.start[i]:  # given away by a host before its turn came
            continue
        # Alone it would set the pace of its step, and no host is meant to be so tall there
        forced = height > state.heights[home] and problem.num_bins * height > state.sums[home, VOLUME]
        item = orders.reach[i]
        host = _host_of(state.heights, state.sums, state.counts, item, problem.num_bins, problem.whole, forced)
        if host >= 0 and host != home:
            if _exchange(problem, orders, state, i, host):
                end = orders.starts[host + 1]
                state.next_given[host] = _advance(orders.to_give, state.step, state.next_given[host], end, host)
                home = host
            else:
                state.counts[_REFUSED, host] += 1
        if 2 * height > state.heights[home]:
            state.counts[_HALF_AS_TALL, home] += 1
        if forced and home == problem.start[i]:  # it stays, so its step may as well host others
            state.heights[home] = max(state.heights[home], height)
    _tops(problem, orders, state)
    total = np.int64(0)
    for t in range(len(heights)):
        total += _floor(problem, state, t)
    return total


class _Stretch:
    """Steps whose hosts are changed, all windows cut to them."""

    def __init__(self, problem: Problem, prices: Prices) -> None:
        self.problem = problem
        self.orders = _orders(problem, prices)
        n, steps = len(problem.rows), problem.num_steps
        shapes = ((n,), problem.most.shape, (steps,), (3, steps), (3, steps), (steps,), (n,))
        self.state = State(*(np.zeros(shape, dtype=np.int64) for shape in shapes))
        # Profiled: to pull an item takes as long as to look at a hundred that stay (its window and exchanges are tried)
        self.work_of_fill = n + 100 * self.orders.num_tall

    def total(self, heights: Ints) -> int:
        """Return the sum of floors that these hosts give."""
        return int(fill(self.problem, self.orders, read_only(heights), self.state))

    def climb(self, heights: Ints, work: int) -> Ints:
        """Change one host after another while that helps, or until the work is spent.

        Hosts that others can stand in for go first: the cover thinks that each has its whole pool for itself.
        """
        best = self.total(heights)
        tallest = np.zeros(self.problem.num_steps, dtype=np.int64)
        np.maximum.at(tallest, self.problem.start, self.problem.heights)
        reach = int((self.problem.last - self.problem.first).max())
        improved = True
        while improved:
            improved = False
            for changes in (_without, _elsewhere, _for_tall):
                for t in range(len(heights)):
                    near = range(max(0, t - reach), min(len(heights), t + reach + 1))
                    for changed in changes(heights, t, near, tallest):
                        if work <= 0:
                            return heights
                        work -= self.work_of_fill
                        total = self.total(changed)
                        if total < best:
                            best, heights, improved = total, changed, True
        return heights


def _without(heights: Ints, t: int, near: range, tallest: Ints) -> Iterator[Ints]:
    """Yield heights without the host at step t."""
    if heights[t] > 0:
        yield _with(heights, (t, 0))


def _elsewhere(heights: Ints, t: int, near: range, tallest: Ints) -> Iterator[Ints]:
    """Yield heights with the host of step t at another step, or in place of a lower one, which takes its step."""
    for u in near:
        if heights[u] < heights[t]:
            yield _with(heights, (t, 0), (u, int(heights[t])))
            if heights[u] > 0:
                yield _with(heights, (t, int(heights[u])), (u, int(heights[t])))


def _for_tall(heights: Ints, t: int, near: range, tallest: Ints) -> Iterator[Ints]:
    """Yield heights with a host at step t for the tallest item of a step nearby."""
    for height in sorted({int(tallest[u]) for u in near} - {int(heights[t])}, reverse=True):
        yield _with(heights, (t, height))


def _with(heights: Ints, *changes: tuple[int, int]) -> Ints:
    changed = heights.copy()
    for t, height in changes:
        changed[t] = height
    return changed


def _orders(problem: Problem, prices: Prices) -> Orders:
    """Sort items as fills look at them. O(n log n)."""
    steps = problem.num_steps
    by_height = np.argsort(-problem.heights, kind="stable")
    token_price, item_price = prices.values[:, problem.start]
    worth = (problem.volumes << prices.bits) - token_price * problem.tokens - item_price * problem.counts
    by_step = [np.lexsort((keys, problem.start)) for keys in (worth, problem.heights)]
    starts = np.searchsorted(problem.start[by_step[0]], np.arange(steps + 1))
    reach = np.stack([problem.heights, problem.first[problem.rows], problem.last[problem.rows]], axis=1)
    arrays = [read_only(each) for each in (*by_step, starts, sums_of(problem, problem.start), reach)]
    return Orders(read_only(by_height), _num_tall(problem, by_height), *arrays)


def _num_tall(problem: Problem, by_height: Ints) -> int:
    """Return how many items may be worth a host's room: a fair share of what its window holds, and some more.

    What does not fit into hosts would be looked at in every fill in vain.
    """
    if not len(by_height):
        return 0
    width = int((problem.last - problem.first).max()) + 1
    rooms = []
    for k in (TOKENS, ITEMS):
        if problem.most[:, k].min() < UNLIMITED:
            filled = np.cumsum(problem.weights[by_height, k])
            rooms.append(
                int(np.searchsorted(filled, min(_SHARE_OF_ALL, _SHARE_OF_WINDOW / width) * int(filled[-1]))) + 1
            )
    return min([len(by_height), *rooms])


def _stretches(problem: Problem, prices: Prices) -> Iterator[tuple[slice, slice, _Stretch]]:
    """Yield the steps of each stretch, those of its middle, which no other stretch has, and what fills it."""
    reach = int((problem.last - problem.first).max())
    size, margin = max(_STRETCH, 8 * reach), 2 * reach
    steps = problem.num_steps
    # Rows that do not start in the step of their number cannot be cut where steps are
    if steps <= size or len(problem.first) != steps or not np.array_equal(problem.rows, problem.start):
        yield slice(0, steps), slice(0, steps), _Stretch(problem, prices)
        return
    for begin in range(0, steps, size - 2 * margin):
        low, high = max(0, begin - margin), min(steps, begin + size - margin)
        stop = min(steps, begin + size - 2 * margin)
        part = _between(problem, low, high)
        values = np.ascontiguousarray(prices.values[:, low:high])
        yield slice(low, high), slice(begin, stop), _Stretch(part, Prices(values, prices.bits))


def _between(problem: Problem, low: int, high: int) -> Problem:
    """Return the problem of some steps and their rows alone; rows are steps here."""
    items, steps = slice(int(problem.row_starts[low]), int(problem.row_starts[high])), slice(low, high)

    def cut(values: Ints, part: slice, less: int = 0) -> Ints:
        return read_only(np.ascontiguousarray(values[part]) - less)

    first, last = (np.clip(each[steps], low, high - 1) for each in (problem.first, problem.last))
    return Problem(
        cut(problem.heights, items), cut(problem.weights, items), cut(problem.rows, items, low),
        cut(problem.start, items, low), cut(problem.row_starts, slice(low, high + 1), items.start),
        read_only(first - low), read_only(last - low), cut(problem.least, steps), cut(problem.most, steps),
        problem.num_bins, problem.whole,
    )  # fmt: skip


def search(problem: Problem, prices: Prices, cover: Ints, work: int) -> Ints:
    """Return the best step found of each item, in the problem's order; its makespans sum to no more than the start's.

    Parameters
    ----------
    problem : Problem
    prices : Prices
        What a host gives up first is what is worth least at these.
    cover : int64[T]
        Heights of hosts to begin with.
    work : int
        Items that all fills may look at. No clock, so that all machines find the same.
    """
    heights = cover.copy()
    for whole, middle, stretch in _stretches(problem, prices):
        share = (middle.stop - middle.start) / problem.num_steps
        found = stretch.climb(np.ascontiguousarray(heights[whole]), int(work * share))
        heights[middle] = found[middle.start - whole.start : middle.stop - whole.start]
    everything = _Stretch(problem, prices)
    best = min((cover, heights), key=everything.total)
    everything.total(best)
    found = everything.state.step.copy()
    # Fills add bin time up, and makespans are rounded up step by step: a search that won may have lost.
    return min((problem.start, found), key=lambda step: _sums_of_makespans(problem, step))


def _sums_of_makespans(problem: Problem, step: Ints) -> tuple[int, int]:
    """Return the sum of what steps take at least, and of that in bin time, which tells equal ones apart. O(n log n)."""
    floors = floors_of(problem, step)
    return int((-(-floors // problem.num_bins)).sum()), int(floors.sum())


def floors_of(problem: Problem, step: Ints) -> Ints:
    """Return what all bins of each step take together at least, idle time included: int64[T]. O(n log n)."""
    return bin_times(problem.volumes, problem.heights, step, problem.num_steps, problem.num_bins, problem.whole)
