"""Relocation in the most naive way: every assignment tried; of more items, CP-SAT. Nothing of `solvers` is imported."""

import itertools
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np

Lies = Sequence[dict[int, int]]  # per item: rank -> volume


def at_home(homes: Sequence[int], volumes: Sequence[int]) -> list[dict[int, int]]:
    return [{h: v} for h, v in zip(homes, volumes, strict=True)]


def moved(lies: Lies, ranks: Sequence[int], nodes: Sequence[int]) -> tuple[int, int]:
    """Volume across nodes and volume inside them."""
    inter = intra = 0
    for row, target in zip(lies, ranks, strict=True):
        for rank, volume in row.items():
            if nodes[rank] != nodes[target]:
                inter += volume
            elif rank != target:
                intra += volume
    return inter, intra


def feasible(
    costs: Sequence[int],
    num_ranks: int,
    cap: int,
    equal_counts: bool = False,
    sizes: Sequence[int] | None = None,
    caps: Sequence[int] | None = None,
    counts: tuple[int, int] | None = None,
) -> list[tuple[int, ...]]:
    """Every assignment that keeps all rules."""
    n = len(costs)
    ways = np.array(list(itertools.product(range(num_ranks), repeat=n)), dtype=np.int64).reshape(num_ranks**n, n)
    fits = np.ones(len(ways), dtype=bool)
    few, longer = divmod(n, num_ranks)
    fewest, most = (few, few + (longer > 0)) if equal_counts else counts or (0, n)
    for r in range(num_ranks):
        there = ways == r
        fits &= there @ np.array(costs, dtype=object) <= cap
        fits &= (fewest <= there.sum(axis=1)) & (there.sum(axis=1) <= most)
        if sizes is not None and caps is not None:
            fits &= there @ np.array(sizes, dtype=np.int64) <= caps[r]
    return [tuple(way) for way in ways[fits].tolist()]


def optimum(lies: Lies, nodes: Sequence[int], assignments: Iterable[tuple[int, ...]]) -> tuple[int, int] | None:
    """Least across, then least inside."""
    return min((moved(lies, ranks, nodes) for ranks in assignments), default=None)


def least_cut(pairs: Sequence[tuple[int, int]], excess: int) -> int:
    """Least volume of (volume, weight) pairs that weighs `excess`, the last one cut; rounded up."""
    total = Fraction(0)
    for volume, weight in sorted((p for p in pairs if p[1]), key=lambda p: Fraction(*p)):
        if excess > 0:
            total += volume * Fraction(min(excess, weight), weight)
            excess -= weight
    return -(-total.numerator // total.denominator)
