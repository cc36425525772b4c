"""The linear program over patterns, and what it proves."""

import itertools

import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st

import solvers
from solvers.partitioning._problem import PartitionProblem
from solvers.partitioning.bin_completion import distinct_costs
from solvers.partitioning.lpt import assign_lpt
from solvers.partitioning.pattern_search import PatternSearch
from solvers.partitioning.patterns import begin, make_program, refuted_below, solve

PLENTY = 10**9
small_costs = st.lists(st.integers(1, 12), min_size=1, max_size=8) | st.lists(
    st.integers(1, 400), min_size=1, max_size=8
)


def solved(costs, cap, num_groups, to_the_end=True):
    problem = PartitionProblem.prepare(costs, num_groups, False)
    values, counts = distinct_costs(problem)
    program = make_program(values, counts, max(1, min(len(costs), cap // int(values[-1]))))
    table = np.empty((len(costs) + 1, cap + 1), dtype=np.int32)
    begin(program, cap)
    return program, table, solve(program, cap, num_groups, to_the_end, table, PLENTY)[0]


def heaviest_pattern(program, cap):
    """By trying all."""
    items = [v for v, count in enumerate(program.counts) for _ in range(count)]
    best = 0
    for chosen in itertools.chain.from_iterable(itertools.combinations(items, k) for k in range(len(items) + 1)):
        if sum(program.values[v] for v in chosen) <= cap:
            best = max(best, sum(int(program.weights[v]) for v in chosen))
    return best


@given(costs=small_costs, num_groups=st.integers(1, 4), spare=st.integers(0, 30), to_the_end=st.booleans())
def test_what_is_refuted_cannot_be_had(costs, num_groups, spare, to_the_end):
    cap = max(costs) + spare
    program, _, verdict = solved(costs, cap, num_groups, to_the_end)
    assert verdict in (0, 1)
    if verdict == 0:
        assert oracles.optimal_makespan(costs, num_groups) > cap
        weight = int((program.weights * program.counts).sum())
        assert weight > num_groups * heaviest_pattern(program, cap)


@given(costs=small_costs, num_groups=st.integers(1, 4))
def test_a_refuted_target_raises_the_bound_as_far_as_its_weights_prove(costs, num_groups):
    reached = sum(costs) + 1
    program, table, verdict = solved(costs, max(costs), num_groups)
    if verdict == 0:
        table = np.empty((len(costs) + 1, reached), dtype=np.int32)
        bound = refuted_below(program, max(costs), reached, num_groups, table)
        assert max(costs) < bound <= oracles.optimal_makespan(costs, num_groups)
        weight = int((program.weights * program.counts).sum())
        assert weight > num_groups * heaviest_pattern(program, bound - 1)
        assert weight <= num_groups * heaviest_pattern(program, bound)


@given(costs=small_costs, num_groups=st.integers(1, 5), quantum=st.integers(1, 3000))
def test_stopped_and_gone_on_with_its_bound_holds(costs, num_groups, quantum):
    problem = PartitionProblem.prepare(costs, num_groups, False)
    start = assign_lpt(problem)
    reached = problem.makespan_of(start)
    optimum = oracles.optimal_makespan(costs, num_groups)
    search = PatternSearch.from_problem(problem, reached)
    if search is None:
        assert len(costs) > 7 * num_groups
        return
    for _ in range(10_000):
        if search.solved or reached == search.bound:
            break
        search.raise_bound(reached, quantum)
        assert problem.bound.value <= search.bound <= optimum


HARD = [(20, 10, 0), (30, 10, 1), (48, 20, 2), (60, 20, 3)]


@pytest.mark.parametrize(("num_items", "num_groups", "seed"), HARD)
def test_two_to_three_items_a_group_are_proven(num_items, num_groups, seed):
    """No other bound is close here, and a search without one takes for ever."""
    costs = np.random.default_rng(seed).integers(350, 1400, num_items)
    result = solvers.auto(costs, num_groups, time_budget=0.5, stop_at=0)
    solvers.check_partition(costs, result, stop_at=0)
    assert result.gap == 0


def test_what_the_patterns_prove_is_named():
    costs = np.random.default_rng(5).integers(350, 1400, 40)
    result = solvers.auto(costs, 16, time_budget=0.5, stop_at=0)
    assert (result.gap, result.bound_name) == (0.0, "patterns")
    assert solvers.makespan_lower_bound(costs, 16) < result.lower_bound


@pytest.mark.parametrize(
    ("costs", "num_groups"),
    [([10**7, 10**7 - 1, 5], 2), (list(range(1, 30)), 2), ([0, 0], 1), (list(range(1, 502)), 200)],
)
def test_too_wide_too_many_or_nothing_is_not_begun(costs, num_groups):
    problem = PartitionProblem.prepare(costs, num_groups, False)
    assert PatternSearch.from_problem(problem, problem.makespan_of(assign_lpt(problem))) is None
