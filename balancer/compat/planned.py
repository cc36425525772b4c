"""From a plan file straight to a loader: each rank reads the samples that it will run, and no sample is exchanged."""

from __future__ import annotations

import hashlib
import json
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer.compat.rank_batches import Place, RankBatches
from balancer.errors import InputError, PlanError
from balancer.io.plan_reader import PlanFile, open_plan
from balancer.io.plan_rows import PlanStep
from balancer.offline.claims import Claims
from balancer.offline.order import Order
from balancer.plan.dispatch_plan import DispatchPlan
from balancer.problem.cuts import WHOLE_SHARES, Cut, cut_from_json
from balancer.problem.cuts.sequence_groups import LongShort
from balancer.problem.phases import SINGLE_PHASE
from solvers.arguments import as_integer
from solvers.errors import ArgumentError, ArgumentTypeError, UsageError

__all__ = ["PlannedBatchSampler"]


_NAMES = ("file", "format", "unit")  # of a log's files, whose contents are what counts

Held = tuple[NDArray[np.int64], NDArray[np.int32], int]  # rows, their slots, and how many slots there are


class PlannedBatchSampler(RankBatches):
    """Yields, step by step, the rows of the log that one rank runs; the `batch_sampler` of a torch DataLoader.

    Parameters
    ----------
    plan : path, DispatchPlan, or sequence of DispatchPlan
        A plan file, of which one phase and the placements alone are read; or plans of consecutive steps, whose samples
        are consecutive rows.
    rank : int or str
        ``"all"``: the batches of all ranks in turn, for ``accelerator.prepare`` to deal out.
    phase : str, optional
        Of a plan file of several phases.
    micro_batches : bool
        Yield every micro-batch by itself, as many a step on every rank. Some may be empty.
    start_step : int
        Where to begin the first epoch: to resume, the number of steps done; batches are counted from there. Or load
        the sampler's state: that of any number of ranks, if a step of this plan begins where it stands. Of one for
        which that is so, ``balancer plan LOG --continue PLAN --at-step S`` plans the rest.

    Raises
    ------
    InputError, PlanError
        A plan that cannot be used. What it cannot know before reading, it raises while iterating.

    Notes
    -----
    A plan file of several epochs yields one of them an iteration, the next or that of `set_epoch`; behind the last
    comes the first again, as the one epoch of other plans does.

    A rank may have no sample in a step: it yields an empty list, for which a DataLoader calls its ``collate_fn`` with
    one. Where ranks share samples, each reads the whole of those that it shares: see `plan.pieces_on_rank`.
    """

    def __init__(
        self,
        plan: str | os.PathLike[str] | DispatchPlan | Iterable[DispatchPlan],
        rank: int | str,
        phase: str | None = None,
        micro_batches: bool = False,
        start_step: int = 0,
    ) -> None:
        self.phase, self.micro_batches = phase, micro_batches
        self._slots: Cut = WHOLE_SHARES
        self._shared: dict[str, LongShort] = {}
        self._phases = [SINGLE_PHASE]
        self._source: PlanFile | list[DispatchPlan]
        if isinstance(plan, str | os.PathLike):
            self._source = open_plan(plan)
            description = self._source.description
            try:
                num_ranks = sum(description["topology"]["node_sizes"])
                self._slots = cut_from_json(description["settings"].get("cut"))
                self._phases = [phase["name"] for phase in description["phases"]]
                sizes = {phase["name"]: phase.get("sequence_parallel") for phase in description["phases"]}
                self._shared = {name: LongShort.from_size(size) for name, size in sizes.items() if size is not None}
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise InputError(f"{plan}: its description is not one this version reads: {error!r}") from None
            self._order = Claims(self._source).order
        else:
            self._source = plans = _as_plans(plan)
            counts = tuple(each.num_samples for each in plans)
            self._order = Order(sum(counts), 0, step_samples=(counts,))
            num_ranks = plans[0].num_ranks
            if phase is not None:
                raise ArgumentError("phase", "be left out: a DispatchPlan is of one", repr(phase))
        super().__init__(num_ranks, rank)
        start_step = as_integer("start_step", start_step)
        if start_step > self.num_steps:
            raise ArgumentError("start_step", f"be <= {self.num_steps}, the steps of an epoch", start_step)
        self._begin_at(Place(self._order.first_epoch, self._order.bounds(0)[start_step]))

    @property
    def num_steps(self) -> int:
        """Steps of an epoch; of a plan that goes on where another was left, of what it has of the first."""
        return self._order.steps_in(0)

    @property
    def samples_per_step(self) -> int:
        """Samples of a full global batch; 0 where plans are not of a file."""
        return self._order.samples_per_step

    def _beginning(self, epoch: int) -> Place:
        return Place(epoch, self._order.bounds(self._number(epoch))[0])

    def _number(self, epoch: int) -> int:
        """Return which epoch of the plan an epoch is; a plan that goes on where another was left is run once."""
        order = self._order
        last = order.first_epoch + order.epochs - 1
        if order.continues and not order.first_epoch <= epoch <= last:
            raise UsageError(
                "epoch must be within {first}..{last}, as the plan goes on where another was left, got {epoch}",
                "plan the whole log for these ranks for other epochs", first=order.first_epoch, last=last, epoch=epoch,
            )  # fmt: skip
        return order.number(epoch)

    def _loaded(self, at: Place, window: Any) -> Place:
        bounds = self._order.bounds(self._number(at.epoch))
        if at.samples < bounds[-1] and at.samples not in bounds:
            raise UsageError(
                "the state stands behind sample {samples} of epoch {epoch}, where no step of this plan begins",
                "plan what is left for these ranks: balancer plan LOG --continue PLAN --at-step S --ranks {ranks}, "
                "where PLAN is the plan that was trained, and S the steps of it that were",
                samples=at.samples, epoch=at.epoch, ranks=self.num_replicas,
            )  # fmt: skip
        return at

    def _steps(self, at: Place, ranks: Sequence[int]) -> Iterator[tuple[Place, list[list[list[int]]]]]:
        for behind, held in self._held(at, ranks):
            yield behind, list(self._cut(held))

    def _places(self, at: Place) -> Iterator[tuple[Place, int]]:
        if self.micro_batches:
            return ((behind, held[0][2]) for behind, held in self._held(at, [0]))
        bounds = self._order.bounds(self._number(at.epoch))
        return ((Place(at.epoch, stop), 1) for start, stop in pairwise(bounds) if start >= at.samples)

    def _held(self, at: Place, ranks: Sequence[int]) -> Iterator[tuple[Place, list[Held]]]:
        """Yield the place behind each step from there on, and what of the step is whose."""
        number = self._number(at.epoch)
        bounds, first = self._order.bounds(number), self._order.first_step(number)
        ends = bounds[1 + bisect_left(bounds[:-1], at.samples) :]
        last = first + len(bounds) - 1
        steps = self._steps_between(last - len(ends), last, ranks)
        for stop in ends:
            if (held := next(steps, None)) is None:
                raise PlanError(f"the plan lacks the step that ends at sample {stop} of epoch {at.epoch}")
            yield Place(at.epoch, stop), held

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
        if self.micro_batches:
            raise TypeError("the number of micro-batches is known only by reading the plan")
        return super().__len__()

    @cached_property
    def _data(self) -> dict[str, Any]:
        """What the rows are: the log's files where it is known, else the lengths."""
        if not isinstance(self._source, PlanFile):
            found = hashlib.sha256(b"".join(plan.lengths.tobytes() for plan in self._source)).hexdigest()
            return {"lengths": found, "phase": self.phase}
        description = self._source.description
        sources = description.get("sources")
        if sources is None or "across_steps" in description:  # what ran early or late is this plan's alone
            return {"plan": description.get("digest"), "phase": self.phase}
        contents = [{name: value for name, value in source.items() if name not in _NAMES} for source in sources]
        found = hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()
        return {"log": found, "phase": self.phase, "shuffle": self._order.shuffle}

    def _order_of(self, epoch: int) -> dict[str, Any]:
        if self._order.shuffle is None:
            return self._data
        return self._data | {"order": self._order.first_epoch + self._number(epoch)}

    def _steps_between(self, begin: int, end: int, ranks: Sequence[int]) -> Iterator[list[Held]]:
        """Yield of some steps what each rank has: its rows in dispatch order, their slots, and how many there are."""
        if isinstance(self._source, PlanFile):
            yield from self._steps_of_file(self._source, begin, end, ranks)
            return
        first = self._order.bounds(0)[begin]
        for plan in self._source[begin:end]:
            held = [plan.samples_on_rank(rank) for rank in ranks]
            slots = [plan.slot_of_sample[rows] for rows in held]
            yield [(rows + first, of_rows, plan.num_slots) for rows, of_rows in zip(held, slots, strict=True)]
            first += plan.num_samples

    def _steps_of_file(self, file: PlanFile, begin: int, end: int, ranks: Sequence[int]) -> Iterator[list[Held]]:
        """Yield the same of a file."""
        there = ", ".join(self._phases)
        if self.phase is None and len(self._phases) > 1:
            raise InputError(f"{file.path}: has phases {there}; say which, such as phase={self._phases[-1]!r}")
        name = self._phases[0] if self.phase is None else self.phase
        if name not in self._phases:
            raise InputError(f"{file.path}: has no phase {name!r}; there are {there}")
        for done, (number, phases) in enumerate(file.whole_steps(begin, end), begin):
            if number != done:
                raise PlanError(f"{file.path}: step {done} must come next, got step {number}")
            yield self._rows(name, phases, ranks)

    def _rows(self, name: str, phases: Mapping[str, PlanStep], ranks: Sequence[int]) -> list[Held]:
        """Return what ranks have of a step's phase; all phases have as many micro-batches as the one with most.

        But those whose items ranks share have a slot a degree.
        """
        used = [1 + int(run.slot.max(initial=0)) for each, run in phases.items() if each not in self._shared]
        num_slots = self._shared.get(name, self._slots).slots_for(max(used, default=1))
        step, held = phases.get(name), []
        for rank in ranks:
            if step is None:
                held.append((np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32), num_slots))
                continue
            mine = np.flatnonzero(step.rank == rank)
            mine = mine[np.argsort(step.position[mine], kind="stable")]
            if step.group is not None and name not in self._shared:
                # Of a zigzag both pieces of a sample are rows of the file: it is read once. Shared phases have several
                # items of a sample.
                again = (step.sample[mine][1:] == step.sample[mine][:-1]) & (step.group[mine][1:] >= 0)
                mine = mine[np.append(True, ~again)[: len(mine)]]
            held.append((step.sample[mine], step.slot[mine], num_slots))
        return held


def _as_plans(given: Any) -> list[DispatchPlan]:
    plans = [given] if isinstance(given, DispatchPlan) else list(given) if isinstance(given, Iterable) else []
    if not plans or not all(isinstance(plan, DispatchPlan) for plan in plans):
        raise ArgumentTypeError("plan", "be a path, a DispatchPlan, or one or more of these", repr(given)[:60])
    for step, plan in enumerate(plans):
        if plan.num_ranks != plans[0].num_ranks:
            raise ArgumentError("plan", f"have {plans[0].num_ranks} ranks, as the first has", plan.num_ranks, step)
    return plans
