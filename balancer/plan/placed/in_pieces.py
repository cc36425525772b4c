"""Samples that several ranks share: what follows from their pieces, whichever cut made these."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from balancer.plan.pieces import Pieces, segments
from balancer.plan.placed.whole import WholeShares
from balancer.plan.stream import Stream, Traffic

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class PlacedPieces(WholeShares):
    """Samples in pieces; a cut says which, and what that takes."""

    def put_out(self, outputs: Ints) -> Pieces:
        """Return the pieces of a phase's outputs, slot by slot. O(p) for p pieces."""
        return self.pieces.put_out(self.problem.batch.lengths, outputs, self.slot_of_sample)

    def samples_on(self, rank: int) -> Ints:
        """Return the samples that run on a rank, shared or not, in dispatch order."""
        shares = self.shares
        return shares.sample[shares.place.samples_on_rank(rank)]

    def rank_sets(self) -> list[range]:
        """Return all sets of ranks that a plan with these settings can need as a group of several."""
        return list(self.problem.cut.rank_sets(self.problem.topology))

    @property
    def stream(self) -> Stream:
        """What dispatch moves: segments of samples."""
        batch = self.problem.batch
        return segments("", Pieces.whole(batch.home, batch.lengths), self.pieces, batch.lengths).stream

    @property
    def traffic(self) -> Traffic:
        """What dispatch moves, in elements."""
        return self.stream.traffic(self.problem.topology)

    def inverse(self) -> WholeShares:
        """Raise: what goes back are segments."""
        raise ValueError("the way back of samples that are shared is plan.stream.inverse(), of their segments")
