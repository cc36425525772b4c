"""Throughput curves: through the points, between and beyond them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import balancer
from balancer.cost import SaturatingThroughput, ThroughputCurve

points = st.lists(st.tuples(st.integers(1, 10**6), st.floats(1e12, 1e15)), min_size=1, max_size=12)


def test_through_the_points_and_saturated_beyond():
    curve = ThroughputCurve.from_points([4096, 128, 512], [4e14, 1e14, 3e14])
    assert curve.tokens.tolist() == [128, 512, 4096]
    assert curve.at([128, 512, 4096]).tolist() == [1e14, 3e14, 4e14]
    assert curve.at([0, 64, 320, 10**9]).tolist() == [0, 5e13, 2e14, 4e14]
    assert curve.seconds(8e14, 4096) == 2.0
    assert curve.seconds([0, 1e14], [0, 64]).tolist() == [0, 2]


def test_points_that_fall_are_what_was_measured():
    curve = ThroughputCurve.from_points([100, 200, 300], [3.2e14, 2.8e14, 4e14])
    assert curve.at([100, 150, 200, 250]).tolist() == [3.2e14, 3e14, 2.8e14, 3.4e14]


@given(points)
def test_any_points_give_a_curve_within_them(given_points):
    tokens, rates = np.array(given_points).T
    curve = ThroughputCurve.from_points(tokens, rates)
    asked = curve.at(np.geomspace(tokens.min(), 2 * tokens.max(), 50))
    assert rates.min() * (1 - 1e-12) <= asked.min()
    assert asked.max() <= rates.max() * (1 + 1e-12)
    assert curve.at(tokens.min() / 2) == pytest.approx(curve.at(tokens.min()) / 2)


def test_repeated_points_are_averaged():
    curve = ThroughputCurve.from_points([100, 100, 200], [1e14, 3e14, 3e14])
    assert curve.at(100) == 2e14


def test_saturating():
    curve = SaturatingThroughput(4e14)
    assert curve.at([1, 100]).tolist() == [4e14, 4e14]
    assert SaturatingThroughput(4e14, 100).at([0, 100, 300]).tolist() == [0, 2e14, 3e14]
    assert SaturatingThroughput(4e14, 100).seconds(0, 0) == 0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SaturatingThroughput(0), "peak must be positive"),
        (lambda: SaturatingThroughput(1e14, -1), "half_tokens must be >= 0"),
        (lambda: SaturatingThroughput(1e14).at(-1), "tokens must be >= 0, got -1"),
        (lambda: ThroughputCurve.from_points([], []), "at least one"),
        (lambda: ThroughputCurve.from_points([1, 2], [1e14]), "as many tokens as rates"),
        (lambda: ThroughputCurve.from_points([1, 0], [1e14, 1e14]), r"tokens\[1\] must be positive"),
        (lambda: ThroughputCurve.from_points([1, 2], [1e14, np.inf]), r"flops_per_second\[1\]"),
    ],
)
def test_what_is_no_curve(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_from_csv(tmp_path):
    path = tmp_path / "curve.csv"
    path.write_text("tokens,note,flops_per_second\n128,x,1e14\n512,y,3e14\n")
    assert ThroughputCurve.from_csv(path).at(320) == 2e14


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no such file"),
        ("", "no column 'tokens'; columns there are: none"),
        ("tokens,rate\n1,2\n", "no column 'flops_per_second'; columns there are: tokens, rate"),
        ("tokens,flops_per_second\n", "holds no rows"),
        ("tokens,flops_per_second\n1,1e14\n2,fast\n", "column 'flops_per_second', row 1: 'fast' must be a positive"),
        ("tokens,flops_per_second\n1\n", "row 0: None must be"),
        ("tokens,flops_per_second\n0,1e14\n", "column 'tokens', row 0: '0' must be"),
    ],
)
def test_bad_csv(content, words, tmp_path):
    path = tmp_path / "curve.csv"
    if content is not None:
        path.write_text(content)
    with pytest.raises(balancer.InputError, match=words) as caught:
        ThroughputCurve.from_csv(path)
    assert str(path) in str(caught.value)
