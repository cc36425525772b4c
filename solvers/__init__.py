"""The algorithms of seqbalancer: integers in, groups out, each with a proof of how far it is from the optimum.

Nothing here depends on tokens, files or GPUs. Start with :func:`partition`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from solvers._public import *  # noqa: F403

__all__ = [
    "PACKERS",
    "PARTITIONERS",
    "REARRANGERS",
    "USES_CLOCK",
    "BatchLimits",
    "CertificateError",
    "Constraints",
    "ContextShardsResult",
    "ContradictionError",
    "DeferralResult",
    "InfeasibilityCertificate",
    "InfeasibleError",
    "LongShortResult",
    "MultiplexedResult",
    "PackingResult",
    "PartitionResult",
    "PipelineCut",
    "PipelineRequest",
    "PipelineResult",
    "Rearrangement",
    "Relocation",
    "ScheduleResult",
    "SequenceGroupsResult",
    "SharesResult",
    "SolveStatus",
    "SolverError",
    "TaskRequest",
    "TimeLimitError",
    "Volumes",
    "check_context_shards",
    "check_deferral",
    "check_long_short",
    "check_long_short_groups",
    "check_multiplexed",
    "check_packing",
    "check_partition",
    "check_pipeline",
    "check_rearrangement",
    "check_relocation",
    "check_schedule",
    "check_sequence_groups",
    "check_shares",
    "context_shards",
    "cut_shares",
    "defer",
    "group_volumes",
    "long_short",
    "long_short_groups",
    "makespan_lower_bound",
    "mixed",
    "pack",
    "padded",
    "partition",
    "pipeline",
    "rearrange",
    "relocate",
    "schedule_micro_batches",
    "schedule_multiplexed",
    "schedule_pipeline",
    "sequence_groups",
]


def __getattr__(name: str) -> Any:
    """Import all of it when the first is asked for; whoever needs one room imports that alone."""
    if not name.startswith("__"):
        import solvers._public as public

        globals().update({each: getattr(public, each) for each in public.__all__})
        if name in globals():  # or one of the packages that these are in
            return globals()[name]
    raise AttributeError(f"module 'solvers' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__} - {"Any", "TYPE_CHECKING"})
