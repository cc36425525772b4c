"""What the methods are worth, on fixed seeds and without a clock: no change may make them worse than this."""

import dataclasses

import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st

import solvers
from solvers import SolveStatus
from solvers.arguments import as_share


def lengths(count: int, sigma: float = 1.0, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).lognormal(6.5, sigma, count).astype(np.int64) + 1


@pytest.mark.parametrize(("count", "num_groups"), [(60, 8), (200, 7), (1000, 64), (300, 150)])
@pytest.mark.parametrize("sigma", [0.5, 1.5])
@pytest.mark.parametrize("equal_counts", [False, True])
def test_auto_is_at_most_a_thousandth_worse_than_any_other(
    count: int, num_groups: int, sigma: float, equal_counts: bool
) -> None:
    costs = lengths(count, sigma)
    found = solvers.partition(costs, num_groups, equal_counts=equal_counts, stop_at=0)
    assert found.makespan <= solvers.partition(costs, num_groups, "lpt", equal_counts=equal_counts).makespan
    if not equal_counts:
        assert found.makespan <= 1.001 * solvers.partition(costs, num_groups, "karmarkar_karp").makespan


def test_auto_is_optimal_on_lognormal_lengths() -> None:
    result = solvers.partition(lengths(4096), 64, stop_at=0)
    assert result.gap == 0.0
    assert result.status is SolveStatus.OPTIMAL
    assert solvers.partition(lengths(4096), 64, "lpt").gap > 0  # LPT alone is not


def test_auto_gap_with_equal_counts_on_lognormal_lengths() -> None:
    assert solvers.partition(lengths(1024), 16, equal_counts=True, stop_at=0).gap < 1e-4
    assert solvers.partition(lengths(1024), 16, "lpt", equal_counts=True).gap > 1e-4


def test_a_budget_is_work_and_not_a_clock() -> None:
    """More budget is never worse; the smallest still is LPT; and what it buys does not depend on the day."""
    costs, num_groups = lengths(300, 1.5, seed=2) ** 2, 100
    budgets = [1e-12, 1e-5, 1e-4, 1e-3, 1e-2]
    asked = {"equal_counts": True, "stop_at": 0}
    results = [solvers.partition(costs, num_groups, time_budget=budget, **asked) for budget in budgets]
    makespans = [result.makespan for result in results]
    assert makespans == sorted(makespans, reverse=True)
    assert results[0].makespan <= solvers.partition(costs, num_groups, "lpt", equal_counts=True).makespan
    assert results == [solvers.partition(costs, num_groups, time_budget=budget, **asked) for budget in budgets]


@pytest.mark.parametrize("limits", [{}, {"equal_counts": True}, {"min_items": 1}], ids=["free", "equal", "least"])
@pytest.mark.parametrize("method", ["auto", "lpt"])
def test_a_status_says_what_is_proven(method: str, limits: dict[str, object]) -> None:
    """Whatever the method, and however little it was allowed to do: what counts is the gap that was asked for."""
    costs, seen = lengths(400, 1.0, seed=1), set()
    for stop_at in (0, "0.01%", "1%", "90%"):
        found = solvers.partition(costs, 16, method, 1e-9, stop_at=stop_at, **limits)
        near = found.gap <= float(as_share("stop_at", stop_at))
        expected = SolveStatus.OPTIMAL if found.gap == 0 else SolveStatus.WITHIN if near else SolveStatus.FEASIBLE
        assert found.status is expected
        solvers.check_partition(costs, found, stop_at=stop_at, **limits)
        seen.add(found.status)
        if expected is not SolveStatus.OPTIMAL:
            other = SolveStatus.FEASIBLE if near else SolveStatus.WITHIN
            with pytest.raises(solvers.CertificateError, match=f"status is {other.value} with makespan"):
                solvers.check_partition(costs, dataclasses.replace(found, status=other), stop_at=stop_at, **limits)
    assert SolveStatus.WITHIN in seen
    assert SolveStatus.FEASIBLE in seen or method == "auto"


@given(
    costs=st.lists(st.integers(1, 60), min_size=2, max_size=8), num_groups=st.integers(2, 4), equal_counts=st.booleans()
)
def test_auto_is_close_to_optimal_on_small_cases(costs: list[int], num_groups: int, equal_counts: bool) -> None:
    """No move and no swap helps: then at two items a group or more the makespan is within 4/3 of the optimum."""
    optimum = oracles.optimal_makespan(costs, num_groups, equal_counts)
    found = solvers.partition(costs, num_groups, equal_counts=equal_counts).makespan
    if not equal_counts:
        assert 3 * num_groups * found <= (4 * num_groups - 1) * optimum
    assert found < 2 * optimum or optimum == 0
