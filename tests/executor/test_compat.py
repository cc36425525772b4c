"""Drop-ins for trainers: their signatures and types, better answers, and inputs at which the originals assert."""

import inspect
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import solvers
from balancer.compat import openrlhf, slime, verl

if find_spec("torch"):
    import agreement_cases

lengths = st.lists(st.integers(0, 2000), max_size=40)
groups = st.integers(1, 12)


def assert_partition(partitions, n):
    assert type(partitions) is list
    assert all(type(group) is list and group == sorted(group) for group in partitions)
    assert sorted(index for group in partitions for index in group) == list(range(n))
    assert all(type(index) is int for group in partitions for index in group)


@given(lengths, groups, st.booleans())
def test_partitions_are_complete_even_and_as_many_as_asked_for(values, k, equal_size):
    partitions = verl.get_seqlen_balanced_partitions(values, k, equal_size)
    assert_partition(partitions, len(values))
    assert len(partitions) == k
    sizes = [len(group) for group in partitions]
    if equal_size:
        assert max(sizes) - min(sizes) <= 1
    if len(values) >= k:
        assert min(sizes) >= 1
    sums = [sum(values[index] for index in group) for group in partitions]
    if not equal_size:
        assert max(sums) <= -(-sum(values) // k) + max(values, default=0)


@pytest.mark.parametrize("module", [verl, slime, openrlhf])
def test_signatures(module):
    assert list(inspect.signature(module.get_seqlen_balanced_partitions).parameters) == [
        "seqlen_list", "k_partitions", "equal_size",
    ]  # fmt: skip
    assert list(inspect.signature(module.get_reverse_idx).parameters) == ["idx_map"]


def test_it_takes_what_trainers_hand_in():
    torch = pytest.importorskip("torch")
    values = [5, 3, 9, 1, 2, 4]
    wanted = verl.get_seqlen_balanced_partitions(values, 2, True)
    tensor = torch.tensor(values)
    for given_as in (tuple(values), np.array(values), tensor, tensor.int(), [float(value) for value in values]):
        assert verl.get_seqlen_balanced_partitions(given_as, 2, True) == wanted
    assert_partition(verl.get_seqlen_balanced_partitions([0.5, 0.25, 1e-9, 3.75], 2, False), 4)
    reverse = verl.get_reverse_idx(torch.tensor([2, 0, 1]))
    assert isinstance(reverse, torch.Tensor)
    assert reverse.tolist() == [1, 2, 0]
    with pytest.raises(ValueError, match="seqlen_list"):
        verl.get_seqlen_balanced_partitions([1.0, float("nan")], 2, False)


@given(st.permutations(range(9)))
def test_reverse(permutation):
    reverse = verl.get_reverse_idx(permutation)
    assert type(reverse) is list
    assert [reverse[index] for index in permutation] == list(range(9))
    assert np.array_equal(verl.get_reverse_idx(np.array(permutation)), reverse)


def test_reverse_refuses_what_is_no_permutation():
    with pytest.raises(ValueError, match=r"permutation of 0\.\.2"):
        verl.get_reverse_idx([0, 0, 1])


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(50, 120), st.integers(1, 3), st.integers(1, 4),
    st.booleans(),
)  # fmt: skip
def test_micro_batches_never_exceed_the_cap(values, cap, divisor, least, balance):
    found = verl.rearrange_micro_batches_idx(
        values, cap, num_batches_divided_by=divisor, min_num_micro_batch=least, use_dynamic_bsz_balance=balance
    )
    assert sorted(index for group in found for index in group) == list(range(len(values)))
    assert all(sum(values[index] for index in group) <= cap for group in found)
    assert len(found) % divisor == 0
    assert len(found) >= least
    assert len(found) >= -(-sum(values) // cap)
    if len(found) <= len(values):
        assert all(found)


def test_micro_batches_of_groups_that_stay_together():
    found = verl.rearrange_micro_batches_idx([4, 4, 1, 1, 3, 3], 10, force_group_size=2)
    assert sorted(map(tuple, found)) == [(0, 1), (2, 3, 4, 5)]
    with pytest.raises(ValueError, match="force_group_size must divide the 3 samples, got 2"):
        verl.rearrange_micro_batches_idx([1, 2, 3], 10, force_group_size=2)
    with pytest.raises(solvers.InfeasibleError):
        verl.rearrange_micro_batches_idx([11], 10)


def test_all_ranks_get_as_many_micro_batches_as_one_needs():
    pytest.importorskip("torch")
    from rank_processes import Ranks

    with Ranks(2) as ranks:
        found = ranks.run(agreement_cases.as_many_micro_batches)
    assert [len(groups) for groups in found] == [3, 3]


def test_the_average_that_exceeds_the_cap_elsewhere():
    assert sorted(verl.rearrange_micro_batches_idx([7] * 8, 8)) == [[i] for i in range(8)]


@given(st.lists(st.integers(1, 30), max_size=20), st.integers(30, 60))
def test_first_fit_counts(values, cap):
    bins = []
    for value in values:
        for index, held in enumerate(bins):
            if held + value <= cap:
                bins[index] += value
                break
        else:
            bins.append(value)
    assert slime.get_minimum_num_micro_batch_size(values, cap) == len(bins)
    assert openrlhf.get_minimum_num_micro_batch_size(values, cap, 1, 1) == len(bins)
