"""Placements: samples to places and back."""

import numpy as np
import pytest
from balance_cases import placements
from hypothesis import given
from hypothesis import strategies as st

from balancer import Placement


@given(st.data(), st.integers(0, 20), st.integers(1, 6))
def test_both_ways_agree(data, num_samples, num_ranks):
    placement = data.draw(placements(num_samples, num_ranks))
    seen = []
    for rank in range(num_ranks):
        for position, sample in enumerate(placement.samples_on_rank(rank).tolist()):
            assert placement.rank_of_sample[sample] == rank
            assert placement.position_of_sample[sample] == position
            seen.append(sample)
    assert sorted(seen) == list(range(num_samples))
    assert placement.num_ranks == num_ranks
    assert placement.rank_of_sample.dtype == placement.position_of_sample.dtype == np.int32
    assert placement.samples.dtype == placement.offsets.dtype == np.int64


@given(st.lists(st.integers(0, 4), max_size=20))
def test_by_sample_order_is_ascending(ranks):
    placement = Placement.by_sample_order(np.array(ranks, dtype=np.int32), 5)
    for rank in range(5):
        assert placement.samples_on_rank(rank).tolist() == [s for s, r in enumerate(ranks) if r == rank]


@given(st.data(), st.integers(0, 12), st.integers(1, 5))
def test_lifted_items_follow_their_samples_in_order(data, num_samples, num_ranks):
    placement = data.draw(placements(num_samples, num_ranks))
    counts = data.draw(st.lists(st.integers(0, 3), min_size=num_samples, max_size=num_samples))
    sample_of_item = [sample for sample, count in enumerate(counts) for _ in range(count)]
    lifted = placement.lifted(np.array(sample_of_item, dtype=np.int64))
    for rank in range(num_ranks):
        expected = []
        for sample in placement.samples_on_rank(rank).tolist():
            expected += [item for item, of in enumerate(sample_of_item) if of == sample]
        assert lifted.samples_on_rank(rank).tolist() == expected
        assert lifted.position_of_sample[expected].tolist() == list(range(len(expected)))
        assert (lifted.rank_of_sample[expected] == rank).all()
    assert lifted.num_ranks == num_ranks


@pytest.mark.parametrize(
    ("ranks", "positions", "words"),
    [
        ([0, 2, 1], None, ["rank_of_sample[1]", "0..1", "2"]),
        ([[0, 1]], None, ["rank_of_sample", "one-dimensional"]),
        ([0, 0, 1], [0, 1], ["position_of_sample", "3 entries", "2"]),
        ([0, 0, 1], [0, 2, 0], ["position_of_sample[1]", "0..1", "2"]),
        ([0, 0, 1], [1, 1, 0], ["position 1", "rank 0", "samples 0 and 1"]),
    ],
)
def test_bad_placements_are_named(ranks, positions, words):
    with pytest.raises(ValueError, match=r"rank|position") as caught:
        Placement.checked(ranks, 2, positions)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("rank", ["0", 0.0, None, True])
def test_a_rank_is_an_integer(rank):
    with pytest.raises(TypeError, match="rank must be an integer, got "):
        Placement.checked([0, 1], 2).samples_on_rank(rank)


def test_a_placement_is_frozen_and_compares_by_content():
    placement = Placement.checked([0, 0, 1], 2, [1, 0, 0])
    assert placement == Placement.checked(np.array([0, 0, 1]), 2, [1, 0, 0])
    assert placement != Placement.checked([0, 0, 1], 2)  # another order
    assert placement != Placement.checked([0, 1, 0], 2)
    assert placement != Placement.checked([0, 0, 1], 3, [1, 0, 0])  # another empty rank
    assert placement != "placement"
    with pytest.raises(TypeError):
        hash(placement)
    with pytest.raises(AttributeError):
        placement.samples = None
    for name in ("rank_of_sample", "position_of_sample", "samples", "offsets"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(placement, name)[0] = 0
    with pytest.raises(ValueError, match="read-only"):
        placement.samples_on_rank(0)[0] = 1
