"""Global batches: where samples lie, what callers may hand in, and how a stream is cut."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples

import balancer
from balancer.problem.batch import GlobalBatch, contiguous_homes, strided_homes


@given(st.integers(1, 6), st.integers(1, 5), st.data())
@settings(max_examples=examples(15))
def test_homes_against_their_definition(num_ranks, batch_per_rank, data):
    n = data.draw(st.integers(0, num_ranks * batch_per_rank))  # a last step may be short
    contiguous = contiguous_homes(n, num_ranks, batch_per_rank)
    strided = strided_homes(n, num_ranks, batch_per_rank)
    assert contiguous.rank_of_sample.tolist() == [i // batch_per_rank for i in range(n)]
    assert strided.rank_of_sample.tolist() == [i % num_ranks for i in range(n)]
    assert contiguous.position_of_sample.tolist() == [i % batch_per_rank for i in range(n)]
    assert strided.position_of_sample.tolist() == [i // num_ranks for i in range(n)]
    assert contiguous.num_ranks == strided.num_ranks == num_ranks


def test_too_many_samples_for_the_ranks():
    with pytest.raises(ValueError, match=r"9 samples do not fit on 4 ranks with batch_per_rank = 2"):
        contiguous_homes(9, 4, 2)


@given(st.integers(0, 40), st.integers(1, 12))
def test_home_when_none_is_given(n, num_ranks):
    share = -(-n // num_ranks)
    plan = balancer.balance([1] * n, num_ranks)
    assert plan.home.rank_of_sample.tolist() == [i // share for i in range(n)]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"lengths": [1, -5]}, ValueError, ["lengths[1]", ">= 0", "-5"]),
        ({"lengths": [1, 2.5]}, ValueError, ["lengths[1]", "whole number", "2.5"]),
        ({"lengths": [1, float("nan")]}, ValueError, ["lengths[1]", "finite", "nan"]),
        ({"lengths": [1, 2**63]}, ValueError, ["lengths[1]", "int64"]),
        ({"lengths": [1, 1e300]}, ValueError, ["lengths[1]", "int64"]),
        ({"lengths": [[1, 2]]}, ValueError, ["lengths", "one-dimensional", "(1, 2)"]),
        ({"lengths": [[1], [2, 3]]}, TypeError, ["lengths", "one-dimensional"]),
        ({"lengths": ["1", "2"]}, TypeError, ["lengths", "integers"]),
        ({"home_rank": [0, 1]}, ValueError, ["home_rank", "3 samples", "2"]),
        ({"home_rank": [0, 1, 2]}, ValueError, ["home_rank[2]", "0..1", "2"]),
        ({"home_rank": ["a", "b", "c"]}, TypeError, ["home_rank"]),
        ({"num_ranks": 0}, ValueError, ["num_ranks", ">= 1", "0"]),
        ({"num_ranks": None}, TypeError, ["num_ranks", "None"]),
    ],
)
def test_bad_arguments_are_named(arguments, error, words):
    with pytest.raises(error) as caught:
        balancer.balance(**{"lengths": [1, 2, 3], "num_ranks": 2, **arguments})
    for word in words:
        assert word in str(caught.value)
    assert "rank_of_sample" not in str(caught.value)


def test_lengths_are_checked_and_read_only():
    batch = GlobalBatch.from_lengths(np.array([3, 1], dtype=np.uint8), 2)
    assert batch.lengths.dtype == np.int64
    with pytest.raises(ValueError, match="read-only"):
        batch.lengths[0] = 1
