"""Micro-batch schedules on lognormal lengths under quadratic costs: ten seeds, median and worst.

Run: python benchmarks/schedule.py [SYNC ...]. Costs are 24576 * l + l * l, the cap is 32,768 tokens. Values and
bounds are in units of a perfectly even schedule; seconds are of one core, after compilation, for orientation. The
second table has micro-batches under other constraints, by `balancer.balance` with 0.1 s of budget at (4096, 64); the
third, micro-batches with limits, 16 samples on each of 64 ranks; the fourth, micro-batches with samples kept near their
homes, nodes of 8 ranks.
"""

import statistics
import sys
import time

import numpy as np

import balancer
from solvers import check_schedule
from solvers._jit import compile_at_once
from solvers.packing import SYNCS, schedule_micro_batches

SHAPES = [(4096, 64), (16384, 256)]
SEEDS = range(10)
CAP = 32_768
STAGES = 8  # of the pipeline
SLOTS_OF_LIMITS = 256  # of all ranks, where micro-batches have limits


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


def row(sync, num_slots, n, num_ranks):
    rules = {"sync": sync, "num_slots": num_slots, "stages": STAGES if sync == "pipeline" else 1}
    for seed in SEEDS:  # compile all that will be needed
        run(n, num_ranks, seed, rules)
    columns = list(zip(*(run(n, num_ranks, seed, rules) for seed in SEEDS), strict=True))
    values, bounds, gaps, slots, seconds = columns
    print(
        f"| {sync} | {n:,} on {num_ranks} | {num_slots or 'free'} | {min(slots)} to {max(slots)} "
        f"| {statistics.median(values):.4f} | {max(values):.4f} | {statistics.median(bounds):.4f} | {max(bounds):.4f} "
        f"| {statistics.median(gaps):.3f} | {max(gaps):.3f} | {statistics.median(seconds):.2f} | {max(seconds):.2f} |"
    )


def constrained(sync, name, keywords):
    """Ranks first, then slots: what other constraints on a rank cost."""
    n, num_ranks = SHAPES[0]
    gaps, ratios, seconds, slots = [], [], [], []
    for seed in (0, *SEEDS):  # the first compiles
        started = time.process_time()
        plan = balancer.balance(
            lengths_of(n, seed), num_ranks, 8, cost="quadratic:a=24576,b=1", time_budget=0.1,
            cut=balancer.MicroBatches(CAP, sync), **keywords,
        )  # fmt: skip
        seconds.append(time.process_time() - started)
        ratios.append(plan.imbalance_ratio), gaps.append(100 * plan.gap), slots.append(plan.num_slots)
    print(
        f"| {sync} | {name} | {min(slots)} to {max(slots)} | {statistics.median(ratios[1:]):.4f} "
        f"| {max(ratios):.4f} | {statistics.median(gaps[1:]):.3f} | {max(gaps):.3f} "
        f"| {statistics.median(seconds[1:]):.2f} | {max(seconds[1:]):.2f} |"
    )


def near_home(sync, cost, cap, eps):
    """What crosses nodes: relocated where that costs at most `eps`, and groups laid on nodes as well as can be."""
    n, num_ranks = SHAPES[0]
    homes = np.arange(n) // (n // num_ranks)
    plans, seconds, crosses, least, far, gaps = [], [], [], [], [], []
    for seed in (0, *SEEDS):  # the first compiles
        lengths = lengths_of(n, seed)
        rules = {"cut": balancer.MicroBatches(cap, sync), "eps": eps}
        started = time.process_time()
        plan = balancer.balance(lengths, num_ranks, 8, homes, cost, **rules)
        seconds.append(1e3 * (time.process_time() - started))
        other = balancer.balance(lengths, num_ranks, 8, homes, cost, placement="rearrange", **rules)
        total = lengths.sum() / 100
        crosses.append(plan.inter_node_volume / total), far.append(other.inter_node_volume / total)
        least.append(plan.inter_node_bound / total), gaps.append(100 * plan.gap), plans.append(plan)
    relocated = sum(not plan.fell_back for plan in plans[1:])
    medians = [statistics.median(values[1:]) for values in (crosses, least, far, gaps, seconds)]
    print(
        f"| {sync} | {cost} | {cap:,} | {100 * eps:g} | {relocated} of {len(SEEDS)} | {medians[0]:.1f} "
        f"| {medians[1]:.1f} | {medians[2]:.1f} | {medians[3]:.2f} | {max(gaps):.2f} | {medians[4]:.0f} |"
    )


