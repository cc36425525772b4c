"""Streams: items on their way from one placement to another; a step of a multimodal model has several."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from balancer.plan.exchange import RankExchange, rank_exchange
from balancer.problem.placement import Placement
from balancer.problem.ragged import offsets_of
from balancer.problem.topology import Topology
from solvers.groups import moved_amounts, read_only
from solvers.types import Record

__all__ = ["Stream", "Traffic", "fused", "stacked"]


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a stream moves, in bytes (a dispatch plan's: in elements).

    Attributes
    ----------
    total : int
        All of it, what stays on its rank included.
    inter_node, intra_node : int
        What crosses nodes, and what moves between ranks of one node.
    largest_send, largest_receive : int
        The most that one rank sends to, or receives from, other nodes.
    """

    total: int
    inter_node: int
    intra_node: int
    largest_send: int
    largest_receive: int

    @classmethod
    def from_ranks(
        cls, source: NDArray[np.int32], target: NDArray[np.int32], bytes_of_item: NDArray[np.int64], topology: Topology
    ) -> "Traffic":
        """Add up what items move, given the ranks that they come from and go to: int32[k] both. O(k + ranks)."""
        total, moved, crossing, sent, received = moved_amounts(
            read_only(source), read_only(target), read_only(topology.node_of_rank), read_only(bytes_of_item)
        )
        return cls(int(total), int(crossing), int(moved - crossing), int(sent), int(received))


@dataclass(frozen=True, slots=True, eq=False)
class Stream(Record):
    """Items that travel from a source placement to a target placement."""

    name: str
    # Of the same items, on the same ranks
    source: Placement
    target: Placement
    lengths: NDArray[np.int64]  # int64[k], read-only: elements of each item
    bytes_of_item: NDArray[np.int64]  # int64[k], read-only

    def exchange(self, rank: int) -> RankExchange:
        """One rank's part in moving the items: split sizes and orders. Built when asked for."""
        return rank_exchange(self.source, self.target, self.lengths, rank)

    def inverse(self) -> "Stream":
        """Return the stream of the way back, which gradients take."""
        return Stream(f"{self.name} back", self.target, self.source, self.lengths, self.bytes_of_item)

    def traffic(self, topology: Topology) -> Traffic:
        """Add up what moves. O(k + ranks)."""
        return Traffic.from_ranks(self.source.rank_of_sample, self.target.rank_of_sample, self.bytes_of_item, topology)


def fused(name: str, streams: Sequence[Stream], order: NDArray[np.int64], target: Placement) -> Stream:
    """Make one stream of several with one target rank an item, so that one all-to-all carries all of them.

    Each rank sends in the order of the streams, and within one in the order of its source placement. `order`, int64[k],
    has the items of all streams, numbered stream by stream, as `target` numbers them. O(k + ranks * streams).
    """
    source = stacked([stream.source for stream in streams], order)
    lengths = np.concatenate([stream.lengths for stream in streams])[order]
    volumes = np.concatenate([stream.bytes_of_item for stream in streams])[order]
    return Stream(name, source, target, lengths, volumes)


def stacked(placements: Sequence[Placement], order: NDArray[np.int64]) -> Placement:
    """Make one placement of several, whose items lie one placement after the other on each rank.

    `order` numbers the items of all, counted placement by placement, anew. O(k + ranks * placements).
    """
    counts = np.stack([np.diff(one.offsets) for one in placements])  # [placements, ranks]
    offsets = offsets_of(counts.sum(axis=0))
    before = np.cumsum(counts, axis=0) - counts  # what earlier ones have on the rank
    positions = [one.position_of_sample + before[i][one.rank_of_sample] for i, one in enumerate(placements)]
    rank = np.concatenate([one.rank_of_sample for one in placements])[order]
    position = np.concatenate(positions)[order].astype(np.int32)
    items = np.empty(len(order), dtype=np.int64)
    items[offsets[rank] + position] = np.arange(len(order))
    return Placement(rank, position, items, offsets)
