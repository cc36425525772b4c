"""Bins: items to as few groups as possible, none of them over a cap. Two methods, each one pass from the largest item.

*Pair fit* fills one group after the other, and ends each with the two items that fill it best. Where sizes are many and
differ by little, as lengths of documents do, most groups are full. *Best fit decreasing* puts item after item into the
fullest group that has room for it, as trainers pack. It puts two large items together and finds nothing for the rest;
but it keeps limits on other sums, such as images, as well.

Neither weighs sizes against counts: under `max_items` the first groups hold large items, and the last ones many small
ones, far from full. So wherever a pass needs more groups than the bound says, items are *dealt out* evenly, by
:func:`solvers.partition`, over as many groups as the bound says, then over one more, then in between. With few items
this finds what else only an exhaustive search would.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._jit import helper, kernel
from solvers._loops import first_at_most
from solvers._sort import sort_descending
from solvers.arguments import as_budget, as_costs, as_count, unknown
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
# Groups that best fit tries for an item, the fullest first, where there are limits on other sums.
_TRIED = 256
# So few items are dealt out anew without a limit on counts too, and with a search: of more, a pass fills groups so well
# that dealing finds no fewer. One of 10,000 takes 50 ms.
_FEW = 10_000
# Dealing ends where groups are within one part in so many of the fewest that dealing finds.
_CLOSE = 1000
# Pairs of like size first, or of most unlike. Rows *even pairs* and *uneven pairs* of benchmarks/ablation.py, packs.
_EVEN = (True, False)


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
            check_fits(checked, most_of_item, as_count(f"{name}[1]", most), f"{name}[0]")
            amounts[:, k] = checked
        return cls(
            array, order, sorted_sizes, total, cap, at_most, amounts, np.array([int(m) for _, m in limits], np.int64)
        )

    def bound(self, enough: int | None = None) -> Bound:
        """Return the best closed-form lower bound, or the first that reaches `enough`."""
        best = groups_bound(self.sorted_sizes, self.total, self.cap, self.max_items, enough)
        needed = (-(-self.amounts.sum(axis=0) // self.most)).max(initial=0)
        return Bound(int(needed), "limits") if needed > best.value else best

    def by_item(self, group_of_position: Ints) -> Groups:
        """Carry groups of sorted positions over to the items."""
        group_of_item = np.empty(len(group_of_position), dtype=np.int32)
        group_of_item[self.order] = group_of_position
        return group_of_item

    def result(self, groups: Groups, method: str, bound: Bound, started: float) -> PackingResult:
        """Add up what the groups hold."""
        loads = group_loads(self.sizes, groups, count_of(groups))
        status = status_of(len(loads), bound.value)
        return PackingResult(
            groups, loads, self.cap, method, lower_bound=bound.value, bound_name=bound.name, status=status,
            runtime_s=time.perf_counter() - started,
        )  # fmt: skip


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
def _even_pair(sizes, left, skip, room, largest):
    """The two items that fill `room` best, those of like size first; the second is ``len(sizes)`` for one alone."""
    none = len(sizes)
    best, first, second = sizes[largest], largest, none
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


@helper
def _uneven_pair(sizes, left, skip, room, largest):
    """The same, but those of most unlike size first."""
    none = len(sizes)
    best, first, second = sizes[largest], largest, none
    large = largest
    for _ in range(_PAIRS):
        # What follows is less than half of the room: two such do not fill it better than those already looked at.
        if large == none or sizes[large] < room - sizes[large]:
            break
        small = _largest_fitting(sizes, skip, room - sizes[large])
        if small == large and left[small] < 2:
            small = _first_left(skip, small + 1)
        if small != none and sizes[small] + sizes[large] > best:
            best, first, second = sizes[small] + sizes[large], large, small
            if best == room:
                break
        large = _first_left(skip, large + 1)
    return first, second


@kernel(turns=200)
def _pair_fit(sizes, left, cap, max_items, even, skip, class_of, group_of):
    """Place all items, `left` of each of the descending `sizes`: the class of the k-th placed, and its group."""
    none, count = len(sizes), len(class_of)
    placed, group, held, room = 0, 0, 0, cap
    while placed < count:
        first, second = _largest_fitting(sizes, skip, room), none
        if first == none or held == max_items:
            group, held, room = group + 1, 0, cap
            continue
        # Two items can end the group where the largest alone leaves no more room than it takes.
        is_last = held > 0 and sizes[first] < room and sizes[first] >= room - sizes[first]
        if is_last and held + 2 <= max_items:
            if even:
                first, second = _even_pair(sizes, left, skip, room, first)
            else:
                first, second = _uneven_pair(sizes, left, skip, room, first)
        for item in (first, second):
            if item != none:
                class_of[placed] = item
                group_of[placed] = group
                placed += 1
                held += 1
                room -= sizes[item]
                left[item] -= 1
                if left[item] == 0:
                    skip[item] = item + 1


def pair_fit(problem: PackingProblem) -> Groups:
    """Fill group after group: the largest item that fits, until two can end the group; those fill it, if any do.

    Items of one size are one class. Pairs of like size come first, or of most unlike: which need fewer groups depends
    on the sizes, so both are tried. O(n log d) time for d distinct sizes, and O(n) memory.

    References
    ----------
    Gupta & Ho, "A new heuristic algorithm for the one-dimensional bin-packing problem", Production Planning & Control
    10(6), 1999, which fills each group by the best subset; here it is the best of pairs.
    """
    if len(problem.most):
        raise UsageError("pair fit keeps one sum: 'best_fit_decreasing' keeps limits on others as well")
    n, (sizes, counts) = len(problem.sizes), runs_of_equal_sizes(problem.sorted_sizes)
    found = []
    for even in _EVEN:
        class_of, group_of = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
        skip = np.arange(len(sizes) + 1, dtype=np.int64)
        _pair_fit(read_only(sizes), counts.copy(), problem.cap, problem.max_items, even, skip, class_of, group_of)
        # Placed class by class; positions descend in size, so a stable sort by class is the way back.
        found.append(problem.by_item(group_of[np.argsort(class_of, kind="stable")]))
    return min(found, key=count_of)


# --- best fit decreasing ---------------------------------------------------------------------------------------------
#
# The open groups are the nodes of a treap ordered by (room, group): ``child[2 g]`` and ``child[2 g + 1]`` hang below
# g, and the last entry of `child` is the root. Its priorities are a fixed mixing of the group's number, so the tree is
# as balanced as a random one and yet the same everywhere. Insertion unzips a path and deletion zips two.


@helper
def _is_before(room, node, least, group):
    """Whether an open group comes before (`least`, `group`)."""
    return np.int64(room[node] < least or (room[node] == least and node < group))


@helper
def _first_from(room, child, least, group):
    """The first open group from (`least`, `group`) on; -1 if there is none."""
    best = np.int64(-1)
    node = np.int64(child[len(child) - 1])
    while node >= 0:
        before = _is_before(room, node, least, group)
        if not before:
            best = node
        node = np.int64(child[2 * node + before])
    return best


@helper
def _insert(room, child, priority, group):
    # Down to the place where the group's priority puts it: all above have a higher one, as in a heap.
    slot = len(child) - 1
    node = np.int64(child[slot])
    while node >= 0 and priority[node] > priority[group]:
        slot = 2 * node + _is_before(room, node, room[group], group)
        node = np.int64(child[slot])
    child[slot] = group
    # The rest of the path is unzipped: what is smaller hangs to the left of the group, what is larger to its right.
    low, high = 2 * group, 2 * group + 1
    while node >= 0:
        if _is_before(room, node, room[group], group):
            child[low] = node
            low = 2 * node + 1
            node = np.int64(child[low])
        else:
            child[high] = node
            high = 2 * node
            node = np.int64(child[high])
    child[low] = -1
    child[high] = -1


@helper
def _delete(room, child, priority, group):
    slot = len(child) - 1
    node = np.int64(child[slot])
    while node != group:
        slot = 2 * node + _is_before(room, node, room[group], group)
        node = np.int64(child[slot])
    # The two subtrees are zipped into one, the higher priority above.
    low, high = np.int64(child[2 * group]), np.int64(child[2 * group + 1])
    while low >= 0 and high >= 0:
        if priority[low] > priority[high]:
            child[slot] = low
            slot = 2 * low + 1
            low = np.int64(child[slot])
        else:
            child[slot] = high
            slot = 2 * high
            high = np.int64(child[slot])
    child[slot] = max(low, high)


@helper
def _has_room(left, amounts):
    fits = True
    for k in range(len(amounts)):
        fits &= amounts[k] <= left[k]
    return fits


@kernel
def _best_fit(sizes, amounts, smallest, cap, max_items, most, priority, group_of_position):
    """Items in turn, each to the first open group that has room for it; they hold `amounts` of what else is limited."""
    n, c = amounts.shape
    room, left = np.empty(n, dtype=np.int64), np.empty((n, c), dtype=np.int64)
    held = np.zeros(n, dtype=np.int32)
    child = np.full(2 * n + 1, -1, dtype=np.int32)
    num_groups = np.int64(0)
    for i in range(n):
        group = _first_from(room, child, sizes[i], 0)
        tries = 1
        while group >= 0 and not _has_room(left[group], amounts[i]):
            group = _first_from(room, child, room[group], group + 1) if tries < _TRIED else np.int64(-1)
            tries += 1
        if group < 0:
            group = num_groups
            num_groups += 1
            room[group] = cap
            left[group] = most
        else:
            _delete(room, child, priority, group)
        group_of_position[i] = group
        room[group] -= sizes[i]
        for k in range(c):
            left[group, k] -= amounts[i, k]
        held[group] += 1
        # A tree of groups that can still take something stays small, which is what makes every step short.
        if held[group] < max_items and room[group] >= smallest:
            _insert(room, child, priority, group)


def _priorities(num_groups: int) -> NDArray[np.uint32]:
    """Return 0..num_groups - 1 mixed by a bijection of 32 bits, so without ties (MurmurHash3's finaliser)."""
    mixed = np.arange(num_groups, dtype=np.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        mixed ^= mixed >> np.uint32(shift)
        mixed *= np.uint32(factor)
    return mixed ^ (mixed >> np.uint32(16))


def best_fit_decreasing(problem: PackingProblem) -> Groups:
    """Put item after item, the largest first, into the fullest group in which it fits.

    With limits on other sums an item is as large as the largest share that it takes of any of them, and looks at no
    more than :data:`_TRIED` groups. Without limits and `max_items` it has at most 11/9 OPT + 4 groups. O(n log m) time
    for m groups after the sort, as expected of random priorities, and O(n) memory.

    References
    ----------
    Johnson, Demers, Ullman, Garey & Graham, "Worst-case performance bounds for simple one-dimensional packing
    algorithms", SIAM Journal on Computing 3(4), 1974.
    """
    n, order = len(problem.sizes), problem.order
    if len(problem.most):
        shares = np.column_stack([problem.sizes / problem.cap, problem.amounts / problem.most])
        order = np.argsort(-shares.max(axis=1), kind="stable").astype(np.int32)
    groups, found = np.empty(n, dtype=np.int32), np.empty(n, dtype=np.int32)
    _best_fit(
        read_only(problem.sizes[order]), read_only(problem.amounts[order]), int(problem.sizes.min(initial=0)),
        problem.cap, problem.max_items, read_only(problem.most), _priorities(n), found,
    )  # fmt: skip
    groups[order] = found
    return groups


# --- dealing out, and what callers call ------------------------------------------------------------------------------

PACKERS: dict[str, Callable[[PackingProblem], Groups]] = {
    "pair_fit": pair_fit, "best_fit_decreasing": best_fit_decreasing
}  # fmt: skip
"""Every method, by name; none reads a clock. Errors and tests derive their lists from it."""


def deal(problem: PackingProblem, groups: Groups, bound: Bound, seconds: float) -> tuple[Groups, Bound]:
    """Deal out the items evenly over fewer groups, where that may do; return the fewest found, and what is proven."""
    n, counts_bind = len(problem.sizes), problem.max_items < len(problem.sizes)
    if len(problem.most) or not (counts_bind or n <= _FEW):
        return groups, bound
    low, high, tries = bound.value, count_of(groups), 0
    # The bound's number of groups, then one more, then half way between what failed and what is found, to 0.1 %.
    while high - low > (high // _CLOSE if tries > 1 else 0):
        count = low if tries < 2 else (low + high) // 2
        searched = n <= _FEW and tries < 2
        tries += 1
        # No load need be less than the cap.
        least = max(-(-problem.total // count), int(problem.sorted_sizes[0]), 1)
        dealt = partition(
            problem.sizes, count, "auto" if searched else "lpt", seconds, stop_at=Fraction(problem.cap, least) - 1,
            max_items=problem.max_items if counts_bind else None,
        )  # fmt: skip
        if dealt.makespan <= problem.cap:
            groups = np.unique(dealt.group_of_item, return_inverse=True)[1].astype(np.int32)
            high = count_of(groups)
            continue
        low = count + 1
        if dealt.lower_bound > problem.cap:
            bound = Bound(low, "search")
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
        A name in :data:`PACKERS`: ``pair_fit``, or ``best_fit_decreasing``.
    time_budget : float
        Seconds' worth of work for dealing out anew what the method packed, counted and not timed.
    max_items : int, optional
        The most items that a group may hold.
    limits : sequence of (int64[n], int)
        Other sums, such as images: what each item holds, and the most of a group. With ``best_fit_decreasing`` alone.

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
    O(n log n) time. Where a pass needs more groups than the bound says, up to 10,000 items, or any number of them under
    `max_items`, are dealt out by :func:`solvers.partition`: that takes milliseconds, or up to 20 passes of list
    scheduling. Deterministic: no clock is read.

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
    return problem.result(groups, method if groups is packed else "dealing", bound, started)
