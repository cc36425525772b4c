"""One phase's problem: a global batch, the ranks it is for, what it costs, and what the plan must keep to."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from balancer.cost import CostModel
from balancer.problem.batch import GlobalBatch
from balancer.problem.constraints import MAX_TOKENS, Constraints
from balancer.problem.cuts.micro_batches import MicroBatches
from balancer.problem.cuts.sequence_groups import LongShort, SequenceGroups
from balancer.problem.phases import SINGLE_PHASE
from balancer.problem.placement import Placement
from balancer.problem.smallest_cap import least_cap, needed
from balancer.problem.step_times import TimedStep
from balancer.problem.topology import Topology
from solvers.arguments import as_costs
from solvers.errors import InfeasibilityCertificate, InfeasibleError, Named, UsageError, Wording, as_words

__all__ = ["Affinity", "Problem", "check_together", "work_of_slots"]


class Affinity(NamedTuple):
    """How much of each sample already lies on which rank, sample after sample (CSR)."""

    offsets: NDArray[np.int64]  # int64[n + 1]
    ranks: NDArray[np.int32]  # int32[k]: ascending within a sample, each once
    volumes: NDArray[np.int64]  # int64[k]: bytes of the sample on that rank

    @classmethod
    def of(
        cls, sample: NDArray[np.int64], rank: NDArray[np.int32], volume: NDArray[np.int64], num_samples: int
    ) -> "Affinity":
        """Add up parts, given as sample, rank and volume of each, in any order. O(k log k)."""
        order = np.lexsort((rank, sample))
        sample, rank, volume = sample[order], rank[order], volume[order]
        first = np.ones(len(sample), dtype=bool)
        first[1:] = (sample[1:] != sample[:-1]) | (rank[1:] != rank[:-1])
        starts = np.flatnonzero(first)
        volumes = np.add.reduceat(volume, starts) if len(starts) else volume
        offsets = np.searchsorted(sample[starts], np.arange(num_samples + 1))
        return cls(offsets, rank[starts].astype(np.int32), volumes)

    @property
    def sample(self) -> NDArray[np.int64]:
        """Of which sample each part is: int64[k]."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    def of_samples(self, members: NDArray[np.int64], first_rank: int = 0) -> "Affinity":
        """Return that of some of the samples, with ranks counted from `first_rank`."""
        counts = np.diff(self.offsets)[members]
        offsets = np.concatenate(([0], np.cumsum(counts)))
        index = np.repeat(self.offsets[members] - offsets[:-1], counts) + np.arange(offsets[-1])
        return Affinity(offsets, self.ranks[index] - np.int32(first_rank), self.volumes[index])


_OF_SHARED = {
    "equal_counts": (
        "a shared item is one of each of its ranks, and counts would be equal where times are not",
        "a cap on counts is {max_samples_per_rank}",
    ),
    "every_rank_nonempty": (
        "a rank may have whole items, pieces of shared ones, or nothing", "give ranks that have nothing a dummy item",
    ),
    "min_samples_per_rank": (
        "it would count pieces of shared items, which no rank needs", "give ranks that have nothing a dummy item",
    ),
    "allowed_ranks": (
        "an item would be allowed in groups all of whose ranks are, which is not planned",
        "{group_size} keeps items within groups of ranks",
    ),
    "initial_loads": (
        "ranks of a group reach what they share at the same time, so that they must be alike",
        "leave it out, or plan whole items",
    ),
    "rank_speeds": (
        "ranks of a group share items in equal parts, so that they must be alike", "leave it out, or plan whole items",
    ),
}  # fmt: skip
"""What a constraint would mean where ranks share items, so that it is refused; and what to do instead."""

