"""Exchanges of few items: what fits is found, also where the amounts set aside before were more than enough."""

import numpy as np
import pytest
from compiled import from_python

import solvers
from solvers.relocation._transfer import NO_SCORE, Pick, Side, exchange, make_pick

exchange = from_python(exchange)


def side(costs: list[int]) -> Side:
    cost = np.array(costs, dtype=np.int64)
    return Side(cost, cost.copy(), np.zeros_like(cost), np.arange(len(cost), dtype=np.int32))


def exchanged(give: list[int], take: list[int], low: int, high: int) -> Pick:
    """Exchange for the least volume, net amounts from `low` to `high`."""
    pick = make_pick()
    pick.now[["score", "low", "high", "target", "good", "by_volume"]] = NO_SCORE, low, high, high, -1, 1
    exchange(pick, side(give), len(give), side(take), len(take), False, 10**6)
    return pick


def test_two_for_one_where_less_is_to_come_back_than_goes():
    """Nothing was chosen yet, and from no score at all a negative amount was subtracted."""
    pick = exchanged([2, 3], [7], -3, -1)
    assert (pick.now[0]["score"], pick.chosen.tolist()) == (12, [0, 1, -1, 0, -1])


@pytest.mark.parametrize("seed", range(30))
def test_least_volume_of_pairs_for_one(seed: int):
    rng = np.random.default_rng(seed)
    give, take = (np.sort(rng.integers(1, 40, 6)).tolist() for _ in range(2))
    low, high = -int(rng.integers(1, 20)), int(rng.integers(0, 3))
    swaps = [g + t for g in give for t in take if low <= g - t <= high]
    pairs = [a + b + t for i, a in enumerate(give) for b in give[:i] for t in take if low <= a + b - t <= high]
    pick = exchanged(give, take, low, high)
    assert pick.now[0]["score"] <= min(swaps + pairs, default=NO_SCORE)


@pytest.mark.parametrize("seed", range(40))
def test_numbers_near_the_end_of_int64(seed: int):
    """What wraps around does so in silence, but not with ``NUMBA_DISABLE_JIT=1``: there any warning is an error."""
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(2, 40)), int(rng.integers(2, 9))
    costs, homes = rng.integers(0, 2**63 // n, n), rng.integers(0, m, n)
    nodes = rng.integers(0, max(1, m // 2), m) if seed % 2 else np.arange(m) // 2
    for given in ({"eps": 0}, {"eps": 0.5}, {"cap": int(costs.max()) + int(costs.sum()) // m}, {"cap": 2**63 - 1}):
        result = solvers.relocate(costs, homes, nodes, time_budget=5e-4, **given)
        solvers.check_relocation(costs, homes, nodes, result)
