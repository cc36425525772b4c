"""Gaps under the constraints that trainers have: ten seeds, median and worst, and the time of one core.

Run: python benchmarks/constraints.py [budget in seconds ...]. Lognormal lengths (mean 2,000, sigma 1, clipped at
32,768); costs are 24576 * l + l * l; caps are multiples of the mean tokens a group. Times are processor time.
"""

import statistics
import sys
import time

import numpy as np
from workloads import lognormal_lengths

import solvers

SHAPES = [(4096, 64), (16384, 256)]
SEEDS = range(10)


def cases(n, m, seed, room=None):
    """Name -> (costs, constraints); caps are multiples of `room`, by default the mean tokens a group."""
    rng = np.random.default_rng(1000 + seed)
    tokens = lognormal_lengths(n, seed)
    costs = 24576 * tokens + tokens * tokens
    mean = tokens.sum() / m if room is None else room
    patches = np.where(rng.random(n) < 0.3, rng.integers(1, 4000, n), 0)
    kinds = rng.random(n) < 0.5  # half of the samples may not be on the first quarter of the groups
    first_quarter = np.arange(m) < m // 4
    masks = ~(kinds[:, None] & first_quarter[None, :])
    speeds = np.where(np.arange(m) < m // 2, 2, 1)

    def cap(factor):
        return {"sizes": tokens, "caps": int(factor * mean)}

    two = {"sizes": np.stack([tokens, patches], axis=1), "caps": [int(1.05 * mean), int(1.05 * patches.sum() / m)]}
    yield "cap 1.02", costs, cap(1.02)
    yield "cap 1.05", costs, cap(1.05)
    yield "cap 1.1", costs, cap(1.1)
    yield "two caps 1.05", costs, two
    yield "equal counts, cap 1.05", costs, cap(1.05) | {"equal_counts": True}
    yield "max_items n/m + 4, cap 1.05", costs, cap(1.05) | {"max_items": n // m + 4}
    yield "prompts of 8, cap 1.1", costs, cap(1.1) | {"keep_together": np.arange(n) // 8}
    yield "masks", costs, {"allowed": masks}
    yield "masks, cap 1.1", costs, cap(1.1) | {"allowed": masks}
    yield "speeds 2 and 1", costs, {"speeds": speeds}
    yield "speeds 2 and 1, cap 1.3", costs, cap(1.3) | {"speeds": speeds}
    yield "initial loads", costs, {"initial_loads": rng.integers(0, costs.sum() // m, m)}
    vectors = np.stack([patches * patches + 1000 * patches, costs], axis=1)
    yield "vision and LLM, sum", vectors, {}
    yield "vision and LLM, max", vectors, {"objective": "max"}
    yield "vision and LLM, sum, cap 1.05", vectors, cap(1.05)


def run(costs, m, budget, given):
    started = time.process_time()
    result = solvers.partition(costs, m, time_budget=budget, stop_at=0, **given)
    seconds = time.process_time() - started
    return result, seconds


def main() -> None:
    budgets = [float(b) for b in sys.argv[1:]] or [0.01, 0.1]
    for n, m in SHAPES:  # compile all that will be needed
        for _, costs, given in cases(n, m, 99):
            run(costs, m, 0.1, given)
    titles = " | ".join(f"{1000 * b:g} ms: gap ppm, median | worst | ms, median" for b in budgets)
    print(f"| constraints | items on groups | {titles} |")
    print("|---|---|" + "--:|--:|--:|" * len(budgets))
    for n, m in SHAPES:
        rows = {}
        for seed in SEEDS:
            for name, costs, given in cases(n, m, seed):
                for budget in budgets:
                    result, seconds = run(costs, m, budget, given)
                    if seed == 0:
                        solvers.check_partition(costs, result, num_groups=m, stop_at=0, **given)
                    rows.setdefault(name, {}).setdefault(budget, []).append((result.gap * 1e6, 1000 * seconds))
        for name, found in rows.items():
            columns = []
            for budget in budgets:
                gaps, times = zip(*found[budget], strict=True)
                columns += [f"{statistics.median(gaps):,.2f}", f"{max(gaps):,.2f}", f"{statistics.median(times):.0f}"]
            print(f"| {name} | {n:,} on {m} | {' | '.join(columns)} |", flush=True)


if __name__ == "__main__":
    main()
