"""Long images shared by the ranks of a group: total time of a log's steps over what is proven, and what a step costs.

Run: python benchmarks/long_short.py [plans]. Frozen here: data/docs_msdev_interleaved.parquet in its order, so many
pages a rank and step, each image an item; Qwen2-VL's encoder, forward and backward, by FLOPs at 40 % of an H100.
Shared, its attention exchanges 4 x 32 layers x 1280 x 2 bytes a patch, three times, at 225 GB/s; 32 x 4 launches take
15 us each. Microseconds are of this thread, after compilation, the best of five calls of a step; all results are
checked.

`plans`: the same images as a phase of whole plans, in groups of 8 of many ranks, beside whole images, by the cost that
an H100 cluster has for it and 1.92 ms where a group shares; the last has the log's pages over and over, shuffled.
"""

import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq

import solvers
from balancer import Phase, Ragged, Topology, orchestrate
from balancer.cost import flops
from balancer.cost.named import module
from balancer.problem.items import qwen2vl_patches
from balancer.simulate import CLUSTERS
from solvers._jit import compile_at_once

DATA = Path(__file__).parent.parent / "data" / "docs_msdev_interleaved.parquet"

CELLS = ((8, 1), (8, 4), (8, 16), (32, 2))  # ranks, samples a rank
PLANS = ((64, 1), (64, 4), (64, 16), (2560, 16))
OVERHEAD = int(32 * 4 * 15e-6 * 1e9)  # nanoseconds, as all times
THRESHOLDS = (500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000)


class Step(NamedTuple):
    """Patches of a step's images; their times alone, and shared by each degree."""

    patches: np.ndarray
    alone: np.ndarray
    shared: np.ndarray


def steps_of(pages: list[np.ndarray], ranks: int, samples: int, degrees: list[int]) -> list[Step]:
    cost = module("qwen2-vl-vit").flops()
    steps = []
    for first in range(0, len(pages) - ranks * samples + 1, ranks * samples):
        patches = np.concatenate(pages[first : first + ranks * samples])
        if len(patches):
            flops = cost.constant + cost.a * patches + cost.b * patches.astype(float) ** 2
            alone = np.ceil(flops / (0.4 * 989e12) * 1e9).astype(np.int64)
            moved = 4 * 32 * 1280 * 2 * 3 * patches / 225e9 * 1e9
            shared = [np.ceil(alone / d + moved * (d - 1) / d / d).astype(np.int64) for d in degrees]
            steps.append(Step(patches, alone, np.array(shared)))
    return steps


def timed(step: Step, ranks: int, degrees: list[int]) -> tuple[solvers.LongShortResult, float]:
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        result = solvers.long_short(step.alone, step.shared, ranks, degrees=degrees, overhead=OVERHEAD)
        best = min(best, time.perf_counter() - started)
    solvers.check_long_short(
        step.alone, step.shared, result, group_size=ranks, degrees=degrees, overhead=OVERHEAD
    )  # fmt: skip
    return result, best * 1e6


def by_threshold(step: Step, ranks: int, least: int) -> int:
    """All images from `least` patches on are shared by all ranks, the rest go by LPT."""
    long = step.patches >= least
    rest = solvers.partition(step.alone[~long], ranks, "lpt").makespan
    return int(step.shared[-1][long].sum()) + rest + OVERHEAD * bool(long.any())


