"""Long and short: against all choices on small cases, and what is refused."""

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples

import solvers


def best_makespan(alone, shared, size, degrees, overhead):
    """All places of all items: alone on a rank, or in an aligned group of a degree."""
    places = [(1, r) for r in range(size)] + [(d, r) for d in degrees for r in range(0, size, d)]
    best = None
    for choice in itertools.product(places, repeat=len(alone)):
        loads = [overhead * any(d > 1 for d, _ in choice)] * size
        for i, (d, first) in enumerate(choice):
            for r in range(first, first + d):
                loads[r] += alone[i] if d == 1 else shared[degrees.index(d)][i]
        best = max(loads) if best is None else min(best, max(loads))
    return best


ITEMS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 4)), min_size=1, max_size=5)
SHAPES = st.sampled_from([(1, [1]), (2, [2]), (3, [3]), (4, [4]), (4, [2, 4])])


@settings(max_examples=examples(50))
@given(ITEMS, SHAPES, st.sampled_from([0, 0, 3, 20]))
def test_between_bound_and_optimum(items, shape, overhead):
    size, degrees = shape
    alone = [t for t, _ in items]
    shared = [[-(-t // d) + loss for t, loss in items] for d in degrees]
    rules = {"group_size": size, "degrees": degrees, "overhead": overhead}
    result = solvers.long_short(alone, shared, **rules)
    solvers.check_long_short(alone, shared, result, **rules)
    best = best_makespan(alone, shared, size, degrees if size > 1 else [], overhead)
    assert result.lower_bound <= best <= result.makespan
    if len(degrees) == 1:
        assert result == solvers.long_short(alone, shared[0], size, overhead=overhead)


@settings(max_examples=examples(30))
@given(st.lists(ITEMS, min_size=1, max_size=4), SHAPES, st.sampled_from([0, 3, 20]), st.integers(0, 60))
def test_of_many_groups_those_are_searched_that_do_not_end_in_time(groups, shape, overhead, enough):
    (size, degrees), items = shape, list(itertools.chain(*groups))
    alone = np.array([t for t, _ in items])
    shared = np.array([[-(-t // d) + loss for t, loss in items] for d in degrees])
    group = np.repeat(np.arange(len(groups)), [len(mine) for mine in groups])
    mixed = np.random.default_rng(len(items)).permutation(len(items))
    alone, shared, group = alone[mixed], shared[:, mixed], group[mixed]
    rules = {"degrees": degrees, "overhead": overhead}
    degree, first, taken = solvers.long_short_groups(
        alone, shared, group, len(groups) + 1, size, enough=enough, **rules
    )
    assert taken[-1] == 0
    for g in range(len(groups)):
        mine = group == g
        loads = np.full(size, overhead * bool((degree[mine] > 1).any()))
        for i in np.flatnonzero(mine).tolist():
            assert first[i] % degree[i] == 0
            loads[first[i] : first[i] + degree[i]] += (
                alone[i] if degree[i] == 1 else shared[degrees.index(degree[i]), i]
            )
        assert taken[g] == loads.max()
        assert taken[g] <= max(enough, solvers.long_short(alone[mine], shared[:, mine], size, **rules).makespan)
        if solvers.partition(alone[mine], size, "lpt").makespan <= enough:
            assert (degree[mine] == 1).all()


@settings(max_examples=examples(25))
@given(st.lists(ITEMS, min_size=1, max_size=3), st.sampled_from([0, 20]), st.integers(0, 60), st.data())
def test_caps_are_kept_and_a_way_is_found_where_all_fits_on_all_ranks(groups, overhead, enough, data):
    items, degrees = list(itertools.chain(*groups)), [2, 4]
    alone, shared = [t for t, _ in items], [[-(-t // d) + loss for t, loss in items] for d in degrees]
    group = np.repeat(np.arange(len(groups)), [len(mine) for mine in groups])
    amounts = data.draw(st.lists(st.integers(0, 9), min_size=len(items), max_size=len(items)))
    shares = np.array([[[-(-a // d) for a in amounts], [1] * len(items)] for d in (1, 2, 4)]).swapaxes(0, 1)
    caps = data.draw(st.tuples(st.integers(0, 20), st.integers(1, 6)))
    rules = {"degrees": degrees, "overhead": overhead, "shares": shares, "caps": caps}
    degree, first, taken = solvers.long_short_groups(alone, shared, group, len(groups), 4, enough=enough, **rules)
    for g in range(len(groups)):
        mine = group == g
        fits = (shares[:, 2, mine].sum(axis=1) <= caps).all()
        assert taken[g] >= 0 or not fits
        if taken[g] >= 0:
            given_items = np.array(alone)[mine], np.array(shared)[:, mine], degree[mine], first[mine]
            only = rules | {"shares": shares[:, :, mine]}
            solvers.check_long_short_groups(*given_items, num_ranks=4, group_size=4, makespan=int(taken[g]), **only)


def test_caps_on_sums_and_counts_are_kept_where_filling_one_rank_after_another_keeps_neither():
    """Ranks with the long items would have no room, those with the short ones too many."""
    alone = np.array([100] + [10] * 12 + [1] * 24)
    shared = np.array([-(-alone // 2) + 1, -(-alone // 4) + 1])
    shares = np.array([[-(-alone // d) for d in (1, 2, 4)], np.ones((3, len(alone)), dtype=np.int64)])
    rules = {"degrees": [2, 4], "shares": shares, "caps": [65, 10]}
    degree, first, taken = solvers.long_short_groups(alone, shared, np.zeros(len(alone), int), 1, 4, **rules)
    assert taken[0] > 0
    solvers.check_long_short_groups(
        alone, shared, degree, first, num_ranks=4, group_size=4, makespan=int(taken[0]), **rules
    )  # fmt: skip


def clips(n, seed):
    alone = np.random.default_rng(seed).lognormal(8, 1.4, n).astype(np.int64) + 1
    return alone, np.array([np.ceil(alone / d * 1.04 ** np.log2(d)).astype(np.int64) for d in (2, 4, 8)])


@pytest.mark.parametrize("seed", range(2))
def test_close_to_the_bound_on_long_tails(seed):
    alone, shared = clips(48, seed)
    one = solvers.long_short(alone, shared[2], 8, time_budget=0.01)
    several = solvers.long_short(alone, shared, 8, degrees=(2, 4, 8), time_budget=0.01)
    solvers.check_long_short(alone, shared[2], one, group_size=8)
    solvers.check_long_short(alone, shared, several, group_size=8, degrees=(2, 4, 8))
    assert one.gap < 0.02
    assert several.gap < 0.02
    assert several.makespan <= one.makespan
    assert one.makespan <= solvers.partition(alone, 8).makespan


def test_sharing_is_not_worth_its_overhead():
    result = solvers.long_short([8, 8, 8, 8], [3, 3, 3, 3], 4, overhead=100)
    assert (result.makespan, result.status) == (8, "optimal")
    assert not result.is_shared.any()
    assert result.rank_of_item.tolist() == result.first_rank_of_item.tolist()


QUICK = "shared[0] must take at least alone[0] / 4 = 9 / 4 on 4 ranks, got 2"
NESTED = "degrees must be >= 2, each divide the next"
SUMS = "group_size times all alone and shared must be below 2**58"
REFUSED = {
    "faster than without loss": ({"shared": [2, 1, 1]}, QUICK),
    "degrees that do not nest": ({"degrees": [3, 4], "shared": [[9] * 3] * 2}, NESTED),
    "others": ({"shared": [3, 3]}, "alone and shared must be of as many items, got 3 and 2"),
    "sums": ({"alone": [2**57] * 3, "shared": [2**57] * 3}, SUMS),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what):
    changes, message = REFUSED[what]
    ask = {"alone": [9, 4, 4], "shared": [3, 1, 1], "group_size": 4} | changes
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        solvers.long_short(**ask)


@pytest.mark.parametrize(
    ("group", "message"),
    [([0, 1], "group_of_item must have one entry for each of 3 items, got 2"), ([0, 1, 2], "group_of_item[2] must be")],
)
def test_refused_groups(group, message):
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        solvers.long_short_groups([9, 4, 4], [3, 1, 1], group, 2, 4)


@pytest.mark.parametrize(
    ("shares", "cap", "message"),
    [
        ([[9, 4, 4]], 9, "shares must be integers of shape (1, 2, 3): a table for each of caps"),
        ([[[9, 4, 4], [3, 1, -1]]], 9, "shares must be >= 0, and their sums below 2**62, got -1"),
        ([[[9, 4, 4], [3, 1, 1]]], -(2**63), "caps[0] must be >= 0, got -9223372036854775808"),
    ],
)
def test_refused_shares(shares, cap, message):
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        solvers.long_short_groups([9, 4, 4], [3, 1, 1], [0, 1, 1], 2, 4, shares=shares, caps=[cap])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"bound_name": "guess"}, "unknown argument 'guess'"),
        ({"rank_of_item": np.zeros(5, dtype=np.int32)}, "have one entry for each of 4 items"),
        ({"is_shared": np.ones(4, dtype=bool)}, "item 0 is on 1 ranks, is_shared says otherwise"),
        ({"degree_of_item": np.full(4, 2, dtype=np.int32)}, "item 0 is on 2 ranks, which is none of [1, 4]"),
        ({"degree_of_item": np.ones(3, dtype=np.int32)}, "every item has one place: 4 items"),
        ({"first_rank_of_item": np.full(4, 4, dtype=np.int32)}, "item 0 of degree 1 starts at rank 4"),
        ({"loads": np.array([8, 8, 8, 9])}, "loads are [8, 8, 8, 8], not [8, 8, 8, 9]"),
        ({"makespan": 9}, "makespan is 8, not 9"),
        ({"lower_bound": 9}, "lower_bound = 9, but 'area' does not prove it"),
        ({"lower_bound": 7}, "status is optimal"),
    ],
)
def test_the_checker_sees_what_is_wrong(wrong, message):
    given_items = [8, 8, 8, 8], [3, 3, 3, 3]
    result = solvers.long_short(*given_items, 4, overhead=100)
    with pytest.raises(solvers.CertificateError, match=re.escape(message)):
        solvers.check_long_short(*given_items, replace(result, **wrong), group_size=4, overhead=100)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_ranks": 10}, "10 ranks are no groups of 4"),
        ({"makespan": 12}, "makespan is 11, not 12"),
        ({"lower_bound": 12}, "lower_bound = 12 exceeds makespan = 11"),
        ({"caps": [10]}, "rank 0 holds 11 of quantity 0, cap 10"),
    ],
)
def test_the_checker_of_many_groups_sees_what_is_wrong(wrong, message):
    items = [40, 9, 8], [11, 3, 2], [4, 1, 1], [0, 4, 5]
    right = {"num_ranks": 8, "group_size": 4, "makespan": 11, "lower_bound": 11}
    right |= {"shares": [[[40, 9, 8], [11, 3, 2]]], "caps": [11]}
    solvers.check_long_short_groups(*items, **right)
    with pytest.raises(solvers.CertificateError, match=re.escape(message)):
        solvers.check_long_short_groups(*items, **right | wrong)
