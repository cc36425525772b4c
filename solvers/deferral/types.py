"""What deferral returns: the step of each item, and what proves how far the steps are from the best there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from solvers.types import Proven

MOST_STEPS = 768
"""Steps that the bound covers together: its memory and time grow with the square. Longer logs are covered block by
block; rows whose windows straddle blocks are left out, and the bound stays valid."""


@dataclass(frozen=True, slots=True, eq=False)
class DeferralResult(Proven):
    """Items in steps, with a certificate.

    Attributes
    ----------
    step_of_item : int64[n], read-only
        The step of each item, in the order in which the items were given.
    floors : int64[T], read-only
        What the makespan of each step is at least, whatever the packing into bins: the largest height, the mean volume
        of a bin, and, of whole items, the two smallest of the num_bins + 1 largest together.
    total : int
        The sum of `floors`: what was to be small.
    start_total : int
        The same sum of the steps that the search began with.
    multipliers : int64[2, T], read-only
        Prices of a token and of an item in each step, in units of ``2**-multiplier_bits``: with these, and nothing
        else, :func:`solvers.check_deferral` proves the bound again.
    multiplier_bits : int
    lower_bound : int
        Proven: in no steps that keep windows and limits is the sum of all makespans smaller.
    bound_name : str
        ``"cover"`` (tall items must share steps), or ``"mean"`` where all volume together proves as much.
    status, runtime_s
        As of :class:`solvers.PartitionResult`; ``OPTIMAL`` if and only if ``total == lower_bound``.
    """

    step_of_item: NDArray[np.int64]
    floors: NDArray[np.int64]
    total: int
    start_total: int
    multipliers: NDArray[np.int64]
    multiplier_bits: int
    _measure: ClassVar[str] = "total"
