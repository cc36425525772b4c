"""The border of this room: what stages take, checked once, and tables of loads and sizes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers.arguments import as_costs, as_integer
from solvers.errors import ArgumentError, UsageError
from solvers.groups import read_only
from solvers.pipeline._kernels import durations_of_kernel
from solvers.pipeline._request import PipelineRequest

Ints = NDArray[np.int64]
MOST_TIME = 2**58
"""All ops of a step together take less, so that no sum of theirs leaves int64."""


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """What ops take."""

    # int64[M, 2 S], read-only: time of one unit of each module's work in the forward of each stage, then in the
    # backward
    unit: Ints
    fixed: Ints  # int64[2 S], read-only: what each takes besides, in every slot
    hop: int  # what passes between the end of an op and the start of the next stage's on another device
    forward_only: int  # so many first stages have no backward: all that is in them and before them takes none

    @property
    def num_stages(self) -> int:
        """S."""
        return len(self.fixed) // 2

    @classmethod
    def of(
        cls, forward: ArrayLike, backward: ArrayLike, forward_overhead: ArrayLike | None,
        backward_overhead: ArrayLike | None, hop: int,
    ) -> "Stages":  # fmt: skip
        """Check. Raises TypeError or ValueError that name argument, entry and rule."""
        ahead = as_table("forward", forward)
        modules, stages = ahead.shape
        if modules < 1 or stages < 1:
            raise ArgumentError("forward", "have the shape (M, S), a row for each module", ahead.shape)
        back = as_table("backward", backward, (modules, stages), "forward")
        fixed = [
            np.zeros(stages, dtype=np.int64) if given is None else as_costs(given, name)[0]
            for name, given in (("forward_overhead", forward_overhead), ("backward_overhead", backward_overhead))
        ]
        for name, values in zip(("forward_overhead", "backward_overhead"), fixed, strict=True):
            if len(values) != stages:
                raise ArgumentError(name, f"hold one for each of {stages} stages", len(values))
        trained = (back.max(axis=0) + fixed[1]) > 0
        lead = int(np.argmax(trained)) if trained.any() else stages
        return cls(read_only(np.hstack([ahead, back])), read_only(np.concatenate(fixed)), as_integer("hop", hop), lead)

    @classmethod
    def of_request(cls, asked: PipelineRequest) -> "Stages":
        """Check those of a request."""
        return cls.of(asked.forward, asked.backward, asked.forward_overhead, asked.backward_overhead, asked.hop)

    def check_sums(self, totals: Ints, num_slots: int) -> None:
        """Raise UsageError where all ops of `num_slots` slots with these loads together take too long."""
        busy = sum(int(t) * int(u) for t, u in zip(totals, self.unit.sum(axis=1, dtype=object), strict=True))
        every = sum(self.fixed.tolist()) + 2 * self.num_stages * self.hop
        if busy + num_slots * every >= MOST_TIME:
            raise UsageError(
                f"all forwards and backwards, overheads and hops together must be below 2**58, got "
                f"{busy + num_slots * every}: measure times in larger units"
            )

    def durations(self, loads: Ints) -> Ints:
        """Return what every op takes: int64[K, 2 S]."""
        durations = np.empty((len(loads), len(self.fixed)), dtype=np.int64)
        durations_of_kernel(read_only(loads), self.unit, self.fixed, durations)
        return durations


def as_table(name: str, values: ArrayLike, shape: tuple[int, int] | None = None, like: str = "") -> Ints:
    """Return int64 of two dimensions, non-negative, of a given shape if there is one."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(name, "be rows of integers", str(error)) from None
    if array.ndim != 2 or (shape is not None and array.shape != shape):
        rule = "have two dimensions" if shape is None else f"have the shape {shape} of {{{like}}}"
        raise ArgumentError(name, rule, array.shape)
    flat, _, _ = as_costs(array.reshape(-1), name)
    return read_only(flat.reshape(array.shape))
