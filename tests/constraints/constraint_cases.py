"""Random problems with any combination of constraints."""

from typing import Any

import numpy as np


def random_constraints(
    rng: np.random.Generator, n: int, m: int, largest: int = 9, rate: float = 0.35
) -> dict[str, Any]:
    """Each constraint with probability `rate`, at limits that are sometimes met and sometimes not."""

    def ints(low: int, high: int, *shape: int) -> Any:
        return rng.integers(low, high + 1, shape).tolist()

    def chosen() -> bool:
        return bool(rng.random() < rate)

    given: dict[str, Any] = {}
    if chosen():
        q = int(rng.integers(0, 3))
        given["sizes"] = ints(0, 6, n) if q == 0 else ints(0, 6, n, q)
        total = np.array(given["sizes"]).reshape(n, -1).sum(axis=0)
        cap = [int(t * (1 + rng.random()) / m) + 1 for t in total]
        shape = int(rng.integers(0, 3))
        if q == 0:
            given["caps"] = cap[0] if shape == 0 else [cap[0] + int(e) for e in rng.integers(-1, 3, m)]
        else:
            given["caps"] = cap if shape == 0 else [[c + int(rng.integers(0, 3)) for c in cap] for _ in range(m)]
        given["caps"] = np.maximum(given["caps"], 0).tolist()
    if chosen():
        given["min_items"] = int(rng.integers(0, max(1, n // m) + 1))
    if chosen():
        given["max_items"] = max(given.get("min_items", 0), int(rng.integers(1, -(-n // m) + 3)))
    if chosen() and "min_items" not in given and "max_items" not in given:
        given["equal_counts"] = True
    if chosen():
        table = rng.random((n, m)) < 0.7
        table[np.arange(n), rng.integers(0, m, n)] |= rng.random(n) < 0.97
        lists = [None if row.all() else np.flatnonzero(row).tolist() for row in table]
        given["allowed"] = table.tolist() if chosen() else lists
    if chosen():
        given["keep_together"] = ints(-2, max(1, n - 3), n)
    if chosen():
        given["initial_loads"] = ints(0, 2 * largest, m)
    if chosen():
        given["speeds"] = ints(1, 4, m)
    return given


def random_problem(
    rng: np.random.Generator, most_items: int = 6, most_groups: int = 3
) -> tuple[list[Any], int, dict[str, Any]]:
    """Costs (one or two components), groups and constraints."""
    n, m = int(rng.integers(1, most_items + 1)), int(rng.integers(1, most_groups + 1))
    given = random_constraints(rng, n, m)
    if rng.random() < 0.3:
        c = int(rng.integers(1, 3))
        if "initial_loads" in given:
            given["initial_loads"] = rng.integers(0, 12, (m, c)).tolist()
        given["objective"] = str(rng.choice(["sum", "max"]))
        return rng.integers(0, 10, (n, c)).tolist(), m, given
    return rng.integers(0, 10, n).tolist(), m, given
