"""Steps of a plan file checked many at a time, by sums over columns, where a plan is no more than sums.

It is so where the only phase has whole shares and an additive cost, and no constraint but counts and caps. Nothing is
planned here: what a step takes, moves and is bounded by is added up anew from the file's columns and the log's.
"""

import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from balancer.offline.settings import LogSettings
from balancer.offline.steps import Rows
from balancer.plan.digest import placements_digest
from balancer.problem.phases import PhaseItems
from balancer.problem.placement import Placement
from balancer.problem.ragged import offsets_of
from balancer.problem.setup import Setup
from solvers.arguments import as_share
from solvers.relocation import crossing_bound
from solvers.types import status_of

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_ASKED = ("keep_together", "prefix", "prefix_length", "allowed_ranks", "rank_speeds", "initial_loads", "limits")
_LARGEST = 2.0**62  # of sums over all ranks, in which nothing overflows
_EXACT = 2**53  # up to which float64, in which bincount adds, has every whole number
SUMMED = (
    "short", "samples", "items", "elements", "longest", "makespan", "lower_bound", "bound_name", "status", "before",
    "even_before", "even", "cap_row", "cap_length", "volume", "crosses", "within", "must_cross", "largest_send",
    "largest_receive",
)  # fmt: skip
"""Columns of the table of steps that are added up here; of the others all steps have the same, or they are claims."""


def are_sums(settings: LogSettings) -> bool:
    """Whether the steps of such plans can be checked here."""
    setup: Setup = settings.setup
    (phase, *others), cut = setup.phases, setup.settings.cut
    plain = not others and settings.across is None and cut.name == "whole_shares" and not setup.shares
    plain = plain and setup.topology_of(phase.name) is setup.topology and setup.group_size_of(phase.name) is None
    cost = phase.cost
    return plain and cost.additive and not cost.needs_prefixes and not any(getattr(phase, name) for name in _ASKED)


class Summed(NamedTuple):
    """What sums say of some steps."""

    good: Bools  # bool[s]: whether a step keeps all rules, and all that is said of it is so
    digests: list[str]  # of each step's plan


def summed(
    steps: Sequence[Rows], homes: Sequence[Placement], rows: Mapping[str, NDArray[Any]],
    said: Mapping[str, Sequence[Any]], settings: LogSettings,
) -> Summed | None:  # fmt: skip
    """Check steps that were read together, given their homes, their rows, and what the table of steps says of them.

    None where the rows are not the samples of these steps in their order, or the log has none that can be used.
    """
    if (found := steps[0].together.items) is None:
        return None
    (items,), first, sizes = found, steps[0], np.array([len(each) for each in steps])
    numbers = first.together.numbers
    sample = first.first_row + np.arange(sizes.sum()) if numbers is None else numbers
    step = np.repeat(np.arange(first.number, first.number + len(steps)), sizes)
    if not np.array_equal(rows["step"], step) or not np.array_equal(rows["sample"], sample):
        return None
    sums = _Sums(settings, items, sizes, sample, step - first.number, homes, rows)
    return sums.checked(said) if float(sums.costs.sum(dtype=np.float64)) * sums.ranks < _LARGEST else None


