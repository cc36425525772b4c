"""PyTorch's own context parallelism with the shards of documents, where the release is one that was tried."""

import numpy as np
import pytest

pytest.importorskip("torch")

import context_cases as cases
from ranks_of import ranks_of

from balancer.executor import ShardRows

torch_context = pytest.importorskip("balancer.compat.torch_context", exc_type=ImportError)
ranks = ranks_of(2, 4)


def test_its_sharding_gives_each_rank_its_tokens_and_puts_them_back(ranks):
    for seed in range(3):
        ranks.run(cases.balances_pytorch, seed)


def test_a_release_that_was_not_tried_is_refused_by_name():
    for release in torch_context.TRIED:
        torch_context.check_release(release)
    with pytest.raises(ImportError, match=r"was tried with torch 2\.13 alone, got torch 2\.99"):
        torch_context.check_release("2.99")


def test_ranks_of_unequal_size_are_no_equal_chunks():
    one, other = np.array([0, 2]), np.array([2, 5])
    rows = ShardRows(np.array([5]), np.array([0, 1]), np.zeros(2, dtype=np.int64), one, other, 2, {"full": 1})
    with pytest.raises(ValueError, match="shards must have as many tokens on each rank") as raised:
        torch_context.DocumentLoadBalancer(rows)
    assert "got 2 to 3" in str(raised.value)
