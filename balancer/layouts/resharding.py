"""Resharding: items on their way between modules whose GPUs are split unlike, each row once.

A shard's pieces, in order, are its packed buffer, which all its tensor replicas hold. It is cut into equal *windows*,
one for each of them. A GPU of the source sends its own window of what it holds; one of the target gets its own, and an
all-gather within its tensor group makes the buffer of them, in order. So every row is sent once. That one GPU gets all
and shares it is never better: as much comes in, over fewer links.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from balancer.layouts.mesh import Mesh
from balancer.plan.pieces import Pieces, Segments, runs, segments
from balancer.plan.stream import Stream, stacked
from balancer.problem.placement import Placement
from balancer.problem.ragged import offsets_of
from balancer.problem.topology import Topology
from solvers.arguments import as_index
from solvers.groups import group_loads
from solvers.tiles import Packed, windowed
from solvers.types import Record


@dataclass(frozen=True, eq=False)
class Shards(Record):
    """Items on the GPUs of a module's replicas: of each, every shard holds an equal share, packed one after the other.

    Contiguous shares with Ulysses shards; with context shards a zigzag: of 2 cp chunks the shard c holds the chunks c
    and 2 cp - 1 - c. With both, each chunk is cut into contiguous parts for the Ulysses shards.
    """

    mesh: Mesh
    place: Placement  # of the items on replicas, in order of slots
    lengths: NDArray[np.int64]  # int64[n], read-only
    share: NDArray[np.int64]  # int64[n], read-only: elements of each item in every shard, padding included
    # int32[n], read-only: each slot of a shard is packed, and cut into windows, by itself
    slot_of_item: NDArray[np.int32]
    num_slots: int = 1

    @classmethod
    def of(
        cls, mesh: Mesh, place: Placement, lengths: NDArray[np.int64],
        slots: tuple[NDArray[np.int32], int] | None = None,
    ) -> "Shards":  # fmt: skip
        """Share out items that lie on replicas: what a module takes in, and by the same rule what it puts out.

        `slots` is the slot of each item, and how many there are; by default all are in one.
        """
        none = np.zeros(len(lengths), dtype=np.int32), 1
        return cls(mesh, place, lengths, mesh.shares(lengths), *(slots or none))

    @property
    def halves(self) -> int:
        """In how many parts a shard holds each item: two in a zigzag."""
        return 2 if self.mesh.layout.cp > 1 else 1

    @cached_property
    def slot_sizes(self) -> NDArray[np.int64]:
        """Elements of a shard's packed buffer, padding included: int64[replicas, slots]."""
        buffer = self.place.rank_of_sample * np.int64(self.num_slots) + self.slot_of_item
        sizes = group_loads(self.share, buffer, self.mesh.layout.dp * self.num_slots)
        return sizes.reshape(self.mesh.layout.dp, self.num_slots)

    @property
    def windows(self) -> NDArray[np.int64]:
        """Elements of each GPU's window of its shard's buffer: int64[replicas, slots]."""
        return self.slot_sizes // self.mesh.layout.tp

    def pieces(
        self, num_gpus: int, devices: Sequence[int] = (0,), chosen: NDArray[np.bool_] | None = None, gpu: int = -1
    ) -> Pieces:
        """Return what each GPU of some pipeline devices has in its windows. O(n + pieces + GPUs).

        Device after device, there replica after replica, there item after item in order, in each by where they begin.
        By default of all items; or of those `chosen`, bool[n], or of one GPU alone, all its items.
        """
        everything = num_gpus, tuple(devices)
        if chosen is None and gpu < 0 and everything in self._pieces:
            return self._pieces[everything]
        if gpu >= 0:
            chosen = self.items_of(gpu, devices)
        items, sizes = self.place.samples, self.slot_sizes
        begin = offsets_of(self.share[items])[:-1]
        if chosen is not None:
            kept = chosen[items]
            items, begin = items[kept], begin[kept]
        replica, slot = self.place.rank_of_sample[items], self.slot_of_item[items]
        # Items are in order of slots on each replica, so that one running sum has the offsets of all buffers.
        begin = begin - offsets_of(sizes.ravel())[:-1].reshape(sizes.shape)[replica, slot]
        packed = Packed(items, replica, self.share[items] // self.halves, begin, self.windows[replica, slot])
        found = [windowed(packed, self.mesh.gpus[each], self.halves, self.mesh.layout.cp) for each in devices]
        item, start, stop, holder = found[0] if len(found) == 1 else map(np.concatenate, zip(*found, strict=True))
        if gpu >= 0:
            mine = np.flatnonzero(holder == gpu)
            item, start, stop, holder = item[mine], start[mine], stop[mine], holder[mine]
        pieces = Pieces(item, start, stop, Placement.by_sample_order(holder, num_gpus))
        if chosen is None:
            self._pieces[everything] = pieces
        return pieces

    @cached_property
    def _pieces(self) -> dict[tuple[int, tuple[int, ...]], Pieces]:
        """All GPUs' pieces: a phase takes several streams."""
        return {}

    def items_of(self, gpu: int, devices: Sequence[int]) -> NDArray[np.bool_]:
        """Return which items lie on a GPU that is one of some pipeline devices: bool[n]."""
        _, replica, _, _ = np.nonzero(self.mesh.gpus[list(devices)] == gpu)
        return np.isin(self.place.rank_of_sample, replica)

    def cu_seqlens(self, gpu: int, slot: int = 0) -> NDArray[np.int32]:
        """Return where the shares of items begin and end in a GPU's packed slot, padding included: int32[k + 1]."""
        return offsets_of(self.share[self._held(gpu, slot)[0]]).astype(np.int32)

    def positions(self, gpu: int, slot: int = 0) -> NDArray[np.int64]:
        """Return the place in its item of each element of a GPU's packed slot, -1 for padding: int64[elements]."""
        items, shard = self._held(gpu, slot)
        layout, halves = self.mesh.layout, self.halves
        context, inner = divmod(shard, layout.sp)
        # A zigzag: shard r of causal attention has an early and a late part, so that all have about the same work.
        chunks = np.array([context, 2 * layout.cp - 1 - context][:halves])
        part = np.repeat(self.share[items] // halves, halves)
        of, place = runs(part)
        found = (chunks[of % halves] * layout.sp + inner) * part[of] + place
        return np.where(found < self.lengths[items][of // halves], found, -1)

    def window(self, gpu: int, slot: int = 0) -> slice:
        """Return which elements of its packed slot are a GPU's window."""
        _, replica, _, tensor = self.mesh.place_of(gpu)
        size = int(self.windows[replica, slot])
        return slice(tensor * size, (tensor + 1) * size)

    def gathered(self, gpu: int) -> tuple[NDArray[np.int64], int]:
        """Return where each element of a GPU's packed slots, slot after slot, is among its tensor group's windows.

        The windows of one GPU after the other, of each those of all slots, which are as many elements as returned too.
        """
        _, replica, _, _ = self.mesh.place_of(gpu)
        windows = self.windows[replica]
        slot, place = runs(self.slot_sizes[replica])
        each, size = np.maximum(windows, 1)[slot], int(windows.sum())
        return place // each * size + offsets_of(windows)[:-1][slot] + place % each, size

    def _held(self, gpu: int, slot: int) -> tuple[NDArray[np.int64], int]:
        """Return the items that a GPU has in a slot, in order, and which of their shards."""
        slot = as_index("slot", slot, self.num_slots)
        _, replica, shard, _ = self.mesh.place_of(gpu)
        items = self.place.samples_on_rank(replica)
        return items[self.slot_of_item[items] == slot], shard


class Source(NamedTuple):
    """Items that are there, and what they are parts of."""

    # Of a module, whose last pipeline devices put the items out; or on GPUs. No two pieces overlap.
    held: Shards | Pieces
    # (int64[n], int64[n]): of which of the target's items each is a part, and where in it that begins. None: they are
    # the same items.
    within: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
    bytes_per_element: int = 1

    def pieces(self, num_gpus: int, chosen: NDArray[np.bool_] | None = None, gpu: int = -1) -> Pieces:
        """Return what of its items each GPU holds; of those chosen, bool[n], or of one GPU, if that is asked for."""
        if isinstance(self.held, Shards):
            return self.held.pieces(num_gpus, (-1,), chosen, gpu)
        held, kept = self.held, self.held.place.samples
        if gpu >= 0:
            kept = held.place.samples_on_rank(gpu)
        elif chosen is None:
            return held
        else:
            kept = kept[chosen[held.sample[kept]]]
        place = Placement.by_sample_order(held.place.rank_of_sample[kept], num_gpus)
        return Pieces(held.sample[kept], held.start[kept], held.stop[kept], place)

    def of_target(self, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which items are parts of chosen items of the target: bool[n]."""
        return chosen if self.within is None else chosen[self.within[0]]

    def in_target(self, pieces: Pieces) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return of which of the target's items pieces are, where they begin and where they end, without padding."""
        stop = pieces.stop
        if isinstance(self.held, Shards):
            stop = np.minimum(stop, self.held.lengths[pieces.sample])
        if self.within is None:
            return pieces.sample, pieces.start, stop
        first = self.within[1][pieces.sample]
        return self.within[0][pieces.sample], first + pieces.start, first + stop


@dataclass(frozen=True, slots=True, eq=False)
class Resharding(Record):
    """How items come from where they are to the GPUs of a module, and their gradients back.

    Gradients go the other way: within the target's tensor groups a reduce-scatter sums what tensor replicas have of
    each other's windows, ``stream.inverse()`` brings them, and an all-gather within the source's tensor groups makes
    its buffers of them.
    """

    segments: Segments  # what travels, between GPUs
    sources: tuple[Source, ...]  # what a GPU holds is stream after stream, of each its windows, slot after slot
    target: Shards
    # What each GPU has in its windows, padding included
    source_pieces: Pieces
    target_pieces: Pieces
    source_start: NDArray[np.int64]  # int64[p]: where each source piece begins in the target's items

    @classmethod
    def of(
        cls, name: str, sources: Sequence[Source], target: Shards, num_gpus: int, devices: Sequence[int] = (0,)
    ) -> "Resharding":
        """Compose the exchange of one stream or of several, which then travel in one, to first pipeline devices.

        Or to all GPUs of other `devices`. O(k log s) for s source pieces, and k target pieces and segments.
        """
        wanted = target.pieces(num_gpus, devices)
        return cls._between(name, sources, [each.pieces(num_gpus) for each in sources], target, wanted)

    @classmethod
    def on(
        cls, gpu: int, name: str, sources: Sequence[Source], target: Shards, num_gpus: int,
        devices: Sequence[int] = (0,),
    ) -> tuple["Resharding", "Resharding"]:  # fmt: skip
        """Compose one GPU's part alone: what it sends, and what it gets, each in the order of the whole exchange.

        O(n + k log s) for the s source pieces, and the k target pieces and segments, of the items that it holds.
        """
        there = [each.pieces(num_gpus, gpu=gpu) for each in sources]
        sent = np.zeros(len(target.lengths), dtype=bool)
        for source, pieces in zip(sources, there, strict=True):
            # Only the target's items that this GPU has something of: no GPU makes the whole exchange.
            sent[source.in_target(pieces)[0]] = True
        sending = cls._between(name, sources, there, target, target.pieces(num_gpus, devices, sent))
        mine = target.items_of(gpu, devices)
        there = [each.pieces(num_gpus, each.of_target(mine)) for each in sources]
        return sending, cls._between(name, sources, there, target, target.pieces(num_gpus, devices, gpu=gpu))

    @classmethod
    def _between(
        cls, name: str, sources: Sequence[Source], pieces: Sequence[Pieces], target: Shards, wanted: Pieces
    ) -> "Resharding":
        """Compose the exchange of what there is of each source and what is wanted."""
        parts = [source.in_target(each) for source, each in zip(sources, pieces, strict=True)]
        there, (sample, start, stop) = pieces[0], parts[0]
        if len(pieces) > 1:
            sample, start, stop = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
            begin = np.concatenate([each.start for each in pieces])
            place = stacked([each.place for each in pieces], np.arange(len(sample)))
            there = Pieces(sample, begin, begin + np.concatenate([each.stop - each.start for each in pieces]), place)
        sizes = [source.bytes_per_element for source in sources]
        counts = [len(each.sample) for each in pieces]
        each = sizes[0] if len(set(sizes)) == 1 else np.repeat(np.array(sizes, dtype=np.int64), counts)
        found = segments(name, Pieces(sample, start, stop, there.place), wanted, target.lengths, each)
        return cls(found, tuple(sources), target, there, wanted, start)

    @property
    def stream(self) -> Stream:
        """What travels: its items are segments, its ranks GPUs."""
        return self.segments.stream

    def sent(self, gpu: int) -> NDArray[np.int64]:
        """Return which elements of what it holds a GPU sends, in order: int64[elements]."""
        mine = self.stream.source.samples_on_rank(gpu)
        piece = self.segments.source_piece[mine]
        start = self.segments.start[mine] - self.source_start[piece]
        return self.source_pieces.places(gpu, piece, start, self.stream.lengths[mine])

    def arriving(self, gpu: int) -> NDArray[np.int64]:
        """Return where in its windows, slot after slot, what a GPU gets belongs, in order: int64[elements]."""
        return self.segments.places_on_rank(self.target_pieces, gpu)

    def gathers_in_nodes(self, topology: Topology) -> bool:
        """Whether every tensor group lies in one node, so that nothing crosses but the stream."""
        held = (self.target, *(each.held for each in self.sources))
        return all(_nodes_of_groups(each, topology.node_of_rank).shape[1] == 1 for each in held)

    def least_inter_node(self, topology: Topology) -> int:
        """Return how many bytes cross nodes at least, with items on these replicas. O(segments).

        A row must come to every node in which some GPU of a tensor group holds it, unless one that has it is there:
        by the stream, or gathered in a group over several nodes.
        """
        nodes = topology.node_of_rank
        comes_from, goes_to = self.segments.ranks
        wanted = _nodes_of_groups(self.target, nodes)[goes_to]
        several = len(self.sources) > 1
        sizes = [len(each.pieces(topology.num_ranks).sample) for each in self.sources] if several else [0]
        source = np.searchsorted(offsets_of(sizes)[:-1], self.segments.source_piece, side="right") - 1
        least = 0
        for s, each in enumerate(self.sources):
            mine = np.flatnonzero(source == s)
            there = _nodes_of_groups(each.held, nodes)[comes_from[mine]]
            lacking = _lacking(there, wanted[mine])
            # An element crosses once to each node that wants it and where no GPU of its source's tensor group is.
            least += int((lacking * self.segments.bytes_of_item[mine]).sum())
        return least


def _lacking(there: NDArray[np.int32], wanted: NDArray[np.int32]) -> NDArray[np.int64]:
    """Count, row by row, the distinct nodes that want something and are not there."""
    found = np.zeros(len(there), dtype=np.int64)
    for k in range(wanted.shape[1]):
        node = wanted[:, k : k + 1]
        # A node is counted at its first place in the row.
        found += (wanted[:, :k] != node).all(axis=1) & (there != node).all(axis=1)
    return found


def _nodes_of_groups(held: Shards | Pieces, node_of_gpu: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the nodes of the GPUs that hold what each GPU does, itself among them: int32[GPUs, k]."""
    own = node_of_gpu[:, None]
    if isinstance(held, Pieces):
        return own
    groups = held.mesh.gpus.reshape(-1, held.mesh.layout.tp)
    nodes = node_of_gpu[groups]
    # Mostly all of a tensor group is in one node: a row of one column does then.
    if (nodes == nodes[:, :1]).all():
        return own
    found = np.repeat(own, nodes.shape[1], axis=1)
    found[groups.ravel()] = np.repeat(nodes, nodes.shape[1], axis=0)
    return found
