"""Batches of a sampler that defers samples: each row once, windows kept, and an epoch that goes on anywhere."""

import json
from itertools import chain

import numpy as np
import pytest

from balancer.compat.sampler import BalancedBatchSampler

LENGTHS = np.minimum(np.random.default_rng(5).lognormal(6, 1.5, 1000), 40_000).astype(np.int64) + 1
COST = "quadratic:a=1000,b=1"


def make(num_replicas: int = 4, rank: int | None = 0, batch_size: int = 10, **settings) -> BalancedBatchSampler:
    return BalancedBatchSampler(LENGTHS, batch_size, num_replicas, rank, **({"cost": COST, "defer": 2} | settings))


def steps(sampler: BalancedBatchSampler, epoch: int = 0) -> list[list[int]]:
    """Rows of each step of an epoch, of all ranks."""
    return [sorted(row for slot in sampler.plan_step(t, epoch) for batch in slot for row in batch)
            for t in range(sampler.num_steps)]  # fmt: skip


def slowest(found: list[list[int]]) -> int:
    """What all steps take at least, in the work of a rank."""
    costs = 1000 * LENGTHS + LENGTHS * LENGTHS
    return sum(max(costs[rows].max(), costs[rows].sum() // 4) for rows in found)


@pytest.mark.parametrize("epoch", [0, 3])
def test_every_row_once_within_its_window_and_long_ones_together(epoch):
    plain, deferred = (steps(make(defer=delay), epoch) for delay in (0, 2))
    assert sorted(chain(*deferred)) == list(range(1000))
    assert [len(rows) for rows in deferred] == [40] * 25
    nominal = {row: t for t, rows in enumerate(plain) for row in rows}
    assert max(abs(t - nominal[row]) for t, rows in enumerate(deferred) for row in rows) <= 2
    assert slowest(deferred) < 0.97 * slowest(plain)


def test_ranks_agree_and_no_deferral_is_todays_sampler():
    batches = [list(make(rank=rank)) for rank in range(4)]
    assert sorted(row for each in batches for batch in each for row in batch) == list(range(1000))
    today = BalancedBatchSampler(LENGTHS, 10, 4, 0, cost=COST)
    assert make(defer=0).state_dict() == today.state_dict()
    assert list(make(defer=0)) == list(today)


def trained(sampler: BalancedBatchSampler, count: int) -> list[int]:
    """Rows of so many batches of all ranks in turn."""
    found, batches = [], iter(sampler)
    for _ in range(count):
        found += next(batches)
    return found


@pytest.mark.parametrize("count", [0, 1, 7, 24])
def test_it_goes_on_on_as_many_ranks_as_if_nothing_had_happened(count):
    whole = [list(make(rank=rank)) for rank in range(4)]
    first = make(rank=2)
    assert trained(first, count) == list(chain(*whole[2][:count]))
    state = json.loads(json.dumps(first.state_dict()))
    again = make(rank=1)
    again.load_state_dict(state)
    assert list(again) == whole[1][count:]


@pytest.mark.parametrize(("ranks", "batch", "delay"), [(2, 10, 2), (8, 10, 2), (4, 5, 1), (4, 10, 3)])
def test_it_goes_on_on_other_ranks_with_every_row_once(ranks, batch, delay):
    first = make(rank=None)
    rows = trained(first, 9 * 4)
    second = make(ranks, None, batch, defer=delay)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    rows += trained(second, 3 * ranks)
    third = make(rank=None)  # and back, from a state of two cuts
    third.load_state_dict(json.loads(json.dumps(second.state_dict())))
    left = len(rows)
    rows += chain(*third)
    assert set(rows) == set(range(1000))
    assert len(rows) - 1000 == -(1000 - left) % 4
    assert sorted(chain(*third)) == list(range(1000))  # the next epoch is cut as this sampler cuts


def test_a_short_last_step_and_dropped_rows():
    short = steps(make(batch_size=9, equal_counts=False))
    assert sorted(chain(*short)) == list(range(1000))
    plain, deferred = (sorted(chain(*steps(make(batch_size=9, drop_last=True, defer=delay)))) for delay in (0, 2))
    assert deferred == plain  # what is dropped is so before any sample is moved
    assert len(plain) == 36 * 27


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"defer": -1}, "defer must be >= 0, got -1"),
        ({"defer": (0, 2)}, "leaves every sample in its nominal step"),
        ({"cost": "padded"}, "cannot be deferred under cost = padded"),
        ({"caps": {"images": (np.ones(1000), 9)}}, "defer knows no caps"),
    ],
)
def test_what_cannot_be_deferred_is_refused(change, error):
    with pytest.raises(ValueError, match=error):
        make(**change)


def test_states_with_and_without_deferral_are_told_apart():
    with pytest.raises(ValueError, match="its deferred is None"):
        make().load_state_dict(make(defer=0).state_dict())
    with pytest.raises(ValueError, match="here it is None"):
        make(defer=0).load_state_dict(make().state_dict())
