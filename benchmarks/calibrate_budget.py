"""Is a budget of counted work the seconds that it is named after? Asked and taken, where the search never ends early.

Run: python benchmarks/calibrate_budget.py. Sets nothing: `solvers/_budget.py` holds the rate. Seconds are of this
thread, not by the clock on the wall. Sorting and LPT always run, so the smallest budgets take longer at the
largest sizes.
"""

import statistics
import time

import numpy as np
from workloads import lognormal_lengths

import balancer
import solvers

SHAPES = [(40, 8), (512, 64), (4096, 64), (16384, 256), (65536, 1024), (163840, 2560)]


def seconds_taken(costs: np.ndarray, num_groups: int, budget: float) -> float | None:
    """Median of three runs, or None where the search ended by itself."""
    times = []
    for _ in range(3):
        started = time.thread_time()
        result = solvers.partition(costs, num_groups, time_budget=budget, stop_at=0)
        times.append(time.thread_time() - started)
    return statistics.median(times) if result.gap else None


def main() -> None:
    balancer.warmup()
    print("| items on groups | asked ms | taken ms | ratio |\n|---|--:|--:|--:|")
    for n, m in SHAPES:
        lengths = lognormal_lengths(n, 7)
        costs = 24576 * lengths + lengths**2
        for budget in (0.0001, 0.001, 0.01, 0.1):
            taken = seconds_taken(costs, m, budget)
            shown = "ended by itself | " if taken is None else f"{taken * 1e3:.2f} | {taken / budget:.2f}"
            print(f"| {n:,} on {m:,} | {budget * 1e3:g} | {shown} |")


if __name__ == "__main__":
    main()
