"""Relocation: volume across nodes and inside them against what must move, loads over the cap, and time.

Run: python benchmarks/relocation.py [equal]. Ten seeds a row, 8 ranks a node, eps 50 ppm, volumes
are costs: median and worst. `across` is volume across nodes over its bound; `inside` is volume moved inside nodes over
the sum of max(0, load - cap) of the ranks at home, and over its own proven bound; `ms` is the CPU time of the call.
"""

import sys
import time

import numpy as np
from workloads import lognormal_lengths

import solvers

SEEDS = range(10)
NODE = 8


def cost_of(lengths: np.ndarray, kind: str) -> np.ndarray:
    return lengths if kind == "linear" else 24576 * lengths + lengths * lengths


def instance(num_ranks: int, per_rank: int, kind: str, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    costs = cost_of(lognormal_lengths(num_ranks * per_rank, seed), kind)
    return costs, np.repeat(np.arange(num_ranks), per_rank), np.arange(num_ranks) // NODE


def measured(costs: np.ndarray, home: np.ndarray, nodes: np.ndarray, **options: object) -> tuple:
    """Result and the least CPU seconds of three runs."""
    seconds = []
    for _ in range(3):
        started = time.process_time()
        result = solvers.relocate(costs, home, nodes, **options)
        seconds.append(time.process_time() - started)
    return result, min(seconds)


def spread(values: list[float], digits: int = 3) -> str:
    return f"{np.median(values):,.{digits}f}, {max(values):,.{digits}f}"


def ratio(value: int, bound: int) -> float:
    return value / bound if bound else (1.0 if value == 0 else float("inf"))


def row(num_ranks: int, per_rank: int, kind: str, method: str, equal_counts: bool) -> str:
    across, inside, inside_bound, ms, crossed, over, fell = [], [], [], [], [], 0, 0
    for seed in SEEDS:
        costs, home, nodes = instance(num_ranks, per_rank, kind, seed)
        result, seconds = measured(costs, home, nodes, eps=50e-6, method=method, equal_counts=equal_counts)
        excess = int(np.maximum(np.bincount(home, weights=costs, minlength=num_ranks) - result.cap, 0).sum())
        across.append(ratio(result.inter_node_volume, result.inter_bound))
        inside.append(ratio(result.intra_node_volume, excess))
        inside_bound.append(ratio(result.intra_node_volume, result.intra_bound))
        crossed.append(100 * result.inter_node_volume / int(costs.sum()))
        over += int((result.loads > result.cap).sum())
        fell += bool(result.fell_back)
        ms.append(1e3 * seconds)
    name = method + (", equal counts" if equal_counts else "")
    return (
        f"| {num_ranks:,} | {per_rank} | {kind} | {name} | {spread(crossed, 2)} | {spread(across)} | "
        f"{spread(inside)} | {spread(inside_bound)} | {over} | {fell} | {spread(ms, 1)} |"
    )


def table() -> None:
    print("| ranks | items a rank | cost | method | % across | across / bound | inside / excess | inside / bound | "
          "over cap | fell back | ms |")  # fmt: skip
    print("|--:|--:|---|---|--:|--:|--:|--:|--:|--:|--:|")
    for num_ranks in (64, 512, 2560):
        for per_rank in (4, 16, 60):
            for kind in ("linear", "quadratic"):
                print(row(num_ranks, per_rank, kind, "auto", False), flush=True)
                if per_rank == 60:
                    print(row(num_ranks, per_rank, kind, "auto", True), flush=True)
                print(row(num_ranks, per_rank, kind, "rearrange", False), flush=True)


def equal() -> None:
    """Equal counts: across over the bound, which ignores counts, by costs and by tokens."""
    print("| eps | items a rank | cost | volume | ranks | % across | across / bound | fell back | ms |")
    print("|--:|--:|---|---|" + "--:|" * 5)
    for eps, per_rank in ((1e-3, 60), (50e-6, 60), (1e-3, 16)):
        for kind, volume in (("linear", "cost"), ("quadratic", "cost"), ("quadratic", "tokens")):
            for num_ranks in (64, 512, 2560):
                across, crossed, ms, fell = [], [], [], 0
                for seed in SEEDS:
                    costs, home, nodes = instance(num_ranks, per_rank, kind, seed)
                    volumes = costs if volume == "cost" else lognormal_lengths(num_ranks * per_rank, seed)
                    result, seconds = measured(costs, home, nodes, volumes=volumes, eps=eps, equal_counts=True)
                    across.append(ratio(result.inter_node_volume, result.inter_bound))
                    crossed.append(100 * result.inter_node_volume / int(volumes.sum()))
                    fell += bool(result.fell_back)
                    ms.append(1e3 * seconds)
                print(f"| {eps:g} | {per_rank} | {kind} | {volume} | {num_ranks:,} | {spread(crossed, 2)} | "
                      f"{spread(across)} | {fell} | {spread(ms, 1)} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    equal() if sys.argv[1:] == ["equal"] else table()
