"""Few items in the slots of pipelines under caps: any way there is, or proof of none."""

from collections.abc import Hashable, Iterator
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from solvers._all_ways import first_way
from solvers.errors import InfeasibleError, TimeLimitError, as_words
from solvers.pipeline._held import held_sets
from solvers.pipeline._problem import PipelineProblem

Cell = tuple[tuple[int, ...], tuple[int, ...]]  # what it holds, by column of sizes; its items
Replica = tuple[tuple[Cell, ...], tuple[int, ...]]  # by slot; the room that is left in flight, by set
State = tuple[Replica, ...]


def any_way(problem: PipelineProblem) -> NDArray[np.int64]:
    """Return a cell of every item, int64[n], under the caps.

    Raises InfeasibleError where there is no way, and TimeLimitError where there are too many ways to try.
    """
    n = len(problem.work)
    rank = np.argsort(-problem.sizes.max(axis=0, initial=0), kind="stable")
    first, sets, limits = held_sets(problem.order, problem.flight_caps, len(problem.sizes))
    by_slot = [sets[:, start:stop].T.tolist() for start, stop in pairwise(first.tolist())]
    nothing: Cell = ((0,) * len(problem.sizes), ())
    start: State = (((nothing,) * problem.num_slots, tuple(limits.tolist())),) * problem.num_replicas
    given = problem.sizes[:, rank].T.tolist(), problem.caps.tolist(), by_slot
    alike = problem.flight_caps is None  # slots are, and not replicas alone
    found, proven = first_way(start, n, partial(_ways, *given), partial(_key, alike))
    names = [*["cap"] * bool((problem.caps[:-1] < problem.sizes.sum(axis=1)).any()), *["in_flight_cap"] * (not alike)]
    remedies = [f"give a larger {as_words(names, ' or ')}"] if names else []
    remedies += ["more {num_slots}"] if problem.caps[-1] or n > problem.num_cells else []
    if found is None:
        under = f"under {as_words(names, ' and ')}, " if names else ""
        where = f"for all {n} {{items}} in {problem.num_slots} slots on each of {problem.num_replicas} replicas"
        if proven:
            raise InfeasibleError(f"there is no place {under}{where}: all ways were tried", None, remedies)
        raise TimeLimitError(f"found no place {under}{where}", remedies)
    cell_of_item = np.empty(n, dtype=np.int64)
    for number, (_, items) in enumerate(cell for cells, _ in found for cell in cells):
        cell_of_item[rank[list(items)]] = number
    return cell_of_item


def _ways(
    sizes: list[list[int]], caps: list[int], by_slot: list[list[list[int]]], state: State, item: int
) -> Iterator[State]:
    """Put an item into every slot that has room for it, where enough items are left for those that are empty."""
    *most, may_be_empty = caps
    size = sizes[item]
    empty = sum(not items for cells, _ in state for _, items in cells)
    for r, (cells, room) in enumerate(state):
        for k, (held, items) in enumerate(cells):
            now = tuple(a + b for a, b in zip(held, size, strict=True))
            still = empty - (not items)
            if any(a > b for a, b in zip(now, most, strict=True)):
                continue
            if not may_be_empty and still > len(sizes) - item - 1:
                continue
            left = list(room)
            for which, column, times in by_slot[k]:
                left[which] -= times * size[column]
            if min(left, default=0) >= 0:
                put = (*cells[:k], (now, (*items, item)), *cells[k + 1 :])
                yield (*state[:r], (put, tuple(left)), *state[r + 1 :])


def _key(alike: bool, state: State) -> Hashable:
    told = [tuple((held, bool(items)) for held, items in cells) for cells, _ in state]
    return tuple(sorted(cell for cells in told for cell in cells)) if alike else tuple(sorted(told))
