"""What micro-batches may hold besides their tokens, as the search of schedules takes it.

Sums and counts are dimensions of the search. Kinds, and samples that every rank of a slot has or none, are about which
bins a sample may be in: each bin is for one *class* of samples, or for several, before any sample is in it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers.arguments import as_costs, as_integer
from solvers.errors import ArgumentError, InfeasibilityCertificate, InfeasibleError, Named
from solvers.groups import read_only
from solvers.packing.bins import PackingProblem, best_fit_decreasing, count_of

Ints = NDArray[np.int64]

_TRIED = 3  # numbers of slots for samples that all ranks have
_MOST_CAP = 2**60  # a cap from here on caps nothing


class BatchLimits(NamedTuple):
    """Limits on every micro-batch of n samples, besides the cap on its tokens.

    Attributes
    ----------
    sizes : int64[n, q]
        What each sample has of q quantities.
    caps : int64[q]
        The most of each quantity that a micro-batch may have.
    most_items : int or None
        The most samples of a micro-batch.
    padded : int or None
        The most of samples times the tokens of the longest.
    kinds : int64[n] or None
        A micro-batch holds samples of one kind.
    everywhere : bool[n] or None
        In a slot a sample of these is on every rank, or on none.
    """

    sizes: Ints
    caps: Ints
    most_items: int | None = None
    padded: int | None = None
    kinds: Ints | None = None
    everywhere: NDArray[np.bool_] | None = None

    def of(self, chosen: NDArray[np.integer]) -> BatchLimits:
        """Return the limits on some of the samples, in this order."""
        return self._replace(
            sizes=self.sizes[chosen],
            kinds=None if self.kinds is None else self.kinds[chosen],
            everywhere=None if self.everywhere is None else self.everywhere[chosen],
        )

    def checked(self, count: int, tokens: Ints) -> BatchLimits:
        """Return them checked for `count` samples of so many tokens.

        Raises
        ------
        TypeError, ValueError
            Shapes that do not fit, amounts below 0, limits below 1.
        InfeasibleError
            A sample that is over a limit by itself.
        """
        sizes, caps = np.asarray(self.sizes), np.asarray(self.caps)
        if sizes.ndim != 2 or sizes.shape[0] != count or caps.shape != sizes.shape[1:]:
            raise ArgumentError("limits", f"have sizes of {count} samples and a cap for each column",
                                f"shapes {sizes.shape} and {caps.shape}")  # fmt: skip
        columns = [as_costs(np.ascontiguousarray(column), "limits.sizes")[0] for column in sizes.T]
        # No cap above the sum of all does anything, and sums of caps are to fit int64.
        most = [
            as_integer("limits.caps", min(cap, _MOST_CAP, max(1, int(column.sum()))), 1)
            for column, cap in zip(columns, caps.tolist(), strict=True)
        ]
        for column, cap in zip(columns, most, strict=True):
            _check_alone("limits.sizes", column, cap)
        if self.padded is not None:
            _check_alone("tokens", tokens, self.padded)
        held = np.stack(columns, axis=1) if columns else np.zeros((count, 0), dtype=np.int64)
        return self._replace(sizes=held, caps=np.array(most, dtype=np.int64))

    def classes(self, count: int) -> Ints:
        """Return the class of each sample: its kind, or whether it is one that all ranks have. int64[n]."""
        if self.kinds is not None:
            return np.unique(self.kinds, return_inverse=True)[1].astype(np.int64)
        if self.everywhere is not None and self.everywhere.any():
            return 1 - self.everywhere.astype(np.int64)
        return np.zeros(count, dtype=np.int64)


def _check_alone(name: str, amounts: Ints, most: int) -> None:
    if len(over := np.flatnonzero(amounts > most)):
        item = int(over[0])
        raise InfeasibleError(
            f"no micro-batch can hold {{item}}: {{{name}}} of it is {amounts[item]}, over the limit {most} by "
            f"{amounts[item] - most} (samples over it: {len(over)})",
            InfeasibilityCertificate("limits", over.tolist(), [], int(amounts[item]), most),
            item=Named("item", item),
        )


class Needed(NamedTuple):
    """How many micro-batches the samples of each class need."""

    least: Ints  # int64[k]: proven: no fewer do
    packed: Ints  # int64[k]: about so many do
    samples: Ints  # int64[k]: how many there are
    cost: Ints  # int64[k]


def needed(costs: Ints, tokens: Ints, cap: int, limits: BatchLimits) -> Needed:
    """Return how many micro-batches each class needs by itself, O(n log n)."""
    of = limits.classes(len(costs))
    found = []
    for k in range(int(of.max(initial=-1)) + 1):
        mine = np.flatnonzero(of == k)
        bins = PackingProblem.prepare(tokens[mine], cap, limits.most_items)
        packed = count_of(best_fit_decreasing(bins))
        volumes = [-(-int(limits.sizes[mine, q].sum()) // int(most)) for q, most in enumerate(limits.caps)]
        most_volume = max(volumes, default=0)
        found.append((max(bins.bound(packed).value, most_volume), max(packed, most_volume), len(mine),
                      int(costs[mine].sum())))  # fmt: skip
    return Needed(*np.array(found, dtype=np.int64).reshape(-1, 4).T)


class Classes(NamedTuple):
    """Which bins samples may be in."""

    mask: Ints  # int64[n]: the row of `allowed` of each sample
    allowed: NDArray[np.bool_]  # bool[k, m]
    kind: Ints  # int64[m]: bins of one kind take the same samples
    pinned: Ints  # int64[p]: samples that stay in bins 0, 1, ..., one in each


def check_enough(limits: BatchLimits, num_ranks: int) -> None:
    """Raise InfeasibleError where fewer ranks than all can have a sample that each of them should have."""
    if limits.everywhere is None or not 0 < (found := int(limits.everywhere.sum())) < num_ranks:
        return
    raise InfeasibleError(
        f"{found} samples are to be on all ranks of a slot or on none, and there are {num_ranks} ranks, short by "
        f"{num_ranks - found}",
        InfeasibilityCertificate("everywhere", np.flatnonzero(limits.everywhere).tolist(), range(num_ranks), num_ranks,
                                 found),
        "give more of them in one step",
    )  # fmt: skip


def classes_of_bins(
    limits: BatchLimits, need: Needed, num_ranks: int, num_slots: int, allow_empty: bool, *, alone: bool = False
) -> Iterator[Classes]:
    """Yield ways to say which of the bins, slot by slot, are for which samples; none where so many bins cannot do.

    A kind has bins by its share of the costs. Samples that all ranks have get slots by their share of the costs, the
    first, or one more or less; one of them stays in each bin there: the cheapest, so that the search may put the others
    where it likes, or the costliest, where no two of these should share a bin (`alone`).
    """
    of, m = limits.classes(int(need.samples.sum())), num_ranks * num_slots
    if limits.everywhere is not None and limits.everywhere.any():
        stay = np.flatnonzero(limits.everywhere)[:: 1 if alone else -1]  # samples descend in cost
        yield from _everywhere(stay, of, need, num_ranks, num_slots, allow_empty)
        return
    counts = shared_out(m, need, allow_empty)
    if counts is None:
        return
    # In turn: so each slot has bins of all kinds, until they are sorted.
    turn = np.concatenate([(np.arange(count) + 0.5) / count for count in counts.tolist()])
    kind = np.repeat(np.arange(len(counts)), counts)[np.argsort(turn, kind="stable")]
    allowed = kind == np.arange(len(counts))[:, None]
    yield Classes(of, allowed, kind, np.empty(0, dtype=np.int64))


def shared_out(bins: int, need: Needed, allow_empty: bool) -> Ints | None:
    """Return how many bins each kind gets: those that it needs, and of the rest what makes costs even."""
    counts = need.packed.copy()
    if counts.sum() > bins:
        counts = need.least.copy()
    useful = int(need.samples.sum())
    if counts.sum() > bins or (useful < bins and not allow_empty):
        return None

    def each(k: int) -> tuple[float, float, int]:
        """Return what bins of a kind cost, and hold, on average: the kind with most gets the next."""
        return -float(need.cost[k]) / int(counts[k]), -float(need.samples[k]) / int(counts[k]), k

    heap = [each(k) for k in range(len(counts))]
    heapq.heapify(heap)
    for _ in range(min(bins, useful) - int(counts.sum())):
        while counts[k := heap[0][2]] == need.samples[k]:
            heapq.heappop(heap)
        counts[k] += 1
        heapq.heapreplace(heap, each(k))
    counts[0] += bins - int(counts.sum())  # empty ones, of any kind
    return counts


def _everywhere(
    stay: NDArray[np.integer], of: Ints, need: Needed, num_ranks: int, num_slots: int, allow_empty: bool
) -> Iterator[Classes]:
    least = max(1, -(-int(need.packed[0]) // num_ranks))
    if not allow_empty:
        others = int(need.samples[1]) if len(need.samples) > 1 else 0
        least = max(least, num_slots - others // num_ranks)
    most = min(num_slots, int(need.samples[0]) // num_ranks)
    share = -(-int(need.cost[0]) * num_slots // max(1, int(need.cost.sum())))
    for slots in sorted(range(least, most + 1), key=lambda slots: abs(slots - share))[:_TRIED]:
        first = np.arange(num_ranks * num_slots) < slots * num_ranks
        pinned = stay[: slots * num_ranks].copy()
        yield Classes(of, np.stack([first, np.ones_like(first)]), (~first).astype(np.int64), read_only(pinned))
