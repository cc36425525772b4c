"""What packers should find, computed in the most naive way: plain Python that imports nothing from `solvers`."""

import random
from collections.abc import Sequence


def fewest_groups(
    sizes: Sequence[int], cap: int, max_items: int | None = None, limits: Sequence[tuple[Sequence[int], int]] = ()
) -> int:
    """Try every item in every group that it fits, and in one new group."""
    caps = [cap, len(sizes) if max_items is None else max_items, *(most for _, most in limits)]
    of_item = [[size, 1, *(amounts[i] for amounts, _ in limits)] for i, size in enumerate(sizes)]
    best = len(sizes)

    def extend(item: int, held: list[list[int]]) -> None:
        nonlocal best
        if len(held) >= best:
            return
        if item == len(sizes):
            best = len(held)
            return
        for g, group in enumerate(held):
            more = [a + b for a, b in zip(group, of_item[item], strict=True)]
            if all(a <= most for a, most in zip(more, caps, strict=True)):
                extend(item + 1, [*held[:g], more, *held[g + 1 :]])
        extend(item + 1, [*held, of_item[item]])

    extend(0, [])
    return best


def best_fit(sizes: Sequence[int], cap: int, max_items: int | None = None) -> list[int]:
    """Put each item into the fullest group that has room for it, the lowest of equals."""
    rooms: list[int] = []
    counts: list[int] = []
    groups = []
    for size in sizes:
        fitting = [
            (room, g) for g, room in enumerate(rooms) if room >= size and (max_items is None or counts[g] < max_items)
        ]
        if fitting:
            _, group = min(fitting)
        else:
            group = len(rooms)
            rooms.append(cap)
            counts.append(0)
        rooms[group] -= size
        counts[group] += 1
        groups.append(group)
    return groups


def best_fit_decreasing(sizes: Sequence[int], cap: int, max_items: int | None) -> list[int]:
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    groups = [0] * len(sizes)
    for i, group in zip(order, best_fit([sizes[i] for i in order], cap, max_items), strict=True):
        groups[i] = group
    return groups


def first_fit_decreasing(
    sizes: Sequence[int], cap: int, max_items: int | None, limits: Sequence[tuple[Sequence[int], int]] = ()
) -> list[int]:
    """Items by the largest share that they take of any sum, each into the first group with room for it."""
    sums = [(sizes, cap), *limits]
    order = range(len(sizes))
    if limits:
        order = sorted(order, key=lambda i: -max(of_item[i] / most for of_item, most in sums))
    else:
        order = sorted(order, key=lambda i: -sizes[i])
    groups, members = [0] * len(sizes), []
    for i in order:
        for group in range(len(members) + 1):
            held = [*members[group], i] if group < len(members) else [i]
            fits = all(sum(of_item[j] for j in held) <= most for of_item, most in sums)
            if fits and len(held) <= (max_items or len(held)):
                break
        if group == len(members):
            members.append([])
        members[group].append(i)
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
