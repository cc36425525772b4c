"""What pipelines and tasks beside them are asked for, as a caller gives it: solvers and checkers begin from it."""

from dataclasses import KW_ONLY, dataclass, replace
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers.pipeline.orders import OpOrder


@dataclass(frozen=True, slots=True, eq=False)
class PipelineRequest:
    """Items for pipelines, what their stages take, and the rules; whoever solves it checks it, once.

    Attributes
    ----------
    work : int64[n, M]
        Work of each item in each module; where slots are given (:func:`solvers.pipeline.run_turns`), of each slot.
    num_replicas, num_slots : int
        Needed where slots are to be found, and not where they are given, or a result is checked.
    forward, backward, forward_overhead, backward_overhead, sizes, cap, in_flight_cap, order, chunks, hop, tied, \
slots_multiple_of, allow_empty
        As in :func:`solvers.schedule_pipeline`.
    """

    work: ArrayLike
    forward: ArrayLike
    backward: ArrayLike
    num_replicas: SupportsIndex | None = None
    num_slots: SupportsIndex | None = None
    _: KW_ONLY
    forward_overhead: ArrayLike | None = None
    backward_overhead: ArrayLike | None = None
    sizes: ArrayLike | None = None
    cap: ArrayLike | None = None
    in_flight_cap: ArrayLike | None = None
    order: str | OpOrder = "1f1b"
    chunks: SupportsIndex = 1
    hop: int = 0
    tied: bool = False
    slots_multiple_of: SupportsIndex = 1
    allow_empty: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class TaskRequest:
    """Tasks in the gaps of pipelines, and the rules for them; whoever solves it checks it, once.

    Attributes
    ----------
    owner : int64[t]
        The item of each task (its encoder work; an item may have none, or several); where slots are given, the slot.
    forward, backward : int64[t]
        What its forward and backward take on one device.
    window, size, after, held_cap, devices
        As in :func:`solvers.pipeline.multiplex`, where they are called ``task_size``, ``task_after``, ``task_devices``.
    """

    owner: ArrayLike
    forward: ArrayLike
    backward: ArrayLike
    window: SupportsIndex
    size: ArrayLike | None = None
    after: ArrayLike | None = None
    held_cap: ArrayLike | None = None
    devices: ArrayLike | str = "any"

    def of_slots(self, slots: ArrayLike, chosen: NDArray[np.int64]) -> "TaskRequest":
        """Return the tasks with these numbers, each of the slot given."""
        size, after = (None if each is None else np.asarray(each)[chosen] for each in (self.size, self.after))
        return replace(
            self, owner=slots, forward=np.asarray(self.forward)[chosen], backward=np.asarray(self.backward)[chosen],
            size=size, after=after,
            devices=self.devices if isinstance(self.devices, str) else np.asarray(self.devices)[chosen],
        )  # fmt: skip
