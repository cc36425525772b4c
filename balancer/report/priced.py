"""A plan's steps priced by another cost than they were planned by, and what ranks then wait for."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from balancer.cost import CostModel
from balancer.errors import InputError
from balancer.plan.dispatch_plan import DispatchPlan
from balancer.plan.step_plan import StepPlan
from balancer.report.text import of_phase


@dataclass(slots=True)
class PricedSteps:
    """Adds up, step by step and phase by phase, what plans take by other costs."""

    costs: Mapping[str, CostModel]  # by phase; under no name that of the only one
    # By phase: the cost it was planned by; makespans and means by that, then by the other
    planned_by: dict[str, str] = field(default_factory=dict)
    _sums: dict[str, list[float]] = field(default_factory=dict)

    def add(self, step: StepPlan) -> None:
        """Take in the next step; InputError where a phase is not there, or its stages have costs of their own."""
        if not self.costs:
            return
        if odd := [name for name in self.costs if name and name not in step.phases]:
            raise InputError(f"--cost is of phase {odd[0]!r}; the plan has {', '.join(step.phases)}")
        if "" in self.costs and not step.is_single:
            raise InputError(f"--cost must say of which phase it is, as PHASE=COST; there are {', '.join(step.phases)}")
        for name, phase in step.phases.items():
            cost = self.costs.get(name, self.costs.get(""))
            if cost is not None:
                self._add(name, phase.plan, cost)

    def _add(self, name: str, plan: DispatchPlan, cost: CostModel) -> None:
        if plan.cut.num_stages:
            raise InputError("--cost takes no pipelines: what a stage takes is its own part of its models")
        if not (cost.additive and plan.cost.additive):
            raise InputError(
                f"--cost takes costs that add up over samples, not {cost if plan.cost.additive else plan.cost}"
            )
        # The placement stays as it is; only what its samples cost is another.
        placed = replace(plan.placed, problem=plan.problem.priced_by(cost))
        loads, makespan = placed.measured()
        self.planned_by[name] = str(plan.cost)
        sums = self._sums.setdefault(name, [0.0] * 4)
        for at, (most, (total, ranks)) in enumerate((
            (plan.makespan, plan.placed.ideal(plan.loads, plan.home_loads)), (makespan, placed.ideal(loads, loads)),
        )):  # fmt: skip
            sums[2 * at] += most
            sums[2 * at + 1] += total / ranks

    def as_json(self) -> dict[str, Any]:
        """Return, by phase, both costs, and the share of time that is spent waiting by each."""
        return {
            name: {
                "planned_by": self.planned_by[name], "waiting": _waiting(*sums[:2]),
                "priced_by": str(self.costs.get(name, self.costs.get(""))), "waiting_priced": _waiting(*sums[2:]),
            }
            for name, sums in self._sums.items()
        }  # fmt: skip

    def lines(self) -> list[str]:
        """Say the same in words."""
        return [
            of_phase(
                name,
                f"ranks wait {found['waiting_priced']:.2%} of the time by {found['priced_by']}, and "
                f"{found['waiting']:.2%} by {found['planned_by']}, which it was planned by",
            )
            for name, found in self.as_json().items()
        ]


def _waiting(makespans: float, means: float) -> float:
    return 1 - means / makespans if makespans else 0.0
