"""The best sequence groups by trying all of them: plain Python that imports nothing from `solvers`."""

import itertools
from collections.abc import Iterator, Sequence


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


def fits_nodes(degrees: Sequence[int], num_ranks: int, node: int) -> bool:
    """Whether groups fit, none of at most a node across nodes, larger ones from a node's start: by trying all orders."""

    def place(left: list[int], taken: frozenset[int]) -> bool:
        if not left:
            return True
        degree, rest = left[0], left[1:]
        for first in range(num_ranks - degree + 1):
            here = frozenset(range(first, first + degree))
            whole = first % node == 0 if degree > node else first // node == (first + degree - 1) // node
            if whole and not here & taken and place(rest, taken | here):
                return True
        return False

    return sum(degrees) <= num_ranks and place(sorted(degrees, reverse=True), frozenset())


def slot_height(times, sizes, degrees, items, num_ranks, cap, extra, node) -> int | None:
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
            if (best is None or height < best) and fits_nodes(ranks, num_ranks, node):
                best = height
    return best


def best_sum(
    times, sizes, degrees, num_ranks, cap, *, overhead=0, group_overhead=None, num_slots=None, min_slots=1,
    slots_multiple_of=1, ranks_per_node=None,
) -> int | None:  # fmt: skip
    """Least sum of slot times over all slots, groups and degrees; None if nothing is permitted."""
    n, node = len(times[0]), ranks_per_node or num_ranks
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
                heights[key] = slot_height(times, sizes, degrees, slot, num_ranks, cap, extra, node)
            height = heights[key]
            if height is None:
                break
            total += height
        else:
            best = total if best is None else min(best, total)
    return best
