"""Index functions with the signatures of AReaL's ``utils/seqpack.py``: those that its trainers call.

A test that pins the very groups of first-fit-decreasing or of Karmarkar-Karp sees others here: both names give as few
as keep to the capacity, as even as the planner makes them.
"""

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from balancer.compat._partitions import as_lengths, balanced_partitions, cap_called, capped_groups, fewest_groups
from balancer.planning.planner import balance
from solvers.arguments import unknown
from solvers.errors import InfeasibleError, UsageError

__all__ = ["balanced_greedy_partition", "ffd_allocate", "flat2d", "get_allocate_fn", "kk_allocate"]


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
