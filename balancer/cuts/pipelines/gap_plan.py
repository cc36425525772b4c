"""What comes out of pipelines with work in their gaps: encoders' tasks, each on a device and in a turn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from balancer.cuts.pipelines.plan import PipelinePlan
from balancer.errors import PlanError
from balancer.io.plan_rows import GAP, GAPS, PlanStep
from balancer.plan.digest import digest_after
from balancer.plan.gaps import Between, DeviceOp, GapTable, held_in_cells, run_after
from balancer.plan.item_rows import ItemRows, RowsBeside, checked_target
from balancer.problem.problem import Problem
from balancer.problem.step_times import UNIT_BYTES, GapTasks
from solvers.arguments import as_index
from solvers.errors import UsageError
from solvers.groups import group_loads
from solvers.pipeline import MultiplexResult, PipelineRun

Ints = NDArray[np.int64]
_ALIKE = ("makespan", "forward_start", "forward_end", "backward_start", "backward_end", "busy", "idle")
"""What a run with tasks in its gaps has as one without has it."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class GapPlan(PipelinePlan):
    """Samples in the slots of replicas, and tasks in the gaps of these, which run exactly in their turns."""

    gaps: GapTable | None = None

    names_beside: ClassVar[tuple[str, ...]] = (GAPS,)

    def __post_init__(self) -> None:
        if self.gaps is None:
            raise UsageError(
                "encoders run in gaps where and when they were scheduled to: other placements have none for them",
                "use the strategy 'orchestrated'",
            )
        PipelinePlan.__post_init__(self)

    @classmethod
    def from_rows(cls, problem: Problem, rows: ItemRows) -> GapPlan:
        """Place samples and the tasks in gaps as the rows do; PlanError if they cannot be there."""
        timed = problem.timed.in_slots(rows.num_slots)  # type: ignore[union-attr]  # which this class comes from
        problem = replace(problem, timed=timed)
        target = checked_target(problem, rows)
        return cls(problem, target, rows.slot, rows.num_slots, gaps=_checked_table(timed.tasks, rows))

    def broken(self) -> str:
        """Say which device holds more than the layout has room for; nothing if none does."""
        times, items, *_ = self.problem.timed  # type: ignore[misc]  # which this class comes from
        cell = self.rank_of_sample.astype(np.int64) * self.num_slots + self.slot_of_sample
        runs = [self.gap_run(rank) for rank in range(self.num_ranks)]
        held, at_work = held_in_cells(times, items, cell, runs[0].order)
        most = held + UNIT_BYTES * np.stack([run.held for run in runs]) + at_work
        if (most <= times.room).all():
            return ""
        rank, device = np.argwhere(most > times.room)[0].tolist()
        holds, room = most[rank, device], times.room[device]
        return f"device {device} of rank {rank} holds {holds:,.0f} bytes, and has room for {room:,.0f}"

    @property
    def rows_beside(self) -> dict[str, RowsBeside]:
        """The tasks in gaps, a row each: its item is which part it is."""
        table, tasks = self.table, self.table.tasks
        columns = (each.astype(np.int32) for each in (table.forward_turn, table.device, table.backward_turn))
        return {GAPS: RowsBeside(tasks.sample, tasks.number, *columns)}

    @property
    def table(self) -> GapTable:
        """What runs in gaps."""
        return self.gaps  # type: ignore[return-value]  # which is checked

    def perfect(self, home: bool = False) -> tuple[int, int]:
        """Return the makespan of devices that never wait, as a fraction."""
        busy, devices = PipelinePlan.perfect(self, home)
        return busy + int(self.table.tasks.forward.sum()) + int(self.table.tasks.backward.sum()), devices

    def pipeline_makespans(self, home: bool = False) -> Ints:
        """Return when each rank is done; at home encoders run before the pipeline, evenly on its devices."""
        if home:
            return np.asarray(PipelinePlan.pipeline_makespans(self, home) + self._ahead_at_home())
        return np.array([self.gap_run(rank).makespan for rank in range(self.num_ranks)], dtype=np.int64)

    def _ahead_at_home(self) -> Ints:
        """How long encoders take each rank's devices at home: int64[num_ranks]."""
        tasks = self.table.tasks
        rank = self.home.rank_of_sample[tasks.sample]
        spent = group_loads(tasks.forward + tasks.backward, rank, self.num_ranks)
        return np.asarray(-(-spent // self.stages.num_devices), dtype=np.int64)

    def pipeline_run(self, rank: int, home: bool = False) -> PipelineRun:
        """Run the pipeline of one rank exactly, among what is in its gaps, or at home after what runs before it."""
        run = PipelinePlan.pipeline_run(self, rank, home)
        if home:
            return run_after(run, int(self._ahead_at_home()[rank]))
        among = self.gap_run(rank)
        return replace(run, **{name: getattr(among, name) for name in _ALIKE})

    def between(self, rank: int, home: bool = False) -> Between | None:
        """Return what runs in the gaps of a rank's pipeline, and when."""
        if home:
            return Between.before(self.stages.num_devices, int(self._ahead_at_home()[rank]))
        return Between.from_run(self.gap_run(rank), self.table.tasks.of(np.flatnonzero(self._on(rank))))

    def gap_run(self, rank: int) -> MultiplexResult:
        """Run the pipeline of one rank with the tasks in its gaps, exactly."""
        rank = as_index("rank", rank, self.num_ranks)
        return self.table.run(self.stages, self.work_of_slots, rank, self.rank_of_sample, self.slot_of_sample)

    def _ops_between(self, rank: int, device: int) -> dict[int, DeviceOp]:
        """Return what one device runs in its gaps, by turn."""
        timed = self.problem.timed
        return self.table.on_device(device, self._on(rank), self.slot_of_sample, timed)  # type: ignore[arg-type]  # of which this class comes

    def _on(self, rank: int) -> NDArray[np.bool_]:
        """Whether the sample of each task is on a rank."""
        return np.asarray(self.rank_of_sample[self.table.tasks.sample] == rank)

    def digest(self) -> str:
        """SHA-256, in hex, of turns too."""
        table = self.table
        turns = table.tasks.sample, table.device, table.forward_turn, table.backward_turn
        return digest_after(PipelinePlan.digest(self), wide=turns)


def _checked_table(tasks: GapTasks, rows: ItemRows) -> GapTable:
    """Return what runs in gaps, a row for each task, each on its sample's rank and in its slot."""
    there, where = rows.beside.get(GAPS), rows.where
    if there is None:
        none = np.empty(0, dtype=np.int64)
        there = PlanStep(0, "", none, none, none, none, item=none, device=none, backward=none)  # type: ignore[arg-type]
    if there.item is None or there.device is None or there.backward is None:
        lacking = ", ".join(repr(name) for name in ("item", *GAP) if getattr(there, name) is None)
        raise PlanError(f"{where}: encoders run in gaps, and there is no column {lacking}")
    of = tasks.sample
    wanted = np.stack([rows.sample[of], tasks.number, rows.rank[of], rows.slot[of]])
    held = np.stack([there.sample, there.item, there.rank, there.slot])
    ways = [np.lexsort((each[1], each[0])) for each in (held, wanted)]
    if held.shape != wanted.shape or (held[:, ways[0]] != wanted[:, ways[1]]).any():
        raise PlanError(
            f"{where}: what is in gaps must be each part of each sample's encoder work once, on the sample's rank and "
            f"in its slot: {wanted.shape[1]} parts"
        )
    at = np.empty_like(ways[0])
    at[ways[1]] = ways[0]
    device, forward, backward = (
        np.asarray(each)[at].astype(np.int64) for each in (there.device, there.position, there.backward)
    )
    return GapTable(tasks, device, forward, backward)
