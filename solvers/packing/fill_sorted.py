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
def _cut(costs, tokens, sizes, caps, most_items, cap, padded, pays_padding, most_cost, first, most_runs, ends):
    """Cut samples from `first` on, longest first, into runs within all limits and `most_cost`, `most_runs` at most.

    With `pays_padding` a run costs its number of samples times the largest cost; else the sum. Returns how many runs
    there are; ``ends`` says where each ends.
    """
    runs, start, total, sum_tokens = 0, first, np.int64(0), np.int64(0)
    held = np.zeros(sizes.shape[1], dtype=np.int64)
    for i in range(first, len(costs)):
        count = i - start + 1
        takes = costs[start] * count if pays_padding else total + costs[i]
        fits = count <= most_items and takes <= most_cost and sum_tokens + tokens[i] <= cap
        fits = fits and tokens[start] * count <= padded
        for q in range(len(held)):
            fits = fits and held[q] + sizes[i, q] <= caps[q]
        if not fits and i > start:
            ends[runs] = i
            runs += 1
            if runs == most_runs:
                return runs
            start, total, sum_tokens = i, np.int64(0), np.int64(0)
            held[:] = 0
        total += costs[i]
        sum_tokens += tokens[i]
        for q in range(len(held)):
            held[q] += sizes[i, q]
    if first < len(costs):
        ends[runs] = len(costs)
        runs += 1
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
        self._total = np.concatenate([[0], np.cumsum(costs)])
        self._ends = np.zeros(n + 1, dtype=np.int64)

    def cut(self, most_cost: int, first: int = 0, most_runs: int = 2**62) -> list[int]:
        """Cut them from `first` on; returns where each run ends."""
        runs = _cut(*self._given, np.int64(most_cost), np.int64(first), np.int64(most_runs), self._ends)
        return [int(end) for end in self._ends[:runs]]

    def cut_into(self, count: int, width: int, allow_empty: bool) -> Ints:
        """Return the run of each when they are cut into so many, or at most so many, as even as cuts can be.

        As long as the longest left costs more than a fair share, the next `width` runs may cost as much as it does.
        """
        n, ends = len(self.costs), list[int]()
        first, left = 0, count
        while width and left > width and first < n and int(self.costs[first]) * left > self._cost(first, n):
            tall = self.cut(int(self.costs[first]), first, width)
            if len(self.cut(2**62, tall[-1])) > left - width:  # what follows needs the room
                break
            ends += tall
            first, left = tall[-1], left - width
        low = int(self.costs[first]) if first < n else 0
        high = max(1, low * (n - first) if self.pays_padding else self._cost(first, n))
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if len(self.cut(middle, first)) <= left else (middle + 1, high)
        ends += self.cut(high, first)
        starts = [0, *ends[:-1]] if ends else []
        # A part of what fits fits: the costliest is divided until there are enough.
        heap = [(-self._run_cost(start, end), start, end) for start, end in zip(starts, ends, strict=True)]
        heapq.heapify(heap)
        runs: list[tuple[int, int, int]] = []
        while heap and len(runs) + len(heap) < count and not allow_empty:
            cost, start, end = heapq.heappop(heap)
            if end - start == 1:
                runs.append((cost, start, end))
                continue
            half = (start + end) // 2
            for part in ((start, half), (half, end)):
                heapq.heappush(heap, (-self._run_cost(*part), *part))
        bounds = np.sort([start for _, start, _ in (*runs, *heap)])
        of_runs: Ints = np.searchsorted(bounds, np.arange(n), side="right") - 1
        return of_runs

    def _cost(self, start: int, end: int) -> int:
        return int(self._total[end] - self._total[start])

    def _run_cost(self, start: int, end: int) -> int:
        return int(self.costs[start]) * (end - start) if self.pays_padding else self._cost(start, end)


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
    least = np.array([len(each.cut(2**62)) for each in rows], dtype=np.int64)
    need = Needed(least, least, np.array([len(mine) for mine in members]),
                  np.array([int(each.costs.sum()) for each in rows]))  # fmt: skip
    in_all = limits.everywhere is not None and bool(limits.everywhere.any())
    counts = _whole_slots(need, num_ranks, num_slots, allow_empty) if in_all else shared_out(bins, need, allow_empty)
    if counts is None:
        return None
    layout, first = np.empty(len(costs), dtype=np.int64), 0
    for mine, each, count in zip(members, rows, counts.tolist(), strict=True):
        layout[mine] = first + each.cut_into(count, 0 if sync == "pipeline" else num_ranks, allow_empty)
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
