"""Costs that a caller gives, one number a sample: loss tokens, measured seconds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import balancer
import solvers
from balancer import MicroBatches, SequenceGroups
from balancer.compat.grid import micro_batch_grid
from balancer.errors import PlanError
from solvers.errors import InfeasibleError
from tests.nightly import examples

LENGTHS = [900, 100, 400, 600, 500, 500, 300, 700]
COSTS = [1, 9, 4, 6, 5, 5, 7, 3]


def load_of(plan, costs):
    return [int(np.array(costs)[plan.samples_on_rank(rank)].sum()) for rank in range(plan.num_ranks)]


def test_loads_are_of_the_given_costs_and_caps_of_lengths():
    plan = balancer.balance(LENGTHS, 2, cost=COSTS, max_tokens_per_rank=2100)
    assert plan.loads.tolist() == load_of(plan, COSTS) == [20, 20]
    assert max(load_of(plan, LENGTHS)) <= 2100
    with pytest.raises(InfeasibleError, match="max_tokens_per_rank"):
        balancer.balance(LENGTHS, 2, cost=COSTS, max_tokens_per_rank=1999)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=9), st.integers(1, 3))
def test_they_are_as_even_as_the_solver_makes_them(samples, num_ranks):
    lengths, costs = map(list, zip(*samples, strict=True))
    plan = balancer.balance(lengths, num_ranks, cost=costs, stop_at=0)
    exact = solvers.partition(costs, num_ranks, "exact", time_budget=5)
    assert plan.lower_bound <= exact.makespan <= plan.makespan == max(load_of(plan, costs))


@pytest.mark.parametrize("sync", ["step", "micro_batch"])
def test_micro_batches_are_even_in_costs_and_capped_in_lengths(sync):
    rng = np.random.default_rng(12)
    lengths = np.clip(rng.lognormal(7, 0.9, 512), 64, 16_384).astype(int)
    costs = np.maximum(1, (lengths * rng.beta(2, 5, 512)).astype(int))
    plan = balancer.balance(lengths, 16, cost=costs, cut=MicroBatches(20_000, sync))
    held = [plan.samples_in_slot(rank, slot) for rank in range(16) for slot in range(plan.num_slots)]
    assert max(int(lengths[each].sum()) for each in held) <= 20_000
    assert sorted(np.concatenate(held).tolist()) == list(range(512))
    assert plan.slot_loads.sum() == costs.sum()
    assert plan.makespan <= 1.01 * costs.sum() / 16


def test_fractions_are_scaled_once_and_plans_near_home_use_them():
    costs = np.array(COSTS) / 7
    plan = balancer.balance(LENGTHS, 4, ranks_per_node=2, home_rank=[0, 1, 0, 1, 2, 3, 2, 3], cost=costs)
    assert plan.placement == "relocate"
    assert plan.imbalance_ratio < plan.home_imbalance_ratio
    assert balancer.balance(LENGTHS, 4, cost=costs).rank_of_sample.tolist() == (
        balancer.balance(LENGTHS, 4, cost=costs * 2).rank_of_sample.tolist()
    )


def test_a_grid_takes_them_too():
    grid = micro_batch_grid(LENGTHS, 2, 2000, cost=COSTS)
    assert sorted(sample for slot in grid for held in slot for sample in held) == list(range(8))


@pytest.mark.parametrize(
    ("cost", "what"),
    [
        ([1, 2], "cost must have one number for each of 8 samples"),
        ([[1, 2]] * 8, "cost must have one number for each of 8 samples"),
        ([1, -2, 3, 4, 5, 6, 7, 8], r"cost\[1\] must be finite and >= 0, got -2"),
        ([2**62] * 8, "the sum of cost must fit int64"),
        (["a"] * 8, "cost must be a cost by its name, or one number a sample"),
    ],
)
def test_what_is_no_cost_is_named(cost, what):
    with pytest.raises((TypeError, ValueError), match=what):
        balancer.balance(LENGTHS, 2, cost=cost)


def test_rows_tell_no_costs():
    pytest.importorskip("pandas")
    plan = balancer.balance(LENGTHS, 2, cost=COSTS)
    assert plan.to_pandas()["rank"].tolist() == plan.rank_of_sample.tolist()


def test_what_they_do_not_go_with_is_named(tmp_path):
    with pytest.raises(ValueError, match="whole shares and micro-batches"):
        balancer.balance(LENGTHS, 2, cost=COSTS, cut=SequenceGroups((1, 2), 2000))
    with pytest.raises(ValueError, match="prefix needs a cost by its name"):
        balancer.balance(LENGTHS, 2, cost=COSTS, prefix=[0] * 8, prefix_length=[10] * 8)
    with pytest.raises(PlanError, match="one number a sample"):
        balancer.balance(LENGTHS, 2, cost=COSTS).save(tmp_path / "plan.parquet")
