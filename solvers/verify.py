"""Checks of what solvers claim, from scratch: the tests, the command line and debug mode all use these."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._checking import require, require_status
from solvers._constrained_check import check_constrained, check_groups
from solvers._dual_feasible_check import GROUPS_BY_FUNCTION
from solvers.arguments import INT64_MAX, as_costs, as_count, as_share
from solvers.constraints import ConstrainedProblem, Constraints, is_vector
from solvers.errors import CertificateError
from solvers.groups import check_padded_overflow
from solvers.prefixes.verify import check_with_prefixes
from solvers.types import PartitionResult


def check_partition(
    costs: ArrayLike,
    result: PartitionResult,
    *,
    num_groups: int | None = None,
    equal_counts: bool = False,
    padded: bool = False,
    sizes: ArrayLike | None = None,
    caps: ArrayLike | None = None,
    min_items: int = 0,
    max_items: int | None = None,
    allowed: ArrayLike | Sequence[Sequence[int] | None] | None = None,
    keep_together: ArrayLike | Sequence[int | str | None] | None = None,
    initial_loads: ArrayLike | None = None,
    speeds: ArrayLike | None = None,
    objective: str = "sum",
    row_costs: ArrayLike | None = None,
    prefix: ArrayLike | Sequence[int | str | None] | None = None,
    prefix_costs: ArrayLike | None = None,
    stop_at: float | str | Fraction = "0.1%",
) -> None:
    """Check a partition result against the costs it was made from; return nothing if all holds.

    Every number is recomputed in plain NumPy, with no code of the solvers; so is the lower bound, by the argument it
    names. Only what a search proved (:data:`TRUSTED_BOUNDS`) is believed: its proof is not kept.

    Parameters
    ----------
    costs : int64[n] or int64[n, c]
        The costs the result was made from.
    result : PartitionResult
    num_groups : int, optional
        The number of groups asked for; by default, that of ``result.loads``.
    equal_counts, padded : bool
        Whether the result was made under equal counts, or for padded costs.
    sizes, caps, min_items, max_items, allowed, keep_together, initial_loads, speeds, objective
        The constraints it was made under, as given to :func:`solvers.partition`.
    row_costs : int64[n], optional
        Given if the result was made for mixed costs, as :func:`solvers.mixed` has them.
    prefix, prefix_costs : array[n], optional
        Given if items share prefixes, as given to :func:`solvers.partition`.
    stop_at : float, str or Fraction
        The gap that was asked for: up to it the status must be ``within``.

    Raises
    ------
    CertificateError
        Naming the first violated rule.
    TypeError, ValueError
        If the costs themselves are unusable.

    Examples
    --------
    >>> import solvers
    >>> check_partition([5, 4, 3, 3, 3], solvers.partition([5, 4, 3, 3, 3], 2))
    """
    share = as_share("stop_at", stop_at)
    constraints = Constraints(
        equal_counts, sizes, caps, min_items, max_items, allowed, keep_together, initial_loads, speeds, objective
    )
    if prefix is not None or prefix_costs is not None:
        asked = [name for name in constraints.names() if name != "equal_counts"]
        asked += [name for name, given in (("padded", padded), ("row_costs", row_costs is not None)) if given]
        if prefix is None or prefix_costs is None or asked:
            raise ValueError("prefix and prefix_costs are given together, and with no constraint but equal_counts")
        m = result.num_groups if num_groups is None else as_count("num_groups", num_groups)
        check_with_prefixes(costs, result, m, prefix, prefix_costs, equal_counts, share)
        return
    if not padded and row_costs is None and (is_vector(costs) or constraints.beyond_counts):
        problem = constraints.check(costs, result.num_groups if num_groups is None else num_groups)
        even = _even_counts(problem)
        plain = _BOUNDS | (_COUNTED_BOUNDS if even else {})
        plain |= {"subset_sum": lambda costs, m: _subset_sum_bound(costs, m, even)}
        plain |= _dual_feasible_bounds(result.lower_bound)
        check_constrained(problem, result, plain, TRUSTED_BOUNDS, share)
        return
    if (replace(constraints, min_items=0) if padded else constraints).beyond_counts:
        raise ValueError(
            "padded and mixed costs take no constraint but equal_counts (padded ones min_items too), got "
            f"{', '.join(constraints.names())}"
        )
    array, largest, total = as_costs(costs)
    if padded:
        check_padded_overflow(largest, len(array))
    rows = None if row_costs is None else _checked_rows(array, total, row_costs, padded)
    m = np.size(result.loads) if num_groups is None else as_count("num_groups", num_groups)
    groups = check_groups(result, len(array), (max(m, 1),))
    counts = np.bincount(groups, minlength=m)
    _check_loads(array, result, m, counts, padded, rows)
    _check_counts(counts, equal_counts, min_items)
    if rows is None:
        _check_bound(array, result, m, equal_counts, padded, min_items, share)
    else:
        _check_mixed_bound(array, rows, result, m, equal_counts)


def _check_counts(counts: NDArray[np.int64], equal_counts: bool, min_items: int) -> None:
    if equal_counts:
        few, many = counts.sum() // len(counts), -(-counts.sum() // len(counts))
        wrong = (counts < few) | (counts > many)
        if wrong.any():
            group = int(np.argmax(wrong))
            raise CertificateError(f"equal counts: group {group} holds {counts[group]} items, not {few} to {many}")
    if counts.min(initial=min_items) < min_items:
        group = int(np.argmin(counts))
        raise CertificateError(f"min_items: group {group} holds {counts[group]} items, not {min_items} at least")


def _checked_rows(costs: NDArray[np.int64], total: int, row_costs: ArrayLike, padded: bool) -> NDArray[np.int64]:
    rows, longest, _ = as_costs(row_costs, "row_costs")
    if padded:
        raise ValueError("give row_costs for mixed costs or padded=True for padded ones, not both")
    if len(rows) != len(costs):
        raise ValueError(f"costs and row_costs must have one entry an item, got {len(costs)} and {len(rows)}")
    if total + longest * len(rows) > INT64_MAX:
        raise ValueError(f"mixed costs must fit int64: {len(rows)} rows of {longest} and the sum {total} do not")
    return rows


def _even_counts(problem: ConstrainedProblem) -> bool:
    """Whether the constraints on counts, together, leave every group n/m items, within one."""
    n, m, keys = len(problem.costs), problem.num_groups, problem.key_of_item
    if keys is not None and len(np.unique(keys)) < n:
        return False  # the bounds then count units, not items
    # What all other groups can take at most leaves so many to each, and what they need at least leaves no more.
    least = max(problem.least_items, n - (m - 1) * problem.most_items)
    most = min(problem.most_items, n - (m - 1) * problem.least_items)
    return least >= n // m and most <= -(-n // m)


def _check_loads(
    costs: NDArray[np.int64], result: PartitionResult, num_groups: int, counts: NDArray[np.int64], padded: bool,
    rows: NDArray[np.int64] | None,
) -> None:  # fmt: skip
    loads = np.zeros(num_groups, dtype=np.int64)
    if padded or rows is not None:
        np.maximum.at(loads, result.group_of_item, costs if rows is None else rows)
        loads *= counts
    if not padded:
        np.add.at(loads, result.group_of_item, costs)
    wrong = loads != result.loads
    if wrong.any():
        group = int(np.argmax(wrong))
        raise CertificateError(f"the load of group {group} is {loads[group]}, not {result.loads[group]}")
    require(result.makespan == loads.max(), f"the largest load is {loads.max()}, not makespan = {result.makespan}")


def _check_bound(
    costs: NDArray[np.int64], result: PartitionResult, num_groups: int, equal_counts: bool, padded: bool, least: int,
    stop_at: Fraction,
) -> None:  # fmt: skip
    bound, name = result.lower_bound, result.bound_name
    require_status(result.status, result.lower_bound, result.makespan, stop_at=stop_at)
    if name in TRUSTED_BOUNDS and not padded:
        return
    dual = _dual_feasible_bounds(bound)
    known = ["padded"] if padded else [*_BOUNDS, *dual, "subset_sum", *(_COUNTED_BOUNDS if equal_counts else [])]
    require(name in known, f"lower_bound is by an unknown argument {name!r}; known here are {', '.join(known)}")
    descending = np.sort(costs)[::-1].tolist()
    if padded:
        proven = _padded_bound(descending, num_groups, equal_counts, least)
    elif name == "subset_sum":
        proven = _subset_sum_bound(descending, num_groups, equal_counts) if descending else 0
    else:
        proven = (_BOUNDS | _COUNTED_BOUNDS | dual)[name](descending, num_groups) if descending else 0
    require(bound <= proven, f"lower_bound = {bound}, but '{name}' proves {proven} at most")


def _check_mixed_bound(
    costs: NDArray[np.int64], row_costs: NDArray[np.int64], result: PartitionResult, num_groups: int, even: bool
) -> None:
    """Check a bound for mixed costs: by its argument on u + g, or, for those found by bisection, one below refuted."""
    require_status(result.status, result.lower_bound, result.makespan)
    bound, name = result.lower_bound, result.bound_name
    known = [*_BOUNDS, *_REFUTATIONS, *([*_COUNTED_BOUNDS, *_QUOTA_BOUNDS] if even else [])]
    require(name in known, f"lower_bound is by an unknown argument {name!r}; known here are {', '.join(known)}")
    # The same order as the solver's: u and g rise together, so that any order by their sum is one by each of them.
    order = np.argsort(-(costs + row_costs), kind="stable")
    fixed, rows = costs[order].tolist(), row_costs[order].tolist()
    if bound == 0:
        return
    if name in _REFUTATIONS:
        require(_REFUTATIONS[name](fixed, rows, num_groups, bound - 1), f"'{name}' does not prove {bound}")
        return
    if name in _QUOTA_BOUNDS:
        proven = _QUOTA_BOUNDS[name](fixed, rows, num_groups)
    else:
        both = [u + g for u, g in zip(fixed, rows, strict=True)]
        proven = (_BOUNDS | _COUNTED_BOUNDS)[name](both, num_groups)
    require(bound <= proven, f"lower_bound = {bound}, but '{name}' proves {proven} at most")


def _pigeonhole_bound(costs: list[int], m: int, equal_counts: bool = False) -> int:
    """Of the first items the j fullest groups hold k * j at least; with equal counts, so many others besides."""
    n, sums = len(costs), [0, *itertools.accumulate(costs)]
    best = 0
    for first in range(1, n + 1) if n > m else ():
        k = -(-first // m)
        j = first - (k - 1) * m
        held = n - sum(-(-(n - g) // m) for g in range(m - j)) if equal_counts else 0  # what others cannot hold
        fillers = max(0, held - k * j)
        best = max(best, -(-(sums[first] - sums[first - k * j] + sums[n] - sums[n - fillers]) // j))
    return best


def _lifted_bound(costs: list[int], m: int) -> int:
    sums = np.array([0, *itertools.accumulate(costs)])
    groups = np.arange(1, m + 1)
    best = 0
    for largest in range(m + 1, len(costs) + 1):
        items = groups * (largest // m) + np.minimum(groups, largest % m)
        best = max(best, int((-(-(sums[largest] - sums[largest - items]) // groups)).max()))
    return best


def _dual_feasible_bounds(claimed: int) -> dict[str, Callable[[list[int], int], int]]:
    """Bounds by name that return what is claimed if the function refutes one below, else 0."""

    def proves(name: str, costs: list[int], m: int) -> int:
        below = claimed - 1
        if below < max(costs):
            # A target below the largest item is refuted by that item.
            return claimed if below >= 0 else 0
        return claimed if any(groups > m for groups in GROUPS_BY_FUNCTION[name](costs, below)) else 0

    return {name: partial(proves, name) for name in GROUPS_BY_FUNCTION}


def _waste_bound(costs: list[int], m: int) -> int:
    """Return the first target at which the room that items of more than half of it must leave is not too much."""
    target = max(bound(costs, m) for name, bound in _BOUNDS.items() if name != "waste")
    window = (1 << 2 * target) - 1  # LPT, for one, stays below twice the largest bound
    sums = 1
    for cost in costs:
        sums |= sums << cost & window
    while True:
        large = [cost for cost in costs if 2 * cost > target]
        room = [target - cost for cost in large]
        unfilled = sum(space + 1 - (sums & ((1 << space + 1) - 1)).bit_length() for space in room)
        if unfilled <= m * target - sum(costs):
            return target
        # Target after target, as the bound is defined: slow, and with no bisection that could be wrong in the same
        # way.
        target += 1


def _subset_sum_bound(costs: list[int], m: int, equal_counts: bool) -> int:
    """Return the smallest sum of costs that is at least every other bound."""
    bounds = _BOUNDS | (_COUNTED_BOUNDS if equal_counts else {})
    reached = max(bound(costs, m) for bound in bounds.values())
    sums = 1
    for cost in costs:
        sums |= sums << cost
    while not sums >> reached & 1:
        reached += 1
    return reached


def _folding_bound(costs: list[int], m: int) -> int:
    """Return the makespan of folding; nothing where it is not optimal."""
    if not m < len(costs) <= 2 * m:
        return 0
    padded = costs + [0] * (2 * m - len(costs))
    return max(padded[i] + padded[-1 - i] for i in range(m))


def _padded_bound(rows: list[int], m: int, equal_counts: bool, least: int) -> int:
    """Return the optimum: no number of rows times their longest below it lets m runs of `least` cover all rows."""
    if not rows:
        return 0
    few, more = divmod(len(rows), m)
    if equal_counts:
        return max(few * rows[0], (few + 1) * rows[(m - more) * few] if more else 0)
    low, high = rows[0], rows[0] * len(rows)
    while low < high:
        middle = (low + high) // 2
        covered, short = 0, False
        for behind in reversed(range(m)):
            if covered < len(rows):
                fit = middle // rows[covered] if rows[covered] else len(rows)
                # As many rows as fit, but `least` are left for each group that follows.
                covered, short = min(covered + fit, len(rows) - least * behind), short or fit < least
        low, high = (low, middle) if covered >= len(rows) and not short else (middle + 1, high)
    return low


def _cover_refutes(fixed: list[int], rows: list[int], m: int, load: int) -> bool:
    """Whether m runs cannot cover the rows; one that begins at G has k of them, if k G + the k smallest u <= load."""
    smallest = [0, *itertools.accumulate(reversed(fixed))]
    covered = 0
    for _ in range(m):
        if covered < len(rows):
            k = 0
            while k < len(rows) and (k + 1) * rows[covered] + smallest[k + 1] <= load:
                k += 1
            covered += k
    return covered < len(rows)


def _prefix_refutes(fixed: list[int], rows: list[int], m: int, load: int) -> bool:
    """Whether there are no m runs of the sorted items of which the first j weigh at most j * load, for every j.

    ``padding[x]`` is the least padding of the first x items in j runs; a run that begins at y adds rows[y] an item.
    Whichever y is best for x, a later one is for a larger x: rows descend. So the best are found by halving.
    """
    sums = [0, *itertools.accumulate(fixed)]
    padding = [0]  # of what j runs can cover
    for j in range(1, m + 1):
        starts = min(len(padding), len(rows))
        envelope: list[tuple[int, int]] = []  # (from which x on, y)
        for y in range(starts):
            begin = 0
            while envelope:
                since, other = envelope[-1]
                # Two runs are two lines in x; this one is the lower from `begin` on, and stays it, because its slope
                # is less.
                ahead = padding[y] - y * rows[y] - padding[other] + other * rows[other]
                if rows[other] > rows[y]:
                    begin = max(0, -(-ahead // (rows[other] - rows[y])))
                else:
                    begin = since if ahead < 0 else len(rows) + 1
                if begin > since:
                    break
                envelope.pop()
            envelope.append((begin if envelope else 0, y))
        reached: list[int] = []
        at = 0
        for x in range(len(rows) + 1):
            while at + 1 < len(envelope) and envelope[at + 1][0] <= x:
                at += 1
            y = envelope[at][1]
            reached.append(padding[y] + (x - y) * rows[y])
            if reached[-1] + sums[x] > j * load:
                reached.pop()
                break
        if len(reached) > len(rows):
            return False
        if not reached:
            return True
        padding = reached
    return True


def _row_filler_bound(fixed: list[int], rows: list[int], m: int) -> int:
    held = max(len(rows) // m, 1)
    return held * rows[0] + fixed[0] + sum(fixed[len(fixed) - held + 1 :])


def _even_runs_bound(fixed: list[int], rows: list[int], m: int) -> int:
    few, more = divmod(len(rows), m)
    longest = [rows[at] if (at := j * few + min(j, more)) < len(rows) else 0 for j in range(m)]
    return -(-(sum(fixed) + few * sum(longest) + sum(sorted(longest)[:more])) // m)


_BOUNDS: dict[str, Callable[[list[int], int], int]] = {
    "mean": lambda costs, m: -(-sum(costs) // m),
    "largest": lambda costs, m: costs[0],
    "pigeonhole": _pigeonhole_bound,
    "lifted": _lifted_bound,
    "waste": _waste_bound,
}
"""The closed-form bounds by their definition; see :mod:`solvers.bounds` for why they hold."""

_COUNTED_BOUNDS: dict[str, Callable[[list[int], int], int]] = {
    "filler": partial(_pigeonhole_bound, equal_counts=True), "folding": _folding_bound,
}  # fmt: skip
"""Those that only equal counts prove."""

TRUSTED_BOUNDS = frozenset({"cp_sat", "patterns", "search"})
"""Bounds that a search proved, which the check believes."""

_REFUTATIONS: dict[str, Callable[[list[int], list[int], int, int], bool]] = {
    "cover": _cover_refutes,
    "prefix": _prefix_refutes,
}
"""Relaxations of mixed costs, by whether they refute a load; see :mod:`solvers.partitioning._mixed_bounds`."""

# Bounds of mixed costs under equal counts.
_QUOTA_BOUNDS: dict[str, Callable[[list[int], list[int], int], int]] = {
    "row_filler": _row_filler_bound,
    "even_runs": _even_runs_bound,
}
