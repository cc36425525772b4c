"""Index functions with the signatures of OpenRLHF's ``utils/seqlen_balancing.py``."""

from typing import Any

from balancer.compat._partitions import as_lengths, first_fit_count
from balancer.compat.verl import ceildiv, get_reverse_idx, get_seqlen_balanced_partitions, log_seqlen_unbalance
from solvers.errors import ArgumentError

__all__ = ["ceildiv", "get_minimum_num_micro_batch_size", "get_reverse_idx", "get_seqlen_balanced_partitions",
           "log_seqlen_unbalance"]  # fmt: skip


def get_minimum_num_micro_batch_size(
    total_lengths: Any, max_tokens_per_gpu: int, ring_attn_size: int, ds_tensor_parallel_size: int
) -> int:
    """Return how many micro-batches first fit needs, each as long as so many GPUs hold together.

    The same number as there, as other ranks may run theirs.

    Raises
    ------
    ValueError
        A sample that they do not hold, as newer releases have it; older ones gave it a micro-batch of its own.

    Examples
    --------
    >>> get_minimum_num_micro_batch_size([5, 3, 7, 2, 6], 5, ring_attn_size=2, ds_tensor_parallel_size=1)
    3
    """
    cap = max_tokens_per_gpu * ring_attn_size * ds_tensor_parallel_size
    for index, length in enumerate(as_lengths("total_lengths", total_lengths).tolist()):
        if length > cap:
            raise ArgumentError("total_lengths", f"be <= {cap}, what the GPUs of a sequence hold", length, index)
    return first_fit_count(total_lengths, cap)
