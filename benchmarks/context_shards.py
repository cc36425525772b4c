"""Context shards beside the layouts of others: what travels, over tokens, how even work is, and the proven bound.

    python benchmarks/context_shards.py [table] [budget] [goals] [kinds] [nodes] [windows]

Packs are drawn from data/prolong_documents.parquet with replacement until full, the last document cut; 24 a row. All
figures but times are the same on every machine; times are of this thread's processor.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

import solvers
from solvers._jit import compile_at_once
from solvers.context._measure import Rows, measure
from solvers.context._problem import as_problem
from solvers.context.layouts import RULES

DATA = Path(__file__).parent.parent / "data"
PACKS = 24
CASES = ((17, 8), (17, 16), (17, 64), (19, 16), (19, 64), (20, 16), (20, 64))  # two to the power of tokens, ranks


def packs(tokens: int, count: int = PACKS) -> Iterator[np.ndarray]:
    lengths = pq.read_table(DATA / "prolong_documents.parquet")["text_tokens"].to_numpy().astype(np.int64)
    rng = np.random.default_rng(1)
    for _ in range(count):
        drawn: list[int] = []
        while sum(drawn) < tokens:
            drawn.append(min(int(lengths[rng.integers(len(lengths))]), tokens - sum(drawn)))
        yield np.array(drawn)


def row(name: str, figures: list[tuple[float, ...]]) -> None:
    """Print means of received, bound, worst rank over the mean, crossing, ranges and ms; and the largest work."""
    received, bound, work, worst, crossing, ranges, ms = np.array(figures).T
    print(f"  {name:14} received {received.mean():7.3f} T, bound {bound.mean():6.3f}; work {work.mean():.3f}, at most "
          f"{work.max():.3f}; worst rank {worst.mean():5.2f}; crossing {crossing.mean():6.3f} T; ranges "
          f"{ranges.mean():6.1f}; {np.median(ms):6.1f} ms", flush=True)  # fmt: skip


def of_rule(name: str, pack: np.ndarray, ranks: int, node: int | None) -> tuple[float, ...]:
    problem, started = as_problem(pack, ranks, node, 128, None, 0, False), time.thread_time()
    rows = RULES[name](problem)
    seconds, found = time.thread_time() - started, measure(problem, rows)
    total, both = found.received.sum(), np.maximum(found.received, found.sent).max()
    even = found.work.max() / found.work.mean()
    return (total / pack.sum(), np.nan, even, both * ranks / max(1, total), found.crossing / pack.sum(),
            found.ranges.mean(), 1e3 * seconds)  # fmt: skip


def of_search(pack: np.ndarray, ranks: int, node: int | None, budget: float) -> tuple[float, ...]:
    started = time.thread_time()
    found = solvers.context_shards(pack, ranks, ranks_per_node=node, time_budget=budget)
    seconds, tokens = time.thread_time() - started, pack.sum()
    return (found.total_received / tokens, found.lower_bound / tokens, found.imbalance_ratio,
            found.worst_rank * ranks / max(1, found.total_received), found.crossing / tokens, found.ranges.mean(),
            1e3 * seconds)  # fmt: skip


def crossing(pack: np.ndarray, ranks: int) -> float:
    """What crosses nodes of 8 where the search knows of none."""
    found = solvers.context_shards(pack, ranks)
    rows = Rows(found.rank, found.document, found.start, found.stop)
    problem = as_problem(pack, ranks, 8, 128, None, 0, False)
    return measure(problem, rows).crossing / int(pack.sum())


def table() -> None:
    """The rules of others and the search, by size of the pack and ranks."""
    for power, ranks in CASES:
        print(f"{2 ** (power - 10)}K on {ranks}:")
        for name in RULES:
            row(name, [of_rule(name, pack, ranks, None) for pack in packs(2**power)])
        row("search", [of_search(pack, ranks, None, 0.05) for pack in packs(2**power)])


def budget() -> None:
    """What more work finds."""
    for power, ranks in CASES:
        print(f"{2 ** (power - 10)}K on {ranks}:")
        for seconds in (0.005, 0.02, 0.05, 1):
            row(f"{seconds} s", [of_search(pack, ranks, None, seconds) for pack in packs(2**power)])


def goals() -> None:
    """The first six packs of each row alone."""
    for power, ranks in CASES:
        row(f"{2 ** (power - 10)}K on {ranks}", [of_search(pack, ranks, None, 0.05) for pack in packs(2**power, 6)])


def kinds() -> None:
    """How many of 500 packs keep the cap of 1.02: few tokens a rank, all masks; those up to 32K tokens are checked."""
    rng, even = np.random.default_rng(2), 0
    for _ in range(500):
        ranks, mask = int(2 ** rng.integers(1, 7)), ("full", "window512", "chunk1024")
        tokens, masks = ranks * int(2 ** rng.integers(10, 14)), {mask[rng.integers(3)]: 1, mask[rng.integers(3)]: 2}
        drawn = np.minimum(rng.lognormal(6.5, 1.3, tokens).astype(np.int64) + 1, tokens)
        ends = np.append(np.cumsum(drawn)[np.cumsum(drawn) < tokens], tokens)
        pack = np.diff(ends, prepend=0)
        found = solvers.context_shards(pack, ranks, masks=masks)
        if tokens <= 2**15:
            solvers.check_context_shards(pack, found, num_ranks=ranks, masks=masks)
        mean = found.work.sum(axis=1) / ranks
        even += bool((found.work.max(axis=1) <= np.maximum(1.02 * mean, found.bound_work)).all())
    print(f"of 500 packs {even} keep the cap", flush=True)


def nodes() -> None:
    """Ranks on nodes of 8."""
    for power, ranks in CASES[1:]:
        print(f"{2 ** (power - 10)}K on {ranks}, nodes of 8:")
        row("per_document", [of_rule("per_document", pack, ranks, 8) for pack in packs(2**power)])
        for name, node in (("without nodes", None), ("search", 8)):
            found = []
            for pack in packs(2**power):
                figures = list(of_search(pack, ranks, node, 0.05))
                if node is None:
                    figures[4] = crossing(pack, ranks)
                found.append(tuple(figures))
            row(name, found)


def windows() -> None:
    """Layers with a window beside full ones: both loads even, one sum of what travels."""
    for power, ranks in CASES:
        ratios, received, bound = [], [], []
        for pack in packs(2**power):
            found = solvers.context_shards(pack, ranks, masks={"full": 1, "window1024": 5})
            ratios.append(found.work.max(axis=1) / found.work.mean(axis=1))
            received.append(found.total_received / pack.sum())
            bound.append(found.lower_bound / pack.sum())
        full, window = np.max(ratios, axis=0)
        print(f"{2 ** (power - 10)}K on {ranks}: work of full layers at most {full:.3f}, of windows {window:.3f}; "
              f"received {np.mean(received):.3f} T in six layers, bound {np.mean(bound):.3f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    compile_at_once()
    solvers.context_shards(next(packs(2**14, 1)), 4, ranks_per_node=2, time_budget=0.001)
    parts = {"table": table, "budget": budget, "goals": goals, "kinds": kinds, "nodes": nodes, "windows": windows}
    for part in sys.argv[1:] or parts:
        parts[part]()
