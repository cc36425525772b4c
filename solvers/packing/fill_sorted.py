"""Micro-batches whose padding counts: samples are sorted by length, and cut where they lie.

What a padded micro-batch takes is the number of its samples times the longest of them, which is no sum, and so is not
for the search. Neighbours in the order of length are padded least. A run of them ends where a limit, or a largest
cost, is reached; that cost is bisected, so that there are as many runs as micro-batches, of even cost.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from solvers._jit import kernel
from solvers.packing._schedule_search import Layout, to_ranks
from solvers.packing.limits import BatchLimits, Needed, shared_out

Ints = NDArray[np.int64]


@kernel
def _cut(costs, tokens, sizes, caps, most_items, cap, padded, pays_padding, most_cost, run_of):
    """Cut samples, longest first, into runs within all limits and `most_cost`; returns how many there are.

    With `pays_padding` a run costs its number of samples times the largest cost; else the sum.
    """
    runs, count, total, sum_tokens, longest, largest = 0, 0, np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    held = np.zeros(sizes.shape[1], dtype=np.int64)
    for i in range(len(costs)):
        more = max(largest, costs[i])
        takes = more * (count + 1) if pays_padding else total + costs[i]
        fits = runs > 0 and count < most_items and takes <= most_cost and sum_tokens + tokens[i] <= cap
        fits = fits and max(longest, tokens[i]) * (count + 1) <= padded
        for q in range(len(held)):
            fits = fits and held[q] + sizes[i, q] <= caps[q]
        if not fits:
            runs += 1
            count, total, sum_tokens, longest, largest = 0, np.int64(0), np.int64(0), np.int64(0), np.int64(0)
            held[:] = 0
        count += 1
        total += costs[i]
        sum_tokens += tokens[i]
        longest, largest = max(longest, tokens[i]), max(largest, costs[i])
        for q in range(len(held)):
            held[q] += sizes[i, q]
        run_of[i] = runs - 1
    return runs


class _Rows:
    """Samples of one class, the longest first."""

    def __init__(self, costs: Ints, tokens: Ints, cap: int, limits: BatchLimits, pays_padding: bool) -> None:
        self.costs, self.pays_padding = costs, pays_padding
        n = len(costs)
        self._given = (
            costs, tokens, np.ascontiguousarray(limits.sizes), limits.caps, min(limits.most_items or n, n),
            np.int64(cap), np.int64(2**62 if limits.padded is None else limits.padded), pays_padding,
        )  # fmt: skip
        self.run_of = np.zeros(n, dtype=np.int64)

    def cut(self, most_cost: int) -> int:
        """Cut them anew; returns how many runs there are."""
        return int(_cut(*self._given, np.int64(most_cost), self.run_of))

    def cut_into(self, count: int, allow_empty: bool) -> None:
        """Cut them into exactly so many runs, or at most so many, as even as cuts where they lie can be."""
        low, high = int(self.costs.max(initial=0)), max(1, int(self.costs.max(initial=0)) * max(1, len(self.costs)))
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.cut(middle) <= count else (middle + 1, high)
        runs = self.cut(high)
        # A part of what fits fits: the costliest is divided until there are enough.
        heap = [(-int(load), run) for run, load in enumerate(self.loads(runs).tolist())]
        heapq.heapify(heap)
        while runs < count and not allow_empty and heap:
            _, run = heapq.heappop(heap)
            mine = np.flatnonzero(self.run_of == run)
            if len(mine) == 1:
                continue
            self.run_of[mine[len(mine) // 2 :]] = runs
            for part in (run, runs):
                heapq.heappush(heap, (-self._load(part), part))
            runs += 1

    def _load(self, run: int) -> int:
        mine = self.costs[self.run_of == run]
        return int(mine.max()) * len(mine) if self.pays_padding else int(mine.sum())

    def loads(self, runs: int) -> Ints:
        """Return the cost of each run."""
        return padded_or_summed(self.costs, self.run_of, runs, self.pays_padding)


def padded_or_summed(costs: Ints, bins: NDArray[np.integer], count: int, pays_padding: bool) -> Ints:
    """Return what bins cost: samples times the costliest, or the sum. int64[count]."""
    if not pays_padding:
        found = np.zeros(count, dtype=np.int64)
        np.add.at(found, bins, costs)
        return found
    largest = np.zeros(count, dtype=np.int64)
    np.maximum.at(largest, bins, costs)
    return largest * np.bincount(bins, minlength=count)


def fill_sorted(
    costs: Ints, tokens: Ints, num_ranks: int, num_slots: int, cap: int, limits: BatchLimits, *,
    sync: str = "micro_batch", pays_padding: bool = False, allow_empty: bool = False,
) -> Layout | None:  # fmt: skip
    """Fill micro-batches with samples of like length, under limits.

    Parameters
    ----------
    costs, tokens : int64[n]
        Costs that do not decrease with tokens. No sample is over a limit by itself.
    num_ranks, num_slots, cap, sync, allow_empty
        As :func:`schedule_micro_batches` takes them.
    limits : BatchLimits
    pays_padding : bool
        Whether a micro-batch costs its number of samples times the costliest; else their sum.

    Returns
    -------
    int32[n] or None
        ``rank * num_slots + slot`` of each sample; None if they need more micro-batches. O(n log n).
    """
    classes, bins = limits.classes(len(costs)), num_ranks * num_slots
    by_length = np.argsort(-tokens, kind="stable")
    members = [by_length[classes[by_length] == k] for k in range(int(classes.max(initial=0)) + 1)]
    rows = [_Rows(costs[mine], tokens[mine], cap, limits.of(mine), pays_padding) for mine in members]
    least = np.array([each.cut(2**62) for each in rows], dtype=np.int64)
    need = Needed(least, least, np.array([len(mine) for mine in members]),
                  np.array([int(each.costs.sum()) for each in rows]))  # fmt: skip
    in_all = limits.everywhere is not None and bool(limits.everywhere.any())
    counts = _whole_slots(need, num_ranks, num_slots, allow_empty) if in_all else shared_out(bins, need, allow_empty)
    if counts is None:
        return None
    layout, first = np.empty(len(costs), dtype=np.int64), 0
    for mine, each, count in zip(members, rows, counts.tolist(), strict=True):
        each.cut_into(count, allow_empty)
        layout[mine] = first + each.run_of
        first += count
    loads = padded_or_summed(costs, layout, bins, pays_padding)
    flagged = int(counts[0]) if in_all else 0
    order = np.lexsort((np.arange(bins), -loads, np.arange(bins) >= flagged))
    number = np.empty(bins, dtype=np.int64)
    number[order] = np.arange(bins)
    found: Layout = to_ranks(loads[order], num_ranks, num_slots, sync, flagged)[number[layout]]
    return found


def _whole_slots(need: Needed, num_ranks: int, num_slots: int, allow_empty: bool) -> Ints | None:
    """Return how many bins samples get that all ranks have, and others: whole slots of each."""
    others = need._replace(**{name: np.append(getattr(need, name), 0)[:2] for name in need._fields})
    least = -(-others.packed // num_ranks)
    most = np.full(2, num_slots) if allow_empty else np.minimum(others.samples // num_ranks, num_slots)
    low, high = max(1, int(least[0]), num_slots - int(most[1])), min(int(most[0]), num_slots - int(least[1]))
    if low > high:
        return None
    share = round(int(others.cost[0]) * num_slots / max(1, int(others.cost.sum())))
    slots = min(max(share, low), high)
    return np.array([slots, num_slots - slots])[: len(need.cost)] * num_ranks
