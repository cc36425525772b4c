"""Padded batches: exact, against enumeration."""

import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st

import solvers
from solvers import SolveStatus

EVERY_COUNT_RULE = pytest.mark.parametrize("equal_counts", [False, True], ids=["free", "equal_counts"])
SHAPES = {
    "no rows": ([], 3),
    "one row": ([7], 4),
    "one group": ([5, 0, 3, 5], 1),
    "fewer rows than groups": ([3, 0, 8], 8),
    "all equal": ([6] * 11, 4),
    "all zero": ([0] * 7, 3),
    "mostly zero": ([0, 0, 5, 0, 0, 0, 2, 0], 3),
    "zeros past the last group": ([4, 4, 0, 0, 0], 2),
    "one giant": ([10**12, *range(1, 30)], 4),
    "long tail": (np.random.default_rng(0).lognormal(6, 2, 203).astype(int).tolist(), 16),
    "near the end of int64": ([2**60, 2**60 - 1, 2**59, 3, 2, 1, 0], 3),
}


@EVERY_COUNT_RULE
@pytest.mark.parametrize("shape", SHAPES)
def test_result_holds_what_it_promises(equal_counts: bool, shape: str) -> None:
    costs, num_groups = SHAPES[shape]
    result = solvers.padded(costs, num_groups, equal_counts=equal_counts)
    groups = result.group_of_item.tolist()
    assert result.loads.tolist() == oracles.padded_loads_of(costs, groups, num_groups)
    assert result.makespan == result.lower_bound == max(result.loads.tolist())
    assert result.status is SolveStatus.OPTIMAL
    assert (result.method, result.bound_name) == ("padded", "padded")
    assert result.group_of_item.dtype == np.int32
    assert not result.group_of_item.flags.writeable
    assert not result.loads.flags.writeable
    solvers.check_partition(costs, result, num_groups=num_groups, equal_counts=equal_counts, padded=True)


@EVERY_COUNT_RULE
@given(
    costs=st.lists(st.integers(0, 5), max_size=8) | st.lists(st.integers(0, 10**6), max_size=8),
    num_groups=st.integers(1, 4),
)
def test_optimal(equal_counts: bool, costs: list[int], num_groups: int) -> None:
    result = solvers.padded(costs, num_groups, equal_counts=equal_counts)
    assert result.makespan == oracles.optimal_padded_makespan(costs, num_groups, equal_counts)
    solvers.check_partition(costs, result, num_groups=num_groups, equal_counts=equal_counts, padded=True)


@EVERY_COUNT_RULE
@given(costs=st.lists(st.integers(0, 50), max_size=30), num_groups=st.integers(1, 8), data=st.data())
def test_scaling_and_permuting(equal_counts: bool, costs: list[int], num_groups: int, data: st.DataObject) -> None:
    result = solvers.padded(costs, num_groups, equal_counts=equal_counts)
    scaled = solvers.padded([9 * c for c in costs], num_groups, equal_counts=equal_counts)
    assert scaled.makespan == 9 * result.makespan
    permuted = solvers.padded(data.draw(st.permutations(costs)), num_groups, equal_counts=equal_counts)
    assert permuted.loads.tolist() == result.loads.tolist()


def test_padding_overflow_is_refused() -> None:
    """The sum fits int64; three rows as long as the longest do not."""
    with pytest.raises(ValueError, match=rf"3 rows of the largest cost {2**62} would cost {3 * 2**62}"):
        solvers.padded([2**62, 1, 1], 2)


def test_rows_of_cost_zero_are_dealt_over_the_groups_left() -> None:
    """A row without cost still is a row: no group should hold them all."""
    result = solvers.padded([0] * 9, 3)
    assert np.bincount(result.group_of_item).tolist() == [3, 3, 3]


@given(
    costs=st.lists(st.integers(0, 5), min_size=1, max_size=8) | st.lists(st.integers(0, 10**6), min_size=1, max_size=8),
    num_groups=st.integers(1, 4),
    least=st.integers(0, 3),
)
def test_optimal_with_a_least_number_of_rows(costs: list[int], num_groups: int, least: int) -> None:
    least = min(least, len(costs) // num_groups)
    result = solvers.padded(costs, num_groups, min_items=least)
    assert np.bincount(result.group_of_item, minlength=num_groups).min() >= least
    assert result.makespan == oracles.optimal_padded_makespan(costs, num_groups, least=least)
    solvers.check_partition(costs, result, num_groups=num_groups, padded=True, min_items=least)


@given(costs=st.lists(st.integers(0, 10**6), min_size=8, max_size=60), num_groups=st.integers(1, 8))
def test_one_row_in_every_group_costs_nothing(costs: list[int], num_groups: int) -> None:
    nonempty = solvers.padded(costs, num_groups, min_items=1)
    assert np.bincount(nonempty.group_of_item, minlength=num_groups).min() >= 1
    assert nonempty.makespan == solvers.padded(costs, num_groups).makespan


def test_too_few_rows_for_all_groups_are_refused() -> None:
    with pytest.raises(solvers.InfeasibleError, match="3 groups of at least 2 need 6 items, there are 5") as refused:
        solvers.padded([1] * 5, 3, min_items=2)
    assert refused.value.certificate.excess == 1


def test_checker_counts_rows_and_refutes_a_bound_that_no_least_number_allows() -> None:
    result = solvers.padded([9, 9, 1, 1, 1, 1], 3)
    assert np.bincount(result.group_of_item).tolist() == [1, 1, 4]
    with pytest.raises(solvers.CertificateError, match="group 0 holds 1 items, not 2 to 6"):
        solvers.check_partition([9, 9, 1, 1, 1, 1], result, padded=True, min_items=2)
    pairs = solvers.padded([9, 9, 1, 1, 1, 1], 3, min_items=2)
    assert pairs.makespan == 18
    with pytest.raises(solvers.CertificateError, match="'padded' proves 9 at most"):
        solvers.check_partition([9, 9, 1, 1, 1, 1], pairs, padded=True)
