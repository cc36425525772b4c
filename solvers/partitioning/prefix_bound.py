"""Items that share a prefix: their costs, checked and sorted, and a lower bound on the makespan.

Suppose that no load is above M. A group that holds items of prefix p has room M - c_p for them, so p is in at least as
many groups as its items fill rooms of that size. All items, and every copy of every prefix, must fit into num_groups M.
Bisection on M finds where that first holds.
"""

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
    most: int  # 0: there is no such quantity


@dataclass(frozen=True, slots=True)
class PrefixProblem:
    """A checked problem."""

    given: Prefixes
    order: Ints  # int64[n]: which item each sorted one is
    num_groups: int
    most_items: int  # of a group
    lightest: int  # what as many of the lightest of all items cost as a group has at least
    heaviest: int  # the most that any of these costs

    @property
    def no_tokens(self) -> Tokens:
        """Tokens that any group has room for."""
        return Tokens(read_only(np.zeros_like(self.given.costs)), read_only(np.zeros_like(self.given.once)), 0)

    @property
    def total(self) -> int:
        """All costs, with one copy of each prefix."""
        return int(self.given.sums.sum() + self.given.once.sum())

    def sums(self, group: Ints, each: Ints, once: Ints, num_groups: int) -> Ints:
        """Add up what sorted items have, and once in each group what its prefixes have: int64[num_groups]."""
        sums = np.zeros(num_groups, dtype=np.int64)
        np.add.at(sums, group, each)
        held = np.unique(group * len(once) + self.given.prefix_of)
        np.add.at(sums, held // max(1, len(once)), once[held % max(1, len(once))])
        return sums

    def loads(self, group: Ints) -> Ints:
        """Return the load of each group: int64[num_groups]."""
        return self.sums(group, self.given.costs, self.given.once, self.num_groups)

    def parts(self, group: Ints) -> Ints:
        """Number the parts that prefixes have in these groups: of each sorted item, int64[n]."""
        pairs = group * len(self.given.once) + self.given.prefix_of
        part: Ints = np.unique(pairs, return_inverse=True)[1].reshape(-1)
        return part

    def of_parts(self, part: Ints, each: Ints, once: Ints) -> Ints:
        """Return what parts have: int64[parts]."""
        return self.sums(part, each, once, int(part.max()) + 1)


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
    light = np.sort(array)[:least]
    return PrefixProblem(given, order, m, most, int(light.sum()), int(light.max(initial=0)))


def rooms_filled(sums: Ints, once: Ints, most: int) -> Ints:
    """Return in how many groups prefixes are at least, none of which has more than `most`: int64[k].

    `sums` are of all items of each prefix, and `once` of itself. Each of its items has room in a group with it.
    """
    rooms: Ints = np.maximum(-(-sums // np.maximum(most - once, 1)), 1)
    return rooms


def parts_at(problem: PrefixProblem, makespan: int) -> Ints:
    """Return in how many groups each prefix is at least, if no load is above `makespan`: int64[k].

    With equal counts a group of r items of a prefix holds others too. These and the r cost at least as much as the
    lightest of all, if each of the r counts as no more than the heaviest of those; so what the r cost above that fills
    what the lightest leave.
    """
    given, counts = problem.given, np.diff(problem.given.starts)
    above = given.sums - counts * problem.heaviest
    parts = np.maximum(
        rooms_filled(given.sums, given.once, makespan), rooms_filled(above, given.once + problem.lightest, makespan)
    )
    return np.clip(parts, -(-counts // problem.most_items), counts)


def parts_bound(problem: PrefixProblem, fewest: Ints | None = None) -> int:
    """Return the bound, where each prefix counts `fewest` times at least, one by default. O(n + k log total)."""
    given, m = problem.given, problem.num_groups
    if not len(given.costs):
        return 0

    def needed(makespan: int) -> int:
        """Add up all items, and the copies that there are at least."""
        parts = parts_at(problem, makespan)
        return int((given.sums + given.once * (parts if fewest is None else np.maximum(parts, fewest))).sum())

    # The group of the largest item holds others too, at least the lightest of all, which may share its prefix
    low = largest_alone(problem) + problem.lightest - problem.heaviest
    # A larger makespan needs no more copies, so that what is needed at the lowest fits into the highest.
    high = max(low, -(-needed(low) // m))
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if needed(middle) <= m * middle else (middle + 1, high)
    return low


def largest_alone(problem: PrefixProblem) -> int:
    """Return the largest load that one item and its prefix make; there is an item at least."""
    return int((problem.given.once + problem.given.costs[problem.given.starts[:-1]]).max())


def prefix_bound(
    costs: ArrayLike, num_groups: int, prefix: ArrayLike | Sequence[int | str | None], prefix_costs: ArrayLike,
    *, equal_counts: bool = False,
) -> int:  # fmt: skip
    """Return the lower bound on the makespan by itself; arguments as of :func:`solvers.partition`."""
    return parts_bound(prepare(costs, num_groups, equal_counts, prefix, prefix_costs))
