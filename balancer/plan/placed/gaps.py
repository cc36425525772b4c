"""Pipelines with work in their gaps: encoders' and generators' tasks, each on a device and in a turn."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from balancer.plan.digest import digest_after
from balancer.plan.gaps import Between, DeviceOp, GapTable, between_both
from balancer.plan.placed.pipelines import PlacedPipelines
from solvers.arguments import as_index
from solvers.errors import UsageError
from solvers.groups import group_loads
from solvers.pipeline import MultiplexResult, PipelineRun

__all__ = ["PlacedInGaps"]

Ints = NDArray[np.int64]
_ALIKE = ("makespan", "forward_start", "forward_end", "backward_start", "backward_end", "busy", "idle")
"""What a run with tasks in its gaps has as one without has it."""


@dataclass(frozen=True, slots=True, eq=False)
class PlacedInGaps(PlacedPipelines):
    """Samples in the slots of replicas, and tasks in the gaps of these, which run exactly in their turns."""

    gaps: GapTable | None = None

    def __post_init__(self) -> None:
        if self.gaps is None:
            raise UsageError(
                "encoders run in gaps where and when they were scheduled to: other placements have none for them",
                "use the strategy 'orchestrated'",
            )
        PlacedPipelines.__post_init__(self)

    @property
    def table(self) -> GapTable:
        """What runs in gaps."""
        return self.gaps  # type: ignore[return-value]  # which is checked

    def ideal(self, loads: Ints, home_loads: Ints, home: bool = False) -> tuple[int, int]:
        """Return the makespan of devices that never wait, as a fraction."""
        busy, devices = PlacedPipelines.ideal(self, loads, home_loads, home)
        return busy + int(self.table.tasks.forward.sum()) + int(self.table.tasks.backward.sum()), devices

    def makespans(self, home: bool = False) -> Ints:
        """Return when each rank is done; at home encoders run before the pipeline, evenly, and generators behind it."""
        if home:
            return np.asarray(PlacedPipelines.makespans(self, home) + self._around_home().sum(axis=0))
        return np.array(
            [self.gap_run(rank).makespan for rank in range(self.problem.topology.num_ranks)], dtype=np.int64
        )

    def _around_home(self) -> Ints:
        """How long encoders and generators take each rank's devices at home: int64[2, num_ranks]."""
        tasks, num_ranks = self.table.tasks, self.problem.topology.num_ranks
        spent, rank = tasks.forward + tasks.backward, self.problem.batch.home.rank_of_sample[tasks.sample]
        both = [group_loads(spent * (tasks.late == late), rank, num_ranks) for late in (False, True)]
        return np.asarray(-(-np.stack(both) // self.stages.num_devices), dtype=np.int64)

    def run(self, rank: int, home: bool = False) -> PipelineRun:
        """Run the pipeline of one rank exactly, among what is in its gaps, or at home between what is around it."""
        run = PlacedPipelines.run(self, rank, home)
        if home:
            return between_both(run, *self._around_home()[:, rank].tolist())
        among = self.gap_run(rank)
        return replace(run, **{name: getattr(among, name) for name in _ALIKE})

    def between(self, rank: int, home: bool = False) -> Between | None:
        """Return what runs in the gaps of a rank's pipeline, and when."""
        if home:
            run, (ahead, behind) = self.run(rank, home), self._around_home()[:, rank].tolist()
            return Between.around(len(run.busy), ahead, behind, run.makespan)
        return Between.of(self.gap_run(rank), self.table.tasks.of(np.flatnonzero(self._on(rank))))

    def gap_run(self, rank: int) -> MultiplexResult:
        """Run the pipeline of one rank with the tasks in its gaps, exactly."""
        rank = as_index("rank", rank, self.problem.topology.num_ranks)
        return self.table.run(self.stages, self.work_of_slots, rank, self.target.rank_of_sample, self.slot_of_sample)

    def ops_between(self, rank: int, device: int) -> dict[int, DeviceOp]:
        """Return what one device runs in its gaps, by turn."""
        return self.table.on_device(device, self._on(rank), self.slot_of_sample, self.problem.batch.kept)

    def _on(self, rank: int) -> NDArray[np.bool_]:
        """Whether the sample of each task is on a rank."""
        return np.asarray(self.target.rank_of_sample[self.table.tasks.sample] == rank)

    def digest(self) -> str:
        """SHA-256, in hex, of turns too."""
        table = self.table
        turns = table.tasks.sample, table.device, table.forward_turn, table.backward_turn
        return digest_after(PlacedPipelines.digest(self), wide=turns)
