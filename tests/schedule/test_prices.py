"""Tokens with a price: no rank of any schedule holds more than is said, and what is said is not idle."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples

from solvers.packing import price_tokens, rests_of_slots

SAMPLES = st.lists(
    st.tuples(st.integers(0, 90), st.integers(0, 12), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=12
)


@settings(max_examples=examples(60))
@given(SAMPLES, st.sampled_from([1, 50, 2**40]), st.sampled_from([1, 2**20]), st.sampled_from(["1/2", "1", "7/5"]))
def test_no_rank_holds_more(samples, cost_unit, token_unit, room):
    """Of a random layout of three ranks of three slots, whose cap is what its fullest micro-batch holds."""
    costs, tokens, ranks, slots = (np.array(column) for column in zip(*samples, strict=True))
    costs, tokens = costs * cost_unit, tokens * token_unit
    loads, used = np.zeros((3, 3), dtype=np.int64), np.zeros((3, 3), dtype=np.int64)
    np.add.at(loads, (ranks, slots), costs)
    np.add.at(used, (ranks, slots), tokens)
    cap, heights = max(1, int(used.max())), sorted(loads.max(axis=0).tolist(), reverse=True)
    known = [sum(heights[tall:]) for tall in range(3)]
    proven = rests_of_slots(costs, tokens, sum(heights), 3, 3, cap)
    assert all(least >= rest for least, rest in zip(proven, known, strict=False))
    for rests in (known, proven):
        priced = price_tokens(costs, tokens, rests, 3, cap, Fraction(room))
        held = np.zeros(3, dtype=np.int64)
        np.add.at(held, ranks, priced.costs)
        assert held.max() <= priced.most
        assert (priced.costs <= costs).all()


def test_full_tall_slots_leave_ranks_no_room():
    """Dense samples fill the first slot of both ranks, and the others must then share the rest evenly."""
    costs, tokens = np.array([90, 80, 30, 20, 20, 30]), np.array([9, 9, 6, 4, 4, 6])
    priced = price_tokens(costs, tokens, [90 + 50, 50], num_ranks=2, cap=9)
    assert (priced.tall, priced.costs.tolist(), priced.most) == (1, [45, 45, 30, 20, 20, 30], 50 + 45)
    assert 2 * priced.most == priced.costs.sum()


@pytest.mark.parametrize("lengths", [[], [0, 0], [7]])
def test_nothing_to_price(lengths):
    lengths = np.array(lengths, dtype=np.int64)
    priced = price_tokens(lengths, lengths, [9, 4], num_ranks=2, cap=8)
    assert (priced.costs.tolist(), priced.most, priced.tall) == (lengths.tolist(), 9, 0)
