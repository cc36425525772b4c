"""What packers should find, computed in the most naive way: plain Python that imports nothing from `solvers`."""

import random
from collections.abc import Callable, Sequence


def fewest_groups(sizes: Sequence[int], cap: int, max_items: int | None = None) -> int:
    """Try every item in every group that it fits, and in one new group."""
    most = len(sizes) if max_items is None else max_items
    best = len(sizes)

    def extend(item: int, loads: list[int], counts: list[int]) -> None:
        nonlocal best
        if len(loads) >= best:
            return
        if item == len(sizes):
            best = len(loads)
            return
        for g in range(len(loads)):
            if loads[g] + sizes[item] <= cap and counts[g] < most:
                loads[g] += sizes[item]
                counts[g] += 1
                extend(item + 1, loads, counts)
                loads[g] -= sizes[item]
                counts[g] -= 1
        extend(item + 1, [*loads, sizes[item]], [*counts, 1])

    extend(0, [], [])
    return best


def _fit(
    sizes: Sequence[int], cap: int, max_items: int | None, choose: Callable[[list[tuple[int, int]]], tuple[int, int]]
) -> list[int]:
    """Put each item into the group that `choose` takes of the pairs (room, group) in which it fits."""
    rooms: list[int] = []
    counts: list[int] = []
    groups = []
    for size in sizes:
        fitting = [
            (room, g) for g, room in enumerate(rooms) if room >= size and (max_items is None or counts[g] < max_items)
        ]
        if fitting:
            _, group = choose(fitting)
        else:
            group = len(rooms)
            rooms.append(cap)
            counts.append(0)
        rooms[group] -= size
        counts[group] += 1
        groups.append(group)
    return groups


def first_fit(sizes: Sequence[int], cap: int, max_items: int | None = None) -> list[int]:
    return _fit(sizes, cap, max_items, lambda fitting: min(fitting, key=lambda pair: pair[1]))


def best_fit(sizes: Sequence[int], cap: int, max_items: int | None = None) -> list[int]:
    return _fit(sizes, cap, max_items, min)


def decreasing(
    fit: Callable[[Sequence[int], int, int | None], list[int]], sizes: Sequence[int], cap: int, max_items: int | None
) -> list[int]:
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    groups = [0] * len(sizes)
    for i, group in zip(order, fit([sizes[i] for i in order], cap, max_items), strict=True):
        groups[i] = group
    return groups


def l2(sizes: Sequence[int], cap: int) -> int:
    """Martello & Toth's own form, for every threshold there is."""
    best = 0
    for a in range(cap // 2 + 1):
        alone = [x for x in sizes if x > cap - a]
        large = [x for x in sizes if cap - a >= x and 2 * x > cap]
        small = [x for x in sizes if 2 * x <= cap and x >= a]
        more = sum(small) - (len(large) * cap - sum(large))
        best = max(best, len(alone) + len(large) + max(0, -(-more // cap)))
    return best


def planted(num_groups: int, cap: int, seed: int, most_cuts: int = 4) -> list[int]:
    """Sizes that fill `num_groups` groups to the brim, shuffled: the optimum is known."""
    chance = random.Random(seed)
    sizes = []
    for _ in range(num_groups):
        cuts = sorted(chance.sample(range(1, cap), chance.randint(1, most_cuts)))
        sizes += [b - a for a, b in zip([0, *cuts], [*cuts, cap], strict=True)]
    chance.shuffle(sizes)
    return sizes
