"""Padded batches, besides what test_contract.py holds: least numbers of rows, exact against enumeration."""

import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st

import solvers


def test_padding_overflow_is_refused() -> None:
    """The sum fits int64; three rows as long as the longest do not."""
    with pytest.raises(ValueError, match=rf"3 rows of the largest cost {2**62} would cost {3 * 2**62}"):
        solvers.padded([2**62, 1, 1], 2)


def test_rows_of_cost_zero_are_dealt_over_the_groups_left() -> None:
    """A row without cost still is a row: no group should hold them all."""
    result = solvers.padded([0] * 9, 3)
    assert np.bincount(result.group_of_item).tolist() == [3, 3, 3]


@given(
    costs=st.lists(st.integers(0, 5), min_size=1, max_size=7) | st.lists(st.integers(0, 10**6), min_size=1, max_size=7),
    num_groups=st.integers(1, 4),
    least=st.integers(0, 3),
)
def test_optimal_with_a_least_number_of_rows(costs: list[int], num_groups: int, least: int) -> None:
    least = min(least, len(costs) // num_groups)
    result = solvers.padded(costs, num_groups, min_items=least)
    assert np.bincount(result.group_of_item, minlength=num_groups).min() >= least
    assert result.makespan == oracles.optimal_padded_makespan(costs, num_groups, least=least)
    solvers.check_partition(costs, result, num_groups=num_groups, padded=True, min_items=least)


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
