"""What a layout takes and holds, by exact schedules of its steps."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import solvers
from balancer.cuts.pipelines.timed import Timeline, scheduled
from balancer.layout_choice.bounds import LayoutCase, slots_held
from balancer.layout_choice.times import both_ways, gpus_of
from balancer.layouts.layout import StepLayout
from balancer.problem.step_times import PER_SECOND, StepItems, in_units

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Priced:
    """What a layout takes, the mean over the steps."""

    # With the number of micro-batches, and the most tokens that one may hold so that the memory is enough
    layout: StepLayout
    seconds: float  # of a step
    lower_bound_s: float  # no schedule of this layout, with as many micro-batches, takes less
    idle: float  # part of the time of all GPUs in which they compute and exchange for no module
    mfu: float  # useful FLOPs over what all GPUs could do
    bytes: float  # the most on any GPU in any of the steps
    # Of the seconds, encoders before the pipeline; gradients and parameters
    encoder_s: float
    sync_s: float

    def to_json(self) -> dict[str, Any]:
        """Return all numbers by name."""
        names = ("seconds", "lower_bound_s", "idle", "mfu", "bytes", "encoder_s", "sync_s")
        return {"layout": self.layout.to_json(), **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """One step as it was scheduled: seconds, a bound, bytes on the fullest GPU, and the slowest replica's run."""

    seconds: float
    bound: float
    encoder_s: float
    bytes: float
    slowest: Callable[[], Timeline]


def price(case: LayoutCase, time_budget: float, *, limited: bool = True) -> Priced | None:
    """Schedule all steps of a layout; None if no schedule was found that fits the memory.

    The budget is for each step. What is not `limited` need not fit.
    """
    given, layout = case.given, case.layout
    found: list[_Step] = []
    for step in given.steps:
        if (scheduled_step := _scheduled(case, step, time_budget, limited)) is None:
            return None
        found.append(scheduled_step)
    count = len(found)
    seconds = sum(step.seconds for step in found) / count + case.sync_s
    useful = sum(map(given.useful_flops, given.steps)) / count
    times = case.step_times if layout.mode == "multiplexed" and layout.encoders else None
    chosen = replace(layout, micro_batches=case.num_slots, micro_batch_tokens=_token_cap(case), times=times)
    return Priced(
        chosen, seconds, sum(step.bound for step in found) / count + case.sync_s, 1 - _busy(case) / seconds,
        useful / (seconds * given.num_gpus * given.cluster.peak_flops), max(step.bytes for step in found),
        sum(step.encoder_s for step in found) / count, case.sync_s,
    )  # fmt: skip


def timeline(case: LayoutCase, time_budget: float) -> Timeline | None:
    """Return the slowest replica of the first step, None if no schedule fits the memory."""
    step = _scheduled(case, case.given.steps[0], time_budget)
    return None if step is None else step.slowest()


def _busy(case: LayoutCase) -> float:
    """Seconds that all GPUs there are would take if none waited."""
    given, work = case.given, 0.0
    for name, rate in case.rates.items():
        work += gpus_of(case.layout, name) * float(both_ways(rate, *given.total(name)))
    return work / (len(given.steps) * given.num_gpus)


def _token_cap(case: LayoutCase) -> int | None:
    """Return how many tokens of the language model a micro-batch may hold, all in flight being as large."""
    llm = case.layout.llm_name
    per_token = case.memory.kept[llm] * slots_held(case.layout, case.num_slots) + case.memory.at_work[llm]
    if not per_token.any():
        return None
    return max(1, int((case.room[per_token > 0] / per_token[per_token > 0]).min()))


class _Before(NamedTuple):
    """Encoders before the pipeline: seconds, a bound, and what their ranks hold until their backward."""

    seconds: float
    bound: float
    held: float


def _scheduled(case: LayoutCase, step: StepItems, time_budget: float, limited: bool = True) -> _Step | None:
    """Schedule a step, None if nothing was found that fits the memory."""
    before = _before(case, step, time_budget)
    found = scheduled(case.step_times, step, case.room - before.held, time_budget, limited=limited)
    if found is None:
        return None
    fullest = float((found.bytes + case.memory.states).max()) + before.held
    seconds, bound = (
        spent + units / PER_SECOND
        for spent, units in ((before.seconds, found.result.makespan), (before.bound, found.result.lower_bound))
    )
    return _Step(seconds, bound, before.seconds, fullest, found.slowest)


def _before(case: LayoutCase, step: StepItems, time_budget: float) -> _Before:
    """Deal encoders' items out evenly to their ranks: those of encoders with equally many ranks together.

    Pieces are dealt out one by one.
    """
    seconds = bound = held = 0.0
    if case.layout.mode != "before":
        return _Before(0.0, 0.0, 0.0)
    for ranks in sorted({case.layout.modules[name].dp for name in case.apart}):
        names = [name for name in case.apart if case.layout.modules[name].dp == ranks]
        times, bytes_ = [], []
        for name in names:
            rate, piece = case.apart[name], case.given.pieces.get(name)
            count = np.maximum(1, np.ceil(step.lengths[name] / (piece or np.inf))).astype(np.int64)
            each, lengths = both_ways(rate, step.flops[name], step.lengths[name]), step.lengths[name]
            times.append(np.repeat(each / count, count))
            bytes_.append(np.repeat(lengths / count, count) * float(case.memory.kept[name].max()))
        found = solvers.partition(in_units(np.concatenate(times)), ranks, time_budget=time_budget, stop_at=0)
        seconds, bound = seconds + found.makespan / PER_SECOND, bound + found.lower_bound / PER_SECOND
        held += float(np.bincount(found.group_of_item, np.concatenate(bytes_), ranks).max())
    return _Before(seconds, bound, held)
