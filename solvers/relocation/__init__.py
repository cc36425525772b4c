"""Items to ranks, given their present homes: balanced, with as little moved as possible, and proven bounds on it."""

import time
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers.arguments import as_budget, unknown
from solvers.errors import InfeasibleError
from solvers.groups import group_loads
from solvers.relocation._problem import RelocationProblem, as_cap, as_eps, homes_from
from solvers.relocation.auto import LAID, assign_auto, assign_rearrange, cap_of, reference
from solvers.relocation.bounds import MoveBounds, inter_bound, move_bounds, plain_inter_bound
from solvers.relocation.types import RelocationResult
from solvers.relocation.verify import check_relocation
from solvers.types import SolveStatus

__all__ = [
    "LAID",
    "RELOCATORS",
    "RelocationProblem",
    "RelocationResult",
    "as_eps",
    "check_relocation",
    "plain_inter_bound",
    "relocate",
    "relocated",
    "relocation_bound",
]

RELOCATORS = ("auto", "rearrange")
"""Every method, by name: a search; the partition with its groups rearranged (the baseline)."""


def relocate(
    costs: ArrayLike,
    home_rank: ArrayLike | None,
    node_of_rank: ArrayLike,
    *,
    volumes: ArrayLike | None = None,
    affinity: tuple[ArrayLike, ArrayLike, ArrayLike] | None = None,
    eps: object = 0,
    cap: SupportsIndex | None = None,
    equal_counts: bool = False,
    sizes: ArrayLike | None = None,
    caps: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    time_budget: float = 0.05,
    method: str = "auto",
) -> RelocationResult:
    """Put items on ranks so that no load is over a cap and least moves: first across nodes, then inside them.

    Parameters
    ----------
    costs : int64[n]
        Non-negative integers whose sum fits int64.
    home_rank : int64[n] or None
        The rank that each item lies on now; None where `affinity` says more.
    node_of_rank : int64[num_ranks]
        The node of each rank, any non-negative numbers; nodes may differ in size.
    volumes : int64[n], optional
        What moving an item moves; by default its cost.
    affinity : (int64[n + 1], int64[k], int64[k]), optional
        Offsets, ranks and volumes (compressed sparse rows): item i has ``volumes[j]`` on rank ``ranks[j]`` for j from
        ``offsets[i]`` to ``offsets[i + 1] - 1``. `home_rank` is the case of all on one rank.
    eps : int, float or Fraction
        ``cap = max(largest cost, floor((1 + eps) M))``, M the makespan that :func:`solvers.partition` reaches under
        the same constraints with ``stop_at=0``, or that of the homes if smaller. A float is read as the decimal number
        that Python prints for it, once: 5e-5 is exactly 1/20000.
    cap : int, optional
        The cap itself, in place of `eps`.
    equal_counts : bool
        Exactly n/m items a rank, within one where m does not divide n.
    sizes, caps : int64[n] and int or int64[num_ranks], optional
        A second quantity (tokens), and what each rank may hold of it.
    groups : int32[n], optional
        The group of each item in a known partition under the same constraints: it gives M, and is what is fallen back
        on.
    time_budget : float
        Seconds' worth of work, counted and not timed.
    method : str
        A name in :data:`RELOCATORS`.

    Returns
    -------
    RelocationResult
        Never over its cap. Where the search finds nothing under it: what comes of the partition, rearranged;
        ``fell_back`` says why.

    Raises
    ------
    TypeError, ValueError
        On arguments of the wrong kind, naming the argument, the place and the rule.
    InfeasibleError
        Proven: no assignment keeps the cap, or the token caps.
    SolverError
        None was found, with a `cap` below what the partition reaches or with token caps, nor was it proven that there
        is none.

    Notes
    -----
    Nodes are balanced first, as if they were ranks. Then a rank over the cap gives just its excess to ranks with room,
    in its node as long as there are any, as sums of one to three items (more where much is to move) found by two
    pointers, within the slack that the cap leaves; a few swaps do what no sum does.
    About O(n log n + m k^2) for k items a rank; O(n + m) memory. The task is load rebalancing (Aggarwal, Motwani &
    Zhu, 2006), with nodes.

    Examples
    --------
    >>> result = relocate([5, 4, 3, 2, 1, 1], [0, 0, 0, 1, 2, 3], [0, 0, 1, 1], cap=7)
    >>> result.loads.tolist(), result.inter_node_volume, result.intra_node_volume
    ([7, 7, 1, 1], 0, 5)
    >>> result.inter_bound, result.intra_bound, result.status.value
    (0, 5, 'optimal')
    """
    started = time.perf_counter()
    if method not in RELOCATORS:
        raise unknown("method", method, RELOCATORS)
    seconds = as_budget(time_budget)
    tolerance = as_eps(eps)
    problem = RelocationProblem.prepare(costs, home_rank, node_of_rank, volumes, affinity, equal_counts, sizes, caps)
    known = None if groups is None else homes_from(groups, len(problem.costs), problem.num_ranks, "groups")
    measure = reference(problem, seconds, known)
    fell_back = ""
    limit = cap_of(problem, measure.makespan, tolerance) if cap is None else as_cap(cap, problem)
    if limit < measure.least_makespan:
        raise InfeasibleError(
            f"no assignment keeps every load within {{cap}} = {limit}: the largest is proven to be at least "
            f"{measure.least_makespan}"
        )
    bounds = move_bounds(problem, limit)
    if method == "rearrange":
        found = assign_rearrange(problem, limit, measure, seconds)
    else:
        found, fell_back = assign_auto(problem, limit, measure, seconds)
    return _result(problem, found, limit, bounds, method, fell_back, started)


