"""A plan's prediction beside what its ranks were measured to take, with the noise of ranks in it.

Of a rank that computes a load x in m micro-batches the prediction is ``m c0 + k x`` seconds, c0 and k fitted to all
ranks of all measured steps, relative to what is predicted. Ranks differ from it by noise: each takes its prediction
times a normal variable of mean 1 and standard deviation s, independent of all others. s is how far ranks are apart
*within* a step, relative to their predictions; what slows all ranks of a step alike makes none wait, and is not in it.

All wait for the slowest, and the expected largest of N noisy times lies above the largest expected one: for equal
predictions t it is ``t (1 + s e_N)``, where e_N is the expected maximum of N standard normal variables (0.56 of 2
ranks, 1.42 of 8, 2.34 of 64). For unequal ones it is the integral of x dG(x), G the product of the distributions.

References
----------
Harter, "Expected values of normal order statistics", Biometrika 48(1/2), 1961; David & Nagaraja, *Order Statistics*,
3rd edition, 2003.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from balancer.errors import InputError
from balancer.io.measurements import RankTimes
from balancer.plan.dispatch_plan import DispatchPlan
from balancer.plan.step_plan import StepPlan
from balancer.report.text import counted

_FEWEST_STEPS = 5
_VARIED = 0.1  # by which loads must differ, of the largest, for c0 to be told from k
_FITS = 4
_REACH = 8.0  # standard deviations, beyond which less than 1e-15 lies
_POINTS = 257

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MeasuredFit:
    """What a plan predicted of the steps that were measured, and what they took; all sums are over these steps."""

    steps: int
    ranks: int
    # Seconds of a micro-batch, and of a unit of load; c0 is 0 where loads are too much alike to tell the two apart
    c0_s: float
    load_s: float
    rank_noise: float  # s
    rank_error: float  # mean of |measured / predicted - 1| over all ranks and steps
    step_error: float  # mean of |predicted with noise / measured - 1| over the steps
    # Seconds until the slowest rank of each step is done: as measured; predicted, without and with the noise of ranks
    slowest_s: float
    predicted_s: float
    predicted_with_noise_s: float
    # Seconds predicted, without and with noise, of the samples as they were drawn, before the plan
    drawn_s: float
    drawn_with_noise_s: float

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return asdict(self)

    def lines(self, name: str) -> Iterator[str]:
        """Say it to a person."""
        yield (
            f"{name}: {counted(self.steps, 'step')} of {counted(self.ranks, 'rank')}; a rank's seconds = "
            f"{self.c0_s:.3g} a micro-batch + {self.load_s:.3g} a unit of load, off by {self.rank_error:.1%} "
            f"on the mean; noise of a rank {self.rank_noise:.1%}"
        )
        noisy = self.predicted_with_noise_s
        yield (
            f"slowest rank, s: measured {self.slowest_s:.4g}; predicted {self.predicted_s:.4g} "
            f"({self.predicted_s / self.slowest_s - 1:+.1%}), with the noise of ranks {noisy:.4g} "
            f"({noisy / self.slowest_s - 1:+.1%}; a step is off by {self.step_error:.1%} on the mean)"
        )
        yield (
            f"against samples as drawn, of which nothing was measured: predicted {self.predicted_s / self.drawn_s:.3f} "
            f"of the time, with noise {noisy / self.drawn_with_noise_s:.3f}; measured, of that with noise, "
            f"{self.slowest_s / self.drawn_with_noise_s:.3f}"
        )


class _Step(NamedTuple):
    """A measured step, by the meetings of its ranks: the step, or each of its slots where they meet there."""

    loads: _Floats  # float64[meetings, ranks]
    seconds: _Floats  # float64[meetings, ranks]
    drawn: _Floats  # float64[ranks]: loads of the whole step before the plan
    slots: int


@dataclass(slots=True)
class MeasuredSteps:
    """Gathers, step by step of a plan, what was predicted of the steps that were measured."""

    name: str  # of the file, in errors
    times: RankTimes
    _next: int = 0
    _steps: list[_Step] = field(default_factory=list)

    def add(self, step: StepPlan) -> None:
        """Take in the next step of the plan.

        Raises
        ------
        InputError
            Its times are not those of all ranks and micro-batches; or nothing can be compared with such a plan.
        """
        number, self._next = self._next, self._next + 1
        times = self.times.get(number)
        if times is None:
            return
        plan = _plan_of(step)
        seconds = self._checked(number, times, plan)
        speeds = plan.constraints.rank_speeds
        pace = np.ones(plan.num_ranks) if speeds is None else np.asarray(speeds, dtype=np.float64)
        loads = plan.slot_loads.T / pace
        if plan.cut.sync != "micro_batch":
            loads, seconds = loads.sum(axis=0, keepdims=True), seconds.sum(axis=0, keepdims=True)
        self._steps.append(_Step(loads, seconds, plan.home_loads / pace, plan.num_slots))

    def _checked(self, number: int, times: dict[int, list[float]], plan: DispatchPlan) -> _Floats:
        """Return the seconds of a step: float64[micro-batches, ranks]."""
        where, ranks, slots = f"{self.name}: step {number}", plan.num_ranks, plan.num_slots
        if over := [rank for rank in times if rank >= ranks]:
            raise InputError(f"{where} has rank {over[0]}; the plan has {counted(ranks, 'rank')}, counted from 0")
        if missing := [rank for rank in range(ranks) if rank not in times]:
            raise InputError(f"{where} has {len(times)} of {counted(ranks, 'rank')}: no rank {missing[0]}")
        for rank in range(ranks):
            if (rows := len(times[rank])) != slots:
                planned = counted(slots, "micro-batch")
                raise InputError(f"{where}, rank {rank} has {counted(rows, 'row')}; the plan has {planned}, a row each")
        return np.array([times[rank] for rank in range(ranks)]).T

    def fit(self) -> MeasuredFit:
        """Fit seconds and noise, after all steps of the plan.

        Raises
        ------
        InputError
            Steps that the plan does not have, too few of them, or times that do not grow with loads.
        """
        if beyond := [step for step in self.times if step >= self._next]:
            there = counted(self._next, "step")
            raise InputError(f"{self.name}: has step {min(beyond)}; the plan has {there}, counted from 0")
        if len(self.times) < _FEWEST_STEPS:
            there = counted(len(self.times), "step")
            raise InputError(f"{self.name}: has {there}, and a fit needs {_FEWEST_STEPS}: measure more")
        loads = np.concatenate([step.loads for step in self._steps])
        seconds = np.concatenate([step.seconds for step in self._steps])
        slots, meetings = np.array([step.slots for step in self._steps]), [len(step.loads) for step in self._steps]
        counts = np.repeat(slots / meetings, meetings)[:, None]  # micro-batches of each meeting
        constant, per_load = _line(loads, counts, seconds)
        if not per_load > 0:
            raise InputError(f"{self.name}: times do not grow with the plan's loads: are they of these steps?")
        predicted = counts * constant + per_load * loads
        ratio = seconds / predicted
        spread = ratio - ratio.mean(axis=1, keepdims=True)
        # Each meeting of ranks has given one degree of freedom to its own mean.
        noise = math.sqrt((spread**2).sum() / max(spread.size - len(spread), 1))
        step = np.repeat(np.arange(len(slots)), meetings)
        slowest, noisy = (np.bincount(step, of) for of in (seconds.max(axis=1), expected_largest(predicted, noise)))
        drawn = slots[:, None] * constant + per_load * np.stack([step.drawn for step in self._steps])
        return MeasuredFit(
            len(slots), loads.shape[1], constant, per_load, noise, rank_error=float(np.abs(ratio - 1).mean()),
            step_error=float(np.abs(noisy / slowest - 1).mean()), slowest_s=float(slowest.sum()),
            predicted_s=float(predicted.max(axis=1).sum()), predicted_with_noise_s=float(noisy.sum()),
            drawn_s=float(drawn.max(axis=1).sum()), drawn_with_noise_s=float(expected_largest(drawn, noise).sum()),
        )  # fmt: skip


def _plan_of(step: StepPlan) -> DispatchPlan:
    if not step.is_single:
        raise InputError(f"--measured compares plans of one phase; this one has {', '.join(step.phases)}")
    if step.last.cut.shares or step.last.cut.num_stages:
        raise InputError("--measured compares ranks that compute whole samples: no sequence groups, no pipelines")
    return step.last


def _line(loads: _Floats, counts: _Floats, seconds: _Floats) -> tuple[float, float]:
    """Return c0 and k >= 0 of ``counts c0 + k loads``, by least squares relative to what is predicted."""
    each, measured = loads / counts, seconds.ravel()
    both = np.column_stack([np.broadcast_to(counts, loads.shape).ravel(), loads.ravel()])
    columns = both if np.ptp(each) > _VARIED * each.max() else both[:, 1:]
    weight = 1 / measured
    for _ in range(_FITS):  # whose weights are those of the last, as noise in weights would make times too short
        found = np.linalg.lstsq(columns * weight[:, None], measured * weight, rcond=None)[0]
        if len(found) == 2 and found[0] < 0:  # no micro-batch takes less than nothing: the line goes through 0
            columns = both[:, 1:]
            found = np.linalg.lstsq(columns * weight[:, None], measured * weight, rcond=None)[0]
        predicted = columns @ found
        weight = 1 / np.where(predicted > 0, predicted, measured)
    return (0.0, *found.tolist())[-2:]


def expected_largest(times: _Floats, noise: float) -> _Floats:
    """Return the expected largest of N independent normal variables in each row, by numerical integration.

    Parameters
    ----------
    times : float64[k, N]
        Their means, >= 0.
    noise : float
        Their standard deviations, as a share of their means.

    Returns
    -------
    float64[k]

    Examples
    --------
    >>> expected_largest(np.ones((1, 8)), 0.03).round(4).tolist()
    [1.0427]
    """
    largest: _Floats = times.max(axis=1)
    if not noise > 0:
        return largest
    z, log_below = _normal()
    found = np.empty(len(times))
    for row, of_row in enumerate(times):
        reach = _REACH * noise * largest[row]
        x = np.linspace(largest[row] - reach, largest[row] + reach, _POINTS)
        near = of_row[of_row * (1 + _REACH * noise) > x[0]]  # of all others nothing reaches up to there
        below = np.interp((x[:, None] - near) / (noise * near), z, log_below).sum(axis=1)
        # By parts: the mean is the upper end less the integral of the distribution below it.
        found[row] = x[-1] - np.trapezoid(np.exp(below), x) if len(near) else largest[row]
    return found


@cache
def _normal() -> tuple[_Floats, _Floats]:
    """Return places, and there the logarithm of the standard normal distribution."""
    z = np.linspace(-_REACH, _REACH, 3201)
    return z, np.array([math.log(math.erfc(-each / math.sqrt(2)) / 2) for each in z.tolist()])
