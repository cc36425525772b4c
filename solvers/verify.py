"""Checks of what solvers claim, from scratch: the tests, the command line and debug mode all use these."""

import numpy as np
from numpy.typing import ArrayLike

from solvers._arguments import as_costs, as_count
from solvers.bounds import makespan_lower_bound
from solvers.errors import CertificateError
from solvers.types import PartitionResult, SolveStatus

__all__ = ["check_partition"]


def check_partition(
    costs: ArrayLike,
    result: PartitionResult,
    *,
    num_groups: int | None = None,
    equal_counts: bool = False,
    padded: bool = False,
) -> None:
    """Check a partition result against the costs it was made from; return nothing if all holds.

    Every number is recomputed in plain NumPy, with no code of the solvers; the lower bound, too, if a closed formula
    gave it.

    Parameters
    ----------
    costs : int64[n]
        The costs the result was made from.
    result : PartitionResult
    num_groups : int, optional
        The number of groups asked for; by default, that of ``result.loads``.
    equal_counts, padded : bool
        Whether the result was made under equal counts, or for padded costs.

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
    array, _, _ = as_costs(costs)
    groups = result.group_of_item
    m = len(result.loads) if num_groups is None else as_count("num_groups", num_groups)
    _require(len(result.loads) == m, f"loads must have {m} entries, got {len(result.loads)}")
    _require(
        groups.shape == array.shape, f"every item has one group: {len(array)} items, groups of shape {groups.shape}"
    )
    _require(groups.dtype == np.int32, f"group_of_item must be int32, got {groups.dtype}")
    inside = (groups >= 0) & (groups < m)
    if not inside.all():
        item = int(np.argmin(inside))
        raise CertificateError(f"item {item} is in group {groups[item]}, outside 0..{m - 1}")
    counts = np.bincount(groups, minlength=m)
    _check_loads(array, result, m, counts, padded)
    if equal_counts:
        few, many = len(array) // m, -(-len(array) // m)
        wrong = (counts < few) | (counts > many)
        if wrong.any():
            group = int(np.argmax(wrong))
            raise CertificateError(f"equal counts: group {group} holds {counts[group]} items, not {few} to {many}")
    _check_bound(array, result, m, equal_counts)


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise CertificateError(rule)


def _check_loads(costs: np.ndarray, result: PartitionResult, num_groups: int, counts: np.ndarray, padded: bool) -> None:
    loads = np.zeros(num_groups, dtype=np.int64)
    if padded:
        np.maximum.at(loads, result.group_of_item, costs)
        loads *= counts
    else:
        np.add.at(loads, result.group_of_item, costs)
    wrong = loads != result.loads
    if wrong.any():
        group = int(np.argmax(wrong))
        raise CertificateError(f"the load of group {group} is {loads[group]}, not {result.loads[group]}")
    _require(result.makespan == loads.max(), f"the largest load is {loads.max()}, not makespan = {result.makespan}")


def _check_bound(costs: np.ndarray, result: PartitionResult, num_groups: int, equal_counts: bool) -> None:
    bound = result.lower_bound
    _require(0 <= bound <= result.makespan, f"lower_bound = {bound} must be within 0..makespan = {result.makespan}")
    optimal = result.status is SolveStatus.OPTIMAL
    _require(
        optimal == (bound == result.makespan),
        f"status is {result.status.value} with makespan {result.makespan} and lower_bound {bound}",
    )
    if result.bound_name in ("mean", "largest", "pigeonhole", "filler"):
        closed_form = makespan_lower_bound(costs, num_groups, equal_counts)
        _require(bound <= closed_form, f"lower_bound = {bound}, but '{result.bound_name}' proves {closed_form} at most")
