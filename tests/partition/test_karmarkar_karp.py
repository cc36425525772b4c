"""Karmarkar-Karp against its definition on dense tuples."""

import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st

import solvers

problems = st.tuples(
    st.one_of(
        st.lists(st.integers(0, 4), max_size=30),
        st.lists(st.integers(0, 10**6), max_size=30),
        st.lists(st.integers(0, 57).map(lambda k: 2**k), max_size=30),
    ),
    st.integers(1, 9),
)


def same_partition_loads(costs: list[int], num_groups: int) -> None:
    """Subsets of equal sum are alike in differencing: whichever is taken first, the sums come out the same."""
    expected = oracles.loads_of(costs, oracles.karmarkar_karp(costs, num_groups), num_groups)
    found = solvers.partition(costs, num_groups, "karmarkar_karp")
    assert sorted(found.loads.tolist()) == sorted(expected)
    solvers.check_partition(costs, found, num_groups=num_groups)


@given(problem=problems)
def test_loads_are_the_oracles(problem: tuple[list[int], int]) -> None:
    same_partition_loads(*problem)


@given(costs=st.lists(st.integers(0, 2**52), min_size=6, max_size=30, unique=True), num_groups=st.integers(2, 6))
def test_plan_is_the_oracles_where_sums_differ(costs: list[int], num_groups: int) -> None:
    costs = [(c << 9) + 2**k % 509 for k, c in enumerate(costs)]  # sums that tie by accident are as good as impossible
    expected = oracles.karmarkar_karp(costs, num_groups)
    loads = [load for load in oracles.loads_of(costs, expected, num_groups) if load]
    if len(set(loads)) == len(loads):
        found = solvers.partition(costs, num_groups, "karmarkar_karp").group_of_item.tolist()
        assert {frozenset(np.flatnonzero(np.equal(found, g))) for g in set(found)} == {
            frozenset(np.flatnonzero(np.equal(expected, g))) for g in set(expected)
        }


@pytest.mark.parametrize(
    ("count", "num_groups", "sigma"), [(2, 5, 1.0), (90, 7, 3.0), (130, 64, 0.3), (257, 16, 1.0), (245, 105, 3.0)]
)
def test_larger_loads_are_the_oracles(count: int, num_groups: int, sigma: float) -> None:
    """Enough merges for storage to be handed out anew, and for merges of many subsets with many."""
    costs = np.random.default_rng(count).lognormal(8, sigma, count).astype(np.int64).tolist()
    same_partition_loads(costs, num_groups)


@pytest.mark.parametrize(
    ("costs", "num_groups"),
    [
        ([9, 8, 7, 6, 6, 5, 5, 5, 4, 3, 3, 2, 1], 5),  # a merged tuple before a bare item
        ([9, 8, 7, 6, 6, 4, 4, 3, 0], 3),  # of merged tuples the one with the lower name
        ([3, 3, 2] * 20, 5),
    ],
)
def test_cases_in_which_ties_decide_the_loads(costs: list[int], num_groups: int) -> None:
    same_partition_loads(costs, num_groups)
