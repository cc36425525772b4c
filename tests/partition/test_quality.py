"""What the methods are worth, on fixed seeds and without a clock: no change may make them worse than this."""

import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st

import solvers
from solvers import SolveStatus


def lengths(count: int, sigma: float = 1.0, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).lognormal(6.5, sigma, count).astype(np.int64) + 1


def long_tail_quadratic() -> np.ndarray:
    """Costs l^2 of lengths most of which are short: the largest is well below the mean load."""
    return lengths(1024, sigma=1.0, seed=3).clip(1, 12_000) ** 2


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("power", [1, 2])
def test_karmarkar_karp_with_equal_counts_beats_its_parts(seed: int, power: int) -> None:
    costs = lengths(512, seed=seed) ** power
    found = solvers.karmarkar_karp(costs, 16, equal_counts=True, time_budget=1e-9)  # too little for any swap
    assert found.makespan <= solvers.bldm(costs, 16, equal_counts=True).makespan
    assert found.makespan <= solvers.lpt(costs, 16, equal_counts=True).makespan


def test_bldm_fails_on_long_tails_where_karmarkar_karp_does_not() -> None:
    """The reason why the equal-counts method here is not the one of public trainers."""
    costs = long_tail_quadratic()
    assert solvers.bldm(costs, 16, equal_counts=True).gap > 0.10
    assert solvers.karmarkar_karp(costs, 16, equal_counts=True).gap < 0.01


def test_bldm_beats_lpt_on_bounded_tails() -> None:
    costs = np.random.default_rng(0).integers(400, 600, 512)
    assert solvers.bldm(costs, 16).makespan < solvers.lpt(costs, 16, equal_counts=True).makespan


@pytest.mark.parametrize(("count", "num_groups"), [(60, 8), (200, 7), (1000, 64), (300, 150)])
@pytest.mark.parametrize("sigma", [0.5, 1.5])
@pytest.mark.parametrize("equal_counts", [False, True])
def test_auto_is_never_worse_than_what_it_starts_from(
    count: int, num_groups: int, sigma: float, equal_counts: bool
) -> None:
    costs = lengths(count, sigma)
    found = solvers.auto(costs, num_groups, equal_counts=equal_counts)
    assert found.makespan <= solvers.lpt(costs, num_groups, equal_counts=equal_counts).makespan
    assert found.makespan <= solvers.karmarkar_karp(costs, num_groups, equal_counts=equal_counts).makespan


def test_auto_is_optimal_on_lognormal_lengths() -> None:
    result = solvers.auto(lengths(4096), 64)
    assert result.gap == 0.0
    assert result.status is SolveStatus.OPTIMAL
    assert solvers.lpt(lengths(4096), 64).gap > 0  # LPT alone is not


def test_auto_gap_with_equal_counts_on_lognormal_lengths() -> None:
    assert solvers.auto(lengths(1024), 16, equal_counts=True).gap < 1e-4
    assert solvers.lpt(lengths(1024), 16, equal_counts=True).gap > 1e-4


def test_a_budget_is_work_and_not_a_clock() -> None:
    """More budget is never worse; the smallest still is LPT; and what it buys does not depend on the day."""
    costs, num_groups = lengths(300, 1.5, seed=2) ** 2, 100
    budgets = [1e-12, 1e-5, 1e-4, 1e-3, 1e-2]
    results = [solvers.auto(costs, num_groups, equal_counts=True, time_budget=budget) for budget in budgets]
    makespans = [result.makespan for result in results]
    assert makespans == sorted(makespans, reverse=True)
    assert results[0].makespan <= solvers.lpt(costs, num_groups, equal_counts=True).makespan
    assert results[0].status in (SolveStatus.TIME_LIMIT, SolveStatus.OPTIMAL)
    assert results == [solvers.auto(costs, num_groups, equal_counts=True, time_budget=b) for b in budgets]


def test_little_budget_says_so() -> None:
    costs = lengths(400, 1.0, seed=1)
    assert solvers.auto(costs, 16, time_budget=1e-9).status is SolveStatus.TIME_LIMIT
    kk = solvers.karmarkar_karp(costs, 16, equal_counts=True, time_budget=1e-9)
    assert kk.status is SolveStatus.TIME_LIMIT


def test_too_little_budget_for_the_second_method_says_so() -> None:
    """Local search ended by itself, at a gap; differencing was still to come, and 2 microseconds do not buy it."""
    costs = np.random.default_rng(1).lognormal(6, 1, 30).astype(np.int64) + 1
    found = solvers.auto(costs, 10, time_budget=2e-6)
    assert found.gap > 0
    assert found.status is SolveStatus.TIME_LIMIT
    assert solvers.auto(costs, 10, time_budget=1.0).status is not SolveStatus.TIME_LIMIT


@given(
    costs=st.lists(st.integers(1, 60), min_size=2, max_size=8), num_groups=st.integers(2, 4), equal_counts=st.booleans()
)
def test_auto_is_close_to_optimal_on_small_cases(costs: list[int], num_groups: int, equal_counts: bool) -> None:
    """No move and no swap helps: then at two items a group or more the makespan is within 4/3 of the optimum."""
    optimum = oracles.optimal_makespan(costs, num_groups, equal_counts)
    found = solvers.auto(costs, num_groups, equal_counts=equal_counts).makespan
    if not equal_counts:
        assert 3 * num_groups * found <= (4 * num_groups - 1) * optimum
    assert found < 2 * optimum or optimum == 0
