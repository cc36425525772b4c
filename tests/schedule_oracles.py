"""The optimal micro-batch schedule, by trying all of them: plain Python that imports nothing from `solvers`."""

import itertools
from collections.abc import Sequence


def value_of_cells(cells: Sequence[Sequence[int]], sync: str, stages: int) -> int:
    """Value of costs by [rank][slot]."""
    if sync == "micro_batch":
        return sum(max(slot) for slot in zip(*cells, strict=True))
    if sync == "step":
        return max(sum(rank) for rank in cells)
    return (len(cells[0]) + stages - 1) * max(max(rank) for rank in cells)


def optimal_value(
    costs: Sequence[int],
    tokens: Sequence[int],
    num_ranks: int,
    cap: int,
    num_slots: int,
    *,
    sync: str = "micro_batch",
    stages: int = 1,
    allow_empty: bool = False,
) -> int | None:
    """Least value over all places of all samples; None if none is permitted. Samples over the cap lie alone."""
    places = list(itertools.product(range(num_ranks), range(num_slots)))
    best = None
    for choice in itertools.product(range(len(places)), repeat=len(costs)):
        held = [[i for i, place in enumerate(choice) if place == p] for p in range(len(places))]
        if not allow_empty and not all(held):
            continue
        if any(sum(tokens[i] for i in items) > cap and len(items) > 1 for items in held):
            continue
        sums = [sum(costs[i] for i in items) for items in held]
        cells = [sums[rank * num_slots : (rank + 1) * num_slots] for rank in range(num_ranks)]
        value = value_of_cells(cells, sync, stages)
        best = value if best is None else min(best, value)
    return best
