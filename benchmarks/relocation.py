"""Relocation: what crosses nodes and what moves inside them, against what must cross, loads over the cap, and time.

Run: python benchmarks/relocation.py. Ten seeds a row, 8 ranks a node, eps 0.1 %, volumes are tokens: median and worst.
`across` is volume across nodes over its bound; `ms` is the CPU time of the call.
"""

import time

import numpy as np
from workloads import lognormal_lengths

import solvers

SEEDS = range(10)
NODE = 8
EPS = 0.001


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


def row(num_ranks: int, per_rank: int, kind: str, limit: str) -> str:
    across, crossed, inside, ms, over, fell = [], [], [], [], 0, 0
    for seed in SEEDS:
        costs, home, nodes = instance(num_ranks, per_rank, kind, seed)
        tokens = lognormal_lengths(num_ranks * per_rank, seed)
        given: dict[str, object] = {"equal_counts": True} if limit == "equal counts" else {}
        if limit == "token cap":
            given = {"sizes": tokens, "caps": int(max(tokens.max(), 1.1 * tokens.sum() / num_ranks))}
        result, seconds = measured(costs, home, nodes, volumes=tokens, eps=EPS, **given)
        across.append(ratio(result.inter_node_volume, result.inter_node_bound))
        crossed.append(100 * result.inter_node_volume / int(tokens.sum()))
        inside.append(100 * result.intra_node_volume / int(tokens.sum()))
        over += int((result.loads > result.cap).sum())
        fell += bool(result.fell_back)
        ms.append(1e3 * seconds)
    return (
        f"| {num_ranks:,} | {per_rank} | {kind} | {limit} | {spread(crossed, 2)} | {spread(across)} | "
        f"{spread(inside, 1)} | {over} | {fell} | {spread(ms, 1)} |"
    )


def table() -> None:
    print("| ranks | items a rank | cost | limit | % across | across / bound | % inside | over cap | fell back | ms |")
    print("|--:|--:|---|---|--:|--:|--:|--:|--:|--:|")
    for num_ranks in (64, 512, 2560):
        for per_rank in (4, 16, 60):
            for kind in ("linear", "quadratic"):
                for limit in ("free", "equal counts", "token cap"):
                    print(row(num_ranks, per_rank, kind, limit), flush=True)


if __name__ == "__main__":
    table()
