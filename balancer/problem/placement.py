"""A placement: for every sample the rank it is on and its position there. Homes are one, a plan's target is another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers.arguments import as_index, as_int64
from solvers.errors import ArgumentError
from solvers.groups import members_by_group, parts_by_group
from solvers.types import Record


@dataclass(frozen=True, slots=True, eq=False)
class Placement(Record):
    """A bijection from samples to places (rank, position), both ways.

    Attributes
    ----------
    rank_of_sample : int32[n], read-only
    position_of_sample : int32[n], read-only
        Place in the order of its rank, from 0.
    samples : int64[n], read-only
        Samples by rank, then by position.
    offsets : int64[num_ranks + 1], read-only
        Rank r holds ``samples[offsets[r] : offsets[r + 1]]``.
    """

    rank_of_sample: NDArray[np.int32]
    position_of_sample: NDArray[np.int32]
    samples: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @classmethod
    def by_sample_order(cls, rank_of_sample: NDArray[np.int32], num_ranks: int) -> Placement:
        """Each rank's samples in ascending order. The ranks must be within 0..num_ranks-1. O(n + num_ranks)."""
        samples, offsets, positions = members_by_group(rank_of_sample, num_ranks)
        return cls(rank_of_sample, positions, samples, offsets)

    @classmethod
    def by_slots(
        cls, rank_of_sample: NDArray[np.int32], slot_of_sample: NDArray[np.int32], num_ranks: int, num_slots: int
    ) -> Placement:
        """Each rank's samples by slot, then in ascending order. O(n + num_ranks * num_slots)."""
        bins = rank_of_sample * np.int64(num_slots) + slot_of_sample
        samples, offsets, _ = members_by_group(bins.astype(np.int32), num_ranks * num_slots)
        offsets = offsets[::num_slots].copy()
        positions = np.empty(len(samples), dtype=np.int32)
        positions[samples] = np.arange(len(samples)) - offsets[rank_of_sample[samples]]
        return cls(rank_of_sample, positions, samples, offsets)

    def lifted(self, sample_of_item: NDArray[np.int64]) -> Placement:
        """Place items where their samples are: by position of the sample, then in ascending order.

        Parameters
        ----------
        sample_of_item : int64[k]
            Ascending. O(n + k).
        """
        items, offsets, positions = parts_by_group(self.samples, self.offsets, sample_of_item)
        rank_of_item = self.rank_of_sample[sample_of_item]
        return Placement(rank_of_item, positions, items, offsets)

    @classmethod
    def checked(
        cls, rank_of_sample: ArrayLike, num_ranks: int, position_of_sample: ArrayLike | None = None,
        name: str = "rank_of_sample",
    ) -> Placement:  # fmt: skip
        """Build from arrays that come from outside, the ranks called `name`; ValueError names sample and rule."""
        ranks = as_int64(name, rank_of_sample)
        outside = (ranks < 0) | (ranks >= num_ranks)
        if outside.any():
            sample = int(np.argmax(outside))
            raise ArgumentError(name, f"be within 0..{num_ranks - 1}", ranks[sample], sample)
        placement = cls.by_sample_order(ranks.astype(np.int32), num_ranks)
        if position_of_sample is None:
            return placement
        positions = as_int64("position_of_sample", position_of_sample)
        if positions.shape != ranks.shape:
            raise ValueError(f"position_of_sample must have {len(ranks)} entries, got {len(positions)}")
        held = np.diff(placement.offsets)[placement.rank_of_sample]
        outside = (positions < 0) | (positions >= held)
        if outside.any():
            sample = int(np.argmax(outside))
            raise ValueError(
                f"position_of_sample[{sample}] must be within 0..{held[sample] - 1}, got {positions[sample]}"
            )
        places = placement.offsets[placement.rank_of_sample] + positions
        samples = np.full(len(ranks), -1, dtype=np.int64)
        samples[places] = np.arange(len(ranks))
        if (twice := samples[places] != np.arange(len(ranks))).any():
            sample = int(np.argmax(twice))
            raise ValueError(
                f"position {positions[sample]} of rank {ranks[sample]} is given to samples {sample} "
                f"and {samples[places[sample]]}"
            )
        return cls(placement.rank_of_sample, positions.astype(np.int32), samples, placement.offsets)

    @property
    def num_ranks(self) -> int:
        """Number of ranks, empty ones included."""
        return len(self.offsets) - 1

    def samples_on_rank(self, rank: int) -> NDArray[np.int64]:
        """Samples on `rank`, by position: int64[k]."""
        rank = as_index("rank", rank, self.num_ranks)
        return self.samples[self.offsets[rank] : self.offsets[rank + 1]]
