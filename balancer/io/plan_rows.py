"""Rows of a plan as arrays, with nothing of file formats: what plans are put together from."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solvers.types import Record

GAP = {"device": np.int32, "backward": np.int32}
"""Columns of what runs in gaps."""

GAPS = "gaps"
"""The name of the rows of what runs in a phase's gaps, after the phase's and a colon."""


@dataclass(frozen=True, slots=True, eq=False)
class PlanStep(Record):
    """The rows of one phase of one step, in file order: arrays[n], read-only, None where a plan has none."""

    step: int
    phase: str
    sample: NDArray[np.int64]
    rank: NDArray[np.int32]
    slot: NDArray[np.int32]
    position: NDArray[np.int32]
    length: NDArray[np.int64] | None = None
    home_rank: NDArray[np.int32] | None = None
    item: NDArray[np.int32] | None = None
    start: NDArray[np.int64] | None = None
    stop: NDArray[np.int64] | None = None
    group: NDArray[np.int32] | None = None
    device: NDArray[np.int32] | None = None
    backward: NDArray[np.int32] | None = None
    nominal_step: NDArray[np.int64] | None = None
