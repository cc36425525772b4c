"""Schedules against all schedules, on cases small enough to try them all."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples
from schedule_oracles import optimal_value

from solvers import check_schedule
from solvers.bounds import Bound
from solvers.errors import InfeasibleError
from solvers.packing import SYNCS, schedule_micro_batches
from solvers.packing._schedule_bounds import _room_bound

SAMPLES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), min_size=1, max_size=5)
SHAPES = st.sampled_from([(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (3, 1)])


@settings(max_examples=examples(40))
@given(SAMPLES, SHAPES, st.sampled_from(SYNCS), st.integers(1, 3), st.booleans(), st.integers(4, 12))
def test_between_bound_and_optimum_for_a_given_number_of_slots(samples, shape, sync, stages, allow_empty, cap):
    costs, tokens = (list(column) for column in zip(*samples, strict=True))
    num_ranks, num_slots = shape
    stages = stages if sync == "pipeline" else 1
    rules = {"sync": sync, "stages": stages, "allow_empty": allow_empty}
    best = optimal_value(costs, tokens, num_ranks, cap, num_slots, **rules)
    rules |= {"num_slots": num_slots, "over_long": "own"}
    if best is None:
        with pytest.raises(InfeasibleError):
            schedule_micro_batches(costs, tokens, num_ranks, cap, **rules)
        return
    result = schedule_micro_batches(costs, tokens, num_ranks, cap, **rules)
    check_schedule(costs, tokens, result, num_ranks=num_ranks, cap=cap, **rules)
    assert result.lower_bound <= best <= result.value


@settings(max_examples=examples(25))
@given(SAMPLES, st.integers(1, 2), st.sampled_from(SYNCS), st.integers(1, 3), st.integers(6, 12))
def test_free_slots_stay_above_their_bound_and_every_number_of_slots_does(samples, num_ranks, sync, stages, cap):
    costs, tokens = (list(column) for column in zip(*samples, strict=True))
    stages = stages if sync == "pipeline" else 1
    rules = {"sync": sync, "stages": stages}
    found = [
        optimal_value(costs, tokens, num_ranks, cap, k, **rules) for k in range(1, len(costs) // num_ranks + 1) if k < 4
    ]
    permitted = [value for value in found if value is not None]
    if not permitted:
        if len(costs) < 4 * num_ranks:
            with pytest.raises(InfeasibleError):
                schedule_micro_batches(costs, tokens, num_ranks, cap, **rules)
        return
    result = schedule_micro_batches(costs, tokens, num_ranks, cap, **rules)
    check_schedule(costs, tokens, result, num_ranks=num_ranks, cap=cap, **rules)
    assert result.lower_bound <= min(permitted)
    fewest = schedule_micro_batches(costs, tokens, num_ranks, cap, num_slots="fewest", **rules)
    assert fewest.num_slots == 1 + next(k for k, value in enumerate(found) if value is not None)


@pytest.mark.parametrize("sync", SYNCS)
def test_mostly_optimal_on_small_cases(sync):
    optimal = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        tokens = rng.integers(1, 10, 5)
        costs = tokens * (10 + tokens)
        best = optimal_value(costs.tolist(), tokens.tolist(), 2, 24, 2, sync=sync)
        assert best is not None
        optimal += schedule_micro_batches(costs, tokens, 2, 24, sync=sync, num_slots=2).value == best
    assert optimal >= 21


def test_the_bound_is_reached_where_the_longest_samples_fill_one_slot():
    costs = [100, 100, 9, 9, 9, 9]
    result = schedule_micro_batches(costs, [10, 10, 9, 9, 9, 9], 2, 10)
    assert (result.num_slots, result.value, result.lower_bound, result.bound_name) == (3, 118, 118, "mean")
    result = schedule_micro_batches([100, 10, 10, 10], [10, 10, 10, 10], 2, 10)
    assert (result.value, result.lower_bound, result.bound_name) == (110, 110, "tall_slots")
    assert result.gap == 0


def test_close_to_the_bound_under_quadratic_costs():
    rng = np.random.default_rng(1000)
    lengths = np.clip(rng.lognormal(np.log(2000) - 0.5, 1, 1024).astype(np.int64), 1, 32768)
    costs = 24576 * lengths + lengths * lengths
    for num_slots in ("fewest", None):
        result = schedule_micro_batches(costs, lengths, 16, 32768, num_slots=num_slots, time_budget=0.01)
        check_schedule(costs, lengths, result, num_ranks=16, cap=32768, num_slots=num_slots)
        assert result.gap < 0.015


def test_all_small_shapes_with_equal_samples():
    for num_ranks, num_slots, each in itertools.product((1, 3), (1, 2), (1, 2)):
        n = num_ranks * num_slots * each
        result = schedule_micro_batches([7] * n, [5] * n, num_ranks, 5 * each, num_slots=num_slots)
        assert result.value == result.perfect == 7 * each * num_slots
        assert result.status == "optimal"


def test_what_long_samples_leave_no_room_for_is_proven():
    """Micro-batches are all but full of tokens, and beside a long sample there is room in cost for few."""
    lengths = np.random.default_rng(8).lognormal(np.log(2000) - 0.5, 1, 4096).clip(1, 32_768).astype(np.int64)
    costs, rules = 24_576 * lengths + lengths**2, {"sync": "pipeline", "num_slots": 2}
    result = schedule_micro_batches(costs, lengths, 64, 65_536, **rules)
    assert result.bound_name == "room"
    assert result.gap < 0.01
    check_schedule(costs, lengths, result, num_ranks=64, cap=65_536, **rules)


@settings(max_examples=examples(40))
@given(st.lists(st.integers(0, 11), min_size=3, max_size=6), st.integers(0, 7), SHAPES, st.integers(0, 3))
def test_room_is_never_more_than_the_optimum(lengths, linear, shape, spare):
    tokens = -np.sort(-np.array(lengths))
    costs, bins = linear * tokens + tokens**2, shape[0] * shape[1]
    cap = max(int(tokens[0]), int(tokens.sum()) // bins + spare, 1)
    best = optimal_value(costs.tolist(), tokens.tolist(), shape[0], cap, shape[1], sync="pipeline", allow_empty=True)
    bound = _room_bound(costs, tokens, bins, cap, Bound(int(costs[0]), "largest"))
    assert best is None or shape[1] * bound.value <= best
