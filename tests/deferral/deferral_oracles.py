"""All ways to put a few items into steps and bins, in plain Python; nothing of the solvers."""

import itertools


def makespans(volumes: list[int], num_bins: int) -> list[int]:
    """Return the least makespan of every set of items, a bit for each item, on so many bins."""
    n = len(volumes)
    load = [sum(v for i, v in enumerate(volumes) if s >> i & 1) for s in range(1 << n)]
    best = load
    for _ in range(num_bins - 1):
        best = [min(max(load[part], best[s ^ part]) for part in subsets(s)) for s in range(1 << n)]
    return best


def subsets(s: int):
    """Yield all subsets of a set of bits."""
    part = s
    while True:
        yield part
        if part == 0:
            return
        part = (part - 1) & s


def least_total(volumes, rows, spans, num_bins, keeps_limits) -> int:
    """Return the least sum of makespans over all steps that keep windows and limits."""
    steps = spans[-1][1] + 1
    least = makespans(volumes, num_bins)
    found = []
    for choice in itertools.product(*(range(spans[r][0], spans[r][1] + 1) for r in rows)):
        if keeps_limits(choice):
            sets = [0] * steps
            for i, t in enumerate(choice):
                sets[t] |= 1 << i
            found.append(sum(least[s] for s in sets))
    return min(found)


def sums(amounts, choice, steps) -> list[int]:
    """Return how much each step has."""
    found = [0] * steps
    for amount, t in zip(amounts, choice, strict=True):
        found[t] += amount
    return found
