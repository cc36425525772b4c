"""What the trainers' functions have in common: numbers read, and groups of indices made of the planner's answer."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer.planning.planner import balance
from solvers.arguments import as_int64

__all__ = ["as_lengths", "balanced_partitions", "fill_empty", "first_fit_count", "inverse"]

SCALE = 2**31  # of the largest, for numbers that are no integers


def as_lengths(name: str, values: Any) -> NDArray[np.int64]:
    """Read a list, an array or a CPU tensor of numbers >= 0; fractions are scaled, as only their ratios matter."""
    array = np.asarray(values.tolist() if hasattr(values, "tolist") else list(values))
    if array.dtype.kind == "f" and array.size and np.isfinite(array).all():
        if (array == np.floor(array)).all() and np.abs(array).max() < 2**53:
            return as_int64(name, array.astype(np.int64))
        array = np.rint(array * (SCALE / np.abs(array).max())).astype(np.int64)
    return as_int64(name, array) if array.size else np.empty(0, dtype=np.int64)


def balanced_partitions(seqlen_list: Any, k_partitions: int, equal_size: bool) -> list[list[int]]:
    """Return `k_partitions` lists of indices, each ascending, with sums as even as the planner makes them."""
    lengths = as_lengths("seqlen_list", seqlen_list)
    plan = balance(lengths, k_partitions, equal_counts=bool(equal_size))
    groups = [plan.samples_on_rank(rank).tolist() for rank in range(k_partitions)]
    if not equal_size and len(lengths) >= k_partitions:
        fill_empty(groups)
    return [sorted(group) for group in groups]


def fill_empty(groups: list[list[int]]) -> None:
    """Give every empty group an item, as trainers that step once a group need; no sum exceeds the largest for that."""
    for group in groups:
        if not group:
            group.append(max(groups, key=len).pop())  # an item alone is no more than the group it comes from


def first_fit_count(total_lengths: Any, cap: int) -> int:
    """Return how many bins of a capacity first fit opens; an item above it gets its own."""
    bins: list[int] = []
    for length in as_lengths("total_lengths", total_lengths).tolist():
        at = next((index for index, held in enumerate(bins) if held + length <= cap), None)
        if at is None:
            bins.append(length)
        else:
            bins[at] += length
    return len(bins)


def inverse(idx_map: Any) -> Any:
    """Return the inverse of a permutation, in the type in which it came."""
    indices = np.asarray(idx_map.tolist() if hasattr(idx_map, "tolist") else list(idx_map), dtype=np.int64)
    if not np.array_equal(np.sort(indices), np.arange(len(indices))):
        raise ValueError(f"idx_map must be a permutation of 0..{len(indices) - 1}, got {indices.tolist()[:10]}")
    back = np.argsort(indices, kind="stable")
    if isinstance(idx_map, Sequence):
        return back.tolist()
    found = copy.deepcopy(idx_map)
    for place, index in enumerate(back.tolist()):
        found[place] = index
    return found
