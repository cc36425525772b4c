"""Levelling: from any start, moves and swaps never raise the objective, break the cap, or lose an item."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples
from schedule_oracles import value_of_cells

from solvers.groups import read_only
from solvers.packing._schedule_kernels import Filling, Levels, Measures, Samples, deal, fill_densest, level

NEVER_ALONE = 10**9


def start_of(seed, num_bins, n=40):
    rng = np.random.default_rng(seed)
    costs = np.sort(rng.integers(1, 1000, n))[::-1].copy()
    tokens = rng.integers(0, 20, n)
    layout = np.concatenate([np.arange(num_bins), rng.integers(0, num_bins, n - num_bins)]).astype(np.int32)
    return read_only(costs), read_only(tokens), layout


def value_of(costs, layout, num_bins, sync, num_ranks):
    sums = [int(costs[layout == b].sum()) for b in range(num_bins)]
    if sync == "step":  # rank by rank
        slots = num_bins // num_ranks
        cells = [sums[r * slots : (r + 1) * slots] for r in range(num_ranks)]
    else:  # slot by slot
        cells = [sums[r::num_ranks] for r in range(num_ranks)]
    return value_of_cells(cells, sync, 1)


@pytest.mark.parametrize("sync", ["micro_batch", "step", "pipeline"])
@pytest.mark.parametrize("seed", range(6))
def test_levelling_never_makes_it_worse_and_mostly_makes_it_even(sync, seed):
    num_ranks, num_slots = 3, 2
    num_bins = num_ranks * num_slots
    costs, tokens, layout = start_of(seed, num_bins)
    before = value_of(costs, layout, num_bins, sync, num_ranks)
    cap = int(np.bincount(layout, tokens, num_bins).max())
    width, classes = {"micro_batch": (1, num_slots), "step": (num_slots, 1), "pipeline": (1, 1)}[sync]
    work = 100_000
    left = level(
        Samples(costs, tokens), layout, num_bins, Levels(width, num_bins // width // classes, cap, False), work
    )
    after = value_of(costs, layout, num_bins, sync, num_ranks)
    assert after < before
    perfect = costs.sum() / num_ranks if sync != "pipeline" else num_slots * costs.sum() / num_bins
    assert after <= 1.02 * perfect + 10
    assert 0 < left < work
    assert np.bincount(layout, tokens, num_bins).max() <= cap
    assert np.bincount(layout, minlength=num_bins).min() >= 1


def test_levelling_stops_when_its_work_is_spent():
    costs, tokens, layout = start_of(0, 6)
    assert level(Samples(costs, tokens), layout.copy(), 6, Levels(1, 6, 1000, False), 1) <= 0


def test_dealing_ends_where_something_fits_nowhere():
    costs = tokens = read_only(np.array([5, 4, 3]))
    layout, loads, used = np.full(3, -1, dtype=np.int32), np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    bins, unlimited = np.arange(1), np.array([NEVER_ALONE])
    measures, filling = Measures(unlimited, np.array([1]), 1, 0, 8), Filling(layout, loads, used)
    assert not deal(Samples(costs, tokens), np.arange(3), bins, measures, filling)
    assert layout.tolist() == [0, -1, -1]
    assert (loads.tolist(), used.tolist()) == ([5], [5])


@settings(max_examples=examples(200))
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=30),
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 9), st.integers(0, 20), st.integers(0, 12)), min_size=1,
             max_size=9),
    st.integers(1, 5), st.integers(0, 3), st.integers(5, 30),
)  # fmt: skip
def test_every_item_goes_to_the_least_full_bin_with_room(items, bins, token_unit, base, cap):
    costs, tokens = (read_only(np.array([item[i] for item in items], dtype=np.int64)) for i in range(2))
    ceilings, units, loads, used = (np.array([b[i] for b in bins], dtype=np.int64) for i in range(4))
    expected, held = [], [list(pair) for pair in zip(loads.tolist(), used.tolist(), strict=True)]
    for cost, t in items:
        fitting = [
            (load + cost > ceiling, max((load - base * in_use) // unit, in_use // token_unit), k)
            for k, ((load, in_use), ceiling, unit) in enumerate(zip(held, ceilings, units, strict=True))
            if in_use + t <= cap
        ]
        if not fitting:
            break
        k = min(fitting)[2]
        held[k][0] += cost
        held[k][1] += t
        expected.append(k)
    layout = np.full(len(items), -1, dtype=np.int32)
    numbers = np.arange(len(items)), np.arange(len(bins))
    measures, filling = Measures(ceilings, units, token_unit, base, cap), Filling(layout, loads, used)
    complete = deal(Samples(costs, tokens), *numbers, measures, filling)
    assert complete == (len(expected) == len(items))
    assert layout.tolist() == expected + [-1] * (len(items) - len(expected))
    assert [list(pair) for pair in zip(loads.tolist(), used.tolist(), strict=True)] == held


def test_filling_keeps_to_height_and_cap():
    costs, tokens = read_only(np.array([9, 6, 5, 4, 1])), read_only(np.array([3, 3, 3, 3, 3]))
    layout, loads, used = np.full(5, -1, dtype=np.int32), np.zeros(2, dtype=np.int64), np.zeros(2, dtype=np.int64)
    fill_densest(Samples(costs, tokens), np.arange(5), np.arange(2), 9, 6, Filling(layout, loads, used))
    assert layout.tolist() == [0, 1, -1, -1, 1]
    assert (loads.tolist(), used.tolist()) == ([9, 7], [3, 6])
