"""Checks of what packers claim, from scratch, in plain NumPy and with no code of theirs."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers._checking import require, require_status
from solvers._dual_feasible_check import GROUPS_BY_FUNCTION
from solvers.arguments import as_costs, as_count
from solvers.errors import CertificateError
from solvers.packing._arguments import as_cap
from solvers.packing.types import PackingResult


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
            # Functions are asked one after the other, and each takes a pass: the first that proves the claim is
            # enough.
            if proven >= bound:
                break
    require(bound <= proven, f"lower_bound = {bound}, but {name!r} proves {proven} at most")


_BOUNDS: dict[str, Callable[[list[int], int], Iterator[int]]] = {
    "volume": lambda sizes, cap: iter([max(1, -(-sum(sizes) // cap))]),
    **GROUPS_BY_FUNCTION,
}
"""The bounds by their definition; see :mod:`solvers.group_bounds` for why they hold."""

TRUSTED_BOUNDS = frozenset({"search"})
"""Bounds that a search proved."""
