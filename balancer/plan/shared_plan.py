"""Samples that several ranks share: what follows from their pieces, whichever cut made these."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from balancer.plan.dispatch_plan import DispatchPlan
from balancer.plan.pieces import Pieces, segments
from balancer.plan.stream import Stream, Traffic

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SharedPlan(DispatchPlan):
    """A plan of samples in pieces; a cut says which, and what that takes."""

    def put_out(self, outputs: Ints) -> Pieces:
        """Return the pieces of a phase's outputs, slot by slot. O(p) for p pieces."""
        return self.pieces.put_out(self.lengths, outputs, self.slot_of_sample)

    def samples_on_rank(self, rank: int) -> Ints:
        """Return the samples that run on a rank, shared or not, in dispatch order."""
        shares = self.shares
        return shares.sample[shares.place.samples_on_rank(rank)]

    @property
    def stream(self) -> Stream:
        """What dispatch moves: segments of samples."""
        return segments("", Pieces.whole(self.home, self.lengths), self.pieces, self.lengths).stream

    @property
    def traffic(self) -> Traffic:
        """What dispatch moves, in elements."""
        return self.stream.traffic(self.topology)

    def inverse(self) -> DispatchPlan:
        """Raise: what goes back are segments."""
        raise ValueError("the way back of samples that are shared is plan.stream.inverse(), of their segments")
