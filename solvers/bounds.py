"""Lower bounds on the makespan, each with its proof; this module computes those that need no constraint.

Costs are sorted in descending order, ``c[0] >= c[1] >= ...``; n items, m groups; a target T is *refuted* if no
assignment has all loads at most T, and then T + 1 is a bound. *One below* is a target of the bound less one.

=============== =======================================================================================================
name            why no assignment does better
=============== =======================================================================================================
``mean``        the loads sum to sum(c), so one is at least ceil(sum(c) / m)
``largest``     some group holds the largest item
``pigeonhole``  of the k*m + 1 largest items some group holds k + 1, and the k + 1 smallest of them weigh
                c[k*m - k] + ... + c[k*m]  (Dell'Amico & Martello 1995, for all k with k*m < n)
``lifted``      of any n' largest items, some l groups hold at least l floor(n'/m) + min(l, n' mod m) together, so at
                least that many of the smallest of them, and one of the l groups has a share of that
                (Haouari, Gharbi & Jemmali 2006); O(n m), so only where a search has left a gap
``l2``          at one below, some dual feasible function says that the items need more than m groups
                (:mod:`solvers.dual_feasible`); so say ``fekete_schepers`` and ``ccm1``; only where a search left a gap
``filler``      equal counts only: of the (k-1)*m + 1 largest items some group holds k, as for ``pigeonhole``, and at
                least floor(n/m) items in all, so at least the floor(n/m) - k smallest of all besides
``folding``     equal counts only, m < n <= 2 m: with zeros added up to 2 m items, two of the i + 1 largest share a
                group, or one of them has a partner of at least c[2m-1-i]: a load of at least c[i] + c[2m-1-i]
``subset_sum``  a load is a sum of costs, so the optimum is at least the smallest such sum that reaches the other
                bounds; only where costs are narrow
``waste``       under T, items of more than T / 2 are in different groups, and no sum of costs may fill up what such a
                item leaves; T is too low where that room, summed up, is more than m T - sum(c); only where costs are
                narrow
``padded``      padded costs only: at one below, the greedy cover of the sorted rows needs more than m groups
``cover``       mixed costs only, with ``prefix`` and, under equal counts, ``row_filler`` and ``even_runs``: see
                :mod:`solvers.partitioning._mixed_bounds`
``water``       initial loads, speeds: the smallest T at which the groups have room for all, sum max(0, T s_j - I_j) >=
                sum(c), and at which every group has carried its initial load
``fastest``     initial loads, speeds: for any k < m, the k largest items are in k groups at most, so T is at least
                that at which the k groups with most room have room for them
``best_group``  an item alone in the group, of those that it may be in, where it would finish first
``masks``       items that may be nowhere but inside a set of groups fill it to some level (for every set of groups that
                an item allows, and every union of two of them)
``fill``        a group holds at least min_items, and what all other groups cannot hold of a quantity (by their caps)
                or of items (by max_items); the group of an item holds it and the cheapest that makes up that amount,
                items cut to measure
``components``  vector costs: the sum (or the largest) of the bounds of the components
``summed_cost`` vector costs: a group's component times sum to at least the time of its summed cost
``patterns``    one below, items can be given weights such that all together weigh more than m times the heaviest set
                of items that fits one group; by column generation and an exact knapsack
                (:mod:`solvers.partitioning.patterns`)
``search``      an exhaustive search one below the makespan found nothing (:mod:`solvers.partitioning.bin_completion`)
``cp_sat``      proven by CP-SAT's search
=============== =======================================================================================================

The plain bounds hold under every constraint that only takes assignments away. Items that must stay together count as
one item. An initial load counts as one item more. With speeds the plain bounds do not hold, and are not used.
"""

from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import kernel
from solvers.arguments import INT64_MAX
from solvers.dual_feasible import groups_needed, runs_of_equal_sizes
from solvers.groups import read_only

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


class Bound(NamedTuple):
    """A proven lower bound and the argument that proves it."""

    value: int
    name: str


def goal_above(bound: Bound, stop_at: Fraction) -> int:
    """Return the largest makespan whose gap to `bound` is at most `stop_at`: small enough for a search to end."""
    return min(bound.value + bound.value * stop_at.numerator // stop_at.denominator, INT64_MAX)


@kernel
def _pigeonhole(sorted_costs, num_groups):
    n = len(sorted_costs)
    best = 0
    window = np.int64(0)
    for k in range(1, (n - 1) // num_groups + 1):
        window = np.int64(0)
        # Summed anew for each k. Together the windows are shorter than the items as long as n <= m^2; see
        # `best_bound`.
        for i in range(k * num_groups - k, k * num_groups + 1):
            window += sorted_costs[i]
        best = max(best, window)
    return best


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


@kernel
def _filler(sorted_costs, num_groups, most):
    """The filler bound for k up to `most`; n >= m."""
    n = len(sorted_costs)
    each = n // num_groups
    fillers = np.int64(0)
    for i in range(n - each + 1, n):
        fillers += sorted_costs[i]
    best = sorted_costs[0] + fillers
    for k in range(2, min(each, most) + 1):
        # One item more is among the large ones, so one filler less is needed: the largest of those that were.
        fillers -= sorted_costs[n - each + k - 1]
        window = fillers
        for i in range((k - 1) * num_groups + 1 - k, (k - 1) * num_groups + 1):
            window += sorted_costs[i]
        best = max(best, window)
    return best


def _folding(sorted_costs: NDArray[np.int64], num_groups: int) -> int:
    """Return the makespan of folding; m < n <= 2 m."""
    # With zeros added, the first items fold onto zeros and stand alone; the largest of them is the first.
    alone = 2 * num_groups - len(sorted_costs)
    folded = sorted_costs[alone:] + sorted_costs[alone:][::-1]
    return int(max(sorted_costs[0], folded.max()))


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


def best_bound(sorted_costs: NDArray[np.int64], total: int, num_groups: int, equal_counts: bool = False) -> Bound:
    """Return the best of this module's closed-form bounds.

    `sorted_costs` descend, and `total` is their sum, which fits int64. With `equal_counts` groups hold exactly n/m
    items (within one where m does not divide n). Ties go to the simpler argument: mean, largest, pigeonhole, filler,
    folding.

    O(n): the windows of the pigeonhole bound have k + 1 items for k up to n/m, so O((n/m)^2) in all, which is
    below n for n <= m^2; for fewer groups only the first sqrt(n) windows are summed (each is a bound by itself).
    """
    n = len(sorted_costs)
    if n == 0:
        return Bound(0, "mean")
    best = Bound(-(-total // num_groups), "mean")
    if (largest := int(sorted_costs[0])) > best.value:
        best = Bound(largest, "largest")
    if n > num_groups:
        # The first sqrt(n) windows are at most n items together: O(n), and each is a bound by itself.
        windows = min(n, num_groups * (1 + int(n**0.5)) + 1)
        if (pigeonhole := int(_pigeonhole(read_only(sorted_costs[:windows]), num_groups))) > best.value:
            best = Bound(pigeonhole, "pigeonhole")
    if equal_counts and n // num_groups > 1:
        filler = int(_filler(read_only(sorted_costs), num_groups, 1 + int(n**0.5)))
        if filler > best.value:
            best = Bound(filler, "filler")
    if equal_counts and num_groups < n <= 2 * num_groups:
        folding = _folding(sorted_costs, num_groups)
        if folding > best.value:
            best = Bound(folding, "folding")
    return best
