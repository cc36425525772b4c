"""From a plan file straight to a loader: each rank reads the samples that it will run, and nothing is exchanged."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

from balancer.errors import InputError, PlanError
from balancer.io.plan_reader import PlanFile, PlanStep, open_plan
from balancer.plan.dispatch_plan import DispatchPlan
from balancer.planning.rank_batches import RankBatches
from balancer.problem.micro_batches import MicroBatches
from balancer.problem.phases import SINGLE_PHASE
from balancer.problem.sequence_groups import LongShort, SequenceGroups
from balancer.problem.settings import slots_from_json
from solvers.arguments import as_count

__all__ = ["PlannedBatchSampler"]


Held = tuple[NDArray[np.int64], NDArray[np.int32], int]  # rows, their slots, and how many slots there are


class PlannedBatchSampler(RankBatches, Sampler[list[int]]):
    """Yields, step by step, the rows of the log that one rank runs; the `batch_sampler` of a torch DataLoader.

    Parameters
    ----------
    plan : path, DispatchPlan, or sequence of DispatchPlan
        A plan file, of which one phase and the placements alone are read; or plans of consecutive steps, whose samples
        are consecutive rows.
    rank : int or None
        None: the batches of all ranks in turn, for ``accelerator.prepare`` to deal out.
    phase : str, optional
        Of a plan file of several phases.
    micro_batches : bool
        Yield every micro-batch by itself, as many a step on every rank. Some may be empty.
    start_step : int
        Where to begin the first epoch: to resume, the number of steps done. Or load the sampler's state.

    Raises
    ------
    InputError, PlanError
        A plan that cannot be used. What it cannot know before reading, it raises while iterating.

    Notes
    -----
    A plan file of several epochs yields one of them an iteration, which `set_epoch` says; behind the last comes the
    first again, as the one epoch of other plans does.

    A rank may have no sample in a step: it yields an empty list, for which a DataLoader calls its ``collate_fn`` with
    one. Where ranks share samples, each reads the whole of those that it shares: see `plan.pieces_on_rank`.
    """

    def __init__(
        self,
        plan: str | os.PathLike[str] | DispatchPlan | Iterable[DispatchPlan],
        rank: int | None,
        phase: str | None = None,
        micro_batches: bool = False,
        start_step: int = 0,
    ) -> None:
        if start_step < 0:
            raise ValueError(f"start_step must be >= 0, got {start_step}")
        self.phase, self.micro_batches = phase, micro_batches
        self.start_step = self._start_step = start_step
        self._slots: MicroBatches | SequenceGroups | None = None
        self._shared: dict[str, LongShort] = {}
        self._phases = [SINGLE_PHASE]
        self._epochs = 1
        self._source: PlanFile | list[DispatchPlan]
        if isinstance(plan, str | os.PathLike):
            self._source = open_plan(plan)
            description = self._source.description
            try:
                steps, num_ranks = description.get("steps"), sum(description["topology"]["node_sizes"])
                if given := description["settings"]["micro_batches"]:
                    self._slots = slots_from_json(given)
                self._phases = [phase["name"] for phase in description["phases"]]
                sizes = {phase["name"]: phase.get("sequence_parallel") for phase in description["phases"]}
                self._shared = {name: LongShort.of(size) for name, size in sizes.items() if size is not None}
                self._epochs = as_count("epochs", description.get("epochs", 1))
                self.num_steps = None if steps is None else steps // self._epochs
            except (KeyError, TypeError, ValueError) as error:
                raise InputError(f"{plan}: its description is not one this version reads: {error!r}") from None
        else:
            self._source = plans = [plan] if isinstance(plan, DispatchPlan) else list(plan)
            self.num_steps = len(plans)
            num_ranks = plans[0].num_ranks if plans else as_count("rank", (rank or 0) + 1)
        super().__init__(num_ranks, rank)

    def _micro_steps(self, epoch: int, ranks: Sequence[int], done: int) -> Iterator[tuple[int, list[list[int]]]]:
        start, self._start_step = self._start_step, 0
        steps = self.num_steps or 0
        first = epoch % self._epochs * steps
        number = 0
        for step, held in enumerate(islice(self._steps(ranks), first, None if self._epochs == 1 else first + steps)):
            for batches in self._cut(held):
                if number >= done and step >= start:
                    yield number, batches
                number += 1

    def _cut(self, held: list[Held]) -> Iterator[list[list[int]]]:
        """Yield the batches of each rank that a step has."""
        if not self.micro_batches:
            yield [rows.tolist() for rows, _, _ in held]
            return
        num_slots = held[0][2]
        bounds = [np.searchsorted(slots, np.arange(num_slots + 1)) for _, slots, _ in held]
        for slot in range(num_slots):
            pairs = zip(held, bounds, strict=True)
            yield [rows[cuts[slot] : cuts[slot + 1]].tolist() for (rows, _, _), cuts in pairs]

    def __len__(self) -> int:
        if self.micro_batches or self.num_steps is None:
            raise TypeError("the number of micro-batches is known only by reading the plan")
        ahead = self.num_steps - (self.start_step if self.epoch == 0 else 0)
        return max(0, ahead) * (self.num_ranks if self.rank is None else 1)

    @cached_property
    def _identity(self) -> dict[str, Any]:
        if isinstance(self._source, PlanFile):
            digest = self._source.description.get("digest")
        else:
            digest = hashlib.sha256("".join(plan.digest() for plan in self._source).encode()).hexdigest()
        return {"plan": digest, "phase": self.phase, "micro_batches": self.micro_batches}

    def _steps(self, ranks: Sequence[int]) -> Iterator[list[Held]]:
        """Yield of each step what each rank has: its rows in dispatch order, their slots, and how many there are."""
        if isinstance(self._source, PlanFile):
            yield from self._steps_of_file(self._source, ranks)
            return
        first = 0
        for plan in self._source:
            held = [plan.samples_on_rank(rank) for rank in ranks]
            slots = [plan.slot_of_sample[np.searchsorted(plan.kept, rows)] for rows in held]
            yield [(rows + first, of_rows, plan.num_slots) for rows, of_rows in zip(held, slots, strict=True)]
            first += plan.batch_size

    def _steps_of_file(self, file: PlanFile, ranks: Sequence[int]) -> Iterator[list[Held]]:
        """Yield the same of a file, in which a step leaves no rows if all its samples are left out."""
        there = ", ".join(self._phases)
        if self.phase is None and len(self._phases) > 1:
            raise InputError(f"{file.path}: has phases {there}; say which")
        if self.phase not in (None, *self._phases):
            raise InputError(f"{file.path}: has no phase {self.phase!r}; there are {there}")
        done, may_lack = 0, self._slots is not None and self._slots.over_long == "drop"
        for number, phases in file.whole_steps():
            if number < done or (number > done and not may_lack):
                raise PlanError(f"{file.path}: step {done} must come next, got step {number}")
            yield from (self._rows({}, ranks) for _ in range(done, number))
            yield self._rows(phases, ranks)
            done = number + 1
        if may_lack and self.num_steps is not None:
            yield from (self._rows({}, ranks) for _ in range(done, self.num_steps * self._epochs))

    def _rows(self, phases: Mapping[str, PlanStep], ranks: Sequence[int]) -> list[Held]:
        """Return what ranks have of a step; its phases have as many micro-batches as the one with most.

        But those whose items ranks share have a slot a degree.
        """
        others = (run for name, run in phases.items() if name not in self._shared)
        used = 1 + max((int(run.slot.max(initial=0)) for run in others), default=0)
        cut = self._shared.get(self.phase or "", self._slots)
        num_slots = used if cut is None else cut.slots_for(used)
        step = next(iter(phases.values()), None) if self.phase is None else phases.get(self.phase)
        if step is None:
            return [(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32), num_slots) for _ in ranks]
        held = []
        for rank in ranks:
            mine = np.flatnonzero(step.rank == rank)
            mine = mine[np.argsort(step.position[mine], kind="stable")]
            if step.group is not None:  # of a zigzag, both pieces of a sample
                again = (step.sample[mine][1:] == step.sample[mine][:-1]) & (step.group[mine][1:] >= 0)
                again &= self.phase not in self._shared  # whose pieces are of several items of a sample
                mine = mine[np.append(True, ~again)[: len(mine)]]
            held.append((step.sample[mine], step.slot[mine], num_slots))
        return held
