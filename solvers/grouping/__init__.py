"""Ranks into groups of unequal size that share items, slot after slot: sequence parallelism where samples are long."""

from solvers.grouping.check import check_long_short, check_long_short_groups, check_sequence_groups
from solvers.grouping.long_short import LongShortResult, long_short, long_short_groups
from solvers.grouping.sequence_groups import (
    MOST_RANK_TIME,
    SequenceGroupsResult,
    SequenceProblem,
    as_degrees,
    closed_form,
    sequence_groups,
)

__all__ = ["MOST_RANK_TIME", "LongShortResult", "SequenceGroupsResult", "SequenceProblem", "as_degrees",
           "check_long_short", "check_long_short_groups", "check_sequence_groups", "closed_form", "long_short",
           "long_short_groups", "sequence_groups"]  # fmt: skip
