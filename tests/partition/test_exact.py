"""CP-SAT: optimal where it says so, an incumbent with a proof where it ran out of time. Few runs: each takes a while."""

import numpy as np
import oracles
import pytest

import solvers
from solvers import SolveStatus

# On these no closed-form bound reaches the optimum, so that only a search can prove it.
ONLY_SEARCH_PROVES = [
    ([22, 12, 9, 6, 18, 7, 10, 7], 4, False),
    ([17, 26, 14, 18, 6, 23, 13, 23], 3, False),
    ([16, 2, 19, 17, 3, 28, 27], 2, True),
    ([17, 14, 8, 18, 28, 26, 9, 24], 4, True),
]


@pytest.mark.parametrize(("costs", "num_groups", "equal_counts"), ONLY_SEARCH_PROVES)
def test_search_proves_what_bounds_cannot(costs: list[int], num_groups: int, equal_counts: bool) -> None:
    optimum = oracles.optimal_makespan(costs, num_groups, equal_counts)
    assert oracles.lower_bound(costs, num_groups, equal_counts)[0] < optimum
    result = solvers.exact(costs, num_groups, equal_counts=equal_counts, time_budget=5)
    assert (result.makespan, result.lower_bound) == (optimum, optimum)
    assert (result.status, result.bound_name) == (SolveStatus.OPTIMAL, "cp_sat")
    solvers.check_partition(costs, result, num_groups=num_groups, equal_counts=equal_counts)


def test_a_factor_scales_the_optimum() -> None:
    costs, num_groups, _ = ONLY_SEARCH_PROVES[0]
    optimum = oracles.optimal_makespan(costs, num_groups)
    assert solvers.exact([1000 * c for c in costs], num_groups, time_budget=5).makespan == 1000 * optimum


def cut_machines(num_groups: int, pieces: int, length: int, seed: int) -> list[int]:
    """Machines of one length, each cut at random: the optimum is that length, and no machine has a moment to spare."""
    rng = np.random.default_rng(seed)
    costs: list[int] = []
    for _ in range(num_groups):
        cuts = np.sort(rng.choice(np.arange(1, length), pieces - 1, replace=False))
        costs += np.diff([0, *cuts, length]).tolist()
    return rng.permutation(costs).tolist()


@pytest.mark.parametrize("equal_counts", [False, True])
def test_planted_optimum(equal_counts: bool) -> None:
    costs = cut_machines(num_groups=6, pieces=3, length=200, seed=4)
    assert solvers.auto(costs, 6, equal_counts=equal_counts).makespan > 200  # or the search would not be needed
    result = solvers.exact(costs, 6, equal_counts=equal_counts, time_budget=20)
    assert (result.makespan, result.status) == (200, SolveStatus.OPTIMAL)
    solvers.check_partition(costs, result, equal_counts=equal_counts)


@pytest.mark.parametrize("equal_counts", [False, True])
@pytest.mark.parametrize("budget", [1e-6, 0.05])
def test_out_of_time_returns_an_incumbent_with_its_bound(budget: float, equal_counts: bool) -> None:
    costs = cut_machines(num_groups=30, pieces=3, length=10**6, seed=1)
    result = solvers.exact(costs, 30, equal_counts=equal_counts, time_budget=budget)
    solvers.check_partition(costs, result, num_groups=30, equal_counts=equal_counts)
    assert result.status in (SolveStatus.TIME_LIMIT, SolveStatus.OPTIMAL)
    assert result.lower_bound >= 10**6
    assert result.makespan <= solvers.lpt(costs, 30, equal_counts=equal_counts).makespan
    assert result.runtime_s < 5


def test_costs_that_cp_sat_would_refuse() -> None:
    """Its sums must stay clear of the end of int64; the start that local search finds is the answer then."""
    costs = [3 * 2**58, 3 * 2**58, 2**59, 2**59, 2**59]
    result = solvers.exact(costs, 2, time_budget=1)
    solvers.check_partition(costs, result)
    assert result.makespan == 3 * 2**59 == result.lower_bound
    costs = [2**60 + c for c in (9, 8, 7)] + [1]
    result = solvers.exact(costs, 2, time_budget=1)
    solvers.check_partition(costs, result)
    assert result.makespan == oracles.optimal_makespan(costs, 2)


def test_no_search_where_the_start_is_optimal(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    module = sys.modules[solvers.exact.__module__]
    monkeypatch.setattr(module, "_load_cp_model", lambda: pytest.fail("CP-SAT was called"))
    assert solvers.exact([5, 4, 3, 3, 3], 2, time_budget=5).status is SolveStatus.OPTIMAL
    assert solvers.exact([], 2, time_budget=5).makespan == 0
