"""Trading: what one step finds, what the walk keeps, and that it ends what other searches leave open."""

import itertools

import numpy as np
import pytest
from compiled import from_python
from hypothesis import given
from hypothesis import strategies as st

import solvers
from solvers.bounds import Bound
from solvers.partition._problem import PartitionProblem
from solvers.partition.lpt import assign_lpt
from solvers.partition.trade import _DRAWN, _best_exchange, trade

_best_exchange = from_python(_best_exchange)
few = st.lists(st.integers(0, 60), max_size=4)


def nonuniform(num_items: int, seed: int, largest: int = 10_000) -> np.ndarray:
    """98 % of the costs within a tenth of the largest, the rest small: the recipe of Frangioni et al. (2004)."""
    rng = np.random.default_rng(seed)
    small = num_items // 50
    most = rng.integers(largest * 9 // 10, largest + 1, num_items - small)
    return np.concatenate([most, rng.integers(1, largest // 5, small)])


def subsets(costs: list[int]) -> np.ndarray:
    sums = [
        sum(c for k, c in enumerate(costs) if number >> k & 1) << _DRAWN | number for number in range(1 << len(costs))
    ]
    return np.array(sorted(sums))


@given(here=few, there=few, low=st.integers(-80, 80), width=st.integers(0, 40), part=st.floats(0, 1, allow_nan=False))
def test_one_step_finds_the_best_of_all_exchanges(here, there, low, width, part):
    high, wanted = low + width, low + int(part * width)
    given_subset, taken_subset = _best_exchange(subsets(here), subsets(there), low, high, wanted)
    moved = (int(given_subset) >> _DRAWN) - (int(taken_subset) >> _DRAWN)
    amounts = [
        a - b for a, b in itertools.product((subsets(here) >> _DRAWN).tolist(), (subsets(there) >> _DRAWN).tolist())
    ]
    outside = min(max(low - d, 0, d - high) for d in amounts)
    assert max(low - moved, 0, moved - high) == outside
    if outside == 0:
        assert abs(moved - wanted) == min(abs(d - wanted) for d in amounts if low <= d <= high)


@given(
    costs=st.lists(st.integers(0, 1000), min_size=1, max_size=40),
    num_groups=st.integers(1, 10),
    work=st.integers(0, 50_000),
    each=st.integers(1, 20_000),
)
def test_every_item_stays_and_it_is_never_worse(costs, num_groups, work, each):
    problem = PartitionProblem.prepare(costs, num_groups, False)
    before = assign_lpt(problem)
    after = before.copy()
    left = trade(problem, after, work, each, 1)
    assert ((after >= 0) & (after < num_groups)).all()
    assert left <= work
    assert problem.makespan_of(after) <= problem.makespan_of(before)
    if left > 0 and num_groups > 1 and any(costs):
        assert problem.makespan_of(after) == problem.bound.value


def test_more_work_goes_on_from_where_less_ended():
    costs = np.random.default_rng(2).integers(350, 1400, 60)
    problem = PartitionProblem.prepare(costs, 20, False)
    reached = []
    for work in range(0, 400_000, 20_000):
        assignment = assign_lpt(problem)
        trade(problem, assignment, work, 50_000, 1)
        reached.append(problem.makespan_of(assignment))
    assert reached == sorted(reached, reverse=True)
    assert reached[-1] < reached[0]


def test_costs_of_which_six_could_overflow_are_left_alone():
    problem = PartitionProblem.prepare([2**55, 2**54, 2**54, 2**53, 2**53 + 1], 2, False)
    assignment = assign_lpt(problem)
    assert trade(problem, assignment, 10**6, 10**5, 1) == 10**6


@pytest.mark.parametrize("seed", range(5))
def test_groups_of_many_items_all_alike_come_out_even(seed):
    """Twenty items a group of nearly one cost: no single exchange helps, and no search through all of them ends."""
    costs = nonuniform(100, seed)
    problem = PartitionProblem.prepare(costs, 5, False).with_late_bounds(int(costs.sum()))
    assignment = assign_lpt(problem)
    trade(problem, assignment, 40_000_000, 10_000_000, 1)
    assert problem.makespan_of(assignment) == problem.bound.value
    result = solvers.auto(costs, 5, time_budget=0.5)
    solvers.check_partition(costs, result)
    assert result.gap == 0


def test_an_unreachable_target_costs_no_more_than_the_work():
    problem = PartitionProblem.prepare([6, 4, 4, 4, 4, 4], 2, False)
    assert problem.bound == Bound(13, "mean")  # all costs are even
    assignment = assign_lpt(problem)
    assert -1_000 < trade(problem, assignment, 100_000, 10_000, 1) <= 0
    assert problem.makespan_of(assignment) == 14
