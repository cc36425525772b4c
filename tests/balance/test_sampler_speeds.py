"""Unlike cards: a fast rank holds more, and all are done together."""

import numpy as np
import pytest

from balancer.compat import BalancedBatchSampler

SPEEDS = np.array([5, 5, 4, 2])
LENGTHS = np.clip(np.random.default_rng(7).lognormal(6, 0.7, 512), 16, 4096).astype(int)


def over_even(grid, costs, sync, speeds=SPEEDS):
    """Time until the slowest rank is done, where they wait, over that of ranks that are done together."""
    costs = costs.reshape(len(costs), -1)
    loads = np.array([[[costs[batch].sum(axis=0) for batch in slot] for slot in step] for step in grid])
    of_ranks = loads.sum(1, keepdims=True) if sync == "step" else loads  # [step, micro-step, rank, phase]
    return (of_ranks / speeds[:, None]).max(axis=2).sum() / (costs.sum() / speeds.sum())


@pytest.mark.parametrize(("sync", "most"), [("step", 1.002), ("micro_batch", 1.002)])
@pytest.mark.parametrize("phases", [1, 2])
def test_a_fast_rank_holds_more_and_all_are_done_together(sync, most, phases):
    """With equal counts a step takes twice as long."""
    share = np.random.default_rng(1).random((len(LENGTHS), 1))
    costs = LENGTHS if phases == 1 else np.concatenate([LENGTHS[:, None] * share, LENGTHS[:, None] * (1 - share)], 1)
    given = {"cost": costs, "gradient_accumulation_steps": 2, "sync": sync, "window": 1}
    sampler = BalancedBatchSampler(LENGTHS, 8, 4, 0, rank_speeds=SPEEDS, **given)
    steps = list(sampler.plan())
    assert over_even(steps, costs, sync) < most + 0.004 * (phases - 1)
    assert over_even(BalancedBatchSampler(LENGTHS, 8, 4, 0, **given).plan(), costs, sync) > 1.9
    assert sorted(row for step in steps for slot in step for batch in slot for row in batch) == list(range(512))
    assert all(sum(len(batch) for slot in step for batch in slot) == 64 for step in steps), "8 is the mean"
    assert sampler.report().planned.imbalance == pytest.approx(over_even(steps, costs, sync), rel=1e-4)


@pytest.mark.parametrize("sync", ["step", "micro_batch"])
def test_a_slow_rank_has_a_sample_in_every_micro_step(sync):
    sampler = BalancedBatchSampler(LENGTHS, 2, 3, 0, rank_speeds=[1, 1, 1000], gradient_accumulation_steps=3, sync=sync)
    counts = np.array([[[len(batch) for batch in slot] for slot in step] for step in sampler.plan()])
    assert counts.shape[1:] == (3, 3)
    assert counts.min() == 1


def test_unlike_ranks_resume_as_if_not_stopped_and_as_like_ones():
    made = [BalancedBatchSampler(LENGTHS, 3, 4, rank, rank_speeds=SPEEDS, window=2) for rank in range(4)]
    whole = [list(sampler) for sampler in made]
    state = made[0].state_dict(batches=7)
    again = BalancedBatchSampler(LENGTHS, 3, 4, 2, rank_speeds=SPEEDS, window=2)
    again.load_state_dict(state)
    assert list(again) == whole[2][7:]
    others = [BalancedBatchSampler(LENGTHS, 5, 2, rank) for rank in range(2)]
    rest = []
    for sampler in others:
        sampler.load_state_dict(state)
        rest += [row for batch in sampler for row in batch]
    seen = [row for batches in whole for batch in batches[:7] for row in batch]
    assert np.bincount(seen + rest).min() == 1
    assert len(seen + rest) <= 512 + 2


def test_speeds_in_tokens_a_second_are_not_rounded_away():
    """A step takes less than one such unit of time; by whole units 1.012."""
    speeds = SPEEDS * 10_007 + 1
    sampler = BalancedBatchSampler(LENGTHS, 8, 4, 0, rank_speeds=speeds)
    assert over_even(sampler.plan(), LENGTHS, "step", speeds) < 1.002


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rank_speeds": [1]}, "rank_speeds must have a number for each of 2 ranks, got 1"),
        ({"rank_speeds": [1, 0]}, r"rank_speeds\[1\] must be >= 1, got 0"),
        ({"rank_speeds": [1, 0.5]}, r"rank_speeds\[1\] must be a finite whole number"),
        ({"rank_speeds": [1, 2], "cost": "padded"}, "rank_speeds are for a cost that adds up over samples"),
    ],
)
def test_speeds_that_cannot_be(given, said):
    with pytest.raises(ValueError, match=said):
        BalancedBatchSampler([3, 4], 1, 2, 0, **given)