def row(pages: list[np.ndarray], ranks: int, samples: int) -> str:
    steps = steps_of(pages, ranks, samples, [ranks])
    found = [timed(step, ranks, [ranks]) for step in steps]
    bound = sum(result.lower_bound for result, _ in found)
    ours = sum(result.makespan for result, _ in found)
    lpt = sum(solvers.partition(step.alone, ranks, "lpt").makespan for step in steps)
    every = sum(int(step.shared.sum()) + OVERHEAD for step in steps)
    fixed = min(sum(by_threshold(step, ranks, least) for step in steps) for least in THRESHOLDS)
    degrees = [d for d in (2, 4, 8, 16, 32) if d <= ranks]
    more = [timed(step, ranks, degrees) for step in steps_of(pages, ranks, samples, degrees)]
    wide, least = (sum(getattr(result, name) for result, _ in more) for name in ("makespan", "lower_bound"))
    each = [f"{total / bound:.4f}" for total in (lpt, every, fixed, ours)]
    took = [f"{np.mean([us for _, us in runs]):.0f}" for runs in (found, more)]
    return " | ".join(
        [f"| {ranks} x {samples}", *each, took[0], f"{wide / ours:.4f}", f"{wide / least:.4f}", f"{took[1]} |"]
    )


def planned(pages: list[np.ndarray], ranks: int, shared: bool):
    """Plan a step whose samples are pages; return the encoder's plan, what of its inputs crosses nodes, and seconds."""
    cost = CLUSTERS["h100"].shared_cost(
        flops("qwen2-vl-vit").integer_cost(), module("qwen2-vl-vit"), (1, 2, 4, 8), efficiency=0.4,
        slot_s=OVERHEAD / 1e9,
    )  # fmt: skip
    columns = {"images": Ragged.of(pages), "tokens": np.full(len(pages), 1000)}
    how = {"sequence_parallel": 8, "share_multiple_of": 4} if shared else {}
    phases = [Phase("vision", "images", cost, **how), Phase("llm", "tokens")]
    took = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        step = orchestrate(columns, phases, Topology.uniform(ranks, 8))
        took = min(took, time.perf_counter() - started)
    return step["vision"], step.streams["vision:in"].traffic(step.topology), took


def plan_row(pages: list[np.ndarray], ranks: int, samples: int) -> str:
    size = ranks * samples
    if len(pages) < size:
        again = np.random.default_rng(0).permutation(-(-size // len(pages)) * len(pages)) % len(pages)
        pages = [pages[i] for i in again]
    steps = [pages[first : first + size] for first in range(0, len(pages) - size + 1, size)]
    found = [[planned(step, ranks, shared) for step in steps] for shared in (True, False)]
    bound = sum(plan.lower_bound for plan, _, _ in found[0])
    even = sum(plan.home_loads.sum() / ranks for plan, _, _ in found[0])
    cells = [f"| {ranks:,} x {samples}", f"{bound / even:.3f}"]
    cells += [f"{sum(plan.makespan for plan, _, _ in runs) / bound:.4f}" for runs in found]
    for runs in found:
        moved = [(traffic.inter_node, traffic.total) for _, traffic, _ in runs]
        least = sum(plan.inter_node_bound for plan, _, _ in runs)
        cells += [f"{100 * part / sum(n for _, n in moved):.1f}" for part in (sum(n for n, _ in moved), least)]
    cells += [f"{1e3 * np.mean([took for _, _, took in runs]):.0f}" for runs in found]
    return " | ".join(cells) + " |"


def main() -> None:
    compile_at_once()
    table = pq.read_table(DATA)
    sides = zip(table["image_widths"].to_pylist(), table["image_heights"].to_pylist(), strict=True)
    pages = [qwen2vl_patches(np.array(widths, np.int64), np.array(heights, np.int64)) for widths, heights in sides]
    if sys.argv[1:] == ["plans"]:
        print("| ranks x samples | bound over even | ours | whole | % crosses | least | whole | least | ms | whole |")
        print("|---|" + "--:|" * 9)
        for ranks, samples in PLANS:
            print(plan_row(pages, ranks, samples), flush=True)
        return
    print("| ranks x samples | LPT | all shared | best threshold | ours | us | degrees 2, 4, ... | their gap | us |")
    print("|---|" + "--:|" * 8)
    for ranks, samples in CELLS:
        print(row(pages, ranks, samples), flush=True)


if __name__ == "__main__":
    main()
