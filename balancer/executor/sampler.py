"""From a plan file straight to a loader: each rank reads the samples that it will run, and nothing is exchanged."""

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, islice, pairwise

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

from balancer.errors import InputError, PlanError
from balancer.io.plan_reader import PlanFile, PlanStep, open_plan
from balancer.plan.dispatch_plan import DispatchPlan
from balancer.problem.micro_batches import MicroBatches
from balancer.problem.phases import SINGLE_PHASE
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
        self._slots: MicroBatches | None = None
        self._phases = [SINGLE_PHASE]
        self._source: PlanFile | list[DispatchPlan]
        if isinstance(plan, str | os.PathLike):
            self._source = open_plan(plan)
            description = self._source.description
            try:
                self.num_steps, num_ranks = description.get("steps"), sum(description["topology"]["node_sizes"])
                if given := description["settings"]["micro_batches"]:
                    self._slots = MicroBatches(**given)
                self._phases = [phase["name"] for phase in description["phases"]]
            except (KeyError, TypeError, ValueError) as error:
                raise InputError(f"{plan}: its description is not one this version reads: {error!r}") from None
        else:
            self._source = plans = [plan] if isinstance(plan, DispatchPlan) else list(plan)
            self.num_steps = len(plans)
            num_ranks = plans[0].num_ranks if plans else as_count("rank", rank + 1)
        if not 0 <= rank < num_ranks:
            raise ValueError(f"rank must be within 0..{num_ranks - 1}, got {rank}")

    def __iter__(self) -> Iterator[list[int]]:
        for rows, slots, num_slots in islice(self._steps(), self.start_step, None):
            bounds = np.searchsorted(slots, np.arange(num_slots + 1)) if self.micro_batches else [0, len(rows)]
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
        """Yield the same of a file, in which a step leaves no rows if all its samples are left out."""
        there = ", ".join(self._phases)
        if self.phase is None and len(self._phases) > 1:
            raise InputError(f"{file.path}: has phases {there}; say which")
        if self.phase not in (None, *self._phases):
            raise InputError(f"{file.path}: has no phase {self.phase!r}; there are {there}")
        done, may_lack = 0, self._slots is not None and self._slots.over_long == "drop"
        for number, runs in groupby(file.steps(), key=lambda run: run.step):
            phases: dict[str, PlanStep] = {}
            for run in runs:
                if run.phase in phases:
                    raise PlanError(f"{file.path}: step {number}: phase {run.phase!r} stands there twice")
                phases[run.phase] = run
            if number < done or (number > done and not may_lack):
                raise PlanError(f"{file.path}: step {done} must come next, got step {number}")
            yield from (self._rows({}) for _ in range(done, number))
            yield self._rows(phases)
            done = number + 1
        if may_lack and self.num_steps is not None:
            yield from (self._rows({}) for _ in range(done, self.num_steps))

    def _rows(self, phases: Mapping[str, PlanStep]) -> tuple[NDArray[np.int64], NDArray[np.int32], int]:
        """Return what this rank has of a step; its phases have as many micro-batches as the one with most."""
        used = 1 + max((int(run.slot.max(initial=0)) for run in phases.values()), default=0)
        num_slots = used if self._slots is None else self._slots.slots_for(used)
        step = next(iter(phases.values()), None) if self.phase is None else phases.get(self.phase)
        if step is None:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32), num_slots
        mine = np.flatnonzero(step.rank == self.rank)
        mine = mine[np.argsort(step.position[mine], kind="stable")]
        return step.sample[mine], step.slot[mine], num_slots
