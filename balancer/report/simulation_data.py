"""What the page of a simulation shows in addition to totals: every step's time, one step by rank, the slowest steps."""

import heapq
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from balancer.plan.step_plan import StepPlan
from balancer.report.page_data import MOST_ROWS, coarse
from balancer.simulate.step import StepTime
from solvers.pipeline import PipelineRun

__all__ = ["SimulationData", "SlowStep", "StepBars"]

MOST_SLOW = 8
"""Steps of a strategy in the table of the slowest ones."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, order=True)
class SlowStep:
    """A step, and what it waits for; ordered by how long it takes, earlier steps first."""

    seconds: float
    minus_step: int
    waiting_s: float = field(compare=False)
    phase: str = field(compare=False)  # the one that ranks wait longest in
    cap: int | None = field(compare=False)  # the sample that caps that phase, counted from the first of the run
    cap_length: int = field(compare=False)

    @property
    def step(self) -> int:
        """Which step, from 0."""
        return -self.minus_step


@dataclass(frozen=True, slots=True)
class StepBars:
    """One step by rank: what each computes in each phase.

    Where there are many ranks, each row stands for `ranks_a_row` consecutive ones, and the busiest of them.
    """

    ranks_a_row: int
    phases: dict[str, Floats]  # float64[rows]: seconds
    ends: dict[str, float]  # when a phase is over on all ranks, if ranks wait after each; else empty
    compute_end: float  # when all is computed, and in `seconds` exchanges are over too
    seconds: float


@dataclass(slots=True)
class SimulationData:
    """Filled while :func:`balancer.simulate.simulate_log` runs; its size does not grow with samples or ranks."""

    waits: str = "phase"  # as for :func:`balancer.simulate.step_time`
    drawn_step: int = 0  # the step that is drawn by rank, in `bars` and `pipelines`
    seconds: dict[str, list[float]] = field(default_factory=dict)  # of every step, by strategy
    bars: dict[str, StepBars] = field(default_factory=dict)
    slow: dict[str, list[SlowStep]] = field(default_factory=dict)  # heaps of the slowest steps
    # with pipeline stages: the slowest replica of each strategy, in nanoseconds
    pipelines: dict[str, PipelineRun] = field(default_factory=dict)

    def add(self, strategy: str, plan: StepPlan, step: StepTime) -> None:
        """Take in the next step of a strategy."""
        seconds = self.seconds.setdefault(strategy, [])
        number = len(seconds)
        seconds.append(step.seconds)
        if number == self.drawn_step:
            self.bars[strategy] = self._drawn(step)
            if step.pipeline is not None:
                self.pipelines[strategy] = step.pipeline.slowest
        heap = self.slow.setdefault(strategy, [])
        heapq.heappush(heap, _slow_step(strategy, number, plan, step))
        if len(heap) > MOST_SLOW:
            heapq.heappop(heap)

    def _drawn(self, step: StepTime) -> StepBars:
        by_phase = {name: phase.rank_seconds for name, phase in step.phases.items()}
        num_ranks = len(next(iter(by_phase.values())))
        ends: dict[str, float] = {}
        if self.waits == "phase":
            end = 0.0
            for name, phase in step.phases.items():
                end += phase.compute_s + phase.waiting_s
                ends[name] = end
            rows = {name: coarse(each, MOST_ROWS) for name, each in by_phase.items()}
        else:  # of neighbours, the rank that is busy longest over all phases
            total = np.sum(list(by_phase.values()), axis=0)
            starts = np.arange(0, num_ranks, -(-num_ranks // MOST_ROWS))
            busiest = [
                first + int(np.argmax(part)) for first, part in zip(starts, np.split(total, starts[1:]), strict=True)
            ]
            rows = {name: each[busiest] for name, each in by_phase.items()}
        return StepBars(-(-num_ranks // MOST_ROWS), rows, ends, step.compute_s + step.waiting_s, step.seconds)


def _slow_step(strategy: str, number: int, plan: StepPlan, step: StepTime) -> SlowStep:
    phase = max(step.phases, key=lambda name: step.phases[name].waiting_s)
    planned = plan.phases[phase]
    item, cap, length = planned.plan.binding_sample, None, 0
    if item is not None:
        length = int(planned.plan.lengths[item])
        if strategy != "sorted_batches":  # that one has its samples from anywhere in a window
            cap = number * plan.num_samples + int(planned.items.sample_of_item[item])
    return SlowStep(step.seconds, -number, step.waiting_s, phase, cap, length)
