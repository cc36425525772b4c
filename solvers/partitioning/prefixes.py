"""Items that share a prefix: its cost counts once in every group that holds any of them.

The items of a prefix that are in one group are a *part*, which costs as much as they and one copy of the prefix. Once
prefixes are split into parts, parts are units like any others, and the one search gives them to groups. So what is told
here is how to split. Each part more costs a copy more; parts that are too large leave groups uneven. One kernel,
:func:`split`, knows two ways:

* *apart*: every part is as full as a target allows, and what is left of a prefix is a smaller part. It is the better
  way where groups have several prefixes each.
* *packed*: prefixes go to groups one after another, whole where that fits, else split over the widest gaps. It is the
  better way where groups have one or two.
"""

import time
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._budget import work_units
from solvers._jit import helper, kernel
from solvers._loops import numbers, resort
from solvers.arguments import as_budget
from solvers.bounds import Bound, goal_above
from solvers.constraints import Constraints
from solvers.groups import read_only
from solvers.partitioning.auto import Search
from solvers.partitioning.prefix_bound import PrefixProblem, Tokens, largest_alone, parts_bound, prepare
from solvers.partitioning.prefix_counts import even_groups
from solvers.types import PartitionResult, status_of

Ints = NDArray[np.int64]

_GREEDY_STARTS = 24  # greedy sums tried for one gap, each without so many of the largest
_FINE = 4000  # makespans are bisected to 1/4000
_SHARES_LAST = (0, 10, 20, 50)  # per cent of all cost whose prefixes, the cheapest, come last
_SEVERAL = 3  # prefixes a group, from which on parts are searched: with fewer they hardly ever get better


# Two ways to split ------------------------------------------------------------------------------------------------


@helper
def _fullest_with_room(order, loads, most):
    """Return where the last group of at most this load stands, or -1."""
    low, high = 0, len(order)
    while low < high:
        middle = (low + high) // 2
        if loads[order[middle]] <= most:
            low = middle + 1
        else:
            high = middle
    return low - 1


@helper
def _fill_gap(costs, tokens, rest, size, room, room_tokens, chosen):
    """Mark in `chosen` which of ``rest[:size]``, descending, fill most of the room; return their cost, -1 if none fits.

    Greedy from each of the first items on, the best of these. O(24 size).
    """
    best, begin = np.int64(-1), 0
    # A large item may leave a gap that nothing fills: without it smaller ones may fill the room exactly.
    for start in range(min(size, _GREEDY_STARTS)):
        left, left_tokens, taken = room, room_tokens, 0
        for k in range(start, size):
            if costs[rest[k]] <= left and tokens[rest[k]] <= left_tokens:
                left -= costs[rest[k]]
                left_tokens -= tokens[rest[k]]
                taken += 1
        if taken > 0 and room - left > best:
            best, begin = room - left, start
        if left == 0:
            break
    left, left_tokens = room, room_tokens
    for k in range(size):
        chosen[k] = 0
        if best >= 0 and k >= begin and costs[rest[k]] <= left and tokens[rest[k]] <= left_tokens:
            left -= costs[rest[k]]
            left_tokens -= tokens[rest[k]]
            chosen[k] = 1
    return best


@kernel
def split(given, tokens, most, order, apart, group_of, loads):
    """Split prefixes, in this order, such that no group's load is above `most`; False if that did not work out.

    With `apart` each part has a group to itself, and `loads` has as many as there are items.
    """
    by_load, place = numbers(len(loads)), numbers(len(loads))  # groups by ascending load, and where each stands there
    rest, chosen = np.empty(len(group_of), dtype=np.int64), np.empty(len(group_of), dtype=np.int64)
    held = np.zeros(len(loads), dtype=np.int64)  # tokens
    loads[:] = 0
    used = 0  # parts so far
    for p in order:
        # `rest` are the items of the prefix that are in no group yet, and `cost` and `needed` are theirs.
        size, cost = given.starts[p + 1] - given.starts[p], given.sums[p]
        needed = np.int64(0)
        for k in range(size):
            rest[k] = given.starts[p] + k
            needed += tokens.each[rest[k]]
        while size > 0:
            # All that is left, whole, where it fits: the fullest such group keeps the others' gaps wide.
            if apart:
                at = used if cost + given.once[p] <= most else -1
            else:
                at = _fullest_with_room(by_load, loads, most - cost - given.once[p])
            while at >= 0 and held[by_load[at]] + needed + tokens.once[p] > tokens.most:
                at = -1 if apart else at - 1
            g, taken = by_load[max(at, 0)], cost if at >= 0 else np.int64(-1)
            # Else as much of it as fills the widest gap, or the widest that has room for tokens.
            gap = used if apart else 0
            while taken < 0 and gap < len(loads):
                g = by_load[gap]
                room, room_tokens = most - loads[g] - given.once[p], tokens.most - held[g] - tokens.once[p]
                if room_tokens >= 0:
                    taken = _fill_gap(given.costs, tokens.each, rest, size, room, room_tokens, chosen)
                if room < 0 or tokens.most == 0:
                    break
                gap += 1
            if taken < 0:
                return False
            # What was chosen goes there; what is left pays for another copy of the prefix in the next group.
            kept = 0
            held[g] += tokens.once[p]
            for k in range(size):
                if at >= 0 or chosen[k] == 1:
                    group_of[rest[k]] = g
                    held[g] += tokens.each[rest[k]]
                    needed -= tokens.each[rest[k]]
                else:
                    rest[kept] = rest[k]
                    kept += 1
            size, cost = kept, cost - taken
            loads[g] += taken + given.once[p]
            used += 1
            if not apart:
                resort(by_load, place, loads, g)
    return True


