"""Mixed costs: a group costs the sum of its items' costs plus its count times its longest row, as in audio encoders.

There, rows are padded to the longest through a convolution, and packed after it. Neighbours in the sorted order waste
no padding on each other, so groups are filled one after the other from the longest item down, under a makespan that is
bisected (:func:`_fill`). Where items are few, swaps between the largest group and the others even out what is left
(:func:`_swap`). :mod:`solvers.partitioning._mixed_bounds` proves how far from the optimum that can be.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._budget import work_units
from solvers._jit import helper, kernel
from solvers._loops import copy, first_at_most, first_largest
from solvers._sort import sort_descending
from solvers.arguments import INT64_MAX, as_budget, as_costs, as_count, as_flag
from solvers.bounds import Bound, best_bound
from solvers.errors import Named, UsageError
from solvers.groups import mixed_loads
from solvers.partitioning._mixed_bounds import tighter_bound
from solvers.partitioning.lpt import lpt_in_order
from solvers.types import PartitionResult, status_of

# Steps of the bisection: from the whole range down to a sixteen-millionth of it.
_STEPS = 24
# Work units that an item takes in a step of the bisection, and a pair that a swap looks at: measured.
_WORK_OF_ITEM = 2
_WORK_OF_PAIR = 4
# A start so many times as far from the bound as the best is not worth a search.
_HOPELESS = 4

Assignment = NDArray[np.int32]  # the group of each position in the sorted order


@helper
def _left(links, i):
    """The first position from `i` on that is left; those that are taken link onwards."""
    while links[i] != i:
        links[i] = links[links[i]]
        i = links[i]
    return i


@helper
def _fill(costs, rows, makespan, num_groups, equal_counts, down, up, group_of_position):
    """Fill groups under `makespan`; returns whether all items found a place.

    `down` and `up` are scratch, int64[n + 1]: links to the next position that is left, from the longest item down and
    from the shortest up.
    """
    n = len(costs)
    few, longer = n // num_groups, n % num_groups
    for i in range(n + 1):
        down[i] = up[i] = i
    kept = np.empty(few + 1, dtype=np.int64)
    for group in range(num_groups):
        p = _left(down, 0)
        # The longest items go where fewer are padded to them.
        places = few + (1 if group >= num_groups - longer else 0) if equal_counts else n
        if p == n or places == 0:
            continue
        longest, room = rows[p], makespan
        # With equal counts the shortest items left are kept for the places still to fill, so that none stays empty.
        if equal_counts:
            shortest = 0
            for k in range(places - 1):
                shortest = _left(up, shortest)
                kept[k] = n - 1 - shortest
                room -= costs[kept[k]] + longest
                shortest += 1
        if costs[p] + longest > room:
            return False
        while p < n:
            group_of_position[p] = group
            down[p], up[n - 1 - p] = p + 1, n - p
            room -= costs[p] + longest
            places -= 1
            if places == 0:
                break
            if equal_counts:
                room += costs[kept[places - 1]] + longest
            # The next shorter one, or, if it does not fit, the longest further down that does: it nearly fills the
            # room, and without it long items, few of which fit a group, would leave much of the group empty. With
            # equal counts one always fits: the one that is kept for this place.
            p = _left(down, p + 1)
            if p < n and costs[p] + longest > room:
                p = _left(down, first_at_most(costs, p, room - longest))
    return _left(down, 0) == n


@kernel(turns=30)
def _lowest_fill(costs, rows, num_groups, equal_counts, low, high, steps, best):
    """Bisect the makespan below `high` that groups are filled under; `best` stays as it is if none is found."""
    n = len(costs)
    down, up = np.empty(n + 1, dtype=np.int64), np.empty(n + 1, dtype=np.int64)
    trial = np.zeros(n, dtype=np.int32)
    for _ in range(steps):
        if low >= high:
            break
        middle = low + (high - low) // 2
        if _fill(costs, rows, middle, num_groups, equal_counts, down, up, trial):
            high = middle
            copy(best, trial)
        else:
            low = middle + 1


@helper
def _after(costs, rows, total, count, heads, g, leaving, entering):
    """Load of group g with item `entering` in place of item `leaving`."""
    # Items descend: the longest that stays is the second if the first leaves.
    longest = min(entering, heads[g, 1] if leaving == heads[g, 0] else heads[g, 0])
    return total[g] - costs[leaving] + costs[entering] + count[g] * rows[longest]


@kernel(turns=200)
def _swap(costs, rows, num_groups, target, work, group_of_position):
    """Swap an item of the largest group with one of another, until nothing helps; returns the work left.

    Of all swaps the one that leaves the smallest larger load is made. Ends at `target`, and before a search that `work`
    does not pay.
    """
    n = len(costs)
    total, count, load = np.empty(num_groups, np.int64), np.empty(num_groups, np.int64), np.empty(num_groups, np.int64)
    heads = np.empty((num_groups, 2), np.int64)  # the two longest of each group; n for none
    while True:
        total[:], count[:], heads[:] = 0, 0, n
        for i in range(n):
            g = group_of_position[i]
            if count[g] < 2:
                heads[g, count[g]] = i
            total[g] += costs[i]
            count[g] += 1
        for g in range(num_groups):
            load[g] = total[g] + (count[g] * rows[heads[g, 0]] if count[g] > 0 else 0)
        g = first_largest(load)
        work -= _WORK_OF_PAIR * count[g] * n
        if load[g] <= target or work < 0:
            return work
        best, leaving, entering = load[g], -1, -1
        for i in range(n):
            if group_of_position[i] != g:
                continue
            for j in range(n):
                h = group_of_position[j]
                if h != g:
                    mine = _after(costs, rows, total, count, heads, g, i, j)
                    larger = max(mine, _after(costs, rows, total, count, heads, h, j, i))
                    if larger < best:
                        best, leaving, entering = larger, i, j
        if leaving < 0:
            return work
        group_of_position[leaving], group_of_position[entering] = group_of_position[entering], g


def mixed(
    costs: ArrayLike,
    row_costs: ArrayLike,
    num_groups: int,
    *,
    equal_counts: bool = False,
    time_budget: float = 0.01,
) -> PartitionResult:
    """Partition under mixed costs: minimise the largest sum(costs in S) + len(S) * max(row_costs in S) of a group S.

    As for an audio encoder: a convolution over rows padded to the longest, and a transformer over packed rows.

    Parameters
    ----------
    costs : int64[n]
        The cost of each item in any group; non-negative.
    row_costs : int64[n]
        The cost of each row of a group whose longest item this is; non-negative. Both must be non-decreasing functions
        of one length, so that they have the same order.
    num_groups : int
        At least 1; may exceed n.
    equal_counts : bool
        Exactly n/m items a group, within one where m does not divide n.
    time_budget : float
        Seconds' worth of work for the search, counted and not timed. LPT on ``costs + row_costs`` always runs, and so
        does the bound.

    Returns
    -------
    PartitionResult
        ``loads`` are the mixed loads. Never worse than LPT.

    Raises
    ------
    TypeError, ValueError
        On arguments of the wrong kind, negative costs, costs whose orders contradict each other, or the sum of `costs`
        and n times the largest row past int64.

    Notes
    -----
    Deterministic, and anytime: a larger budget never gives a larger makespan. O(n + m) memory.

    Examples
    --------
    >>> result = mixed([8, 8, 1, 1, 1, 1], [8, 8, 1, 1, 1, 1], 2)
    >>> result.group_of_item.tolist(), result.loads.tolist()
    ([0, 0, 1, 1, 1, 1], [32, 8])
    """
    started = time.perf_counter()
    work, equal_counts = work_units(as_budget(time_budget)), as_flag("equal_counts", equal_counts)
    order, fixed, rows = _sorted(costs, row_costs)
    num_groups = as_count("num_groups", num_groups)
    start, plain = _lpt(fixed, rows, num_groups, equal_counts)

    def makespan_of(groups: Assignment) -> int:
        return int(mixed_loads(fixed, rows, groups, num_groups).max())

    # Fill groups under the smallest makespan that a bisection finds; they stay LPT's if it finds none below that.
    filled = start.copy()
    price = _WORK_OF_ITEM * len(fixed) + num_groups
    steps = min(_STEPS, work // price)
    _lowest_fill(fixed, rows, num_groups, equal_counts, plain.value, makespan_of(start), steps, filled)
    work -= steps * price
    reached = makespan_of(filled)
    bound = tighter_bound(fixed, rows, num_groups, equal_counts, plain, reached)
    # Swaps from LPT end elsewhere: better, now and then, where groups hold few items.
    farthest = bound.value + _HOPELESS * (reached - bound.value)
    for groups in (filled, start):
        if makespan_of(groups) <= farthest:
            work = int(_swap(fixed, rows, num_groups, bound.value, work, groups))
    best = min(filled, start, key=makespan_of)

    loads = mixed_loads(fixed, rows, best, num_groups)
    makespan = int(loads.max())
    group_of_item = np.empty(len(order), dtype=np.int32)
    group_of_item[order] = best
    return PartitionResult(
        group_of_item, loads, makespan, "mixed", lower_bound=bound.value, bound_name=bound.name,
        status=status_of(makespan, bound.value), runtime_s=time.perf_counter() - started,
    )  # fmt: skip


def mixed_bound(costs: ArrayLike, row_costs: ArrayLike, num_groups: int, equal_counts: bool = False) -> Bound:
    """Return the lower bound that :func:`mixed` proves; arguments and errors are the same."""
    _, fixed, rows = _sorted(costs, row_costs)
    num_groups, equal_counts = as_count("num_groups", num_groups), as_flag("equal_counts", equal_counts)
    start, plain = _lpt(fixed, rows, num_groups, equal_counts)
    reached = int(mixed_loads(fixed, rows, start, num_groups).max())
    return tighter_bound(fixed, rows, num_groups, equal_counts, plain, reached)


def _lpt(
    fixed: NDArray[np.int64], rows: NDArray[np.int64], num_groups: int, equal_counts: bool
) -> tuple[Assignment, Bound]:
    """LPT as if no row were padded by another; and the bound of that, which holds: an item costs u + g at least."""
    both = fixed + rows
    return lpt_in_order(both, num_groups, equal_counts), best_bound(both, int(both.sum()), num_groups, equal_counts)


def _sorted(costs: ArrayLike, row_costs: ArrayLike) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """Check both costs; return the order in which they descend together, and both in that order."""
    fixed, _, total = as_costs(costs)
    rows, longest, _ = as_costs(row_costs, "row_costs")
    if len(fixed) != len(rows):
        raise UsageError(f"{{costs}} and {{row_costs}} must have one entry an item, got {len(fixed)} and {len(rows)}")
    if total + longest * len(rows) > INT64_MAX:
        raise UsageError(
            f"mixed costs must fit int64: {len(rows)} rows of the largest row cost {longest} and the costs' sum "
            f"{total} would cost {total + longest * len(rows)}"
        )
    both = fixed + rows
    order, _ = sort_descending(both, int(both.max(initial=0)))
    fixed, rows = fixed[order], rows[order]
    wrong = (np.diff(fixed) > 0) | (np.diff(rows) > 0)
    if wrong.any():
        at = int(np.argmax(wrong))
        i, j = (int(item) for item in order[at : at + 2])
        raise UsageError(
            "{costs} and {row_costs} must rise together, as functions of one length do: "
            f"{{one}} and {{other}} cost {fixed[at]} and {fixed[at + 1]}, their rows {rows[at]} and {rows[at + 1]}",
            one=Named("item", i),
            other=Named("item", j),
        )
    return order, fixed, rows
