"""Pipelines of stages: each rank is a replica, and runs its micro-batches one after the other through all stages."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from balancer.plan.gaps import DeviceOp, ops_in_turn
from balancer.plan.placed.slots import PlacedSlots
from balancer.problem.cuts.pipeline_stages import PipelineStages
from balancer.problem.problem import work_of_slots
from solvers.arguments import as_index
from solvers.pipeline import PipelineRun

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class PlacedPipelines(PlacedSlots):
    """Samples in the slots of replicas; what a step takes is the longest pipeline's exact run."""

    @property
    def stages(self) -> PipelineStages:
        """What each stage takes."""
        return self.cut.stages  # type: ignore[return-value]

    @property
    def work(self) -> Ints:
        """Each sample's work in each module: int64[n, M]."""
        return self.problem.work  # type: ignore[return-value]

    def measured(self) -> tuple[Ints, int]:
        """Return the load of each rank, int64[num_ranks], and when the last pipeline ends."""
        return self._loads(), int(self.makespans().max())

    def home_makespan(self, home_loads: Ints) -> int:
        """Return when the last pipeline ends where samples lie before dispatch."""
        return int(self.makespans(home=True).max())

    def ideal(self, loads: Ints, home_loads: Ints, home: bool = False) -> tuple[int, int]:
        """Return the makespan of stages that never wait, as a fraction."""
        return self.stages.perfect(self.work.sum(axis=0), len(loads), self.num_slots)

    def binding_sample(self, loads: Ints) -> int | None:
        """Return None: no sample runs on one device alone."""
        return None

    def held_by_a_rank(self, makespan: int) -> tuple[Ints, int]:
        """Return a cost of samples, and how much of it a replica runs at most in a step of no more than `makespan`."""
        num_ranks = self.problem.topology.num_ranks
        return self.stages.held_by_a_rank(self.work, makespan, num_ranks, self.num_slots)

    @property
    def work_of_slots(self) -> Ints:
        """Each micro-batch's work in each module: int64[num_ranks, num_slots, M]."""
        return self.of_slots(self.work)

    def at_home(self, work: Ints) -> Ints:
        """Add up what samples have, int64[n, M], by slot of each rank's samples as they lie, cut into equally many."""
        home, num_ranks = self.problem.batch.home, self.problem.topology.num_ranks
        places = home.position_of_sample.astype(np.int64)
        slots = (places * self.num_slots // np.diff(home.offsets)[home.rank_of_sample]).astype(np.int32)
        return work_of_slots(work, home.rank_of_sample, slots, num_ranks, self.num_slots)

    def makespans(self, home: bool = False) -> Ints:
        """Return when the pipeline of each rank ends, before or after dispatch: int64[num_ranks]."""
        return self.stages.makespans(self.at_home(self.work) if home else self.work_of_slots)

    def run(self, rank: int, home: bool = False) -> PipelineRun:
        """Run the pipeline of one rank exactly, before or after dispatch."""
        rank, by_slot = as_index("rank", rank, self.problem.topology.num_ranks), self.at_home if home else self.of_slots
        tokens = by_slot(self.problem.batch.lengths[:, None])[rank, :, 0]
        return self.stages.run_of(by_slot(self.work), rank, tokens)

    def device_ops(self, rank: int, device: int) -> list[DeviceOp]:
        """Return all that one device of a rank's pipeline runs, in turn, with samples of the global batch."""
        rank = as_index("rank", rank, self.problem.topology.num_ranks)
        device = as_index("device", device, self.stages.num_devices)
        return ops_in_turn(self.stages.order(self.num_slots), device, self.ops_between(rank, device), self.stages)

    def ops_between(self, rank: int, device: int) -> dict[int, DeviceOp]:
        """Return what one device runs between the ops of its pipeline, by turn."""
        return {}
