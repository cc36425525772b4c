"""What comes out of pipelines: each rank is a replica, and runs its micro-batches in turn through all stages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from balancer.cuts.micro_batches.plan import MicroBatchPlan
from balancer.plan.gaps import DeviceOp, ops_in_turn
from balancer.problem.cuts.pipeline_stages import PipelineStages
from balancer.problem.cuts.pipelines import Pipelines
from balancer.problem.problem import work_of_slots
from solvers.arguments import as_index
from solvers.pipeline import PipelineRun

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PipelinePlan(MicroBatchPlan):
    """Samples in the slots of replicas; what a step takes is the longest pipeline's exact run."""

    @property
    def cut(self) -> Pipelines:  # type: ignore[override]  # which has what micro-batches are asked here
        """What was asked for."""
        return self.problem.cut  # type: ignore[return-value]  # which is what this class comes from

    @property
    def stages(self) -> PipelineStages:
        """What each stage takes."""
        return self.cut.stages

    @property
    def work(self) -> Ints:
        """Each sample's work in each module of the stages, of which encoders may be some: int64[n, M]."""
        return self.problem.work  # type: ignore[return-value]

    def measure(self) -> tuple[Ints, int]:
        """Return the load of each rank, int64[num_ranks], and when the last pipeline ends."""
        return self.problem.loads(self.rank_of_sample), int(self.pipeline_makespans().max())

    @property
    def home_makespan(self) -> int:
        """When the last pipeline ends where samples lie before dispatch."""
        return int(self.pipeline_makespans(home=True).max())

    def perfect(self, home: bool = False) -> tuple[int, int]:
        """Return the makespan of stages that never wait, as a fraction."""
        return self.stages.perfect(self.work.sum(axis=0), self.num_ranks, self.num_slots)

    @property
    def binding_sample(self) -> int | None:
        """None: no sample runs on one device alone."""
        return None

    def held_by_a_rank(self) -> tuple[Ints, int]:
        """Return a cost of samples, and how much of it a replica runs at most in a step that takes no longer."""
        return self.stages.held_by_a_rank(self.work, self.makespan, self.num_ranks, self.num_slots)

    @property
    def work_of_slots(self) -> Ints:
        """Each micro-batch's work in each module of the stages: int64[num_ranks, num_slots, M]."""
        return self._by_slot(self.work)

    def _by_slot(self, work: Ints) -> Ints:
        """Add up what samples have, int64[n, M], by slot of each rank: int64[num_ranks, num_slots, M]."""
        return work_of_slots(work, self.rank_of_sample, self.slot_of_sample, self.num_ranks, self.num_slots)

    def _at_home(self, work: Ints) -> Ints:
        """Add up what samples have, int64[n, M], by slot of each rank's samples as they lie, cut into equally many."""
        home = self.home
        places = home.position_of_sample.astype(np.int64)
        slots = (places * self.num_slots // np.diff(home.offsets)[home.rank_of_sample]).astype(np.int32)
        return work_of_slots(work, home.rank_of_sample, slots, self.num_ranks, self.num_slots)

    def pipeline_makespans(self, home: bool = False) -> Ints:
        """Return when the pipeline of each rank ends, int64[num_ranks]; `home` as for :meth:`pipeline_run`."""
        return self.stages.makespans(self._at_home(self.work) if home else self.work_of_slots)

    def pipeline_run(self, rank: int, home: bool = False) -> PipelineRun:
        """Run the pipeline of one rank, a replica, exactly: when each stage computes which micro-batch, and holds what.

        Parameters
        ----------
        rank : int
        home : bool
            Before dispatch: as :attr:`home_imbalance_ratio` cuts its samples.
        """
        rank, by_slot = as_index("rank", rank, self.num_ranks), self._at_home if home else self._by_slot
        return self.stages.run_of(by_slot(self.work), rank, by_slot(self.lengths[:, None])[rank, :, 0])

    def device_ops(self, rank: int, device: int) -> list[DeviceOp]:
        """Return all that one device of a rank's pipeline runs, in turn: forwards, backwards, and what is in its gaps.

        Returns
        -------
        list of DeviceOp
            Each with its ``slot``, and whether it is a ``backward``; then an op of the pipeline with its ``stage``, and
            what is in a gap with its ``sample`` of the global batch, which ``part`` it is of how many ``parts``, and
            its ``pieces``, each of a module and an item, from a start to a stop. All say which ``kind`` of backward
            there is, and whether it does ``recompute``.

            A plan's times assume besides that no encoder runs in a gap for slot k before the first stage has started
            slot ``k - D``, of D devices, so that few outputs wait there. The lists do not say so: without that limit a
            step may end earlier.

        Raises
        ------
        ValueError
            If there are not so many ranks or devices.
        """
        rank, device = as_index("rank", rank, self.num_ranks), as_index("device", device, self.stages.num_devices)
        return ops_in_turn(self.stages.order(self.num_slots), device, self._ops_between(rank, device), self.stages)

    def _ops_between(self, rank: int, device: int) -> dict[int, DeviceOp]:
        """Return what one device runs between the ops of its pipeline, by turn."""
        return {}
