"""The engine room of seqbalancer: integers in, groups out, every answer with a proof of how far from perfect it is.

Nothing here knows a token, a file or a GPU. Start with :func:`partition`.
"""

from solvers.bounds import makespan_lower_bound
from solvers.constraints import Constraints
from solvers.errors import (
    CertificateError,
    ContradictionError,
    InfeasibilityCertificate,
    InfeasibleError,
    SolverError,
    TimeLimitError,
)
from solvers.packing import (
    PACKERS,
    PackingResult,
    ScheduleResult,
    SplitResult,
    check_packing,
    check_schedule,
    check_split,
    pack,
    schedule_micro_batches,
    split_contiguous,
    split_fewest,
)
from solvers.partition import (
    PARTITIONERS,
    SUPPORTED,
    USES_CLOCK,
    auto,
    bldm,
    exact,
    karmarkar_karp,
    lpt,
    mixed,
    multifit,
    padded,
    partition,
    round_robin,
    slack,
)
from solvers.rearrangement import (
    REARRANGERS,
    RearrangementResult,
    Volumes,
    check_rearrangement,
    group_volumes,
    rearrange,
)
from solvers.relocation import (
    RELOCATORS,
    RelocationFrontier,
    RelocationResult,
    check_relocation,
    relocate,
    relocation_frontier,
)
from solvers.types import PartitionResult, SolveStatus
from solvers.verify import check_partition

__all__ = [
    "PACKERS",
    "PARTITIONERS",
    "REARRANGERS",
    "RELOCATORS",
    "SUPPORTED",
    "USES_CLOCK",
    "CertificateError",
    "Constraints",
    "ContradictionError",
    "InfeasibilityCertificate",
    "InfeasibleError",
    "PackingResult",
    "PartitionResult",
    "RearrangementResult",
    "RelocationFrontier",
    "RelocationResult",
    "ScheduleResult",
    "SolveStatus",
    "SolverError",
    "SplitResult",
    "TimeLimitError",
    "Volumes",
    "auto",
    "bldm",
    "check_packing",
    "check_partition",
    "check_rearrangement",
    "check_relocation",
    "check_schedule",
    "check_split",
    "exact",
    "group_volumes",
    "karmarkar_karp",
    "lpt",
    "makespan_lower_bound",
    "mixed",
    "multifit",
    "pack",
    "padded",
    "partition",
    "rearrange",
    "relocate",
    "relocation_frontier",
    "round_robin",
    "schedule_micro_batches",
    "slack",
    "split_contiguous",
    "split_fewest",
]
