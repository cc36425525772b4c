"""Contiguous splits against dynamic programmes."""

import dataclasses
import itertools

import numpy as np
import packing_oracles as oracles
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from solvers import CertificateError, InfeasibleError
from solvers.packing import check_split, split_contiguous, split_fewest

small_costs = st.lists(st.integers(0, 4), max_size=9) | st.lists(st.integers(0, 2**58), max_size=9)
NO_LIMIT_OR_FEW = st.none() | st.integers(1, 4)


@given(small_costs, st.integers(1, 12), st.booleans())
@example([9, 0, 0], 3, True)  # greedy cuts would leave groups empty
@example([2, 2, 1, 1, 4], 4, True)
def test_smallest_largest_load(costs, num_groups, nonempty):
    optimum = oracles.smallest_largest_segment(costs, num_groups, nonempty)
    if optimum is None:
        with pytest.raises(InfeasibleError, match=f"there are {len(costs)} items for {num_groups} groups"):
            split_contiguous(costs, num_groups, nonempty=nonempty)
        return
    split = split_contiguous(costs, num_groups, nonempty=nonempty)
    check_split(costs, split, num_groups=num_groups, nonempty=nonempty)
    offsets = split.offsets.tolist()
    assert (offsets[0], offsets[-1], len(offsets)) == (0, len(costs), num_groups + 1)
    assert split.loads.tolist() == [sum(costs[a:b]) for a, b in itertools.pairwise(offsets)]
    assert max(split.loads.tolist()) == split.makespan == split.minimised == split.lower_bound == optimum
    assert not nonempty or all(a < b for a, b in itertools.pairwise(offsets))


@given(st.lists(st.integers(0, 12), max_size=14), st.integers(12, 40), NO_LIMIT_OR_FEW)
def test_fewest_segments(costs, cap, max_items):
    split = split_fewest(costs, cap, max_items=max_items)
    check_split(costs, split, cap=cap, max_items=max_items)
    assert split.num_groups == split.minimised == oracles.fewest_segments(costs, cap, max_items)
    assert all(load <= cap for load in split.loads.tolist())


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=200), st.integers(1, 40))
def test_the_two_agree(costs, num_groups):
    """The smallest cap for which m groups are enough is the smallest largest load of m groups."""
    makespan = split_contiguous(costs, num_groups).makespan
    assert split_fewest(costs, max(makespan, 1)).num_groups <= num_groups
    if makespan - 1 >= max(1, *costs):
        assert split_fewest(costs, makespan - 1).num_groups > num_groups


def test_groups_by_item():
    split = split_contiguous([5, 1, 4, 3, 3], 4)
    assert split.group_of_item.tolist() == [0, 1, 1, 2, 3]
    assert split.group_of_item.dtype == np.int32
    assert not split.group_of_item.flags.writeable
    assert split_contiguous([], 2).group_of_item.tolist() == []
    assert split_fewest([], 2).offsets.tolist() == [0]
    assert split_fewest([0, 0, 0], 2, max_items=2).offsets.tolist() == [0, 2, 3]


def test_near_the_end_of_int64():
    costs = [2**62, 2**61, 2**61 - 1]
    split = split_contiguous(costs, 2)
    check_split(costs, split, num_groups=2)
    assert split.makespan == 2**62
    assert split_fewest(costs, 2**63 - 1).num_groups == 1


BAD_CALLS = [
    (split_contiguous, ([1], 0), ValueError, "num_groups must be >= 1, got 0"),
    (split_contiguous, ([-1], 1), ValueError, r"costs\[0\] must be >= 0, got -1"),
    (split_contiguous, ([2**62, 2**62], 1), ValueError, "the sum of costs must fit int64"),
    (split_fewest, ([1], 0), ValueError, "cap must be >= 1, got 0"),
    (split_fewest, ([1, 5], 4), InfeasibleError, r"item 1: costs\[1\] = 5 is over cap = 4 by 1"),
]


@pytest.mark.parametrize(("split", "args", "error", "message"), BAD_CALLS)
def test_bad_arguments_are_named(split, args, error, message):
    with pytest.raises(error, match=message):
        split(*args)
    with pytest.raises(ValueError, match="max_items must be >= 1, got 0"):
        split_fewest([1], 1, max_items=0)


COSTS = [5, 1, 4, 3, 3]
FALSE_CLAIMS = [
    ({"offsets": np.array([0, 3, 4])}, "offsets must ascend from 0 to 5"),
    ({"offsets": np.array([0, 6, 5])}, "offsets must ascend from 0 to 5"),
    ({"offsets": np.array([0, 5])}, r"offsets must be int64\[3\], got int64 of shape \(2,\)"),
    ({"offsets": np.array([0, 2, 5])}, "the load of group 0 is 6, not 10"),
    ({"offsets": np.array([0, 4, 5]), "loads": np.array([13, 3])}, "minimised is 13, not 10"),
    ({"offsets": np.array([0, 4, 5]), "loads": np.array([13, 3]), "minimised": 13}, "greedy cuts do better than 13"),
    ({"lower_bound": 9}, "an optimal split has lower_bound = 10 by 'greedy' and status optimal, got 9 by 'greedy'"),
]


@pytest.mark.parametrize(("changes", "message"), FALSE_CLAIMS)
def test_false_claims_are_found(changes, message):
    split = dataclasses.replace(split_contiguous(COSTS, 2), **changes)
    with pytest.raises(CertificateError, match=message):
        check_split(COSTS, split, num_groups=2)


def test_what_was_asked_for_is_checked_too():
    split = split_contiguous(COSTS, 2)
    with pytest.raises(CertificateError, match="there are 2 groups, not 3"):
        check_split(COSTS, split, num_groups=3)
    with pytest.raises(CertificateError, match="no group may be empty, but group 1 is"):
        check_split([9, 0], split_contiguous([9, 0], 2), num_groups=2, nonempty=True)
    with pytest.raises(CertificateError, match="group 0 weighs 10, over cap = 9"):
        check_split(COSTS, split, cap=9)
    with pytest.raises(CertificateError, match="group 0 holds 3 items, over max_items = 2"):
        check_split(COSTS, split, cap=10, max_items=2)
    with pytest.raises(CertificateError, match="greedy cuts do better than 2"):
        check_split(COSTS, dataclasses.replace(split, minimised=2), cap=16)
    with pytest.raises(TypeError, match="exactly one of num_groups and cap must be given"):
        check_split(COSTS, split)
