"""Items that must stay together, merged to units: constrained solvers and bounds place units, not items."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solvers.constraints import ConstrainedProblem

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Units:
    """Units in descending order of cost (of summed cost where it is a vector), ties by their first item."""

    costs: Ints  # int64[u, c]
    sizes: Ints  # int64[u, q]
    items: Ints  # int64[u]: how many items each unit has
    mask_of_unit: NDArray[np.int32]  # int32[u]
    masks: NDArray[np.bool_]  # bool[k, m]: the groups that all items of a unit may be in
    unit_of_item: Ints  # int64[n]

    def items_of(self, units: NDArray[np.bool_]) -> list[int]:
        """Return the items of the marked units."""
        return np.flatnonzero(units[self.unit_of_item]).tolist()


def merge(problem: ConstrainedProblem) -> Units:
    """Merge items by key, and sort. O(n log n)."""
    n = len(problem.costs)
    keys = np.arange(n) if problem.key_of_item is None else problem.key_of_item
    if problem.key_of_item is None:
        costs, sizes = problem.costs, problem.sizes
        items = np.ones(n, dtype=np.int64)
        masks, mask_of_unit = problem.masks, problem.mask_of_item
    else:
        count = int(keys.max()) + 1 if n else 0
        items = np.bincount(keys, minlength=count).astype(np.int64)
        costs, sizes = _sum_by_key(problem.costs, keys, count), _sum_by_key(problem.sizes, keys, count)
        mask_of_unit, masks = _merge_masks(problem, keys, count)
    # Costliest first, as list scheduling wants them; stable, so that ties go by the first item.
    order = np.argsort(-costs.sum(axis=1), kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return Units(costs[order], sizes[order], items[order], mask_of_unit[order], masks, place[keys])


def _sum_by_key(values: Ints, keys: Ints, count: int) -> Ints:
    sums = np.zeros((count, values.shape[1]), dtype=np.int64)
    for k in range(values.shape[1]):
        np.add.at(sums[:, k], keys, values[:, k])
    return sums


def _merge_masks(problem: ConstrainedProblem, keys: Ints, count: int) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Intersect the masks within each unit. Distinct pairs of unit and mask are few; rows are made only for those."""
    if len(problem.masks) == 1:
        return np.zeros(count, dtype=np.int32), problem.masks
    pairs = np.unique(keys * len(problem.masks) + problem.mask_of_item)
    of_unit: list[set[int]] = [set() for _ in range(count)]
    for pair in pairs.tolist():
        of_unit[pair // len(problem.masks)].add(pair % len(problem.masks))
    known: dict[tuple[int, ...], int] = {}
    # Units of the same masks share one intersection: rows are bool[m], and there may be many units.
    mask_of_unit = np.array([known.setdefault(tuple(sorted(s)), len(known)) for s in of_unit], dtype=np.int32)
    masks = np.stack([problem.masks[list(s)].all(axis=0) for s in known])
    return mask_of_unit, masks
