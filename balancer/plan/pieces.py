"""Pieces: parts of samples on ranks. Where samples are shared, the pieces of all ranks tile them.

A whole sample is a piece too. So an exchange between any two placements is that of *segments*, the intersections of the
pieces that are there with those that are wanted: each travels from one place to another, as a sample would.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from balancer.cost import CostModel
from balancer.plan.stream import Stream, Traffic
from balancer.problem.constraints import Constraints
from balancer.problem.cuts.sequence_groups import SequenceGroups
from balancer.problem.placement import Placement
from balancer.problem.ragged import offsets_of
from balancer.problem.topology import Topology
from solvers.arguments import INT64_MAX
from solvers.groups import group_loads, members_by_group
from solvers.packing import MOST_BINS
from solvers.tiles import intersections
from solvers.types import Record


class SequenceGroup(NamedTuple):
    """Ranks that share samples in one slot."""

    ranks: range
    samples: NDArray[np.int64]  # int64[k]: of the global batch, in the order in which the group packs them
    load: int  # cost units that each of its ranks is busy, without what a slot itself costs

    @property
    def degree(self) -> int:
        """How many ranks it has."""
        return len(self.ranks)


class PiecesOnRank(NamedTuple):
    """What a rank holds in a slot, in order: each piece is elements `start` to `stop` of a sample."""

    sample: NDArray[np.int64]  # int64[k]: of the global batch
    # int64[k]: elements from the sample's length on are padding
    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    position: NDArray[np.int64]  # int64[k]: where the piece begins in the rank's packed slot, in elements


class Busy(NamedTuple):
    """How long groups take, int64[G], and what every slot takes besides; in cost units."""

    of_group: NDArray[np.int64]
    of_slot: int


@dataclass(frozen=True, slots=True, eq=False)
class GroupTable(Record):
    """The groups of all slots, and the group of every sample."""

    group_of_sample: NDArray[np.int32]  # int32[n], read-only
    # int32[G], read-only: group g is ranks ``first_rank[g]`` to ``first_rank[g] + degree[g] - 1`` in its slot. Numbered
    # slot by slot, in each by rank; none is empty.
    degree: NDArray[np.int32]
    slot: NDArray[np.int32]
    first_rank: NDArray[np.int32]

    @classmethod
    def from_samples(
        cls, slot_of_sample: NDArray[np.int32], first_rank: NDArray[np.int32], degree: NDArray[np.int32]
    ) -> "GroupTable":
        """Make it of each sample's slot, and of its group's first rank and degree. O(n log n)."""
        # Slot and first rank name a group: no two groups of a slot share a rank.
        key = slot_of_sample * np.int64(1 << 32) + first_rank
        _, first, group = np.unique(key, return_index=True, return_inverse=True)
        return cls(group.astype(np.int32), degree[first], slot_of_sample[first], first_rank[first])

    @classmethod
    def none(cls) -> "GroupTable":
        """Return that of no samples."""
        return cls(*(np.empty(0, dtype=np.int32) for _ in range(4)))

    @property
    def degree_of_sample(self) -> NDArray[np.int32]:
        """How many ranks share each sample: int32[n]."""
        return self.degree[self.group_of_sample]

    def loads(self, cost: CostModel, lengths: NDArray[np.int64], cut: SequenceGroups, num_ranks: int) -> Busy:
        """Return how long each group takes, int64[G], and what a slot takes besides, in cost units. O(D n)."""
        given = cost.degree_times(lengths, cut.degrees, num_ranks)
        row = np.array([cut.degrees.index(degree) for degree in self.degree.tolist()], dtype=np.int64)
        each = given.times[row[self.group_of_sample], np.arange(len(lengths))]
        return Busy(group_loads(each, self.group_of_sample, len(row)) * given.unit, given.overhead * given.unit)

    def violation(
        self, lengths: NDArray[np.int64], cut: SequenceGroups, topology: Topology, num_slots: int
    ) -> str | None:
        """Say which rule the groups break first; None if they keep to all. O(n + shares)."""
        num_ranks = topology.num_ranks
        first, degree = self.first_rank.astype(np.int64), self.degree.astype(np.int64)
        if len(degree) and not (self.slot.min() >= 0 and self.slot.max() < num_slots):
            return f"slots must be within 0..{num_slots - 1}, got {self.slot.min()} to {self.slot.max()}"
        if num_slots * num_ranks > MOST_BINS:
            return f"there are {num_slots} slots of {num_ranks} ranks, more slots than are planned"
        if cut.slots_for(num_slots) != num_slots or cut.count not in (None, num_slots):
            return f"there are {num_slots} slots, which is not what was asked for"
        if not (allowed := cut.allows(self.slot, first, degree, topology)).all():
            g = int(np.argmin(allowed))
            return f"group {g} cannot be {degree[g]} ranks from {first[g]}"
        index, place = runs(degree)
        # A table of all ranks in all slots, which is why their number was checked before.
        busy = np.zeros((num_slots, num_ranks), dtype=np.int32)
        np.add.at(busy, (self.slot[index], first[index] + place), 1)
        if busy.max(initial=0) > 1:
            slot, rank = np.unravel_index(int(np.argmax(busy)), busy.shape)
            return f"rank {rank} is in {busy[slot, rank]} groups of slot {slot}"
        held = group_loads(cut.padded(lengths, degree[self.group_of_sample]), self.group_of_sample, len(degree))
        if cut.tokens_per_rank is not None and (held > degree * cut.tokens_per_rank).any():
            g = int(np.argmax(held - degree * cut.tokens_per_rank))
            return f"group {g} holds {held[g]} tokens on {degree[g]} ranks of at most {cut.tokens_per_rank}"
        return None

    def broken(
        self, constraints: Constraints, lengths: NDArray[np.int64], cut: SequenceGroups, num_ranks: int, num_slots: int,
    ) -> str | None:  # fmt: skip
        """Say which constraint on what each rank has of samples is broken first; None if all are kept. O(shares).

        A shared sample counts on each of its ranks, with its share.
        """
        if not constraints.names():
            return None
        shares = Shares.of(self, lengths, cut, num_ranks, num_slots)
        rank, tokens = shares.place.rank_of_sample, np.zeros(num_ranks, dtype=np.int64)
        np.add.at(tokens, rank, shares.lengths)
        on_shares = constraints.on_shares(shares.sample, self.degree_of_sample[shares.sample])
        together = Constraints(keep_together=constraints.keep_together)
        return on_shares.violation(rank, tokens, shares.sample) or together.violation(
            self.group_of_sample, np.zeros(max(1, len(self.degree)), dtype=np.int64)
        )

    def slot_loads(
        self, cost: CostModel, lengths: NDArray[np.int64], cut: SequenceGroups, num_ranks: int, num_slots: int
    ) -> NDArray[np.int64]:
        """Return how long each rank is busy in each slot, int64[num_ranks, num_slots], in cost units."""
        of_group, of_slot = self.loads(cost, lengths, cut, num_ranks)
        busy = of_slot * cut.charged(self.first_rank, self.degree, num_ranks, num_slots)
        index, place = runs(self.degree)
        busy[self.first_rank[index] + place, self.slot[index]] += of_group[index]
        return busy


class Shares(NamedTuple):
    """Every rank's share of every sample, sample after sample, in each by rank."""

    sample: NDArray[np.int64]  # int64[s]
    place: Placement  # of the shares, in order of slots, then of samples
    lengths: NDArray[np.int64]  # int64[s]: elements of a share, padding included

    @classmethod
    def of(
        cls, groups: GroupTable, lengths: NDArray[np.int64], cut: SequenceGroups, num_ranks: int, num_slots: int
    ) -> "Shares":
        """Share each sample out equally among the ranks of its group. O(s + num_ranks * num_slots)."""
        group = groups.group_of_sample
        degree = groups.degree[group].astype(np.int64)
        sample, rank_in_group = runs(degree)
        rank = groups.first_rank[group][sample] + rank_in_group
        place = Placement.by_slots(rank.astype(np.int32), groups.slot[group][sample], num_ranks, num_slots)
        return cls(sample, place, (cut.padded(lengths, degree) // degree)[sample])

    def in_slot(self, rank: int, slot: int, slot_of_sample: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return a rank's shares in a slot, in order: int64[k]."""
        mine = self.place.samples_on_rank(rank)
        in_slot: NDArray[np.int64] = mine[slot_of_sample[self.sample[mine]] == slot]
        return in_slot

    def idle_ranks(self, slot: int, slot_of_sample: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the ranks without a share in a slot: int32[], ascending."""
        busy = self.place.rank_of_sample[slot_of_sample[self.sample] == slot]
        return np.asarray(np.setdiff1d(np.arange(self.place.num_ranks, dtype=np.int32), busy))


@dataclass(frozen=True, slots=True, eq=False)
class Pieces(Record):
    """Parts of samples on ranks, sample after sample, in each by `start`; the samples in any order."""

    # int64[p], read-only: piece p is elements ``start[p]`` to ``stop[p]`` of its sample; from the sample's length on
    # they are padding
    sample: NDArray[np.int64]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    place: Placement  # of the pieces

    @classmethod
    def whole(cls, place: Placement, lengths: NDArray[np.int64]) -> "Pieces":
        """Return whole samples where they are placed."""
        return cls(np.arange(len(lengths)), np.zeros(len(lengths), dtype=np.int64), lengths, place)

    @classmethod
    def parts(cls, place: Placement, sample: NDArray[np.int64], lengths: NDArray[np.int64]) -> "Pieces":
        """Return the parts of which samples consist, given sample after sample in order. O(parts)."""
        return cls(sample, *running_stops(sample, lengths), place)

    @classmethod
    def of_groups(
        cls, groups: GroupTable, lengths: NDArray[np.int64], cut: SequenceGroups, num_ranks: int, num_slots: int
    ) -> "Pieces":
        """Cut each sample into equal pieces, one for each rank of its group, or two in a zigzag. O(p log p)."""
        group = groups.group_of_sample
        degree, slot = groups.degree[group].astype(np.int64), groups.slot[group]
        pieces = degree * np.where((degree > 1) & (cut.order == "zigzag"), 2, 1)
        sample, chunk = runs(pieces)
        size = (cut.padded(lengths, degree) // pieces)[sample]
        last = pieces[sample] - 1  # of a zigzag's chunks the first and the last are the first rank's
        rank = groups.first_rank[group][sample] + np.where(
            last < degree[sample], chunk, np.minimum(chunk, last - chunk)
        )
        place = Placement.by_slots(rank.astype(np.int32), slot[sample], num_ranks, num_slots)
        return cls(sample, chunk * size, (chunk + 1) * size, place)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Elements of each piece, padding included: int64[p]."""
        return self.stop - self.start

    def on_rank(self, rank: int, slot_of_sample: NDArray[np.int32], slot: int | None = None) -> PiecesOnRank:
        """Return what a rank holds, in a slot or in all of them, in order. O(its pieces)."""
        mine = self.place.samples_on_rank(rank)
        slots = slot_of_sample[self.sample[mine]]
        if slot is not None:
            mine = mine[slots == slot]
            slots = np.full(len(mine), slot)
        sizes = self.stop[mine] - self.start[mine]
        ends = np.cumsum(sizes)
        first = np.searchsorted(slots, slots)  # of each piece's slot
        # Counted from where the slot of each piece begins: slots are packed by themselves.
        position = ends - sizes - (ends - sizes)[first] if len(mine) else sizes
        return PiecesOnRank(self.sample[mine], self.start[mine], self.stop[mine], position)

    def put_out(self, lengths: NDArray[np.int64], outputs: NDArray[np.int64], slot: NDArray[np.int32]) -> "Pieces":
        """Return what is put out where these are, given how long samples are, what each puts out, and its slot.

        An output is of the rank that has the first of the elements that it is made of, each of equally many. Pieces of
        nothing are left out. O(p + ranks).
        """
        held, number = np.minimum(self.stop, lengths[self.sample]), outputs[self.sample]
        # Python's integers where a product may leave int64: slower, and seldom needed.
        large = int(lengths.max(initial=0)) * int(outputs.max(initial=0)) > INT64_MAX
        exact = held.astype(object) if large else held
        stop = -(-exact * number // np.maximum(1, lengths[self.sample])).astype(np.int64)
        is_last = np.append(np.diff(self.sample) != 0, True)[: len(stop)]
        # The last piece takes what rounding left, so that all of a sample's output is somewhere.
        stop[is_last] = number[is_last]
        start = np.append(0, stop[:-1])[: len(stop)]
        start[np.append(True, is_last[:-1])[: len(stop)]] = 0
        some = np.flatnonzero(stop > start)
        ranks, num_ranks = self.place.rank_of_sample[some], self.place.num_ranks
        place = Placement.by_slots(ranks, slot[self.sample[some]], num_ranks, int(slot.max(initial=0)) + 1)
        return Pieces(self.sample[some], start[some], stop[some], place)

    def places(
        self, rank: int, piece: NDArray[np.int64], start: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return where elements lie among all pieces of a rank: so many from `start` on in pieces of it, int64[sum]."""
        held = self.place.samples_on_rank(rank)
        begin = np.zeros(len(self.sample), dtype=np.int64)
        begin[held] = offsets_of(self.stop[held] - self.start[held])[:-1]
        index, place = runs(sizes)
        return np.asarray((begin[piece] + start)[index] + place)


@dataclass(frozen=True, eq=False)
class Segments:
    """What travels between pieces: by target piece, in each by where it begins."""

    name: str  # of the stream
    # Of the pieces
    source: Placement
    target: Placement
    # int64[k]: of each segment
    source_piece: NDArray[np.int64]
    target_piece: NDArray[np.int64]
    # int64[k]: where each begins in its sample, its elements, and their bytes
    start: NDArray[np.int64]
    size: NDArray[np.int64]
    bytes_of_item: NDArray[np.int64]

    @cached_property
    def stream(self) -> Stream:
        """The segments as items of a stream. Made when asked for: where they lie on their ranks takes most of it."""
        source, target = _lying(self.source, self.source_piece), self.target.lifted(self.target_piece)
        return Stream(self.name, source, target, self.size, self.bytes_of_item)

    @cached_property
    def ranks(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The ranks that each segment comes from, and goes to: int32[k] both."""
        return self.source.rank_of_sample[self.source_piece], self.target.rank_of_sample[self.target_piece]

    def traffic(self, topology: Topology) -> Traffic:
        """Add up what moves. O(k + ranks)."""
        return Traffic.from_ranks(*self.ranks, self.bytes_of_item, topology)

    def places_on_rank(self, target: Pieces, rank: int) -> NDArray[np.int64]:
        """Return where elements that a rank gets lie among all of its target pieces: int64[elements].

        In the order in which they come; what no element lies at is padding, or comes from elsewhere.
        """
        mine = self.stream.target.samples_on_rank(rank)
        piece = self.target_piece[mine]
        return target.places(rank, piece, self.start[mine] - target.start[piece], self.stream.lengths[mine])


def segments(
    name: str, source: Pieces, target: Pieces, lengths: NDArray[np.int64],
    bytes_per_element: int | NDArray[np.int64] = 1,
) -> Segments:  # fmt: skip
    """Intersect the pieces that are there with those that are wanted; each element travels once to each that wants it.

    No two pieces of the source overlap; what they do not hold of a sample does not travel, nor does padding, which lies
    beyond the samples' lengths. `bytes_per_element` is of all source pieces, or int64[p] of each. O(s log s + k log s)
    for s source pieces, and k target pieces and segments.
    """
    held = np.flatnonzero(source.stop > source.start)
    # Sample after sample, as the intersection walks them.
    held = held[np.lexsort((source.start[held], source.sample[held]))]
    first_of_sample = offsets_of(np.bincount(source.sample[held], minlength=len(lengths)))
    tiles = source.start[held], source.stop[held]
    found = intersections(tiles, first_of_sample, lengths, target.sample, target.start, target.stop)
    source_piece = held[found.first]
    each = bytes_per_element if isinstance(bytes_per_element, int) else bytes_per_element[source_piece]
    volumes = found.size if isinstance(each, int) and each == 1 else found.size * each
    return Segments(name, source.place, target.place, source_piece, found.second, found.start, found.size, volumes)


def least_rank_time(
    cost: CostModel, lengths: NDArray[np.int64], cut: SequenceGroups, topology: Topology, makespan: int
) -> tuple[NDArray[np.int64], int]:
    """Return what of its ranks' time every sample takes at least, int64[n], and what a rank has in a step; in one unit.

    That for all elements of a sample; for a part of them in proportion. Where a group has ranks of several nodes, those
    of one may hold more than their number says, as the last ones hold the padding.
    """
    given = cost.degree_times(lengths, cut.degrees, topology.num_ranks)
    least = np.full(len(lengths), INT64_MAX)
    for degree, times in zip(cut.degrees, given.times, strict=True):
        if degree > topology.num_ranks:
            continue
        taken = times * degree
        if cut.reaches_over_nodes(degree, topology):
            exact = taken.astype(object) * lengths // np.maximum(cut.padded(lengths, degree), 1)  # may leave int64
            taken = exact.astype(np.int64)
        np.minimum(least, taken, out=least)
    return least, makespan // given.unit - cut.fewest_slots(lengths, topology.num_ranks) * given.overhead


def _lying(place: Placement, piece: NDArray[np.int64]) -> Placement:
    """Place segments where their pieces are, in each in order. O(k + p)."""
    rank_of_place = np.repeat(np.arange(place.num_ranks, dtype=np.int32), np.diff(place.offsets))
    at = np.empty(len(place.samples), dtype=np.int32)
    at[place.samples] = np.arange(len(at))
    at = at[piece]
    order, first, position = members_by_group(at, len(place.samples))  # in a piece they ascend already
    offsets = first[place.offsets]
    position += (first[:-1] - offsets[rank_of_place]).astype(np.int32)[at]
    return Placement(rank_of_place[at], position, order, offsets)


def running_stops(sample: NDArray[np.int64], lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where parts begin and end in their samples, given sample after sample in order: int64[k] both."""
    stop = np.cumsum(lengths)
    first = np.ones(len(sample), dtype=bool)
    first[1:] = sample[1:] != sample[:-1]
    base = (stop - lengths)[first].repeat(np.diff(np.append(np.flatnonzero(first), len(sample))))
    return stop - lengths - base, stop - base


def runs(counts: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return who each of ``counts.sum()`` entries belongs to, and its number there: int64[k] both."""
    index = np.repeat(np.arange(len(counts)), counts)
    return index, np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)