def limits_of(lengths, seed):
    """Return limits of each kind that leave a few percent of room: the slots of a step are those that tokens need."""
    rng = np.random.default_rng(1000 + seed)
    images = np.where(rng.random(len(lengths)) < 0.3, rng.integers(1, 9, len(lengths)), 0)
    some = rng.random(len(lengths)) < 0.1
    each = len(lengths) / SLOTS_OF_LIMITS
    return {
        "none": [],
        "a sum": [balancer.Limit(images, max(int(images.max()), int(1.5 * images.sum() / SLOTS_OF_LIMITS)))],
        "a count": [balancer.CountLimit(int(1.25 * each))],
        "padded tokens": [balancer.PaddedLimit(2 * CAP)],
        "kinds": [balancer.Kinds(rng.integers(0, 3, len(lengths)))],
        "everywhere": [balancer.Everywhere(some)],
    }


def limited(sync, cost):
    """What each kind of limit adds to a step of 16 samples a rank, over the same micro-batches without it."""
    num_ranks, added = 64, {}
    for seed in SEEDS:
        lengths = np.minimum(lengths_of(16 * num_ranks, seed), CAP // 2)
        takes = {}
        for name, limits in limits_of(lengths, seed).items():
            cut = balancer.MicroBatches(CAP, sync, count=SLOTS_OF_LIMITS // num_ranks, limits=limits)
            takes[name] = balancer.balance(lengths, num_ranks, cost=cost, cut=cut).makespan
        for name, value in takes.items():
            added.setdefault(name, []).append(100 * value / takes["none"] - 100)
    for name in list(added)[1:]:
        print(f"| {sync} | {cost} | {name} | {statistics.mean(added[name]):.2f} | {max(added[name]):.2f} |")


def main() -> None:
    compile_at_once()
    print("| sync | samples on ranks | slots | K | value, median | worst | bound, median | highest ", end="")
    print("| gap %, median | worst | seconds, median | worst |")
    print("|---|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for sync in sys.argv[1:] or SYNCS:
        for n, num_ranks in SHAPES:
            for num_slots in ("fewest", None):
                row(sync, num_slots, n, num_ranks)
    print("\n| sync | constraint on a rank | K | value, median | worst | gap %, median | worst ", end="")
    print("| seconds, median | worst |\n|---|---|---|--:|--:|--:|--:|--:|--:|")
    for sync in sys.argv[1:] or SYNCS:
        if sync != "pipeline":
            constrained(sync, "none", {})
            constrained(sync, "equal counts", {"equal_counts": True})
            constrained(sync, "8 responses to a prompt together", {"keep_together": np.arange(SHAPES[0][0]) // 8})
            constrained(sync, "at most 80 samples", {"max_samples_per_rank": 80})
    print("\n| sync | cost | limit | a step takes longer by, %, mean | worst |\n|---|---|---|--:|--:|")
    for sync in sys.argv[1:] or SYNCS:
        for cost in ("linear", "quadratic:a=24576,b=1"):
            limited(sync, cost)
    print(
        "\n| sync | cost | cap | eps, % | relocated | crosses, % | must, % | rearranged, % | gap %, median ",
        end="",
    )
    print("| worst | ms |\n|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for sync in sys.argv[1:] or SYNCS:
        for cost in ("linear", "quadratic:a=24576,b=1"):
            for cap in (CAP, 2 * CAP):
                for eps in (0.001, 0.01, 0.05):
                    near_home(sync, cost, cap, eps)


if __name__ == "__main__":
    main()
