"""Index functions with the signatures of slime's, OpenRLHF's and AReaL's, and a batch as torchtitan and VeOmni take it.

slime and OpenRLHF have theirs in ``utils/seqlen_balancing.py``, AReaL in ``utils/seqpack.py``; functions of verl's that
they have too are in :mod:`balancer.compat.verl`. A test that pins which samples a bin or a group has sees others here,
and bins no more: groups keep to the cap, as few and as even as the planner makes them.
"""

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from balancer.compat._partitions import (
    as_lengths,
    balanced_partitions,
    cap_called,
    capped_groups,
    fewest_groups,
    first_fit_count,
)
from balancer.compat.verl import ceildiv, get_reverse_idx, get_seqlen_balanced_partitions, log_seqlen_unbalance
from balancer.cost import CostModel
from balancer.planning.planner import balance
from balancer.problem.cuts.micro_batches import MicroBatches
from solvers.arguments import unknown
from solvers.errors import ArgumentError, InfeasibleError, UsageError
from solvers.packing import schedule_micro_batches

__all__ = [
    "balanced_greedy_partition", "calculate_workload", "ceildiv", "expand_bins_by_splitting", "ffd_allocate",
    "first_fit_pack", "flat2d", "get_allocate_fn", "get_minimum_num_micro_batch_size", "get_reverse_idx",
    "get_seqlen_balanced_partitions", "kk_allocate", "log_seqlen_unbalance", "micro_batch_grid",
]  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- slime


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


# ---------------------------------------------------------------------------------------------------------- OpenRLHF


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


# ------------------------------------------------------------------------------------------------------------- AReaL


# Of two kinds: ours, and the one that AReaL's callers catch.
class _AllocationError(InfeasibleError, RuntimeError):
    """No such groups: what AReaL's own functions raise a RuntimeError for."""


def ffd_allocate(values: Any, capacity: int, min_groups: int | None, n_groups_divisor: int = 1) -> list[list[int]]:
    """Partition values into as few groups as keep to a capacity, at least so many and a multiple of so many.

    Parameters
    ----------
    values : list, array or CPU tensor of int
    capacity : int
        The largest sum of a group.
    min_groups : int, optional
    n_groups_divisor : int

    Returns
    -------
    list of list of int
        Indices, ascending within a group; no group is empty.

    Raises
    ------
    RuntimeError
        A value above the capacity, or fewer values than groups (an :class:`solvers.InfeasibleError` too).

    Examples
    --------
    >>> sorted(ffd_allocate([100, 200, 300, 150, 250], capacity=500, min_groups=2))
    [[0, 3, 4], [1, 2]]
    """
    return _allocated(values, capacity, min_groups, n_groups_divisor, equal_size=False)


def kk_allocate(
    values: Any, capacity: int, min_groups: int | None, n_groups_divisor: int = 1, equal_size: bool = False
) -> list[list[int]]:
    """Partition as :func:`ffd_allocate` does; with `equal_size` into groups of as many values, within one."""
    return _allocated(values, capacity, min_groups, n_groups_divisor, equal_size)


def _allocated(values: Any, cap: int, at_least: int | None, multiple_of: int, equal_size: bool) -> list[list[int]]:
    lengths = as_lengths("values", values)
    try:
        count = fewest_groups(lengths, cap, at_least or 1, multiple_of)
        if count > len(lengths):
            raise InfeasibleError(f"{len(lengths)} values do not fill {count} groups, none of which may be empty")
        if not equal_size:
            return [group.tolist() for group in capped_groups(lengths, lengths, cap, count)]
        # Equal counts are a constraint of plans: the search for slots knows the cap alone.
        plan = balance(lengths, count, equal_counts=True, max_tokens_per_rank=cap)
    except InfeasibleError as error:
        raise error.in_words(cap_called("capacity")).as_kind(_AllocationError) from None
    return [sorted(plan.samples_on_rank(group).tolist()) for group in range(count)]


_ALLOCATORS = {"ffd": ffd_allocate, "kk": kk_allocate}


def get_allocate_fn(algorithm: str = "ffd") -> Callable[..., list[list[int]]]:
    """Return the function of a ``packing_algorithm``; ValueError for one that AReaL does not have."""
    if algorithm not in _ALLOCATORS:
        raise unknown("algorithm", algorithm, _ALLOCATORS)
    return _ALLOCATORS[algorithm]


def balanced_greedy_partition(nums: Any, K: int) -> list[list[int]]:  # noqa: N803 (theirs)
    """Partition numbers into K groups of as many each, with sums as even as the planner makes them.

    Raises
    ------
    ValueError
        K does not divide how many there are.

    Examples
    --------
    >>> sorted(balanced_greedy_partition([5, 3, 9, 1, 2, 4], 2))
    [[0, 1, 5], [2, 3, 4]]
    """
    count = len(as_lengths("nums", nums))
    if count < K or count % K:
        raise UsageError(f"K must divide the {count} numbers, got {K}")
    return balanced_partitions(nums, K, equal_size=True)


def flat2d(arr: Iterable[Iterable[Any]]) -> list[Any]:
    """Return the entries of lists one after the other."""
    return list(chain.from_iterable(arr))


# ------------------------------------------------------------------------------------------------ torchtitan, VeOmni


def micro_batch_grid(
    lengths: ArrayLike,
    num_ranks: int,
    micro_batch_tokens: int,
    *,
    cost: str | CostModel = "linear",
    schedule: str = "lockstep",
    micro_batches: int | None = None,
    multiple_of: int = 1,
    over_long: str = "error",
    **constraints: Any,
) -> list[list[list[int]]]:
    """Plan a global batch as micro-batches under a cap on tokens, equally many on every rank and of like cost.

    Parameters
    ----------
    lengths : int64[n]
    num_ranks : int
    micro_batch_tokens : int
        Never exceeded.
    cost, schedule
        As :func:`balancer.balance` has them.
    micro_batches : int, optional
        Number for each rank; by default the number that takes the least time.
    multiple_of : int
        Their number is a multiple of this, such as the pipeline's micro-batches.
    over_long : str
        What happens to a sample above the cap, as in :class:`balancer.MicroBatches`.
    **constraints
        Of :func:`balancer.balance`: ``caps``, ``keep_together``, ``equal_counts``.

    Returns
    -------
    list of list of list of int
        ``grid[k][rank]``: which samples, ascending; none is empty, and each sample is there once.

    Raises
    ------
    InfeasibleError
        No such grid.

    Examples
    --------
    >>> micro_batch_grid([7, 5, 4, 4, 3, 1, 8], num_ranks=2, micro_batch_tokens=8)
    [[[0, 5], [6]], [[2, 3], [1, 4]]]
    """
    cut = MicroBatches(micro_batch_tokens, schedule, micro_batches, multiple_of=multiple_of, over_long=over_long)
    plan = balance(lengths, num_ranks, cost=cost, micro_batches=cut, **constraints)
    return [
        [sorted(plan.samples_in_slot(rank, slot).tolist()) for rank in range(num_ranks)]
        for slot in range(plan.num_slots)
    ]
