"""Micro-batches for a given number of slots: built in several ways, the best of them levelled by local search.

Until the end a micro-batch is a *bin* without a rank. Where ranks wait in every slot, the best use of finished bins is
known: sort them by load and cut the order into slots, so that a slot is as high as its first bin. For a pipeline any
use will do.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from solvers._sort import sort_descending
from solvers.groups import group_loads, members_by_group
from solvers.packing._schedule_kernels import (
    Filling,
    Levels,
    Measures,
    Samples,
    deal,
    fill_densest,
    fill_empty_bins_kernel,
    level,
)
from solvers.packing.auto import auto
from solvers.partitioning.refine import PartitionProblem, refine

Layout = NDArray[np.int32]  # the bin of each position

# What the parts of this search buy stands in benchmarks/ablation.py, schedules (docs/benchmarks/searches.md).
# How full a bin is, is counted in 2**-20 of what it is to hold: two bins differ by less than a sample then.
_RESOLUTION = 20
# Seconds' worth of search for a packing of one rank. Row *a packing searched*: +0.01 +- 13.15 ppm without it.
_QUICK = 1e-3
# What ranks leave free, so that packing succeeds: 2**-12 of their tokens, and twice to four times as much each time.
# Row *ranks under a cap*: unsure, as few steps come here. Two of them, 2**-10 and 2**-7, do as well
# (benchmarks/constants.py).
_SHAVES = (12, 10, 9, 8, 7, 6)
# Within 2**-9 of the bound, 0.2 %, ranks first is enough. Any value from 7 to 12 does as well: +0.8 +- 0.8 and -4.8
# +- 2.4 ppm.
_CLOSE = 9
# Rounds of levelling and sorting anew; one that changes nothing ends them. Row *levelling*: 167 +- 34 ppm. Any number
# from 2 to 8 does the same.
_ROUNDS = 4
# Bins may exceed the height meant for them by 1/32 before others are asked, as whole samples seldom meet it. With
# 1/16 or 1/128, steps are 6 +- 5 and 6 +- 4 ppm longer.
_SLACK = 5
# A ceiling that no bin reaches.
_UNLIMITED = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Instance:
    """The samples to schedule, by stable descending cost."""

    costs: NDArray[np.int64]  # int64[n], read-only: descending
    tokens: NDArray[np.int64]  # int64[n], read-only: cap + 1 for samples that are to lie alone
    total: int  # sum of the costs
    num_ranks: int
    cap: int
    alone: NDArray[np.int64]  # int64[]: positions of the samples that are to lie alone
    densest: NDArray[np.int64]  # int64[n]: positions by stable descending cost per token
    packed: Layout  # int32[n]: a packing into few bins under the cap
    num_packed: int  # how many these are
    allow_empty: bool

    @property
    def samples(self) -> Samples:
        """As kernels take them."""
        return Samples(self.costs, self.tokens)

    def loads(self, layout: Layout, num_bins: int) -> NDArray[np.int64]:
        """Cost of each bin."""
        return group_loads(self.costs, layout, num_bins)


class _Bins:
    """Bins while they are filled; at first they hold nothing but what must lie alone, in the first of them."""

    def __init__(self, instance: Instance, num_bins: int) -> None:
        own = instance.alone
        self.instance = instance
        self.layout = np.full(len(instance.costs), -1, dtype=np.int32)
        self.loads = np.zeros(num_bins, dtype=np.int64)
        self.used = np.zeros(num_bins, dtype=np.int64)
        self.layout[own] = np.arange(len(own))
        self.loads[: len(own)] = instance.costs[own]
        self.used[: len(own)] = instance.tokens[own]

    @property
    def filling(self) -> Filling:
        """As kernels change it."""
        return Filling(self.layout, self.loads, self.used)

    def fill(self, bins: NDArray[np.int64]) -> int:
        """Fill `bins` with the densest samples left, each up to the cost of the largest one. Returns the work done."""
        instance = self.instance
        left = np.flatnonzero(self.layout < 0)
        height = max(int(instance.costs[left[0]]) if len(left) else 0, int(self.loads[bins].max()))
        return int(fill_densest(instance.samples, instance.densest, bins, height, instance.cap, self.filling))

    def deal(self, first: int, above_base: bool, heights: NDArray[np.int64] | None = None) -> bool:
        """Deal what is left over the bins from `first` on; False if something fits nowhere.

        Evenly, or in proportion to `heights`; in cost and tokens, or in tokens and what costs are above a linear base.
        """
        instance = self.instance
        left = np.flatnonzero(self.layout < 0)
        bins = first + np.flatnonzero(self.used[first:] <= instance.cap)
        if not len(left) or not len(bins):
            return not len(left)
        costs, tokens = instance.costs[left], instance.tokens[left]
        sized = tokens > 0
        # Costs are mostly a line in tokens and something convex above it. The line is even once tokens are, so that
        # only what is above it needs a measure of its own.
        base = int((costs[sized] // tokens[sized]).min()) if above_base and sized.any() else 0
        volume = int(tokens.sum())
        even = (int(costs.sum()) - base * volume) // len(bins)
        if heights is None:
            units = np.full(len(bins), max(1, even >> _RESOLUTION))
            ceilings = np.full(len(bins), _UNLIMITED)
        else:
            units = np.maximum(1, heights[bins] >> _RESOLUTION)
            ceilings = heights[bins]
        measures = Measures(ceilings, units, max(1, volume // len(bins) >> _RESOLUTION), base, instance.cap)
        return bool(deal(instance.samples, left, bins, measures, self.filling))


def _even(instance: Instance, num_slots: int) -> Iterator[Layout]:
    """All bins alike; the packing under the cap alone where nothing else fits."""
    num_bins = instance.num_ranks * num_slots
    found = False
    for above_base in (False, True):
        bins = _Bins(instance, num_bins)
        if bins.deal(0, above_base):
            found = True
            yield bins.layout
    if not found and instance.num_packed <= num_bins:
        yield instance.packed.copy()


def _tall(instance: Instance, num_slots: int, work: list[int]) -> Iterator[Layout]:
    """Some tall slots, full of the densest samples, then all bins alike.

    A slot has to be tall where the largest sample left costs more than a bin of an even rest would; one slot more is
    tried, because samples that are few to a bin are evened out more easily at a height of their own.
    """
    num_ranks = instance.num_ranks
    bins = _Bins(instance, num_ranks * num_slots)
    remaining, largest, needed = instance.total, 0, True
    for k in range(num_slots - 1):
        left = np.flatnonzero(bins.layout < 0)
        if not len(left) or not needed or work[0] <= 0:
            return
        here = np.arange(k * num_ranks, (k + 1) * num_ranks)
        largest = max(int(instance.costs[left[0]]), int(bins.loads[here].max()))
        needed = largest * num_ranks * (num_slots - k) > remaining
        work[0] -= bins.fill(here)
        remaining -= int(bins.loads[here].sum())
        for above_base in (False, True):
            # A copy, as the tall slots filled so far are the beginning of the next try as well.
            rest = _Bins(instance, len(bins.loads))
            rest.layout[:], rest.loads[:], rest.used[:] = bins.layout, bins.loads, bins.used
            work[0] -= len(left)
            if rest.deal((k + 1) * num_ranks, above_base):
                yield rest.layout
                break


def _shaped(instance: Instance, num_slots: int, forced: list[int]) -> Iterator[Layout]:
    """Slots of the heights that large samples force, the others alike, and all of them in proportion."""
    heights = sorted((forced + [0] * num_slots)[:num_slots], reverse=True)
    tall, left = 0, -(-instance.total // instance.num_ranks)
    # A slot is tall if what is forced on it is more than an even share of what is left; the others are even.
    while tall < num_slots and heights[tall] * (num_slots - tall) > left:
        left = max(0, left - heights[tall])
        tall += 1
    if tall in (0, num_slots):
        return
    even = -(-left // (num_slots - tall))
    heights[tall:] = [min(even + (even >> _SLACK), _UNLIMITED)] * (num_slots - tall)
    bins = _Bins(instance, instance.num_ranks * num_slots)
    if bins.deal(0, False, np.repeat(np.array(heights, dtype=np.int64), instance.num_ranks)):
        yield bins.layout


def _by_height(instance: Instance, layout: Layout, num_bins: int) -> tuple[Layout, int]:
    """Renumber the bins in stable descending order of load; return also the sum of the heights of slots cut so."""
    loads = instance.loads(layout, num_bins)
    order, descending = sort_descending(loads, int(loads.max()))
    number = np.empty(num_bins, dtype=np.int32)
    number[order] = np.arange(num_bins, dtype=np.int32)
    return number[layout], int(descending[:: instance.num_ranks].sum())


def _filled(instance: Instance, layout: Layout, num_bins: int) -> Layout:
    if not instance.allow_empty:
        fill_empty_bins_kernel(layout, num_bins)
    return layout


def _level(instance: Instance, layout: Layout, num_bins: int, width: int, num_classes: int, work: int) -> int:
    levels = Levels(width, num_bins // width // num_classes, instance.cap, instance.allow_empty)
    return int(level(instance.samples, layout, num_bins, levels, work))


def search_slots(
    instance: Instance, num_slots: int, forced: list[int], bound: int, work: int
) -> tuple[Layout, int, int] | None:
    """Minimise the sum over slots of their largest bin; slot k is bins k * R to (k + 1) * R - 1.

    Returns the layout, its value and the work left, positive if the search ended by itself; None if nothing fits.
    """
    num_bins = instance.num_ranks * num_slots
    budget = [work]
    best: tuple[Layout, int] | None = None
    for builder in (
        _tall(instance, num_slots, budget),
        _shaped(instance, num_slots, forced),
        _even(instance, num_slots),
    ):
        for layout in builder:
            # Sorted by load and cut into slots: for given bins no other use is better, as a slot is as high as its
            # highest bin.
            found = _by_height(instance, _filled(instance, layout, num_bins), num_bins)
            if best is None or found[1] < best[1]:
                best = found
            budget[0] -= len(layout)
    if best is None:
        return None
    work = budget[0]
    # Levelled slots are sorted anew, which may lower their sum; and what was sorted can be levelled again.
    for _ in range(_ROUNDS):
        before = best[1]
        if before == bound or work <= 0:
            break
        layout = best[0].copy()
        work = _level(instance, layout, num_bins, 1, num_slots, work)
        best = _by_height(instance, layout, num_bins)
        if best[1] == before:
            break
    return (*best, work)


def search_pipeline(instance: Instance, num_slots: int, bound: int, work: int) -> tuple[Layout, int, int] | None:
    """As :func:`search_slots`, but minimise the largest bin of all."""
    num_bins = instance.num_ranks * num_slots
    best: tuple[Layout, int] | None = None
    for layout in _even(instance, num_slots):
        value = int(instance.loads(_filled(instance, layout, num_bins), num_bins).max())
        if best is None or value < best[1]:
            best = layout, value
    if best is None:
        return None
    layout, value = best
    if value > bound:
        work = _level(instance, layout, num_bins, 1, 1, work)
        layout, _ = _by_height(instance, layout, num_bins)
        value = int(instance.loads(layout, num_bins).max())
    return layout, value, work


def search_step(instance: Instance, num_slots: int, bound: int, work: int) -> tuple[Layout, int, int] | None:
    """As :func:`search_slots`, but minimise the largest sum of a rank; rank r is bins r * K to (r + 1) * K - 1.

    Ranks first: partition the costs over the ranks and pack every rank, at first as if there were no cap, then with
    less and less of a rank's tokens. Where some rank never fits, micro-batches first, and swaps under their caps.
    """
    num_ranks, num_bins = instance.num_ranks, instance.num_ranks * num_slots
    best: tuple[Layout, int] | None = None
    left = work
    for ranks, unspent in _partitions(instance, num_slots, work):
        left = unspent
        layout = _pack_ranks(instance, ranks, num_slots)
        if layout is not None:
            best = layout, int(instance.loads(ranks, num_ranks).max())
            break
    if best is not None and best[1] - bound <= bound >> _CLOSE:
        return (*best, left)
    for bins in _even(instance, num_slots):
        layout, _ = _by_height(instance, _filled(instance, bins, num_bins), num_bins)
        order = ranks_of_bins(instance.loads(layout, num_bins), num_ranks)
        layout = (order[layout] * num_slots + layout // num_ranks).astype(np.int32)
        if left > 0:
            left = _level(instance, layout, num_bins, num_slots, 1, left)
        value = int(instance.loads(layout // np.int32(num_slots), num_ranks).max())
        if best is None or value < best[1]:
            best = layout, value
    return None if best is None else (*best, left)


def _partitions(instance: Instance, num_slots: int, work: int) -> Iterator[tuple[Layout, int]]:
    """Ranks of the samples, even in cost, that may fit their slots; and the work left after each."""
    num_ranks, most = instance.num_ranks, min(num_slots * instance.cap, int(instance.tokens.sum()))
    problem = PartitionProblem.prepare(instance.costs, num_ranks, False)
    ranks = problem.lpt()
    # Without the cap in mind first: ranks that are even in cost are mostly near enough in tokens.
    if group_loads(instance.tokens, ranks, num_ranks).max() <= most + num_slots:
        yield ranks, refine(problem, ranks, work // 2)
    for shave in _SHAVES:
        # A rank that is full to its last token leaves packing no way; the less it may hold, the more likely it packs.
        limit = most - (most >> shave)
        room = replace(instance, cap=limit, alone=instance.alone[:0])
        bins = _Bins(room, num_ranks)
        if work > 0 and bins.deal(0, False):
            work = work // 2 + _level(room, bins.layout, num_ranks, 1, 1, work - work // 2)
            yield bins.layout, work


def _pack_ranks(instance: Instance, ranks: Layout, num_slots: int) -> Layout | None:
    """Pack the samples of every rank into its slots; None if those of one rank do not fit."""
    members, offsets, _ = members_by_group(ranks, instance.num_ranks)
    layout, counts = np.empty_like(ranks), np.diff(offsets)
    if not instance.allow_empty and counts.min() < num_slots:
        return None
    for rank in np.flatnonzero(counts).tolist():
        here = members[offsets[rank] : offsets[rank + 1]]
        fits = instance.tokens[here] <= instance.cap
        own = here[~fits]
        if len(own) > num_slots:
            return None
        packing = auto(instance.tokens[here[fits]], max(1, instance.cap), time_budget=_QUICK)
        if packing.num_groups + len(own) > num_slots:
            return None
        slots = np.empty(len(here), dtype=np.int32)
        slots[fits] = packing.group_of_item
        slots[~fits] = packing.num_groups + np.arange(len(own))
        layout[here] = rank * num_slots + _filled(instance, slots, num_slots)
    return layout


def ranks_of_bins(loads: NDArray[np.int64], num_ranks: int) -> NDArray[np.int64]:
    """Give the R bins of every slot to the R ranks, the largest to the rank that has least so far: int64[R * K].

    `loads` are in slots of R bins, each slot in descending order. What the objective does not steer becomes even.
    """
    ranks = np.empty(len(loads), dtype=np.int64)
    sums = np.zeros(num_ranks, dtype=np.int64)
    for first in range(0, len(loads), num_ranks):
        order = np.argsort(sums, kind="stable")
        ranks[first : first + num_ranks] = order
        sums[order] += loads[first : first + num_ranks]
    return ranks
