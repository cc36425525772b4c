"""Tasks beside a pipeline as a caller asks for them: what solvers and checkers begin from."""

from dataclasses import dataclass, replace
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["TaskRequest"]


@dataclass(frozen=True, slots=True, eq=False)
class TaskRequest:
    """Tasks and the rules for them, unchecked; see :func:`solvers.pipeline.multiplex`."""

    name: str  # the argument that `owner` is: ``"task_slot"`` or ``"task_item"``
    owner: ArrayLike  # int64[t]
    forward: ArrayLike  # int64[t]
    backward: ArrayLike  # int64[t]
    window: SupportsIndex
    # What a caller may leave out
    size: ArrayLike | None = None
    after: ArrayLike | None = None
    held_cap: ArrayLike | None = None
    devices: ArrayLike | str = "any"

    def of_slots(self, slots: ArrayLike, chosen: NDArray[np.int64]) -> "TaskRequest":
        """Return the tasks with these numbers, each of the slot given."""
        size, after = (None if each is None else np.asarray(each)[chosen] for each in (self.size, self.after))
        return replace(
            self, name="task_slot", owner=slots, forward=np.asarray(self.forward)[chosen],
            backward=np.asarray(self.backward)[chosen], size=size, after=after,
            devices=self.devices if isinstance(self.devices, str) else np.asarray(self.devices)[chosen],
        )  # fmt: skip
