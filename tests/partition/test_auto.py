"""The portfolio and its searches: never worse for more work, proofs that hold, and what once went wrong."""

from fractions import Fraction

import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st

import solvers
from solvers.arguments import as_share
from solvers.partitioning._problem import PartitionProblem
from solvers.partitioning.bin_completion import close_gap
from solvers.partitioning.lower_target import lower_target
from solvers.partitioning.lpt import assign_lpt
from solvers.partitioning.portfolio import assign_auto, improve
from solvers.partitioning.regroup import regroup

small_costs = st.one_of(
    st.lists(st.integers(0, 12), max_size=9), st.lists(st.integers(0, 10**6), max_size=9)
)  # few values, and many


@pytest.mark.parametrize("costs", [[152, 196, 19, 61, 246, 122], [365, 72, 747, 974, 9, 640, 656, 359, 401, 470, 631]])
def test_a_start_that_is_optimal_already_needs_no_search(costs):
    """Karmarkar-Karp is perfect here where LPT and SLACK, improved, are not."""
    assert solvers.auto(costs, 2, stop_at=0).gap == 0


@given(costs=small_costs, num_groups=st.integers(1, 5))
def test_bin_completion_ends_at_the_optimum(costs, num_groups):
    problem = PartitionProblem.prepare(costs, num_groups, False)
    best, bound, left = close_gap(problem, assign_lpt(problem), 10**7)
    optimum = oracles.optimal_makespan(costs, num_groups) if costs else 0
    assert left > 0
    assert problem.makespan_of(best) == optimum
    assert (bound.value if bound else problem.bound.value) == optimum


def test_bin_completion_stops_when_its_work_is_spent():
    costs = np.random.default_rng(3).integers(10**8, 10**9, 60)
    problem = PartitionProblem.prepare(costs, 12, False)
    start = assign_lpt(problem)
    best, bound, left = close_gap(problem, start, 1000)
    assert bound is None
    assert left <= 0
    assert problem.makespan_of(best) <= problem.makespan_of(start)


def test_bin_completion_is_not_begun_where_sums_could_overflow():
    problem = PartitionProblem.prepare([2**61, 2**61, 2**60], 2, False)
    assert close_gap(problem, assign_lpt(problem), 10**6)[1:] == (None, 10**6)


@given(
    costs=st.lists(st.integers(0, 10**6), min_size=1, max_size=60),
    num_groups=st.integers(1, 12),
    equal_counts=st.booleans(),
    work=st.integers(0, 20_000),
    keep_counts=st.booleans(),
)
def test_lowering_the_target_keeps_every_promise(costs, num_groups, equal_counts, work, keep_counts):
    problem = PartitionProblem.prepare(costs, num_groups, equal_counts)
    before = assign_lpt(problem)
    after = before.copy()
    lower_target(problem, after, work, keep_counts=keep_counts)
    assert problem.makespan_of(after) <= problem.makespan_of(before)
    if keep_counts or equal_counts:
        counts = [np.bincount(a, minlength=num_groups).tolist() for a in (before, after)]
        assert counts[0] == counts[1]


@pytest.mark.parametrize("equal_counts", [False, True])
@pytest.mark.parametrize("cost", ["linear", "quadratic"])
def test_more_budget_is_never_worse(cost, equal_counts):
    lengths = np.clip(np.random.default_rng(11).lognormal(7, 1, 700), 1, 32768).astype(np.int64)
    costs = lengths if cost == "linear" else 24576 * lengths + lengths**2
    for num_groups in (7, 50, 150):
        found = [
            solvers.auto(costs, num_groups, equal_counts=equal_counts, time_budget=seconds, stop_at=0).makespan
            for seconds in (1e-9, *np.geomspace(1e-5, 3e-2, 25))
        ]
        assert found == sorted(found, reverse=True)


def test_search_goes_far_below_what_lpt_leaves():
    """Quadratic costs, 4,096 on 64: LPT is hundreds of parts per million over the bound."""
    lengths = np.clip(np.random.default_rng(5).lognormal(7.1, 1, 4096), 1, 32768).astype(np.int64)
    problem = PartitionProblem.prepare(24576 * lengths + lengths**2, 64, False)
    assignment = assign_lpt(problem)
    assert problem.makespan_of(assignment) / problem.bound.value - 1 > 1e-4
    improve(problem, assignment, 4_000_000)
    assert problem.makespan_of(assignment) / problem.bound.value - 1 < 1e-6


