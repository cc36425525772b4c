"""A lower bound where prefixes count once a group, by the groups that each prefix must be in at a given makespan.

Suppose that no load is above M. A group that holds items of prefix p has room M - c_p for them, so p is in at least as
many groups as a bin packing of its items needs bins of that room, of which Martello and Toth's L2 is a lower bound.
All items, and every copy of every prefix, must fit into num_groups M. Bisection on M finds where that first holds.
"""

import numpy as np

from solvers._jit import helper, kernel
from solvers._loops import largest_of
from solvers.groups import read_only
from solvers.prefixes._problem import Ints, PrefixProblem, Tokens

_NEVER = 1 << 40  # more bins than there are items


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
    low, high = given.starts[p], given.starts[p + 1]
    parts = _bins(given.costs, low, high, makespan - given.once[p])
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


@kernel
def _largest(given):
    """Return the largest load that one item and its prefix make."""
    alone = np.zeros(len(given.once), dtype=np.int64)
    for p in range(len(alone)):
        alone[p] = given.once[p] + given.costs[given.starts[p]]
    return largest_of(alone)


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


@kernel
def _fill_bins(given, tokens, found):
    held = np.empty(len(given.costs), dtype=np.int64)
    for p in range(len(found)):
        low, high = given.starts[p], given.starts[p + 1]
        held[low:high] = np.sort(tokens.each[low:high])[::-1]
        found[p] = _bins(held, low, high, tokens.most - tokens.once[p])


def bins_by_tokens(problem: PrefixProblem, tokens: Tokens) -> Ints:
    """Return in how many bins, each of so many tokens, every prefix is at least: int64[k]."""
    found = np.zeros(len(problem.given.once), dtype=np.int64)
    _fill_bins(problem.given, tokens, found)
    return found


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
    others = _work_of_others(problem)
    # The group of the largest item holds others too, at least the lightest of all, which may share its prefix
    beside = int(np.sort(given.costs)[: max(0, problem.least_items - 1)].sum())
    copies = read_only(np.ones_like(given.once) if fewest is None else fewest)
    total = int((given.once * copies).sum() + given.sums.sum())
    low = max(int(_largest(given)) + beside, -(-total // problem.num_groups))
    reached = int((given.once * np.diff(given.starts)).sum() + given.sums.sum())  # with a copy for each item
    high = max(low, reached)
    return int(_least_not_refuted(given, problem.num_groups, problem.most_items, others, copies, low, high))
