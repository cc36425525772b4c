"""Lower bounds on micro-batch schedules, whatever the number of slots that is chosen.

Where ranks wait in every slot, the longest sample is paid for twice: its slot is at least as high as the sample costs,
and no slot absorbs more work than fits under R caps of tokens. With C the sum of the costs, G(T) the most cost that T
tokens can hold (the densest samples first, the last one in part: Dantzig 1957), and x_k the height that at least k
slots must have,

    height_1 + ... + height_j      >=  x_1 + ... + x_j
    height_j+1 + ... + height_K    >=  (C - G(j * R * cap)) / R

for the slots in descending order of height, so the sum of all heights is at least the sum of both, for every j.

=============== =================================================================================================
name            why no schedule does better
=============== =================================================================================================
``mean``        as in :mod:`solvers.bounds`: of the R ranks' sums; in a pipeline of the R * K micro-batches, times
``largest``     K + stages - 1 and for the K at which that is least
``pigeonhole``
``tall_slots``  ranks wait in every slot: the argument above, for the best j >= 1
``room``        a pipeline: beside a long sample there is room in cost for less than the rest of a cap of tokens
=============== =================================================================================================
"""

import itertools
import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from solvers.bounds import Bound, best_bound

# j beyond which no bound is tried: each is O(n), and every j is a bound by itself.
_MOST_TALL_SLOTS = 64
# For rounding: a float's quotient is off by a part in 2**53, so that no bound proves too much.
_ALLOWED = 2.0**-40
# Bits to which a height is found: a millionth of it, as plans count gaps in ppm.
_CLOSE_BITS = 20
# A cap from here on caps nothing, and sums with it could leave int64.
_MOST_CAP = 2**61


