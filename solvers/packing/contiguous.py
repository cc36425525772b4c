"""Contiguous splits: items keep their order and are cut into segments. Both problems are solved exactly, and fast.

Under a cap, taking as many items as fit is best for the first segment, because it leaves the fewest for the others;
so greedy cuts give the fewest segments. And the smallest cap for which greedy needs no more than m segments is the
smallest largest load of m segments: bisect it.
"""

import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._jit import helper, inlined, kernel
from solvers.arguments import as_costs, as_count
from solvers.errors import InfeasibleError
from solvers.packing._arguments import as_cap, check_fits
from solvers.types import Record, SolveStatus, relative_gap

__all__ = ["SplitResult", "split_contiguous", "split_fewest"]


@dataclass(frozen=True, slots=True, eq=False)
class SplitResult(Record):
    """Items cut into segments in the order in which they stand; always optimal.

    Attributes
    ----------
    offsets : int64[num_groups + 1], read-only
        Group g holds items ``offsets[g]`` to ``offsets[g + 1] - 1``.
    loads : int64[num_groups], read-only
        The load of each group.
    minimised : int
        What the split made as small as possible: the largest load, or the number of groups.
    lower_bound : int
        Proven: no contiguous split under the same constraints has less. Equal to `minimised`.
    bound_name : str
        ``"greedy"``: greedy cuts, which are best, do not reach one less.
    status : SolveStatus
        ``OPTIMAL``.
    method : str
        ``"split_contiguous"`` or ``"split_fewest"``.
    runtime_s : float
        Seconds from call to return; the one field that differs between runs, so ``==`` leaves it out.
    """

    offsets: NDArray[np.int64]
    loads: NDArray[np.int64]
    minimised: int
    lower_bound: int
    bound_name: str
    status: SolveStatus
    method: str
    runtime_s: float = field(compare=False)

    @property
    def num_groups(self) -> int:
        """Number of groups, empty ones included."""
        return len(self.loads)

    @property
    def makespan(self) -> int:
        """The largest load; 0 without groups."""
        return int(self.loads.max(initial=0))

    @property
    def gap(self) -> float:
        """``(minimised - lower_bound) / lower_bound``, which is 0.0."""
        return relative_gap(self.minimised, self.lower_bound)

    @property
    def group_of_item(self) -> NDArray[np.int32]:
        """The group of each item: int32[n], read-only, made anew at each call. O(n)."""
        groups = np.repeat(np.arange(self.num_groups, dtype=np.int32), np.diff(self.offsets))
        groups.flags.writeable = False
        return groups


@helper
def _segment_end(sums, start, cap):
    """How far the segment from `start` reaches under `cap`: gallop, then bisect. O(log of its length)."""
    n = len(sums) - 1
    low = start  # fits
    step = 1
    while low + step <= n and sums[low + step] - sums[start] <= cap:
        low += step
        step *= 2
    high = min(low + step, n + 1)  # does not fit, or is past the end
    while high - low > 1:
        middle = (low + high) // 2
        if sums[middle] - sums[start] <= cap:
            low = middle
        else:
            high = middle
    return low


@inlined
def _covers(sums, num_groups, cap):
    """Whether `num_groups` segments under `cap`, which is at least the largest cost, cover all items."""
    start = 0
    for _ in range(num_groups):
        start = _segment_end(sums, start, cap)
        if start == len(sums) - 1:
            return True
    return start == len(sums) - 1


@kernel
def _smallest_cap(sums, num_groups, low, high):
    while low < high:
        middle = low + (high - low) // 2
        if _covers(sums, num_groups, middle):
            high = middle
        else:
            low = middle + 1
    return low


@kernel
def _cut(sums, cap, max_items, least_held, offsets):
    """Fill `offsets` with greedy cuts that leave at least `least_held` items to each group after; returns how many."""
    n = len(sums) - 1
    cuts = 0
    while cuts < len(offsets) - 1 and offsets[cuts] < n:
        start = offsets[cuts]
        reserved = least_held * (len(offsets) - 2 - cuts)
        cuts += 1
        offsets[cuts] = min(_segment_end(sums, start, cap), start + max_items, n - reserved)
    return cuts


