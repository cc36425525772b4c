"""Lower bounds on the number of groups: below the optimum always, each by its definition, each the best somewhere."""

import numpy as np
import packing_oracles as oracles
import pytest
from compiled import from_python
from hypothesis import given
from hypothesis import strategies as st

from solvers.bounds import Bound, groups_bound
from solvers.dual_feasible import runs_of_equal_sizes, threshold_bound

threshold_bound = from_python(threshold_bound)

caps_and_sizes = st.integers(1, 60).flatmap(
    lambda cap: st.tuples(st.just(cap), st.lists(st.integers(0, cap), max_size=9))
)


def bound_of(sizes: list[int], cap: int, max_items: int | None = None) -> Bound:
    return groups_bound(np.array(sorted(sizes, reverse=True), dtype=np.int64), sum(sizes), cap, max_items)


def l2(sizes: list[int], cap: int) -> int:
    distinct, counts = runs_of_equal_sizes(np.array(sorted(sizes, reverse=True), dtype=np.int64))
    return threshold_bound(distinct, distinct, counts, cap, cap)


@given(caps_and_sizes, st.none() | st.integers(1, 5))
def test_below_the_optimum(cap_and_sizes, max_items):
    cap, sizes = cap_and_sizes
    bound = bound_of(sizes, cap, max_items)
    assert -(-sum(sizes) // cap) <= bound.value <= oracles.fewest_groups(sizes, cap, max_items)


@given(st.integers(1, 60).flatmap(lambda cap: st.tuples(st.just(cap), st.lists(st.integers(0, cap), max_size=40))))
def test_l2_is_that_of_martello_and_toth(cap_and_sizes):
    cap, sizes = cap_and_sizes
    assert l2(sizes, cap) == oracles.l2(sizes, cap)


@pytest.mark.parametrize(
    ("sizes", "cap", "max_items", "value", "name"),
    [
        ([], 5, 2, 0, "volume"),
        ([0], 5, None, 1, "volume"),
        ([5, 5, 1], 5, None, 3, "volume"),
        ([1, 1, 1, 1, 1], 9, 2, 3, "counts"),
        ([0, 0, 0], 9, 1, 3, "counts"),
        ([51, 51, 51], 100, None, 3, "l2"),
        ([8, 8, 3, 3], 10, None, 3, "volume"),
        ([34] * 9, 100, None, 5, "fekete_schepers"),
    ],
)
def test_each_is_the_best_somewhere(sizes, cap, max_items, value, name):
    assert bound_of(sizes, cap, max_items) == (value, name)


def test_enough_is_enough():
    sizes = np.array([51, 51, 51], dtype=np.int64)
    assert groups_bound(sizes, 153, 100, enough=2) == (2, "volume")
    assert groups_bound(sizes, 153, 100, enough=3) == (3, "l2")


def test_near_the_end_of_int64_nothing_wraps():
    third = (2**63 - 1) // 3
    assert bound_of([third, third, third], 2**63 - 1) == (1, "volume")
    assert bound_of([third + 1, third - 1, third], third + 1) == (3, "volume")
    assert bound_of([2**56 + 1] * 120, 2**57)[0] == 120
