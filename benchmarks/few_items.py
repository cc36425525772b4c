"""Few items a group: how many lognormal batches `auto` proves optimal at each budget, and its worst gap.

Run: python benchmarks/few_items.py. Forty seeds a cell; batches whose largest length alone sets the bound are left out.
"""

import numpy as np

import balancer
import solvers

BUDGETS = (0.0001, 0.001, 0.01, 0.1)


def batches(sigma: float, num_groups: int, items_a_group: int) -> list[np.ndarray]:
    """Lengths of mean 2,000, clipped at 32,768, that are not trivial."""
    found = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        lengths = rng.lognormal(np.log(2000) - sigma**2 / 2, sigma, num_groups * items_a_group)
        costs = np.clip(lengths.astype(np.int64), 1, 32768)
        if costs.max() < -(-costs.sum() // num_groups):
            found.append(costs)
    return found


def main() -> None:
    balancer.warmup()
    heads = " | ".join(f"{1e3 * budget:g} ms: proven, worst ppm" for budget in BUDGETS)
    print(f"| sigma | groups | items a group | batches | {heads} |\n|--:|--:|--:|--:|" + "--:|" * len(BUDGETS))
    for sigma in (0.5, 1.0):
        for num_groups in (8, 64):
            for items_a_group in (3, 4, 5, 6, 8, 16):
                instances = batches(sigma, num_groups, items_a_group)
                if not instances:
                    continue
                cells = []
                for budget in BUDGETS:
                    gaps = [solvers.auto(costs, num_groups, time_budget=budget).gap for costs in instances]
                    cells.append(f"{sum(gap == 0 for gap in gaps)}, {1e6 * max(gaps):,.0f}")
                print(f"| {sigma} | {num_groups} | {items_a_group} | {len(instances)} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
