"""A loader that deals nothing out: every rank then draws the same mini-batches, and trains on all of the data."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from balancer.executor.fields import Column
from balancer.executor.gathering import Gathered
from balancer.problem.ragged import Ragged
from balancer.problem.setup import Setup
from solvers.errors import UsageError

__all__ = ["SameBatches"]

_STEPS = 3
"""So many steps alike are no chance, if lengths rise and fall in them."""


class SameBatches:
    """Watches from the first step on whether ranks draw the same lengths in the same order, until they first do not.

    Where loaders sort by length, ranks that share a sorted list out have like lengths, too: so lengths that only rise,
    or only fall, say nothing.
    """

    def __init__(self, num_ranks: int, meant: bool) -> None:
        self._num_ranks = num_ranks
        self._watches = num_ranks > 1 and not meant
        self._steps = 0
        self._turns: dict[str, _Turns] = {}

    def check(self, gathered: Gathered, setup: Setup) -> None:
        """Take in a step of all ranks; on every rank UsageError if it is one too many of the same."""
        if not self._watches:
            return
        lengths = {name: rows for name, rows in gathered.rows.items() if not gathered.specs[name].fixed}
        lengths |= {f"lengths[{name!r}]": column for name, column in gathered.columns.items()}
        cuts = list(pairwise(gathered.home.offsets.tolist()))
        parts = {name: [column[first:stop] for first, stop in cuts] for name, column in lengths.items()}
        if not all(_alike(of_ranks) for of_ranks in parts.values()):
            self._watches = False
            return
        keys = {f"lengths[{name!r}]" for phase in setup.phases for name in phase.columns_asked}
        for name, (first, *_) in parts.items():
            if name not in keys:
                self._turns.setdefault(name, _Turns()).follow(first.values if isinstance(first, Ragged) else first)
        # Steps without samples are alike, and say nothing.
        self._steps += len(gathered.home.samples) > 0
        if self._steps >= _STEPS and any(turns.both for turns in self._turns.values()):
            raise UsageError(
                "all {count} ranks drew the same mini-batches in the first {steps} steps, so that each of them trains "
                "on all of the data",
                (
                    "give the loader a torch.utils.data.DistributedSampler, or let the trainer prepare it",
                    "if it is meant, Dispatcher(..., same_batches=True)",
                ),
                count=self._num_ranks, steps=self._steps,
            )  # fmt: skip


def _alike(parts: Sequence[Column]) -> bool:
    """Whether all ranks have the same of a column, in order."""
    numbers = [np.concatenate((part.counts, part.values)) if isinstance(part, Ragged) else part for part in parts]
    return all(np.array_equal(each, numbers[0]) for each in numbers[1:])


class _Turns:
    """Whether numbers that come one after the other have risen, and have fallen."""

    def __init__(self) -> None:
        self._last: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._risen = self._fallen = False

    def follow(self, numbers: NDArray[np.int64]) -> None:
        differences = np.diff(np.concatenate((self._last, numbers)))
        self._risen |= bool((differences > 0).any())
        self._fallen |= bool((differences < 0).any())
        self._last = numbers[-1:] if len(numbers) else self._last

    @property
    def both(self) -> bool:
        return self._risen and self._fallen