_KEPT_SHARED = ("keep_together", MAX_TOKENS, "max_samples_per_rank", "caps")


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """What the planner solves; :meth:`of` checks it."""

    batch: GlobalBatch
    topology: Topology
    cost: CostModel
    costs: NDArray[np.int64]  # int64[n]: cost of each sample
    constraints: Constraints = field(default_factory=Constraints)  # what each rank's share must keep to
    micro_batches: MicroBatches | SequenceGroups | None = None  # how the step is cut into slots; None: not at all
    volumes: NDArray[np.int64] | None = None  # int64[n]: what moving each sample takes; None: its length
    affinity: Affinity | None = None  # where the parts of each sample lie, if not all on its home rank
    work: NDArray[np.int64] | None = None  # int64[n, M]: with pipeline stages, each sample's work in each module
    timed: TimedStep | None = None  # where encoders run in the gaps of the pipeline, all that there is to do

    @property
    def cut_name(self) -> str:
        """The name of how the step is cut, by which registries have what it takes to plan and to place it."""
        if self.micro_batches is None:
            return "whole_shares"
        if self.work is None:
            return self.micro_batches.name
        return "pipelines" if self.timed is None else "gaps"

    @property
    def move_volumes(self) -> NDArray[np.int64]:
        """What moving each sample takes: int64[n]."""
        return self.batch.lengths if self.volumes is None else self.volumes

    @property
    def parts(self) -> Affinity:
        """Where each sample's parts lie: all of it on its home rank, unless an affinity says more."""
        if self.affinity is not None:
            return self.affinity
        volumes = self.move_volumes
        return Affinity(np.arange(len(volumes) + 1), self.batch.home.rank_of_sample, volumes)

    @classmethod
    def of(
        cls,
        batch: GlobalBatch,
        topology: Topology,
        cost: CostModel,
        constraints: Constraints | None = None,
        micro_batches: MicroBatches | SequenceGroups | None = None,
        work: NDArray[np.int64] | TimedStep | None = None,
    ) -> "Problem":
        """Cost the batch and check that the problem can have a solution.

        With pipeline stages, `work` is each sample's work in each module, of which there may be other phases', and the
        tasks in its gaps; by default the work of the only phase.

        Raises
        ------
        ValueError
            A cost or a sum of costs that does not fit int64, naming the sample; constraints that cannot be combined.
        InfeasibleError
            A token cap that a sample, or all of them together, exceed; it says by how much.
        """
        constraints = constraints or Constraints()
        check_together(cost, constraints.names(), micro_batches)
        if micro_batches is not None and len(over := micro_batches.over_long_samples(batch.lengths)):
            batch, constraints = (
                batch.without(over),
                constraints.of_samples(np.delete(np.arange(len(batch.lengths)), over)),
            )
        try:
            costs = cost.sample_costs(batch.lengths)
        except UsageError as error:
            raise error.in_words(Wording(numbers={"sample": lambda item: int(batch.numbers[item])})) from None
        if constraints.max_tokens_per_rank is not None and not isinstance(micro_batches, LongShort):
            _check_cap(batch, topology.num_ranks, constraints, cost)
        if isinstance(micro_batches, MicroBatches) and micro_batches.over_long == "error":
            remedies = (
                "{over_long='own'} gives such a sample a micro-batch of its own", "{over_long='drop'} leaves it out",
            )  # fmt: skip
            _check_longest(batch, "micro_batch_tokens", micro_batches.max_tokens, *remedies)
            stages = micro_batches.stages
            if stages is not None and stages.in_flight_tokens is not None:
                _check_longest(batch, "in_flight_tokens", stages.in_flight_tokens, "every device holds it at some time")
        if micro_batches is not None and micro_batches.stages is not None and work is None:
            micro_batches.stages.check_phases([SINGLE_PHASE])
            own = cost, batch.lengths, np.arange(len(costs))
            work = micro_batches.stages.work({SINGLE_PHASE: own}, len(costs))
        timed = work if isinstance(work, TimedStep) else None
        table = work.work if isinstance(work, TimedStep) else work
        return cls(batch, topology, cost, costs, constraints, micro_batches, work=table, timed=timed)

    def slot_loads(self, rank: NDArray[np.int32], slot: NDArray[np.int32], num_slots: int) -> NDArray[np.int64]:
        """Return what :meth:`MicroBatches.makespan` takes: each micro-batch's cost, or work in each module."""
        num_ranks = self.topology.num_ranks
        if self.work is None:
            return self.cost.slot_loads(self.costs, rank, slot, num_ranks, num_slots)
        return work_of_slots(self.work, rank, slot, num_ranks, num_slots)

    def of_samples(self, members: NDArray[np.int64]) -> "Problem":
        """Return the problem of some of the samples, on all ranks."""
        return self.of_ranks(members, 0, self.topology.num_ranks)

    def of_ranks(self, members: NDArray[np.int64], first_rank: int, num_ranks: int) -> "Problem":
        """Return the problem of some samples on `num_ranks` consecutive ranks, on which all of them lie."""
        node = self.topology.node_of_rank[first_rank : first_rank + num_ranks]
        home = Placement.by_sample_order(self.batch.home.rank_of_sample[members] - np.int32(first_rank), num_ranks)
        kept = self.constraints
        least = kept.min_samples_per_rank if len(members) >= kept.min_samples_per_rank * num_ranks else 0
        return Problem(
            GlobalBatch(self.batch.lengths[members], home),
            Topology(np.unique(node, return_counts=True)[1].tolist()),
            self.cost,
            self.costs[members],
            replace(kept.of_samples(members, slice(first_rank, first_rank + num_ranks)), min_samples_per_rank=least),
            None,
            None if self.volumes is None else self.volumes[members],
            None if self.affinity is None else self.affinity.of_samples(members, first_rank),
        )

    @classmethod
    def joint(cls, problems: "Sequence[Problem]") -> "Problem":
        """Return the problem of several phases' items as if they were one phase's, with additive costs of one unit."""
        for problem in problems:
            if not problem.cost.additive or problem.constraints.names():
                what = f"cost '{problem.cost}'" if not problem.cost.additive else ", ".join(problem.constraints.names())
                raise UsageError(f"phases cannot be balanced jointly under {what}", "use {mode='separate'}")
        first = problems[0]
        ranks = np.concatenate([problem.batch.home.rank_of_sample for problem in problems])
        lengths = np.concatenate([problem.batch.lengths for problem in problems])
        volumes = [problem.batch.lengths if problem.volumes is None else problem.volumes for problem in problems]
        costs = as_costs(np.concatenate([problem.costs for problem in problems]))[0]
        home = Placement.by_sample_order(ranks, first.topology.num_ranks)
        batch = GlobalBatch(lengths, home)
        return cls(batch, first.topology, first.cost, costs, volumes=np.concatenate(volumes))


