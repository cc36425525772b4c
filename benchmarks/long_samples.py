"""What do groups of ranks for long samples gain?

    python benchmarks/long_samples.py [groups] [static] [log] [images] [plans] [--quick]

`groups`, `static`: the batches of data/sequence_groups_dev.parquet, with what Megatron-LM's development branch took for
each, priced by FlexSP's published constants for a 7B model on 64 A100s. `log`: the shipped log. `images`, `plans`:
images of data/docs_msdev_interleaved.parquet in its order, in Qwen2-VL's encoder by FLOPs at 40 % of an H100; shared,
its attention exchanges 4 x 32 layers x 1280 x 2 bytes a patch, three times, at 225 GB/s, and 32 x 4 launches take 15 us
each. All plans are checked. About three minutes of one core; `--quick` half a minute.
"""

import statistics
from collections.abc import Iterator
from typing import Any

import common
import numpy as np
import pyarrow.parquet as pq
from common import DATA, NODE, Table, timed

import balancer
import solvers
from balancer.cost import flops, module, parse_cost
from balancer.simulate import CLUSTERS

COST = parse_cost("flexsp-7b-a100")
DEGREES = (2, 4, 8, 16, 32, 64)
PER_MS = 10**9
OVERHEAD = int(32 * 4 * 15e-6 * 1e9)  # nanoseconds, as all times of images
THRESHOLDS = (500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000)


def solve(lengths: np.ndarray, cap: int, budget: float) -> tuple[Any, dict[str, Any], Any, float]:
    """Prices, rules, result and milliseconds."""
    priced = COST.degree_times(lengths, DEGREES, 64)
    rules = {"degrees": DEGREES, "num_ranks": 64, "cap": cap, "overhead": priced.overhead}
    found, ms = timed(lambda: solvers.sequence_groups(priced.times, lengths, **rules, time_budget=budget))
    solvers.check_sequence_groups(priced.times, lengths, found, **rules)
    return priced, rules, found, ms


def batches(quick: bool) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
    for row in pq.read_table(DATA / "sequence_groups_dev.parquet").to_pylist()[:: 8 if quick else 1]:
        yield row, np.array(row["lengths"], dtype=np.int64)


def groups(quick: bool) -> None:
    """Time of a batch over that of Megatron-LM's scheduler, by our budget."""
    table = Table("budget, ms", "over the peer's: median", "worst", "best", "ms")
    for budget in (0.05,) if quick else (0.05, 0.1, 1.0):
        ratios, times = [], []
        for row, lengths in batches(quick):
            priced, _, found, ms = solve(lengths, row["cap"], budget)
            ratios.append(found.makespan * priced.unit / PER_MS / row["peer_ms"])
            times.append(ms)
        table.row(f"{1e3 * budget:g}", *(f"{of(ratios):.4f}" for of in (statistics.median, max, min)),
                  f"{statistics.median(times):.0f}")  # fmt: skip


def static(quick: bool) -> None:
    """One degree for all, the best in hindsight of each batch, over groups of unequal size."""
    table = Table("batches", "median", "least", "most")
    found: dict[str, list[float]] = {}
    for row, lengths in batches(quick):
        priced, rules, result, _ = solve(lengths, row["cap"], 0.1)
        alone = [
            solvers.sequence_groups(priced.times[d : d + 1], lengths, **rules | {"degrees": [degree]}).makespan
            for d, degree in enumerate(DEGREES)
            if lengths.max() <= degree * row["cap"]
        ]
        found.setdefault(f"{row['set']} {row['context']:,}", []).append(min(alone) / result.makespan)
    found["all"] = [ratio for ratios in found.values() for ratio in ratios]
    for name, of in found.items():
        table.row(name, statistics.median(of), min(of), max(of))


def log(quick: bool) -> None:
    """Rank-time wasted by whole samples (proven) and by groups that lose 5 % with each doubling; what crosses nodes."""
    table = Table("ranks x samples, degrees", "placement", "steps", "whole samples waste, %", "groups waste, %",
                  "worst", "crosses, %", "must, %", "ms")  # fmt: skip
    lengths = common.log("mix")
    for ranks, each, degrees in ((64, 16, (1, 2, 4, 8)), (2560, 4, (1, 2, 4, 8, 16, 32)))[: 1 if quick else 2]:
        for placement in ("any", "relocate"):
            size = ranks * each
            cut, homes = balancer.SequenceGroups(degrees, count=1), np.arange(size) // each
            sums, worst, times = np.zeros(5), 0.0, []
            for step in common.steps_of(lengths, size, 5 if quick else 30):
                asked = {"cut": cut, "placement": placement, "time_budget": 0.1}
                plan, ms = timed(lambda s=step, r=ranks, h=homes, a=asked: balancer.balance(s, r, NODE, h, **a))
                times.append(ms)
                whole = ranks * solvers.makespan_lower_bound(step, ranks)
                spent, crossing = ranks * plan.makespan, (plan.inter_node_volume, plan.inter_node_bound)
                sums += [int(step.sum()), whole, spent, *crossing]
                worst = max(worst, 100 * (1 - int(step.sum()) / spent))
            work, whole, spent, crosses, must = sums.tolist()
            shares = 1 - work / whole, 1 - work / spent, worst / 100, crosses / work, must / work
            table.row(f"{ranks:,} x {each}, {degrees[0]} to {degrees[-1]}", placement, len(times),
                      *(f"{100 * share:.2f}" for share in shares), f"{statistics.mean(times):.0f}")  # fmt: skip


# Images that the ranks of a group share


