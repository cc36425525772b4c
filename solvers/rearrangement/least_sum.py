"""The least sum: the least volume that crosses by any bijection, and the prices that prove it."""

import time
from collections.abc import Sequence

from numpy.typing import ArrayLike

from solvers.rearrangement._problem import UNLIMITED, RearrangementProblem
from solvers.rearrangement.types import Objective, RearrangementResult
from solvers.rearrangement.volumes import Volumes


def least_sum(
    volumes: Volumes | ArrayLike,
    levels: ArrayLike | Sequence[ArrayLike],
    *,
    objective: Objective = "sum",
    weights: ArrayLike | None = None,
    class_of_group: ArrayLike | None = None,
    class_of_rank: ArrayLike | None = None,
    time_budget: float = 0.01,
) -> RearrangementResult:
    """Minimise the weighted volume that crosses, exactly; then, inside each node, what moves, exactly.

    For the sum always ``OPTIMAL``; the second step is exact for the nodes that the first one chose: among several
    optima of the first it does not seek the one with the least intra-node volume. With the objective ``"max"`` the same
    groups are placed, and their largest send is reported and bounded.

    A transportation problem, solved by an auction in coarse steps and then by shortest augmenting paths; memory is that
    of the volumes. Deterministic. For the prices that prove the optimum see :class:`BoundCertificate`.

    References
    ----------
    Bertsekas & Castanon, "The auction algorithm for the transportation problem", Annals of Operations Research 20,
    1989.
    Jonker & Volgenant, "A shortest augmenting path algorithm for dense and sparse linear assignment problems",
    Computing 38, 1987.

    Examples
    --------
    >>> result = least_sum([[9, 8], [8, 0]], [0, 1])
    >>> result.rank_of_group.tolist(), result.value, result.status.value
    ([1, 0], 9, 'optimal')
    """
    started = time.perf_counter()
    problem = RearrangementProblem.prepare(volumes, levels, objective, weights, class_of_group, class_of_rank)
    rows = problem.rows()
    assignment = problem.greedy(rows)
    price, _ = problem.transport(rows, assignment, UNLIMITED)
    bound = problem.bound(rows, price)
    return problem.result([problem.settled(assignment), problem.identity()], bound, "sum", started)
