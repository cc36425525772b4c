"""Limits on what ranks hold, kept by dealing finished micro-batches to ranks, where that changes no time.

Where ranks wait in every slot, and along a pipeline, a step takes the same whichever rank has which of a slot's
micro-batches. So limits on a rank's samples, tokens and other quantities need no schedule of their own.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from balancer.problem.constraints import Constraints
from balancer.problem.cuts.micro_batches import MicroBatches
from balancer.problem.problem import Problem

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_LOOKED_AT = 2**16
"""Moves that one is chosen from, about."""


class _Limits(NamedTuple):
    """What a rank may hold of each quantity; the first is its number of samples."""

    amounts: Ints  # int64[q, n]
    most: Ints  # int64[q]
    fewest: int  # samples

    @classmethod
    def of(cls, kept: Constraints, lengths: Ints, num_ranks: int) -> "_Limits":
        n, caps = len(lengths), kept.all_caps(lengths)
        most = max(1, n) if kept.max_samples_per_rank is None else kept.max_samples_per_rank
        fewest = kept.min_samples_per_rank
        if kept.equal_counts:
            most, fewest = min(most, max(1, -(-n // num_ranks))), max(fewest, n // num_ranks)
        amounts = np.array([np.ones_like(lengths), *(cap.amounts for cap in caps)])
        return cls(amounts, np.array([most, *(cap.limit for cap in caps)], dtype=np.int64), fewest)

    def fullness(self, held: Ints) -> Floats:
        """Return the part of the tightest limit that is held, given int64[q, ...]."""
        shares: Floats = (held / self.most.reshape(-1, *[1] * (held.ndim - 1))).max(axis=0)
        return shares

    def broken(self, held: Ints) -> Floats:
        """Return by which parts of all limits together they are not kept, given int64[q, ...]; 0 if all are."""
        found: Floats = np.maximum(self.fewest - held[0], 0) / max(1, self.fewest)
        for amounts, most in zip(held, self.most, strict=True):
            found = found + np.maximum(amounts - most, 0) / most
        return found


class _Dealt(NamedTuple):
    """Micro-batches of ranks, which change hands."""

    rank: NDArray[np.int32]  # of each sample
    slot: NDArray[np.int32]
    bins: Ints  # int64[q + 2, R, K]: what each micro-batch holds, then its tokens and its cost
    held: Ints  # int64[q, R]

    def move(self, sample: int, amounts: Ints, y: int) -> None:
        """Give a sample to another rank, in its slot."""
        x, k = self.rank[sample], self.slot[sample]
        self.rank[sample] = y
        self.bins[:, x, k] -= amounts
        self.bins[:, y, k] += amounts
        self.held[:, x] -= amounts[:-2]
        self.held[:, y] += amounts[:-2]


def deal(
    problem: Problem,
    cut: MicroBatches,
    ranks: NDArray[np.int32],
    slots: NDArray[np.int32],
    num_slots: int,
    *,
    in_nodes: bool = False,
) -> NDArray[np.int32] | None:
    """Deal the micro-batches of a schedule to ranks so that these keep to the constraints: int32[n], or None.

    Slot by slot, the most uneven first, the fullest micro-batch goes to the rank that holds least: no step takes longer
    for that. Then the rank that breaks limits most gives or takes single samples within a slot, each the one that makes
    the slot least longer. With `in_nodes` micro-batches stay in their nodes, and single samples if that helps.
    """
    num_ranks = problem.topology.num_ranks
    limits = _Limits.of(problem.constraints, problem.batch.lengths, num_ranks)
    amounts = np.concatenate([limits.amounts, [problem.batch.lengths, problem.costs]])
    bins = np.zeros((len(amounts), num_ranks, num_slots), dtype=np.int64)
    for table, amount in zip(bins, amounts, strict=True):
        np.add.at(table, (ranks, slots), amount)
    height = bins[-1].max(axis=0)
    if cut.sync == "pipeline":  # all slots take what the largest micro-batch does
        height[:] = height.max()
    # 1. Fullest to emptiest.
    held, weight = np.zeros((len(limits.most), num_ranks), dtype=np.int64), limits.fullness(bins[:-2])
    new_rank = np.empty((num_slots, num_ranks), dtype=np.int32)
    node = problem.topology.node_of_rank if in_nodes else np.zeros(num_ranks, dtype=np.int32)
    for k in np.argsort(weight.min(axis=0) - weight.max(axis=0), kind="stable"):
        fullest, emptiest = np.lexsort((-weight[:, k], node)), np.lexsort((limits.fullness(held), node))
        new_rank[k, fullest] = emptiest
        bins[:, emptiest, k] = bins[:, fullest, k]
        held += bins[:-2, :, k]
    dealt = _Dealt(new_rank[slots, ranks], slots, bins, held)
    # 2. Single samples, each of which breaks limits less.
    for _ in range(4 * bins[0].size):
        broken = limits.broken(dealt.held)
        x = int(np.argmax(broken))
        if broken[x] == 0:
            return dealt.rank
        near = node == node[x]
        if not any(_give(dealt, limits, broken, x, some, amounts, height, cut) for some in (near, ~near)):
            return None
    return None


def _give(
    dealt: _Dealt, limits: _Limits, broken: Floats, x: int, others: NDArray[np.bool_], amounts: Ints, height: Ints,
    cut: MicroBatches,
) -> bool:  # fmt: skip
    """Move a sample from or to rank x within its slot, that which makes the slot least longer; whether any helps."""
    tokens, costs = amounts[-2:]
    lacks = dealt.held[0, x] < limits.fewest
    y = np.argsort(-dealt.held[0] if lacks else limits.fullness(dealt.held), kind="stable")
    y = y[(y != x) & others[y]][
        : max(8, _LOOKED_AT // (1 + int(dealt.held[0, x])))
    ]  # those with most room, or with most samples
    which = np.flatnonzero(np.isin(dealt.rank, y) if lacks else dealt.rank == x)
    k, some = dealt.slot[which], limits.amounts[:, which]
    giver, taker = (dealt.rank[which][None], np.array([[x]])) if lacks else (np.array([[x]]), y[:, None])
    fits = tokens[which] <= cut.tokens - dealt.bins[-2, taker, k]  # never beside a sample over the cap
    if not cut.allow_empty:
        fits &= dealt.bins[0, giver, k] > 1
    after = limits.broken(dealt.held[:, giver] - some[:, None]) + limits.broken(dealt.held[:, taker] + some[:, None])
    gain = broken[giver] + broken[taker] - after
    above = np.maximum(dealt.bins[-1, taker, k] + costs[which] - height[k], 0)
    where = np.flatnonzero(fits & (gain > 0))
    if not len(where):
        return False
    best = where[np.lexsort((-gain.ravel()[where], above.ravel()[where]))[0]]
    row, column = np.unravel_index(best, gain.shape)
    dealt.move(int(which[column]), amounts[:, which[column]], x if lacks else int(y[row]))
    height[k[column]] += above[row, column]
    if cut.sync == "pipeline":
        height[:] = height.max()
    return True
