"""The search of schedules: its kernel against its definition, its bins step by step, and caps of plans drawn before."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples

from solvers import check_schedule, schedule_micro_batches
from solvers.packing import SYNCS
from solvers.packing._schedule_search import Bins, Samples, deal_evenly, fill_densest
from solvers.partitioning.auto import state_of

UNITS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=30)


def state(units, num_groups):
    n = len(units)
    amounts = np.column_stack([np.array(units, dtype=np.int64).reshape(n, 2), np.ones(n, dtype=np.int64)])
    no_rules = np.zeros(n, dtype=np.int64), np.ones((1, num_groups), dtype=np.bool_)
    return state_of(amounts, *no_rules, np.zeros(num_groups, dtype=np.int64))


@settings(max_examples=examples(60))
@given(UNITS, st.integers(1, 6), st.integers(0, 60), st.integers(0, 30), st.data())
def test_filling_is_best_fit(units, num_groups, height, cap, data):
    """Each unit goes where the least is left under the cap, among groups with room for its cost, if any."""
    first = data.draw(st.integers(0, num_groups - 1))
    s, upper = state(units, num_groups), np.array([[height, cap, 2**61]] * num_groups)
    expected, held = [], {g: [0, 0] for g in range(first, num_groups)}
    for cost, tokens in units:
        fitting = [
            (cap - used, g) for g, (load, used) in held.items() if load + cost <= height and used + tokens <= cap
        ]
        expected.append(min(fitting)[1] if fitting else -1)
        if fitting:
            held[expected[-1]][0] += cost
            held[expected[-1]][1] += tokens
    fill_densest(s, np.arange(len(units)), upper, first, num_groups)
    assert s.group.tolist() == expected


def samples_of(seed, n=48, allow_empty=False, alone=()):
    rng = np.random.default_rng(seed)
    tokens = rng.lognormal(4, 1, n).astype(np.int64) + 1
    tokens = np.sort(tokens)[::-1].copy()
    cap = int(1.1 * tokens.sum() / 12) + int(tokens[0])
    over = np.isin(np.arange(n), alone)
    return Samples(tokens * (200 + tokens), np.where(over, cap, tokens), over, cap, allow_empty)


@pytest.mark.parametrize(("seed", "alone"), [(0, ()), (1, (0, 3)), (2, (0, 3))])
def test_lowering_keeps_all_rules_and_never_raises_a_height(seed, alone):
    samples = samples_of(seed, alone=alone)
    bins = Bins(samples, 4, 3, 0.01)
    bins.start(0)
    start = bins.value
    for k in range(3):
        before = bins.heights()
        bins._lower(k, 0, bins.work)
        assert (bins.heights() <= before).all()
    bins.offer()
    assert bins.value <= start
    layout = bins.run(0)
    loads, used = (np.bincount(layout, values, 12) for values in (samples.costs, samples.tokens))
    assert used.max() <= samples.cap
    assert np.bincount(layout, minlength=12).min() >= 1
    assert all((layout == layout[sample]).sum() == 1 for sample in alone)
    assert (np.diff(loads) <= 0).all()  # by descending cost, slot by slot
    assert bins.value == loads[::4].sum() < 1.001 * start


@pytest.mark.parametrize("width", [1, 12])
def test_work_is_counted(width):
    """No part runs free: with hardly any work left there is a start, and one call of the search that ends at once."""
    bins = Bins(samples_of(0), width, 12 // width, 1e-9)
    assert bins.run(0) is not None
    assert -2_000_000 < bins.work <= 0


def test_samples_that_no_packer_fits_are_mended():
    """Sixteen bins that are all but full, of a plan that was drawn: no deal fits, exchanges under the cap do."""
    mended = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        parts = [
            np.diff(np.concatenate([[0], np.sort(rng.choice(np.arange(1, 1000), 3, False)), [1000]])) for _ in range(8)
        ]
        tokens = -np.sort(-np.concatenate(parts))
        samples = Samples(tokens, tokens.copy(), np.zeros(len(tokens), dtype=np.bool_), 1003, False)
        if deal_evenly(samples, 8) is None:
            layout = Bins(samples, 8, 1, 0.02).run(2**61)
            mended += layout is not None and np.bincount(layout, tokens).max() <= 1003
    assert mended >= 10


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("spare", [0, 1, 2])
def test_plans_under_planted_caps_are_found(sync, spare):
    """Draw a plan, set the cap to its fullest micro-batch and little more, and forget it."""
    for seed, (ranks, slots, each) in enumerate(((2, 2, 4), (4, 3, 5), (8, 2, 8), (8, 4, 8), (4, 1, 6))):
        rng, bins = np.random.default_rng([seed, spare]), ranks * slots
        tokens = rng.lognormal(7, 1, bins * each).astype(np.int64) + 1
        drawn = rng.permutation(np.arange(bins * each) % bins)
        cap = int(np.bincount(drawn, tokens, bins).max() * (100 + spare)) // 100
        costs = 24576 * tokens + tokens**2
        result = schedule_micro_batches(costs, tokens, ranks, cap, sync=sync, num_slots=slots, time_budget=0.01)
        check_schedule(costs, tokens, result, num_ranks=ranks, cap=cap, sync=sync, num_slots=slots)


def test_numbers_of_more_bits_than_limits_have():
    """Costs and tokens are searched in coarser numbers then, and rules hold in the true ones."""
    rng = np.random.default_rng(3)
    tokens = rng.integers(2**55, 2**57, 30)
    cap = int(tokens.sum()) // 5
    for sync in SYNCS:
        result = schedule_micro_batches(tokens, tokens, 3, cap, sync=sync)
        check_schedule(tokens, tokens, result, num_ranks=3, cap=cap, sync=sync)
        assert result.gap < 0.5


def test_beside_samples_that_lie_alone_a_slot_is_filled_to_its_cap():
    """Their slot is as high as they are, so its other bins hold what the cap lets them: steps of the shipped log."""
    table = pq.read_table(Path(__file__).parents[2] / "data" / "omni_mix_dev.parquet").slice(0, 4 * 2048)
    lengths = sum(table[f"{kind}_tokens"].to_numpy() for kind in ("text", "image", "audio"))
    found = [
        schedule_micro_batches(step, step, 64, 8192, over_long="own", time_budget=0.01)
        for step in lengths.reshape(4, 2048)
    ]
    assert np.mean([each.gap for each in found]) < 0.001
