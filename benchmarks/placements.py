"""The three placements side by side: what each moves, how even it leaves the ranks, and its time.

Run: python benchmarks/placements.py [lognormal | log | eps]. 8 ranks a node; items lie where they were drawn; volumes
are lengths (tokens); `relocate` with eps 1e-3. `gap`: makespan over the mean load, minus one. Shares are of all tokens;
`bound` is the proven least share across nodes under relocation's cap; `send` is the most any rank sends across nodes,
over the mean tokens of a rank. The time is of the placement alone, the partition that all share not included.
`eps`: few samples a rank, by how much longer a step may take; steps in which nothing has to cross count too.
"""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from workloads import lognormal_lengths

import solvers
from solvers._jit import compile_at_once

NODE = 8
EPS = 1e-3
SEEDS = 10
LOG = Path(__file__).parents[1] / "data" / "omni_mix_dev.parquet"
COLUMNS = ("text_tokens", "image_tokens", "audio_tokens")


def placements(
    costs: np.ndarray, lengths: np.ndarray, home: np.ndarray, groups: np.ndarray, nodes: np.ndarray
) -> dict[str, Callable[[], tuple[np.ndarray, int]]]:
    """By name: a function that returns the rank of each item, and a bound on what crosses (0: none)."""

    def rearranged() -> tuple[np.ndarray, int]:
        volumes = solvers.group_volumes(groups, home, lengths, len(nodes))
        return solvers.rearrange(volumes, nodes).rank_of_group[groups], 0

    def relocated() -> tuple[np.ndarray, int]:
        result = solvers.relocate(costs, home, nodes, volumes=lengths, groups=groups, eps=EPS)
        return result.rank_of_item, result.inter_node_bound

    return {
        "any": lambda: (groups, 0),
        "rearrange": rearranged,
        "relocate": relocated,
    }


def measured(lengths: np.ndarray, kind: str, num_ranks: int) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Per placement: gap %, across %, inside %, bound %, largest send, CPU milliseconds (the least of two runs)."""
    costs = lengths if kind == "linear" else 24576 * lengths + lengths * lengths
    home = np.repeat(np.arange(num_ranks), len(lengths) // num_ranks)
    nodes = np.arange(num_ranks) // NODE
    groups = solvers.partition(costs, num_ranks, time_budget=0.01, stop_at=0).group_of_item
    mean, tokens = int(costs.sum()) / num_ranks, int(lengths.sum())
    for name, place in placements(costs, lengths, home, groups, nodes).items():
        times = []
        for _ in range(2):
            started = time.process_time()
            rank, bound = place()
            times.append(1e3 * (time.process_time() - started))
        across = nodes[rank] != nodes[home]
        inside = (rank != home) & ~across
        sends = np.bincount(home[across], weights=lengths[across], minlength=num_ranks)
        makespan = np.bincount(rank, weights=costs, minlength=num_ranks).max()
        yield name, (
            100 * (makespan / mean - 1), 100 * lengths[across].sum() / tokens, 100 * lengths[inside].sum() / tokens,
            100 * bound / tokens, sends.max() * num_ranks / tokens, min(times),
        )  # fmt: skip


def row(label: str, batches: list[np.ndarray], kind: str, num_ranks: int) -> None:
    """Print one row a placement: median and, where they differ, worst."""
    found: dict[str, list[tuple[float, ...]]] = {}
    for lengths in batches:
        for name, figures in measured(lengths, kind, num_ranks):
            found.setdefault(name, []).append(figures)
    for name, figures in found.items():
        cells = []
        for k, (column, digits) in enumerate(zip(zip(*figures, strict=True), (3, 2, 2, 2, 2, 1), strict=True)):
            middle, worst = f"{np.median(column):.{digits}f}", f"{max(column):.{digits}f}"
            no_bound = k == 3 and name != "relocate"
            cells.append("" if no_bound else middle if middle == worst else f"{middle}, {worst}")
        print(f"| {label} | {kind} | {name} | {' | '.join(cells)} |", flush=True)


def header(label: str) -> None:
    columns = f"{label} | cost | placement | gap, % | across, % | inside, % | bound, % | send | ms"
    print(f"\n| {columns} |\n|{'--:|' * 9}")


def lognormal() -> None:
    header("ranks x samples")
    for num_ranks in (64, 256, 1024, 2560):
        for per_rank in (4, 16, 64):
            seeds = 3 if num_ranks * per_rank >= 16_384 else SEEDS
            batches = [lognormal_lengths(num_ranks * per_rank, seed) for seed in range(seeds)]
            for kind in ("linear", "quadratic"):
                row(f"{num_ranks:,} x {per_rank}", batches, kind, num_ranks)


def batches_of_log(num_ranks: int, per_rank: int) -> list[np.ndarray]:
    """Steps of consecutive rows of the log; ten of them, evenly spaced, or all there are."""
    table = pq.read_table(LOG, columns=list(COLUMNS))
    lengths = sum(table[name].to_numpy().astype(np.int64) for name in COLUMNS)
    size = num_ranks * per_rank
    chosen = np.unique(np.linspace(0, len(lengths) // size - 1, SEEDS).astype(np.int64))
    return [lengths[step * size : (step + 1) * size] for step in chosen.tolist() if (step + 1) * size <= len(lengths)]


def log() -> None:
    header("ranks x samples of the log")
    for num_ranks, per_rank in ((64, 4), (64, 16), (64, 64), (256, 4), (256, 16), (256, 64), (1024, 4), (1024, 16),
                                (1024, 64), (2560, 4), (2560, 16)):  # fmt: skip
        batches = batches_of_log(num_ranks, per_rank)
        for kind in ("linear", "quadratic"):
            row(f"{num_ranks:,} x {per_rank}", batches, kind, num_ranks)


def by_eps() -> None:
    print(
        "\n| ranks x samples of the log | cost | eps, % | across, %, mean and worst | bound, %, mean and worst | ms |"
    )
    print("|--:|---|--:|--:|--:|--:|")
    for num_ranks in (64, 256):
        batches = batches_of_log(num_ranks, 4)
        home, nodes = np.repeat(np.arange(num_ranks), 4), np.arange(num_ranks) // NODE
        for kind in ("linear", "quadratic"):
            for eps in (0.001, 0.005, 0.01, 0.02, 0.05):
                across, bound, times = [], [], []
                for lengths in batches:
                    costs = lengths if kind == "linear" else 24576 * lengths + lengths * lengths
                    groups = solvers.partition(costs, num_ranks, time_budget=0.01, stop_at=0).group_of_item
                    for _ in range(2):
                        started = time.process_time()
                        found = solvers.relocate(costs, home, nodes, volumes=lengths, groups=groups, eps=eps)
                        ms = 1e3 * (time.process_time() - started)
                    times.append(ms)
                    across.append(100 * found.inter_node_volume / int(lengths.sum()))
                    bound.append(100 * found.inter_node_bound / int(lengths.sum()))
                print(
                    f"| {num_ranks} x 4 | {kind} | {100 * eps:g} | {np.mean(across):.2f}, {max(across):.2f} | "
                    f"{np.mean(bound):.2f}, {max(bound):.2f} | {np.median(times):.1f}, {max(times):.1f} |",
                    flush=True,
                )


if __name__ == "__main__":
    compile_at_once()
    for table_of in {"lognormal": (lognormal,), "log": (log,), "eps": (by_eps,)}.get(
        "".join(sys.argv[1:]), (lognormal, log, by_eps)
    ):
        table_of()
