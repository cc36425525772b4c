"""Karmarkar-Karp and BLDM against their definitions on dense tuples."""

import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st

import solvers

METHODS = {"karmarkar_karp": oracles.karmarkar_karp, "bldm": oracles.bldm}
EVERY_METHOD = pytest.mark.parametrize("method", METHODS)

problems = st.tuples(
    st.one_of(
        st.lists(st.integers(0, 4), max_size=30),
        st.lists(st.integers(0, 10**6), max_size=30),
        st.lists(st.integers(0, 57).map(lambda k: 2**k), max_size=30),
    ),
    st.integers(1, 9),
)


def same_partition_loads(method: str, costs: list[int], num_groups: int) -> None:
    """Subsets of equal sum are alike in differencing: whichever is taken first, the sums come out the same."""
    expected = oracles.loads_of(costs, METHODS[method](costs, num_groups), num_groups)
    found = solvers.PARTITIONERS[method](costs, num_groups)
    assert sorted(found.loads.tolist()) == sorted(expected)
    solvers.check_partition(costs, found, num_groups=num_groups)


@EVERY_METHOD
@given(problem=problems)
def test_loads_are_the_oracles(method: str, problem: tuple[list[int], int]) -> None:
    same_partition_loads(method, *problem)


@EVERY_METHOD
@given(costs=st.lists(st.integers(0, 2**52), min_size=6, max_size=30, unique=True), num_groups=st.integers(2, 6))
def test_plan_is_the_oracles_where_sums_differ(method: str, costs: list[int], num_groups: int) -> None:
    costs = [(c << 9) + 2**k % 509 for k, c in enumerate(costs)]  # sums that tie by accident are as good as impossible
    expected = METHODS[method](costs, num_groups)
    loads = [load for load in oracles.loads_of(costs, expected, num_groups) if load]
    if len(set(loads)) == len(loads):
        found = solvers.PARTITIONERS[method](costs, num_groups).group_of_item.tolist()
        assert {frozenset(np.flatnonzero(np.equal(found, g))) for g in set(found)} == {
            frozenset(np.flatnonzero(np.equal(expected, g))) for g in set(expected)
        }


@EVERY_METHOD
@pytest.mark.parametrize(
    ("count", "num_groups"), [(2, 5), (90, 7), (130, 64), (200, 3), (257, 16), (245, 105), (352, 105)]
)
@pytest.mark.parametrize("sigma", [0.3, 1.0, 3.0])
def test_larger_loads_are_the_oracles(method: str, count: int, num_groups: int, sigma: float) -> None:
    """Enough merges for storage to be handed out anew, and for merges of many subsets with many."""
    costs = np.random.default_rng(count).lognormal(8, sigma, count).astype(np.int64).tolist()
    same_partition_loads(method, costs, num_groups)


@EVERY_METHOD
@pytest.mark.parametrize("pattern", [[1], [2, 1], [3, 3, 2], [1, 2, 4, 8, 16], [100, 1, 1, 1, 1, 1]])
@pytest.mark.parametrize("num_groups", [2, 5, 16])
def test_many_ties(method: str, pattern: list[int], num_groups: int) -> None:
    same_partition_loads(method, pattern * 20, num_groups)


@pytest.mark.parametrize(
    ("method", "costs", "num_groups"),
    [
        ("karmarkar_karp", [9, 8, 7, 6, 6, 5, 5, 5, 4, 3, 3, 2, 1], 5),  # a merged tuple before a bare item
        ("karmarkar_karp", [9, 8, 7, 6, 6, 4, 4, 3, 0], 3),  # of merged tuples the one with the lower name
        ("bldm", [7, 7, 5, 5, 4, 4, 3, 2, 2, 1, 0, 0], 4),
    ],
)
def test_cases_in_which_ties_decide_the_loads(method: str, costs: list[int], num_groups: int) -> None:
    same_partition_loads(method, costs, num_groups)


def test_textbook_case() -> None:
    """8 7 6 5 4 -> 1 6 5 4 -> 1 1 4 -> 3 1 -> 2: Karmarkar & Karp's own numbers."""
    assert sorted(solvers.karmarkar_karp([8, 7, 6, 5, 4], 2).loads.tolist()) == [14, 16]


@pytest.mark.parametrize("equal_counts", [False, True])
def test_bldm_counts_are_always_within_one(equal_counts: bool) -> None:
    costs = np.random.default_rng(5).lognormal(5, 2, 203).astype(np.int64)
    counts = np.bincount(solvers.bldm(costs, 16, equal_counts=equal_counts).group_of_item, minlength=16)
    assert counts.max() - counts.min() == 1


@given(problem=problems)
def test_bldm_gives_each_group_one_item_of_each_block(problem: tuple[list[int], int]) -> None:
    costs, num_groups = problem
    groups = solvers.bldm(costs, num_groups).group_of_item
    in_order = [groups[i] for i in oracles.descending(costs)]
    for start in range(0, len(costs), num_groups):
        block = in_order[start : start + num_groups]
        assert len(set(block)) == len(block)
