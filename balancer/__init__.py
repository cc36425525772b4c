"""Dispatch plans that make data-parallel ranks finish together, each with a proof of how close to perfect it is.

Start with :func:`balance`.
"""

from typing import TYPE_CHECKING, Any

from balancer._installed import check_solvers

check_solvers()

if TYPE_CHECKING:
    from balancer._public import *  # noqa: F403

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
    "PackedDataset",
    "Packs",
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
    "advise",
    "balance",
    "configure",
    "defer",
    "load_plan",
    "load_steps",
    "orchestrate",
    "pack",
    "plan_log",
    "reshard",
    "warmup",
]


def __getattr__(name: str) -> Any:
    """Import all that planning needs when the first of it is asked for."""
    if name in ("load_plan", "load_steps"):  # they bring in file formats, which planning does not need
        from balancer.offline import load

        return getattr(load, name)
    if name in ("pack", "Packs", "PackedDataset"):  # so do these
        from balancer.offline import packed_dataset, packs

        return getattr(packed_dataset if name == "PackedDataset" else packs, name)
    if name == "plan_log":  # it brings in what reports need
        from balancer.report.plan_log import plan_log

        return plan_log
    if name == "advise":
        from balancer.advice.advise import advise

        return advise
    if name == "configure":  # it brings in all that simulates
        from balancer.layout_choice.choose import configure

        return configure
    if not name.startswith("__") or name in __all__:
        import balancer._public as public

        globals().update({each: getattr(public, each) for each in public.__all__})
        if name in globals():  # or one of the packages that these are in
            return globals()[name]
    raise AttributeError(f"module 'balancer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__} - {"Any", "TYPE_CHECKING", "check_solvers"})
