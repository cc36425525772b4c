"""Dispatch plans that make data-parallel ranks finish together, each with a proof of how close to perfect it is.

Start with :func:`balance`.
"""

from balancer._installed import check_solvers

check_solvers()

from balancer._version import __version__  # noqa: E402 (only now is it sure whose solvers those import)
from balancer.cost import CostModel  # noqa: E402
from balancer.errors import InputError, PlanError  # noqa: E402
from balancer.plan.dispatch_plan import DispatchPlan  # noqa: E402
from balancer.plan.exchange import RankExchange  # noqa: E402
from balancer.plan.step_plan import StepPlan, reshard  # noqa: E402
from balancer.planning.planner import balance  # noqa: E402
from balancer.planning.step import orchestrate  # noqa: E402
from balancer.planning.warmup import warmup  # noqa: E402
from balancer.problem.layout import ModuleLayout, StepLayout  # noqa: E402
from balancer.problem.mesh import Mesh  # noqa: E402
from balancer.problem.micro_batches import MicroBatches  # noqa: E402
from balancer.problem.phases import Phase  # noqa: E402
from balancer.problem.pipeline_stages import PipelineStages  # noqa: E402
from balancer.problem.placement import Placement  # noqa: E402
from balancer.problem.ragged import Ragged  # noqa: E402
from balancer.problem.sequence_groups import SequenceGroups  # noqa: E402
from balancer.problem.topology import Topology  # noqa: E402

__all__ = [
    "CostModel",
    "DispatchPlan",
    "InputError",
    "Mesh",
    "MicroBatches",
    "ModuleLayout",
    "Phase",
    "PipelineStages",
    "Placement",
    "PlanError",
    "Ragged",
    "RankExchange",
    "SequenceGroups",
    "StepLayout",
    "StepPlan",
    "Topology",
    "__version__",
    "balance",
    "configure",
    "load_plan",
    "load_plans",
    "load_steps",
    "orchestrate",
    "reshard",
    "warmup",
]


def __getattr__(name: str) -> object:
    if name in ("load_plan", "load_plans", "load_steps"):  # they bring in file formats, which planning does not need
        from balancer.offline import load

        return getattr(load, name)
    if name == "configure":  # it brings in all that simulates
        from balancer.simulate.configure import configure

        return configure
    raise AttributeError(f"module 'balancer' has no attribute {name!r}")