def split_apart(problem: PrefixProblem, tokens: Tokens, target: int) -> Ints:
    """Return the part of each sorted item, all as full as a target allows that the largest item fits into."""
    n = len(problem.order)
    part, loads = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    order = read_only(np.arange(len(problem.given.once)))
    split(problem.given, tokens, max(target, largest_alone(problem)), order, True, part, loads)
    return part


def orders_of(problem: PrefixProblem) -> Iterator[Ints]:
    """Yield orders of prefixes: the largest first, but for the cheapest, which come last and fill what others leave."""
    given = problem.given
    size = given.sums + given.once
    cheapest = np.argsort(given.once, kind="stable")
    done = np.cumsum(given.sums[cheapest].astype(object))
    for share in _SHARES_LAST:
        last = np.zeros(len(size), dtype=np.bool_)
        last[cheapest[(done * 100 <= int(done[-1]) * share).astype(np.bool_)]] = True
        if not share or last.any():  # else it is the first order again
            yield read_only(np.lexsort((-size, last)))


def pack_low(
    problem: PrefixProblem, tokens: Tokens, order: Ints, num_groups: int, low: int, high: int
) -> Ints | None:  # fmt: skip
    """Pack prefixes into groups at the least makespan from `low` to `high` that is found: the group of each item.

    None where not even `high` is reached.
    """
    group, loads = np.zeros(len(problem.order), dtype=np.int64), np.zeros(num_groups, dtype=np.int64)

    def fits(makespan: int) -> bool:
        return bool(split(problem.given, tokens, makespan, order, False, group, loads))

    # By doubling first: it is mostly next to the bound, and a low makespan that fails is found to fail early.
    reached, step, fine = low, max(1, low // 256), low // _FINE
    while not fits(reached):
        if reached >= high:
            return None
        low, reached, step = reached + 1, min(high, reached + step), step * 2
    while reached - low > fine:
        middle = low + (reached - low) // 2
        low, reached = (low, middle) if fits(middle) else (middle + 1, reached)
    return group if fits(reached) else None


# Parts to groups --------------------------------------------------------------------------------------------------


class _Plan:
    """The best groups so far, and the work that each search of parts may take."""

    def __init__(self, problem: PrefixProblem, low: int, work: int, stop_at: Fraction) -> None:
        self.problem, self.low, self.work, self.stop_at = problem, low, work, stop_at
        self.group, self.makespan = np.zeros(len(problem.order), dtype=np.int64), problem.total  # all in one group

    @property
    def done(self) -> bool:
        """Whether the best is close enough to the bound."""
        return self.makespan <= goal_above(Bound(self.low, "parts"), self.stop_at)

    def offer(self, group: Ints) -> None:
        """Keep groups that are better."""
        makespan = int(self.problem.loads(group).max())
        if makespan < self.makespan:
            self.group, self.makespan = group, makespan

    def pack(self) -> None:
        """Split prefixes over the gaps of groups, in a few orders."""
        for order in orders_of(self.problem):
            high = self.makespan - 1
            if self.done or high < self.low:
                break
            group = pack_low(self.problem, self.problem.no_tokens, order, self.problem.num_groups, self.low, high)
            if group is not None:
                self.offer(group)

    def assign(self, part: Ints) -> None:
        """Give parts to groups by the one search, unless they are too many, or too large, to become any better."""
        costs = self.problem.of_parts(part, self.problem.given.costs, self.problem.given.once)
        search = Search(Constraints().check(costs, self.problem.num_groups), self.work, self.stop_at)
        if search.bound.value < self.makespan:
            self.offer(search.run().group_of_unit[part].astype(np.int64))

    def run(self) -> Ints:
        """Try one way after another until the makespan is close enough to the bound."""
        problem = self.problem
        several = len(problem.given.once) >= _SEVERAL * problem.num_groups
        if several:
            self.assign(split_apart(problem, problem.no_tokens, self.low))
        if not self.done:
            self.pack()
        if several and not self.done:
            self.assign(problem.parts(self.group))
        return self.group


def partition_with_prefixes(
    costs: ArrayLike, num_groups: int, prefix: ArrayLike | Sequence[int | str | None] | None,
    prefix_costs: ArrayLike | None, *, equal_counts: bool = False, time_budget: float = 0.01,
    stop_at: Fraction = Fraction(1, 1000),
) -> PartitionResult:  # fmt: skip
    """Put items into groups, where the prefix that several items share counts once in every group that has any of them.

    See :func:`solvers.partition`, which has these arguments too. O(k m) and O(n log n) times the digits of the result.
    """
    started, work = time.perf_counter(), work_units(as_budget(time_budget))
    problem = prepare(costs, num_groups, equal_counts, prefix, prefix_costs)
    low = parts_bound(problem)
    group = np.zeros(0, dtype=np.int64)
    if len(problem.order):
        free = problem.most_items >= len(problem.order)
        group = _Plan(problem, low, work // 2, stop_at).run() if free else even_groups(problem, low, work, stop_at)
    group_of_item = np.empty(len(group), dtype=np.int32)
    group_of_item[problem.order] = group
    loads = problem.loads(group)
    makespan = int(loads.max())
    return PartitionResult(
        group_of_item, loads, makespan, "auto", lower_bound=low, bound_name="parts",
        status=status_of(makespan, low, stop_at), runtime_s=time.perf_counter() - started,
    )  # fmt: skip
