"""Costs with shared prefixes, checked once and sorted: items of one prefix side by side, the largest first."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers.arguments import INT64_MAX, as_costs, as_count, as_flag
from solvers.constraints import keys_as_numbers
from solvers.errors import ArgumentError, UsageError
from solvers.groups import read_only

Ints = NDArray[np.int64]

MOST_COST = INT64_MAX // 8
"""What all items may cost with a copy of the prefix for each: the search adds a few such sums."""


class Prefixes(NamedTuple):
    """What kernels see of a problem; read-only. Items are numbered as sorted: by prefix, then descending cost."""

    costs: Ints  # int64[n]: of an item besides its prefix
    prefix_of: Ints  # int64[n]
    starts: Ints  # int64[k + 1]: items of prefix p are starts[p] .. starts[p + 1]
    once: Ints  # int64[k]: what a prefix costs in each group that holds any of its items
    sums: Ints  # int64[k]: what all items of a prefix cost besides it


class Tokens(NamedTuple):
    """A second quantity of sorted items and prefixes, of which no group holds more than `most`; read-only."""

    each: Ints  # int64[n]
    once: Ints  # int64[k]
    most: int


@dataclass(frozen=True, slots=True)
class PrefixProblem:
    """A checked problem."""

    given: Prefixes
    order: Ints  # int64[n]: which item each sorted one is
    num_groups: int
    least_items: int  # of a group
    most_items: int

    @property
    def no_tokens(self) -> Tokens:
        """Tokens that any group has room for."""
        return Tokens(read_only(np.zeros_like(self.given.costs)), read_only(np.zeros_like(self.given.once)), 0)

    @property
    def total(self) -> int:
        """All costs, with one copy of each prefix."""
        return int(self.given.sums.sum() + self.given.once.sum())


def prepare(
    costs: ArrayLike,
    num_groups: int,
    equal_counts: bool,
    prefix: ArrayLike | Sequence[int | str | None] | None,
    prefix_costs: ArrayLike | None,
) -> PrefixProblem:
    """Check and sort. Raises TypeError or ValueError that name the argument, the item and the rule. O(n log n)."""
    if prefix is None:
        raise UsageError("{prefix_costs} say what a {prefix} costs: give {prefix} as well")
    if prefix_costs is None:
        raise UsageError("{prefix} says which {items} share one: give {prefix_costs} as well")
    m = as_count("num_groups", num_groups)
    array, _, total = as_costs(costs)
    each, _, copies = as_costs(prefix_costs, "prefix_costs")
    n = len(array)
    keys = keys_as_numbers("prefix", prefix, n)
    if len(each) != n:
        raise ArgumentError("prefix_costs", f"have one entry for each {{item}}, {n}", len(each))
    if total + copies > MOST_COST:
        raise UsageError(
            "the sum of {costs}, with {prefix_costs} for every {item}, must be at most 2**60, "
            f"got {total + copies}: scale both down"
        )
    num_prefixes = int(keys.max(initial=-1)) + 1
    first = np.full(num_prefixes, n, dtype=np.int64)
    np.minimum.at(first, keys, np.arange(n))
    once = each[first]
    if (unlike := once[keys] != each).any():
        j = int(np.argmax(unlike))
        i = int(first[keys[j]])
        raise UsageError(
            f"{{prefix_costs}} must be the same for all {{items}} of a {{prefix}}, got {each[i]} for {{item}} {i} and "
            f"{each[j]} for {{item}} {j}"
        )
    order = np.lexsort((-array, keys))
    starts = np.concatenate([[0], np.cumsum(np.bincount(keys, minlength=num_prefixes))]).astype(np.int64)
    sums = np.zeros(num_prefixes, dtype=np.int64)
    np.add.at(sums, keys, array)
    given = Prefixes(*map(read_only, (array[order], keys[order], starts, once, sums)))
    least, most = (n // m, max(1, -(-n // m))) if as_flag("equal_counts", equal_counts) else (0, max(1, n))
    return PrefixProblem(given, order, m, least, most)
