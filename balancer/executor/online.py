"""Costs that follow the cluster: ranks report their times with their lengths, one fits, and all plan by what it says.

Nothing is sent for it alone. A rank's times go with its next message, beside the sums of the lengths that it ran, so
that it does not matter how many steps have been made ahead meanwhile. The first rank fits, and sends the costs with its
own: the next plan of all ranks, itself included, is made with these.
"""

import math
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from balancer.cost import CostModel, OnlineCost
from balancer.cost.integer import integers_together
from balancer.executor.dispatched import Dispatched
from balancer.problem.cuts.pipeline_stages import PipelineStages
from balancer.problem.phases import SINGLE_PHASE
from balancer.problem.setup import Setup

__all__ = ["Correction", "CostCorrection", "as_online"]


@dataclass(frozen=True, slots=True)
class CostCorrection:
    """How the cost of a phase is corrected: the same on all ranks."""

    # Whether plans are made with corrected coefficients, which is while they predict better than those given
    active: bool
    coefficients: tuple[float, ...]  # c0, a, b and those of areas in use, in seconds
    # Mean relative error of the model given and of the corrected one over the last steps; NaN before the first
    base_error: float
    corrected_error: float


def as_online(cost: Any, phases: Any) -> dict[str, OnlineCost]:
    """Return the costs to correct by phase, of none if `cost` is one that stays as it is."""
    if not isinstance(cost, OnlineCost | Mapping):
        return {}
    if isinstance(cost, Mapping) != (phases is not None):
        raise TypeError("cost must be one OnlineCost without phases, and with phases map them to one each")
    online = dict(cost) if isinstance(cost, Mapping) else {SINGLE_PHASE: cost}
    for name, each in online.items():
        if not isinstance(each, OnlineCost):
            raise TypeError(f"cost[{name!r}] must be an OnlineCost, got {each!r}: other costs are those of each phase")
    return online


