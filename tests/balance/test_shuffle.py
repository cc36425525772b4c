"""The order of an epoch: a permutation, whose definition never changes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples

from balancer.problem.shuffle import shuffled, unshuffled

MASK = 2**64 - 1


def naive(position, n, seed, epoch):
    """The definition as it is written down, number by number."""

    def mix(x):
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
        x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
        return x ^ x >> 31

    g = 0x9E3779B97F4A7C15
    k = mix((mix((seed + g) & MASK) + (epoch + 1) * g) & MASK)
    keys = [mix((k + (r + 1) * g) & MASK) for r in range(8)]
    w = 1
    while 4**w < n:
        w += 1
    while True:
        left, right = position >> w, position & (2**w - 1)
        for key in keys:
            left, right = right, left ^ mix((right + key) & MASK) % 2**w
        position = (left << w) | right
        if position < n:
            return position


@given(st.integers(1, 300), st.integers(0, 2**63 - 1), st.integers(0, 2**40))
@settings(max_examples=examples(20))
def test_it_is_the_permutation_that_is_written_down(n, seed, epoch):
    order = shuffled(np.arange(n), n, seed, epoch)
    assert sorted(order.tolist()) == list(range(n))
    assert order.tolist() == [naive(position, n, seed, epoch) for position in range(n)]
    assert unshuffled(order, n, seed, epoch).tolist() == list(range(n))
    assert np.array_equal(shuffled(np.arange(n)[::-2], n, seed, epoch), order[::-2])


def test_the_definition_is_fixed_for_ever():
    assert shuffled(range(10), 10, 42).tolist() == [7, 1, 2, 8, 6, 9, 4, 0, 5, 3]
    assert shuffled([0, 1, 999_999_999_999], 10**12, 2**63 - 1, 7).tolist() == [
        945063532988,
        836185385931,
        866354292552,
    ]


def test_every_row_comes_everywhere_as_often():
    seen = np.zeros((7, 7))
    for seed in range(2000):
        seen[np.arange(7), shuffled(range(7), 7, seed)] += 1
    assert ((seen - 2000 / 7) ** 2 / (2000 / 7)).sum() < 80  # chi-squared of 36 degrees: one in 30,000 is above


@pytest.mark.parametrize(("arguments", "name"), [((0, 1), "num_rows"), ((3, -1), "seed"), ((3, 1, -1), "epoch")])
def test_what_makes_no_order_is_refused(arguments, name):
    with pytest.raises(ValueError, match=f"{name} must be"):
        shuffled([], *arguments)