def least_micro_batches(tokens: NDArray[np.int64], cap: int) -> int:
    """Return a bound on the micro-batches for `tokens`, each at most `cap`: by volume, and by samples over half."""
    volume = -(-int(tokens.sum()) // cap)
    # Compared without doubling, which could leave int64.
    return max(volume, int(np.count_nonzero(tokens > cap - tokens)))


def slot_counts(least: int, num_ranks: int, min_slots: int, multiple: int, most: int | None) -> Iterable[int]:
    """Return the numbers of slots that the rules permit, ascending; without end where `most` is None."""
    first = -(-max(min_slots, -(-least // num_ranks)) // multiple) * multiple
    return itertools.count(first, multiple) if most is None else range(first, most + 1, multiple)


def forced_heights(costs: NDArray[np.int64], tokens: NDArray[np.int64], num_ranks: int, cap: int) -> list[int]:
    """Return x_1 >= x_2 >= ...: in every schedule at least k slots are at least x_k high.

    Take the costliest samples until they hold more than (k - 1) * R caps of tokens, or more than (k - 1) * R samples
    above half the cap, of which no two share a micro-batch: k - 1 slots cannot hold them all. `costs` descend and
    `tokens` are at most `cap`.
    """
    volume = np.cumsum(tokens)
    halves = np.cumsum(tokens > cap - tokens)
    heights: list[int] = []
    where = 0
    while where < len(costs) and len(heights) < _MOST_TALL_SLOTS:
        heights.append(int(costs[where]))
        bins = len(heights) * num_ranks
        where = min(
            int(np.searchsorted(volume, min(bins * cap, int(volume[-1])), side="right")),
            int(np.searchsorted(halves, min(bins, len(costs)), side="right")),
        )
    return heights


def absorbed(
    costs: NDArray[np.int64], tokens: NDArray[np.int64], total: int, capacities: Iterable[int]
) -> list[tuple[int, int]]:
    """Return for each capacity T an upper bound on the cost that T tokens can hold, as ``(p, shift)``: p / 2**shift.

    For every price y >= 0 of a token, G(T) <= y * T + sum(max(0, c - y * t)); best is y = the density at which the
    densest samples fill T. Any y proves a bound, so y may come from floats; the bound is then summed in integers.
    """
    # As many bits of a price as leave int64 room for the sum of all costs.
    shift = 61 - max(1, total.bit_length())
    with np.errstate(divide="ignore", invalid="ignore"):
        density = np.where(tokens > 0, costs / tokens, np.inf)
    order = np.argsort(-density, kind="stable")
    volume = np.cumsum(tokens[order])
    found = []
    for capacity in capacities:
        where = int(np.searchsorted(volume, min(capacity, int(volume[-1])), side="right"))
        # All samples fit the capacity: it holds all cost there is.
        if shift < 0 or where >= len(order):
            found.append((total, 0))
            continue
        # The density of the first sample that does not fit. Rounded down, it is another price, and as good a proof.
        price = int(float(density[order[where]]) * 2.0**shift)
        worth = (costs[order[:where]] << shift) - price * tokens[order[:where]]
        found.append((price * capacity + int(worth[worth > 0].sum()), shift))
    return found


def tall_slots_bound(
    costs: NDArray[np.int64], tokens: NDArray[np.int64], total: int, num_ranks: int, cap: int
) -> Bound:
    """Return the best bound on the sum over slots of the slowest rank. `costs` descend; `tokens` are at most `cap`."""
    best = best_bound(costs, total, num_ranks)  # a rank's slots take at least its sum
    heights = forced_heights(costs, tokens, num_ranks, cap)
    tall = 0
    room = absorbed(costs, tokens, total, [j * num_ranks * cap for j in range(1, len(heights) + 1)]) if heights else []
    for height, (most, shift) in zip(heights, room, strict=True):
        tall += height
        left = max(0, (total << shift) - most)
        best = max(best, Bound(tall + -(-left // (num_ranks << shift)), "tall_slots"), key=lambda bound: bound.value)
    return best


def taken_tokens(costs: NDArray[np.int64], tokens: NDArray[np.int64], height: int, cap: int) -> NDArray[np.int64]:
    """Return what samples take of a micro-batch that costs at most `height`: int64[n] of tokens, no less than theirs.

    With a the least cost of a token, what lies beside a sample of cost c is at most (height - c) / a tokens, so that it
    takes cap - (height - c) / a. Two such samples take at most a cap together, and what is beside them too, as long as
    a cap of the cheapest tokens fits below `height`; else nothing is known. `tokens` are at most `cap`.

    Examples
    --------
    >>> taken_tokens(np.array([64, 9, 4, 2, 5, 5]), np.array([8, 3, 2, 2, 5, 5]), height=70, cap=20).tolist()
    [13, 3, 2, 2, 5, 5]
    """
    least = _least_density(costs, tokens)
    if cap >= min(int(tokens.sum()), _MOST_CAP) or not 0 < least * cap <= height:
        return tokens
    return _taken(costs, tokens, height, cap, least)


def _taken(
    costs: NDArray[np.int64], tokens: NDArray[np.int64], height: int, cap: int, least: float
) -> NDArray[np.int64]:
    beside = np.minimum((height - costs) / least * (1 + _ALLOWED) + 1, float(cap)).astype(np.int64)
    taken: NDArray[np.int64] = np.maximum(tokens, cap - beside)
    return taken


def _least_density(costs: NDArray[np.int64], tokens: NDArray[np.int64]) -> float:
    """Return what every token costs at least, less what rounding may have added."""
    some = tokens > 0
    return float((costs[some] / tokens[some]).min()) * (1 - _ALLOWED) if some.any() else 0.0


def _room_bound(costs: NDArray[np.int64], tokens: NDArray[np.int64], num_bins: int, cap: int, bound: Bound) -> Bound:
    """Return a height below which samples take more than all micro-batches have, if it is above `bound`."""
    least, spare = _least_density(costs, tokens), num_bins * cap - int(tokens.sum())
    if spare < 0 or least <= 0 or cap >= min(int(tokens.sum()), _MOST_CAP):
        return bound
    # What lies beside a sample is known only from the height on at which a cap of the cheapest tokens fits.
    low = max(bound.value, math.ceil(least * cap))
    long = _taken(costs, tokens, low, cap, least) > tokens  # at greater heights fewer are
    costs, tokens = costs[long], tokens[long]

    def fit(height: int) -> bool:
        return int((_taken(costs, tokens, height, cap, least) - tokens).sum()) <= spare

    high = low + math.ceil(least * cap) + 1  # beside the costliest sample there is room for a cap then
    if fit(low) or not fit(high):
        return bound
    while high - low > 1 + (low >> _CLOSE_BITS):
        middle = (low + high) // 2
        low, high = (low, middle) if fit(middle) else (middle, high)
    return Bound(low + 1, "room")


def pipeline_bound(
    costs: NDArray[np.int64], tokens: NDArray[np.int64], total: int, num_ranks: int, cap: int, slots: Iterable[int],
    stages: int,
) -> Bound:  # fmt: skip
    """Return the least of (K + stages - 1) * (bound on the largest of R * K micro-batches) over ascending `slots`."""
    best: Bound | None = None
    plain = 0  # what is proven without the bound `room`
    largest = int(costs[0]) if len(costs) else 0
    for k in slots:
        # More slots make the pipeline longer, and none is shorter than the largest sample: from here on none is
        # better.
        if best is not None and (k + stages - 1) * largest >= best.value:
            break
        mean = best_bound(costs, total, num_ranks * k)
        bound = _room_bound(costs, tokens, num_ranks * k, cap, mean)
        plain = min(plain, (k + stages - 1) * mean.value) if best else (k + stages - 1) * mean.value
        if best is None or (k + stages - 1) * bound.value < best.value:
            best = Bound((k + stages - 1) * bound.value, bound.name)
    if best is not None and best.value > plain:  # of another number of slots only `room` proves that it is no better
        return Bound(best.value, "room")
    return best or Bound(0, "mean")
