"""Items to groups, the largest load as small as possible: one file per algorithm, and their registry."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Protocol

from numpy.typing import ArrayLike

from solvers.arguments import as_budget, as_share, unknown
from solvers.constraints import Constraints, is_vector
from solvers.errors import UsageError
from solvers.partitioning.auto import auto
from solvers.partitioning.bldm import bldm
from solvers.partitioning.constrained import CONSTRAINTS, SUPPORTED, solve_constrained
from solvers.partitioning.exact import exact
from solvers.partitioning.karmarkar_karp import karmarkar_karp
from solvers.partitioning.lpt import lpt
from solvers.partitioning.mixed import mixed
from solvers.partitioning.multifit import multifit
from solvers.partitioning.padded import padded
from solvers.partitioning.round_robin import round_robin
from solvers.partitioning.slack import slack
from solvers.prefixes import partition_with_prefixes
from solvers.types import PartitionResult, SolveStatus, status_of

__all__ = ["CONSTRAINTS", "PARTITIONERS", "SUPPORTED", "USES_CLOCK", "auto", "bldm", "exact",
           "karmarkar_karp", "lpt", "mixed", "multifit", "padded", "partition", "round_robin", "slack"]  # fmt: skip


class Partitioner(Protocol):
    """What every entry of :data:`PARTITIONERS` is."""

    def __call__(
        self, costs: ArrayLike, num_groups: int, *, equal_counts: bool = False, time_budget: float = 0.01
    ) -> PartitionResult: ...


PARTITIONERS: dict[str, Partitioner] = {
    "auto": auto,
    "lpt": lpt,
    "slack": slack,
    "multifit": multifit,
    "karmarkar_karp": karmarkar_karp,
    "bldm": bldm,
    "round_robin": round_robin,
    "exact": exact,
}
"""Every method for additive costs, by name; the command line, the errors and the tests derive their lists from it."""

USES_CLOCK = frozenset({"exact"})
"""Methods whose result depends on the time of day; plan with them on one rank and broadcast."""


def partition(
    costs: ArrayLike,
    num_groups: int,
    method: str = "auto",
    time_budget: float = 0.01,
    *,
    equal_counts: bool = False,
    sizes: ArrayLike | None = None,
    caps: ArrayLike | None = None,
    min_items: int = 0,
    max_items: int | None = None,
    allowed: ArrayLike | Sequence[Sequence[int] | None] | None = None,
    keep_together: ArrayLike | Sequence[int | str | None] | None = None,
    initial_loads: ArrayLike | None = None,
    speeds: ArrayLike | None = None,
    objective: str = "sum",
    stop_at: float | str | Fraction = "0.1%",
    prefix: ArrayLike | Sequence[int | str | None] | None = None,
    prefix_costs: ArrayLike | None = None,
) -> PartitionResult:
    """Put items into groups so that the largest load is as small as possible (P||Cmax, multiway number partitioning).

    Parameters
    ----------
    costs : int64[n] or int64[n, c]
        Non-negative integers whose sum fits int64. Integral floats are accepted. With c components the loads are
        int64[m, c] and `objective` makes one makespan of them.
    num_groups : int
        At least 1; may exceed n, and then some groups are empty.
    method : str
        A name in :data:`PARTITIONERS`.
    time_budget : float
        Seconds' worth of work, counted and not timed, except for methods in :data:`USES_CLOCK`.
    equal_counts : bool
        Exactly n/m items a group, within one where m does not divide n.
    sizes, caps, min_items, max_items, allowed, keep_together, initial_loads, speeds, objective
        Constraints, alone or in any combination: see :class:`solvers.Constraints` for shapes and rules, and
        :data:`SUPPORTED` for the methods that take them.
    stop_at : float, str or Fraction
        Of ``"auto"``: the gap that is small enough, ``0.001`` or ``"0.1%"``: less than cost models and steps vary. The
        search ends as soon as it has proven it, and under constraints also where mixing groups anew was in vain some
        turns in a row, as no bound may prove it. 0: it goes on until the result is proven optimal, or the work is
        spent. A status ``within`` says that no more than this gap is left, by whatever method.

    Returns
    -------
    PartitionResult
        Groups, loads, makespan, and a proven lower bound.

    Raises
    ------
    TypeError
        Costs or counts of the wrong type.
    ValueError
        An unknown method, a negative cost, costs of the wrong shape, a sum past int64, a budget that is not positive,
        a constraint of the wrong shape or sign, or one that the method does not take.
    InfeasibleError
        Proven: no assignment keeps all constraints. The certificate says which, for which items, and by how much.
    SolverError
        No assignment that keeps them was found, nor was it proven that there is none.

    Examples
    --------
    >>> result = partition([5, 4, 3, 3, 3], 2)
    >>> result.group_of_item.tolist(), result.loads.tolist(), result.gap
    ([0, 0, 1, 1, 1], [9, 9], 0.0)
    >>> partition([9, 4, 4, 1], 2, sizes=[3, 2, 2, 1], caps=5, speeds=[2, 1]).loads.tolist()
    [13, 5]
    >>> partition([3, 3, 3, 1], 2, prefix=["a", "a", "a", "b"], prefix_costs=[4, 4, 4, 4]).loads.tolist()
    [10, 12]
    """
    solver = PARTITIONERS.get(method)
    if solver is None:
        raise unknown("method", method, PARTITIONERS)
    as_budget(time_budget)  # refused by all if by one
    share = as_share("stop_at", stop_at)
    constraints = Constraints(
        equal_counts, sizes, caps, min_items, max_items, allowed, keep_together, initial_loads, speeds, objective
    )
    if prefix is not None or prefix_costs is not None:
        _refuse_beside_prefixes(is_vector(costs), constraints, method)
        found = partition_with_prefixes(
            costs, num_groups, prefix, prefix_costs, equal_counts=equal_counts, time_budget=time_budget
        )
    elif is_vector(costs) or constraints.beyond_counts:
        found = solve_constrained(costs, num_groups, method, time_budget, constraints, solver, share)
    elif solver is auto:
        found = auto(costs, num_groups, equal_counts=equal_counts, time_budget=time_budget, stop_at=share)
    else:
        found = solver(costs, num_groups, equal_counts=equal_counts, time_budget=time_budget)
    out_of_time = found.status is SolveStatus.TIME_LIMIT
    status = status_of(found.makespan, found.lower_bound, share, out_of_time=out_of_time)
    return found if status is found.status else replace(found, status=status)


def _refuse_beside_prefixes(vector: bool, constraints: Constraints, method: str) -> None:
    """Raise UsageError for what groups with shared prefixes cannot keep to."""
    if vector:
        raise UsageError("{prefix} is for {costs} of one number an {item}")
    if others := [name for name in constraints.names() if name != "equal_counts"]:
        raise UsageError(f"{{prefix}} cannot be combined with {{{others[0]}}}", "leave one of them out")
    if method != "auto":
        raise UsageError("{prefix} is for {method} 'auto', not for {given!r}", given=method)
