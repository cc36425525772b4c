"""Index functions with the signatures of verl's ``utils/seqlen_balancing.py``: change the import, and nothing else.

They take what those take (lists, CPU tensors) and return the same types. Where those assert they work: fewer items than
partitions leave partitions empty, and sizes that do not divide are equal within one.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer.compat._partitions import as_lengths, balanced_partitions, inverse
from balancer.cost import parse_cost
from solvers.packing.schedule import schedule_micro_batches

__all__ = ["get_reverse_idx", "get_seqlen_balanced_partitions", "rearrange_micro_batches_idx"]

WORKLOAD = "quadratic:a=24576,b=1"
"""What a sample costs, as verl's ``calculate_workload`` has it: 24576 * length + length^2."""

_BUDGET = 0.01


def get_seqlen_balanced_partitions(seqlen_list: Any, k_partitions: int, equal_size: bool) -> list[list[int]]:
    """Partition items so that the sums of their lengths are even.

    Parameters
    ----------
    seqlen_list : list, array or CPU tensor of numbers >= 0
    k_partitions : int
    equal_size : bool
        Every partition gets as many items, within one where that does not divide.

    Returns
    -------
    list of list of int
        Indices, ascending within a partition. No partition is empty if there are enough items.

    Examples
    --------
    >>> sorted(get_seqlen_balanced_partitions([5, 3, 9, 1, 2, 4], 2, equal_size=True))
    [[0, 1, 5], [2, 3, 4]]
    """
    return balanced_partitions(seqlen_list, k_partitions, equal_size)


def get_reverse_idx(idx_map: Any) -> Any:
    """Return the inverse of a permutation: ``reverse[idx_map[i]] == i``, in the type of `idx_map`.

    Examples
    --------
    >>> get_reverse_idx([2, 0, 1])
    [1, 2, 0]
    """
    return inverse(idx_map)


def rearrange_micro_batches_idx(
    seqlen_list: Any,
    max_token_len: int,
    dp_group: Any = None,
    num_batches_divided_by: int | None = None,
    same_micro_num_in_dp: bool = True,
    min_num_micro_batch: int | None = None,
    use_dynamic_bsz_balance: bool = True,
    force_group_size: int = 1,
) -> list[list[int]]:
    """Return the second value of ``rearrange_micro_batches``: which samples make up each micro-batch.

    Unlike there, no micro-batch ever holds more than `max_token_len` tokens: their number is the fewest that keeps to
    it, not the total divided by the cap.

    Parameters
    ----------
    seqlen_list : list, array or CPU tensor of int
        Tokens of each sample: what is the sum of its attention mask there.
    max_token_len : int
    dp_group : ProcessGroup, optional
        All its ranks get as many micro-batches as the one that needs most; needs torch. Some may then be empty, where a
        rank has fewer samples: trainers that cannot run those ask for fewer ranks or larger mini-batches.
    num_batches_divided_by : int, optional
        Their number is a multiple of this.
    same_micro_num_in_dp : bool
    min_num_micro_batch : int, optional
    use_dynamic_bsz_balance : bool
        Put the micro-batches that cost least at both ends, where a pipeline fills and drains.
    force_group_size : int
        So many consecutive samples stay in one micro-batch.

    Returns
    -------
    list of list of int

    Raises
    ------
    InfeasibleError
        A sample, or a group of samples, longer than `max_token_len`.

    Examples
    --------
    >>> sorted(rearrange_micro_batches_idx([7, 7, 7], max_token_len=8))
    [[0], [1], [2]]
    """
    lengths = as_lengths("seqlen_list", seqlen_list)
    if force_group_size < 1 or len(lengths) % force_group_size:
        raise ValueError(f"force_group_size must divide the {len(lengths)} samples, got {force_group_size}")
    costs = parse_cost(WORKLOAD).sample_costs(lengths).reshape(-1, force_group_size).sum(axis=1)
    tokens = lengths.reshape(-1, force_group_size).sum(axis=1)
    count = _count(tokens, max_token_len, min_num_micro_batch or 1)
    if dp_group is not None and same_micro_num_in_dp:
        from balancer.executor.ranks import largest_of_ranks  # the one thing here that needs torch

        count = largest_of_ranks(count, dp_group)
    divisor = num_batches_divided_by or 1
    count = -(-count // divisor) * divisor
    slots = schedule_micro_batches(
        costs, tokens, 1, max_token_len, objective="pipeline", num_slots=count, allow_empty=count > len(tokens),
        time_budget=_BUDGET,
    ).slot_of_item  # fmt: skip
    groups = [np.flatnonzero(slots == slot) for slot in range(count)]
    if use_dynamic_bsz_balance:
        groups = _small_at_the_ends(groups, costs)
    members = np.arange(len(lengths)).reshape(-1, force_group_size)
    return [members[group].reshape(-1).tolist() for group in groups]


def _count(tokens: NDArray[np.int64], cap: int, least: int) -> int:
    """Return the fewest micro-batches that keep to the cap, and at least so many."""
    if len(tokens) == 0:
        return least
    fewest = schedule_micro_batches(tokens, tokens, 1, cap, num_slots="fewest", time_budget=_BUDGET).num_slots
    return max(least, int(fewest))


def _small_at_the_ends(groups: list[NDArray[np.int64]], costs: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    ordered = sorted(groups, key=lambda group: -int(costs[group].sum()))
    return ordered[::2][::-1] + ordered[1::2]
