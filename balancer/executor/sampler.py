"""From a plan file straight to a loader: each rank reads the samples that it will run, and nothing is exchanged."""

import os
from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

from balancer.errors import InputError, PlanError
from balancer.io.plan_reader import PlanFile, PlanStep, open_plan
from balancer.plan import DispatchPlan
from solvers.arguments import as_count

__all__ = ["PlannedBatchSampler"]


class PlannedBatchSampler(Sampler[list[int]]):
    """Yields, step by step, the rows of the log that one rank runs; the `batch_sampler` of a torch DataLoader.

    Parameters
    ----------
    plan : path, DispatchPlan, or sequence of DispatchPlan
        A plan file, of which one phase and the placements alone are read; or plans of consecutive steps, whose samples
        are consecutive rows.
    rank : int
    phase : str, optional
        Of a plan file of several phases.
    micro_batches : bool
        Yield every micro-batch by itself, as many a step on every rank. Some may be empty.
    start_step : int
        Where to begin: to resume, the number of steps done.

    Raises
    ------
    InputError, PlanError
        A plan that cannot be used. What it cannot know before reading, it raises while iterating.

    Notes
    -----
    A rank may have no sample in a step: it yields an empty list, for which a DataLoader calls its ``collate_fn`` with
    one.
    """

    def __init__(
        self,
        plan: str | os.PathLike[str] | DispatchPlan | Iterable[DispatchPlan],
        rank: int,
        phase: str | None = None,
        micro_batches: bool = False,
        start_step: int = 0,
    ) -> None:
        if start_step < 0:
            raise ValueError(f"start_step must be >= 0, got {start_step}")
        self.rank, self.phase, self.micro_batches, self.start_step = rank, phase, micro_batches, start_step
        self._slots: list[int] | None = None
        self._source: PlanFile | list[DispatchPlan]
        if isinstance(plan, str | os.PathLike):
            self._source = open_plan(plan)
            description = self._source.description
            self.num_steps, num_ranks = description.get("steps"), sum(description["topology"]["node_sizes"])
        else:
            self._source = plans = [plan] if isinstance(plan, DispatchPlan) else list(plan)
            self.num_steps = len(plans)
            num_ranks = plans[0].num_ranks if plans else as_count("rank", rank + 1)
        if not 0 <= rank < num_ranks:
            raise ValueError(f"rank must be within 0..{num_ranks - 1}, got {rank}")

    def __iter__(self) -> Iterator[list[int]]:
        for number, (rows, slots, num_slots) in enumerate(self._steps()):
            if number < self.start_step:
                continue
            if not self.micro_batches:
                yield rows.tolist()
                continue
            bounds = np.searchsorted(slots, np.arange(num_slots + 1)).tolist()
            for start, stop in pairwise(bounds):
                yield rows[start:stop].tolist()

    def __len__(self) -> int:
        if self.micro_batches or self.num_steps is None:
            raise TypeError("the number of micro-batches is known only by reading the plan")
        return max(0, int(self.num_steps) - self.start_step)

    def _steps(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32], int]]:
        """Yield of each step this rank's rows in dispatch order, their slots, and how many slots there are."""
        if isinstance(self._source, PlanFile):
            yield from self._steps_of_file(self._source)
            return
        first = 0
        for plan in self._source:
            slots = plan.slot_of_sample[plan.target.samples_on_rank(self.rank)]
            yield plan.samples_on_rank(self.rank) + first, slots, plan.num_slots
            first += plan.batch_size

    def _steps_of_file(self, file: PlanFile) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32], int]]:
        phases: set[str] = set()
        done = 0
        for step in file.steps():
            phases.add(step.phase)
            if self.phase is None and len(phases) > 1:
                raise InputError(f"{file.path}: has phases {', '.join(sorted(phases))}; say which")
            if self.phase is not None and step.phase != self.phase:
                continue
            if step.step != done:
                raise PlanError(f"{file.path}: step {done} must come next, got step {step.step}")
            done += 1
            yield self._rows(step)
        if done == 0 and self.num_steps:
            raise InputError(f"{file.path}: has no phase {self.phase!r}; there are {', '.join(sorted(phases))}")

    def _rows(self, step: PlanStep) -> tuple[NDArray[np.int64], NDArray[np.int32], int]:
        mine = np.flatnonzero(step.rank == self.rank)
        mine = mine[np.argsort(step.position[mine], kind="stable")]
        num_slots = int(step.slot.max()) + 1 if len(step.slot) else 1
        return step.sample[mine], step.slot[mine], num_slots