def work_of_slots(
    work: NDArray[np.int64], rank: NDArray[np.int32], slot: NDArray[np.int32], num_ranks: int, num_slots: int
) -> NDArray[np.int64]:
    """Return each micro-batch's work in each module, int64[num_ranks, num_slots, M], from that of samples."""
    table = np.zeros((num_ranks * num_slots, work.shape[1]), dtype=np.int64)
    np.add.at(table, rank.astype(np.int64) * num_slots + slot, work)
    return table.reshape(num_ranks, num_slots, -1)


def check_together(cost: CostModel, names: Sequence[str], micro_batches: MicroBatches | SequenceGroups | None) -> None:
    """Raise ValueError if cost, constraints (by name) and micro-batches cannot be combined."""
    if isinstance(micro_batches, SequenceGroups):
        _check_shared(cost, names, micro_batches)
    elif micro_batches is not None and not cost.additive:
        raise UsageError(
            "{micro_batch_tokens} cannot be combined with cost '{cost}': what a padded row costs depends on the rows "
            "beside it; use a cost that adds up",
            cost=cost,
        )  # fmt: skip
    if micro_batches is not None and micro_batches.stages is not None and names:
        raise UsageError(
            "{stages} cannot be combined with {"
            + names[0]
            + "}: a replica's samples are chosen for its pipeline alone",
            "leave one of them out, or give {pipeline_stages} in place of {stages}",
        )
    refused = [name for name in names if name in ("initial_loads", "rank_speeds")]
    if micro_batches is not None and refused:
        raise UsageError(
            "{micro_batch_tokens} cannot be combined with {" + refused[0] + "}: ranks wait for each other in every "
            "slot, and schedules for ranks that differ are not made; leave one of them out"
        )
    kept = ("equal_counts", "max_tokens_per_rank", *(("min_samples_per_rank",) if cost.padded else ()))
    unsupported = [name for name in names if name not in kept]
    if not cost.additive and unsupported:
        raise UsageError(
            f"cost '{cost}' does not take {', '.join(f'{{{name}}}' for name in unsupported)}; with padding only "
            f"{as_words(kept[:-1])} and {as_words(kept[-1:])} can be kept"
        )


