"""A sampler that plans ahead in a thread, in loaders with workers: forked and spawned, one beside the other."""

import os
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from balancer.compat import BalancedBatchSampler  # noqa: E402

LENGTHS = np.random.default_rng(0).integers(1, 90, 60)
RUNNING = []
"""Threads of plans that ran when this process forked."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_parent=lambda: RUNNING.append(planning()))


def planning():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("seqbalancer-plans")]


def sampler():
    return BalancedBatchSampler(LENGTHS, 2, 2, 0, time_budget=0.0001)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_begin_before_the_thread_and_beside_it(method):
    if method not in torch.multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    rows, wanted = list(range(60)), [list(sampler()), None]
    batches = sampler()
    batches.set_epoch(1)
    wanted[1] = list(batches)

    def loader():
        return torch.utils.data.DataLoader(
            rows, batch_sampler=sampler(), num_workers=1, collate_fn=list, multiprocessing_context=method
        )

    first, second = loader(), loader()
    RUNNING.clear()
    running = iter(first)
    found = [next(running)]
    assert planning(), "plans are made ahead"
    other = list(second)  # its workers begin while the thread of the first runs
    assert [*found, *running] == other == wanted[0]
    first.batch_sampler.set_epoch(1)
    assert list(first) == wanted[1]
    assert planning() == []
    assert len(RUNNING) == (3 if method == "fork" else 0)
    assert not any(RUNNING), "a thread ran while the process forked"
