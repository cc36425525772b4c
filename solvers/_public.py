"""What :mod:`solvers` offers, brought in when the first of it is asked for."""

# Not `from solvers`, which would ask for this module.
import solvers.pipeline as pipeline
from solvers.bounds import makespan_lower_bound
from solvers.check import check_packing, check_partition, check_schedule, check_shares
from solvers.constraints import Constraints
from solvers.context import ContextShardsResult, check_context_shards, context_shards
from solvers.deferral import DeferralResult, check_deferral, defer
from solvers.errors import (
    CertificateError,
    ContradictionError,
    InfeasibilityCertificate,
    InfeasibleError,
    SolverError,
    TimeLimitError,
)
from solvers.grouping import (
    LongShortResult,
    SequenceGroupsResult,
    check_long_short,
    check_long_short_groups,
    check_sequence_groups,
    long_short,
    long_short_groups,
    sequence_groups,
)
from solvers.packing import (
    PACKERS,
    BatchLimits,
    PackingResult,
    ScheduleResult,
    SharesResult,
    cut_shares,
    pack,
    schedule_micro_batches,
)
from solvers.partitioning import (
    PARTITIONERS,
    USES_CLOCK,
    mixed,
    padded,
    partition,
)
from solvers.pipeline import (
    MultiplexedResult,
    PipelineCut,
    PipelineRequest,
    PipelineResult,
    TaskRequest,
    check_multiplexed,
    check_pipeline,
    schedule_multiplexed,
    schedule_pipeline,
)
from solvers.rearrangement import (
    REARRANGERS,
    Rearrangement,
    Volumes,
    check_rearrangement,
    group_volumes,
    rearrange,
)
from solvers.relocation import (
    Relocation,
    check_relocation,
    relocate,
)
from solvers.types import PartitionResult, SolveStatus

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
