"""Lower bounds, each with its proof: on the makespan, and on the number of groups under a cap.

Costs are sorted in descending order, ``c[0] >= c[1] >= ...``; n items, m groups; a target T is *refuted* if no
assignment has all loads at most T, and then T + 1 is a bound.

=============== =======================================================================================================
name            why no assignment does better
=============== =======================================================================================================
``mean``        the loads sum to sum(c), so one is at least ceil(sum(c) / m)
``largest``     some group holds the largest item
``pigeonhole``  of the (k-1)*m + j largest items, j <= m, the j groups with most of them hold k*j at least, together no
                less than the k*j smallest of these weigh; one of the j groups has a share of that (Dell'Amico &
                Martello 1995 for j = 1)
``filler``      equal counts only: as ``pigeonhole``, and these j groups hold about j*n/m items in all, at least so many
                of the smallest of all besides
``folding``     equal counts only, m < n <= 2 m: with zeros added up to 2 m items, two of the i + 1 largest share a
                group, or one of them has a partner of at least c[2m-1-i]: a load of at least c[i] + c[2m-1-i]
``lifted``      as ``pigeonhole``, of any number of groups (Haouari, Gharbi & Jemmali 2006): proves no more
``l2``          at one below, dual feasible functions say that the items need more than m groups; so say
                ``fekete_schepers`` and ``ccm1``: see :mod:`solvers.dual_feasible`
``subset_sum``  a load is a sum of costs
``waste``       no sum of costs may fill up what items of more than half of the target leave
``padded``      padded costs only: at one below, the greedy cover of the sorted rows needs more than m groups
``cover``       mixed costs only, with ``prefix`` and, under equal counts, ``row_filler`` and ``even_runs``: see
                :mod:`solvers.partitioning._mixed_bounds`
``water``       initial loads, speeds: the smallest T at which the groups have room for all, sum max(0, T s_j - I_j) >=
                sum(c), and at which every group has carried its initial load
``fastest``     initial loads, speeds: for any k < m, the k largest items are in k groups at most, so T is at least
                that at which the k groups with most room have room for them
``masks``       items that may be nowhere but inside a set of groups fill it to some level (for every set of groups that
                an item allows, and every union of two of them)
``components``  vector costs: the sum (or the largest) of the bounds of the components
``patterns``    items can be given weights such that all weigh more than m times what one group can hold
``search``      everything was searched: there is nothing below
``cp_sat``      proven by CP-SAT's search
=============== =======================================================================================================

The plain bounds hold under every constraint that only takes assignments away. Items that must stay together count as
one item. An initial load counts as one item more. With speeds, all groups are as fast as the fastest for the plain
bounds.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._jit import kernel
from solvers._sort import sort_descending
from solvers._units import Units, merge
from solvers.arguments import INT64_MAX, as_costs, as_count
from solvers.constraints import ConstrainedProblem, Constraints, is_vector
from solvers.dual_feasible import groups_needed, runs_of_equal_sizes
from solvers.groups import read_only

Ints = NDArray[np.int64]

# Limits that keep a bound to a millisecond or three, whatever it is asked. They go by the problem alone and never by
# a budget: a larger budget must not end with a smaller bound. The bounds are worth 329 +- 74 ppm of few items and 2.0
# +- 0.5 points proven (row *late bounds* of benchmarks/ablation.py, free).
# Steps of the lifted bound: about a millisecond.
_MOST_STEPS = 1_000_000
# Items a group that it looks at: with more, the mean is as good. With 8, few items lose 214 +- 88 ppm and 1.2 +- 0.5
# points proven (benchmarks/constants.py).
_LONGEST_PREFIX = 32
# Bits of the subset-sum bound: about a millisecond.
_MOST_BITS = 1 << 26
# Questions to the dual feasible functions: a bisection of 4,096 targets. With 4, few items lose 36 +- 30 ppm.
_MOST_QUESTIONS = 12
# Costs changed for all of them: about three milliseconds.
_MOST_CHANGED = 1 << 20
# Distinct masks up to which unions of two are tried too: with 48 there are 1,128 of them, each O(m).
_MASKS = 48


class Bound(NamedTuple):
    """A proven lower bound and the argument that proves it."""

    value: int
    name: str


def goal_above(bound: Bound, stop_at: Fraction) -> int:
    """Return the largest makespan whose gap to `bound` is at most `stop_at`: small enough for a search to end."""
    return min(bound.value + bound.value * stop_at.numerator // stop_at.denominator, INT64_MAX)


@kernel
def _shared(sorted_costs, num_groups, equal_counts, best):
    """The bound ``pigeonhole``, or with ``equal_counts`` ``filler``, if it is above ``best``, else that. O(n).

    For any l groups there is such an argument, but only l = j is worth a look. Up to j groups hold k of the items each:
    the more groups, the more of the larger items. From l = j on what they weigh is convex in l, so that a group's share
    is largest at l = j or at l = m, and that is the mean at most.
    """
    n = len(sorted_costs)
    sums = np.zeros(n + 1, dtype=np.int64)
    for i in range(n):
        sums[i + 1] = sums[i] + sorted_costs[i]
    each, longer = n // num_groups, n % num_groups
    for k in range(1, (n - 1) // num_groups + 2):
        before = (k - 1) * num_groups
        for j in range(1, min(num_groups, n - before) + 1):
            weight = sums[before + j] - sums[before + j - k * j]
            if equal_counts:
                # Of the other groups no more than `longer` hold an item more than `each`.
                fillers = (each - k) * j + max(0, longer - (num_groups - j))
                if fillers > 0:
                    weight += sums[n] - sums[n - fillers]
            if weight > 0.999999 * best * j:  # a division takes longer than all else
                best = max(best, weight // j + (1 if weight % j else 0))
    return best


def best_bound(sorted_costs: Ints, total: int, num_groups: int, equal_counts: bool = False) -> Bound:
    """Return the best bound that needs no constraint but, with `equal_counts`, that of n/m items a group.

    `sorted_costs` descend, and `total` is their sum, which fits int64. Counts may differ by one where m does not
    divide n. Ties go to the simpler argument: mean, largest, pigeonhole, filler, folding. O(n).

    References
    ----------
    Dell'Amico & Martello, "Optimal scheduling of tasks on identical parallel processors", ORSA Journal on Computing
    7(2), 1995. Haouari, Gharbi & Jemmali, "Tight bounds for the identical parallel machine-scheduling problem",
    International Transactions in Operational Research 13, 2006.
    """
    n = len(sorted_costs)
    if n == 0:
        return Bound(0, "mean")
    costs = read_only(sorted_costs)
    bounds = [Bound(-(-total // num_groups), "mean"), Bound(int(costs[0]), "largest")]
    if n > num_groups:
        shared = int(_shared(costs, num_groups, equal_counts, _best(bounds).value))
        bounds.append(Bound(shared, "filler" if equal_counts else "pigeonhole"))
        if equal_counts and n <= 2 * num_groups:
            paired = costs[2 * num_groups - n :]  # the items before these fold onto zeros
            bounds.append(Bound(int((paired + paired[::-1]).max()), "folding"))
    return _best(bounds)


def _best(bounds: list[Bound]) -> Bound:
    """Return the largest; of equal ones the first, which is the simplest argument."""
    return max(bounds, key=lambda bound: bound.value)


def component_bound(
    costs: Ints, initial: Ints, speeds: Ints, num_groups: int, *, equal_counts: bool = False,
    masks: NDArray[np.bool_] | None = None, mask_of_unit: NDArray[np.integer[Any]] | None = None,
) -> Bound:  # fmt: skip
    """Return the best bound on the largest time of one cost component.

    Parameters
    ----------
    costs : int64[u]
        Of units in any order; with `initial` and times the largest of `speeds`, their sum fits int64.
    initial, speeds : int64[m]
        What groups hold before, and how much of a cost they do in a unit of time.
    num_groups : int
        m.
    equal_counts : bool
        Whether groups hold n/m units (within one where m does not divide n).
    masks, mask_of_unit : bool[k, m] and int[u], optional
        The sets of groups that units may be in, and which of them each unit may be in.
    """
    total, bounds = int(costs.sum()), []
    if equal_counts or not initial.any():
        bounds.append(_as_fast_as_the_fastest(costs, speeds, num_groups, equal_counts))
    if initial.any():
        items = np.concatenate([costs, initial[initial > 0]])
        bounds.append(_as_fast_as_the_fastest(items, speeds, num_groups, False))
    if initial.any() or speeds.max() > 1:
        least = int((-(-initial // speeds)).max())
        bounds.append(Bound(_water(total, initial, speeds, least), "water"))
        bounds.append(Bound(_fastest(np.sort(costs)[::-1], initial, speeds), "fastest"))
    if masks is not None and mask_of_unit is not None:
        low = _best(bounds).value
        bounds.append(Bound(_masks(masks, mask_of_unit, costs, initial, speeds, low), "masks"))
    return _best(bounds)


def _as_fast_as_the_fastest(costs: Ints, speeds: Ints, num_groups: int, equal_counts: bool) -> Bound:
    """Return the plain bound on the largest load, at the largest speed."""
    _, descending = sort_descending(np.ascontiguousarray(costs), int(costs.max()) if len(costs) else 0)
    load, name = best_bound(descending, int(costs.sum()), num_groups, equal_counts)
    return Bound(-(-load // int(speeds.max())), name)


def _smallest(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the smallest T in low..high at which `holds` is true: it is at high, and stays true once it is."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _room(target: int, initial: Ints, speeds: Ints) -> NDArray[Any]:
    """Return the room of each group under `target`; as Python's integers where their sum may leave int64."""
    room: Ints = np.maximum(target * speeds - initial, 0)
    return room if int(room.max()) <= INT64_MAX // len(room) else room.astype(object)


