"""Which ranks a slot's groups are: packed into nodes, and ranks left over put to use."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers.grouping._kernels import DEGREE, GROUP, SLOT, packs_kernel
from solvers.grouping._problem import SequenceProblem
from solvers.grouping._search import Solution
from solvers.groups import read_only

Ints = NDArray[np.int64]


class Laid(NamedTuple):
    """Groups of all slots, numbered slot by slot and in each by first rank; slots in descending order of height."""

    slot_of_item: NDArray[Any]
    group_of_item: NDArray[Any]
    degree_of_group: NDArray[Any]
    slot_of_group: NDArray[Any]
    first_rank_of_group: NDArray[Any]
    group_times: NDArray[Any]


def place_on_ranks(degrees: list[int], num_ranks: int, node: int) -> list[int] | None:
    """Return the first rank of each group, or None where there are no such ranks; `degrees` descend.

    Best fit into nodes, as :func:`packs` has it; where that finds no place, all ways. A group of more ranks than a node
    starts at one, and only the last of them may end in a last node that is shorter.
    """
    free = [min(node, num_ranks - first) for first in range(0, num_ranks, node)]
    firsts: list[int] = []
    for degree in degrees:
        # Best fit is right nearly always. All ways are tried only where there are ranks enough, and it found no
        # place.
        at = next(_starts(degree, free, num_ranks, node), None)
        if at is None:
            return _by_all_ways(degrees, num_ranks, node) if sum(degrees) <= num_ranks else None
        firsts.append(_take(degree, at, free, num_ranks, node))
    return firsts


def _starts(degree: int, free: list[int], num_ranks: int, node: int) -> Iterator[int]:
    """Yield nodes in which a group may start, the best fit first."""
    if degree <= node:
        yield from sorted((i for i, ranks in enumerate(free) if ranks >= degree), key=free.__getitem__)
        return
    # A group of several nodes needs them whole, also the last one that it reaches into: its ranks are consecutive.
    intact = [ranks == min(node, num_ranks - i * node) for i, ranks in enumerate(free)]
    for i in range((num_ranks - degree) // node + 1):
        if all(intact[i : i + -(-degree // node)]):
            yield i


def _take(degree: int, at: int, free: list[int], num_ranks: int, node: int) -> int:
    """Give a group its ranks, from a node on, and return the first."""
    first = min((at + 1) * node, num_ranks) - free[at]
    for i in range(at, at + -(-degree // node)):
        free[i] -= min(degree - (i - at) * node, node)
    return first


def _by_all_ways(degrees: list[int], num_ranks: int, node: int) -> list[int] | None:
    """Return what `place_on_ranks` does, for a few groups."""

    def placed(at: int, free: list[int]) -> list[int] | None:
        if at == len(degrees):
            return []
        for start in _starts(degrees[at], free, num_ranks, node):
            left = free.copy()
            first = _take(degrees[at], start, left, num_ranks, node)
            if (rest := placed(at + 1, left)) is not None:
                return [first, *rest]
        return None

    return placed(0, [min(node, num_ranks - first) for first in range(0, num_ranks, node)])


def _widen(times: Ints, degree: Ints, problem: SequenceProblem) -> None:
    """Give ranks that a slot has left to its slowest groups, as long as one is faster for it; changes `degree`.

    ``times``, int64[D, g], is what each group of the slot takes at each degree, or a negative number where it cannot.
    """
    degrees, ranks = problem.degrees, problem.ranks
    free = problem.num_ranks - int(degrees[degree].sum())
    counts = np.bincount(degree, minlength=len(degrees)).astype(np.int64)
    groups = np.arange(len(degree))
    widened = True
    while widened and free > 0:
        widened = False
        now = times[degree, groups]
        # The slowest group sets the slot's time, so it is asked first; and after every change anew, as another is
        # slowest then.
        for g in np.argsort(-now, kind="stable").tolist():
            for d in range(int(degree[g]) + 1, len(degrees)):
                more = int(degrees[d] - degrees[degree[g]])
                if more > free:
                    break
                # More ranks may be slower for short items, and -1 is a degree that does not hold the group.
                if not 0 <= times[d, g] < now[g]:
                    continue
                counts[degree[g]] -= 1
                counts[d] += 1
                # Taken back where the nodes have no place for the wider group: ranks may be enough in number and
                # scattered.
                if ranks.of_node == 0 or packs_kernel(counts, problem.by_degree, ranks):
                    degree[g], free, widened = d, free - more, True
                    break
                counts[degree[g]] += 1
                counts[d] -= 1
            if widened:
                break


def lay_out(problem: SequenceProblem, found: Solution) -> Laid:
    """Widen groups, number them, and give them ranks."""
    n, num_degrees = len(problem.order), len(problem.degrees)
    number = found.where[SLOT] * (n + 1) + found.where[GROUP]
    _, label, inverse = np.unique(number, return_index=True, return_inverse=True)
    slot, degree = found.where[SLOT, label], found.where[DEGREE, label]
    times = np.tile(problem.by_degree["overhead"][:, None], len(label))
    volumes = np.zeros((num_degrees, len(label)), dtype=np.int64)
    for d in range(num_degrees):
        np.add.at(times[d], inverse, problem.times[d])
        np.add.at(volumes[d], inverse, problem.sizes[d])
    # A group never gets fewer ranks than it needs for its sizes.
    times[volumes > problem.by_degree["room"][:, None]] = -1
    heights = np.zeros(found.num_slots, dtype=np.int64)
    for k in range(found.num_slots):
        here = np.flatnonzero(slot == k)
        wide = degree[here]
        _widen(times[:, here], wide, problem)
        degree[here] = wide
        heights[k] = times[wide, here].max()
    place = np.empty(found.num_slots, dtype=np.int64)
    # Slots are numbered anew after groups were widened, because heights have changed.
    place[np.argsort(-heights, kind="stable")] = np.arange(found.num_slots)
    slot = place[slot]
    ranks = problem.degrees[degree]
    group_times = times[degree, np.arange(len(degree))]
    # Large groups first, as best fit asks for; of equal ones the slower, so that the order does not hang on the
    # search.
    order = np.lexsort((-group_times, -ranks, slot))
    firsts = np.empty(len(order), dtype=np.int64)
    for here in np.split(order, np.flatnonzero(np.diff(slot[order])) + 1):
        placed = place_on_ranks(ranks[here].tolist(), problem.num_ranks, problem.ranks_per_node)
        if placed is None:
            raise RuntimeError("a slot was filled with groups that have no ranks")
        firsts[here] = placed
    # The numbers that callers see follow the ranks.
    order = np.lexsort((firsts, slot))
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.arange(len(order))
    by_item = np.empty(n, dtype=np.int64)
    by_item[problem.order] = number[inverse]
    slot = slot[order]
    parts = (part.astype(np.int32) for part in (slot[by_item], by_item, ranks[order], slot, firsts[order]))
    return Laid(*map(read_only, (*parts, group_times[order])))
