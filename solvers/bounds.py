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
``padded``      padded costs only: at one below, the greedy cover of the sorted rows needs more than m groups
``prefix``      mixed costs only, and ``quota`` under equal counts: see :mod:`solvers.partitioning._mixed_bounds`
``water``       initial loads, speeds: the smallest T at which the groups have room for all, sum max(0, T s_j - I_j) >=
                sum(c), and at which every group has carried its initial load
``fastest``     initial loads, speeds: for any k < m, the k largest items are in k groups at most, so T is at least
                that at which the k groups with most room have room for them
``masks``       items that may be nowhere but inside a set of groups fill it to some level (for every set of groups that
                an item allows, and every union of two of them)
``components``  vector costs: the sum (or the largest) of the bounds of the components
``search``      everything was searched: there is nothing below
``cp_sat``      proven by CP-SAT's search
=============== =======================================================================================================

And on the number of groups under a cap T:

=================== ===================================================================================================
``volume``          a group holds at most T, so there are at least ceil(sum(c) / T), and one if there is an item
``counts``          a group holds at most max_items items, so there are at least ceil(n / max_items)
``l2``              dual feasible functions; so do ``fekete_schepers`` and ``ccm1``: see :mod:`solvers.dual_feasible`
``limits``          a group holds at most so much of another sum, so there are at least ceil(sum / most)
``search``          :func:`solvers.partition` proved that one group fewer would be over T
=================== ===================================================================================================

The plain bounds hold under every constraint that only takes assignments away. Items that must stay together count as
one item. An initial load counts as one item more. With speeds, all groups are as fast as the fastest for the plain
bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._jit import kernel
from solvers._sort import sort_descending
from solvers._units import Units, merge
from solvers.arguments import INT64_MAX, as_costs, as_count, as_flag
from solvers.constraints import ConstrainedProblem, Constraints, is_vector
from solvers.dual_feasible import groups_needed, runs_of_equal_sizes
from solvers.groups import read_only

Ints = NDArray[np.int64]

# Distinct masks up to which unions of two are tried too: with 48 there are 1,128 of them, each O(m).
_MASKS = 48
# And from which on there is no such bound, nor such a proof that there is no plan.
_MOST_MASKS = 1024
# Sizes changed, over all dual feasible functions that are tried: a few milliseconds.
_SIZES_CHANGED = 2**20


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
    sets = mask_sets(masks)
    # A unit cannot leave a set of groups where no group of its mask is outside.
    leaves = (~sets).astype(np.float32) @ masks.T.astype(np.float32) > 0
    inside = ~leaves @ weight
    # Most sets have room enough already.
    for k in np.flatnonzero((sets @ _room(low, initial, speeds) < inside) & sets.any(axis=1)).tolist():
        low = _water(int(inside[k]), initial[sets[k]], speeds[sets[k]], low)
    return low


def mask_sets(masks: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the sets of groups that are worth a look: every mask and, where they are few, every union of two.

    Where there are very many there are none: each is compared with each mask.
    """
    if len(masks) > _MASKS:
        return masks if len(masks) <= _MOST_MASKS else masks[:0]
    one, other = np.triu_indices(len(masks), 1)
    return np.concatenate([masks, masks[one] | masks[other]])


def makespan_bound(costs: ArrayLike, num_groups: int, equal_counts: bool = False, **constraints: Any) -> Bound:
    """As :func:`makespan_lower_bound`, with the name of the argument that proves it."""
    given = Constraints(equal_counts, **constraints)
    if not is_vector(costs) and not given.beyond_counts:
        num_groups = as_count("num_groups", num_groups)
        array, largest, total = as_costs(costs)
        return best_bound(sort_descending(array, largest)[1], total, num_groups, as_flag("equal_counts", equal_counts))
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


def groups_bound(
    sorted_sizes: NDArray[np.int64], total: int, cap: int, max_items: int | None = None, enough: int | None = None
) -> Bound:
    """Return the best closed-form bound on the number of groups under a cap.

    `sorted_sizes` descend, none over `cap`, and `total` is their sum, which fits int64. With `max_items` only packings
    with at most so many items a group are bounded. It stops at the first bound that is `enough`, such as the number of
    groups of a known packing. Ties go to the simpler argument: volume, counts, l2, fekete_schepers, ccm1.

    O(n + 150 d) for d distinct sizes; past 7,000 of them, fewer functions are tried and it is O(n + d).
    """
    n = len(sorted_sizes)
    if n == 0:
        return Bound(0, "volume")
    best = Bound(max(1, -(-total // cap)), "volume")
    if max_items is not None and -(-n // max_items) > best.value:
        best = Bound(-(-n // max_items), "counts")
    if enough is not None and best.value >= enough:
        return best
    sizes, counts = runs_of_equal_sizes(sorted_sizes)
    value, name = groups_needed(sizes, counts, total, cap, enough=enough or INT64_MAX, work=_SIZES_CHANGED)
    return Bound(value, name) if value > best.value else best
