"""Index functions with the signatures of slime's ``utils/seqlen_balancing.py``.

A test that pins which samples first fit puts into a bin sees others here, and bins no more.
"""

from typing import Any

import numpy as np

from balancer.compat._partitions import as_lengths, balanced_partitions
from balancer.compat.verl import get_reverse_idx, get_seqlen_balanced_partitions
from solvers.packing import schedule_micro_batches

__all__ = ["calculate_workload", "expand_bins_by_splitting", "first_fit_pack", "get_reverse_idx",
           "get_seqlen_balanced_partitions"]  # fmt: skip


def calculate_workload(seqlen_list: Any, coeff: int = 24576) -> Any:
    """Return ``coeff * length + length**2`` of each length: a list for a list, else in its own type.

    Examples
    --------
    >>> calculate_workload([1, 10], coeff=2)
    [3, 120]
    """
    if isinstance(seqlen_list, list):
        return [coeff * length + length * length for length in seqlen_list]
    return coeff * seqlen_list + seqlen_list**2


def first_fit_pack(total_lengths: Any, max_tokens_per_bin: int) -> list[list[int]]:
    """Pack samples into as few bins as were found, and as even; never more bins than first fit opens.

    Returns
    -------
    list of list of int
        Indices, ascending within a bin. A sample above the cap has a bin of its own.

    Examples
    --------
    >>> first_fit_pack([5, 3, 7, 2, 6, 12], 10)
    [[0, 1], [2], [3, 4], [5]]
    """
    lengths = as_lengths("total_lengths", total_lengths)
    if len(lengths) == 0:
        return []
    slots = schedule_micro_batches(
        lengths, lengths, 1, max_tokens_per_bin, objective="pipeline", num_slots="fewest", over_long="own",
        time_budget=0.01,
    ).slot_of_item  # fmt: skip
    bins = [np.flatnonzero(slots == slot).tolist() for slot in np.unique(slots)]
    return sorted(bins)


def expand_bins_by_splitting(bins: list[list[int]], target_count: int, lengths: Any) -> None:
    """Split the bin with the most tokens in two until there are so many bins, in place; bins of one sample stay.

    Examples
    --------
    >>> bins = [[0, 1, 2], [3]]
    >>> expand_bins_by_splitting(bins, 3, [4, 5, 9, 20])
    >>> sorted(map(sorted, bins))
    [[0, 1], [2], [3]]
    """
    tokens = as_lengths("lengths", lengths)
    while len(bins) < target_count:
        divisible = [(int(tokens[held].sum()), number) for number, held in enumerate(bins) if len(held) > 1]
        if not divisible:
            return
        _, number = max(divisible)
        held = bins[number]
        halves = balanced_partitions(tokens[held], 2, equal_size=False)
        bins[number : number + 1] = [[held[index] for index in halves[0]]]
        bins.append([held[index] for index in halves[1]])