def _running_sums(costs: NDArray[np.int64]) -> NDArray[np.int64]:
    sums = np.zeros(len(costs) + 1, dtype=np.int64)
    np.cumsum(costs, out=sums[1:])
    return sums


def _result(
    sums: NDArray[np.int64], offsets: NDArray[np.int64], minimised: int | None, method: str, started: float
) -> SplitResult:
    """Build the result; what was minimised is the number of groups unless it is given."""
    loads = np.diff(sums[offsets])
    value = len(loads) if minimised is None else minimised
    runtime = time.perf_counter() - started
    return SplitResult(offsets, loads, value, value, "greedy", SolveStatus.OPTIMAL, method, runtime)


def split_contiguous(costs: ArrayLike, num_groups: int, *, nonempty: bool = False) -> SplitResult:
    """Split into `num_groups` contiguous groups so that the largest load is as small as possible, exactly.

    Parameters
    ----------
    costs : int64[n]
        Non-negative integers whose sum fits int64.
    num_groups : int
        At least 1; may exceed n, and then some groups are empty.
    nonempty : bool
        At least one item a group. It never raises the optimum.

    Returns
    -------
    SplitResult
        Of the optimal splits the one whose earlier groups hold the most items; empty groups come last.

    Raises
    ------
    TypeError, ValueError
        On arguments of the wrong kind, negative costs, or a sum of costs past int64.
    InfeasibleError
        If no group may be empty and there are fewer items than groups.

    Notes
    -----
    O(n + m log(n/m) log(largest)) time for m groups, as each trial gallops from cut to cut; O(n + m) memory.

    References
    ----------
    Pinar & Aykanat, "Fast optimal load balancing algorithms for 1D partitioning", Journal of Parallel and Distributed
    Computing 64(8), 2004.

    Examples
    --------
    >>> split = split_contiguous([5, 1, 4, 3, 3], 2)
    >>> split.offsets.tolist(), split.loads.tolist()
    ([0, 3, 5], [10, 6])
    """
    started = time.perf_counter()
    num_groups = as_count("num_groups", num_groups)
    array, largest, total = as_costs(costs)
    if nonempty and len(array) < num_groups:
        raise InfeasibleError(
            f"no {{group}} may be empty, but there are {len(array)} {{items}} for {num_groups} {{groups}}"
        )
    sums = _running_sums(array)
    low = max(largest, -(-total // num_groups))
    high = min(total, low + largest)  # under the mean plus one item, every group that is closed holds the mean
    makespan = int(_smallest_cap(sums, num_groups, low, high))
    offsets = np.full(num_groups + 1, len(array), dtype=np.int64)
    offsets[0] = 0
    _cut(sums, makespan, max(len(array), 1), 1 if nonempty else 0, offsets)
    return _result(sums, offsets, makespan, "split_contiguous", started)


def split_fewest(costs: ArrayLike, cap: int, *, max_items: int | None = None) -> SplitResult:
    """Split into as few contiguous groups as fit a cap, exactly.

    Parameters
    ----------
    costs : int64[n]
        Non-negative integers, none over `cap`, whose sum fits int64.
    cap : int
        The most that a group may weigh, at least 1.
    max_items : int, optional
        The most items that a group may hold.

    Returns
    -------
    SplitResult
        Of the optimal splits the one whose earlier groups hold the most items; none is empty.

    Raises
    ------
    TypeError, ValueError
        On arguments of the wrong kind, negative costs, or a sum of costs past int64.
    InfeasibleError
        If an item is larger than the cap.

    Notes
    -----
    O(n) time and memory.

    Examples
    --------
    >>> split_fewest([5, 1, 4, 3, 3], 8).offsets.tolist()
    [0, 2, 4, 5]
    """
    started = time.perf_counter()
    cap = as_cap(cap)
    array, largest, _ = as_costs(costs)
    at_most = max(len(array), 1) if max_items is None else as_count("max_items", max_items)
    check_fits(array, largest, cap, "costs")
    sums = _running_sums(array)
    offsets = np.zeros(len(array) + 1, dtype=np.int64)
    groups = int(_cut(sums, cap, at_most, 0, offsets))
    return _result(sums, offsets[: groups + 1].copy(), None, "split_fewest", started)
