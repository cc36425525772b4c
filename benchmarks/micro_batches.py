"""How even are micro-batches, and what do limits on them cost?

    python benchmarks/micro_batches.py [free] [rules] [limits] [near_home] [--quick]

Lognormal lengths (mean 2,000, sigma 1) by fixed seeds, costs with attention, micro-batches of at most 32,768 tokens;
every schedule is checked. Ranks wait for each other in every micro-batch, once a step, or in a pipeline of 8 stages.
About four minutes of one core; `--quick` half a minute.
"""

import statistics

import common
import numpy as np
from common import ATTENTION, Table, timed

import balancer
import solvers

CAP = 32_768
SYNCS = ("micro_batch", "step", "pipeline")
SLOTS_OF_LIMITS = 256  # of all ranks, where micro-batches have limits


def free(quick: bool) -> None:
    """Time of a step over an even one, and the bound on that, with the fewest micro-batches and with a free number."""
    table = Table("sync, samples on ranks", "micro-batches", "over even: median", "worst", "bound", "gap, %", "ms")
    for sync in SYNCS:
        for n, ranks in ((1024, 16),) if quick else ((4096, 64), (16_384, 256)):
            for slots in ("fewest", None):
                asked = {"sync": sync, "num_slots": slots, "stages": 8 if sync == "pipeline" else 1}
                rows, counts = [], []
                for seed in range(2 if quick else 5):
                    lengths = common.lognormal(n, seed)
                    costs, given = common.priced(lengths, "attention"), (lengths, ranks, CAP)
                    found, ms = timed(lambda c=costs, g=given, a=asked: solvers.schedule_micro_batches(c, *g, **a))
                    solvers.check_schedule(costs, lengths, found, num_ranks=ranks, cap=CAP, **asked)
                    rows.append((found.value / found.perfect, found.lower_bound / found.perfect, found.gap, ms))
                    counts.append(found.num_slots)
                value, bound, gap, ms = np.median(rows, axis=0)
                table.row(f"{sync}, {n:,} on {ranks}", f"{slots or 'free'}: {min(counts)} to {max(counts)}",
                          f"{value:.4f}", f"{max(rows)[0]:.4f}", f"{bound:.4f}", 100 * gap, f"{ms:.0f}")  # fmt: skip


def rules(quick: bool) -> None:
    """Constraints on a rank's share besides: time of a step over an even one, and the gap to the bound."""
    n, ranks = (1024, 16) if quick else (4096, 64)
    table = Table(f"sync, rule, {n:,} on {ranks}", "over even: median", "worst", "gap, %: median", "worst")
    kinds = {"none": {}, "equal counts": {"equal_counts": True}, "8 responses to a prompt together":
             {"keep_together": np.arange(n) // 8}, "at most 80 samples": {"max_samples_per_rank": 80}}  # fmt: skip
    for sync in SYNCS[:2]:
        for name, given in kinds.items():
            cut = balancer.MicroBatches(CAP, sync)
            plans = [balancer.balance(common.lognormal(n, seed), ranks, common.NODE, cost=ATTENTION, time_budget=0.1,
                                      cut=cut, **given) for seed in range(2 if quick else 5)]  # fmt: skip
            each = [[plan.imbalance_ratio for plan in plans], [100 * plan.gap for plan in plans]]
            table.row(f"{sync}, {name}", *(edge(of) for of in each for edge in (statistics.median, max)))


def limits_of(lengths: np.ndarray, seed: int) -> dict[str, list]:
    """Return limits of each kind that leave a few percent of room: the slots of a step are those that tokens need."""
    rng = np.random.default_rng(1000 + seed)
    images = np.where(rng.random(len(lengths)) < 0.3, rng.integers(1, 9, len(lengths)), 0)
    some, each = rng.random(len(lengths)) < 0.1, len(lengths) / SLOTS_OF_LIMITS
    return {
        "none": [],
        "a sum": [balancer.Limit(images, max(int(images.max()), int(1.5 * images.sum() / SLOTS_OF_LIMITS)))],
        "a count": [balancer.CountLimit(int(1.25 * each))],
        "padded tokens": [balancer.PaddedLimit(2 * CAP)],
        "kinds": [balancer.Kinds(rng.integers(0, 3, len(lengths)))],
        "everywhere": [balancer.Everywhere(some)],
    }


def limits(quick: bool) -> None:
    """Limits on a micro-batch, 16 samples on each of 64 ranks: time of a step over that without the limit."""
    table = Table("sync, cost", *(f"{name}: mean, worst" for name in list(limits_of(np.arange(9), 0))[1:]))
    for sync in SYNCS:
        for name, cost in common.COSTS.items():
            ratios = []
            for seed in range(1 if quick else 5):
                lengths, taken = np.minimum(common.lognormal(1024, seed), CAP // 2), []
                for each in limits_of(lengths, seed).values():
                    cut = balancer.MicroBatches(CAP, sync, count=SLOTS_OF_LIMITS // 64, limits=each)
                    taken.append(balancer.balance(lengths, 64, cost=cost, cut=cut).makespan)
                ratios.append([each / taken[0] for each in taken[1:]])
            pairs = zip(np.mean(ratios, axis=0), np.max(ratios, axis=0), strict=True)
            table.row(f"{sync}, {name}", *(f"{mean:.4f}, {worst:.4f}" for mean, worst in pairs))


def near_home(quick: bool) -> None:
    """Kept near homes, nodes of 8: tokens that cross, those that must, and those of the best plan laid on nodes."""
    n, ranks = (1024, 16) if quick else (4096, 64)
    table = Table("sync, cost, eps", "relocated", "crosses, %", "must, %", "rearranged, %", "gap, %: median", "worst",
                  "ms")  # fmt: skip
    homes = np.arange(n) // (n // ranks)
    for sync in SYNCS[: 1 if quick else 3]:
        for name, cost in common.COSTS.items():
            for eps in (0.001, 0.01):
                rows = []
                for seed in range(2 if quick else 5):
                    lengths = common.lognormal(n, seed)
                    asked = {"cut": balancer.MicroBatches(2 * CAP, sync), "eps": eps}
                    plan, ms = timed(lambda ls=lengths, c=cost, a=asked: balancer.balance(
                        ls, ranks, common.NODE, homes, c, **a))  # fmt: skip
                    laid = balancer.balance(lengths, ranks, common.NODE, homes, cost, placement="rearrange", **asked)
                    volumes = plan.inter_node_volume, plan.inter_node_bound, laid.inter_node_volume
                    rows.append([not plan.fell_back, *(100 * each / lengths.sum() for each in volumes),
                                 100 * plan.gap, ms])  # fmt: skip
                _, *middle, gap, ms = np.median(rows, axis=0)
                table.row(f"{sync}, {name}, {eps:.1%}", f"{sum(row[0] for row in rows)} of {len(rows)}",
                          *(f"{each:.1f}" for each in middle), gap, max(row[4] for row in rows),
                          f"{ms:.0f}")  # fmt: skip


if __name__ == "__main__":
    common.main(__doc__, free, rules, limits, near_home)
