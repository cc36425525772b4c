"""Micro-batch schedules on lognormal lengths under quadratic costs: ten seeds, median and worst.

Run: python benchmarks/schedule.py [objective ...]. Costs are 24576 * l + l * l, the cap is 32,768 tokens. Values and
bounds are in units of a perfectly even schedule; seconds are of one core, after compilation, for orientation.
"""

import statistics
import sys
import time

import numpy as np

from solvers.packing.schedule import OBJECTIVES, check_schedule, schedule_micro_batches

SHAPES = [(4096, 64), (16384, 256)]
SEEDS = range(10)
CAP = 32_768
STAGES = 8  # of the pipeline


def lengths_of(n, seed):
    lengths = np.random.default_rng(seed).lognormal(np.log(2000) - 0.5, 1, n)
    return np.clip(lengths.astype(np.int64), 1, CAP)


def run(n, num_ranks, seed, rules):
    lengths = lengths_of(n, seed)
    costs = 24576 * lengths + lengths * lengths
    started = time.perf_counter()
    result = schedule_micro_batches(costs, lengths, num_ranks, CAP, **rules)
    seconds = time.perf_counter() - started
    check_schedule(costs, lengths, result, num_ranks=num_ranks, cap=CAP, **rules)  # of which one rule is the cap
    return (
        result.value / result.perfect,
        result.lower_bound / result.perfect,
        100 * result.gap,
        result.num_slots,
        seconds,
    )


def row(objective, num_slots, n, num_ranks):
    rules = {"objective": objective, "num_slots": num_slots, "stages": STAGES if objective == "pipeline" else 1}
    for seed in SEEDS:  # compile all that will be needed
        run(n, num_ranks, seed, rules)
    columns = list(zip(*(run(n, num_ranks, seed, rules) for seed in SEEDS), strict=True))
    values, bounds, gaps, slots, seconds = columns
    print(
        f"| {objective} | {n:,} on {num_ranks} | {num_slots or 'free'} | {min(slots)} to {max(slots)} "
        f"| {statistics.median(values):.4f} | {max(values):.4f} | {statistics.median(bounds):.4f} | {max(bounds):.4f} "
        f"| {statistics.median(gaps):.3f} | {max(gaps):.3f} | {statistics.median(seconds):.2f} | {max(seconds):.2f} |"
    )


def main() -> None:
    print("| objective | samples on ranks | slots | K | value, median | worst | bound, median | highest ", end="")
    print("| gap %, median | worst | seconds, median | worst |")
    print("|---|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for objective in sys.argv[1:] or OBJECTIVES:
        for n, num_ranks in SHAPES:
            for num_slots in ("fewest", None):
                row(objective, num_slots, n, num_ranks)


if __name__ == "__main__":
    main()
