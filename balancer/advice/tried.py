"""One way to plan the steps of a sample: what they then take, with its bound, beside the samples as they lie."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from statistics import median
from typing import NamedTuple

import numpy as np

from balancer.advice.sample import Sample
from balancer.offline.settings import LogSettings
from balancer.offline.steps import Rows, Steps, rows_of_steps
from balancer.plan.balance_report import even_rank_time
from balancer.plan.step_plan import StepPlan
from balancer.step_planner import plan_step

__all__ = ["Cap", "Tried", "tried"]


class Cap(NamedTuple):
    """A sample that is longer than a fair share: its row, its length, and the imbalance ratio that it forces."""

    row: int
    length: int
    ratio: float


@dataclass(slots=True)
class Tried:
    """Sums over steps, in units of cost; of several phases, one after the other.

    Attributes
    ----------
    steps, samples, tokens, longest : int
        What was planned, and its longest sample; lengths are those of the last phase.
    before, after : int
        What steps take until the slowest rank is done: as the samples lie, and as planned.
    even : Fraction
        What they take if all ranks are even.
    bound : float
        Proven: no plan of this kind takes less.
    capped : int
        Steps in which one sample alone proves the bound.
    cap : Cap or None
        The worst of those.
    moved : int
        Bytes that leave their rank, or elements where there is one phase, over all steps.
    of_steps : list of (int, int, Fraction)
        Of each step what ``before``, ``after`` and ``even`` are of all.
    seconds : list of float
        What each step took to plan. Of all here the only numbers that a clock gave.
    """

    steps: int = 0
    samples: int = 0
    tokens: int = 0
    longest: int = 0
    before: int = 0
    after: int = 0
    even: Fraction = Fraction(0)
    bound: float = 0.0
    capped: int = 0
    cap: Cap | None = None
    moved: int = 0
    of_steps: list[tuple[int, int, Fraction]] = field(default_factory=list, repr=False)
    seconds: list[float] = field(default_factory=list, repr=False)

    @property
    def waiting(self) -> float:
        """Share of the planned steps' time that the mean rank waits."""
        return float(1 - self.even / self.after) if self.after else 0.0

    @property
    def waiting_before(self) -> float:
        """The same as the samples lie."""
        return float(1 - self.even / self.before) if self.before else 0.0

    def waiting_errors(self, steps_of_log: int | None) -> tuple[float, float]:
        """Return the standard errors of both, the samples as they lie first; 0 where all steps of the log are here.

        Each is of a ratio of two sums over steps that were drawn without replacement, taken as independent.
        """
        count = len(self.of_steps)
        if count < 2 or (steps_of_log is not None and steps_of_log <= count):
            return 0.0, 0.0
        # The correction for a finite population: where most steps were seen, little is left to be uncertain of.
        unseen = 1.0 if steps_of_log is None else 1 - count / steps_of_log
        before, after, even = (np.array(column, dtype=np.float64) for column in zip(*self.of_steps, strict=True))
        errors = []
        for taken in (before, after):
            # How far each step is from the ratio of the sums, which is what the error of such a ratio is made of.
            apart = even - taken * (even.sum() / taken.sum()) if taken.sum() else taken
            of_sum = math.sqrt(unseen * count / (count - 1) * float(apart @ apart))
            errors.append(of_sum / float(taken.sum()) if of_sum else 0.0)
        return errors[0], errors[1]

    @property
    def plan_ms(self) -> float:
        """Median time that a step took to plan."""
        return 1000 * median(self.seconds)

    def add(self, rows: Rows, plan: StepPlan) -> None:
        """Take in a step."""
        ratio, before, after, all_even = Fraction(0), 0, 0, Fraction(0)
        for name, phase in plan.phases.items():
            if plan.encoders_in_pipeline and name != [*plan.phases][-1]:
                continue  # the pipeline's makespan is that of all its phases
            each = phase.plan
            even = Fraction(even_rank_time(each)) / each.num_ranks
            before += int(each.home_makespan)
            after += int(each.makespan)
            self.bound += each.lower_bound
            all_even += even
            if each.binding_sample is not None and even:
                ratio = each.lower_bound / even
                if self.cap is None or ratio > self.cap.ratio:
                    sample = phase.items.sample_of_item[each.binding_sample]
                    row = int(plan.batch.rows_of(sample, rows.first_row))
                    self.cap = Cap(row, int(each.lengths[each.binding_sample]), float(ratio))
        self.before += before
        self.after += after
        self.even += all_even
        self.of_steps.append((before, after, all_even))
        self.capped += bool(ratio)
        traffic = [plan.traffic_of(name) for name in plan.stream_names]
        if plan.is_single:
            traffic = [phase.plan.traffic for phase in plan.phases.values()]
        self.moved += sum(each.inter_node + each.intra_node for each in traffic)
        self.steps += 1
        self.samples += plan.num_samples
        self.tokens += int(plan.batch.lengths.sum())
        self.longest = max(self.longest, int(plan.batch.lengths.max(initial=0)))
        self.seconds.append(plan.runtime_s)


def tried(sample: Sample, settings: LogSettings) -> Tried:
    """Plan the steps of a sample.

    Where samples run in other steps, none leaves its stretch, and the bound is that of all steps with their windows.

    Raises
    ------
    TypeError, ValueError, InfeasibleError, SolverError
        As :func:`balancer.offline.steps.plan_log`.
    """
    found, bounds = Tried(), list[int]()
    for rows, plan in _plans(sample, settings, bounds):
        found.add(rows, plan)
    # Bounds of single steps hold for the samples that are in them; samples that move need the bound of deferral.
    if bounds and settings.across is not None and (settings.across.early or settings.across.late):
        found.bound = float(sum(bounds))
    return found


def _plans(sample: Sample, settings: LogSettings, bounds: list[int]) -> Iterator[tuple[Rows, StepPlan]]:
    for stretch in sample.stretches:
        rows = rows_of_steps(
            sample.log, settings, read=stretch.reader(sample.log, settings),
            on_epoch=lambda epoch: bounds.append(epoch.lower_bound),
        )  # fmt: skip
        steps = Steps(sample.log, settings)
        for each in rows:
            yield each, steps.plan(each, plan_step)
