"""Cost models: how they are written, what they cost, and where int64 ends."""

import numpy as np
import pytest
from balance_cases import COSTS, naive_costs, naive_loads
from hypothesis import given
from hypothesis import strategies as st

import balancer
from balancer import CostModel
from balancer.cost import parse_cost

INT64_MAX = 2**63 - 1


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("linear", CostModel()),
        ("quadratic:a=24576,b=1", CostModel(24576, 1)),
        ("padded", CostModel(padded=True)),
        ("padded:a=0,b=5", CostModel(0, 5, padded=True)),
        ("convolution:a=0,b=2,c=3,p=2", CostModel(0, 2, c=3, p=2)),
        ("convolution:p=2,c=3,b=0,a=0", CostModel(0, 0, c=3, p=2)),
    ],
)
def test_forms(text, model):
    assert parse_cost(text) == model
    assert parse_cost(str(model)) == model


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cubic", ["'cubic'", "linear", "quadratic", "padded"]),
        ("quadratic", ["coefficient", "quadratic:a=24576,b=1"]),
        ("linear:b=1", ["coefficient", "linear[:a=1]"]),
        ("linear:a=1,a=2", ["'a=2'", "one coefficient"]),
        ("linear:a=-1", ["'a=-1'", "whole number"]),
        ("linear:a=²", ["whole number"]),
        ("linear:self=1", ["coefficient"]),
        ("quadratic:a=0,b=0", ["both be 0"]),
        ("convolution", ["coefficient", "convolution:a=24576,c=100[,b=0,p=1]"]),
        ("convolution:a=1,c=0", ["c must be >= 1", "quadratic or linear"]),
        ("convolution:a=1,c=1,p=63", ["p, a power, must be 1 to 62, got 63"]),
    ],
)
def test_bad_forms_are_named(text, words):
    with pytest.raises(ValueError, match=r"cost|coefficient") as caught:
        parse_cost(text)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("value", [None, 3, ["linear"]])
def test_a_cost_of_another_type(value):
    with pytest.raises(TypeError, match="cost must be a string or a CostModel"):
        parse_cost(value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"c": 1, "padded": True}, "padded costs take no coefficient c"), ({"p": 2}, "p = 2 needs a coefficient c")],
)
def test_coefficients_that_contradict(arguments, words):
    with pytest.raises(ValueError, match=words):
        CostModel(**arguments)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 10**6), st.integers(1, 62))
def test_text_round_trip_of_convolutions(a, b, c, p):
    assert parse_cost(str(CostModel(a, b, c=c, p=p))) == CostModel(a, b, c=c, p=p)


@pytest.mark.parametrize("name", ["a", "b", "c", "p"])
@pytest.mark.parametrize("value", [-1, 1.0, True, "1", None])
def test_bad_coefficients(name, value):
    with pytest.raises(ValueError, match=f"coefficient {name} must be an integer >= 0"):
        CostModel(**{"a": 1, "b": 1, name: value})


def test_cost_model_is_frozen_and_hashable():
    model = CostModel(2, 3)
    with pytest.raises(AttributeError):
        model.a = 5
    assert len({model, CostModel(2, 3), CostModel(2, 3, padded=True)}) == 2


@given(st.lists(st.integers(0, 2**20), max_size=20), st.sampled_from(COSTS), st.data())
def test_loads_against_loops(lengths, cost, data):
    ranks = data.draw(st.lists(st.integers(0, 3), min_size=len(lengths), max_size=len(lengths)))
    model = parse_cost(cost)
    costs = model.sample_costs(np.array(lengths, dtype=np.int64))
    assert costs.dtype == np.int64
    each = costs[:, 0] if model.c else costs
    assert each.tolist() == naive_costs(lengths, cost)
    if model.c:
        assert costs[:, 1].tolist() == [model.c * length**model.p for length in lengths]
    loads = model.loads(costs, np.array(ranks, dtype=np.int32), 4)
    assert loads.dtype == np.int64
    assert loads.tolist() == naive_loads(lengths, ranks, 4, cost)


def test_padded_rows_of_length_zero_are_rows():
    model = parse_cost("padded")
    costs = model.sample_costs(np.array([5, 0, 0, 0]))
    assert model.loads(costs, np.array([0, 0, 0, 1], dtype=np.int32), 3).tolist() == [15, 0, 0]


@pytest.mark.parametrize(
    ("lengths", "cost", "sample"),
    [
        ([1, 3_100_000_000, 1], "quadratic:a=0,b=1", 1),  # its square alone
        ([2**62, 2**61, 2**61, 1], "linear", 2),  # the running sum leaves int64 here
        ([2_000_000_000, 2_000_000_000, 2_000_000_000], "quadratic:a=0,b=1", 2),
        ([1, 2**61, 1, 1], "padded", 1),  # 4 rows of the longest
        ([1, 2**31], "convolution:a=1,c=1,p=3", 1),  # one row alone
        ([1, 2**61, 1, 1], "convolution:a=1,c=1", 1),  # 4 rows of the longest
        ([1, 2**61, 1], "convolution:a=1,c=1", 1),  # 3 rows fit, not with what they cost packed
        ([5, 2**40], "convolution:a=99999999999,c=1", 1),
    ],
)
def test_overflow_names_the_sample(lengths, cost, sample):
    with pytest.raises(ValueError, match="int64") as caught:
        balancer.balance(lengths, 2, cost=cost)
    assert f"sample {sample} (length {lengths[sample]})" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("lengths", "cost"),
    [
        ([INT64_MAX], "linear"),
        ([2**62 - 1, 2**61, 2**61], "linear"),
        ([3_037_000_499], "quadratic:a=0,b=1"),
        ([2**60, 2**60, 2**60], "convolution:a=1,c=1"),
    ],
)
def test_up_to_the_last_number_of_int64(lengths, cost):
    plan = balancer.balance(lengths, 2, cost=cost)
    assert plan.loads.tolist() == naive_loads(lengths, plan.rank_of_sample.tolist(), 2, cost)
    assert plan.lower_bound <= plan.makespan


@pytest.mark.parametrize(("cost", "lengths"), [(f"linear:a={2**63}", []), (f"padded:a={10**30}", [0, 0])])
def test_coefficients_past_int64(cost, lengths):
    """Also where all costs would be 0, and never as NumPy's OverflowError."""
    with pytest.raises(ValueError, match=r"int64"):
        balancer.balance(lengths, 2, cost=cost)
