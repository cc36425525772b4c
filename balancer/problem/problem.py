"""One phase's problem: a global batch, the ranks it is for, what it costs, and what the plan must keep to."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from balancer.cost import CostModel
from balancer.problem.batch import GlobalBatch
from balancer.problem.constraints import CONSTRAINTS, Constraints, not_taken
from balancer.problem.cuts import WHOLE_SHARES, Cut
from balancer.problem.limits import HeldLimits
from balancer.problem.phases import SINGLE_PHASE
from balancer.problem.placement import Placement
from balancer.problem.step_times import TimedStep
from balancer.problem.topology import Topology
from solvers.arguments import as_costs
from solvers.errors import UsageError, as_words


class Affinity(NamedTuple):
    """How much of each sample already lies on which rank, sample after sample (CSR)."""

    offsets: NDArray[np.int64]  # int64[n + 1]
    ranks: NDArray[np.int32]  # int32[k]: ascending within a sample, each once
    volumes: NDArray[np.int64]  # int64[k]: bytes of the sample on that rank

    @classmethod
    def from_parts(
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

    def prices(self, node_of_rank: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
        """Return each sample's home, and what moves more where it lies elsewhere: in that node, and on another node.

        Home is the rank that holds most of the sample, of the node that holds most; other ranks of that node, and other
        nodes, have an even part of the rest. What lies nowhere moves for nothing, and has ranks in turn as homes.
        O(k log k).
        """
        count, num_ranks, of = len(self.offsets) - 1, len(node_of_rank), self.sample
        ranks_in_node = np.bincount(node_of_rank)
        total = np.zeros(count, dtype=np.int64)
        np.add.at(total, of, self.volumes)
        # 1. The node that holds most.
        node, on_node = _most(of, node_of_rank[self.ranks], self.volumes, count, len(ranks_in_node))
        # 2. The rank there that does.
        there = node_of_rank[self.ranks] == node[of]
        home, at_home = _most(of[there], self.ranks[there], self.volumes[there], count, num_ranks)
        nowhere = np.flatnonzero(home < 0)
        home[nowhere] = nowhere % num_ranks
        near = at_home - (on_node - at_home) // np.maximum(ranks_in_node[node_of_rank[home]] - 1, 1)
        far = on_node - (total - on_node) // max(len(ranks_in_node) - 1, 1)
        return home.astype(np.int32), np.maximum(near, 0), np.maximum(far, 0)

    def of_samples(self, members: NDArray[np.int64], first_rank: int = 0) -> "Affinity":
        """Return that of some of the samples, with ranks counted from `first_rank`."""
        counts = np.diff(self.offsets)[members]
        offsets = np.concatenate(([0], np.cumsum(counts)))
        index = np.repeat(self.offsets[members] - offsets[:-1], counts) + np.arange(offsets[-1])
        return Affinity(offsets, self.ranks[index] - np.int32(first_rank), self.volumes[index])


def _most(
    sample: NDArray[np.int64], place: NDArray[np.int32], volume: NDArray[np.int64], num_samples: int, num_places: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of each sample the place that holds most of it, the lowest of several and -1 for none, and how much."""
    keys, entry = np.unique(sample * num_places + place, return_inverse=True)
    held = np.zeros(len(keys), dtype=np.int64)
    np.add.at(held, entry, volume)
    order = np.lexsort((keys, -held, keys // num_places))
    samples, first = np.unique(keys[order] // num_places, return_index=True)
    best, most = np.full(num_samples, -1, dtype=np.int64), np.zeros(num_samples, dtype=np.int64)
    best[samples], most[samples] = keys[order][first] % num_places, held[order][first]
    return best, most


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """What the planner solves; :meth:`from_batch` checks it."""

    batch: GlobalBatch
    topology: Topology
    cost: CostModel
    costs: NDArray[np.int64]  # int64[n]: cost of each sample
    constraints: Constraints = field(default_factory=Constraints)  # what each rank's share must keep to
    cut: Cut = WHOLE_SHARES  # how the step is cut
    volumes: NDArray[np.int64] | None = None  # int64[n]: what moving each sample takes; None: its length
    affinity: Affinity | None = None  # where the parts of each sample lie, if not all on its home rank
    work: NDArray[np.int64] | None = None  # int64[n, M]: with pipeline stages, each sample's work in each module
    prompts: NDArray[np.int64] | None = None  # int64[n]: of shared prompts, what each costs; `costs` are then without
    limits: HeldLimits | None = None  # what micro-batches keep to besides their tokens
    timed: TimedStep | None = None  # where encoders run in the gaps of the pipeline, all that there is to do
    is_given: bool = False  # whether `costs` were given one a sample: no cost model makes them of lengths

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
    def from_batch(
        cls,
        batch: GlobalBatch,
        topology: Topology,
        cost: CostModel,
        constraints: Constraints | None = None,
        cut: Cut = WHOLE_SHARES,
        work: NDArray[np.int64] | TimedStep | None = None,
        limits: HeldLimits | None = None,
        given: NDArray[np.int64] | None = None,
    ) -> "Problem":
        """Cost the batch and check that the problem can have a solution.

        With pipeline stages, `work` is each sample's work in each module, of which there may be other phases', and the
        tasks in its gaps; by default the work of the only phase. `limits` are those on its micro-batches. `given`,
        int64[n], are costs that the caller has of each sample; they stand instead of those by `cost`, which is linear.

        Raises
        ------
        ValueError
            A cost or a sum of costs that does not fit int64, naming the sample; constraints that cannot be combined.
        InfeasibleError
            A token cap that a sample, or all of them together, exceed; it says by how much.
        """
        constraints = constraints or Constraints()
        cut.check(cost, constraints.names(), topology)
        check_padded(cost, constraints.names())
        if constraints.prefix is not None:
            for name in constraints.names():
                if name not in ("prefix", "equal_counts"):
                    raise UsageError(f"{{prefix}} cannot be combined with {{{name}}}", "leave one of them out")
        if constraints.prefix is not None:
            constraints.prefix.check(batch.lengths)
        if given is None:
            costs, prompts = _costs_of(batch, cost, constraints)
        else:
            _check_given(cut, constraints)
            costs, prompts = as_costs(given, "cost")[0], None
        cut.check_batch(batch, topology.num_ranks, constraints, cost)
        if limits is not None:
            if limits.by_rank:
                raise UsageError("a limit with one number for each rank is for samplers; give one number for all")
            limits.check_alone(batch.lengths)
        if work is None:
            cut.check_phases((SINGLE_PHASE,))
            work = cut.work({SINGLE_PHASE: (cost, batch.lengths, np.arange(len(costs)))}, len(costs))
        timed = work if isinstance(work, TimedStep) else None
        table = work.work if isinstance(work, TimedStep) else work
        return cls(
            batch, topology, cost, costs, constraints, cut, work=table, prompts=prompts, timed=timed, limits=limits,
            is_given=given is not None,
        )  # fmt: skip

    @property
    def whole_costs(self) -> NDArray[np.int64]:
        """What each sample costs by itself, a prompt that it shares included: as `costs` without shared prompts."""
        return self.costs if self.prompts is None else self.costs + self.prompts

    def loads(self, rank_of_sample: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the load of each rank, int64[num_ranks]: samples, prompts once a rank, and what it has already."""
        num_ranks, kept = self.topology.num_ranks, self.constraints
        return kept.with_initial(self.cost.loads(self._costs_on(rank_of_sample), rank_of_sample, num_ranks))

    def _costs_on(
        self, rank: NDArray[np.int32], slot: NDArray[np.int32] | None = None, num_slots: int = 1
    ) -> NDArray[np.int64]:
        """Return what samples cost, a prompt that several share on a rank, in a slot, with the first of them."""
        shared = self.constraints.prefix
        if shared is None or self.prompts is None:
            return self.costs
        return self.costs + shared.once(self.prompts, rank if slot is None else rank * np.int64(num_slots) + slot)

    def slot_loads(self, rank: NDArray[np.int32], slot: NDArray[np.int32], num_slots: int) -> NDArray[np.int64]:
        """Return what :meth:`MicroBatches.makespan` takes: each micro-batch's cost, or work in each module."""
        num_ranks = self.topology.num_ranks
        if self.work is None:
            costs = self._costs_on(rank, slot, num_slots)
            return self.cost.slot_loads(costs, rank, slot, num_ranks, num_slots)
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
            volumes=None if self.volumes is None else self.volumes[members],
            affinity=None if self.affinity is None else self.affinity.of_samples(members, first_rank),
            prompts=None if self.prompts is None else self.prompts[members],
            is_given=self.is_given,
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


def _costs_of(
    batch: GlobalBatch, cost: CostModel, constraints: Constraints
) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """Return what each sample costs, besides its prompt where prompts are shared, and then what that costs."""
    costs, shared = cost.sample_costs(batch.lengths, batch.prefixes), constraints.prefix
    if shared is None:
        return costs, None
    prompts = cost.sample_costs(shared.lengths, shared.lengths if cost.needs_prefixes else None)
    return costs - prompts, prompts


def _check_given(cut: Cut, constraints: Constraints) -> None:
    """Refuse what needs to know what a part of a sample costs."""
    if cut.name not in ("whole_shares", "micro_batches"):
        raise UsageError(
            "{cost} of one number a sample is for whole shares and micro-batches: of {cut} it does not say what a part "
            "of a sample costs", "give {cost} by its name", cut=cut.name.replace("_", " "),
        )  # fmt: skip
    if constraints.prefix is not None:
        raise UsageError("{prefix} needs a {cost} by its name, to tell what a prompt costs")


def work_of_slots(
    work: NDArray[np.int64], rank: NDArray[np.int32], slot: NDArray[np.int32], num_ranks: int, num_slots: int
) -> NDArray[np.int64]:
    """Return each micro-batch's work in each module, int64[num_ranks, num_slots, M], from that of samples."""
    table = np.zeros((num_ranks * num_slots, work.shape[1]), dtype=np.int64)
    np.add.at(table, rank.astype(np.int64) * num_slots + slot, work)
    return table.reshape(num_ranks, num_slots, -1)


def check_padded(cost: CostModel, names: Sequence[str]) -> None:
    """Raise ValueError if these constraints (by name) cannot be kept where rows are padded."""
    kind = "padded" if cost.padded else "convolution"
    if not cost.additive and (unsupported := not_taken(kind, names)):
        kept = [name for name, declared in CONSTRAINTS.items() if kind in declared.taken_by]
        raise UsageError(
            f"cost '{cost}' does not take {', '.join(f'{{{name}}}' for name in unsupported)}; with padding only "
            f"{as_words(kept[:-1])} and {as_words(kept[-1:])} can be kept"
        )
