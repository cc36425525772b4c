"""The lower bound on the makespan, with constraints or without; :mod:`solvers.bounds` lists all with their proofs.

Under constraints each bound is on one cost component. Vector costs are bounded by the bounds of their components
together, and by the bound of the summed cost.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._sort import sort_descending
from solvers._units import Units, merge
from solvers.arguments import INT64_MAX, as_costs, as_count
from solvers.bounds import Bound, best_bound
from solvers.constraints import ConstrainedProblem, Constraints, is_vector

Ints = NDArray[np.int64]

# Distinct masks up to which unions of two are tried too: with 48 there are 1,128 of them, each O(m). With 8, nothing
# is lost on 1,140 steps of benchmarks/constants.py.
_MASKS = 48
# Units, the costliest, of which the fill bound is computed: with the same company, cheaper ones prove less. Each
# takes a search in a sorted list. Nor is anything with 8.
_FILLED = 64


def makespan_bound(costs: ArrayLike, num_groups: int, equal_counts: bool = False, **constraints: Any) -> Bound:
    """As :func:`makespan_lower_bound`, with the name of the argument that proves it."""
    given = Constraints(equal_counts, **constraints)
    if is_vector(costs) or given.beyond_counts:
        return constrained_bound(given.check(costs, num_groups))
    num_groups = as_count("num_groups", num_groups)
    array, largest, total = as_costs(costs)
    return best_bound(sort_descending(array, largest)[1], total, num_groups, bool(equal_counts))


def makespan_lower_bound(costs: ArrayLike, num_groups: int, equal_counts: bool = False, **constraints: Any) -> int:
    """Lower bound on the makespan of every partition of `costs` into `num_groups` groups.

    Parameters
    ----------
    costs : int64[n] or int64[n, c]
        Non-negative integers.
    num_groups : int
        At least 1.
    equal_counts : bool
        Bound only the partitions whose groups hold n/m items (within one where m does not divide n).
    **constraints
        Bound only the partitions under these constraints, as given to :func:`solvers.partition`.

    Returns
    -------
    int
        Proven: no such partition has a smaller makespan. O(n) after the sort.

    Raises
    ------
    TypeError, ValueError
        As :func:`solvers.partition`.

    References
    ----------
    Dell'Amico & Martello, "Optimal scheduling of tasks on identical parallel processors", ORSA Journal on
    Computing 7(2), 1995.

    Examples
    --------
    >>> makespan_lower_bound([5, 4, 3, 3, 3], 2)
    9
    """
    return makespan_bound(costs, num_groups, equal_counts, **constraints).value


def constrained_bound(problem: ConstrainedProblem, units: Units | None = None) -> Bound:
    """Return the best of all bounds on the makespan of `problem`."""
    return total_bound(problem, merge(problem) if units is None else units)[0]


def total_bound(problem: ConstrainedProblem, units: Units) -> tuple[Bound, list[int]]:
    """Return the best bound on the makespan, and those on the largest time of each component."""
    c = units.costs.shape[1]
    parts = [_component_bound(problem, units, units.costs[:, k], problem.initial[:, k]) for k in range(c)]
    values = [part.value for part in parts]
    if c == 1:
        return parts[0], values
    best = Bound(sum(values) if problem.objective == "sum" else max(values), "components")
    summed = _component_bound(problem, units, units.costs.sum(axis=1), problem.initial.sum(axis=1)).value
    if problem.objective == "max":
        summed = -(-summed // c)
    return (Bound(summed, "summed_cost") if summed > best.value else best), values


def _component_bound(problem: ConstrainedProblem, units: Units, costs: Ints, initial: Ints) -> Bound:
    """Return the best bound on the largest time where `costs` are what units cost; ties to the simpler argument."""
    best = Bound(0, "mean")
    costs = np.ascontiguousarray(costs)
    for bound in _component_bounds(problem, units, costs, initial):
        if bound.value > best.value:
            best = bound
    return best


def _component_bounds(problem: ConstrainedProblem, units: Units, costs: Ints, initial: Ints) -> Iterator[Bound]:
    m, total = problem.num_groups, int(costs.sum())
    largest = int(costs.max()) if len(costs) else 0
    speeds = problem.speeds
    if "speeds" not in problem.names:  # an initial load is one item more, which other groups could have had too
        items = np.concatenate([costs, initial[initial > 0]])
        largest_item = int(items.max()) if len(items) else 0
        yield best_bound(sort_descending(items, largest_item)[1], int(items.sum()), m)
    if not problem.plain_groups:
        yield Bound(max(_water(total, initial, speeds), int(_ceil(initial, speeds).max())), "water")
        yield Bound(_fastest(np.sort(costs)[::-1], initial, speeds), "fastest")
    if not problem.plain_groups or "allowed" in problem.names:
        yield Bound(_best_group(units, costs, initial, speeds), "best_group")
    if "allowed" in problem.names:
        yield Bound(_masks(units, costs, initial, speeds), "masks")
    if largest > 0:
        yield Bound(_fill(problem, units, costs, initial), "fill")


def _smallest(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the smallest T in low..high at which `holds` is true: it is at high, and stays true once it is."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _ceil(loads: Ints, speeds: Ints) -> Ints:
    return np.asarray(-(-loads // speeds))


def _room(target: int, initial: Ints, speeds: Ints) -> Ints:
    return np.asarray(np.maximum(target * speeds - initial, 0))


def _sum(values: Ints) -> int:
    """Sum non-negative values that may leave int64 together."""
    # Halves of 31 bits, each of which sums up within int64 for as many groups as there may be.
    return (int((values >> 31).sum()) << 31) + int((values & (2**31 - 1)).sum())


def _water(total: int, initial: Ints, speeds: Ints) -> int:
    """Smallest T at which the groups have room for `total` together."""
    if not initial.any() and speeds.max() == 1:
        return -(-total // len(speeds))
    return _smallest(
        lambda t: _sum(_room(t, initial, speeds)) >= total, 0, int(_ceil(initial + np.int64(total), speeds).min())
    )


def _fastest(descending: Ints, initial: Ints, speeds: Ints) -> int:
    """Smallest T at which, for every k < m, the k groups with most room have room for the k largest units."""
    k = min(len(speeds) - 1, len(descending))
    if k <= 0:
        return 0
    needed = np.cumsum(descending[:k])

    def holds(target: int) -> bool:
        # The k largest units go to k groups at most, at best to those with most room.
        most = np.sort(_room(target, initial, speeds))[::-1][:k]
        if _sum(most) > INT64_MAX:
            # Cut to what keeps their sum in int64; no unit needs as much, so the comparison stays true.
            most = np.minimum(most, INT64_MAX // k)
        return bool((np.cumsum(most) >= needed).all())

    return _smallest(holds, 0, int(_ceil(initial + needed[-1], speeds).min()))


def _best_group(units: Units, costs: Ints, initial: Ints, speeds: Ints) -> int:
    """The costliest unit of each mask, in the group that it may be in and where it finishes first."""
    best = 0
    for k, mask in enumerate(units.masks):
        # Of units of one mask the costliest is the one that finishes last wherever it is.
        mine = costs[units.mask_of_unit == k]
        if len(mine) and mask.any():
            best = max(best, int(_ceil(initial[mask] + mine.max(), speeds[mask]).min()))
    return best


def _masks(units: Units, costs: Ints, initial: Ints, speeds: Ints) -> int:
    """Water filling inside each mask, and each union of two, of the units that may be nowhere else."""
    weight = [int(costs[units.mask_of_unit == k].sum()) for k in range(len(units.masks))]
    best = 0
    for groups in mask_sets(units.masks):
        inside = sum(w for w, mask in zip(weight, units.masks, strict=True) if not (mask & ~groups).any())
        if inside and groups.any():
            best = max(best, _water(inside, initial[groups], speeds[groups]))
    return best


def mask_sets(masks: NDArray[np.bool_]) -> Iterator[NDArray[np.bool_]]:
    """Sets of groups for the bound ``masks``: every mask and, where they are few, every union of two."""
    yield from masks
    if len(masks) <= _MASKS:
        for k in range(len(masks)):
            for other in range(k):
                yield masks[k] | masks[other]


def _fill(problem: ConstrainedProblem, units: Units, costs: Ints, initial: Ints) -> int:
    """The costliest units, each with the cheapest company that its group must have, in the group where that is best."""
    best = 0
    columns = [(units.items, np.full(problem.num_groups, problem.most_items, dtype=np.int64), problem.least_items)]
    columns += [(units.sizes[:, q], problem.caps[:, q], 0) for q in range(units.sizes.shape[1])]
    costliest = np.argsort(-costs, kind="stable")[:_FILLED]
    for amounts, caps, least in columns:
        excess = int(amounts.sum()) - sum(caps.tolist())  # far below int64's end where caps are high
        forced = np.array([max(excess + cap, least) for cap in caps.tolist()])  # what others cannot hold
        if forced.max() <= 0:
            continue
        company = _Company(costs, amounts)
        for unit in costliest.tolist():
            groups = units.masks[units.mask_of_unit[unit]]
            if not groups.any():
                continue
            # Groups are mostly alike, and one look-up is enough then.
            if (forced == forced[0]).all():
                extra = np.array([company.cheapest(int(forced[0]) - int(amounts[unit]))])
            else:
                extra = np.array([company.cheapest(int(f) - int(amounts[unit])) for f in forced[groups]])
            best = max(best, int(_ceil(initial[groups] + costs[unit] + extra, problem.speeds[groups]).min()))
    return best


class _Company:
    """The least cost of units that together have an amount, units cut to measure: a fractional knapsack."""

    def __init__(self, costs: Ints, amounts: Ints) -> None:
        some = np.flatnonzero(amounts)
        ratio = costs[some] / amounts[some]  # near ties may stand in the wrong order: `doubt` is more than that costs
        order = some[np.argsort(ratio, kind="stable")]
        self.costs, self.amounts = costs[order], amounts[order]
        self.cost_sums, self.amount_sums = np.cumsum(self.costs), np.cumsum(self.amounts)
        # A float has 53 bits: a ratio may be off by a part in 2**52, and all that is out of order for it by less than
        # this.
        self.doubt = int(costs.sum()) >> 46

    def cheapest(self, amount: int) -> int:
        if amount <= 0 or len(self.amounts) == 0:
            return 0
        k = int(np.searchsorted(self.amount_sums, amount))
        if k == len(self.amounts):
            return int(self.cost_sums[-1]) - self.doubt
        before = (int(self.amount_sums[k - 1]), int(self.cost_sums[k - 1])) if k else (0, 0)
        part = (amount - before[0]) * int(self.costs[k])
        return max(before[1] + part // int(self.amounts[k]) - self.doubt, 0)
