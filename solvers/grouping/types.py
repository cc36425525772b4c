"""What the solver of sequence groups returns: groups of ranks, slot by slot, their items, and how good that is."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from solvers.types import Proven, Record

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


@dataclass(frozen=True, slots=True, eq=False)
class SequenceBoundCertificate(Record):
    """Multipliers from which anyone can recompute a lower bound; *any* such numbers prove one, these prove a good one.

    Attributes
    ----------
    edges : int64[J + 1], read-only
        Class j has the slots whose groups take from ``edges[j]`` to ``edges[j + 1]``; from 0 to all that may be.
    time_price, room_price : int64[J, D], read-only
        What a unit of time and of size is charged in a group of each usable degree, ascending; at least 0.
    long_price, large_price : int64[3, J, D], read-only
        What an item is charged that takes more than 1/2, 1/3, 1/4 of a group's time, or of its room; at least 0.
    bits : int
        Prices are in 2 to the power of minus so many.
    """

    edges: NDArray[np.int64]
    time_price: NDArray[np.int64]
    room_price: NDArray[np.int64]
    long_price: NDArray[np.int64]
    large_price: NDArray[np.int64]
    bits: int


@dataclass(frozen=True, slots=True, eq=False)
class SequenceBound(Record):
    """A lower bound on the sum of slot times, and what proves it.

    Attributes
    ----------
    value : int
        No solution has a smaller makespan.
    name : str
        ``"area"`` and ``"longest"`` are closed forms; ``"relaxation"`` is recomputed from `certificate`;
        ``"whole_relaxation"`` is by a mixed-integer search whose proof is not kept, less its tolerance.
    certificate : SequenceBoundCertificate or None
    runtime_s : float
        Seconds from call to return; ``==`` leaves it out.
    """

    value: int
    name: str
    certificate: SequenceBoundCertificate | None
    runtime_s: float = field(compare=False)
