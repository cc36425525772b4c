"""Limits on what ranks hold beside micro-batches: finished micro-batches are dealt to ranks that keep them."""

from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples

from balancer import MicroBatches, balance
from balancer.cuts.micro_batches.dealing import deal
from solvers import SolverError

QUADRATIC = "quadratic:a=24576,b=1"


def lognormal(seed, count):
    return np.random.default_rng(seed).lognormal(np.log(2000) - 0.5, 1, count).clip(1, 32_768).astype(np.int64)


@pytest.mark.parametrize(
    ("sync", "seed", "spare"), [("micro_batch", 10, 1.01), ("pipeline", 11, 1.01), ("pipeline", 10, 1.3)]
)
def test_caps_cost_no_time(sync, seed, spare):
    """Which rank has which of a slot's micro-batches changes no time, and there are ways enough to choose."""
    lengths, cut = lognormal(seed, 1024), MicroBatches(32_768, sync)
    most = {"max_tokens_per_rank": int(spare * lengths.sum() / 16), "max_samples_per_rank": 80}
    free, kept = (balance(lengths, 16, 8, cost=QUADRATIC, cut=cut, placement="any", **limits) for limits in ({}, most))
    assert kept.makespan <= 1.001 * free.makespan
    counts, tokens = (np.bincount(kept.rank_of_sample, weights=w, minlength=16) for w in (None, lengths))
    assert (counts.max() <= 80) & (tokens.max() <= most["max_tokens_per_rank"])


def test_equal_counts_cost_little_where_ranks_have_many_samples():
    """Some single samples move within their slots, those that make these least longer."""
    longer = []
    for seed in range(10, 16):
        lengths, cut = lognormal(seed, 4096), MicroBatches(32_768)
        free, equal = (
            balance(lengths, 64, 8, cost=QUADRATIC, cut=cut, placement="any", **limits)
            for limits in ({}, {"equal_counts": True})
        )
        longer.append(equal.makespan / free.makespan)
        assert (np.bincount(equal.rank_of_sample) == 64).all()
        slots = equal.rank_of_sample, equal.slot_of_sample, 64, equal.num_slots
        assert cut.violation(lengths, *slots) is None
    assert np.mean(longer) <= 1.0016


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=9),
    st.integers(2, 3),
    st.integers(20, 40),
    st.sampled_from(["micro_batch", "pipeline"]),
    st.fixed_dictionaries(
        {},
        optional={
            "max_tokens_per_rank": st.integers(10, 60),
            "max_samples_per_rank": st.integers(1, 6),
            "min_samples_per_rank": st.integers(1, 3),
            "equal_counts": st.just(True),
        },
    ).filter(bool),
)
@settings(max_examples=examples(25))
def test_limits_hold_and_a_way_that_costs_no_time_is_seen(lengths, ranks, cap, sync, kept):
    cut, dealt = MicroBatches(cap, sync, allow_empty=True, over_long="own"), []

    def keep(*asked):
        dealt.append((*asked, deal(*asked)))
        return dealt[-1][-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("balancer.cuts.micro_batches.planner.deal", keep)
        try:
            plan = balance(lengths, ranks, cut=cut, placement="any", **kept)
        except SolverError:
            plan = None
    for problem, _, before, slots, k, found in dealt:
        may = [
            problem.constraints.violation(where, tokens_of(where, lengths, ranks)) is None
            for where in ways(before, slots, k, ranks)
        ]
        if found is not None:
            assert problem.constraints.violation(found, tokens_of(found, lengths, ranks)) is None
            assert cut.violation(np.array(lengths), found, slots, ranks, k) is None
        if any(may):
            assert plan is not None
            assert plan.makespan <= makespan(cut, lengths, before, slots, ranks, k)


def tokens_of(where, lengths, ranks):
    return np.bincount(where, weights=lengths, minlength=ranks).astype(np.int64)


def makespan(cut, lengths, where, slots, ranks, k):
    loads = np.zeros((ranks, k), dtype=np.int64)
    np.add.at(loads, (where, slots), lengths)
    return cut.makespan(loads)


def ways(where, slots, k, ranks):
    """Every way to deal whole micro-batches to the ranks."""
    if k * ranks <= 9:
        for way in product(list(permutations(range(ranks))), repeat=k):
            yield np.array([way[slot][rank] for rank, slot in zip(where, slots, strict=True)], dtype=np.int32)
