"""Ranks into groups of unequal size that share items, slot after slot: sequence parallelism where samples are long."""

from solvers.sequence_groups._problem import as_degrees
from solvers.sequence_groups._request import SequenceRequest
from solvers.sequence_groups.long_short import LongShortResult, long_short, long_short_groups
from solvers.sequence_groups.long_short_verify import check_long_short, check_long_short_groups
from solvers.sequence_groups.lower_bound import sequence_groups_lower_bound
from solvers.sequence_groups.solver import sequence_groups
from solvers.sequence_groups.types import (
    MOST_RANK_TIME,
    SequenceBound,
    SequenceBoundCertificate,
    SequenceGroupsResult,
)
from solvers.sequence_groups.verify import check_sequence_bound, check_sequence_groups

__all__ = ["MOST_RANK_TIME", "LongShortResult", "SequenceBound", "SequenceBoundCertificate", "SequenceGroupsResult",
           "SequenceRequest", "as_degrees", "check_long_short", "check_long_short_groups", "check_sequence_bound",
           "check_sequence_groups", "long_short", "long_short_groups", "sequence_groups",
           "sequence_groups_lower_bound"]  # fmt: skip
