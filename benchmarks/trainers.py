"""What trainers have on board, beside this package: Hugging Face's batch_rebalance and Megatron-core's dp_balanced.

Run: python benchmarks/trainers.py. Lengths are lognormal (mean 2,000, sigma 1), five fixed seeds. Samplers: clipped at
8,192, an epoch of 16,384 samples, 16 a rank and step. Schedulers: clipped at the 32,768 tokens that a pack holds, 64
samples a rank and step, work 24,576 l + l^2. batch_rebalance is transformers' own sampler, where that is
installed. dp_balanced is its rule, written anew: packs in the order of the samples until one is full, and then, until
their number divides, the last sample of the last pack that has two becomes a pack.
"""

import statistics
import time
from importlib.util import find_spec

import numpy as np
from workloads import lognormal_lengths

from balancer.compat import BalancedBatchSampler
from balancer.compat.megatron import BalancedPackingScheduler
from balancer.cost import parse_cost

SEEDS = range(5)
SAMPLES, BATCH, LONGEST = 16_384, 16, 8_192


def padded(lengths):
    """What batch_rebalance makes even: rows times a longest one, whose square counts a thousandth."""
    return len(lengths) * (lengths.max() + 0.001 * float(lengths.max()) ** 2)


PADDED = {"cost": "padded:a=1000,b=1"}  # what batch_rebalance takes a batch to cost
MEASURES = {"tokens": np.sum, "padded tokens": lambda lengths: len(lengths) * lengths.max(), "its own cost": padded}


def theirs(lengths, ranks):
    """Batches of every rank, as transformers' sampler makes them."""
    from transformers.trainer_pt_utils import BatchRebalanceSampler

    made = [BatchRebalanceSampler(lengths.tolist(), BATCH * ranks, ranks, 1, rank=rank) for rank in range(ranks)]
    return list(zip(*made, strict=True))


def ours(lengths, ranks, **options):
    """Batches of every rank, as this package's sampler makes them."""
    batches = iter(BalancedBatchSampler(lengths, BATCH, ranks, "all", **options))
    return list(zip(*[batches] * ranks, strict=True))


def samplers_table() -> None:
    """Largest over mean of the ranks' loads, over the steps of an epoch."""
    made = {
        "ours, `cost='linear'`": ours,
        "ours, `cost='padded:a=1000,b=1'`": lambda *of: ours(*of, **PADDED),
        "ours, `cost='padded:a=1000,b=1', window=24`": lambda *of: ours(*of, **PADDED, window=24),
    }
    if find_spec("transformers"):
        made = {"`batch_rebalance`": theirs} | made
    print(f"| dp | sampler | {' | '.join(MEASURES)} | padding | ms a step, one core |")
    print(f"|--:|---|{'--:|' * (len(MEASURES) + 2)}")
    for ranks in (8, 32):
        for name, make in made.items():
            ratios, padding, seconds, steps = {key: [] for key in MEASURES}, [], 0.0, 0
            for seed in SEEDS:
                lengths = np.minimum(lognormal_lengths(SAMPLES, seed), LONGEST)
                started = time.perf_counter()
                found = make(lengths, ranks)
                seconds, steps = seconds + time.perf_counter() - started, steps + len(found)
                for key, measure in MEASURES.items():
                    loads = np.array([[measure(lengths[list(batch)]) for batch in step] for step in found])
                    ratios[key].append(loads.max(axis=1).sum() / loads.mean(axis=1).sum())
                used = sum(len(batch) * lengths[list(batch)].max() for step in found for batch in step)
                padding.append(1 - lengths.sum() / used)
            cells = " | ".join(f"{statistics.mean(values):.4f}" for values in ratios.values())
            # The stock sampler runs once a rank there: what a rank waits for is its own.
            each = 1000 * seconds / steps / (ranks if make is theirs else 1)
            print(f"| {ranks} | {name} | {cells} | {statistics.mean(padding):.1%} | {each:.2f} |")


def dp_balanced(lengths, cap, ranks):
    """Micro-batches of all ranks by the stock rule: [k][rank] -> ids."""
    packs, held = [[]], 0
    for index, length in enumerate(lengths.tolist()):
        if held + length > cap:
            packs.append([])
            held = 0
        packs[-1].append(index)
        held += length
    last = len(packs) - 1
    while len(packs) % ranks:
        if len(packs[last]) > 1:
            packs.append([packs[last].pop()])
        else:
            last -= 1
    return [packs[first : first + ranks] for first in range(0, len(packs), ranks)]


def schedulers_table() -> None:
    """What a step takes where ranks meet in every micro-batch, over what it would were all even."""
    print("| dp | scheduler | micro-batches a rank | time over even | ms a step |")
    print("|--:|---|--:|--:|--:|")
    cap, cost = 32_768, parse_cost(BalancedPackingScheduler.cost)
    for ranks in (8, 32):
        scheduler = BalancedPackingScheduler(cap, 1, ranks)
        made = {
            "`dp_balanced`": lambda lengths, ranks=ranks: dp_balanced(lengths, cap, ranks),
            "ours": lambda lengths, scheduler=scheduler: scheduler.get_groups_and_subsamples(enumerate(lengths)),
        }
        for name, make in made.items():
            spent, even, slots, seconds = 0, 0.0, [], 0.0
            for seed in SEEDS:
                for lengths in np.split(lognormal_lengths(4 * 64 * ranks, seed), 4):
                    costs = cost.sample_costs(lengths)
                    started = time.perf_counter()
                    grid = make(lengths)
                    seconds += time.perf_counter() - started
                    spent += sum(max(int(costs[list(pack)].sum()) for pack in slot) for slot in grid)
                    even += int(costs.sum()) / ranks
                    slots.append(len(grid))
            each = 1000 * seconds / len(slots)
            print(f"| {ranks} | {name} | {statistics.mean(slots):.2f} | {spent / even:.4f} | {each:.1f} |")


if __name__ == "__main__":
    samplers_table()
    print()
    schedulers_table()
