"""Checks of what packers and splits claim, from scratch, in plain NumPy and with no code of theirs."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._checking import require, require_status
from solvers._dual_feasible_check import GROUPS_BY_FUNCTION
from solvers.arguments import as_costs, as_count
from solvers.errors import CertificateError
from solvers.packing._arguments import as_cap
from solvers.packing.contiguous import SplitResult
from solvers.packing.types import PackingResult
from solvers.types import SolveStatus

__all__ = ["TRUSTED_BOUNDS", "check_packing", "check_split"]


def check_packing(sizes: ArrayLike, cap: int, result: PackingResult, *, max_items: int | None = None) -> None:
    """Check a packing result against the sizes it was made from; return nothing if all holds.

    Every number is recomputed, the lower bound by the argument it names. Only what a search proved (``search``) is
    believed, because its proof is not kept.

    Parameters
    ----------
    sizes : int64[n]
        The sizes the result was made from.
    cap : int
        The cap that was asked for.
    result : PackingResult
    max_items : int, optional
        The most items a group that were asked for.

    Raises
    ------
    CertificateError
        Naming the first violated rule.
    TypeError, ValueError
        If the sizes, the cap or `max_items` themselves are unusable.

    Examples
    --------
    >>> from solvers.packing import pack
    >>> check_packing([4, 5, 6, 5], 10, pack([4, 5, 6, 5], 10))
    """
    cap = as_cap(cap)
    array, _, _ = as_costs(sizes, "sizes")
    most = None if max_items is None else as_count("max_items", max_items)
    require(result.cap == cap, f"the cap is {cap}, not {result.cap}")
    _check_arrays(len(array), result.group_of_item, result.loads)
    counts = np.bincount(result.group_of_item, minlength=result.num_groups)
    if not counts.all():
        raise CertificateError(f"every group holds an item, but group {int(np.argmin(counts))} is empty")
    _check_loads(array, result.group_of_item, result.loads)
    _check_cap(result.loads, cap, counts, most)
    _check_bound(array, result, cap, most)


def check_split(
    costs: ArrayLike,
    result: SplitResult,
    *,
    num_groups: int | None = None,
    nonempty: bool = False,
    cap: int | None = None,
    max_items: int | None = None,
) -> None:
    """Check a contiguous split against the costs it was made from; return nothing if all holds.

    Parameters
    ----------
    costs : int64[n]
        The costs the result was made from.
    result : SplitResult
    num_groups : int, optional
        The number of groups asked for (:func:`split_contiguous`); exactly one of this and `cap` is given.
    nonempty : bool
        Whether no group may be empty.
    cap : int, optional
        The cap asked for (:func:`split_fewest`).
    max_items : int, optional
        The most items a group that were asked for, with `cap`.

    Raises
    ------
    CertificateError
        Naming the first violated rule.
    TypeError, ValueError
        If the arguments themselves are unusable.

    Examples
    --------
    >>> from solvers.packing import split_fewest
    >>> check_split([5, 1, 4, 3, 3], split_fewest([5, 1, 4, 3, 3], 8), cap=8)
    """
    if (num_groups is None) == (cap is None):
        raise TypeError(f"exactly one of num_groups and cap must be given, got {num_groups!r} and {cap!r}")
    array, _, _ = as_costs(costs)
    offsets = result.offsets
    require(
        offsets.dtype == np.int64 and offsets.shape == (len(result.loads) + 1,),
        f"offsets must be int64[{len(result.loads) + 1}], got {offsets.dtype} of shape {offsets.shape}",
    )
    lengths = np.diff(offsets)
    require(
        offsets[0] == 0 and offsets[-1] == len(array) and bool((lengths >= 0).all()),
        f"offsets must ascend from 0 to {len(array)}",
    )
    _check_arrays(len(array), result.group_of_item, result.loads)
    _check_loads(array, result.group_of_item, result.loads)
    if num_groups is not None:
        groups = as_count("num_groups", num_groups)
        require(result.num_groups == groups, f"there are {result.num_groups} groups, not {groups}")
        if nonempty and not lengths.all():
            raise CertificateError(f"no group may be empty, but group {int(np.argmin(lengths))} is")
        value = int(result.loads.max())
        attainable = value == 0 or _greedy_groups(array.tolist(), value - 1, None) > groups
    else:
        most = None if max_items is None else as_count("max_items", max_items)
        limit = as_cap(cap)  # type: ignore[arg-type]  # one of the two is given
        _check_cap(result.loads, limit, lengths, most)
        value = result.num_groups
        attainable = _greedy_groups(array.tolist(), limit, most) == value
    require(result.minimised == value, f"minimised is {value}, not {result.minimised}")
    require(attainable, f"greedy cuts do better than {value}")
    require(
        result.lower_bound == value and result.bound_name == "greedy" and result.status is SolveStatus.OPTIMAL,
        f"an optimal split has lower_bound = {value} by 'greedy' and status optimal, got {result.lower_bound} by "
        f"{result.bound_name!r} and {result.status.value}",
    )


def _check_arrays(num_items: int, groups: NDArray[np.int32], loads: NDArray[np.int64]) -> None:
    require(
        loads.ndim == 1 and loads.dtype == np.int64,
        f"loads must be int64[num_groups], got {loads.dtype} of shape {loads.shape}",
    )
    require(
        groups.shape == (num_items,), f"every item has one group: {num_items} items, groups of shape {groups.shape}"
    )
    require(groups.dtype == np.int32, f"group_of_item must be int32, got {groups.dtype}")
    inside = (groups >= 0) & (groups < len(loads))
    if not inside.all():
        item = int(np.argmin(inside))
        raise CertificateError(f"item {item} is in group {groups[item]}, outside 0..{len(loads) - 1}")


def _check_loads(sizes: NDArray[np.int64], groups: NDArray[np.int32], claimed: NDArray[np.int64]) -> None:
    loads = np.zeros(len(claimed), dtype=np.int64)
    np.add.at(loads, groups, sizes)
    wrong = loads != claimed
    if wrong.any():
        group = int(np.argmax(wrong))
        raise CertificateError(f"the load of group {group} is {loads[group]}, not {claimed[group]}")


def _check_cap(loads: NDArray[np.int64], cap: int, counts: NDArray[np.int64], max_items: int | None) -> None:
    if (loads > cap).any():
        group = int(np.argmax(loads > cap))
        raise CertificateError(f"group {group} weighs {loads[group]}, over cap = {cap}")
    if max_items is not None and (counts > max_items).any():
        group = int(np.argmax(counts > max_items))
        raise CertificateError(f"group {group} holds {counts[group]} items, over max_items = {max_items}")


def _check_bound(sizes: NDArray[np.int64], result: PackingResult, cap: int, max_items: int | None) -> None:
    bound, name = result.lower_bound, result.bound_name
    require_status(result.status, bound, result.num_groups, "num_groups")
    if name in TRUSTED_BOUNDS:
        return
    known = [*_BOUNDS, *([] if max_items is None else ["counts"])]
    require(name in known, f"lower_bound is by an unknown argument {name!r}; known here are {', '.join(known)}")
    proven = 0
    if name == "counts" and max_items is not None:
        proven = -(-len(sizes) // max_items)
    elif len(sizes):
        for value in _BOUNDS[name](sizes.tolist(), cap):
            proven = max(proven, value)
            if proven >= bound:
                break
    require(bound <= proven, f"lower_bound = {bound}, but {name!r} proves {proven} at most")


def _greedy_groups(costs: list[int], cap: int, max_items: int | None) -> float:
    """Segments that greedy cuts under `cap` make; infinite where an item is over it."""
    groups, load, held = 0, 0, 0
    for cost in costs:
        if cost > cap:
            return float("inf")
        if groups == 0 or load + cost > cap or held == max_items:
            groups, load, held = groups + 1, 0, 0
        load, held = load + cost, held + 1
    return groups


_BOUNDS: dict[str, Callable[[list[int], int], Iterator[int]]] = {
    "volume": lambda sizes, cap: iter([max(1, -(-sum(sizes) // cap))]),
    **GROUPS_BY_FUNCTION,
}
"""The bounds by their definition; see :mod:`solvers.group_bounds` for why they hold."""

TRUSTED_BOUNDS = frozenset({"search"})
"""Bounds that a search proved."""
