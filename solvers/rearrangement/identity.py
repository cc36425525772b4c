"""Identity: no rearrangement, the baseline."""

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from solvers.rearrangement._problem import RearrangementProblem
from solvers.rearrangement.types import Objective, RearrangementResult
from solvers.rearrangement.volumes import Volumes


def identity(
    volumes: Volumes | ArrayLike,
    levels: ArrayLike | Sequence[ArrayLike],
    *,
    objective: Objective = "sum",
    weights: ArrayLike | None = None,
    class_of_group: ArrayLike | None = None,
    class_of_rank: ArrayLike | None = None,
    time_budget: float = 0.01,
) -> RearrangementResult:
    """Leave group g on rank g; with classes, the k-th group of each on its k-th rank.

    Its bound is that no group keeps more than where it keeps most.

    Examples
    --------
    >>> identity([[0, 5], [4, 1]], [0, 1]).inter_node_volume
    9
    """
    started = time.perf_counter()
    problem = RearrangementProblem.prepare(volumes, levels, objective, weights, class_of_group, class_of_rank)
    bound = problem.bound(problem.rows(), np.zeros(problem.num_places, dtype=np.int64))
    return problem.result([problem.identity()], bound, "identity", started)