class _Sums:
    """Sums over the samples of steps, by step, or by step and rank."""

    def __init__(
        self, settings: LogSettings, items: PhaseItems, sizes: Ints, sample: Ints, step: Ints,
        homes: Sequence[Placement], rows: Mapping[str, NDArray[Any]],
    ) -> None:  # fmt: skip
        self.settings, self.items, self.sizes, self.sample, self.step, self.homes = (
            settings, items, sizes, sample, step, homes)  # fmt: skip
        self.topology, self.ranks, self.count = settings.setup.topology, settings.setup.topology.num_ranks, len(sizes)
        self.starts = offsets_of(sizes)
        self.lengths, self.costs = items.lengths, items.cost.sample_costs(items.lengths)
        rank, position = rows["rank"], rows["position"]
        there = (rank >= 0) & (rank < self.ranks) & (rows["slot"] == 0) & (position >= 0)
        self.rank = np.where(there, rank, 0)
        self.home = np.concatenate([each.rank_of_sample for each in homes])
        self.bins = step * self.ranks + self.rank
        self.held = np.bincount(self.bins, minlength=self.count * self.ranks)
        there &= position < self.held[self.bins]
        # Every place of every rank is taken: there are as many as samples.
        self.place = np.where(there, offsets_of(self.held)[self.bins] + position, 0)
        taken = np.zeros(len(step), dtype=bool)
        taken[self.place] = True
        self.good = ~self._any(~there | ~taken)
        self.position = position

    def _any(self, values: Bools) -> Bools:
        """Whether something is so of a sample of each step."""
        return np.bincount(self.step[values], minlength=self.count) > 0

    def _by_step(self, values: Ints) -> Ints:
        return np.add.reduceat(values, self.starts[:-1])

    def _by_rank(self, values: Ints, rank: NDArray[Any]) -> Ints:
        return self._sums(values, self.step * self.ranks + rank, self.count * self.ranks).reshape(-1, self.ranks)

    def _sums(self, values: Ints, bins: Ints, count: int) -> Ints:
        if float(values.sum(dtype=np.float64)) < _EXACT:
            return np.bincount(bins, values, count).astype(np.int64)
        sums = np.zeros(count, dtype=np.int64)
        np.add.at(sums, bins, values)
        return sums

    def _largest(self, values: Ints) -> tuple[Ints, Ints]:
        """Return the largest of each step, and which is the first of these."""
        largest = np.maximum.reduceat(values, self.starts[:-1])
        at = np.flatnonzero(values == largest[self.step])
        return largest, at[np.searchsorted(at, self.starts[:-1])]

    def checked(self, said: Mapping[str, Sequence[Any]]) -> Summed:
        """Check rules and numbers."""
        found = self._numbers() | self._traffic()
        self.good &= self._kept()
        for name, values in found.items():
            self.good &= np.fromiter(map(operator.eq, values, said[name]), dtype=bool, count=self.count)
        return Summed(self.good, self._digests())

    def _kept(self) -> Bools:
        """Whether each step keeps to counts and caps."""
        phase, held = self.items.phase, self.held.reshape(-1, self.ranks)
        least = np.where(self.sizes >= self.ranks, int(phase.every_rank_nonempty), 0)
        kept: Bools = held.min(axis=1) >= np.maximum(least, phase.min_samples_per_rank)
        if phase.equal_counts:
            kept &= held.max(axis=1) - held.min(axis=1) <= 1
        amounts = [(self.lengths, phase.max_tokens_per_rank), (np.ones_like(self.lengths), phase.max_samples_per_rank),
                   *zip(self.items.cap_amounts, phase.caps.values(), strict=True)]  # fmt: skip
        for values, most in amounts:
            if most is not None:
                kept &= self._by_rank(values, self.rank).max(axis=1) <= most
        return kept

    def _numbers(self) -> dict[str, list[Any]]:
        """Return what a step takes and is bounded by, as the table of steps has it."""
        loads, home_loads = self._by_rank(self.costs, self.rank), self._by_rank(self.costs, self.home)
        self.makespan, total = loads.max(axis=1), self._by_step(self.costs)
        largest, at = self._largest(self.costs)
        bound, names = self._bounds(total, largest)
        capped = (largest > -(-total // self.ranks)).tolist()
        stop_at = as_share("stop_at", self.settings.setup.settings.stop_at)
        proven = zip(self.makespan.tolist(), bound.tolist(), strict=True)
        rows, lengths = self.sample[at].tolist(), self.lengths[at].tolist()
        return {
            "short": [self.settings.is_short(size) for size in self.sizes.tolist()],
            "samples": self.sizes.tolist(), "items": self.sizes.tolist(),
            "elements": self._by_step(self.lengths).tolist(), "longest": self._largest(self.lengths)[0].tolist(),
            "makespan": self.makespan.tolist(), "lower_bound": bound.tolist(), "bound_name": names,
            "status": [str(status_of(*each, stop_at)) for each in proven],
            "before": [float(most * self.ranks) for most in home_loads.max(axis=1).tolist()],
            "even_before": total.astype(np.float64).tolist(), "even": total.astype(np.float64).tolist(),
            "cap_row": [row if is_so else None for row, is_so in zip(rows, capped, strict=True)],
            "cap_length": [length if is_so else None for length, is_so in zip(lengths, capped, strict=True)],
        }  # fmt: skip

    def _bounds(self, total: Ints, largest: Ints) -> tuple[Ints, list[str]]:
        """Return of each step the largest of: the mean, the largest cost, k + 1 least of the k * ranks + 1 largest."""
        mean = -(-total // self.ranks)
        shared = np.zeros(self.count, dtype=np.int64)
        for size in np.unique(self.sizes).tolist():  # two at most: full steps, and the last of an epoch
            those = np.flatnonzero(self.sizes == size)
            costs = -np.sort(-self.costs[self.starts[those, None] + np.arange(size)])
            for k in range(1, (size - 1) // self.ranks + 1):
                share = costs[:, k * self.ranks - k : k * self.ranks + 1].sum(axis=1)
                shared[those] = np.maximum(shared[those], share)
        bound = np.maximum(np.maximum(mean, largest), shared)
        names = np.where(bound == mean, "mean", np.where(bound == largest, "largest", "pigeonhole"))
        return bound, names.tolist()

    def _traffic(self) -> dict[str, list[Any]]:
        """Return what dispatch moves, as the table of steps has it."""
        node = self.topology.node_of_rank
        crossing = np.where(node[self.home] != node[self.rank], self.lengths, 0)
        moved = self._by_step(np.where(self.home != self.rank, self.lengths, 0))
        crosses = self._by_step(crossing)
        return {
            "volume": self._by_step(self.lengths).tolist(), "crosses": crosses.tolist(),
            "within": (moved - crosses).tolist(), "must_cross": self._must_cross(node),
            "largest_send": self._by_rank(crossing, self.home).max(axis=1).tolist(),
            "largest_receive": self._by_rank(crossing, self.rank).max(axis=1).tolist(),
        }  # fmt: skip

    def _must_cross(self, node: NDArray[Any]) -> list[int | None]:
        """Return what leaves nodes that hold more than their ranks can do in the makespan."""
        nodes = self.topology.num_nodes
        if nodes == 1:
            return [None] * self.count
        held = self._sums(self.costs, self.step * nodes + node[self.home], self.count * nodes).reshape(-1, nodes)
        over = np.maximum(held - self.makespan[:, None] * np.asarray(self.topology.node_sizes), 0).sum(axis=1)
        if not np.array_equal(self.costs, self.lengths):  # else just what is over leaves
            for number in np.flatnonzero(over).tolist():
                of, most = slice(*self.starts[number : number + 2]), int(self.makespan[number])
                over[number] = crossing_bound(self.costs[of], self.lengths[of], self.home[of], node, most)
        return list(over.tolist())

    def _digests(self) -> list[str]:
        """Return the digest of each step's plan."""
        samples = np.empty(len(self.step), dtype=np.int64)
        samples[self.place] = np.arange(len(self.step)) - self.starts[self.step]
        offsets, found = offsets_of(self.held), []
        rank, position = self.rank.astype(np.int32), self.position.astype(np.int32)
        for number, home in enumerate(self.homes):
            of = slice(*self.starts[number : number + 2])
            ends = offsets[number * self.ranks : (number + 1) * self.ranks + 1] - self.starts[number]
            found.append(placements_digest(self.topology, home, Placement(rank[of], position[of], samples[of], ends)))
        return found
