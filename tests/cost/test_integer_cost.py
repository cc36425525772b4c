"""From coefficients to the integers that plans are made with: what rounding loses is said, and mostly nothing."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import balancer
from balancer.cost import flops, parse_cost
from balancer.cost.integer import integer_flops, integer_seconds
from balancer.cost.polynomial import LengthPolynomial

INT64_MAX = 2**63 - 1


@given(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(1, 2**30))
def test_common_factors_go_and_nothing_else(a, b, factor):
    if a == b == 0:
        return
    cost = integer_flops({"a": a * factor, "b": b * factor}, total_length=1000, longest=100)
    assert cost.rounding == 0.0
    assert cost.model.a * cost.factor == a * factor
    assert cost.model.b * cost.factor == b * factor
    assert np.gcd(cost.model.a, cost.model.b) == 1


@given(st.integers(0, 2**60), st.integers(0, 2**60), st.integers(1, 2**33), st.integers(1, 2**20))
def test_sums_fit_int64_and_the_rounding_is_what_is_said(a, b, total, longest):
    if a == b == 0:
        return
    cost = integer_flops({"constant": 5, "a": a, "b": b}, total_length=total, longest=longest)
    assert cost.model.a * total + cost.model.b * total * longest <= INT64_MAX
    divided = cost.factor // math.gcd(a, b)
    assert divided & (divided - 1) == 0  # a power of two, and no larger than needed
    if divided > 1:
        half = [round(Fraction(2 * value, cost.factor)) for value in (a, b)]
        assert half[0] * total + half[1] * total * longest > INT64_MAX
    for length in {1, longest, max(1, longest // 3)}:
        exact = Fraction(a + b * length, cost.factor)
        assert abs(cost.model.a + cost.model.b * length - exact) <= exact * Fraction(
            cost.rounding * (1 + 1e-12) + 1e-15
        )
    assert cost.omitted_constant == pytest.approx(5 / cost.factor)


def test_a_batch_at_the_limit_is_planned():
    polynomial = flops("qwen2-72b")
    lengths = [2**20] * 512
    assert sum(lengths) < 2**32
    assert balancer.balance(lengths, 8, cost=polynomial.cost_model()).gap == 0


def test_plans_are_those_of_the_whole_flops():
    polynomial = LengthPolynomial(0, 600, 20)
    lengths = [3, 14, 15, 92, 65, 35, 89, 79, 32, 38]
    small = balancer.balance(lengths, 3, cost=polynomial.cost_model())
    whole = balancer.balance(lengths, 3, cost="quadratic:a=600,b=20")
    assert small.rank_of_sample.tolist() == whole.rank_of_sample.tolist()
    assert small.makespan * 20 == whole.makespan


def test_the_coarsest_unit_that_is_fine_enough():
    assert integer_seconds({"a": 1e-6, "b": 0}).work_unit == "1 ns"
    assert integer_seconds({"a": 2.0**-9, "b": 0}).rounding == 0  # 1,953,125 ns
    assert integer_seconds({"a": 1.14e-4, "b": 1.5e-9}).unit == "ps"
    assert integer_seconds({"a": 1.14e-4, "b": 1.5e-9}, longest=1).unit == "ns"  # no length at which b matters
    assert integer_seconds({"a": 1e-9, "b": 1.5e-13}).unit == "fs"
    assert integer_seconds({"a": 1e-9, "b": 1.5e-15}, longest=2**20).rounding > 1e-3  # no finer unit: said, not hidden
    assert integer_seconds({"a": 1e10 / 3, "b": 0}).unit == "ns"


@given(st.floats(1e-9, 1e3), st.floats(0, 1e-6), st.integers(1, 2**20))
def test_seconds_round_as_said(a, b, longest):
    cost = integer_seconds({"a": a, "b": b}, longest=longest)
    per_unit = {"ns": 10**9, "ps": 10**12, "fs": 10**15}
    per_second = per_unit[cost.unit]
    for length in (1, longest):
        exact = (a * length + b * length**2) * per_second
        assert abs(cost.model.a * length + cost.model.b * length**2 - exact) <= exact * (cost.rounding + 1e-9)
    if cost.rounding > 1e-3:
        for units in per_unit.values():
            assert max(a, b) * units > INT64_MAX or cost.rounding <= largest_error(a, b, units, longest)


def largest_error(a, b, units_per_second, longest):
    """Of either coefficient rounded to whole units."""
    exact_a, exact_b = Fraction(a) * units_per_second, Fraction(b) * units_per_second
    rounded_a, rounded_b = round(exact_a), round(exact_b)
    if not rounded_a and not rounded_b:
        return math.inf
    of_length = [
        abs(rounded_a - exact_a + (rounded_b - exact_b) * length) / (exact_a + exact_b * length)
        for length in (1, longest)
    ]
    return float(max(of_length))


def test_no_finer_unit_than_helps():
    """Of a second coefficient below half a femtosecond no unit holds anything: then the coarsest will do."""
    cost = integer_seconds({"a": 1e-9, "b": 2.220446049250313e-16}, longest=4509)
    assert (cost.unit, cost.rounding > 1e-3) == ("ns", True)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: integer_flops({"constant": 3}, total_length=1, longest=1), "do not depend on the length"),
        (lambda: integer_flops({"constant": 3, "a": 1}, total_length=0, longest=1), "must be >= 1, got 0 and 1"),
        (lambda: integer_seconds({"a": -1.0, "b": 0}), "coefficient a must be finite and >= 0"),
        (lambda: integer_seconds({"a": 0, "b": float("nan")}), "coefficient b must be finite"),
        (lambda: integer_seconds({"a": 0, "b": 0}), "must be a positive number"),
        (lambda: integer_seconds({"a": 1e-18, "b": 0}), "must be a positive number"),
        (lambda: integer_seconds({"a": 1e11, "b": 0}), "must be a positive number"),
    ],
)
def test_what_makes_no_cost(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_a_cost_by_the_name_of_a_model():
    assert parse_cost("flops:qwen2-7b") == flops("qwen2-7b").cost_model()
    lengths = [100, 4000, 2000, 2100]
    plan = balancer.balance(lengths, 2, cost="flops:qwen2-7b")
    members = [[lengths[i] for i in plan.samples_on_rank(rank)] for rank in range(2)]
    assert plan.loads.tolist() == [sum(493184 * x + 7 * x * x for x in group) for group in members]
    with pytest.raises(balancer.InputError, match=r"unknown model 'gpt-9'; known are qwen2-7b, .*whisper"):
        parse_cost("flops:gpt-9")
    with pytest.raises(ValueError, match="flops:qwen2-7b"):
        parse_cost("cubic")
