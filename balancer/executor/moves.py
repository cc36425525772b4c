"""Who sends which elements to whom, as arrays alone: the whole of what a plan tells the executor.

Whole rows, rows for several ranks, parts of rows, windows of shards, and what encoders put out on its way to the LLM
are one thing: *segments*, each so many elements from a place on one rank to a place on another. All ranks list them in
one order, so that nothing but the elements themselves is sent. The way back is the same list with its ends swapped.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from balancer.layouts.resharding import Resharding
from balancer.plan.pieces import Pieces
from balancer.plan.pieces import Segments as Between
from balancer.plan.stream import Stream
from balancer.problem.placement import Placement
from balancer.problem.ragged import Ragged, offsets_of

__all__ = ["Move", "OwnPart", "Runs", "Segments", "begins_of", "sizes_of"]


class Runs(NamedTuple):
    """Elements that lie side by side, run after run, by the rank that they go to or come from; int64[k] each."""

    ranks: NDArray[np.int64]
    starts: NDArray[np.int64]  # where each run begins among the rank's own elements
    sizes: NDArray[np.int64]


class Move(NamedTuple):
    """One rank's part: the runs that leave the rank, and those that come."""

    out: Runs
    into: Runs
    size: int  # elements of the rank afterwards; where no run lies is padding


class Segments(NamedTuple):
    """All segments of all ranks, and the elements that each rank has before and after."""

    source: NDArray[Any]  # int[k]: the rank that has the elements
    source_at: NDArray[np.int64]  # int64[k]: where they begin there
    target: NDArray[Any]  # int[k]: the rank that gets them
    target_at: NDArray[np.int64]
    size: NDArray[np.int64]  # int64[k]
    before: NDArray[np.int64]  # int64[ranks]
    after: NDArray[np.int64]

    @classmethod
    def of_rows(
        cls, home: Placement, rows: Ragged, lengths: NDArray[np.int64], sizes: NDArray[np.int64] | None = None
    ) -> "Segments":
        """Rows of these lengths, from home to all ranks that list them, in the order in which a rank lists them.

        Given `sizes`, int64[k], what ranks list is as long as that, which may be another length on each of them.
        """
        row, size = rows.values, lengths[rows.values] if sizes is None else sizes
        ends = offsets_of(size)
        of_rank = ends[rows.offsets]
        target_at = ends[:-1] - np.repeat(of_rank[:-1], rows.counts)
        return cls(
            home.rank_of_sample[row], begins_of(home, lengths)[row], rows.row_of_value, target_at, size,
            sizes_of(home, lengths), np.diff(of_rank),
        )  # fmt: skip

    @classmethod
    def of_stream(cls, stream: Stream) -> "Segments":
        """Items of a plan's stream, which lie side by side on every rank, before and after."""
        source, target, size = stream.source, stream.target, stream.lengths
        return cls(
            source.rank_of_sample, begins_of(source, size), target.rank_of_sample, begins_of(target, size), size,
            sizes_of(source, size), sizes_of(target, size),
        )  # fmt: skip

    @classmethod
    def of_pieces(cls, between: Between, source: Pieces, target: Pieces) -> "Segments":
        """What travels from the pieces that are there to those that are wanted, among whose elements may be padding."""
        here, there = between.source_piece, between.target_piece
        return cls(
            source.place.rank_of_sample[here],
            begins_of(source.place, source.lengths)[here] + between.start - source.start[here],
            target.place.rank_of_sample[there],
            begins_of(target.place, target.lengths)[there] + between.start - target.start[there],
            between.size, sizes_of(source.place, source.lengths), sizes_of(target.place, target.lengths),
        )  # fmt: skip

    @classmethod
    def of_resharding(cls, found: Resharding) -> "Segments":
        """What travels from what GPUs hold, stream after stream, to their windows."""
        each = cls.of_pieces(found.segments, found.source_pieces, found.target_pieces)
        # Source pieces are parts of the target's items, and say where they begin in their own.
        behind = found.source_pieces.start - found.source_start
        return each._replace(source_at=each.source_at + behind[found.segments.source_piece])

    @classmethod
    def one_after_another(cls, several: Sequence["Segments"]) -> "Segments":
        """One move of several: before, each rank has what it has of one behind what it has of the one in front.

        Afterwards all lie in one buffer, of which each of the several says the place.
        """
        before = np.cumsum([np.zeros_like(several[0].before), *(each.before for each in several)], axis=0)
        parts = [each[:5] for each in several]
        source, source_at, target, target_at, size = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        of = np.repeat(np.arange(len(several)), [len(each.size) for each in several])
        return cls(source, source_at + before[of, source], target, target_at, size, before[-1], several[0].after)

    def home(self, chosen: NDArray[np.bool_] | None = None) -> "Segments":
        """The way back, of all segments or of those chosen, bool[k]."""
        kept = slice(None) if chosen is None else chosen
        return Segments(
            self.target[kept], self.target_at[kept], self.source[kept], self.source_at[kept], self.size[kept],
            self.after, self.before,
        )  # fmt: skip

    def on(self, rank: int) -> Move:
        """One rank's part. Both ends sort by rank alone, stably: so they agree on the order of the runs between them.

        O(k) for the k segments of all ranks.
        """
        out, into = np.flatnonzero(self.source == rank), np.flatnonzero(self.target == rank)
        out = out[np.argsort(self.target[out], kind="stable")]
        into = into[np.argsort(self.source[into], kind="stable")]
        return Move(
            Runs(self.target[out], self.source_at[out], self.size[out]),
            Runs(self.source[into], self.target_at[into], self.size[into]),
            int(self.after[rank]),
        )


class OwnPart(NamedTuple):
    """What one GPU composes of an exchange of many: the segments that leave the GPU, and those that come to it.

    Each in the order of the whole exchange. Of the other end of a segment the rank alone is right.
    """

    sending: Segments
    receiving: Segments

    @classmethod
    def of_resharding(cls, own: tuple[Resharding, Resharding]) -> "OwnPart":
        """What :meth:`Resharding.on` composes."""
        return cls(*map(Segments.of_resharding, own))

    def home(self) -> "OwnPart":
        """The way back."""
        return OwnPart(self.receiving.home(), self.sending.home())

    def on(self, rank: int) -> Move:
        """The GPU's part, as :meth:`Segments.on` of the whole exchange has it."""
        return Move(self.sending.on(rank).out, self.receiving.on(rank).into, int(self.receiving.after[rank]))


def begins_of(place: Placement, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where each item begins among the elements of its rank, given the items' sizes: int64[n]."""
    inside = offsets_of(sizes[place.samples])
    found = np.empty(len(sizes), dtype=np.int64)
    found[place.samples] = inside[:-1] - np.repeat(inside[place.offsets[:-1]], np.diff(place.offsets))
    return found


def sizes_of(place: Placement, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the elements of each rank, given the items' sizes: int64[ranks]."""
    return np.diff(offsets_of(sizes[place.samples])[place.offsets])
