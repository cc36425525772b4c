"""How far from the proven bound each method stays: median and worst gap of ten fixed seeds, and on the shipped log.

Run: python benchmarks/quality.py. Gaps are in parts per million of the bound, for a
budget of 50 ms; times are medians, for orientation. `bldm` is what public trainers, verl among them, run for equal
counts.
"""

import heapq
import statistics
import time
from pathlib import Path

import numpy as np
from workloads import lognormal_lengths

import balancer
import solvers
from balancer import CostModel
from balancer.io.log import open_log, read_columns
from solvers.groups import group_loads

LOG = Path(__file__).parent.parent / "data" / "omni_mix_dev.parquet"
COSTS = {"linear": CostModel(), "quadratic": CostModel(a=24576, b=1)}
SEEDS = range(100, 110)
SHAPES = [(512, 8), (4096, 64), (16384, 256), (65536, 1024), (163840, 2560)]
METHODS = ["auto", "lpt", "karmarkar_karp", "bldm"]
METHODS_FOR_EQUAL_COUNTS = ["auto", "lpt", "bldm"]


def bldm(costs: np.ndarray, num_groups: int) -> np.ndarray:
    """Largest differencing with counts within one (Michiels, Korst, Aarts & van Leeuwen, STACS 2003): int64[n].

    The items by descending cost are cut into blocks of one for each group. The two blocks of largest spread become one,
    the largest sums of one with the smallest of the other, until there is one.
    """
    n, order = len(costs), np.argsort(-costs, kind="stable")
    places = np.arange(-(-n // num_groups) * num_groups).reshape(-1, 1, num_groups)  # of items in `order`
    sums = np.zeros(places.shape[::2], dtype=np.int64)
    sums.ravel()[:n] = costs[order]  # items of cost 0 fill up the last block
    blocks = [(int(row[-1] - row[0]), b, row, places[b]) for b, row in enumerate(sums)]
    heapq.heapify(blocks)
    while len(blocks) > 1:
        (_, name, a, in_a), (_, _, b, in_b) = heapq.heappop(blocks), heapq.heappop(blocks)
        both = a + b[::-1]
        by_sum = np.argsort(-both, kind="stable")
        held = np.vstack([in_a, in_b[:, ::-1]])[:, by_sum]
        heapq.heappush(blocks, (int(both.min() - both.max()), name, both[by_sum], held))
    group_of_place = np.empty(places.size, dtype=np.int64)
    group_of_place[blocks[0][3]] = np.arange(num_groups)
    group = np.empty(n, dtype=np.int64)
    group[order] = group_of_place[:n]
    return group


def run(costs, num_groups, method, equal_counts):
    started = time.perf_counter()
    if method == "bldm":
        groups = bldm(costs, num_groups)
        seconds = time.perf_counter() - started
        bound = solvers.makespan_lower_bound(costs, num_groups, equal_counts)
        return (int(group_loads(costs, groups, num_groups).max()) / bound - 1) * 1e6, seconds * 1e3
    result = solvers.partition(costs, num_groups, method, 0.05, equal_counts=equal_counts, stop_at=0)
    seconds = time.perf_counter() - started
    solvers.check_partition(costs, result, equal_counts=equal_counts, stop_at=0)
    return result.gap * 1e6, seconds * 1e3


def row(name, instances, method, equal_counts):
    gaps, times = zip(*(run(costs, m, method, equal_counts) for costs, m in instances), strict=True)
    proven = sum(gap == 0 for gap in gaps)
    print(
        f"| {name} | {method} | {statistics.median(gaps):,.2f} | {max(gaps):,.2f} | {proven}/{len(gaps)} "
        f"| {statistics.median(times):.2f} |"
    )


def main() -> None:
    balancer.warmup()
    for equal_counts in (False, True):
        methods = METHODS_FOR_EQUAL_COUNTS if equal_counts else METHODS
        print(f"\n## {'Equal' if equal_counts else 'Free'} counts\n")
        print("| costs, items on groups | method | median gap, ppm | worst, ppm | proven optimal | ms |")
        print("|---|---|--:|--:|--:|--:|")
        for label, cost in COSTS.items():
            for n, m in SHAPES:
                instances = [(cost.sample_costs(lognormal_lengths(n, seed)), m) for seed in SEEDS]
                for method in methods:
                    row(f"{label}, {n:,} on {m:,}", instances, method, equal_counts)
            columns = ("text_tokens", "image_tokens", "audio_tokens")
            lengths = read_columns(open_log(LOG), {"all": columns}).sums["all"]
            instances = [(cost.sample_costs(lengths[i : i + 1024]), 64) for i in range(0, len(lengths), 1024)]
            for method in methods:
                row(f"{label}, omni_mix_dev, 1,024 on 64", instances, method, equal_counts)


if __name__ == "__main__":
    main()
