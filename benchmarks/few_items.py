"""Few items a group: how many batches `auto` proves optimal at each budget, and its worst gap.

Run: python benchmarks/few_items.py. Lognormal lengths, forty seeds a cell (ten on 512 groups), and consecutive batches
of the real logs in data/; batches whose largest length alone sets the bound are left out.
"""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

import balancer
import solvers

BUDGETS = (0.0001, 0.001, 0.01, 0.1, 1.0)
DATA = Path(__file__).parent.parent / "data"
LOGS = {"omni_mix": "omni_mix_dev.parquet", "docs": "docs_msdev_interleaved.parquet"}


def lognormal(sigma: float, num_groups: int, items_a_group: int) -> list[np.ndarray]:
    """Lengths of mean 2,000, clipped at 32,768."""
    found = []
    for seed in range(40 if num_groups < 512 else 10):
        rng = np.random.default_rng(seed)
        lengths = rng.lognormal(np.log(2000) - sigma**2 / 2, sigma, num_groups * items_a_group)
        found.append(np.clip(lengths.astype(np.int64), 1, 32768))
    return found


def real(log: str, num_groups: int, items_a_group: int) -> list[np.ndarray]:
    """Tokens into the LLM of consecutive rows; at most forty batches, spread over the log."""
    table = pq.read_table(DATA / LOGS[log])
    names = [name for name in ("text_tokens", "image_tokens", "audio_tokens") if name in table.column_names]
    tokens = sum(table[name].to_numpy().astype(np.int64) for name in names)
    size = num_groups * items_a_group
    batches = [tokens[start : start + size] for start in range(0, len(tokens) - size + 1, size)]
    return batches[:: max(1, len(batches) // 40)][:40]


def not_trivial(batches: list[np.ndarray], num_groups: int) -> list[np.ndarray]:
    """Leave out batches whose largest item is at least the mean load."""
    return [costs for costs in batches if costs.max() < -(-costs.sum() // num_groups)]


def row(name: str, num_groups: int, items_a_group: int, batches: list[np.ndarray]) -> None:
    """Print one line of the table, if any batch is left."""
    instances = not_trivial(batches, num_groups)
    if not instances:
        return
    cells = []
    for budget in BUDGETS:
        gaps = [solvers.partition(costs, num_groups, time_budget=budget, stop_at=0).gap for costs in instances]
        cells.append(f"{sum(gap == 0 for gap in gaps)}, {1e6 * max(gaps):,.0f}")
    print(f"| {name} | {num_groups} | {items_a_group} | {len(instances)} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    balancer.warmup()
    heads = " | ".join(f"{1e3 * budget:g} ms: proven, worst ppm" for budget in BUDGETS)
    print(f"| lengths | groups | items a group | batches | {heads} |\n|---|--:|--:|--:|" + "--:|" * len(BUDGETS))
    for sigma in (0.5, 1.0):
        for num_groups in (8, 64, 512):
            for items_a_group in (3, 4, 5, 6, 8, 16) if num_groups < 512 else (8, 16):
                batches = lognormal(sigma, num_groups, items_a_group)
                row(f"sigma {sigma}", num_groups, items_a_group, batches)
    for log in LOGS:
        for num_groups in (8, 64, 512):
            for items_a_group in (8, 16):
                row(log, num_groups, items_a_group, real(log, num_groups, items_a_group))


if __name__ == "__main__":
    main()
