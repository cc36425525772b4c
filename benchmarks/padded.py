"""Padded and mixed costs: how far off is what balances token sums, and how far from the bound is `solvers.mixed`.

Run: python benchmarks/padded.py. Ten fixed seeds. Times are of this thread's processor, the best of twenty runs.

Lengths of the padded table are lognormal (mean 2,000, sigma 1, clipped at 32,768). Those of the mixed one are frames of
speech (mean 1,000, sigma 1, clipped at 3,000, which is 30 seconds), costed as in Whisper: with hidden size d and L
layers, a transformer over half the frames costs d L (12 d l + l^2) and two convolutions over padded rows about
6 mels d + 3 d^2 a frame. In units of d L: large, d = 1,280: a = 15,360, b = 1, c = 144; tiny, d = 384: a = 4,608,
b = 1, c = 408. "Even" is a shape where the padded part costs what the linear part does. The first seed's certificate
is checked from scratch, which takes longer than all the rest.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np
from workloads import lognormal_lengths

import balancer
import solvers
from balancer.cost import parse_cost
from solvers.groups import mixed_loads, padded_loads

SEEDS = range(100, 110)
PADDED_SHAPES = [(512, 8), (4096, 64), (16384, 256), (65536, 1024), (163840, 2560)]
MIXED_SHAPES = [(512, 8), (4096, 64), (16384, 256)]
COSTS = {
    "large": "convolution:a=15360,b=1,c=144",
    "tiny": "convolution:a=4608,b=1,c=408",
    "even": "convolution:a=4608,b=1,c=4608",
}


def milliseconds(call: Callable[[], object]) -> float:
    """Processor time of the best of twenty calls."""
    best = float("inf")
    for _ in range(20):
        started = time.thread_time_ns()
        call()
        best = min(best, time.thread_time_ns() - started)
    return best / 1e6


def speech_lengths(num_samples: int, seed: int) -> np.ndarray:
    """Frames of speech: int64[num_samples]."""
    rng = np.random.default_rng(seed)
    return np.clip(rng.lognormal(np.log(1000) - 0.5, 1.0, num_samples), 1, 3000).astype(np.int64)


def padded_table() -> None:
    """Padded cost of plans that balance token sums, as multiples of the optimum."""
    print("| rows on groups | `padded`, ms | `lpt` | `karmarkar_karp` | `lpt`, equal counts |")
    print("|---|--:|--:|--:|--:|")
    for n, m in PADDED_SHAPES:
        ratios: dict[tuple[str, bool], list[float]] = {
            ("lpt", False): [], ("karmarkar_karp", False): [], ("lpt", True): []
        }  # fmt: skip
        times = []
        for seed in SEEDS:
            lengths = lognormal_lengths(n, seed)
            optimum = solvers.padded(lengths, m)
            solvers.check_partition(lengths, optimum, padded=True)
            times.append(milliseconds(lambda lengths=lengths, m=m: solvers.padded(lengths, m)))
            for (method, equal_counts), found in ratios.items():
                groups = solvers.partition(lengths, m, method, equal_counts=equal_counts).group_of_item
                found.append(int(padded_loads(lengths, groups, m).max()) / optimum.makespan)
        cells = " | ".join(f"{min(found):.1f} to {max(found):.1f}" for found in ratios.values())
        print(f"| {n:,} on {m:,} | {statistics.median(times):.2f} | {cells} |")


def gap_cell(gaps: list[float]) -> str:
    """Median and worst, in percent."""
    return f"{100 * statistics.median(gaps):.3f}, {100 * max(gaps):.3f}"


def mixed_table(equal_counts: bool) -> None:
    """Gap to the bound of `solvers.mixed`, and of what else one might do, to the same bound."""
    print("| cost, items on groups | gap %, median, worst | ms | contiguous runs | `lpt` |")
    print("|---|--:|--:|--:|--:|")
    for name, text in COSTS.items():
        for n, m in MIXED_SHAPES:
            gaps: dict[str, list[float]] = {"mixed": [], "runs": [], "lpt": []}
            times = []
            for seed in SEEDS:
                costs, rows = np.ascontiguousarray(parse_cost(text).sample_costs(speech_lengths(n, seed)).T)
                started = time.thread_time()
                result = solvers.mixed(costs, rows, m, equal_counts=equal_counts)
                times.append(1e3 * (time.thread_time() - started))
                gaps["mixed"].append(result.gap)
                if seed == SEEDS[0]:
                    solvers.check_partition(costs, result, row_costs=rows, equal_counts=equal_counts)
                both = costs + rows
                groups = solvers.partition(both, m, "lpt", equal_counts=equal_counts).group_of_item
                gaps["lpt"].append(int(mixed_loads(costs, rows, groups, m).max()) / result.lower_bound - 1)
                gaps["runs"].append(best_runs(both, costs, rows, m, equal_counts) / result.lower_bound - 1)
            print(
                f"| {name}, {n:,} on {m:,} | {gap_cell(gaps['mixed'])} | {statistics.median(times):.1f} "
                f"| {gap_cell(gaps['runs'])} | {gap_cell(gaps['lpt'])} |"
            )


def best_runs(both: np.ndarray, costs: np.ndarray, rows: np.ndarray, num_groups: int, equal_counts: bool) -> int:
    """Makespan of the best contiguous runs of the sorted items, found by bisection in plain NumPy."""
    order = np.argsort(-both, kind="stable")
    u, g = costs[order], rows[order]
    n = len(u)
    if equal_counts:
        groups = solvers.padded(both, num_groups, equal_counts=True).group_of_item
        return int(mixed_loads(costs, rows, groups, num_groups).max())
    sums = np.concatenate(([0], np.cumsum(u)))

    def covers(bound: int) -> bool:
        i = 0
        for _ in range(num_groups):
            if i < n:
                weight = sums + np.arange(n + 1) * g[i]  # of items 0 .. x - 1, each with row g[i]; rises with x
                i = int(np.searchsorted(weight, bound + weight[i], side="right")) - 1
        return i >= n

    low, high = int(both.max()), int(sums[-1] + n * g[0])
    while high - low > low >> 20:
        middle = (low + high) // 2
        low, high = (low, middle) if covers(middle) else (middle + 1, high)
    return high


def main() -> None:
    balancer.warmup()
    print("## Padded: multiples of the optimum\n")
    padded_table()
    for equal_counts in (False, True):
        print(f"\n## Mixed, {'equal' if equal_counts else 'free'} counts\n")
        mixed_table(equal_counts)


if __name__ == "__main__":
    main()
