"""Areas against masks written out, costs of areas against sums of pairs, and the text that they are read from."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import balancer
from balancer.cost import CostModel, LengthPolynomial, OnlineCost, parse_cost
from balancer.cost.areas import AREAS, area, largest_rate
from balancer.cost.integer import integer_flops, integer_seconds, integers_together

INT64_MAX = 2**63 - 1
SEEN = {
    "full": lambda i, j, w: j <= i,
    "bidirectional": lambda i, j, w: True,
    "window": lambda i, j, w: i - w < j <= i,
    "chunk": lambda i, j, w: j <= i and i // w == j // w,
    "blocks": lambda i, j, w: i // w == j // w,
    "band": lambda i, j, w: abs(i - j) <= w,
    "prefix": lambda i, j, w: j <= i or (i < w and j < w),
    "topk": lambda i, j, w: j <= i and j >= i + 1 - w,  # any w of them: as many as these
    "compressed": lambda i, j, w: j < (i + 1) // w,
}
UNSIZED = ("full", "bidirectional")
names = st.one_of(
    st.sampled_from(UNSIZED),
    st.builds(lambda kind, size: f"{kind}{size}", st.sampled_from([k for k in AREAS if k not in UNSIZED]),
              st.integers(1, 40)),
)  # fmt: skip
terms = st.dictionaries(names, st.integers(1, 10**6), min_size=1, max_size=4)


def counted(kind, size, length):
    return sum(SEEN[kind](i, j, size) for i in range(length) for j in range(length))


@pytest.mark.parametrize("kind", AREAS)
def test_areas_are_those_of_masks(kind):
    for size in (0,) if kind in UNSIZED else (1, 2, 3, 5, 8):
        name = kind + (str(size) if size else "")
        lengths = np.arange(20)
        expected = [counted(kind, size, length) for length in lengths.tolist()]
        assert area(name, lengths).tolist() == expected
        assert [area(name, length) for length in lengths.tolist()] == expected


@given(names, st.integers(0, 3 * 10**9), st.integers(0, 10**4))
def test_areas_never_fall_and_nothing_overflows_on_the_way(name, length, more):
    exact = area(name, length)
    assert 0 <= exact <= area(name, length + more)
    assert area(name, np.array([length]))[0] == exact or exact > INT64_MAX
    if length:
        assert exact <= largest_rate(name, length + more) * length


@given(st.sampled_from(["window", "chunk", "topk"]), st.integers(1, 300), st.integers(0, 50))
def test_a_window_as_long_as_the_context_is_full(kind, length, more):
    assert area(f"{kind}{length + more}", length) == area("full", length)
    assert area(f"blocks{length + more}", length) == area(f"band{length + more}", length) == length * length


@given(st.integers(0, 10**6), st.integers(0, 10**6), terms, st.lists(st.integers(0, 100), max_size=5))
def test_a_cost_is_the_sum_of_its_terms(constant, a, areas, lengths):
    cost = CostModel(a, constant=constant, areas=areas)
    got = cost.sample_costs(np.array(lengths, dtype=np.int64))
    each = [
        (constant + a * x + sum(value * area(name, x) for name, value in areas.items())) if x else 0 for x in lengths
    ]
    assert got.tolist() == each == [cost.exact(x) for x in lengths]
    assert parse_cost(str(cost)) == cost
    whole = LengthPolynomial(constant, a, 0, areas=areas)
    assert [(whole * 3).exact(x) for x in lengths if x] == [3 * value for value in each if value]
    assert LengthPolynomial.of_row(whole.as_row()) == whole


@given(terms, st.integers(0, 5))
def test_padded_rows_cost_as_often_as_there_are_rows(areas, constant):
    cost = CostModel(3, padded=True, constant=constant, areas=areas)
    assert parse_cost(str(cost)) == cost
    plan = balancer.balance([5, 9, 2, 9], 2, cost=cost)
    each = [[int(cost.exact(9)) * len(plan.samples_on_rank(rank)) for rank in range(2) if 9 in
             plan.lengths[plan.samples_on_rank(rank)]]]  # fmt: skip
    assert plan.makespan == max(map(max, each)) == 2 * cost.exact(9)


def test_the_text_form_and_its_older_ones():
    text = "attention:constant=500000,a=24576,full=8,window1024=40"
    assert str(parse_cost(text)) == text
    assert parse_cost("attention:window1024=40,full=8,a=24576,constant=500000") == parse_cost(text)
    assert str(parse_cost("attention:a=2,bidirectional=3")) == "quadratic:a=2,b=3"
    assert str(parse_cost("attention:full=3,d2=7,loss=1")) == "attention:full=3,loss=1,d2=7"
    assert str(parse_cost("attention:full=3,bidirectional=1")) == "attention:bidirectional=1,full=3"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("attention:full=-1", "'full=-1' must be one coefficient and a whole number"),
        ("attention:full=1.5", "'full=1.5' must be one coefficient and a whole number"),
        ("attention:window0=4", "have a size of 1 to 2147483647, as in window1024, got 'window0'"),
        ("attention:window=4", "areas must be named full, bidirectional, windowN"),
        ("attention:full8=4", "areas must be named full, bidirectional, windowN"),
        ("attention:window9999999999=4", "have a size of 1 to 2147483647"),
        (
            "attention:window1024=4,window1024=5",
            "'window1024=5' must be one coefficient, but 'window1024' is there already",
        ),
        ("attention:diagonal=4", "names an unknown one; write attention:constant"),
        ("attention:constant=4", "a cost needs a, b or an area above 0, got constant=4 alone"),
        ("padded:diagonal=4", "names an unknown one; write padded"),
    ],
)
def test_bad_terms_are_named(text, words):
    with pytest.raises(ValueError, match=words) as caught:
        parse_cost(text)
    assert text in str(caught.value) or "alone" in words
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("areas", "words"),
    [
        ({"full": 1.5}, r"areas\['full'\] must be an integer >= 0, got 1.5"),
        ((("full", 1), ("full", 2)), "'full' twice"),
        (5, "areas must map names of masks to work units a pair, got 5"),
        ("full", "got 'full'"),
        (["full"], "areas must map names of masks"),
        ([("full", 1, 2)], "areas must map names of masks"),
    ],
)
def test_bad_areas_of_models(areas, words):
    with pytest.raises((ValueError, TypeError), match=words):
        CostModel(areas=areas)


def test_a_cost_past_int64_names_the_sample():
    with pytest.raises(ValueError, match=r"the cost of sample 1 \(length 4000000000\) must fit int64"):
        CostModel(0, areas={"full": 2}).sample_costs(np.array([5, 4 * 10**9]))
    assert CostModel(0, areas={"full": 1}).sample_costs(np.array([4 * 10**9]))[0] == area("full", 4 * 10**9)


@given(terms, st.integers(0, 10**9), st.integers(0, 10**12), st.integers(1, 2**33), st.integers(1, 2**20))
def test_flops_are_scaled_together(areas, constant, a, total, longest):
    cost = integer_flops({"constant": constant, "a": a, **areas}, total_length=total, longest=longest)
    count = max(1, total // longest)
    assert cost.model.exact(min(longest, total)) * count <= INT64_MAX
    kept = constant if set(areas) != {"bidirectional"} else 0  # beside what a, b and areas say, alone
    assert round(cost.omitted_constant * cost.factor) == constant - kept
    exact = LengthPolynomial(kept, a, 0, areas=areas)
    if cost.rounding == 0:
        assert cost.model.exact(longest) * cost.factor == exact.exact(longest)
    assert abs(cost.model.exact(longest) * cost.factor / exact.exact(longest) - 1) <= cost.rounding + 1e-9


def test_seconds_of_areas_round_as_those_of_lengths():
    cost = integer_seconds({"c0": 1e-3, "a": 1e-6, "window64": 2e-9})
    assert str(cost.model) == "attention:a=1000,window64=2"
    costs = integers_together({"vision": {"a": 1e-5}, "llm": {"a": 1e-4, "full": 2e-9}})
    assert dict(costs["llm"].areas)["full"] / costs["vision"].a == pytest.approx(2e-4, rel=1e-3)


def test_a_constant_changes_no_plan_of_equal_counts():
    lengths = np.random.default_rng(0).integers(1, 5000, 64)
    without = balancer.balance(lengths, 8, cost="attention:a=3,window512=2", equal_counts=True)
    beside = balancer.balance(lengths, 8, cost="attention:constant=10000000,a=3,window512=2", equal_counts=True)
    assert beside.rank_of_sample.tolist() == without.rank_of_sample.tolist()
    assert beside.makespan == without.makespan + 8 * 10**7
    assert beside.lower_bound == without.lower_bound + 8 * 10**7
    seven = balancer.balance(lengths[:63], 8, cost="attention:constant=10000000,a=3,window512=2", equal_counts=True)
    assert seven.makespan >= 8 * 10**7  # counts differ by one there: it counts


def test_groups_share_what_a_window_sees():
    cost = parse_cost("attention:constant=100,a=3,window8=5,loss=0")
    times = cost.degree_times(np.array([40, 0]), [1, 2, 4], 8).times
    whole = 3 * 40 + 5 * area("window8", 40)
    assert times.tolist() == [[100 + -(-whole // d), 0] for d in (1, 2, 4)]


def test_terms_are_learned_and_those_alike_keep_their_proportions():
    rng = np.random.default_rng(1)
    online = OnlineCost(1e-3, 1e-5, 0.0, areas={"full": 2e-8, "window64": 1e-7}, window=10)
    for _ in range(60):
        lengths = rng.integers(1, 4000, 5)
        sums = np.array([1.0, *online.sums(lengths)])
        online.observe(lengths, sums @ (np.array(online._base) * [1, 1, 1, 2, 1]))
    assert online.active
    assert online.coefficients[3] == pytest.approx(2 * 2e-8, rel=0.05)
    alike = OnlineCost(0.0, 1e-5, 0.0, areas={"full": 2e-8, "window4000": 1e-8}, window=10)
    for _ in range(60):
        lengths = rng.integers(1, 4000, 5)
        alike.observe(lengths, 1.5 * float(np.array([1.0, *alike.sums(lengths)]) @ alike._base))
    np.testing.assert_allclose(alike.coefficients[3:], [1.5 * 2e-8, 1.5 * 1e-8], rtol=1e-3)
