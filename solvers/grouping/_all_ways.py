"""Few items in so many slots of sequence groups: any way there is, or proof of none."""

from collections.abc import Hashable, Iterator
from functools import partial

import numpy as np

from solvers._all_ways import first_way
from solvers.grouping._kernels import DEGREE, GROUP, SIZE, SLOT
from solvers.grouping._layout import place_on_ranks
from solvers.grouping._problem import SequenceProblem
from solvers.grouping._search import Solution

Group = tuple[tuple[int, ...], tuple[int, ...]]  # the sum of sizes at each degree; items
State = tuple[tuple[Group, ...], ...]  # groups of the slots that hold something


def any_way(problem: SequenceProblem, num_slots: int) -> tuple[Solution | None, bool]:
    """Return a solution of at most so many slots, if one was found; and whether it is proven that there is none."""
    n = len(problem.order)
    # By size, the largest first: they have the fewest places, so that dead ends show early.
    rank = np.argsort(-problem.least[SIZE], kind="stable")
    sizes = problem.sizes[:, rank].T.tolist()
    start: State = ()
    state, proven = first_way(start, n, partial(_ways, problem, sizes, num_slots), _key)
    if state is None:
        return None, proven
    found = Solution(np.zeros((3, n), dtype=np.int64), np.zeros(n + 1, dtype=np.int64), len(state))
    for k, slot in enumerate(state):
        for g, (sums, items) in enumerate(slot):
            d, here = _degree(problem, sums), rank[list(items)]
            found.where[GROUP, here], found.where[DEGREE, here], found.where[SLOT, here] = g, d, k
            taken = int(problem.by_degree["overhead"][d] + problem.times[d, here].sum())
            found.heights[k] = max(found.heights[k], taken)
    return found, False


def _ways(problem: SequenceProblem, sizes: list[list[int]], num_slots: int, state: State, item: int) -> Iterator[State]:
    """Put an item into every group, a new one of every slot, and a new slot, where the slot's groups have ranks."""
    alone = tuple(sizes[item])
    for k, slot in enumerate(state):
        for g, (sums, items) in enumerate(slot):
            grown = tuple(a + b for a, b in zip(sums, alone, strict=True)), (*items, item)
            yield from _with(problem, state, k, (*slot[:g], grown, *slot[g + 1 :]))
        # Only one new slot is offered, as empty ones are alike.
        yield from _with(problem, state, k, (*slot, (alone, (item,))))
    if len(state) < num_slots:
        yield from _with(problem, state, len(state), ((alone, (item,)),))


def _with(problem: SequenceProblem, state: State, k: int, slot: tuple[Group, ...]) -> Iterator[State]:
    """Yield the state with a slot replaced, if its groups, each of the least degree that holds it, have ranks.

    A group of fewer ranks fits wherever one of more does: at the same first rank.
    """
    degrees = [_degree(problem, sums) for sums, _ in slot]
    if max(degrees) < len(problem.degrees):
        ranks = sorted(problem.degrees[degrees].tolist(), reverse=True)
        if place_on_ranks(ranks, problem.num_ranks, problem.ranks_per_node) is not None:
            yield (*state[:k], slot, *state[k + 1 :])


def _degree(problem: SequenceProblem, sums: tuple[int, ...]) -> int:
    """Return the least degree that has room for these sizes, by its row; past the last if none has."""
    rooms = problem.by_degree["room"].tolist()
    return next((d for d, (held, room) in enumerate(zip(sums, rooms, strict=True)) if held <= room), len(rooms))


def _key(state: State) -> Hashable:
    return tuple(sorted(tuple(sorted(sums for sums, _ in slot)) for slot in state))
