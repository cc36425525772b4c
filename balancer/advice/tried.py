"""One way to plan the steps of a sample: the table of these steps, and what is asked of it."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from balancer.advice.sample import Sample
from balancer.offline.settings import LogSettings
from balancer.offline.step_table import StepRows, total
from balancer.offline.steps import Steps, rows_of_steps
from balancer.plan.step_plan import StepPlan
from balancer.step_planner import Step, plan_step

__all__ = ["Cap", "Tried", "tried"]

Floats = NDArray[np.float64]


class Cap(NamedTuple):
    """Steps in which one sample alone costs more than a fair share, and the worst of these samples."""

    steps: int = 0
    row: int = -1
    length: int = 0
    ratio: float = 1.0  # no plan of its step has a smaller imbalance ratio


@dataclass(frozen=True)
class Tried:
    """What steps take in units of cost, of several phases one after the other.

    Attributes
    ----------
    table : pyarrow.Table
        The table of these steps.
    seconds : list of float
        What each step took to plan: of all here the only numbers that a clock gave.
    of_windows : float or None
        Proven, where samples run in other steps: no plan with these windows takes less. Bounds of single steps hold for
        the samples that are in them.
    """

    table: pa.Table
    seconds: list[float] = field(repr=False)
    of_windows: float | None = None

    @cached_property
    def _phases(self) -> pa.Table:
        """The rows of phases with a makespan of their own: not the stages of another one's pipeline."""
        own = pc.and_(pc.is_valid(self.table["makespan"]), pc.invert(pc.fill_null(self.table["in_pipeline"], False)))
        return self.table.filter(own)

    @cached_property
    def _last(self) -> pa.Table:
        """The rows of the last phase."""
        names = self._phases["phase"]
        return self._phases.filter(pc.equal(names, names[-1])) if len(names) else self._phases

    @property
    def steps(self) -> int:
        """How many steps were planned."""
        return len(self._last)

    @property
    def tokens(self) -> int:
        """What they hold, in lengths of the last phase."""
        return int(total(self._last["elements"]))

    @property
    def longest(self) -> int:
        """The longest sample."""
        return int(pc.max(self._last["longest"]).as_py() or 0)

    def of_steps(self, name: str) -> Floats:
        """Return of each step what a column of rank-time has of a rank, all phases one after the other: float64[n]."""
        steps, ranks = self._phases["step"].to_numpy(), self._phases["ranks"].to_numpy()
        _, at = np.unique(steps, return_inverse=True)
        return np.asarray(np.bincount(at, self._phases[name].to_numpy() / ranks), dtype=np.float64)

    def time(self, name: str) -> float:
        """Return the same of all steps."""
        return math.fsum(self.of_steps(name).tolist())

    @property
    def bound(self) -> float:
        """Proven: no plan of this kind takes less."""
        return self.time("bound") if self.of_windows is None else self.of_windows

    def waiting(self, name: str = "after") -> float:
        """Return the share of the time, ``before`` or ``after``, that the mean rank waits."""
        taken = self.time(name)
        return 1 - self.time("even") / taken if taken else 0.0

    def waiting_error(self, steps_of_log: int | None, name: str = "after") -> float:
        """Return the standard error of that share; 0 where all steps of the log are here.

        It is that of a ratio of two sums over steps that were drawn without replacement, taken as independent.
        """
        taken, even = self.of_steps(name), self.of_steps("even")
        count = len(taken)
        if count < 2 or not taken.sum() or (steps_of_log is not None and steps_of_log <= count):
            return 0.0
        # The correction for a finite population: where most steps were seen, little is left to be uncertain of.
        unseen = 1.0 if steps_of_log is None else 1 - count / steps_of_log
        # How far each step is from the ratio of the sums, which is what the error of such a ratio is made of.
        apart = even - taken * (even.sum() / taken.sum())
        return math.sqrt(unseen * count / (count - 1) * float(apart @ apart)) / float(taken.sum())

    @property
    def cap(self) -> Cap:
        """Which samples bound all plans within the step."""
        rows = self._phases.filter(pc.and_(pc.is_valid(self._phases["cap_row"]), pc.greater(self._phases["even"], 0)))
        if not len(rows):
            return Cap()
        ratios = rows["bound"].to_numpy() / rows["even"].to_numpy()
        worst = rows.slice(int(np.argmax(ratios)), 1).to_pylist()[0]
        return Cap(len(pc.unique(rows["step"])), worst["cap_row"], worst["cap_length"], float(ratios.max()))

    @property
    def moved(self) -> float:
        """What a rank sends to others in a step on average: elements of a single phase, bytes of several."""
        moved = total(self.table["crosses"]) + total(self.table["within"])
        return moved / float(self.steps * self._last["ranks"][0].as_py())

    @property
    def plan_ms(self) -> float:
        """Median time that a step took to plan."""
        return 1000 * median(self.seconds)


def tried(sample: Sample, settings: LogSettings, strategy: Callable[[Step], StepPlan] = plan_step) -> Tried:
    """Plan the steps of a sample.

    Where samples run in other steps, none leaves its stretch, and the bound is that of all steps with their windows.

    Raises
    ------
    TypeError, ValueError, InfeasibleError, SolverError
        As :func:`balancer.offline.steps.plan_log`.
    """
    rows, seconds, bounds = StepRows(), list[float](), list[int]()
    steps = Steps(sample.log, settings)
    for stretch in sample.stretches:
        for each in rows_of_steps(
            sample.log, settings, rows=stretch.rows, on_epoch=lambda epoch: bounds.append(epoch.lower_bound)
        ):
            plan = steps.plan(each, strategy)
            rows.add(rows.steps, plan, each.first_row)
            seconds.append(plan.runtime_s)
    windows = bounds and settings.across is not None and settings.across.window
    return Tried(rows.table(), seconds, float(sum(bounds)) if windows else None)
