"""The default method: never worse for more work, ends where it should, and what once went wrong."""

import dataclasses
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples

import solvers
from solvers import SolveStatus
from solvers.arguments import as_share


def test_search_goes_far_below_what_lpt_leaves():
    """Quadratic costs, 4,096 on 64: LPT is hundreds of parts per million over the bound."""
    lengths = np.clip(np.random.default_rng(5).lognormal(7.1, 1, 4096), 1, 32768).astype(np.int64)
    costs = 24576 * lengths + lengths**2
    assert solvers.partition(costs, 64, "lpt").gap > 1e-4
    assert solvers.partition(costs, 64, stop_at=0).gap < 1e-6


def test_eight_items_a_group_are_mostly_proven():
    """64 groups: swaps mostly end one unit off, and groups that are divided anew end at the bound."""
    lengths = [np.random.default_rng(seed).lognormal(7.5, 0.5, 512).astype(np.int64) for seed in range(10)]
    assert sum(solvers.partition(costs, 64, stop_at=0).gap == 0 for costs in lengths) >= 9


def test_a_few_items_of_cost_zero_take_no_quadratic_time():
    """Once sorted by a quicksort that is quadratic on nearly sorted keys."""
    num_items = 40_000
    costs = np.arange(num_items, 0, -1)
    costs[-2:] = 0
    result = solvers.partition(costs, num_items, "lpt")
    assert np.bincount(result.group_of_item, minlength=num_items).max() == 1


@settings(max_examples=examples(25))
@given(costs=st.lists(st.integers(300, 1500), min_size=8, max_size=40), num_groups=st.integers(2, 14))
def test_more_budget_is_never_worse_where_groups_hold_few_items(costs, num_groups):
    budgets = (1e-5, 1e-4, 1e-3, 5e-3)
    results = [solvers.partition(costs, num_groups, time_budget=budget, stop_at=0) for budget in budgets]
    makespans = [result.makespan for result in results]
    assert makespans == sorted(makespans, reverse=True)
    for result in results:
        solvers.check_partition(costs, result, stop_at=0)


@pytest.mark.parametrize("scale", [2**54, 2**56])
def test_it_ends_where_costs_are_too_large_for_every_search_that_closes_gaps(scale):
    costs = np.array([13, 11, 11, 9, 8, 8, 5, 5, 3], dtype=np.int64) * scale + np.arange(9)
    result = solvers.partition(costs, 4, time_budget=0.01, stop_at=0)
    solvers.check_partition(costs, result, stop_at=0)


@settings(max_examples=examples(40))
@given(
    costs=st.lists(st.integers(0, 10**6), max_size=60),
    num_groups=st.integers(1, 12),
    equal_counts=st.booleans(),
    stop_at=st.sampled_from([0, 0.001, "0.1%", "5%", 0.5]),
)
def test_a_search_that_may_end_at_a_gap_keeps_every_promise(costs, num_groups, equal_counts, stop_at):
    found = solvers.partition(costs, num_groups, stop_at=stop_at, equal_counts=equal_counts)
    solvers.check_partition(costs, found, equal_counts=equal_counts, stop_at=stop_at)
    on = solvers.partition(costs, num_groups, stop_at=0, equal_counts=equal_counts)
    assert found.makespan >= on.makespan
    share = (
        Fraction("0.001")
        if stop_at == "0.1%"
        else Fraction(str(stop_at).rstrip("%")) / (100 if "%" in str(stop_at) else 1)
    )
    proven = found.makespan <= (1 + share) * found.lower_bound
    if not proven and found.makespan != on.makespan:  # it gained nothing for some turns
        assert equal_counts
        more = solvers.partition(costs, num_groups, stop_at=stop_at, equal_counts=True, time_budget=0.1)
        assert more.group_of_item.tolist() == found.group_of_item.tolist()


@pytest.mark.parametrize("limits", [{"equal_counts": True}, {"min_items": 4, "max_items": 4}])
def test_a_search_that_no_bound_can_end_ends_once_it_gains_nothing(limits):
    """Four items a group: no bound is within 0.1 % here. More work is then neither spent nor asked for."""
    costs = np.random.default_rng(1).lognormal(7, 0.6, 64).astype(np.int64)
    soon, more = (solvers.partition(costs, 16, time_budget=t, **limits) for t in (0.05, 0.5))
    assert soon.gap > 0.001
    assert soon.status == SolveStatus.FEASIBLE
    assert soon.group_of_item.tolist() == more.group_of_item.tolist()
    on = solvers.partition(costs, 16, stop_at=0, time_budget=0.05, **limits)
    assert on.makespan <= soon.makespan


@pytest.mark.parametrize("limits", [{}, {"equal_counts": True}, {"min_items": 1}])
def test_a_search_ends_once_its_gap_is_small_enough(limits):
    """The first start is within 5 % here; without `stop_at` the search goes on to a smaller makespan."""
    costs = np.random.default_rng(1).lognormal(7, 1, 200).astype(np.int64)
    soon, later = (solvers.partition(costs, 8, stop_at=stop_at, **limits) for stop_at in ("5%", 0))
    assert 0 < soon.gap <= 0.05
    assert later.makespan < soon.makespan
    assert soon.status == SolveStatus.WITHIN


@pytest.mark.parametrize("stop_at", [1e19, "100%"])
def test_any_gap_will_do_but_no_plan_will_not(stop_at):
    assert solvers.partition([5, 3, 4, 1], 2, initial_loads=[4, 0], stop_at=stop_at).makespan >= 9
    assert solvers.partition([2**61, 2**61], 1, initial_loads=[1], stop_at=stop_at).makespan == 2**62 + 1


def test_the_share_at_which_a_search_ends_is_the_decimal_that_was_written():
    assert as_share("stop_at", 0.1) == as_share("stop_at", "10%") == as_share("stop_at", "0.1") == Fraction(1, 10)
    assert as_share("stop_at", Fraction(1, 3)) == Fraction(1, 3)
    for wrong in ("much", None, True, float("nan"), float("inf"), "1/0", "%", [0.1]):
        with pytest.raises(TypeError, match=r"stop_at must be a (finite )?number"):
            solvers.partition([1, 2], 2, stop_at=wrong)
    for wrong in (-0.1, "-1%"):
        with pytest.raises(ValueError, match="stop_at must be >= 0"):
            solvers.partition([1, 2], 2, stop_at=wrong)


@pytest.mark.parametrize(("num_items", "num_groups"), [(18, 2), (12, 4)])
def test_few_items_are_proven_whatever_the_bound(num_items, num_groups):
    for seed in range(3):
        costs = np.random.default_rng(seed).lognormal(12, 1, num_items).astype(np.int64)
        found = solvers.partition(costs, num_groups, equal_counts=True, stop_at=0)
        assert found.status == SolveStatus.OPTIMAL


def lengths(count: int, sigma: float = 1.0, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).lognormal(6.5, sigma, count).astype(np.int64) + 1


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
