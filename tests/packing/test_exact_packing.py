"""Branch and bound: optima by enumeration and by planting, and what happens when the work runs out."""

import numpy as np
import packing_oracles as oracles
import pytest

from solvers import SolveStatus, check_packing
from solvers.bounds import groups_bound
from solvers.packing import exact, first_fit_decreasing


@pytest.mark.parametrize("max_items", [None, 2, 3, 4])
def test_optimal_on_hundreds_of_small_cases(max_items):
    chance = np.random.default_rng(7)
    searched = 0
    for _ in range(250):
        cap = int(chance.integers(5, 40))
        sizes = chance.integers(0, cap // 2 + 2, chance.integers(1, 10)).tolist()
        result = exact(sizes, cap, max_items=max_items)
        check_packing(sizes, cap, result, max_items=max_items)
        assert result.num_groups == result.lower_bound == oracles.fewest_groups(sizes, cap, max_items)
        searched += result.num_groups < first_fit_decreasing(sizes, cap, max_items=max_items).num_groups
    assert searched or max_items == 2  # or else the search went untested


@pytest.mark.parametrize(("num_groups", "cap", "most_cuts"), [(4, 30, 4), (6, 50, 3), (8, 100, 3), (10, 60, 2)])
def test_finds_planted_packings(num_groups, cap, most_cuts):
    for seed in range(6):
        sizes = oracles.planted(num_groups, cap, seed, most_cuts)
        result = exact(sizes, cap)
        check_packing(sizes, cap, result)
        assert result.num_groups == num_groups
        assert result.status is SolveStatus.OPTIMAL


def test_proves_by_search_what_no_closed_bound_proves():
    sizes = [12, 8, 7, 3, 2]  # they weigh 2 * 16, but only 8 + 7 goes beside 12, and leaves 3 + 2
    result = exact(sizes, 16)
    assert groups_bound(np.array(sizes), sum(sizes), 16).value == 2
    assert (result.num_groups, result.lower_bound, result.bound_name) == (3, 3, "search")
    assert result.status is SolveStatus.OPTIMAL
    check_packing(sizes, 16, result)


def test_out_of_work_it_returns_the_incumbent_and_says_so():
    sizes = np.random.default_rng(1).integers(200, 500, 120).tolist()
    result = exact(sizes, 1000, time_budget=1e-6)
    check_packing(sizes, 1000, result)
    assert result.status is SolveStatus.TIME_LIMIT
    assert result.num_groups <= first_fit_decreasing(sizes, 1000).num_groups
    assert result == exact(sizes, 1000, time_budget=1e-6)


def test_more_work_is_never_worse():
    sizes = oracles.planted(9, 97, 5)
    found = [exact(sizes, 97, time_budget=budget).num_groups for budget in (1e-8, 1e-6, 1e-5, 1e-4, 1e-3)]
    assert found == sorted(found, reverse=True)
