"""Drop-ins for trainers: their signatures and types, better answers, and inputs at which the originals assert."""

import inspect
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import solvers
from balancer.compat import verl

if find_spec("torch"):
    import torch.distributed as dist
    from each_rank import each_rank
    from ranks_of import ranks_of

    ranks = ranks_of(2)

    @each_rank
    def test_all_ranks_get_as_many_micro_batches_as_one_needs(rank):
        found = verl.rearrange_micro_batches_idx([[7, 7, 7], [1, 1]][rank], 8, dp_group=dist.group.WORLD)
        assert len(found) == 3

    @each_rank
    def test_ranks_learn_of_a_sample_that_does_not_fit_before_any_raises(rank):
        with pytest.raises((solvers.InfeasibleError, ValueError)) as caught:
            verl.rearrange_micro_batches_idx([[7, 9, 7], [1, 1]][rank], 8, dp_group=dist.group.WORLD)
        assert type(caught.value).__name__ == ["ContradictionError", "UsageError"][rank]
        assert rank == 0 or "of another rank" in str(caught.value)


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


def test_signatures():
    assert list(inspect.signature(verl.get_seqlen_balanced_partitions).parameters) == [
        "seqlen_list", "k_partitions", "equal_size",
    ]  # fmt: skip


def test_it_takes_what_trainers_hand_in():
    torch = pytest.importorskip("torch")
    values = [5, 3, 9, 1, 2, 4]
    wanted = verl.get_seqlen_balanced_partitions(values, 2, True)
    tensor = torch.tensor(values)
    for given_as in (tuple(values), np.array(values), tensor, tensor.int(), [float(value) for value in values]):
        assert verl.get_seqlen_balanced_partitions(given_as, 2, True) == wanted
    assert_partition(verl.get_seqlen_balanced_partitions([0.5, 0.25, 1e-9, 3.75], 2, False), 4)
    with pytest.raises(ValueError, match="seqlen_list"):
        verl.get_seqlen_balanced_partitions([1.0, float("nan")], 2, False)


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


def test_groups_of_one_uid_stay_together_adjacent_or_not():
    uids = list("abababccdd")
    found = verl.get_group_balanced_partitions([9, 1, 9, 1, 9, 1, 5, 5, 5, 5], uids, 2)
    assert_partition(found, 10)
    assert {uids[index] for index in found[0]}.isdisjoint(uids[index] for index in found[1])
    assert sorted(len({uids[i] for i in part}) for part in found) == [2, 2]
    with pytest.raises(ValueError, match="uid_list must have one entry for each of 2 samples, got 1"):
        verl.get_group_balanced_partitions([1, 2], ["a"], 1)


def test_a_cap_that_no_micro_batch_keeps_to_is_a_value_error_too():
    for error in (ValueError, solvers.InfeasibleError):
        with pytest.raises(error, match="11"):
            verl.rearrange_micro_batches_idx([11], 10)
    with pytest.raises(ValueError, match="3 micro-batches are needed, but a rank has only 2 samples"):
        verl.rearrange_micro_batches_idx([1, 1], 10, min_num_micro_batch=3, allow_empty=False)
