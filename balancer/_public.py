"""All public names of the package, but for those that bring in more than planning needs."""

from balancer._version import __version__
from balancer.cost import CostModel
from balancer.deferral import DeferBuffer, Deferral, defer
from balancer.errors import InputError, PlanError
from balancer.layouts.layout import ModuleLayout, StepLayout
from balancer.layouts.mesh import Mesh
from balancer.layouts.step_plan import reshard
from balancer.plan.dispatch_plan import DispatchPlan
from balancer.plan.exchange import RankExchange
from balancer.plan.step_plan import StepPlan
from balancer.planner import balance
from balancer.problem.cuts.context_shards import ContextShards
from balancer.problem.cuts.micro_batches import MicroBatches
from balancer.problem.cuts.pipeline_stages import PipelineStages
from balancer.problem.cuts.pipelines import Pipelines
from balancer.problem.cuts.sequence_groups import SequenceGroups
from balancer.problem.limits import CountLimit, Everywhere, Kinds, Limit, PaddedLimit
from balancer.problem.phases import Phase
from balancer.problem.placement import Placement
from balancer.problem.ragged import Ragged
from balancer.problem.topology import Topology
from balancer.step_planner import orchestrate
from balancer.warming import warmup

__all__ = [
    "ContextShards",
    "CostModel",
    "CountLimit",
    "DeferBuffer",
    "Deferral",
    "DispatchPlan",
    "Everywhere",
    "InputError",
    "Kinds",
    "Limit",
    "Mesh",
    "MicroBatches",
    "ModuleLayout",
    "PaddedLimit",
    "Phase",
    "PipelineStages",
    "Pipelines",
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
    "defer",
    "orchestrate",
    "reshard",
    "warmup",
]
