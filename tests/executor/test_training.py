"""Training with balancing is the same training, on three modalities and real lengths."""

import numpy as np
import pytest

pytest.importorskip("torch")

import training_cases as cases
from rank_processes import Ranks


def test_losses_and_gradients_equal_those_of_the_run_without_balancing():
    with Ranks(4) as ranks:
        results = ranks.run(cases.trains_alike, 20)
    assert len({tuple(losses) for _, _, losses in results}) == 1  # every rank knows the global loss
    before, after = (np.asarray([result[which] for result in results]) for which in (0, 1))  # [rank, step, phase]
    assert np.array_equal(before.sum(axis=0), after.sum(axis=0))  # the same tokens in every step
    slowest_before, slowest_after = (tokens.max(axis=0).sum(axis=0) for tokens in (before, after))
    assert (slowest_after <= slowest_before).all()
    assert (slowest_after < 0.8 * slowest_before)[[0, 2]].all()  # the log begins with too little audio to share out
