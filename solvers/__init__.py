"""The engine room of seqbalancer: integers in, groups out, every answer with a proof of how far from perfect it is.

Nothing here knows a token, a file or a GPU. Start with :func:`partition`.
"""

from solvers.bounds import makespan_lower_bound
from solvers.errors import CertificateError, InfeasibleError, SolverError, TimeLimitError
from solvers.partition import (
    PARTITIONERS,
    USES_CLOCK,
    auto,
    bldm,
    exact,
    karmarkar_karp,
    lpt,
    multifit,
    padded,
    partition,
    round_robin,
    slack,
)
from solvers.types import PartitionResult, SolveStatus
from solvers.verify import check_partition

__all__ = [
    "PARTITIONERS",
    "USES_CLOCK",
    "CertificateError",
    "InfeasibleError",
    "PartitionResult",
    "SolveStatus",
    "SolverError",
    "TimeLimitError",
    "auto",
    "bldm",
    "check_partition",
    "exact",
    "karmarkar_karp",
    "lpt",
    "makespan_lower_bound",
    "multifit",
    "padded",
    "partition",
    "round_robin",
    "slack",
]
