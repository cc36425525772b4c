"""What every registered packer must hold, on every shape of problem, judged by the checker and by plain Python."""

import numpy as np
import packing_oracles as oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples

from solvers import InfeasibleError, SolveStatus, check_packing
from solvers.errors import UsageError
from solvers.packing import PACKERS, PackingResult, pack
from solvers.packing.bins import PackingProblem, best_fit_decreasing, count_of, first_fit_decreasing, pair_fit

EVERY_METHOD = pytest.mark.parametrize("method", PACKERS)
BUDGET = 1e-4  # seconds' worth of search, which is slow without the compiler


def lengths(count: int, cap: int, seed: int = 0) -> list[int]:
    return np.minimum(np.random.default_rng(seed).lognormal(4, 1.2, count), cap).astype(np.int64).tolist()


SHAPES = {
    "no items": ([], 5, None),
    "one item": ([7], 9, None),
    "one item of size cap": ([7], 7, 1),
    "all zero, two a group": ([0] * 9, 3, 2),
    "one item a group": ([1, 2, 3, 0], 100, 1),
    "a group for all": ([1, 2, 3, 4], 10, None),
    "pairs": ([6, 4] * 10, 10, None),
    "lengths, few a group": (lengths(150, 512), 512, 3),
    "many groups": (lengths(300, 90), 90, None),
    "cap is int64's largest": ([2**62, 2**61, 2**60, 5, 0], 2**63 - 1, None),
    "sum is int64's largest": ([2**62, 2**62 - 1], 2**62, None),
    "near the end of int64": ([2**57 - k for k in range(40)], 2**58, 3),
}
EVERY_SHAPE = pytest.mark.parametrize("shape", SHAPES)


