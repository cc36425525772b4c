"""Index functions with the signatures of slime's ``utils/seqlen_balancing.py`` and ``utils/data.py``."""

from typing import Any

from balancer.compat._partitions import first_fit_count
from balancer.compat.verl import get_reverse_idx, get_seqlen_balanced_partitions

__all__ = ["get_minimum_num_micro_batch_size", "get_reverse_idx", "get_seqlen_balanced_partitions"]


def get_minimum_num_micro_batch_size(total_lengths: Any, max_tokens_per_gpu: int) -> int:
    """Return how many micro-batches first fit needs; the same number as there, so that other ranks may run theirs.

    Examples
    --------
    >>> get_minimum_num_micro_batch_size([5, 3, 7, 2, 6], 10)
    3
    """
    return first_fit_count(total_lengths, max_tokens_per_gpu)