def pages() -> list[np.ndarray]:
    """Patches of the images of each page, as Qwen2-VL cuts them: sides are whole 28 pixels."""
    table = pq.read_table(DATA / "docs_msdev_interleaved.parquet", columns=["image_widths", "image_heights"])

    def cut(sides: list[int]) -> np.ndarray:
        return np.maximum(28, np.round(np.array(sides, dtype=float) / 28).astype(np.int64) * 28) // 14

    both = zip(table["image_widths"].to_pylist(), table["image_heights"].to_pylist(), strict=True)
    return [cut(widths) * cut(heights) for widths, heights in both]


def times_of(patches: np.ndarray, degrees: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Nanoseconds of images alone, int64[n], and shared by each degree, int64[degrees, n]."""
    cost = module("qwen2-vl-vit").flops()
    spent = cost.constant + cost.a * patches + cost.b * patches.astype(float) ** 2
    alone = np.ceil(spent / (0.4 * 989e12) * 1e9).astype(np.int64)
    moved = 4 * 32 * 1280 * 2 * 3 * patches / 225e9 * 1e9
    return alone, np.array([np.ceil(alone / d + moved * (d - 1) / d / d).astype(np.int64) for d in degrees])


def images(quick: bool) -> None:
    """Steps of one group, over the bound for one degree; then degrees 2, 4, 8 .. at once over one degree."""
    table = Table("ranks x pages a rank", "whole images, LPT", "all shared", "best threshold, in hindsight", "ours",
                  "us", "several degrees over one", "us")  # fmt: skip
    every = pages()
    for ranks, each in ((8, 4),) if quick else ((8, 1), (8, 4), (8, 16), (32, 2)):
        size = ranks * each
        steps = [np.concatenate(every[at : at + size]) for at in range(0, len(every) - size + 1, size)]
        sums, times = np.zeros(5 + len(THRESHOLDS)), []
        for patches in (step for step in steps[:: 4 if quick else 1] if len(step)):
            degrees = [degree for degree in (2, 4, 8, 16, 32) if degree <= ranks]
            alone, shared = times_of(patches, degrees)
            one, us_one = shared_by(alone, shared[-1:], ranks, [ranks])
            many, us_many = shared_by(alone, shared, ranks, degrees)
            lpt = solvers.partition(alone, ranks, "lpt").makespan
            fixed = [by_threshold(patches, alone, shared[-1], ranks, least) for least in THRESHOLDS]
            sums += [one.lower_bound, lpt, int(shared[-1].sum()) + OVERHEAD, one.makespan, many.makespan, *fixed]
            times.append((us_one, us_many))
        bound, lpt, all_shared, ours, several = sums[:5].tolist()
        us_one, us_many = np.mean(times, axis=0)
        ratios = (value / bound for value in (lpt, all_shared, min(sums[5:].tolist()), ours))
        table.row(f"{ranks} x {each}", *ratios, f"{us_one:.0f}", several / ours, f"{us_many:.0f}")


def shared_by(alone: np.ndarray, shared: np.ndarray, ranks: int, degrees: list[int]) -> tuple[Any, float]:
    """Result and microseconds."""
    asked = {"degrees": degrees, "overhead": OVERHEAD}
    found, ms = timed(lambda: solvers.long_short(alone, shared, ranks, **asked), 3)
    solvers.check_long_short(alone, shared, found, group_size=ranks, **asked)
    return found, 1e3 * ms


def by_threshold(patches: np.ndarray, alone: np.ndarray, shared: np.ndarray, ranks: int, least: int) -> int:
    """All images from `least` patches on are shared by all ranks, the rest go by LPT."""
    long = patches >= least
    rest = solvers.partition(alone[~long], ranks, "lpt").makespan
    return int(shared[long].sum()) + rest + OVERHEAD * bool(long.any())


def plans(quick: bool) -> None:
    """The same images as a phase of whole plans, shared in groups of 8: time over the bound, and over whole images."""
    table = Table("ranks x pages a rank", "ours over the bound", "whole images over ours", "crosses, %: ours",
                  "whole images", "ms: ours", "whole images")  # fmt: skip
    every = pages()
    cost = CLUSTERS["h100"].shared_cost(flops("qwen2-vl-vit").integer_cost(), module("qwen2-vl-vit"), (1, 2, 4, 8),
                                        efficiency=0.4, slot_s=OVERHEAD / 1e9)  # fmt: skip
    for ranks, each in ((64, 4),) if quick else ((64, 1), (64, 4), (64, 16)):
        size, rows = ranks * each, []
        for at in range(0, len(every) - size + 1, size * (4 if quick else 1)):
            of_step = every[at : at + size]
            columns, row = {"images": balancer.Ragged.of(of_step), "tokens": np.full(size, 1000)}, []
            for how in ({"sequence_parallel": 8, "share_multiple_of": 4}, {}):
                phases = [balancer.Phase("vision", "images", cost, **how), balancer.Phase("llm", "tokens")]
                asked = columns, phases, ranks, NODE
                step, ms = timed(lambda asked=asked: balancer.orchestrate(*asked))
                moved = step.traffic_of("vision:in")
                row += [step["vision"].makespan, step["vision"].lower_bound, moved.inter_node, moved.total, ms]
            rows.append(row)
        ours, bound, crosses, total, ms, whole, _, far, far_total, whole_ms = np.sum(rows, axis=0).tolist()
        table.row(f"{ranks} x {each}", f"{ours / bound:.4f}", whole / ours, f"{100 * crosses / total:.1f}",
                  f"{100 * far / far_total:.1f}", f"{ms / len(rows):.0f}", f"{whole_ms / len(rows):.0f}")  # fmt: skip


if __name__ == "__main__":
    common.main(__doc__, groups, static, log, images, plans)
