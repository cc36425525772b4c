"""How far from the proven bound each method stays: median and worst gap of ten fixed seeds, and on the shipped log.

Run: python benchmarks/quality.py. Gaps are in parts per million of the bound, for a
budget of 50 ms; times are medians, for orientation.
"""

import statistics
import time
from pathlib import Path

from workloads import lognormal_lengths

import balancer
import solvers
from balancer import CostModel
from balancer.io.logs import open_log, read_columns
from balancer.problem.batch import whole_batches

LOG = Path(__file__).parent.parent / "data" / "omni_mix_dev.parquet"
COSTS = {"linear": CostModel(), "quadratic": CostModel(a=24576, b=1)}
SEEDS = range(100, 110)
SHAPES = [(512, 8), (4096, 64), (16384, 256), (65536, 1024), (163840, 2560)]
METHODS = ["auto", "lpt", "slack", "multifit", "karmarkar_karp", "bldm"]


def run(costs, num_groups, method, equal_counts):
    started = time.perf_counter()
    result = solvers.partition(costs, num_groups, method, 0.05, equal_counts=equal_counts, stop_at=0)
    seconds = time.perf_counter() - started
    solvers.check_partition(costs, result, equal_counts=equal_counts)
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
        print(f"\n## {'Equal' if equal_counts else 'Free'} counts\n")
        print("| costs, items on groups | method | median gap, ppm | worst, ppm | proven optimal | ms |")
        print("|---|---|--:|--:|--:|--:|")
        for label, cost in COSTS.items():
            for n, m in SHAPES:
                instances = [(cost.sample_costs(lognormal_lengths(n, seed)), m) for seed in SEEDS]
                for method in METHODS:
                    row(f"{label}, {n:,} on {m:,}", instances, method, equal_counts)
            columns = ("text_tokens", "image_tokens", "audio_tokens")
            blocks = read_columns(open_log(LOG), {"all": columns})
            batches = (block[i : i + 1024] for block in whole_batches(blocks, 1024) for i in range(0, len(block), 1024))
            instances = [(cost.sample_costs(batch.sums["all"]), 64) for batch in batches]
            for method in METHODS:
                row(f"{label}, omni_mix_dev, 1,024 on 64", instances, method, equal_counts)


if __name__ == "__main__":
    main()
