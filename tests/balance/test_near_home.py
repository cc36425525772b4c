"""Micro-batches near home: as quick as any within eps, and far less across nodes; or the reason why not."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import examples

import solvers
from balancer import MicroBatches, balance, load_plan
from solvers.packing import SYNCS
from solvers.relocation import LAID


def check(plan):
    """Every rule that the plan was made under."""
    slots = plan.slot_of_sample, plan.num_ranks, plan.num_slots
    assert plan.cut.violation(plan.lengths, plan.rank_of_sample, *slots) is None
    tokens = np.zeros(plan.num_ranks, dtype=np.int64)
    np.add.at(tokens, plan.rank_of_sample, plan.lengths)
    assert plan.constraints.violation(plan.rank_of_sample, tokens) is None
    spent = [[0] * plan.num_slots for _ in range(plan.num_ranks)]
    costs = plan.cost.sample_costs(plan.lengths)
    for rank, slot, cost in zip(plan.rank_of_sample, plan.slot_of_sample, costs, strict=True):
        spent[rank][slot] += int(cost)
    assert plan.cut.makespan(np.array(spent)) == plan.makespan >= plan.lower_bound


def lognormal(seed, count, longest=32_768):
    return np.random.default_rng(seed).lognormal(np.log(2000) - 0.5, 1, count).clip(1, longest).astype(np.int64)


@pytest.mark.parametrize("sync", SYNCS)
def test_little_crosses_nodes_for_as_good_as_nothing(sync):
    cost = "linear" if sync == "step" else "quadratic:a=24576,b=1"
    lengths, homes = lognormal(0, 1024), np.arange(1024) // 64
    # Of a pipeline each micro-batch more costs a K-th, so there must be room.
    micro_batches = MicroBatches(65_536, sync, count=3 if sync == "pipeline" else None)
    far, near = (
        balance(lengths, 16, 4, homes, cost, cut=micro_batches, placement=placement)
        for placement in ("rearrange", "relocate")
    )
    assert near.fell_back == ""
    assert near.makespan <= 1.001 * far.makespan
    assert near.inter_node_volume < 0.1 * far.inter_node_volume
    assert near.inter_node_bound <= near.inter_node_volume
    check(near)


@pytest.mark.parametrize(
    ("seed", "eps", "cap", "sync"),
    [
        (1, 0.001, 32_768, {}),  # what nodes have too much of goes to others within slots
        (4, 0.001, 32_768, {"sync": "pipeline", "pipeline_stages": 4}),
        (3, 0.01, 32_768, {}),  # what nodes chose for the full slot is better than what relocation finds there
    ],
)
def test_little_crosses_nodes_where_micro_batches_are_full(seed, eps, cap, sync):
    """The longest sample fills its micro-batch, and all ranks have that slot full; what must cross says so."""
    lengths, homes = lognormal(seed, 1024), np.arange(1024) // 64
    rules = MicroBatches(cap, **sync)
    far, near = (
        balance(lengths, 16, 4, homes, "quadratic:a=24576,b=1", cut=rules, placement=placement, eps=eps)
        for placement in ("rearrange", "relocate")
    )
    assert near.fell_back == ""
    assert near.makespan <= (1 + eps) * far.makespan
    assert 0.5 * near.inter_node_volume < near.inter_node_bound <= near.inter_node_volume < 0.1 * far.inter_node_volume
    check(near)


@given(
    st.lists(st.integers(0, 30), max_size=30),
    st.sampled_from([(1, 1), (2, 1), (4, 2), (6, 3)]),
    st.integers(5, 60),
    st.sampled_from(SYNCS),
    st.sampled_from([None, "fewest"]),
    st.sampled_from([0, 1e-3, 0.2]),
    st.sampled_from([{}, {"equal_counts": True}, {"max_tokens_per_rank": 900}, {"keep_together": True}]),
    st.integers(0, 9),
)
@settings(max_examples=examples(15))
def test_never_more_than_eps_beyond_the_best_found(lengths, ranks, cap, sync, count, eps, constraint, seed):
    if "keep_together" in constraint:
        constraint = {"keep_together": np.arange(len(lengths)) // 2}
    homes = np.random.default_rng(seed).integers(0, ranks[0], len(lengths))
    rules = MicroBatches(cap, sync, count=count, allow_empty=True, over_long="own")
    far, near = (
        balance(lengths, *ranks, homes, cut=rules, placement=placement, eps=eps, **constraint)
        for placement in ("rearrange", "relocate")
    )
    check(near)
    assert near.makespan <= (1 + eps) * far.makespan
    assert near.inter_node_bound <= near.inter_node_volume
    if near.fell_back not in ("", LAID):
        assert (near.makespan, near.num_slots) == (far.makespan, far.num_slots)


def test_what_does_not_fit_is_said():
    """One sample fills its micro-batch, and under the cap the others leave hardly any room."""
    lengths, homes = lognormal(0, 1024), np.arange(1024) // 64
    given = {"cost": "quadratic:a=24576,b=1", "cut": MicroBatches(32_768), "equal_counts": True}
    plan = balance(lengths, 16, 4, homes, eps=1e-5, **given)
    assert "relocated, micro-batches would take" in plan.fell_back
    assert "more than eps = 1e-05" in plan.fell_back
    generous = balance(lengths, 16, 4, homes, eps=0.2, **given)
    assert generous.fell_back == ""
    assert generous.inter_node_volume < 0.1 * plan.inter_node_volume


def test_what_is_in_a_slot_may_start_from_home_alone():
    """One slot is full of tokens, so that it is balanced first; the plan says so, and the others are near home."""
    lengths, homes = lognormal(0, 1024), np.arange(1024) // 64
    far, near = (
        balance(lengths, 16, 4, homes, "quadratic:a=24576,b=1", cut=MicroBatches(32_768), placement=placement, eps=1e-5)
        for placement in ("rearrange", "relocate")
    )
    check(near)
    assert near.fell_back == LAID
    assert near.makespan <= (1 + 1e-5) * far.makespan
    assert near.inter_node_volume < 0.3 * far.inter_node_volume


@pytest.mark.parametrize(
    ("sync", "limit"),
    [
        ("micro_batch", {"max_tokens_per_rank": 140_000}),
        ("pipeline", {"max_samples_per_rank": 70}),
        ("micro_batch", {"equal_counts": True}),
    ],
)
def test_micro_batches_of_nodes_are_dealt_to_ranks_that_keep_limits(sync, limit):
    lengths, homes = lognormal(3, 1024), np.arange(1024) // 64
    rules, cost = MicroBatches(32_768, sync), "quadratic:a=24576,b=1"
    far, near = (
        balance(lengths, 16, 4, homes, cost, cut=rules, placement=placement, eps=0.01, **limit)
        for placement in ("rearrange", "relocate")
    )
    check(near)
    assert near.makespan <= 1.01 * far.makespan
    assert near.inter_node_volume < 0.03 * far.inter_node_volume


@pytest.mark.parametrize(("sync", "source"), [(sync, source) for source, sync in enumerate(SYNCS)])
def test_no_micro_batch_of_few_samples_is_left_empty(sync, source):
    """A number of micro-batches is given that each rank has just enough samples for."""
    lengths = np.random.default_rng(source).lognormal(7.1, 1, 64).clip(1, 32_768).astype(np.int64)
    rules = MicroBatches(65_536, sync, count=4, pipeline_stages=4 if sync == "pipeline" else 1)
    far, near = (
        balance(lengths, 16, 8, np.arange(64) // 4, "quadratic:a=24576,b=1", cut=rules, placement=placement)
        for placement in ("rearrange", "relocate")
    )
    check(near)
    assert near.fell_back == ""
    assert near.num_slots == 4
    assert near.makespan <= 1.001 * far.makespan


@pytest.mark.parametrize("sync", SYNCS)
def test_micro_batches_of_what_began_as_a_partition_say_why(monkeypatch, sync):
    """With next to no work there is no way from home: ranks share anew what a partition brought."""
    monkeypatch.setattr("solvers.relocation._WORK_A_RANK", 1)
    lengths, homes = np.random.default_rng(0).integers(100, 3000, 4 * 64), np.arange(4 * 64) // 4
    rules = MicroBatches(int(lengths.sum()), sync, count=1)
    plan = balance(lengths, 64, 4, homes, cut=rules, equal_counts=True)
    check(plan)
    assert plan.inter_node_volume > 0.2 * lengths.sum()
    assert plan.fell_back == LAID


@pytest.mark.parametrize("allow_empty", [False, True])
def test_a_rank_of_one_long_sample_gets_short_ones_for_its_other_micro_batches(allow_empty):
    lengths, homes = [90, *[10] * 6, 1, *[10] * 20], np.repeat(np.arange(4), 7)
    rules = MicroBatches(50, "step", count=2, over_long="own", allow_empty=allow_empty)
    plan = balance(lengths, 4, 2, homes, cut=rules)
    check(plan)
    assert plan.fell_back == ""
    assert plan.makespan == (90 if allow_empty else 91)


END = 2**63 - 1
QUARTER = 2**61


@pytest.mark.parametrize(
    ("lengths", "rules", "constraints"),
    [
        ([2**62, 0, 2**62 - 9], {"tokens": END, "multiple_of": 2}, {}),  # 2 * END tokens fit a rank
        ([QUARTER - 9, 6, QUARTER], {"tokens": END, "at_least": 2}, {}),
        ([QUARTER, QUARTER - 1, 3, QUARTER], {"tokens": QUARTER}, {"keep_together": [0, 1, 1, 0]}),
        ([QUARTER] * 3, {"tokens": QUARTER, "sync": "pipeline", "pipeline_stages": 4}, {}),
    ],
)
def test_costs_near_the_end_of_int64(lengths, rules, constraints):
    homes = np.arange(len(lengths)) % 2
    plan = balance(lengths, 2, 1, homes, cut=MicroBatches(allow_empty=True, **rules), eps=0.9, **constraints)
    check(plan)
    assert plan.inter_node_bound <= plan.inter_node_volume


def test_micro_batches_that_hold_nothing_on_any_rank_are_left_out(tmp_path):
    """One multiple more is tried, and where it is not needed a plan file could not tell of it."""
    rules = MicroBatches(10, multiple_of=3, allow_empty=True)
    plan = balance([9, 6, 4, 3, 1], 2, 1, [0, 1, 0, 0, 1], cut=rules, eps=0)
    assert (plan.fell_back, plan.num_slots) == ("", 3)
    plan.save(tmp_path / "plan.parquet")
    assert load_plan(tmp_path / "plan.parquet") == plan


@pytest.mark.parametrize("sync", ["micro_batch", "pipeline"])
def test_micro_batches_of_a_slot_are_laid_on_nodes_by_themselves(sync):
    """A step takes the same whichever rank computes which; together they would cross nodes more."""
    lengths, homes = lognormal(2, 512), np.random.default_rng(2).integers(0, 16, 512)
    rules = MicroBatches(32_768, sync, count=3)
    any_rank, near = (
        balance(lengths, 16, 4, homes, cut=rules, placement=placement) for placement in ("any", "rearrange")
    )
    check(near)
    assert near.makespan == any_rank.makespan
    groups = any_rank.rank_of_sample
    volumes = np.zeros((16, 16), dtype=np.int64)
    np.add.at(volumes, (groups, homes), lengths)
    together = solvers.rearrange(volumes, near.topology.node_of_rank).rank_of_group[groups]
    assert near.inter_node_volume < lengths[together // 4 != homes // 4].sum()


@pytest.mark.parametrize(
    ("seed", "constraint", "most"),
    [
        # What is even over the ranks is not their costs, but what they have beside their full slots.
        (3, {"keep_together": np.arange(1024) // 8}, 0.01),
        (3, {"max_samples_per_rank": 80}, 0.01),
        # Even by every sum, two long samples on one rank do not fit its tall slot: 1.3 and 1.7 % over, left alone.
        (2, {"allowed_ranks": np.random.default_rng(2).random((512, 8)) < 0.5}, 0.021),
        pytest.param(
            2, {"allowed_ranks": np.random.default_rng(2).random((1024, 16)) < 0.5}, 0.011, marks=pytest.mark.nightly
        ),
    ],
)
def test_micro_batches_under_constraints_is_near_its_bound(seed, constraint, most):
    count, ranks = np.shape(constraint["allowed_ranks"]) if "allowed_ranks" in constraint else (1024, 16)
    lengths = lognormal(seed, count)
    plan = balance(lengths, ranks, 4, cost="quadratic:a=24576,b=1", cut=MicroBatches(32_768), **constraint)
    check(plan)
    assert plan.gap < most
