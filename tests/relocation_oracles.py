"""Relocation in the most naive way: every assignment tried; of more items, CP-SAT. Nothing of `solvers` is imported."""

import itertools
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np

Lies = Sequence[dict[int, int]]  # per item: rank -> volume


def at_home(homes: Sequence[int], volumes: Sequence[int]) -> list[dict[int, int]]:
    return [{h: v} for h, v in zip(homes, volumes, strict=True)]


def loads_of(costs: Sequence[int], ranks: Sequence[int], num_ranks: int) -> list[int]:
    return [sum(c for c, r in zip(costs, ranks, strict=True) if r == rank) for rank in range(num_ranks)]


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


def cp_sat_optimum(
    costs: Sequence[int], homes: Sequence[int], nodes: Sequence[int], cap: int, equal_counts: bool = False
) -> tuple[int, int] | None:
    """Least across, then least inside, of whole items whose volume is their cost; None where no assignment fits."""
    from ortools.sat.python import cp_model

    n, m = len(costs), len(nodes)
    model = cp_model.CpModel()
    on = [[model.new_bool_var("") for _ in range(m)] for _ in range(n)]
    for row in on:
        model.add_exactly_one(row)
    for r in range(m):
        model.add(sum(costs[i] * on[i][r] for i in range(n)) <= cap)
        if equal_counts:
            model.add_linear_constraint(sum(row[r] for row in on), n // m, -(-n // m))
    across, inside = [], []
    for i, home in enumerate(homes):
        across += [costs[i] * on[i][r] for r in range(m) if nodes[r] != nodes[home]]
        inside += [costs[i] * on[i][r] for r in range(m) if nodes[r] == nodes[home] and r != home]
    least = []
    for moves in (across, inside):  # the second among the best of the first
        solver = cp_model.CpSolver()
        model.minimize(sum(moves))
        status = solver.solve(model)
        if status == cp_model.INFEASIBLE:
            return None
        assert status == cp_model.OPTIMAL
        least.append(round(solver.objective_value))
        model.add(sum(moves) <= least[-1])
    return least[0], least[1]


def best_rearrangement(lies: Lies, nodes: Sequence[int], groups: Sequence[int]) -> tuple[int, int]:
    """Least across, then inside, over all bijections of groups to ranks."""
    return min(moved(lies, [places[g] for g in groups], nodes) for places in itertools.permutations(range(len(nodes))))


def least_cut(pairs: Sequence[tuple[int, int]], excess: int) -> int:
    """Least volume of (volume, weight) pairs that weighs `excess`, the last one cut; rounded up."""
    total = Fraction(0)
    for volume, weight in sorted((p for p in pairs if p[1]), key=lambda p: Fraction(*p)):
        if excess > 0:
            total += volume * Fraction(min(excess, weight), weight)
            excess -= weight
    return -(-total.numerator // total.denominator)
