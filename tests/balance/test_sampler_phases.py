"""A sampler's cost of several phases: ranks wait in each of them, so each is to be even."""

import numpy as np
import pytest

from balancer import Everywhere, Limit
from balancer.compat import BalancedBatchSampler


def images_and_text(count=512):
    """Half of the samples have an image, and these have less text."""
    random = np.random.default_rng(3)
    image = random.integers(0, 2, count)
    vision = image * random.integers(256, 4096, count)
    text = np.clip(random.lognormal(6, 0.8, count), 16, 4096).astype(int) // (1 + image)
    return np.stack([vision, text], axis=1)


def taken(grid, costs, sync):
    """What steps take: in each phase ranks wait for the slowest."""
    loads = np.array([[[costs[batch].sum(axis=0) for batch in slot] for slot in step] for step in grid])
    return int((loads.sum(1).max(1) if sync == "step" else loads.max(2)).sum())


@pytest.mark.parametrize(("sync", "most"), [("step", 1.01), ("micro_batch", 1.03)])
def test_each_phase_is_even(sync, most):
    """By the sum of phases alone: 1.17 and 1.24."""
    costs = images_and_text()
    sampler = BalancedBatchSampler(
        costs.sum(axis=1), 8, 8, 0, cost=costs, gradient_accumulation_steps=2, sync=sync, window=3
    )
    found = taken(sampler.plan(), costs, sync)
    by_sum = BalancedBatchSampler(costs.sum(axis=1), 8, 8, 0, gradient_accumulation_steps=2, sync=sync, window=3)
    assert found * 8 < most * costs.sum()
    assert taken(by_sum.plan(), costs, sync) > 1.1 * found
    report = sampler.report()
    assert (report.planned.spent, report.planned.worked) == (8 * found, costs.sum())


@pytest.mark.parametrize("sync", ["step", "micro_batch"])
def test_each_phase_is_even_under_limits(sync):
    """By the sum of phases alone: 1.18 and 1.2."""
    costs = images_and_text()
    tokens = costs.sum(axis=1)
    tall = np.arange(len(costs)) % 8 == 0
    limits = [Limit(tokens, 26_000), Everywhere(tall)]
    given = {"cost": costs, "gradient_accumulation_steps": 2, "sync": sync, "limits": limits}
    steps = list(BalancedBatchSampler(tokens, 8, 8, 0, **given).plan())
    assert taken(steps, costs, sync) * 8 < 1.06 * costs.sum()
    for step in steps:
        for slot in step:
            assert max(tokens[batch].sum() for batch in slot) <= 26_000
            assert len({tall[batch].any() for batch in slot}) == 1


def test_phases_have_one_scale():
    costs = images_and_text(64)
    lengths = costs.sum(axis=1)
    whole = list(BalancedBatchSampler(lengths, 4, 2, 0, cost=costs).plan())
    assert list(BalancedBatchSampler(lengths, 4, 2, 0, cost=costs * 0.25).plan()) == whole
    assert list(BalancedBatchSampler(lengths, 4, 2, 0, cost=costs * [1, 9]).plan()) != whole
    assert list(BalancedBatchSampler(lengths, 4, 2, 0, cost=costs.sum(axis=1)[:, None]).plan()) == list(
        BalancedBatchSampler(lengths, 4, 2, 0, cost=costs.sum(axis=1)).plan()
    )


@pytest.mark.parametrize(
    ("cost", "said"),
    [
        (np.ones((2, 9)), r"cost must have 1 to 8 columns, one a phase, got shape \(2, 9\)"),
        (np.ones((2, 0)), "cost must have 1 to 8 columns"),
        (np.ones((3, 2)), "cost must have one number for each of 2 samples"),
        (np.ones((2, 2, 2)), "cost must have one number for each of 2 samples"),
        ([[1, 2], [3, -1]], r"cost\[1\] must be finite and >= 0, got -1"),
        (np.full((2, 8), 2**61), "cost must fit int64 when a sample's phases are summed"),
    ],
)
def test_phases_that_cannot_be(cost, said):
    with pytest.raises(ValueError, match=said):
        BalancedBatchSampler([3, 4], 1, 1, 0, cost=cost)
