"""Items that must stay together, merged to units: solvers and bounds place units, not items."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solvers.constraints import ConstrainedProblem

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Units:
    """Units in the order of their first items; where no items stay together, a unit is an item."""

    costs: Ints  # int64[u, c]
    sizes: Ints  # int64[u, q]
    items: Ints  # int64[u]: how many items each unit has
    mask_of_unit: Ints  # int64[u]: a row of `masks`
    masks: NDArray[np.bool_]  # bool[k, m]: the groups that all items of a unit may be in
    unit_of_item: Ints | None  # int64[n]; None: each item is a unit

    def items_of(self, units: NDArray[np.bool_]) -> list[int]:
        """Return the items of the marked units."""
        marked = units if self.unit_of_item is None else units[self.unit_of_item]
        return np.flatnonzero(marked).tolist()


def merge(problem: ConstrainedProblem) -> Units:
    """Merge items by key. O(n), and O(n log n) where masks must be merged too."""
    keys = problem.key_of_item
    if keys is None:
        items = np.ones(len(problem.costs), dtype=np.int64)
        mask_of_unit = problem.mask_of_item.astype(np.int64)
        return Units(problem.costs, problem.sizes, items, mask_of_unit, problem.masks, None)
    count = int(keys.max()) + 1 if len(keys) else 0
    mask_of_unit, masks = _merge_masks(problem, keys, count)
    costs, sizes = _sum_by_key(problem.costs, keys, count), _sum_by_key(problem.sizes, keys, count)
    return Units(costs, sizes, np.bincount(keys, minlength=count), mask_of_unit, masks, keys)


def _sum_by_key(values: Ints, keys: Ints, count: int) -> Ints:
    sums = np.zeros((count, values.shape[1]), dtype=np.int64)
    for k in range(values.shape[1]):
        np.add.at(sums[:, k], keys, values[:, k])
    return sums


def _merge_masks(problem: ConstrainedProblem, keys: Ints, count: int) -> tuple[Ints, NDArray[np.bool_]]:
    """Intersect the masks within each unit. Distinct pairs of unit and mask are few; rows are made only for those."""
    if len(problem.masks) == 1:
        return np.zeros(count, dtype=np.int64), problem.masks
    pairs = np.unique(keys * len(problem.masks) + problem.mask_of_item)
    of_unit: list[set[int]] = [set() for _ in range(count)]
    for pair in pairs.tolist():
        of_unit[pair // len(problem.masks)].add(pair % len(problem.masks))
    known: dict[tuple[int, ...], int] = {}
    # Units of the same masks share one intersection: rows are bool[m], and there may be many units.
    mask_of_unit = np.array([known.setdefault(tuple(sorted(s)), len(known)) for s in of_unit], dtype=np.int64)
    masks = np.stack([problem.masks[list(s)].all(axis=0) for s in known])
    return mask_of_unit, masks
