"""Micro-batches for a given number of slots, by the search of :mod:`solvers.partitioning.search`.

A *bin* is a micro-batch that has no rank yet: a group of that search. A slot is as high as its costliest bin, so a
slot's height is a limit on the costs of its bins, and to lower a slot is to bring its bins under a lower limit. Of
given bins the best use is known where ranks wait in every slot: sort them by cost, and cut the order into slots.

Where ranks wait once a step, samples are partitioned over ranks, and each rank's are packed. Along a pipeline the
costliest of all bins counts, as if all were in one slot.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._budget import work_units
from solvers._jit import helper, kernel
from solvers._loops import largest_of
from solvers._sort import sort_descending
from solvers.bounds import Bound, goal_above
from solvers.errors import SolverError
from solvers.groups import group_loads, members_by_group, read_only
from solvers.packing._fit_ranks import fit_ranks
from solvers.packing._shares_kernels import fill_empty_bins_kernel, pack_shares
from solvers.packing.limits import BatchLimits, Classes
from solvers.partitioning.auto import state_of
from solvers.partitioning.partition import partition
from solvers.partitioning.search import FAR, NOBODY, bring_under, greedy, lay_out, put

Ints = NDArray[np.int64]
Layout = NDArray[np.int32]
"""The bin of each sample: where ranks and slots are known, ``rank * K + slot``."""

CLOSE = Fraction(1, 4096)
"""So near to its bound a schedule is good enough: by default samples near home may cost four times as much."""

# A slot is lowered to 2**-12 of its height, which is as near.
_FINE = 12
# How often a bin that swaps and trades do not help is divided anew.
_ATTEMPTS = 4
# Work that one call of the search may take at first, so much and so much a sample and bin: enough for most steps, and
# little enough to be run as Python by a process that has compiled nothing yet.
_FIRST, _FIRST_EACH = 20_000, 40
# Larger sums are searched in coarser numbers, as limits must stay below FAR.
_MOST_BITS = 60
# What ranks leave free of their tokens, so that these can be packed: nothing, or one part in so many.
_SPARE = (0, 1024, 128, 32)
# Rooms are looked at after so many samples that found none.
_SELDOM = 8
# Where mending bins that are over the cap begins, and after how many attempts it ends.
_MENDING = (0, 16, 64)


class Samples(NamedTuple):
    """What is scheduled, by stable descending cost; read-only."""

    costs: Ints  # int64[n]
    tokens: Ints  # int64[n]: at most the cap
    alone: NDArray[np.bool_]  # bool[n]: samples over the cap, each of which lies alone
    cap: int
    allow_empty: bool
    limits: BatchLimits | None = None  # what else micro-batches keep to; then nothing lies alone

    def of(self, chosen: Ints) -> "Samples":
        """Return some of them, in their order."""
        return self._replace(
            costs=self.costs[chosen], tokens=read_only(self.tokens[chosen]), alone=self.alone[chosen],
            limits=None if self.limits is None else self.limits.of(chosen),
        )  # fmt: skip


@helper
def has_room(s, upper, g, unit):
    """Whether a unit may be in a group by its mask, and by all dimensions but the first two."""
    fits = s.allowed[s.mask[unit], g]
    for d in range(2, s.held.shape[1]):
        fits = fits and s.held[g, d] + s.amounts[unit, d] <= upper[g, d]
    return fits


@kernel
def fill_densest(s, order, upper, first, last):
    """Put units of `order` into groups `first` to `last` - 1, each where least of dimension 1 is left: best fit.

    What finds no room stays out. Returns the work.
    """
    count = last - first
    costs, tokens = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)  # what there is room for
    for g in range(first, last):
        costs[g - first], tokens[g - first] = upper[g, 0] - s.held[g, 0], upper[g, 1] - s.held[g, 1]
    most_costs, most_tokens, failed, work = np.int64(FAR), np.int64(FAR), 0, 10 * count
    for unit in order:
        cost, size = s.amounts[unit, 0], s.amounts[unit, 1]
        work += 2
        # Rooms only become smaller: what is larger than the largest was when last asked fits nowhere.
        if s.group[unit] >= 0 or cost > most_costs or size > most_tokens:
            continue
        work += count // 2
        best, least = -1, np.int64(FAR)
        for k in range(count):
            if size <= tokens[k] < least and cost <= costs[k] and has_room(s, upper, first + k, unit):
                best, least = k, tokens[k]
        if best >= 0:
            put(s, unit, first + best)
            costs[best] -= cost
            tokens[best] -= size
            continue
        failed += 1
        if failed % _SELDOM == 0:
            work += count
            most_costs, most_tokens = largest_of(costs), largest_of(tokens)
    return work


class _Numbered(NamedTuple):
    """What is known of bins by their numbers; sorted by cost they get others."""

    before: Ints  # int64[m, d]: what stays in them
    allowed: NDArray[np.bool_]  # bool[k, m]: which samples they are for
    kind: Ints  # int64[m]
    pinned: Ints  # int64[p]: where the samples are that stay

    def sorted(self, order: NDArray[np.int32], number: Ints) -> "_Numbered":
        if not len(self.pinned) and len(self.allowed) == 1:  # all are alike
            return self
        return _Numbered(self.before[order], self.allowed[:, order], self.kind[order], number[self.pinned])


class _Held(NamedTuple):
    """Bins, and what is in them."""

    group: Ints  # int64[u]: the bin of each sample that may move
    bins: _Numbered


class Bins:
    """Bins in slots of `width`, and the best use of them so far."""

    def __init__(
        self, samples: Samples, width: int, num_slots: int, seconds: float, classes: Classes | None = None
    ) -> None:
        n, m = len(samples.costs), width * num_slots
        self.pinned = np.empty(0, dtype=np.int64) if classes is None else classes.pinned
        self.free = np.setdiff1d(np.arange(n), self.pinned, assume_unique=True)
        self.samples = samples.of(self.free) if len(self.pinned) else samples
        self.width, self.num_slots = width, num_slots
        self.work = work_units(seconds)
        self.shift = max(0, int(samples.costs.sum()).bit_length() - _MOST_BITS)
        # Rounded up, and caps down: so what fits in coarse numbers fits.
        columns, caps, most = [samples.costs >> self.shift], [], FAR
        sums = [(samples.tokens, samples.cap)]
        if samples.alone.any():  # a quantity of which these take all that a bin may hold
            sums.append((np.where(samples.alone, n, 1), n))
        if samples.limits is not None:
            sums += zip(samples.limits.sizes.T, samples.limits.caps.tolist(), strict=True)
            most = samples.limits.most_items or FAR
        for amounts, cap in sums:
            coarse = max(0, int(amounts.sum()).bit_length() - _MOST_BITS)
            caps.append(cap >> coarse)
            columns.append(np.minimum(-(-amounts >> coarse), cap >> coarse))
        amounts = np.column_stack([*columns, np.ones(n, dtype=np.int64)])
        self.upper = np.full((m, amounts.shape[1]), FAR)
        self.upper[:, 1:-1], self.upper[:, -1] = caps, most
        before = np.zeros(self.upper.shape, dtype=np.int64)
        before[: len(self.pinned)] = amounts[self.pinned]
        mask, allowed, kind = np.zeros(n, dtype=np.int64), np.ones((1, m), dtype=np.bool_), np.zeros(m, dtype=np.int64)
        if classes is not None:
            mask, allowed, kind = classes.mask, classes.allowed.copy(), classes.kind
        least = np.full(m, 0 if samples.allow_empty else 1, dtype=np.int64)
        self.state = state_of(amounts[self.free], mask[self.free], allowed, least)
        self.bins = _Numbered(before, allowed.copy(), kind, np.arange(len(self.pinned)))
        self.seed = np.ones(1, dtype=np.int64)
        with np.errstate(divide="ignore", invalid="ignore"):
            density = np.where(self.samples.tokens > 0, self.samples.costs / self.samples.tokens, np.inf)
        self.densest = np.argsort(-density, kind="stable")
        self.best: _Held | None = None
        self.value = 2**63 - 1  # of the best: the sum of its heights

    def run(self, goal: int, forced: Sequence[int] = (), packed: Layout | None = None) -> Layout | None:
        """Return the bin of each sample, slot by slot; None if nothing fits.

        It ends at `goal` or when the work is spent. Slot k is at least ``forced[k]`` high in any case. `packed` is a
        packing into these bins, or fewer, if one is known.
        """
        goal >>= self.shift
        self.start(goal)
        if self.best is None and len(self.pinned) >= self.width:
            self.start(goal, tall_first=False)
        if self.best is None:
            self._mend(packed)
        if self.best is None:
            return None
        for most in (_FIRST + _FIRST_EACH * (len(self.samples.costs) + len(self.upper)), self.work):
            before = -1
            self._lay_out(self.best)
            while before != self.value > goal and self.work > 0 and not self.is_over():
                before = self.value
                for k in range(self.num_slots):
                    self._lower(k, forced[k] >> self.shift if k < len(forced) else 0, most)
                self.offer()
        return self.layout()

    def layout(self) -> Layout | None:
        """Return the best bin of each sample: int32[n]; None if none was found."""
        if self.best is None:
            return None
        found = np.empty(len(self.free) + len(self.pinned), dtype=np.int32)
        found[self.free], found[self.pinned] = self.best.group, self.best.bins.pinned
        return found

    def heights(self) -> Ints:
        """Return the cost of the costliest bin of each slot: int64[num_slots]."""
        heights: Ints = self.state.held[:, 0].reshape(self.num_slots, self.width).max(axis=1)
        return heights

    def offer(self) -> None:
        """Sort the bins by cost, and keep them if slots cut from that order are lower than the best ones."""
        s = self.state
        if (s.group < 0).any() or self.is_over():
            return
        self._keep()

    def is_over(self) -> bool:
        """Whether a bin holds more than it may."""
        return bool((self.state.held > self.upper).any())

    def _lay_out(self, held: _Held) -> None:
        """Put everything where it was."""
        self.bins = held.bins
        self.state.allowed[:] = self.bins.allowed
        lay_out(self.state, held.group, self.bins.before)

    def _now(self) -> _Held:
        return _Held(self.state.group.copy(), self.bins)

    def _keep(self) -> None:
        s = self.state
        if s.held[:, -1].min() < s.lower[0] and not self._fill_empty():
            return
        order, _ = sort_descending(s.held[:, 0].copy(), int(s.held[:, 0].max()))
        if len(self.pinned):  # the slots of samples that all ranks have come first
            order = order[np.argsort(self.bins.kind[order], kind="stable")]
        number = np.empty(len(order), dtype=np.int64)
        number[order] = np.arange(len(order))
        self._lay_out(_Held(number[s.group], self.bins.sorted(order, number)))
        value = int(self.heights().sum())
        if value < self.value:
            self.best, self.value = self._now(), value

    def _fill_empty(self) -> bool:
        """Give each empty bin a sample of one that has several; whether there are enough."""
        s = self.state
        if len(self.bins.allowed) == 1:
            layout = s.group.astype(np.int32)
            fill_empty_bins_kernel(layout, len(s.head))
            lay_out(s, layout.astype(np.int64), self.bins.before)
            return True
        group, counts = s.group.copy(), s.held[:, -1].copy()
        for g in np.flatnonzero(counts == 0).tolist():
            able = np.flatnonzero((counts[group] > 1) & s.allowed[s.mask, g])
            if not len(able):
                return False
            least = able[np.argmin(s.amounts[able, 0])]
            counts[group[least]] -= 1
            group[least], counts[g] = g, 1
        lay_out(s, group, self.bins.before)
        return True

    # A start --------------------------------------------------------------------------------------------------------

    def start(self, goal: int, tall_first: bool = True) -> None:
        """Fill no, one, two, ... tall slots with the densest samples, and the other bins evenly with the rest.

        A slot has to be tall where the largest sample left, or one that lies alone, costs more than an even share of
        the rest. One slot more is tried, because samples that are few to a bin are evened out more easily at a height
        of their own. Samples that all ranks have come before the others, where bins are cut into slots: theirs are the
        first, and so the tall ones, which have room for these samples beside the largest of all. Where nothing fits so
        (not `tall_first`), the last of these slots is filled last.
        """
        s, width, more = self.state, self.width, 1
        self._clear()
        order, theirs = list(range(self.num_slots)), len(self.pinned) // width
        if theirs and tall_first and not self._deal_pinned():
            return
        if theirs and not tall_first:
            order.append(order.pop(theirs - 1))
        is_open = np.ones(self.num_slots, dtype=np.bool_)
        for tall, k in enumerate(order):
            left = s.amounts[s.group < 0, 0]
            # What lies alone makes its slot as high as it is, whatever lies in the other bins.
            height = max(int(s.held[k * width : (k + 1) * width, 0].max()), int(left.max(initial=0)))
            if tall_first and k < theirs:
                height = max(height, self._beside_pinned(k, left))
            to_share = int(left.sum()) + int(self.bins.before[np.repeat(is_open, width), 0].sum())
            needed = len(left) and height * width * (self.num_slots - tall) > to_share
            if not needed or tall == self.num_slots - 1:
                filled = self._now()
                for by_cost_alone in (False, True):
                    if self._deal(is_open, by_cost_alone):
                        self.offer()
                        if tall or self.value <= goal:
                            break
                    self._lay_out(filled)
                if self.value <= goal or not more or self.work <= 0 or tall == self.num_slots - 1:
                    break
                self._lay_out(filled)
                more -= 1
            if not len(left):
                break
            # Filled up to the height that the slot has anyway.
            upper = self.upper.copy()
            upper[:, 0] = height
            self.work -= fill_densest(s, self.densest, upper, k * width, (k + 1) * width)
            is_open[k] = False

    def _clear(self) -> None:
        """Take all out but what must lie alone, which is in the first bins."""
        alone = np.flatnonzero(self.samples.alone)
        group = np.full(len(self.samples.costs), NOBODY)
        group[alone] = np.arange(len(alone))
        lay_out(self.state, group, self.bins.before)

    def _beside_pinned(self, k: int, left: Ints) -> int:
        """Return how high slot k is if what is larger than an even bin joins what all ranks have, the largest least."""
        held = np.sort(self.state.held[k * self.width : (k + 1) * self.width, 0])
        even = int(self.state.amounts[:, 0].sum() + self.bins.before[:, 0].sum()) // len(self.upper)
        tall = np.sort(left[left > even])[::-1][: self.width]
        return int((tall + held[: len(tall)]).max(initial=0))

    def _deal_pinned(self) -> bool:
        """Put all samples that all ranks have into their slots, each where it is least full. Returns whether they fit.

        They are those that may not be in the last bin.
        """
        s, weight = self.state, np.zeros(self.upper.shape)
        weight[:, 0], weight[:, 1] = 1.0 / max(1, s.amounts[:, 0].sum()), 1.0 / max(1, s.amounts[:, 1].sum())
        mine = s.by_amount[0][~s.allowed[s.mask[s.by_amount[0]], -1]]
        failed, work = greedy(s, mine, self.upper, weight, self.bins.kind, FAR, 0)
        self.work -= work
        return bool(failed == 0)

    def _deal(self, is_open: NDArray[np.bool_], by_cost_alone: bool) -> bool:
        """Put what is left into the bins of open slots, each where it is least full. Returns whether all fits.

        How full a bin is: the larger of its share of the costs and of the tokens, or that of the costs.
        """
        s, upper = self.state, self.upper.copy()
        upper[np.repeat(~is_open, self.width), -1] = 0
        amounts = s.amounts[s.group < 0].sum(axis=0)
        weight = np.zeros(upper.shape)
        weight[:, 0] = 1.0 / max(1, amounts[0])
        if not by_cost_alone:
            weight[:, 1] = 1.0 / max(1, amounts[1])
            if self.samples.limits is not None:  # which count where a bin is nearly full of them
                weight[:, 2:-1] = 1.0 / (len(upper) * np.maximum(1.0, upper[:, 2:-1]))
        failed, work = greedy(s, s.by_amount[0], upper, weight, self.bins.kind, FAR, 0)
        self.work -= work
        return bool(failed == 0)

    def _mend(self, packed: Layout | None) -> None:
        """Begin with a packing under the cap; or put samples anywhere, and exchange until no bin is over the cap."""
        s = self.state
        if packed is not None:
            lay_out(s, packed.astype(np.int64), self.bins.before)
            self._keep()  # in coarser numbers it may seem to be over the cap
            return
        self._clear()
        anything, even = np.full(self.upper.shape, FAR), np.zeros(self.upper.shape)
        even[:, 1:-1] = 1.0 / np.maximum(1, self.upper[:, 1:-1])
        for upper in (self.upper, anything):
            self.work -= greedy(s, s.by_amount[1], upper, even, self.bins.kind, FAR, FAR)[1]
        for attempts in _MENDING:
            if self.best is None and self.work > 0:
                _, self.work = bring_under(s, self.upper, 1, s.held.shape[1], attempts, self.seed, self.work)
                self.offer()

    # Lower and lower ------------------------------------------------------------------------------------------------

    def _lower(self, k: int, forced: int, most_work: int) -> None:
        """Lower slot k, while the others stay as high as they are: what it cannot hold may go to any of them.

        It aims half way between what failed and what is reached, until they meet.
        """
        s, width = self.state, self.width
        heights = self.heights()
        even = int(s.held[k * width : (k + 1) * width, 0].sum()) // width
        failed = max(even, forced) - 1
        while self.work > 0 and heights[k] - failed > 1 + (heights[k] >> _FINE):
            targets = heights.copy()
            targets[k] = failed + (heights[k] - failed) // 2
            upper = self.upper.copy()
            upper[:, 0] = np.repeat(targets, width)
            asked = min(self.work, most_work)
            done, left = bring_under(s, upper, 0, 1, _ATTEMPTS, self.seed, asked)
            self.work -= asked - left
            failed = failed if done else int(targets[k])
            heights = self.heights()


def deal_evenly(samples: Samples, num_bins: int) -> Layout | None:
    """Return the bin of each sample, all bins alike; None if something fits nowhere."""
    bins = Bins(samples, num_bins, 1, seconds=0)
    bins.start(goal=0)
    return bins.layout()


def search_slots(
    samples: Samples,
    num_ranks: int,
    num_slots: int,
    forced: Sequence[int],
    bound: Bound,
    packed: Layout | None,
    seconds: float,
    classes: Classes | None = None,
) -> Layout | None:
    """Minimise the sum over slots of their costliest bin; None if nothing fits."""
    layout = Bins(samples, num_ranks, num_slots, seconds, classes).run(goal_above(bound, CLOSE), forced, packed)
    return None if layout is None else _in_slots(samples, layout, num_ranks, num_slots)


def search_pipeline(
    samples: Samples,
    num_ranks: int,
    num_slots: int,
    bound: Bound,
    packed: Layout | None,
    seconds: float,
    classes: Classes | None = None,
) -> Layout | None:
    """Minimise the costliest bin of all; `bound` is one on that. None if nothing fits."""
    layout = Bins(samples, num_ranks * num_slots, 1, seconds, classes).run(goal_above(bound, CLOSE), (), packed)
    return None if layout is None else _in_slots(samples, layout, num_ranks, num_slots)


def _in_slots(samples: Samples, layout: Layout, num_ranks: int, num_slots: int) -> Layout:
    loads = group_loads(samples.costs, layout, num_ranks * num_slots)
    return to_ranks(loads, num_ranks, num_slots, "micro_batch")[layout]


def to_ranks(loads: Ints, num_ranks: int, num_slots: int, sync: str, first: int = 0) -> Layout:
    """Give bins, sorted slot by slot, to ranks: int32[m], ``rank * K + slot`` of each.

    Where ranks wait in slots, each rank gets one of every slot, the costliest goes to the rank that has least so far:
    so sums become even, too. Else the sums alone count, and each rank gets as many of the `first` bins as another.
    """
    if sync == "step":
        rules: dict[str, Any] = {}
        if first:
            rules = {"sizes": (np.arange(len(loads)) < first).astype(np.int64), "caps": first // num_ranks}
        rank = partition(loads, num_ranks, equal_counts=True, stop_at=CLOSE, **rules).group_of_item
        found = np.empty(len(loads), dtype=np.int32)
        found[np.argsort(rank, kind="stable")] = np.arange(len(loads))
        return found
    ranks, sums = np.empty(len(loads), dtype=np.int32), np.zeros(num_ranks, dtype=np.int64)
    for begin in range(0, len(loads), num_ranks):
        order = np.argsort(sums, kind="stable")
        ranks[begin : begin + num_ranks] = order
        sums[order] += loads[begin : begin + num_ranks]
    in_turn: Layout = ranks * np.int32(num_slots) + np.arange(len(loads), dtype=np.int32) // np.int32(num_ranks)
    return in_turn


def search_step(
    samples: Samples, num_ranks: int, num_slots: int, packed: Layout | None, seconds: float
) -> Layout | None:
    """Minimise the largest sum of a rank; None if nothing fits.

    Ranks first, and where no rank's samples ever fit its slots, bins first: make them even, and give each rank as many.
    """
    layout = ranks_first(samples, num_ranks, num_slots, seconds)
    if layout is not None:
        return layout
    bins = Bins(samples, num_ranks * num_slots, 1, seconds / 2).run(0, (), packed)
    if bins is None:
        return None
    loads = group_loads(samples.costs, bins, num_ranks * num_slots)
    return to_ranks(loads, num_ranks, num_slots, "step")[bins]


def ranks_first(samples: Samples, num_ranks: int, num_slots: int, seconds: float) -> Layout | None:
    """Partition the samples over ranks, and pack each rank's; None if they do not fit.

    Where they do not, ranks have to leave some of their tokens free.
    """
    for rules in _ways(samples, num_ranks, num_slots):
        try:
            ranks = partition(
                samples.costs, num_ranks, time_budget=seconds / 2, stop_at=CLOSE, **rules
            ).group_of_item  # fmt: skip
        except SolverError:
            continue
        layout = _pack_ranks(samples, ranks, num_ranks, num_slots, seconds / 2)
        if layout is not None:
            return layout
    return None


def _ways(samples: Samples, num_ranks: int, num_slots: int) -> Iterator[dict[str, Any]]:
    """Rules for ranks that may fit their slots: none first, as ranks of even costs mostly do."""
    least = 0 if samples.allow_empty else num_slots
    yield {}
    room = min(num_slots * samples.cap, int(samples.tokens.sum()))
    for part in _SPARE:
        limit = room - room // part if part else room
        if samples.limits is None:
            yield {"sizes": samples.tokens, "caps": limit, "min_items": least}
            continue
        sums = np.minimum(samples.limits.caps, FAR // num_slots) * num_slots
        most = samples.limits.most_items
        yield {
            "sizes": np.column_stack([samples.tokens, samples.limits.sizes]), "min_items": least,
            "caps": np.concatenate([[limit], sums - sums // part if part else sums]),
            "max_items": None if most is None else most * num_slots,
        }  # fmt: skip


def _pack_ranks(samples: Samples, ranks: Layout, num_ranks: int, num_slots: int, seconds: float) -> Layout | None:
    """Pack the samples of every rank into its slots, first fit decreasing; None if those of some rank do not fit."""
    if samples.limits is not None:
        slots = fit_ranks(samples.tokens, samples.cap, samples.limits, ranks, num_ranks, num_slots, samples.allow_empty)
        return None if slots is None else ranks * np.int32(num_slots) + slots
    volumes = group_loads(samples.tokens, ranks, num_ranks)
    if int(volumes.max()) > num_slots * samples.cap:
        return None
    tokens = samples.tokens.copy()
    if samples.alone.any():  # and so there are tokens over the cap, and cap + 1 fits int64
        tokens[samples.alone] = samples.cap + 1
    largest, tokens = sort_descending(tokens, int(tokens.max(initial=0)))
    members, offsets, _ = members_by_group(ranks[largest], num_ranks)
    if not samples.allow_empty and np.diff(offsets).min() < num_slots:
        return None
    order = largest[members]
    slots, used = np.empty(len(order), dtype=np.int32), np.zeros(num_ranks, dtype=np.int64)
    pack_shares(read_only(tokens[members]), read_only(offsets), samples.cap, slots, used)
    for rank in np.flatnonzero(used > num_slots).tolist():  # a search may need fewer than first fit
        here = slice(int(offsets[rank]), int(offsets[rank + 1]))
        own = np.sort(order[here])
        searched = Bins(samples.of(own.astype(np.int64)), num_slots, 1, seconds / num_ranks).run(FAR)
        if searched is None:
            return None
        order[here], slots[here] = own, searched
    for rank in np.flatnonzero(used < num_slots).tolist() if not samples.allow_empty else ():
        fill_empty_bins_kernel(slots[offsets[rank] : offsets[rank + 1]], num_slots)
    layout = np.empty_like(ranks)
    layout[order] = ranks[order] * np.int32(num_slots) + slots
    return layout
