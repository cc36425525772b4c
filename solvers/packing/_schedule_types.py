"""What a micro-batch scheduler returns: a rank and a slot for every sample, and the proof of how even they can be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from solvers.types import Proven

SYNCS = ("micro_batch", "step", "pipeline")
"""Where ranks wait for each other: in every micro-batch, once a step, or along a pipeline."""

OVER_LONG = ("error", "own")


class CutResult(Proven):
    """What all results with micro-batches share."""

    __slots__ = ()

    slot_loads: NDArray[np.int64]

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.slot_loads)


@dataclass(frozen=True, slots=True, eq=False)
class ScheduleResult(CutResult):
    """Micro-batches of every rank, with a certificate.

    Attributes
    ----------
    rank_of_item : int32[n], read-only
        The rank of each sample, in the order in which the samples were given.
    slot_of_item : int32[n], read-only
        The slot in which that rank computes it.
    num_slots : int
        K, the same on every rank.
    slot_loads : int64[R, K], read-only
        The cost of each micro-batch.
    slot_tokens : int64[R, K], read-only
        The tokens of each micro-batch: at most `cap`, but for the samples in `own`.
    cap : int
        The cap that was asked for.
    sync : str
        ``"micro_batch"``, ``"step"`` or ``"pipeline"``.
    value : int
        What is minimised: see :func:`schedule_micro_batches`.
    perfect : int
        What `value` would be if all ranks (``"pipeline"``: all micro-batches of the K slots) were perfectly even.
    lower_bound : int
        Proven: no schedule under the same constraints has a smaller value. It holds for every number of slots if
        that was free, and for this one if it was not.
    bound_name : str
        The argument that proves `lower_bound`; see :mod:`solvers.packing._schedule_bounds`.
    status : SolveStatus
        ``OPTIMAL`` if and only if ``value == lower_bound``.
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
    sync: str
    value: int
    perfect: int
    own: NDArray[np.int64]
    _measure: ClassVar[str] = "value"
