"""Sequence groups: which ranks share which items, in which slot, so that the sum of the slots' times is small."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import ArrayLike

from solvers._budget import work_units
from solvers.arguments import as_budget
from solvers.errors import TimeLimitError
from solvers.grouping._layout import lay_out
from solvers.grouping._problem import SequenceProblem
from solvers.grouping._request import SequenceRequest
from solvers.grouping._search import Solution, search
from solvers.grouping.bounds import closed_form
from solvers.grouping.types import SequenceGroupsResult
from solvers.groups import read_only
from solvers.types import status_of


def sequence_groups(
    times: ArrayLike,
    sizes: ArrayLike,
    degrees: ArrayLike,
    num_ranks: int,
    cap: int | None,
    *,
    overhead: int = 0,
    group_overhead: ArrayLike | None = None,
    num_slots: int | None = None,
    min_slots: int = 1,
    slots_multiple_of: int = 1,
    time_budget: float = 0.1,
) -> SequenceGroupsResult:
    """Divide the ranks of every slot into groups and give every item to one, so that the slots' times sum to little.

    A slot takes as long as its slowest group, and a group as long as its items one after another. Long items belong on
    many ranks, where they are faster or fit at all; short ones on few, where they take less rank-time.

    Parameters
    ----------
    times : int64[D, n]
        Time of each item in a group of each degree, non-negative; it need not fall as the degree rises.
    sizes : int64[n] or int64[D, n]
        What each item takes of a group's room, at every degree or at each.
    degrees : int64[D]
        How many ranks a group may have; distinct, in any order. Those that the ranks have no place for are not used.
    num_ranks : int
    cap : int or None
        A group of degree d holds sizes of at most ``d * cap``. None: of any.
    overhead : int
        Charged in every slot, empty ones too.
    group_overhead : int64[D], optional
        Charged once in each group of a degree.
    num_slots : int, optional
        K; by default it is chosen.
    min_slots, slots_multiple_of : int
        What K has to be at least, and a multiple of.
    time_budget : float
        Seconds' worth of work, counted and not timed.

    Returns
    -------
    SequenceGroupsResult
        Groups, their ranks and items, and a proven lower bound in closed form. In each slot the groups lie one after
        another in descending order of degree. So where every degree divides the next, each group starts at a multiple
        of its degree: inside a node, if the degree divides the ranks of one. Other groups may reach over the end of a
        node.

    Raises
    ------
    TypeError, ValueError
        Arguments of the wrong type, shape or range, that contradict each other, or whose sums do not fit.
    InfeasibleError
        If an item is over the room of the largest group, or all are over that of the slots asked for.
    TimeLimitError
        If no solution of as few slots as asked for was found; there may be one.

    Notes
    -----
    Peels off slots, longest items first, in many ways (best fit under a time and the room of each degree), and improves
    the best by putting the items of two or three slots together anew. O(n * groups of a slot) a start; O(n log n) where
    a slot can have more than 64 groups.

    References
    ----------
    FlexSP (Wang et al. 2024, arXiv:2412.01523) has the problem, with a mixed-integer model of one slot.

    Examples
    --------
    >>> result = sequence_groups([[8, 2, 2, 1, 1], [5, 1, 1, 1, 1]], [8, 2, 2, 1, 1], [1, 2], 4, 4, overhead=1)
    >>> result.slot_times.tolist(), result.degree_of_group.tolist(), result.lower_bound
    ([6], [2, 1, 1], 6)
    >>> result.group_of_item.tolist(), result.first_rank_of_group.tolist()
    ([0, 1, 1, 2, 2], [0, 2, 3])
    """
    asked = SequenceRequest(
        times, sizes, degrees, num_ranks, cap, overhead=overhead, group_overhead=group_overhead, num_slots=num_slots,
        min_slots=min_slots, slots_multiple_of=slots_multiple_of,
    )  # fmt: skip
    started = time.perf_counter()
    problem, work = SequenceProblem.of(asked), work_units(as_budget(time_budget))
    bound = closed_form(problem)
    n = len(problem.order)
    nothing = np.zeros((3, 0), dtype=np.int64)
    found, ended = Solution(nothing, np.zeros(1, dtype=np.int64), 0), True
    if n:
        found, ended = search(problem, bound.value, work)
    if (slots := problem.most_filled) < found.num_slots:
        raise TimeLimitError(
            f"none was found: no way to put the {n} {{items}} into {{num_slots}} = {slots} under {{cap}}, only into "
            f"{found.num_slots}",
            ("give more {num_slots}", "a larger {cap}", *([] if ended else ["more {time_budget}"])),
        )
    laid = lay_out(problem, found)
    slot_times = np.full(problem.rules.slots_for(found.num_slots), problem.overhead, dtype=np.int64)
    np.maximum.at(slot_times, laid.slot_of_group, problem.overhead + laid.group_times)
    makespan = int(slot_times.sum())
    return SequenceGroupsResult(
        **laid._asdict(), slot_times=read_only(slot_times), makespan=makespan, lower_bound=bound.value,
        bound_name=bound.name, status=status_of(makespan, bound.value), method="peeling",
        runtime_s=time.perf_counter() - started,
    )  # fmt: skip
