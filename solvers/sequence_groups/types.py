"""What the solver of sequence groups returns: groups of ranks, slot by slot, their items, and how good that is."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from solvers.types import Compared, SolveStatus, relative_gap

__all__ = ["SequenceGroupsResult"]


@dataclass(frozen=True, slots=True, eq=False)
class SequenceGroupsResult(Compared):
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
    lower_bound : int
        Proven: no solution under the same constraints has a smaller makespan.
    bound_name : str
        The argument that proves `lower_bound`; see :mod:`solvers.sequence_groups.bounds`.
    status : SolveStatus
        ``OPTIMAL`` if and only if ``makespan == lower_bound``.
    method : str
    runtime_s : float
        Seconds from call to return; the one field that differs between runs, so ``==`` leaves it out.
    """

    slot_of_item: NDArray[np.int32]
    group_of_item: NDArray[np.int32]
    degree_of_group: NDArray[np.int32]
    slot_of_group: NDArray[np.int32]
    first_rank_of_group: NDArray[np.int32]
    group_times: NDArray[np.int64]
    slot_times: NDArray[np.int64]
    makespan: int
    lower_bound: int
    bound_name: str
    status: SolveStatus
    method: str
    runtime_s: float = field(compare=False)

    @property
    def num_slots(self) -> int:
        """K, the same on every rank; empty slots included."""
        return len(self.slot_times)

    @property
    def num_groups(self) -> int:
        """Groups of all slots."""
        return len(self.degree_of_group)

    @property
    def gap(self) -> float:
        """``(makespan - lower_bound) / lower_bound``; 0.0 when equal, infinite if only the bound is 0."""
        return relative_gap(self.makespan, self.lower_bound)
