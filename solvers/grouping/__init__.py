"""Ranks into groups of unequal size that share items, slot after slot: sequence parallelism where samples are long."""

from solvers.grouping._problem import SequenceProblem, as_degrees
from solvers.grouping._request import SequenceRequest
from solvers.grouping.bounds import closed_form
from solvers.grouping.long_short import LongShortResult, long_short, long_short_groups
from solvers.grouping.long_short_verify import check_long_short, check_long_short_groups
from solvers.grouping.solver import sequence_groups
from solvers.grouping.types import MOST_RANK_TIME, SequenceGroupsResult
from solvers.grouping.verify import check_sequence_groups

__all__ = ["MOST_RANK_TIME", "LongShortResult", "SequenceGroupsResult", "SequenceProblem", "SequenceRequest",
           "as_degrees", "check_long_short", "check_long_short_groups", "check_sequence_groups", "closed_form",
           "long_short", "long_short_groups", "sequence_groups"]  # fmt: skip
