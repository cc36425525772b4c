"""Micro-batches as a cap on what a rank may hold: tokens in tall slots have a price, and the rest of a cost counts.

Let the slots of a rank, in descending order, cost at most T_1, T_2, ..., T_K. The j first hold no more than j caps of
tokens, whatever their height; so for any price y of a token, what a rank holds of min(cost, y * tokens) is

    at most   j * y * cap  +  T_j+1 + ... + T_K

because of each sample in the j first slots at most y * tokens are counted, and of all others at most their cost. This
is the argument behind the bound ``tall_slots`` of schedules, for one rank instead of all; the price at which it says
most is the density (cost per token) of the last sample that the tall slots of all ranks have room for. It adds up over
samples: so partitions, relocations and their bounds, which know of no slots, can use it.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers.packing._schedule_bounds import forced_heights

# Bits of products that fit int64.
_BITS = 62
# The part of the tall slots' tokens that is filled before the price is read off: all, by default.
_ALL = Fraction(1)
# A price is exact enough to a part in 2**24 of a cost unit: under a cap of 16 million tokens that is one unit in all.
_MOST_SHIFT = 24


class Priced(NamedTuple):
    """What of each sample's cost counts, and of how much of that no rank has room for more."""

    costs: NDArray[np.int64]  # int64[n]
    most: int
    tall: int  # how many slots are bound by their tokens: j


def price_tokens(
    costs: NDArray[np.int64],
    tokens: NDArray[np.int64],
    rests: Sequence[int],
    num_ranks: int,
    cap: int,
    room: Fraction = _ALL,
) -> Priced:
    """Return the price at which ranks are fullest, exact in integers.

    `rests` are, for j = 0, 1, ..., fewer than there are slots, what a rank's slots but the j tallest cost together at
    most. No rank whose slots keep to them and to `cap` holds more than ``most`` of ``costs``; with no tall slot these
    are the costs, and the first of `rests`. A sample of more than `cap` tokens fills a micro-batch. O(n log n).

    `room` is that part of the tokens of the tall slots that the densest samples fill before the one whose density is
    the price. The sum over all ranks is nearest to its most at 1; that of one rank, whose samples differ, may be at
    another price.

    Examples
    --------
    >>> lengths = np.array([8, 5, 4, 4, 3, 3, 2, 2, 1])
    >>> priced = price_tokens(lengths**2, lengths, [86, 22], num_ranks=2, cap=9)
    >>> priced.costs.tolist(), priced.most, priced.tall
    ([32, 20, 16, 16, 9, 9, 4, 4, 1], 58, 1)
    """
    tokens = np.minimum(tokens, cap)
    best = Priced(costs, rests[0], 0)
    cap = min(cap, int(tokens.sum()))
    with np.errstate(divide="ignore", invalid="ignore"):
        density = np.where(tokens > 0, costs / tokens, np.inf)
    densest = np.argsort(-density, kind="stable")
    volume = np.cumsum(tokens[densest])
    fullest = int(costs.sum())
    for tall, rest in enumerate(rests[1:], 1):
        full = int(room * (tall * num_ranks * cap))
        if not len(volume) or full >= volume[-1]:
            break
        price = float(density[densest[np.searchsorted(volume, full, side="right")]])
        shift = min(_MOST_SHIFT, _BITS - cap.bit_length() - int(price + 1).bit_length())
        if shift < 0:
            break
        priced = int(price * 2.0**shift)
        # Rounded down for samples and up for the cap: so no rank that is allowed is refused.
        counted = np.minimum(costs, priced * tokens >> shift)
        total, most = int(counted.sum()), rest - (-tall * cap * priced >> shift)
        # Compared across, without division: at which price all samples together are nearest to what ranks may hold.
        if total * best.most > fullest * most:
            best, fullest = Priced(counted, most, tall), total
    return best


def rests_of_slots(
    costs: NDArray[np.int64], tokens: NDArray[np.int64], makespan: int, num_ranks: int, num_slots: int, cap: int
) -> list[int]:
    """Return what slots but the j tallest cost together at most, for j = 0, 1, ..., in a step of at most `makespan`.

    The j tallest cost at least what the largest samples force: all schedules of `num_slots` slots in which ranks wait.

    Examples
    --------
    >>> lengths = np.array([8, 5, 4, 4, 3, 3, 2, 2, 1])
    >>> rests_of_slots(lengths**2, lengths, 86, num_ranks=2, num_slots=2, cap=9)
    [86, 22]
    """
    order = np.argsort(-costs, kind="stable")
    cap = min(cap, int(tokens.sum()))
    rests = [makespan]
    for height in forced_heights(costs[order], np.minimum(tokens[order], cap), num_ranks, cap)[: num_slots - 1]:
        rests.append(rests[-1] - height)
    return rests
