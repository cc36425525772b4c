"""What the solver of sequence groups returns: groups of ranks, slot by slot, their items, and how good that is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solvers.types import Proven

MOST_RANK_TIME = 2**58
"""Ranks times the sum of all items' largest times, with an item's share of every overhead, must be below it."""


@dataclass(frozen=True, slots=True, eq=False)
class SequenceGroupsResult(Proven):
    """Slots of groups of ranks that share items, with a certificate.

    Attributes
    ----------
    slot_of_item : int32[n], read-only
        The slot of each item, in the order in which the items were given.
    group_of_item : int32[n], read-only
        Its group. Groups are numbered over all slots, slot after slot, in each by their ranks.
    degree_of_group, slot_of_group, first_rank_of_group : int32[G], read-only
        A group holds ranks ``first_rank`` to ``first_rank + degree - 1``; none is empty. Ranks in no group of a slot
        hold nothing in it.
    group_times : int64[G], read-only
        The time of each group, its overhead included.
    slot_times : int64[K], read-only
        The overhead and the slowest group of each slot; in descending order.
    makespan : int
        The sum of `slot_times`.
    bound_name : str
        See :mod:`solvers.grouping.bounds`.
    lower_bound, status, method, runtime_s
        As of :class:`solvers.PartitionResult`.
    """

    slot_of_item: NDArray[np.int32]
    group_of_item: NDArray[np.int32]
    degree_of_group: NDArray[np.int32]
    slot_of_group: NDArray[np.int32]
    first_rank_of_group: NDArray[np.int32]
    group_times: NDArray[np.int64]
    slot_times: NDArray[np.int64]
    makespan: int
    method: str

    @property
    def num_slots(self) -> int:
        """K, the same on every rank; empty slots included."""
        return len(self.slot_times)

    @property
    def num_groups(self) -> int:
        """Groups of all slots."""
        return len(self.degree_of_group)
