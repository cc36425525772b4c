"""CP-SAT: optimal where it says so, an incumbent with a proof where it ran out of time. Few runs: they are slow."""

import sys

import numpy as np
import oracles
import pytest

import solvers
from solvers import SolveStatus
from solvers.partitioning import exact as module
from solvers.partitioning.exact import named_in_order, reported_bound

# On these no closed-form bound reaches the optimum, so that only a search can prove it.
ONLY_SEARCH_PROVES = [
    ([22, 12, 9, 6, 18, 7, 10, 7], 4, False),
    ([17, 26, 14, 18, 6, 23, 13, 23], 3, False),
    ([16, 2, 19, 17, 3, 28, 27], 2, True),
    ([13, 14, 20, 18, 6, 22, 23, 28], 3, True),
]


@pytest.mark.parametrize(("costs", "num_groups", "equal_counts"), ONLY_SEARCH_PROVES)
def test_search_proves_what_bounds_cannot(costs: list[int], num_groups: int, equal_counts: bool) -> None:
    optimum = oracles.optimal_makespan(costs, num_groups, equal_counts)
    assert oracles.lower_bound(costs, num_groups, equal_counts)[0] < optimum
    result = solvers.partition(costs, num_groups, "exact", equal_counts=equal_counts, time_budget=5)
    assert (result.makespan, result.lower_bound) == (optimum, optimum)
    assert (result.status, result.bound_name) == (SolveStatus.OPTIMAL, "search")
    solvers.check_partition(costs, result, num_groups=num_groups, equal_counts=equal_counts)


def test_a_factor_scales_the_optimum() -> None:
    """Also past 2^53, where the bound that CP-SAT reports, a float, no longer is exact to the last digit."""
    factor = 2**50 + 1
    costs, num_groups, _ = ONLY_SEARCH_PROVES[0]
    optimum = factor * oracles.optimal_makespan(costs, num_groups)
    result = solvers.partition([factor * c for c in costs], num_groups, "exact", time_budget=10)
    assert (result.makespan, result.lower_bound, result.status) == (optimum, optimum, SolveStatus.OPTIMAL)


@pytest.mark.parametrize(
    ("reported", "bound"),
    [(9.0, 9), (9.2, 10), (9.0000000001, 9), (8.9999999999, 9), (-5.0, 0), (float("inf"), 0), (float("nan"), 0)],
)
def test_which_reported_bounds_are_trusted(reported: float, bound: int) -> None:
    assert reported_bound(reported) == bound


def test_groups_are_numbered_by_their_first_item() -> None:
    """As the model's symmetry breaking has it: position i in a group <= i, or the hint would be lost."""
    assignment = np.array([3, 1, 3, 0, 1], dtype=np.int64)
    assert named_in_order(assignment, np.array([0, 1, 2, 3, 4])).tolist() == [0, 1, 0, 2, 1]
    assert named_in_order(assignment, np.array([3, 0, 1, 2, 4])).tolist() == [1, 2, 1, 0, 2]


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
    assert solvers.partition(costs, 6, "lpt", equal_counts=equal_counts).makespan > 200
    result = solvers.partition(costs, 6, "exact", equal_counts=equal_counts, time_budget=20)
    assert (result.makespan, result.status) == (200, SolveStatus.OPTIMAL)
    solvers.check_partition(costs, result, equal_counts=equal_counts)


@pytest.mark.parametrize("equal_counts", [False, True])
@pytest.mark.parametrize("budget", [1e-6, 0.05])
def test_out_of_time_returns_an_incumbent_with_its_bound(budget: float, equal_counts: bool) -> None:
    costs = cut_machines(num_groups=30, pieces=3, length=10**6, seed=1)
    result = solvers.partition(costs, 30, "exact", equal_counts=equal_counts, time_budget=budget)
    solvers.check_partition(costs, result, num_groups=30, equal_counts=equal_counts)
    assert result.status in (SolveStatus.TIME_LIMIT, SolveStatus.OPTIMAL)
    assert result.lower_bound >= 10**6
    assert result.makespan <= solvers.partition(costs, 30, "lpt", equal_counts=equal_counts).makespan
    assert result.runtime_s < 5


def test_costs_that_cp_sat_would_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sums must stay clear of the end of int64; what `auto` finds is the answer then."""
    costs, num_groups, _ = ONLY_SEARCH_PROVES[0]
    costs = [c * 2**54 for c in costs]
    monkeypatch.setattr(module, "load_cp_model", lambda: pytest.fail("CP-SAT called"))
    result = solvers.partition(costs, num_groups, "exact", time_budget=1)
    solvers.check_partition(costs, result)
    assert result.makespan == 24 * 2**54


def test_no_search_where_the_start_is_optimal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "load_cp_model", lambda: pytest.fail("CP-SAT was called"))
    assert solvers.partition([5, 4, 3, 3, 3], 2, "exact", time_budget=5).status is SolveStatus.OPTIMAL
    assert solvers.partition([], 2, "exact", time_budget=5).makespan == 0


def test_without_or_tools_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where a search is left to do: `auto` comes first, and needs none."""
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    assert solvers.partition([5, 4, 3, 3, 3], 2, "exact", time_budget=1).makespan == 9
    costs = cut_machines(num_groups=30, pieces=3, length=10**6, seed=1)
    with pytest.raises(
        ValueError, match=r"'exact' needs OR-Tools, which is not installed; .* pip install .seqbalancer\[exact\]"
    ):
        solvers.partition(costs, 30, "exact", time_budget=1)
