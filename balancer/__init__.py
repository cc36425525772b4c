"""Dispatch plans that make data-parallel ranks finish together, each with a proof of how close to perfect it is.

Start with :func:`balance`.
"""

from balancer._installed import check_solvers

check_solvers()

from balancer._version import __version__  # noqa: E402 (only now is it sure whose solvers those import)
from balancer.cost import CostModel  # noqa: E402
from balancer.errors import InputError, PlanError  # noqa: E402
from balancer.exchange import RankExchange  # noqa: E402
from balancer.micro_batches import MicroBatches  # noqa: E402
from balancer.orchestrator import orchestrate  # noqa: E402
from balancer.phases import Phase  # noqa: E402
from balancer.placement import Placement  # noqa: E402
from balancer.plan import DispatchPlan  # noqa: E402
from balancer.planner import balance, warmup  # noqa: E402
from balancer.ragged import Ragged  # noqa: E402
from balancer.step_plan import StepPlan  # noqa: E402
from balancer.topology import Topology  # noqa: E402

__all__ = [
    "CostModel",
    "DispatchPlan",
    "InputError",
    "MicroBatches",
    "Phase",
    "Placement",
    "PlanError",
    "Ragged",
    "RankExchange",
    "StepPlan",
    "Topology",
    "__version__",
    "balance",
    "load_plan",
    "load_plans",
    "load_steps",
    "orchestrate",
    "warmup",
]


def __getattr__(name: str) -> object:
    if name in ("load_plan", "load_plans"):  # bring in the file formats, which planning at run time does not need
        from balancer import offline

        return getattr(offline, name)
    if name == "load_steps":
        from balancer import offline_steps

        return offline_steps.load_steps
    raise AttributeError(f"module 'balancer' has no attribute {name!r}")
