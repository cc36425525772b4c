"""Naive rearrangement: by definition, in plain Python, with nothing from `solvers`."""

import itertools
from collections.abc import Iterator, Sequence

Matrix = Sequence[Sequence[int]]
Moved = tuple[int, int, int]


def moved(volumes: Matrix, nodes: Sequence[int], target: Sequence[int]) -> Moved:
    """What crosses nodes, what moves inside them, and the most that one rank sends to other nodes."""
    m, sends, inside = len(volumes), [0] * len(volumes), 0
    for g, r in itertools.product(range(m), range(m)):
        if nodes[r] != nodes[target[g]]:
            sends[r] += volumes[g][r]
        elif r != target[g]:
            inside += volumes[g][r]
    return sum(sends), inside, max(sends)


def bijections(group_class: Sequence[int], rank_class: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every way to put groups on ranks within their classes."""
    for target in itertools.permutations(range(len(group_class))):
        if all(group_class[g] == rank_class[r] for g, r in enumerate(target)):
            yield target


def greedy(volumes: Matrix, nodes: Sequence[int], group_class: Sequence[int], rank_class: Sequence[int]) -> list[int]:
    """Groups to (class, node), then to ranks there: the largest amount first, ties to the lower group, then rank."""
    m = len(volumes)
    place_of_rank = list(zip(rank_class, nodes, strict=True))
    kept = [
        (
            -sum(volumes[g][r] for r in range(m) if nodes[r] == node),
            g,
            first_rank(volumes[g], nodes, node),
            (kind, node),
        )
        for g in range(m)
        for kind, node in sorted(set(place_of_rank))
        if kind == group_class[g]
    ]
    order = sorted(range(m), key=lambda g: group_class[g])
    place = taken(kept, order, sorted(place_of_rank))
    here = [(-volumes[g][r], g, r, r) for g in range(m) for r in range(m) if place_of_rank[r] == place[g]]
    ranks = taken(here, sorted(range(m), key=lambda g: place[g]), sorted(range(m), key=lambda r: place_of_rank[r]))
    return [ranks[g] for g in range(m)]


def first_rank(row: Sequence[int], nodes: Sequence[int], node: int) -> int:
    """Where a group first lists something in a node."""
    return next((r for r, volume in enumerate(row) if volume and nodes[r] == node), len(row))


def taken(entries: list, order: Sequence[int], seats: list) -> dict:
    """Take entries (minus what is kept, group, ..., seat) in order; groups that are left take the seats that are."""
    found, free = {}, list(seats)
    for less, group, _, seat in sorted(entries):
        if less and group not in found and seat in free:
            found[group] = seat
            free.remove(seat)
    left = [group for group in order if group not in found]
    return found | dict(zip(left, free, strict=True))
