"""Ranks into groups of unequal size that share items, slot after slot: sequence parallelism where samples are long."""

from solvers.grouping._problem import as_degrees
from solvers.grouping._request import SequenceRequest
from solvers.grouping.long_short import LongShortResult, long_short, long_short_groups
from solvers.grouping.long_short_verify import check_long_short, check_long_short_groups
from solvers.grouping.lower_bound import sequence_groups_lower_bound
from solvers.grouping.solver import sequence_groups
from solvers.grouping.types import (
    MOST_RANK_TIME,
    SequenceBound,
    SequenceBoundCertificate,
    SequenceGroupsResult,
)
from solvers.grouping.verify import check_sequence_bound, check_sequence_groups

__all__ = ["MOST_RANK_TIME", "LongShortResult", "SequenceBound", "SequenceBoundCertificate", "SequenceGroupsResult",
           "SequenceRequest", "as_degrees", "check_long_short", "check_long_short_groups", "check_sequence_bound",
           "check_sequence_groups", "long_short", "long_short_groups", "sequence_groups",
           "sequence_groups_lower_bound"]  # fmt: skip