@pytest.mark.parametrize("num_items", [20_000, 40_000])
def test_a_few_items_of_cost_zero_take_no_quadratic_time(num_items):
    """Once sorted by a quicksort that is quadratic on nearly sorted keys."""
    costs = np.arange(num_items, 0, -1)
    costs[-2:] = 0
    result = solvers.lpt(costs, num_items)
    assert np.bincount(result.group_of_item, minlength=num_items).max() == 1


@given(
    costs=st.lists(st.integers(0, 1000), min_size=1, max_size=40),
    num_groups=st.integers(1, 10),
    work=st.integers(0, 50_000),
)
def test_regrouping_keeps_every_item_and_is_never_worse(costs, num_groups, work):
    problem = PartitionProblem.prepare(costs, num_groups, False)
    before = assign_lpt(problem)
    after = before.copy()
    regroup(problem, after, work, 10_000, 1)
    assert ((after >= 0) & (after < num_groups)).all()
    assert problem.makespan_of(after) <= problem.makespan_of(before)


def test_regrouping_solves_what_exchanges_do_not():
    """Eight items a group, 64 groups: exchanges mostly end one unit off."""
    solved = 0
    for seed in range(10):
        lengths = np.random.default_rng(seed).lognormal(7.5, 0.5, 512).astype(np.int64)
        problem = PartitionProblem.prepare(lengths, 64, False)
        assignment = assign_lpt(problem)
        improve(problem, assignment, 10**6)
        regroup(problem, assignment, 4 * 10**6, 10**6, 1)
        solved += problem.makespan_of(assignment) == problem.bound.value
    assert solved >= 9


@given(costs=st.lists(st.integers(300, 1500), min_size=8, max_size=40), num_groups=st.integers(2, 14))
def test_more_budget_is_never_worse_where_groups_hold_few_items(costs, num_groups):
    budgets = (1e-5, 1e-4, 3e-4, 1e-3, 2e-3, 5e-3)
    results = [solvers.auto(costs, num_groups, time_budget=budget, stop_at=0) for budget in budgets]
    makespans = [result.makespan for result in results]
    assert makespans == sorted(makespans, reverse=True)
    for result in results:
        solvers.check_partition(costs, result, stop_at=0)


@pytest.mark.parametrize("scale", [2**54, 2**56])
def test_it_ends_where_costs_are_too_large_for_every_search_that_closes_gaps(scale):
    costs = np.array([13, 11, 11, 9, 8, 8, 5, 5, 3], dtype=np.int64) * scale + np.arange(9)
    result = solvers.auto(costs, 4, time_budget=0.01, stop_at=0)
    solvers.check_partition(costs, result, stop_at=0)


@pytest.mark.parametrize("seed", [5, 7, 10, 11])
def test_equal_counts_are_never_worse_than_differencing(seed):
    """Lowering a target of 60 bits by halves takes all the work."""
    costs = np.random.default_rng(seed).integers(0, 2**62 // 150, 150)
    balanced = solvers.partition(costs, 3, "auto", 0.005, equal_counts=True, stop_at=0)
    assert balanced.makespan <= solvers.partition(costs, 3, "bldm", equal_counts=True).makespan


def test_lpt_counts_where_the_work_ends_before_its_turn():
    """With many items a group SLACK goes first; here it is worse than LPT, and there is no work to improve it."""
    costs = [6, 6, 4, 6, 6, 15, 15, 7, 4, 4, 15, 15, 15, 6, 15, 15, 15, 7, 15, 7, 15, 15, 4, 7, 7, 7, 4, 6, 15, 15, 6,
             4, 15, 7, 7, 7, 15, 6, 7, 6, 15, 4, 6, 15, 15, 4, 15, 15]  # fmt: skip
    assert solvers.slack(costs, 3).makespan > solvers.lpt(costs, 3).makespan
    problem = PartitionProblem.prepare(costs, 3, False)
    for work in range(5_000):
        assert problem.makespan_of(assign_auto(problem, work)[0]) <= solvers.lpt(costs, 3).makespan


def test_all_of_int64_in_one_group():
    assert solvers.auto([2**63 - 1], 1).makespan == 2**63 - 1


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
    assert soon.status == solvers.SolveStatus.FEASIBLE
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
    assert soon.status == solvers.SolveStatus.WITHIN


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


@pytest.mark.parametrize(("num_items", "num_groups"), [(18, 2), (14, 3), (12, 4), (12, 6)])
def test_few_items_are_proven_whatever_the_bound(num_items, num_groups):
    for seed in range(5):
        costs = np.random.default_rng(seed).lognormal(12, 1, num_items).astype(np.int64)
        found = solvers.partition(costs, num_groups, equal_counts=True, stop_at=0)
        assert found.status == solvers.SolveStatus.OPTIMAL
