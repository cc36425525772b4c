"""Items that share a prefix: their costs, checked and sorted, and a lower bound on the makespan.

Suppose that no load is above M. A group that holds items of prefix p has room M - c_p for them, so p is in at least as
many groups as a bin packing of its items needs bins of that room, of which Martello and Toth's L2 is a lower bound.
All items, and every copy of every prefix, must fit into num_groups M. Bisection on M finds where that first holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._jit import helper, kernel
from solvers.arguments import INT64_MAX, as_costs, as_count, as_flag
from solvers.constraints import keys_as_numbers
from solvers.errors import ArgumentError, UsageError
from solvers.groups import read_only

Ints = NDArray[np.int64]

MOST_COST = INT64_MAX // 8
"""What all items may cost with a copy of the prefix for each: the search adds a few such sums."""

_NEVER = 1 << 40  # more bins than there are items


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
    return PrefixProblem(given, order, m, least, most)


@helper
def _bins(costs, low, high, room):
    """Martello and Toth's L2: bins of `room` that the descending ``costs[low:high]`` need at least. O(high - low).

    For every threshold a <= room / 2: items above room - a stand alone, those above room / 2 in bins of their own, and
    what is from a to room / 2 fills what these leave open, and more bins.
    """
    if costs[low] > room:
        return np.int64(_NEVER)
    middle, in_large = low, np.int64(0)
    while middle < high and 2 * costs[middle] > room:
        in_large += costs[middle]
        middle += 1
    num_large = middle - low
    best = np.int64(max(1, num_large))
    # Thresholds descend over the small items; those large ones that may share a bin, from `sharing` to `middle`, grow
    sharing, in_sharing, in_small, at = middle, np.int64(0), np.int64(0), middle
    while at < high:
        threshold = costs[at]
        while at < high and costs[at] == threshold:
            in_small += costs[at]
            at += 1
        while sharing > low and costs[sharing - 1] <= room - threshold:
            sharing -= 1
            in_sharing += costs[sharing]
        over = in_small - ((middle - sharing) * room - in_sharing)
        if over > 0:
            best = max(best, num_large + (over + room - 1) // room)
    return best


@helper
def _parts_with_others(given, p, most_items, others, makespan):
    """Return in how many groups of a given number of items a prefix is at least; they hold other items too.

    A part of r items has no more work than the makespan leaves beside the prefix and ``others[r]``. These grow ever
    faster with fewer r, so parts of as many items each leave most. O(parts).
    """
    count, needed = given.starts[p + 1] - given.starts[p], given.sums[p]
    parts = (count + most_items - 1) // most_items
    while parts < count:
        each, more = count // parts, count % parts
        room = makespan - given.once[p] - others[each]
        # The products below are formed of rooms under an even share of the work, so that they fit int64
        if room >= (needed + parts - 1) // parts:
            break
        if room > 0 and parts * room + more * (others[each] - others[each + 1]) >= needed:
            break
        parts += 1
    return parts


@helper
def _parts(given, p, most_items, others, makespan):
    """Return in how many groups a prefix is at least, if no load is above `makespan`; _NEVER if one always is."""
    parts = _bins(given.costs, given.starts[p], given.starts[p + 1], makespan - given.once[p])
    if parts < _NEVER and most_items < len(given.costs):
        parts = max(parts, _parts_with_others(given, p, most_items, others, makespan))
    return parts


@helper
def _refuted(given, num_groups, most_items, others, fewest, makespan):
    """Whether no loads are all at most `makespan`, each prefix being in `fewest` groups at least. O(n)."""
    if makespan > (2**63 - 1) // num_groups:
        return False  # more room than all copies of all could take
    # Each prefix takes its items and a copy for each of its groups: all that is left of all loads is for the others.
    room = np.int64(num_groups) * makespan
    for p in range(len(given.once)):
        parts = _parts(given, p, most_items, others, makespan)
        if parts >= _NEVER:
            return True
        parts = max(parts, fewest[p])
        if parts > 1 and given.once[p] > room // parts:
            return True
        room -= given.sums[p] + parts * given.once[p]
        if room < 0:
            return True
    return False


@kernel
def _least_not_refuted(given, num_groups, most_items, others, fewest, low, high):
    """Bisect between a proven bound and a makespan that is reached."""
    while low < high:
        middle = low + (high - low) // 2
        if _refuted(given, num_groups, most_items, others, fewest, middle):
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def _fill_parts(given, most_items, others, makespan, parts):
    for p in range(len(parts)):
        parts[p] = _parts(given, p, most_items, others, makespan)


def parts_at(problem: PrefixProblem, makespan: int) -> Ints:
    """Return in how many groups each prefix is at least, if no load is above `makespan`, which the bound allows."""
    parts = np.zeros(len(problem.given.once), dtype=np.int64)
    _fill_parts(problem.given, problem.most_items, _work_of_others(problem), makespan, parts)
    return parts


def bins_by_tokens(problem: PrefixProblem, tokens: Tokens) -> Ints:
    """Return in how many groups, each of so many tokens, every prefix is at least: int64[k]."""
    given = problem.given
    descending = tokens.each[np.lexsort((-tokens.each, given.prefix_of))]
    held = given._replace(costs=read_only(descending), once=tokens.once)
    bins = np.zeros(len(given.once), dtype=np.int64)
    _fill_parts(held, len(descending), held.once, tokens.most, bins)
    return bins


def _work_of_others(problem: PrefixProblem) -> Ints:
    """Return what a group holds besides r items of a prefix, at least, r from 0 on: int64[longest + 2].

    As many of the lightest of all items as are missing, and the cheapest of the prefixes that these need. Between whole
    prefixes it is a straight line, so that it grows ever faster with fewer r.
    """
    given, longest = problem.given, int(np.diff(problem.given.starts).max())
    missing = np.maximum(problem.least_items - np.arange(longest + 2), 0)
    lightest = np.concatenate([[0], np.cumsum(np.sort(given.costs)[: problem.least_items])])
    cheapest = np.concatenate([[0], np.cumsum(np.sort(given.once)), [0]])
    whole, rest = missing // longest, missing % longest
    whole = np.minimum(whole, len(given.once))
    step = np.where(whole < len(given.once), cheapest[whole + 1] - cheapest[whole], 0)
    return read_only((lightest[missing] + cheapest[whole] + step // longest * rest).astype(np.int64))


def parts_bound(problem: PrefixProblem, fewest: Ints | None = None) -> int:
    """Return the bound, where each prefix counts `fewest` times at least, one by default. O(n log total).

    References
    ----------
    Martello, Toth, "Lower bounds and reduction procedures for the bin packing problem", Discrete Applied Mathematics
    28(1), 1990.
    """
    given = problem.given
    if not len(given.costs):
        return 0
    # The group of the largest item holds others too, at least the lightest of all, which may share its prefix
    beside = int(np.sort(given.costs)[: max(0, problem.least_items - 1)].sum())
    copies = read_only(np.ones_like(given.once) if fewest is None else fewest)
    total = int((given.once * copies).sum() + given.sums.sum())
    low = max(largest_alone(problem) + beside, -(-total // problem.num_groups))
    high = max(low, int((given.once * np.diff(given.starts)).sum() + given.sums.sum()))  # with a copy for each item
    others = _work_of_others(problem)
    return int(_least_not_refuted(given, problem.num_groups, problem.most_items, others, copies, low, high))


def largest_alone(problem: PrefixProblem) -> int:
    """Return the largest load that one item and its prefix make; there is an item at least."""
    return int((problem.given.once + problem.given.costs[problem.given.starts[:-1]]).max())


def prefix_bound(
    costs: ArrayLike, num_groups: int, prefix: ArrayLike | Sequence[int | str | None], prefix_costs: ArrayLike,
    *, equal_counts: bool = False,
) -> int:  # fmt: skip
    """Return the lower bound on the makespan by itself; arguments as of :func:`solvers.partition`."""
    return parts_bound(prepare(costs, num_groups, equal_counts, prefix, prefix_costs))