@st.composite
def problems(draw, max_size: int = 8) -> tuple[list[int], int, int | None]:
    cap = draw(st.integers(1, 30) | st.sampled_from([100, 2**40, 2**63 - 1]))
    size = st.integers(0, cap) if cap < 2**60 else st.integers(0, cap // max(max_size, 1))
    sizes = draw(st.lists(size, max_size=max_size))
    return sizes, cap, draw(st.none() | st.integers(1, 5))


def check(sizes: list[int], cap: int, max_items: int | None, result: PackingResult, limits=()) -> None:
    """All that a result promises, from scratch."""
    groups, loads = result.group_of_item.tolist(), result.loads.tolist()
    assert result.group_of_item.dtype == np.int32
    assert result.loads.dtype == np.int64
    assert not result.group_of_item.flags.writeable
    assert not result.loads.flags.writeable
    assert len(groups) == len(sizes)
    assert sorted(set(groups)) == list(range(result.num_groups))
    assert loads == [sum(s for s, g in zip(sizes, groups, strict=True) if g == k) for k in range(result.num_groups)]
    assert all(load <= cap for load in loads)
    if max_items is not None:
        assert all(groups.count(k) <= max_items for k in range(result.num_groups))
    assert -(-sum(sizes) // cap) <= result.lower_bound <= result.num_groups
    assert result.cap == cap
    assert (result.status is SolveStatus.OPTIMAL) == (result.lower_bound == result.num_groups) == (result.gap == 0.0)
    assert result.runtime_s >= 0
    check_packing(sizes, cap, result, max_items=max_items, limits=limits)


@EVERY_SHAPE
@EVERY_METHOD
def test_every_packer_holds_the_contract(method, shape):
    sizes, cap, max_items = SHAPES[shape]
    result = pack(sizes, cap, method, BUDGET, max_items=max_items)
    check(sizes, cap, max_items, result)
    assert result.method in {method, "dealing"}
    given_sizes = np.array(sizes, dtype=np.int64)
    given_sizes.flags.writeable = False
    assert result == pack(given_sizes, cap, method, BUDGET, max_items=max_items)


@EVERY_METHOD
@settings(max_examples=examples(30))
@given(problem=problems())
def test_the_bound_is_below_the_optimum_and_the_result_not(method, problem):
    sizes, cap, max_items = problem
    result = pack(sizes, cap, method, max_items=max_items)
    check(sizes, cap, max_items, result)
    optimum = oracles.fewest_groups(sizes, cap, max_items)
    assert result.lower_bound <= optimum <= result.num_groups
    assert result.num_groups == optimum  # so few items are dealt out in every way


@settings(max_examples=examples(30))
@given(problem=problems(max_size=40))
def test_best_fit_is_the_naive_one(problem):
    sizes, cap, max_items = problem
    found = best_fit_decreasing(PackingProblem.prepare(sizes, cap, max_items))
    assert found.tolist() == oracles.best_fit_decreasing(sizes, cap, max_items)


@settings(max_examples=examples(40))
@given(data=st.data(), problem=problems(max_size=12))
def test_limits_on_other_sums_hold_and_the_bound_is_one(data, problem):
    sizes, cap, max_items = problem
    limits = [
        (data.draw(st.lists(st.integers(0, most), min_size=len(sizes), max_size=len(sizes))), most)
        for most in data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=2))
    ]
    result = pack(sizes, cap, "first_fit_decreasing", max_items=max_items, limits=limits)
    check(sizes, cap, max_items, result, limits)
    for amounts, most in limits:
        held = np.bincount(result.group_of_item, amounts, result.num_groups) if len(sizes) else np.zeros(0)
        assert (held <= most).all()
        assert result.lower_bound >= -(-sum(amounts) // most)
    assert result.lower_bound <= oracles.fewest_groups(sizes[:7], cap, max_items, limits) or len(sizes) > 7


def test_what_no_closed_bound_proves_is_proven_by_dealing():
    sizes = [12, 8, 7, 3, 2]  # they weigh 2 * 16, but only 8 + 7 goes beside 12, and leaves 3 + 2
    result = pack(sizes, 16)
    assert (result.num_groups, result.lower_bound, result.bound_name) == (3, 3, "search")
    check(sizes, 16, None, result)


@pytest.mark.parametrize(("limits", "error", "message"), [
    ([([1, 1], 3)], UsageError, r"limits\[0\]\[0\] must have an entry for each of 3 sizes, got 2"),
    ([([1, 1, 1], 3), ([0, 4, 0], 3)], InfeasibleError, r"item 1: limits\[1\]\[0\]\[1\] = 4 is over cap = 3 by 1"),
    ([([1, 1, 1], 0)], ValueError, r"limits\[0\]\[1\] must be >= 1, got 0"),
])  # fmt: skip
def test_a_limit_that_is_none_is_named(limits, error, message):
    with pytest.raises(error, match=message):
        pack([1, 2, 3], 6, "first_fit_decreasing", limits=limits)


@pytest.mark.parametrize("method", ["pair_fit", "best_fit_decreasing"])
def test_some_methods_keep_one_sum(method):
    with pytest.raises(UsageError, match="this method keeps one sum: 'first_fit_decreasing' keeps limits on others"):
        pack([1, 2], 6, method, limits=[([1, 1], 2)])


def test_groups_that_a_limit_has_filled_do_not_stand_in_the_way():
    """Samples with images fill the limit long before the tokens; those without still find their room."""
    chance = np.random.default_rng(0)
    images = np.where(chance.random(30_000) < 0.25, chance.integers(1, 9, 30_000), 0)
    sizes = np.where(images > 0, 10 + images * 5, chance.integers(100, 900, 30_000))
    result = pack(sizes, 4096, "first_fit_decreasing", limits=[(images, 9)])
    check_packing(sizes, 4096, result, limits=[(images, 9)])
    assert result.num_groups <= 1.02 * result.lower_bound


@given(problem=problems(max_size=40), data=st.data())
def test_first_fit_is_the_naive_one(problem, data):
    sizes, cap, max_items = problem
    limits = [
        (data.draw(st.lists(st.integers(0, most), min_size=len(sizes), max_size=len(sizes))), most)
        for most in data.draw(st.lists(st.integers(1, 6), max_size=2))
    ]
    found = first_fit_decreasing(PackingProblem.prepare(sizes, cap, max_items, limits))
    assert found.tolist() == oracles.first_fit_decreasing(sizes, cap, max_items, limits)


@pytest.mark.parametrize("seed", [6, 60, 61])
def test_counts_and_sizes_need_as_many_groups_as_the_bound_says(seed):
    """At most 50 items and 1,500 in a group: filling them with the largest items opens 10 or 11."""
    sizes = np.random.default_rng(seed).integers(1, 60, 400)
    result = pack(sizes, 1500, max_items=50)
    check(sizes.tolist(), 1500, 50, result)
    assert result.num_groups == result.lower_bound
    assert result.num_groups in {8, 9}


@pytest.mark.parametrize(("max_items", "most_over"), [(3, 0.008), (7, 0.024), (16, 0.001)])
def test_where_counts_limit_groups_are_filled_evenly(max_items, most_over):
    """They hold 7.1 items on average: what filling with the largest leaves would need a third more groups for 7."""
    sizes = np.clip(np.random.default_rng(5).lognormal(6.0, 0.85, 60_000), 16, 4096).astype(np.int64)
    found = pair_fit(PackingProblem.prepare(sizes, 4096, max_items))
    assert np.bincount(found).max() <= max_items
    assert np.bincount(found, sizes).max() <= 4096
    assert count_of(found) <= (1 + most_over) * max(-(-len(sizes) // max_items), -(-int(sizes.sum()) // 4096))


@pytest.mark.parametrize(("num_groups", "cap", "most_cuts"), [(4, 30, 4), (6, 50, 3), (8, 100, 3), (10, 60, 2)])
def test_planted_packings_are_found(num_groups, cap, most_cuts):
    for seed in range(3):
        sizes = oracles.planted(num_groups, cap, seed, most_cuts)
        result = pack(sizes, cap)
        check(sizes, cap, None, result)
        assert result.num_groups == num_groups


@EVERY_METHOD
@settings(max_examples=examples(20))
@given(data=st.data(), problem=problems(max_size=14))
def test_order_matters_only_among_equals(method, data, problem):
    sizes, cap, max_items = problem
    order = data.draw(st.permutations(range(len(sizes))))
    result = pack(sizes, cap, method, BUDGET, max_items=max_items)
    permuted = pack([sizes[i] for i in order], cap, method, BUDGET, max_items=max_items)
    assert result.loads.tolist() == permuted.loads.tolist()
    contents = [sorted(zip(r.group_of_item.tolist(), s, strict=True)) for r, s in
                ((result, sizes), (permuted, [sizes[i] for i in order]))]  # fmt: skip
    assert contents[0] == contents[1]


@EVERY_METHOD
@settings(max_examples=examples(20))
@given(factor=st.sampled_from([2, 7, 1000]), problem=problems(max_size=12).filter(lambda p: p[1] < 2**41))
def test_a_common_factor_changes_no_group(method, factor, problem):
    sizes, cap, max_items = problem
    result = pack(sizes, cap, method, max_items=max_items)
    scaled = pack([factor * size for size in sizes], factor * cap, method, max_items=max_items)
    assert scaled.group_of_item.tolist() == result.group_of_item.tolist()
    assert scaled.loads.tolist() == [factor * load for load in result.loads.tolist()]


def test_an_item_over_the_cap_is_named():
    for method in PACKERS:
        with pytest.raises(InfeasibleError, match=r"no group can hold item 2: sizes\[2\] = 12 is over cap = 10 by 2"):
            pack([3, 10, 12, 11], 10, method)


BAD_CALLS = [
    (([1, -2], 3), {}, ValueError, r"sizes\[1\] must be >= 0, got -2"),
    (([2**62, 2**62], 2**62), {}, ValueError, "the sum of sizes must fit int64"),
    (([1], 2**63), {}, ValueError, "cap must be >= 1 and fit int64, got 9223372036854775808"),
    (([1], 2.0), {}, TypeError, "cap must be an integer, got 2.0"),
    (([1], 3), {"max_items": 0}, ValueError, "max_items must be >= 1, got 0"),
    (([1], 3), {"time_budget": 0}, ValueError, "time_budget must be positive and finite"),
    (([1], 3), {"method": "next_fit"}, ValueError, "unknown method 'next_fit'; known methods are pair_fit, best_fit_d"),
]


@pytest.mark.parametrize(("args", "kwargs", "error", "message"), BAD_CALLS)
def test_bad_arguments_are_named(args, kwargs, error, message):
    with pytest.raises(error, match=message):
        pack(*args, **kwargs)
