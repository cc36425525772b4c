"""Ranks into groups of unequal size that share items, slot after slot: sequence parallelism where samples are long."""

from solvers.sequence_groups.solver import sequence_groups
from solvers.sequence_groups.types import SequenceGroupsResult
from solvers.sequence_groups.verify import check_sequence_groups

__all__ = ["SequenceGroupsResult", "check_sequence_groups", "sequence_groups"]
