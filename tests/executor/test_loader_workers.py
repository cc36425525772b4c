"""A sampler in loaders with workers, forked and spawned: one beside the other, over two epochs, and resumed."""

import json
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from balancer.compat import BalancedBatchSampler  # noqa: E402

LENGTHS = np.random.default_rng(0).integers(1, 90, 60)


def sampler():
    return BalancedBatchSampler(LENGTHS, 2, 2, 0, window=3)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_get_the_batches_that_there_are_without(method):
    if method not in torch.multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    without, before = sampler(), set(threading.enumerate())
    wanted = [list(without), list(without)]

    def loader():
        return torch.utils.data.DataLoader(
            list(range(60)), batch_sampler=sampler(), num_workers=1, collate_fn=list, multiprocessing_context=method
        )

    first, second = loader(), loader()
    running = iter(first)
    found = [next(running) for _ in range(5)]
    assert [thread for thread in threading.enumerate() if thread not in before and "balancer" in thread.name] == []
    state = json.loads(json.dumps(first.batch_sampler.state_dict(batches=5)))  # of more that the worker has fetched
    assert state["batches"] == 5
    assert list(second) == wanted[0]  # whose worker begins beside the first
    assert [*found, *running] == wanted[0]
    assert list(first) == wanted[1]
    resumed = loader()
    resumed.batch_sampler.load_state_dict(state)
    assert list(resumed) == wanted[0][5:]
    assert list(resumed) == wanted[1]
