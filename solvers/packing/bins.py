"""Bins: items to as few groups as possible, none of them over a cap. Three methods, each a pass from the largest item.

*Pair fit* fills one group after the other, and ends each with the two items that fill it best. Where sizes are many and
differ by little, as lengths of documents do, most groups are full. *Best fit decreasing* puts item after item into the
fullest group that has room for it, as trainers pack. It puts two large items together and finds nothing for the rest.
*First fit decreasing* puts it into the first group that has room, and keeps limits on other sums, such as images.

Filling group after group with the largest items leaves many small ones, of which `max_items` are far from a full group.
So where counts limit, pair fit fills groups *evenly*: each gets as many items as the fewest groups must hold, of about
an even share of its room.

Of few items a pass may need a group more than there must be. These are *dealt out* anew, by :func:`solvers.partition`,
over as many groups as the bound says, or one more: with few items this finds what else only an exhaustive search would.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._jit import helper, kernel
from solvers._loops import first_at_most
from solvers._sort import sort_descending
from solvers.arguments import as_budget, as_costs, as_count, as_integer, unknown
from solvers.bounds import Bound, groups_bound
from solvers.dual_feasible import runs_of_equal_sizes
from solvers.errors import UsageError
from solvers.groups import group_loads, read_only
from solvers.packing._arguments import as_cap, check_fits
from solvers.packing.types import PackingResult
from solvers.partitioning import partition
from solvers.types import status_of

Ints = NDArray[np.int64]
Groups = NDArray[np.int32]  # the group of each item

# Tries of pair fit for the smaller of two items: more gain a few groups in 100,000, and take time.
_PAIRS = 64
# Parts of the tree of groups that first fit leaves out for an item, before it opens a group.
_TRIED = 4096
# So few items are dealt out anew: of more, a pass fills groups so well that dealing finds no fewer.
_FEW = 10_000


@dataclass(frozen=True, slots=True)
class PackingProblem:
    """Checked sizes, and what a group may hold."""

    sizes: Ints  # int64[n]: in the order given
    order: Groups  # int32[n]: items in stable descending order of size
    sorted_sizes: Ints  # int64[n]: ``sizes[order]``
    total: int  # sum of the sizes; fits int64
    cap: int  # at least as large as every size
    max_items: int  # the most items that a group may hold; where the caller set no limit, max(n, 1), which none exceeds
    amounts: Ints  # int64[n, c]: what else each item holds
    most: Ints  # int64[c]: the most that a group may hold of it

    @classmethod
    def prepare(
        cls, sizes: ArrayLike, cap: int, max_items: int | None = None, limits: Sequence[tuple[ArrayLike, int]] = ()
    ) -> PackingProblem:
        """Check and sort. Raises TypeError, ValueError or InfeasibleError that name argument, item and rule."""
        cap = as_cap(cap)
        array, largest, total = as_costs(sizes, "sizes")
        # Where nothing limits counts, a limit that none exceeds does, so that kernels need no second case.
        at_most = max(len(array), 1)
        if max_items is not None:
            at_most = min(at_most, as_count("max_items", max_items))
        check_fits(array, largest, cap)
        order, sorted_sizes = sort_descending(array, largest)
        amounts = np.empty((len(array), len(limits)), dtype=np.int64)
        for k, (column, most) in enumerate(limits):
            name = f"limits[{k}]"
            checked, most_of_item, _ = as_costs(column, f"{name}[0]")
            if len(checked) != len(array):
                raise UsageError(f"{name}[0] must have an entry for each of {len(array)} sizes, got {len(checked)}")
            check_fits(checked, most_of_item, as_integer(f"{name}[1]", most, 1), f"{name}[0]")
            amounts[:, k] = checked
        return cls(
            array, order, sorted_sizes, total, cap, at_most, amounts, np.array([int(m) for _, m in limits], np.int64)
        )

    def bound(self, enough: int | None = None) -> Bound:
        """Return the best closed-form lower bound, or the first that reaches `enough`."""
        best = groups_bound(self.sorted_sizes, self.total, self.cap, self.max_items, enough)
        needed = (-(-self.amounts.sum(axis=0) // self.most)).max(initial=0)
        return Bound(int(needed), "limits") if needed > best.value else best

    def keeps_one_sum(self) -> None:
        """Raise UsageError where there are limits, which the method that asks does not keep."""
        if len(self.most):
            raise UsageError("this {method} keeps one sum: 'first_fit_decreasing' keeps limits on others as well")

    def by_item(self, group_of_position: Ints) -> Groups:
        """Carry groups of sorted positions over to the items."""
        group_of_item = np.empty(len(group_of_position), dtype=np.int32)
        group_of_item[self.order] = group_of_position
        return group_of_item


def count_of(groups: Groups) -> int:
    """Return the number of groups, none of which is empty."""
    return int(groups.max(initial=-1)) + 1


# --- pair fit --------------------------------------------------------------------------------------------------------


@helper
def _first_left(skip, at):
    """The first class from `at` on that has items left, ``len(skip) - 1`` if none; shortens its way there."""
    found = at
    # Classes with nothing left point onwards. Each walk shortens the way for the next, so that they stay near one
    # step.
    while skip[found] != found:
        found = np.int64(skip[found])
    while skip[at] != found:
        further = np.int64(skip[at])
        skip[at] = found
        at = further
    return found


@helper
def _largest_fitting(sizes, skip, room):
    """The class of the largest items left that are at most `room`, ``len(sizes)`` if there is none."""
    return _first_left(skip, first_at_most(sizes, 0, room))


@helper
def _best_pair(sizes, left, skip, room, largest, alone):
    """The two items that fill `room` best, those of like size first; the second is ``len(sizes)`` for one alone.

    The largest that fits may go alone only if that is `alone`, and then where no pair fills more than it does.
    """
    none = len(sizes)
    best, first, second = sizes[largest] if alone else np.int64(-1), largest, none
    small = _largest_fitting(sizes, skip, room // 2)
    for _ in range(_PAIRS):
        # What comes later is smaller: with the largest item it makes no better pair than there is.
        if small == none or sizes[small] + sizes[largest] <= best:
            break
        large = _largest_fitting(sizes, skip, room - sizes[small])
        # An item is no pair with itself.
        if large != small or left[small] > 1:
            total = sizes[small] + sizes[large]
            if total > best:
                best, first, second = total, large, small
                if best == room:
                    break
        small = _first_left(skip, small + 1)
    return first, second


@kernel(turns=200)
def _pair_fit(sizes, left, total, cap, max_items, steady, skip, class_of, group_of):
    """Place all items, `left` of each of the descending `sizes`: the class of the k-th placed, and its group."""
    none, count = len(sizes), len(class_of)
    placed, group, held, room = 0, 0, 0, cap
    smallest, wanted, evenly = none - 1, 0, steady
    while placed < count:
        if held == 0:
            # The fewest groups that can hold what is left, by its sum and by its number.
            by_sum, by_number = total // cap + (total % cap > 0), (count - placed + max_items - 1) // max_items
            evenly = steady or by_number >= by_sum
            fewest = max(by_sum, by_number)
            wanted = (count - placed + fewest - 1) // fewest
        # The largest that fits; or of an even share of the room, and where all are larger, the smallest.
        more = wanted - held
        first = _largest_fitting(sizes, skip, room // more if evenly and held > 0 and more > 2 else room)
        if first == none:
            while left[smallest] == 0:
                smallest -= 1
            first = smallest
        if held == max_items or sizes[first] > room:
            group, held, room = group + 1, 0, cap
            continue
        # Two items can end the group where they are all that it should get, or where the largest alone leaves no more
        # room than it takes.
        second, ends = none, more <= 2
        if not evenly:
            ends = sizes[first] < room and sizes[first] >= room - sizes[first]
        if ends and 0 < held <= max_items - 2:
            first, second = _best_pair(sizes, left, skip, room, first, not evenly)
        for item in (first, second):
            if item != none:
                class_of[placed] = item
                group_of[placed] = group
                placed += 1
                held += 1
                room -= sizes[item]
                total -= sizes[item]
                left[item] -= 1
                if left[item] == 0:
                    skip[item] = item + 1


def pair_fit(problem: PackingProblem) -> Groups:
    """Fill group after group: the largest item that fits, until two can end the group; those fill it, if any do.

    Items of one size are one class. Where counts limit, groups are filled evenly as soon as what is left needs as many
    groups by its number as by its sum, or from the first on: which needs fewer depends on the sizes, so both are tried.
    O(n log d) time for d distinct sizes, and O(n) memory.

    References
    ----------
    Gupta & Ho, "A new heuristic algorithm for the one-dimensional bin-packing problem", Production Planning & Control
    10(6), 1999, which fills each group by the best subset; here it is the best of pairs.
    """
    problem.keeps_one_sum()
    n, (sizes, counts) = len(problem.sizes), runs_of_equal_sizes(problem.sorted_sizes)
    found = []
    for steady in (False, True) if problem.max_items < n else (False,):
        class_of, group_of = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
        skip = np.arange(len(sizes) + 1, dtype=np.int64)
        _pair_fit(
            read_only(sizes), counts.copy(), problem.total, problem.cap, problem.max_items, steady, skip, class_of,
            group_of,
        )  # fmt: skip
        # Placed class by class; positions descend in size, so a stable sort by class is the way back.
        found.append(problem.by_item(group_of[np.argsort(class_of, kind="stable")]))
    return min(found, key=count_of)


# --- best fit decreasing ---------------------------------------------------------------------------------------------


@kernel
def _best_fit(sizes, cap, max_items, group_of_position):
    """Items of descending `sizes` in turn, each to the fullest group that has room for it."""
    # Groups that have room for the next item, the fullest first; and those that take smaller ones only, the emptiest
    # first. What comes next is never larger, so that no group goes back.
    now, later = [(np.int64(0), 0)], [(np.int64(0), 0)]
    now.pop()
    later.pop()
    held = np.zeros(len(sizes), dtype=np.int64)
    num_groups = 0
    for i in range(len(sizes)):
        while len(later) > 0 and -later[0][0] >= sizes[i]:
            emptiest, group = heapq.heappop(later)
            heapq.heappush(now, (-emptiest, group))
        room, group = np.int64(cap), num_groups
        if len(now) > 0:
            room, group = heapq.heappop(now)
        else:
            num_groups += 1
        room -= sizes[i]
        held[group] += 1
        group_of_position[i] = group
        if held[group] < max_items:
            if room >= sizes[i]:
                heapq.heappush(now, (room, group))
            else:
                heapq.heappush(later, (-room, group))


def best_fit_decreasing(problem: PackingProblem) -> Groups:
    """Put item after item, the largest first, into the fullest group in which it fits.

    Without `max_items` it makes at most 11/9 OPT + 4 groups. O(n log n) time and O(n) memory.

    References
    ----------
    Johnson, Demers, Ullman, Garey & Graham, "Worst-case performance bounds for simple one-dimensional packing
    algorithms", SIAM Journal on Computing 3(4), 1974.
    """
    problem.keeps_one_sum()
    found = np.empty(len(problem.sizes), dtype=np.int64)
    _best_fit(read_only(problem.sorted_sizes), problem.cap, problem.max_items, found)
    return problem.by_item(found)


# --- first fit decreasing --------------------------------------------------------------------------------------------


@kernel
def _first_fit(amounts, most, group_of_position):
    """Items in turn, each to the first group that has room for all that it holds: int64[n, c]."""
    n, c = amounts.shape
    # A tree of groups: the children of node v are 2 v and 2 v + 1, group g is node `leaves` + g, and above it stands
    # the most room that any group below has, of each sum by itself.
    leaves = 1
    while leaves < n:
        leaves *= 2
    room = np.empty((2 * leaves, c), dtype=np.int64)
    for v in range(2 * leaves):
        for k in range(c):
            room[v, k] = most[k]
    num_groups = 0
    for i in range(n):
        v, failed = 1, 0
        while True:
            fits = True
            for k in range(c):
                fits &= amounts[i, k] <= room[v, k]
            if fits and v >= leaves:
                break
            if fits:
                v *= 2
                continue
            # On to what stands to the right of all that was seen; or to a new group, if no end is near.
            while v % 2 == 1:
                v //= 2
            v += 1
            failed += 1
            if failed == _TRIED:
                v = leaves + num_groups
        group_of_position[i] = v - leaves
        num_groups = max(num_groups, v - leaves + 1)
        for k in range(c):
            room[v, k] -= amounts[i, k]
        v //= 2
        while v > 0:
            for k in range(c):
                room[v, k] = max(room[2 * v, k], room[2 * v + 1, k])
            v //= 2


def first_fit_decreasing(problem: PackingProblem) -> Groups:
    """Put item after item, the largest first, into the first group in which it fits; the one that keeps limits.

    An item is as large as the largest share that it takes of any sum. As many groups as best fit makes, on average, of
    one sum. O(n log n) time for one sum; for several up to :data:`_TRIED` looks an item, mostly a few.

    References
    ----------
    Johnson et al. (1974), as above. The tree of the most room is theirs.
    """
    n, sums, most = len(problem.sizes), [problem.sizes, *problem.amounts.T], [problem.cap, *problem.most.tolist()]
    order = problem.order
    if len(problem.most):
        shares = np.column_stack([of_item / limit for of_item, limit in zip(sums, most, strict=True)])
        order = np.argsort(-shares.max(axis=1), kind="stable").astype(np.int32)
    if problem.max_items < n:
        sums, most = [*sums, np.ones(n, dtype=np.int64)], [*most, problem.max_items]
    groups, found = np.empty(n, dtype=np.int32), np.empty(n, dtype=np.int32)
    _first_fit(read_only(np.stack(sums, axis=1)[order]), read_only(np.array(most, dtype=np.int64)), found)
    groups[order] = found
    return groups


# --- dealing out, and what callers call ------------------------------------------------------------------------------

PACKERS: dict[str, Callable[[PackingProblem], Groups]] = {
    "pair_fit": pair_fit, "best_fit_decreasing": best_fit_decreasing, "first_fit_decreasing": first_fit_decreasing
}  # fmt: skip
"""Every method, by name; none reads a clock. Errors and tests derive their lists from it."""


def deal(problem: PackingProblem, groups: Groups, bound: Bound, seconds: float) -> tuple[Groups, Bound]:
    """Deal few items out evenly over fewer groups, if that can be; return the groups, and what is proven."""
    if len(problem.most) or len(problem.sizes) > _FEW:
        return groups, bound
    for count in range(bound.value, min(bound.value + 2, count_of(groups))):
        # No load need be less than the cap.
        least = max(-(-problem.total // count), int(problem.sorted_sizes[0]), 1)
        dealt = partition(
            problem.sizes, count, "auto", seconds, stop_at=Fraction(problem.cap, least) - 1,
            max_items=problem.max_items if problem.max_items < len(problem.sizes) else None,
        )  # fmt: skip
        if dealt.makespan <= problem.cap:
            return np.unique(dealt.group_of_item, return_inverse=True)[1].astype(np.int32), bound
        if dealt.lower_bound > problem.cap:
            bound = Bound(count + 1, "search")
    return groups, bound


def pack(
    sizes: ArrayLike, cap: int, method: str = "pair_fit", time_budget: float = 0.01, *, max_items: int | None = None,
    limits: Sequence[tuple[ArrayLike, int]] = (),
) -> PackingResult:  # fmt: skip
    """Put items into as few groups as possible, none of them over a cap (bin packing).

    Parameters
    ----------
    sizes : int64[n]
        Non-negative integers, none over `cap`, whose sum fits int64. Integral floats are accepted.
    cap : int
        The most that a group may weigh, at least 1.
    method : str
        A name in :data:`PACKERS`: ``pair_fit``, ``best_fit_decreasing`` or ``first_fit_decreasing``.
    time_budget : float
        Seconds' worth of work for dealing out anew what the method packed, counted and not timed.
    max_items : int, optional
        The most items that a group may hold.
    limits : sequence of (int64[n], int)
        Other sums, such as images: what each item holds, and the most of a group. With ``first_fit_decreasing`` alone.

    Returns
    -------
    PackingResult
        Groups, loads, and a proven lower bound on the number of groups.

    Raises
    ------
    TypeError
        Sizes, cap or counts of the wrong type.
    ValueError
        An unknown method, a negative size, sizes of the wrong shape, a sum past int64, a budget that is not positive,
        limits that the method does not keep.
    InfeasibleError
        If an item is larger than the cap, or than a limit.

    Notes
    -----
    O(n log n) time. Where a pass over up to 10,000 items needs more groups than the bound says, they are dealt out by
    :func:`solvers.partition`, which takes milliseconds. Deterministic: no clock is read.

    Examples
    --------
    >>> result = pack([4, 5, 6, 5], 10)
    >>> result.group_of_item.tolist(), result.loads.tolist(), result.gap
    ([0, 1, 0, 1], [10, 10], 0.0)
    >>> pack([2, 2, 3, 3, 3, 3, 4, 4, 4, 6, 7, 7], 12, max_items=3).num_groups
    4
    """
    packer = PACKERS.get(method)
    if packer is None:
        raise unknown("method", method, PACKERS)
    seconds, started = as_budget(time_budget), time.perf_counter()
    problem = PackingProblem.prepare(sizes, cap, max_items, limits)
    packed = packer(problem)
    groups, bound = deal(problem, packed, problem.bound(enough=count_of(packed)), seconds)
    loads = group_loads(problem.sizes, groups, count_of(groups))
    return PackingResult(
        groups, loads, problem.cap, method if groups is packed else "dealing", lower_bound=bound.value,
        bound_name=bound.name, status=status_of(len(loads), bound.value), runtime_s=time.perf_counter() - started,
    )  # fmt: skip
