"""Finished groups to ranks, so that least crosses nodes: the methods' registry, and the one call of all."""

from collections.abc import Sequence
from typing import Protocol

from numpy.typing import ArrayLike

from solvers.arguments import as_budget, unknown
from solvers.rearrangement.least_max import least_max
from solvers.rearrangement.methods import auto, greedy, identity, least_sum
from solvers.rearrangement.types import OBJECTIVES, BoundCertificate, Objective, RearrangementResult
from solvers.rearrangement.verify import check_rearrangement
from solvers.rearrangement.volumes import Volumes, group_volumes

__all__ = ["OBJECTIVES", "REARRANGERS", "USES_CLOCK", "BoundCertificate", "RearrangementResult", "Volumes", "auto",
           "check_rearrangement", "greedy", "group_volumes", "identity", "least_max", "least_sum",
           "rearrange"]  # fmt: skip


class Rearranger(Protocol):
    """What every entry of :data:`REARRANGERS` is; arguments and errors are those of :func:`rearrange`.

    Only what searches reads the budget: ``"auto"`` and ``"max"``.
    """

    def __call__(
        self,
        volumes: Volumes | ArrayLike,
        levels: ArrayLike | Sequence[ArrayLike],
        *,
        objective: Objective = ...,
        weights: ArrayLike | None = None,
        class_of_group: ArrayLike | None = None,
        class_of_rank: ArrayLike | None = None,
        time_budget: float = 0.01,
    ) -> RearrangementResult: ...


REARRANGERS: dict[str, Rearranger] = {
    "auto": auto,
    "identity": identity,
    "greedy": greedy,
    "sum": least_sum,
    "max": least_max,
}
"""Every method, by name; errors and tests derive their lists from it."""

USES_CLOCK = frozenset({"max"})
"""Methods whose result depends on the time of day; rearrange with them on one rank and broadcast."""


def rearrange(
    volumes: Volumes | ArrayLike,
    levels: ArrayLike | Sequence[ArrayLike],
    method: str = "auto",
    objective: Objective | None = None,
    time_budget: float = 0.01,
    *,
    weights: ArrayLike | None = None,
    class_of_group: ArrayLike | None = None,
    class_of_rank: ArrayLike | None = None,
) -> RearrangementResult:
    """Put finished groups on ranks, one each, so that least crosses nodes, and then least moves inside them.

    Loads do not change if ranks are interchangeable. Where they differ (in speed, caps, initial loads, or the items
    they may take), give classes: a group only goes to ranks of its class.

    Parameters
    ----------
    volumes : Volumes or int64[m, m]
        How much of each group lies on each rank now: :func:`group_volumes`, or a matrix ``[group, rank]`` of
        non-negative integers. As many groups as ranks, empty ones included.
    levels : int[m], or a sequence of them
        The node of each rank; nodes may differ in size, and labels are any integers. For deeper topologies the unit of
        each rank at each level, small units first: ``[node_of_rank, rack_of_rank]``. Units of a level lie within units
        of the next.
    method : str
        A name in :data:`REARRANGERS`.
    objective : str, optional
        ``"sum"``: all that crosses; ``"max"``: the most that any one rank sends across. By default ``"max"`` for the
        method ``"max"``, else ``"sum"``.
    time_budget : float
        Seconds' worth of work, counted and not timed, except for methods in :data:`USES_CLOCK`.
    weights : int64[num_levels], optional
        What crossing each level costs, at least 1 each; what crosses a rack also crosses a node and pays for both.
        By default 1.
    class_of_group, class_of_rank : int[m], optional
        Both or neither: labels of which each has as many groups as ranks.

    Returns
    -------
    RearrangementResult
        The bijection, what it moves, and a proven lower bound. Never worse than no rearrangement in the objective (the
        method ``"max"``: in the largest send).

    Raises
    ------
    TypeError
        Arguments of the wrong type.
    ValueError
        An unknown method or objective, a matrix that is not square or has a negative entry, arrays of the wrong length,
        levels that are not nested, volumes that times the weights leave int64.
    InfeasibleError
        If a class has more groups than ranks, or fewer.

    Examples
    --------
    Four ranks on two nodes; group 0 lies on rank 3 for the most part, so it goes to node 1.

    >>> volumes = [[1, 0, 0, 8], [9, 0, 1, 0], [0, 0, 7, 2], [0, 5, 0, 0]]
    >>> result = rearrange(volumes, [0, 0, 1, 1])
    >>> result.rank_of_group.tolist(), result.inter_node_volume, result.intra_node_volume, result.status.value
    ([3, 0, 2, 1], 2, 2, 'optimal')
    """
    solver = REARRANGERS.get(method)
    if solver is None:
        raise unknown("method", method, REARRANGERS)
    as_budget(time_budget)  # refused by all if by one
    return solver(
        volumes,
        levels,
        objective=objective or ("max" if method == "max" else "sum"),
        weights=weights,
        class_of_group=class_of_group,
        class_of_rank=class_of_rank,
        time_budget=time_budget,
    )
