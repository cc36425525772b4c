"""Bounds on the makespan under constraints, of all cost components together."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from solvers._units import Units, merge
from solvers.bounds import Bound, total_bound
from solvers.constraints import ConstrainedProblem

__all__ = ["constrained_bound", "mask_sets", "total_bound"]

_MASKS = 48


def constrained_bound(problem: ConstrainedProblem, units: Units | None = None) -> Bound:
    """Return the best of all bounds on the makespan of `problem`."""
    return total_bound(problem, merge(problem) if units is None else units)[0]


def mask_sets(masks: NDArray[np.bool_]) -> Iterator[NDArray[np.bool_]]:
    """Sets of groups for the bound ``masks``: every mask and, where they are few, every union of two."""
    yield from masks
    if len(masks) <= _MASKS:
        for k in range(len(masks)):
            for other in range(k):
                yield masks[k] | masks[other]
