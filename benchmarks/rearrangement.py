"""Finished groups to ranks on lognormal lengths after LPT, eight ranks a node: what crosses, and the time to know it.

Run: python benchmarks/rearrangement.py. Five seeds, medians. Milliseconds are of processor time, the best of two calls,
for `ilp` one, after compilation. Every result is checked.
"""

import statistics
import time

import numpy as np
from workloads import lognormal_lengths

import solvers
from solvers._jit import compile_at_once

RANKS_PER_NODE = 8
SHAPES = [(64, 4), (64, 16), (64, 64), (512, 16), (2560, 4), (2560, 16), (2560, 64)]
ASKED = [("greedy", "sum"), ("sum", "sum"), ("ilp", "sum"), ("ilp", "max")]


def measured(ranks: int, per_rank: int, method: str, objective: str, seed: int) -> tuple[float, ...]:
    """Return what crosses and what moves inside, in percent; the largest send, in mean shares; gap, percent; ms."""
    lengths = lognormal_lengths(ranks * per_rank, seed)
    groups = solvers.partition(lengths, ranks, "lpt").group_of_item
    volumes = solvers.group_volumes(groups, np.repeat(np.arange(ranks), per_rank), lengths, ranks)
    nodes, seconds = np.arange(ranks) // RANKS_PER_NODE, []
    for _ in range(1 if method == "ilp" else 2):
        started = time.process_time()
        found = solvers.rearrange(volumes, nodes, method, objective=objective)
        seconds.append(time.process_time() - started)
    solvers.check_rearrangement(volumes, nodes, found)
    total, value = volumes.total / 100, found.largest_send if objective == "max" else found.inter_node_volume
    return (
        found.inter_node_volume / total, found.intra_node_volume / total, found.largest_send * ranks / volumes.total,
        100 * (value / max(found.lower_bound, 1) - 1), 1000 * min(seconds),
    )  # fmt: skip


def main() -> None:
    compile_at_once()
    print("| ranks x samples | method | objective | crosses, % | inside, % | largest send | gap, % | ms |")
    print("|--:|---|---|--:|--:|--:|--:|--:|")
    for ranks, per_rank in SHAPES:
        for method, objective in ASKED:
            if method == "ilp" and ranks > 64:  # a variable for each group and node
                continue
            found = [measured(ranks, per_rank, method, objective, seed) for seed in range(5)]
            crosses, inside, send, gap, ms = map(statistics.median, zip(*found, strict=True))
            proven = "" if method == "greedy" else f"{gap:.2g}"
            print(
                f"| {ranks:,} x {per_rank} | `{method}` | {objective} | {crosses:.2f} | {inside:.2f} | {send:.3f} "
                f"| {proven} | {ms:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
