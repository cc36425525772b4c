"""Shares cut into micro-batches in the most naive way: plain Python that imports nothing from `solvers`."""

import itertools
from collections.abc import Sequence

import packing_oracles


def first_fit_decreasing(tokens: Sequence[int], items: Sequence[int], cap: int) -> list[list[int]]:
    """Bins of items, the longest first, each to the first bin with room; those over the cap alone, in front."""
    order = sorted(items, key=lambda i: -tokens[i])
    fitting = [i for i in order if tokens[i] <= cap]
    groups = packing_oracles.first_fit_decreasing([tokens[i] for i in fitting], cap, None)
    bins = [
        [i for i, group in zip(fitting, groups, strict=True) if group == k] for k in range(max(groups, default=-1) + 1)
    ]
    return [[i] for i in order if tokens[i] > cap] + bins


def dealt(costs: Sequence[int], tokens: Sequence[int], items: Sequence[int], cap: int, slots: int) -> list[list[int]]:
    """LPT under the cap; where that leaves an item without room, the first fit and the cheapest items spread."""
    order = sorted(items, key=lambda i: -costs[i])
    alone = [[i] for i in order if tokens[i] > cap]
    bins: list[list[int]] = [[] for _ in range(slots - len(alone))]
    for i in order:
        if tokens[i] > cap:
            continue
        with_room = [held for held in bins if sum(tokens[j] for j in held) + tokens[i] <= cap]
        if not with_room:
            return spread(costs, order, first_fit_decreasing(tokens, items, cap), slots)
        min(with_room, key=lambda held: (sum(costs[j] for j in held), len(held))).append(i)
    return alone + bins


def spread(costs: Sequence[int], order: Sequence[int], bins: list[list[int]], slots: int) -> list[list[int]]:
    """Give the cheapest items that are not alone to the empty bins, if there are items enough."""
    bins = bins + [[] for _ in range(slots - len(bins))]
    if len(order) < slots:
        return bins
    cheapest = list(reversed(order))
    for empty in range(slots):
        if bins[empty]:
            continue
        for i in cheapest:
            held = next(b for b in bins if i in b)
            if len(held) > 1:
                held.remove(i)
                bins[empty] = [i]
                cheapest = cheapest[cheapest.index(i) + 1 :]
                break
    return bins


def cut(
    costs: Sequence[int],
    tokens: Sequence[int],
    ranks: Sequence[int],
    num_ranks: int,
    cap: int,
    *,
    num_slots: int | str | None = None,
    min_slots: int = 1,
    slots_multiple_of: int = 1,
    allow_empty: bool = False,
    over_long: str = "error",
) -> tuple[list[int], int] | None:
    """Slot of every item and their number; None where these rules leave no way."""
    over = [t > cap for t in tokens]
    if any(over) and over_long == "error":
        return None
    shares = [[i for i, at in enumerate(ranks) if at == rank] for rank in range(num_ranks)]
    needed = max(len(first_fit_decreasing(tokens, items, cap)) for items in shares)
    if isinstance(num_slots, int):
        if needed > num_slots:
            return None
        slots = num_slots
    else:
        slots = next(k for k in itertools.count(max(min_slots, needed)) if k % slots_multiple_of == 0)
    if not allow_empty and any(len(items) < slots for items in shares):
        return None
    found = [-1] * len(costs)
    for items in shares:
        bins = dealt(costs, tokens, items, cap, slots)
        bins.sort(key=lambda held: (-sum(costs[i] for i in held), not held))
        for slot, held in enumerate(bins):
            for i in held:
                found[i] = slot
    return found, slots