def relocated(
    problem: RelocationProblem, groups: NDArray[np.int32], eps: object, time_budget: float
) -> tuple[NDArray[np.int32], str]:
    """Ranks of items, and why it fell back, as :func:`relocate` by its default method: nothing is proven.

    Examples
    --------
    >>> problem = RelocationProblem.prepare([3, 2, 1], [0, 0, 0], [0, 0], None, None, False, None, None)
    >>> ranks, why = relocated(problem, np.array([0, 1, 1], dtype=np.int32), 0, 0.05)
    >>> ranks.tolist(), why
    ([1, 0, 0], '')
    """
    seconds, tolerance = as_budget(time_budget), as_eps(eps)
    measure = reference(problem, seconds, homes_from(groups, len(problem.costs), problem.num_ranks, "groups"))
    found, fell_back = assign_auto(problem, cap_of(problem, measure.makespan, tolerance), measure, seconds)
    return found.copy(), fell_back


def relocation_bound(
    costs: ArrayLike, home_rank: ArrayLike, node_of_rank: ArrayLike, volumes: ArrayLike | None, cap: SupportsIndex,
    divisible: bool = False,
) -> int:  # fmt: skip
    """Return the least volume that any assignment with loads of at most `cap` moves across nodes: proven.

    Parameters as for :func:`relocate`; `divisible`: whether several ranks may share an item, cost and volume alike. O(n
    log n).

    Examples
    --------
    >>> relocation_bound([5, 4, 3, 2, 1, 1], [0, 0, 0, 1, 2, 3], [0, 0, 1, 1], None, cap=6)
    2
    """
    problem = RelocationProblem.prepare(costs, home_rank, node_of_rank, volumes, None, False, None, None)
    return inter_bound(problem, as_cap(cap, problem, divisible), divisible)[0]


def _result(
    problem: RelocationProblem,
    found: NDArray[np.int32],
    cap: int,
    bounds: MoveBounds,
    method: str,
    fell_back: str,
    started: float,
) -> RelocationResult:
    """Measure what was found and put its certificate beside it."""
    inter, intra = problem.affinity.volumes_of(found, problem.nodes.of_rank)
    intra_bound = max(0, bounds.leave - inter)
    loads = group_loads(problem.costs, found, problem.num_ranks)
    found = found.copy()
    proven = inter == bounds.inter and intra == intra_bound
    status = SolveStatus.OPTIMAL if proven else SolveStatus.FEASIBLE
    return RelocationResult(
        found, loads, int(loads.max()), cap, inter, intra, bounds.inter, intra_bound, bounds.leave, bounds.inter_name,
        bounds.leave_name, status, method, fell_back, time.perf_counter() - started,
    )  # fmt: skip
