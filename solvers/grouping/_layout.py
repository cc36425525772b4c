"""Which ranks a slot's groups are: one group after another, the largest first."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers.grouping._kernels import DEGREE, GROUP, SLOT
from solvers.grouping._problem import SequenceProblem
from solvers.grouping._search import Solution
from solvers.groups import read_only


class Laid(NamedTuple):
    """Groups of all slots, numbered slot by slot and in each by first rank; slots in descending order of height."""

    slot_of_item: NDArray[Any]
    group_of_item: NDArray[Any]
    degree_of_group: NDArray[Any]
    slot_of_group: NDArray[Any]
    first_rank_of_group: NDArray[Any]
    group_times: NDArray[Any]


def lay_out(problem: SequenceProblem, found: Solution) -> Laid:
    """Number the groups, and give them ranks."""
    n = len(problem.order)
    number = found.where[SLOT] * (n + 1) + found.where[GROUP]
    _, label, inverse = np.unique(number, return_index=True, return_inverse=True)
    slot, degree = found.where[SLOT, label], found.where[DEGREE, label]
    times = problem.by_degree["overhead"][degree]
    np.add.at(times, inverse, problem.times[degree[inverse], np.arange(n)])
    heights = np.zeros(found.num_slots, dtype=np.int64)
    np.maximum.at(heights, slot, times)
    place = np.empty(found.num_slots, dtype=np.int64)
    place[np.argsort(-heights, kind="stable")] = np.arange(found.num_slots)
    slot, ranks = place[slot], problem.degrees[degree]
    # Large groups first: where each degree divides the next, all groups then begin at a multiple of their degree. Of
    # equal ones the slower first, so that the order does not hang on the search.
    order = np.lexsort((-times, -ranks, slot))
    slot, ranks = slot[order], ranks[order]
    before = np.cumsum(ranks) - ranks
    firsts = before - before[np.searchsorted(slot, slot)]
    number_of_label = np.empty(len(order), dtype=np.int64)
    number_of_label[order] = np.arange(len(order))
    by_item = np.empty(n, dtype=np.int64)
    by_item[problem.order] = number_of_label[inverse]
    parts = (part.astype(np.int32) for part in (slot[by_item], by_item, ranks, slot, firsts))
    return Laid(*map(read_only, (*parts, times[order])))
