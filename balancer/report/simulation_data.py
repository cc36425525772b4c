"""What the page of a simulation shows in addition to totals: every step's time, one step by rank, the slowest steps."""

import heapq
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer.plan.step_plan import StepPlan
from balancer.report.page_data import ranks_a_bar
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
    """One step by rank: what each computes in each phase, the busiest first.

    Where ranks wait after every phase, the order is each phase's own. Where there are many ranks, each row stands for
    `ranks_a_row` neighbours, and the busiest of them.
    """

    ranks_a_row: int
    phases: dict[str, Floats]  # float64[rows]: seconds
    starts: dict[str, Floats | float]  # of each phase, on each of the rows or on all
    ends: dict[str, float]  # when a phase is over on all ranks, if ranks wait after each; else empty
    compute_end: float  # when all is computed, and in `seconds` exchanges are over too
    seconds: float


@dataclass(slots=True)
class SimulationData:
    """Filled while :func:`balancer.simulate.simulate_log` runs; its size does not grow with samples or ranks."""

    waits: str = "phase"  # as for :func:`balancer.simulate.step_time`
    seconds: dict[str, list[float]] = field(default_factory=dict)  # of every step, by strategy
    bars: dict[str, StepBars] = field(default_factory=dict)  # of the first step
    slow: dict[str, list[SlowStep]] = field(default_factory=dict)  # heaps of the slowest steps
    # with pipeline stages: the slowest replica of each strategy in the first step, in nanoseconds
    pipelines: dict[str, PipelineRun] = field(default_factory=dict)

    def add(self, strategy: str, plan: StepPlan, step: StepTime) -> None:
        """Take in the next step of a strategy."""
        seconds = self.seconds.setdefault(strategy, [])
        number = len(seconds)
        seconds.append(step.seconds)
        # Ranks of one step alone are kept: those of all steps would grow with the run.
        if number == 0:
            self.bars[strategy] = self._drawn(step)
            if step.pipeline is not None:
                self.pipelines[strategy] = step.pipeline.slowest
        heap = self.slow.setdefault(strategy, [])
        heapq.heappush(heap, _slow_step(number, plan, step))
        if len(heap) > MOST_SLOW:
            heapq.heappop(heap)

    def _drawn(self, step: StepTime) -> StepBars:
        by_phase = {name: phase.rank_seconds for name, phase in step.phases.items()}
        busiest_first = np.argsort(-np.sum(list(by_phase.values()), axis=0), kind="stable")
        width = ranks_a_bar(len(busiest_first))
        rows, ends, starts = dict[str, Floats](), dict[str, float](), dict[str, Floats | float]()
        start: Any = 0.0
        for name, phase in step.phases.items():
            # Ranks that wait after each phase begin the next one together, so each phase has an order of its own.
            order = np.argsort(-by_phase[name], kind="stable") if self.waits == "phase" else busiest_first
            rows[name], starts[name] = by_phase[name][order][::width], start
            if self.waits == "phase":
                start += phase.compute_s + phase.waiting_s
                ends[name] = start
            else:
                start = start + rows[name]
        return StepBars(width, rows, starts, ends, step.compute_s + step.waiting_s, step.seconds)


def _slow_step(number: int, plan: StepPlan, step: StepTime) -> SlowStep:
    phase = max(step.phases, key=lambda name: step.phases[name].waiting_s)
    planned = plan.phases[phase]
    item, cap, length = planned.plan.binding_sample, None, 0
    if item is not None:
        length = int(planned.plan.lengths[item])
        cap = number * plan.num_samples + int(planned.items.sample_of_item[item])
    return SlowStep(step.seconds, -number, step.waiting_s, phase, cap, length)