class Correction:
    """What of the costs is corrected, and how far it has come.

    Costs of the phases of `online` are taken from there, all else from a setup as it would be without; a ValueError
    says where they do not go together. The first rank fits: `fits` is whether that is this one.
    """

    def __init__(self, online: Mapping[str, OnlineCost], setup: Setup, fits: bool) -> None:
        self._online, self._given, self._fits = dict(online), setup, fits
        self._waiting: deque[list[float]] = deque()  # which a thread may empty
        _check(setup, self._online)
        stages = _stages(setup)
        self._parts = {name: sum(stages.forward[name]) if stages else 1 for name in self._online}
        self._costs: dict[str, CostModel] = {}
        self.state: dict[str, CostCorrection] = {}
        self.setup = setup
        self._take_over(self._to_say())

    def observe(self, step: Dispatched | None, seconds: Any) -> None:
        """Keep how long this rank took for each phase of a step, until its next message."""
        if step is None:
            raise RuntimeError("observe tells how long the step took that was dispatched last: dispatch one before")
        took = dict(seconds) if isinstance(seconds, Mapping) else {next(iter(self._online)): seconds}
        if not isinstance(seconds, Mapping) and len(self._online) > 1:
            raise TypeError(f"seconds must map phases ({', '.join(self._online)}) to numbers, got {seconds!r}")
        for name, value in took.items():
            if name not in self._online:
                raise ValueError(
                    f"seconds are of phase {name!r}, whose cost is not corrected: {', '.join(self._online)}"
                )
            if value is None:
                continue
            if not 0 < float(value) < math.inf:
                raise ValueError(f"seconds of a phase must be positive and finite, got {value!r} for {name!r}")
            held, lengths = step.planned(name)
            speeds = next(phase.rank_speeds for phase in self._given.phases if phase.name == name)
            # On a slow rank the same work takes longer, which says nothing of the cost.
            pace = 1.0 if speeds is None else speeds[held] / max(speeds)
            sums = self._online[name].sums(lengths).tolist()
            self._waiting.append([list(self._online).index(name), *sums, float(value) * pace])

    def message(self) -> dict[str, Any]:
        """Return what this rank says of costs in its next message."""
        observed = []
        while self._waiting:
            observed.append(self._waiting.popleft())
        return {"observed": observed} | ({"costs": self._to_say()} if self._fits else {})

    def take_in(self, said: Sequence[Mapping[str, Any]]) -> Setup:
        """Return what to plan with, given what all ranks say; the rank that fits learns from it for the next step."""
        if costs := said[0].get("costs"):
            self._take_over(costs)
        if self._fits:
            self._learn([row for of_rank in said for row in of_rank.get("observed", [])])
        return self.setup

    def _learn(self, observed: Sequence[Sequence[float]]) -> None:
        for place, (name, online) in enumerate(self._online.items()):
            rows = [row[1:] for row in observed if row[0] == place]
            before = online.active
            if rows:
                online.observe_ranks([row[:-1] for row in rows], [row[-1] for row in rows])
            if before and not online.active:
                of_phase = "" if name == SINGLE_PHASE else f" of phase {name!r}"
                warnings.warn(
                    f"plans are made with the cost{of_phase} as it was given again: corrected by what was measured it "
                    f"predicts steps no better (off by {online.corrected_error:.1%}, not {online.base_error:.1%})",
                    RuntimeWarning,
                    stacklevel=2,
                )

    def _to_say(self) -> tuple[dict[str, CostModel], dict[str, CostCorrection]]:
        """Return of each phase its cost, in integers, and how it was come by."""
        seconds = {
            name: {term: value / self._parts[name] for term, value in online.terms.items() if term != "c0"}
            for name, online in self._online.items()
        }
        costs = self._costs  # which stay where what was measured depends on lengths no more
        if any(any(terms.values()) for terms in seconds.values()):
            costs = integers_together(seconds)
        elif not costs:
            raise ValueError("costs to correct need an a or b over 0: plans depend on lengths alone")
        return costs, {
            name: CostCorrection(online.active, tuple(online.coefficients), online.base_error, online.corrected_error)
            for name, online in self._online.items()
        }

    def _take_over(self, said: tuple[dict[str, CostModel], dict[str, CostCorrection]]) -> None:
        """Plan with the costs that the rank which fits has sent."""
        costs, self.state = said
        if costs == self._costs:
            return
        self._costs = costs
        phases = tuple(replace(phase, cost=costs.get(phase.name, phase.cost)) for phase in self._given.phases)
        settings = replace(self._given.settings, cut=self._given.settings.cut.with_costs(costs))
        self.setup = replace(self._given, phases=phases, settings=settings)


def _stages(setup: Setup) -> PipelineStages | None:
    return getattr(setup.settings.cut, "stages", None)


def _check(setup: Setup, online: Mapping[str, OnlineCost]) -> None:
    """Refuse costs to correct that nobody could plan with."""
    names = [phase.name for phase in setup.phases]
    if odd := [name for name in online if name not in names]:
        raise ValueError(f"cost is of phase {odd[0]!r}; phases are {', '.join(names)}")
    if setup.settings.cut.shares:
        raise ValueError("a cost that is corrected cannot be combined with sequence_groups: ranks share its samples")
    if shared := [phase.name for phase in setup.phases if phase.sequence_parallel and phase.name in online]:
        raise ValueError(f"a cost that is corrected cannot be combined with sequence_parallel of phase {shared[0]!r}")
    stages = _stages(setup)
    if (stages is not None or setup.settings.mode != "separate") and set(online) != set(names):
        missing = ", ".join(name for name in names if name not in online)
        raise ValueError(f"phases that are planned together need costs in one unit: correct that of {missing} too")
    if stages is not None and (stages.hop or stages.overhead):
        raise ValueError(
            "hop and overhead of stages are in units of a cost, which one that is corrected has not: use 0"
        )
    for phase in setup.phases:
        if phase.name in online and phase.initial_loads is not None:
            raise ValueError(
                "initial_loads are in units of a cost, which one that is corrected has not: leave them out"
            )