def _check_shared(cost: CostModel, names: Sequence[str], cut: SequenceGroups) -> None:
    """Raise ValueError if ranks cannot share samples under this cost or these constraints."""
    what = "{" + cut.name + "}"
    if not cost.additive:
        raise UsageError(
            what + " cannot be combined with cost '{cost}': what a padded row costs depends on the rows "
            "beside it; use a cost that adds up",
            cost=cost,
        )  # fmt: skip
    if isinstance(cut, LongShort):
        for name in names:
            if name not in _KEPT_SHARED:
                why, remedy = _OF_SHARED[name]
                raise UsageError(f"{what} cannot be combined with {{{name}}}: {why}", remedy)
        return
    refused = [name for name in names if name != "keep_together"]
    if MAX_TOKENS in refused:
        raise UsageError(
            "{max_tokens_per_rank} is a cap on a rank's step; {sequence_groups} have a cap of their own, on a rank's "
            "slot: give SequenceGroups(max_tokens_per_rank=...)"
        )
    if refused:
        raise UsageError(
            f"{what} cannot be combined with {{{refused[0]}}}: samples are on several ranks, which must be alike; "
            "leave one of them out"
        )


def _check_cap(batch: GlobalBatch, num_ranks: int, constraints: Constraints, cost: CostModel) -> None:
    cap = constraints.max_tokens_per_rank or 0
    if least_cap(batch.lengths, num_ranks) <= cap:
        return
    others = replace(constraints, max_tokens_per_rank=None, initial_loads=None, rank_speeds=None)
    keywords = others.solver_keywords(batch.lengths)
    remedy = needed(f"{{{MAX_TOKENS}}}", batch.lengths, num_ranks, cap, cost.padded, **keywords)
    _check_longest(batch, MAX_TOKENS, cap, remedy)
    total, room = sum(batch.lengths.tolist()), cap * num_ranks
    raise InfeasibleError(
        "the batch has {total} tokens, {excess} more than {count} ranks hold with {max_tokens_per_rank} = {cap}",
        InfeasibilityCertificate(MAX_TOKENS, range(len(batch.lengths)), range(num_ranks), total, room), remedy,
        total=total, excess=total - room, count=num_ranks, cap=cap,
    )  # fmt: skip


def _check_longest(batch: GlobalBatch, name: str, cap: int, *remedies: str) -> None:
    lengths = batch.lengths
    if len(lengths) and lengths.max() > cap:
        sample = int(np.argmax(lengths))
        raise InfeasibleError(
            f"{{sample}} has length {lengths[sample]}, {lengths[sample] - cap} more than {{{name}}} = {cap}",
            InfeasibilityCertificate(name, [sample], [], int(lengths[sample]), cap), remedies,
            sample=Named("sample", int(batch.numbers[sample])),
        )  # fmt: skip
