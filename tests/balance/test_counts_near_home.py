"""Counts with other constraints: samples start from home under all of them together."""

import numpy as np
import pytest

from balancer import balance
from solvers.relocation import LAID

LENGTHS = np.random.default_rng(5).integers(1, 1000, 16 * 24)
HOMES = np.repeat(np.arange(16), 24)
TOKENS = int(1.1 * LENGTHS.sum() / 16)


@pytest.mark.parametrize(
    ("rules", "fewest", "most"),
    [
        ({"equal_counts": True, "max_tokens_per_rank": TOKENS}, 24, 24),
        ({"equal_counts": True, "keep_together": np.arange(len(LENGTHS)) // 4}, 24, 24),
        ({"min_samples_per_rank": 24, "max_samples_per_rank": 24}, 24, 24),
        ({"min_samples_per_rank": 23, "max_samples_per_rank": 26, "max_tokens_per_rank": TOKENS}, 23, 26),
    ],
    ids=["equal and caps", "equal and together", "at least and at most", "both and caps"],
)
def test_counts_beside_other_rules(rules: dict[str, object], fewest: int, most: int) -> None:
    cost = "quadratic:a=500,b=1"
    plan = balance(LENGTHS, 16, ranks_per_node=4, home_rank=HOMES, cost=cost, eps=0.01, **rules)
    assert plan.placement == "relocate"
    assert plan.fell_back in ("", LAID)  # no rule is refused, though not all may be kept from home
    counts = np.bincount(plan.rank_of_sample, minlength=16)
    assert fewest <= counts.min() <= counts.max() <= most
    assert np.bincount(plan.rank_of_sample, weights=LENGTHS).max() <= rules.get("max_tokens_per_rank", np.inf)
    if "keep_together" in rules:
        assert (plan.rank_of_sample.reshape(-1, 4) == plan.rank_of_sample[::4, None]).all()
    far = balance(LENGTHS, 16, ranks_per_node=4, home_rank=HOMES, cost=cost, placement="rearrange", **rules)
    assert plan.makespan <= 1.01 * far.makespan + 1
    assert 4 * plan.traffic.inter_node < far.traffic.inter_node


def test_counts_of_unlike_units_are_not_relocated() -> None:
    together = np.repeat(np.arange(100), 4)[: len(LENGTHS)].copy()
    together[:5] = 0
    together[5:8] = 1
    plan = balance(LENGTHS, 16, home_rank=HOMES, max_samples_per_rank=30, keep_together=together)
    assert plan.fell_back == "relocation does not take max_samples_per_rank"
