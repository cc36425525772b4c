"""What cutting shares returns: a slot for every sample on the rank where it lies, and how few slots there can be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from solvers.packing._schedule_types import CutResult


@dataclass(frozen=True, slots=True, eq=False)
class SharesResult(CutResult):
    """Every rank's share cut into micro-batches, with a certificate on how many there are.

    Attributes
    ----------
    rank_of_item : int32[n], read-only
        The rank of each sample, as given.
    slot_of_item : int32[n], read-only
        The slot in which that rank computes it.
    num_slots : int
        K, the same on every rank.
    slot_loads : int64[R, K], read-only
        The cost of each micro-batch; descending on every rank.
    slot_tokens : int64[R, K], read-only
        The tokens of each micro-batch: at most `cap`, but for the samples in `own`.
    cap : int
        The cap that was asked for.
    lower_bound : int
        Proven: these shares cannot be cut into fewer slots under the same rules.
    bound_name : str
        The argument that proves it, for the rank that needs most: ``"volume"`` (its tokens over the cap) or
        ``"halves"`` (its samples of more than half the cap, no two of which share a micro-batch); samples of
        `own` and the rules on the number of slots come on top.
    status : SolveStatus
        ``OPTIMAL`` if and only if ``num_slots == lower_bound``.
    own : int64[], read-only
        Ascending indices of the samples over the cap that have a micro-batch to themselves, as ``"own"`` asks.
    runtime_s : float
        Seconds from call to return; the one field that differs between runs, so ``==`` leaves it out.
    """

    rank_of_item: NDArray[np.int32]
    slot_of_item: NDArray[np.int32]
    num_slots: int
    slot_loads: NDArray[np.int64]
    slot_tokens: NDArray[np.int64]
    cap: int
    own: NDArray[np.int64]
    _measure: ClassVar[str] = "num_slots"
