"""What a packer returns: groups under a cap, and the proof of how many any packing needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from solvers.types import Proven


@dataclass(frozen=True, slots=True, eq=False)
class PackingResult(Proven):
    """Items in as few groups as were found to fit, with a certificate.

    Attributes
    ----------
    group_of_item : int32[n], read-only
        The group of each item, in the order in which the items were given. No group is empty.
    loads : int64[num_groups], read-only
        The load of each group, at most `cap`.
    cap : int
        The cap that was asked for.
    lower_bound : int
        Proven: no packing under the same constraints has fewer groups.
    bound_name : str
        The argument that proves `lower_bound`; see :mod:`solvers.bounds`.
    status : SolveStatus
        ``OPTIMAL`` if and only if ``num_groups == lower_bound``.
    method : str
        The method that found the groups, or ``"dealing"`` where dealing out anew found fewer.
    runtime_s : float
        Seconds from call to return; the one field that differs between runs, so ``==`` leaves it out.
    """

    group_of_item: NDArray[np.int32]
    loads: NDArray[np.int64]
    cap: int
    method: str
    _measure: ClassVar[str] = "num_groups"

    @property
    def num_groups(self) -> int:
        """Number of groups; 0 if and only if there are no items."""
        return len(self.loads)
