"""What planning a step of a batch sampler takes: searches that end at a gap of 0.1 % beside those that go on.

Run: python benchmarks/sampler_step.py. Sixteen to 512 rows of the shipped log, drawn by chance as a shuffled sampler
draws them, forty batches a row; costs are those of a transformer block, a*l + b*l^2. Processor time is the median and
the mean of a batch; imbalance and proven gap are means. With --enumerate: the work of trying all for few items.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

import balancer
from balancer.compat import BalancedBatchSampler
from balancer.cost import parse_cost
from solvers.constraints import Constraints
from solvers.partitioning import partition
from solvers.partitioning.constrained.exhaust import exhaust
from solvers.partitioning.constrained.state import State

LOG = Path(__file__).parent.parent / "data" / "omni_mix_dev.parquet"
COST = "quadratic:a=24576,b=1"
SHAPES = [(16, 2), (16, 4), (16, 8), (32, 4), (32, 16), (64, 2), (64, 8), (64, 16), (128, 8), (128, 32), (256, 16),
          (256, 64), (512, 8), (512, 64)]  # fmt: skip
FEW = [(2, 16), (2, 18), (2, 20), (2, 22), (3, 12), (3, 15), (3, 16), (3, 18), (4, 14), (4, 16), (5, 14), (5, 16),
       (6, 14), (6, 16), (6, 18), (8, 16), (8, 18), (16, 16)]  # fmt: skip
BATCHES = 40


def tokens() -> np.ndarray:
    """Tokens into the LLM of every row."""
    table = pq.read_table(LOG)
    return sum(table[name].to_numpy().astype(np.int64) for name in ("text_tokens", "image_tokens", "audio_tokens"))


def measured(lengths: np.ndarray, ranks: int, stop_at: float | str, equal_counts: bool) -> tuple[float, ...]:
    """Median and mean milliseconds, mean imbalance and mean gap in percent of the steps of one epoch."""
    batch = len(lengths) // BATCHES // ranks
    options = {"cost": COST, "stop_at": stop_at, "equal_counts": equal_counts}
    sampler = BalancedBatchSampler(lengths, batch, ranks, 0, **options)
    costs = parse_cost(COST).sample_costs(lengths)
    took, ratios, gaps = [], [], []
    for step in range(sampler.num_steps):
        started = time.process_time()
        grid = sampler.plan_step(step)
        took.append(time.process_time() - started)
        loads = np.array([costs[rows].sum() for rows in grid[0]])
        ratios.append(loads.max() / loads.mean())
        rows = np.concatenate(grid[0])
        best = partition(costs[rows], ranks, equal_counts=equal_counts, time_budget=0.1, stop_at=0)
        gaps.append(loads.max() / best.lower_bound - 1)
    return 1e3 * float(np.median(took)), 1e3 * float(np.mean(took)), float(np.mean(ratios)), 100 * float(np.mean(gaps))


def steps() -> None:
    """Print the table of steps."""
    every = tokens()
    cell = "ms: median, mean; imbalance, gap %"
    print(f"| samples | ranks | equal counts | searched on: {cell} | to 0.1 %: {cell} |")
    print("|--:|--:|---|--:|--:|")
    for samples, ranks in SHAPES:
        lengths = np.random.default_rng(samples).choice(every, samples * BATCHES, replace=False)
        for equal_counts in (True, False):
            cells = [measured(lengths, ranks, stop_at, equal_counts) for stop_at in (0, "0.1%")]
            shown = " | ".join(f"{ms:.2f}, {mean:.2f}; {ratio:.5f}, {gap:.3f}" for ms, mean, ratio, gap in cells)
            print(f"| {samples} | {ranks} | {'yes' if equal_counts else 'no'} | {shown} |", flush=True)


def enumerated() -> None:
    """Print what it takes to try every assignment, from the best that a tenth of a millisecond finds."""
    every = tokens()
    print("| groups | items | equal counts: work units, mean, most | free: mean, most |\n|--:|--:|--:|--:|")
    for groups, items in FEW:
        cells = []
        for equal_counts in (True, False):
            spent = []
            for seed in range(20):
                costs = parse_cost(COST).sample_costs(np.random.default_rng(seed).choice(every, items, replace=False))
                first = partition(costs, groups, equal_counts=equal_counts, time_budget=1e-4, stop_at=0)
                state = State.from_problem(Constraints(equal_counts=equal_counts).check(costs, groups))
                _, left = exhaust(state, np.arange(items), first.makespan, first.lower_bound, 60_000_000)
                spent.append(60_000_000 - left)
            cells.append(f"{np.mean(spent):,.0f}, {max(spent):,}")
        print(f"| {groups} | {items} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--enumerate", action="store_true", help="what trying everything takes")
    balancer.warmup()
    enumerated() if parser.parse_args().enumerate else steps()


if __name__ == "__main__":
    main()
