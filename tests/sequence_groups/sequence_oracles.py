"""The best sequence groups by trying all of them: plain Python that imports nothing from `solvers`."""

import itertools
from collections.abc import Iterator


def partitions(items: list[int]) -> Iterator[list[list[int]]]:
    """All ways to divide items into unlabelled, non-empty sets."""
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for parts in partitions(rest):
        for i in range(len(parts)):
            yield [*parts[:i], [first, *parts[i]], *parts[i + 1 :]]
        yield [[first], *parts]


def slot_height(times, sizes, degrees, items, num_ranks, cap, extra) -> int | None:
    """Least time of a slot with these items; None if they do not fit."""
    best = None
    for groups in partitions(list(items)):
        for choice in itertools.product(range(len(degrees)), repeat=len(groups)):
            ranks = [degrees[d] for d in choice]
            if sum(ranks) > num_ranks:
                continue
            if any(sum(sizes[d][i] for i in g) > degrees[d] * cap for d, g in zip(choice, groups, strict=True)):
                continue
            height = max(extra[d] + sum(times[d][i] for i in g) for d, g in zip(choice, groups, strict=True))
            best = height if best is None else min(best, height)
    return best


def best_sum(
    times, sizes, degrees, num_ranks, cap, *, overhead=0, group_overhead=None, num_slots=None, min_slots=1,
    slots_multiple_of=1,
) -> int | None:  # fmt: skip
    """Least sum of slot times over all slots, groups and degrees; None if nothing is permitted."""
    n = len(times[0])
    extra = group_overhead or [0] * len(degrees)
    heights: dict[tuple[int, ...], int | None] = {}
    best = None
    for slots in partitions(list(range(n))):
        k = -(-max(len(slots), min_slots) // slots_multiple_of) * slots_multiple_of
        if num_slots is not None:
            if len(slots) > num_slots:
                continue
            k = num_slots
        total = k * overhead
        for slot in slots:
            key = tuple(slot)
            if key not in heights:
                heights[key] = slot_height(times, sizes, degrees, slot, num_ranks, cap, extra)
            height = heights[key]
            if height is None:
                break
            total += height
        else:
            best = total if best is None else min(best, total)
    return best