def _water(total: int, initial: Ints, speeds: Ints, low: int) -> int:
    """Return the smallest T from `low` on at which the groups have room for `total` together."""
    high = max(low, int((-(-(initial + np.int64(total)) // speeds)).min()))
    return _smallest(lambda target: bool(_room(target, initial, speeds).sum() >= total), low, high)


def _fastest(descending: Ints, initial: Ints, speeds: Ints) -> int:
    """Return the smallest T at which, for all k < m, the k groups with most room have room for the k largest units."""
    k = min(len(speeds) - 1, len(descending))
    if k <= 0:
        return 0
    needed = np.cumsum(descending[:k])

    def holds(target: int) -> bool:
        most = np.sort(_room(target, initial, speeds))[::-1][:k]
        return bool((np.cumsum(most) >= needed).all())

    return _smallest(holds, 0, int((-(-(initial + needed[-1]) // speeds)).min()))


def _masks(
    masks: NDArray[np.bool_], mask_of_unit: NDArray[np.integer[Any]], costs: Ints, initial: Ints, speeds: Ints, low: int
) -> int:
    """Return the level, `low` at least, to which units fill masks, and unions of two, that they cannot leave."""
    weight = np.zeros(len(masks), dtype=np.int64)
    np.add.at(weight, mask_of_unit, costs)
    sets = masks
    if len(masks) <= _MASKS:
        one, other = np.triu_indices(len(masks), 1)
        sets = np.concatenate([masks, masks[one] | masks[other]])
    # A unit cannot leave a set of groups where no group of its mask is outside.
    leaves = (~sets).astype(np.float32) @ masks.T.astype(np.float32) > 0
    inside = ~leaves @ weight
    # Most sets have room enough already.
    for k in np.flatnonzero((sets @ _room(low, initial, speeds) < inside) & sets.any(axis=1)).tolist():
        low = _water(int(inside[k]), initial[sets[k]], speeds[sets[k]], low)
    return low


def makespan_bound(costs: ArrayLike, num_groups: int, equal_counts: bool = False, **constraints: Any) -> Bound:
    """As :func:`makespan_lower_bound`, with the name of the argument that proves it."""
    given = Constraints(equal_counts, **constraints)
    if not is_vector(costs) and not given.beyond_counts:
        num_groups = as_count("num_groups", num_groups)
        array, largest, total = as_costs(costs)
        return best_bound(sort_descending(array, largest)[1], total, num_groups, bool(equal_counts))
    problem = given.check(costs, num_groups)
    return total_bound(problem, merge(problem))[0]


def total_bound(problem: ConstrainedProblem, units: Units) -> tuple[Bound, list[int]]:
    """Return the best bound on the makespan, and those on the largest time of each component."""
    few, longer = divmod(len(problem.costs), problem.num_groups)
    equal = problem.key_of_item is None and problem.least_items == few and (not longer or problem.most_items == few + 1)
    parts = [
        component_bound(
            units.costs[:, k], problem.initial[:, k], problem.speeds, problem.num_groups,
            equal_counts=equal, masks=None if units.masks.all() else units.masks, mask_of_unit=units.mask_of_unit,
        )
        for k in range(units.costs.shape[1])
    ]  # fmt: skip
    values = [part.value for part in parts]
    if len(parts) == 1:
        return parts[0], values
    return Bound(sum(values) if problem.objective == "sum" else max(values), "components"), values


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


@kernel
def _lifted(sorted_costs, num_groups):
    n = len(sorted_costs)
    sums = np.zeros(n + 1, dtype=np.int64)
    for i in range(n):
        sums[i + 1] = sums[i] + sorted_costs[i]
    best = np.int64(0)
    for largest in range(num_groups + 1, n + 1):
        # Some l groups hold so many of the `largest` items at least: the l fullest do.
        each, more = largest // num_groups, largest % num_groups
        for groups in range(1, num_groups + 1):
            items = groups * each + min(groups, more)
            weight = sums[largest] - sums[largest - items]
            best = max(best, (weight + groups - 1) // groups)
    return best


def lifted_bound(sorted_costs: NDArray[np.int64], num_groups: int) -> Bound:
    """Return the lifted bound of the 32 m largest, or a bound of 0 where that would take more than a millisecond or so.

    `sorted_costs` descend and their sum fits int64. O(min(n, m) m) time.

    References
    ----------
    Haouari, Gharbi & Jemmali, "Tight bounds for the identical parallel machine-scheduling problem", International
    Transactions in Operational Research 13, 2006.
    """
    largest = sorted_costs[: _LONGEST_PREFIX * num_groups]
    if not num_groups < len(largest) <= _MOST_STEPS // num_groups:
        return Bound(0, "lifted")
    return Bound(int(_lifted(read_only(largest), num_groups)), "lifted")


def dual_feasible_bound(sorted_costs: NDArray[np.int64], num_groups: int, bound: Bound, makespan: int) -> Bound:
    """Return the best bound that dual feasible functions give, if it is better than `bound`, else `bound` as it is.

    First they are asked whether `makespan`, which is reached, is optimal; else what they refute is bisected.
    `sorted_costs` descend and their sum fits int64. O(d) for d distinct costs, 150 functions and log(gap) questions;
    where that is more than a few milliseconds, fewer are asked, or none.
    """
    sizes, counts = runs_of_equal_sizes(sorted_costs)
    # Fewer than eight functions a question would seldom find anything.
    if 8 * _MOST_QUESTIONS * len(sizes) > _MOST_CHANGED:
        return bound
    total = int(sorted_costs.sum())

    def refuted(load: int) -> Bound | None:
        groups, name = groups_needed(
            sizes, counts, total, load, enough=num_groups + 1, work=_MOST_CHANGED // _MOST_QUESTIONS
        )
        return Bound(load + 1, name) if groups > num_groups else None

    low, high = bound.value, makespan - 1  # loads; those below the bound are refuted already
    # The first question is whether the makespan is optimal: where it is, one question is enough.
    load = high
    for _ in range(_MOST_QUESTIONS):
        if low > high or load <= 0:
            break
        found = refuted(load)
        bound = found or bound
        low, high = (load + 1, high) if found else (low, load - 1)
        load = (low + high) // 2
    return bound


def cost_of_late_bounds(sorted_costs: NDArray[np.int64], num_groups: int, makespan: int) -> int:
    """Work units (see :mod:`solvers._budget`) that the lifted, waste and subset-sum bounds take; at least one."""
    n = len(sorted_costs)
    steps = min(n, _LONGEST_PREFIX * num_groups) * num_groups
    # Python shifts and joins whole words of such a set: 160 bits count as one work unit.
    bits = n * makespan
    large = 2 * int(sorted_costs[0]) > makespan
    return (
        1
        + (steps if steps <= _MOST_STEPS else 0)
        + (bits // 160 if bits <= _MOST_BITS else 0)
        + (2 * makespan if bits <= _MOST_BITS and large else 0)
    )


def sums_below(sorted_costs: NDArray[np.int64], makespan: int) -> int | None:
    """Return which sums of costs there are below `makespan`, a bit each; None where that would take over a millisecond.

    O(n * makespan / 64) time.
    """
    if len(sorted_costs) * makespan > _MOST_BITS:
        return None
    # Sums from `makespan` on are of no use, and would make the integer grow without end.
    window = (1 << makespan) - 1
    sums = 1
    for cost in sorted_costs.tolist():
        sums |= (sums << cost) & window
    return sums


def subset_sum_bound(sums: int, bound: Bound, makespan: int) -> Bound:
    """Return the smallest sum of costs that is at least `bound` if that is larger, else `bound` as it is.

    `makespan` is reached, and `sums` is what :func:`sums_below` returned for it.
    """
    above = sums >> bound.value
    # The lowest set bit is the smallest sum that is there.
    smallest = bound.value + (above & -above).bit_length() - 1 if above else makespan
    return Bound(smallest, "subset_sum") if smallest > bound.value else bound


@kernel
def _waste(sorted_costs, fill, spare, num_groups, bound, makespan):
    """The first target from `bound` on that is not refuted; ``fill[r]`` is the largest sum up to r."""
    steps = 0
    for target in range(bound, makespan):
        left = spare + (target - bound) * num_groups
        for cost in sorted_costs:
            # Costs descend: no later one is over half of the target.
            if 2 * cost <= target or left < 0:
                break
            left -= target - cost - fill[target - cost]
            steps += 1
        if left >= 0 or steps > _MOST_STEPS:
            return target
    return makespan


def waste_bound(
    sorted_costs: NDArray[np.int64], total: int, num_groups: int, sums: int, bound: Bound, makespan: int
) -> Bound:
    """Return the smallest target from `bound` on that room which cannot be filled does not refute, if it is larger.

    `makespan` is reached, and `sums` is what :func:`sums_below` returned for it. O(makespan) time, and O(m) for each
    target.

    References
    ----------
    The bound L2 of Martello & Toth, "Lower bounds and reduction procedures for the bin packing problem", Discrete
    Applied Mathematics 28, 1990, made stronger by which sums there are.
    """
    if bound.value >= makespan or 2 * int(sorted_costs[0]) <= bound.value:
        return bound
    packed = np.frombuffer(sums.to_bytes(-(-makespan // 8), "little"), dtype=np.uint8)
    there = np.unpackbits(packed, count=makespan, bitorder="little").astype(np.bool_)
    fill = np.maximum.accumulate(np.where(there, np.arange(makespan), 0))
    spare = num_groups * bound.value - total
    least = int(_waste(read_only(sorted_costs), fill, spare, num_groups, bound.value, makespan))
    return Bound(least, "waste") if least > bound.value else bound


def late_bound(sorted_costs: NDArray[np.int64], total: int, num_groups: int, bound: Bound, makespan: int) -> Bound:
    """Return the lifted, waste or subset-sum bound if it is better than `bound`; `makespan` is reached.

    They take more than O(n), so only where a search has left a gap; :func:`cost_of_late_bounds` says how much.
    """
    lifted = lifted_bound(sorted_costs, num_groups)
    bound = max(bound, lifted, key=lambda one: one.value)  # ties to the simpler one
    if bound.value < makespan and (sums := sums_below(sorted_costs, makespan)) is not None:
        bound = waste_bound(sorted_costs, total, num_groups, sums, bound, makespan)
        bound = subset_sum_bound(sums, bound, makespan)
    return bound
