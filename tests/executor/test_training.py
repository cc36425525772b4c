"""Training with balancing is the same training, on three modalities and real lengths."""

import numpy as np
import pytest

pytest.importorskip("torch")

import training_cases as cases
from ranks_of import ranks_of

ranks = ranks_of(4)


def test_losses_and_gradients_equal_those_of_the_run_without_balancing(ranks):
    results = ranks.run(cases.trains_alike, 20)
    assert len({tuple(losses) for _, _, losses in results}) == 1  # every rank knows the global loss
    before, after = (np.asarray([result[which] for result in results]) for which in (0, 1))  # [rank, step, phase]
    assert np.array_equal(before.sum(axis=0), after.sum(axis=0))  # the same tokens in every step
    slowest_before, slowest_after = (tokens.max(axis=0).sum(axis=0) for tokens in (before, after))
    assert (slowest_after <= slowest_before).all()
    assert (slowest_after < 0.8 * slowest_before)[[0, 2]].all()  # the log begins with too little audio to share out


def test_the_slowest_rank_computes_what_the_simulator_predicts(ranks):
    results = ranks.run(cases.slowest_rank, 3)
    assert all(result == results[0] for result in results)
    told, taken, (expected, found) = results[0]
    np.testing.assert_allclose(told, taken, rtol=1e-3)  # [as sampled or balanced, step]
    assert expected == pytest.approx(found, rel=1e-3)
    assert found < 0.9


@pytest.mark.parametrize("way", ["ulysses", "ring"])
def test_samples_that_ranks_share_give_the_losses_and_gradients_of_one_process(ranks, way):
    results = ranks.run(cases.shares_samples, way, 3)
    assert all(result == results[0] for result in results[1:])
    losses, wanted, apart, degrees = zip(*results[0], strict=True)
    np.testing.assert_allclose(losses, wanted, rtol=1e-12)
    assert max(apart) < 1e-12
    assert losses[-1] < losses[0]
    slots = [slot for step in degrees for slot in step]
    assert {degree for slot in slots for degree in slot} == {1, 2, 4}
    assert any(len(set(slot)) > 1 for slot in slots), "groups of unequal size side by side"


def test_images_that_ranks_share_give_the_losses_and_gradients_of_one_process(ranks):
    results = ranks.run(cases.shares_images, 2)
    assert all(result == results[0] for result in results[1:])
    losses, wanted, apart, degrees = zip(*results[0], strict=True)
    np.testing.assert_allclose(losses, wanted, rtol=1e-12)
    assert max(apart) < 1e-12
    assert np.array(degrees).sum(axis=0).all(), "images on one rank, on two and on four"


def test_packs_that_ranks_share_give_the_losses_and_weights_of_one_rank(ranks):
    results = ranks.run(cases.shares_packs, 4)
    losses, wanted, apart, _ = zip(*results[0][0], strict=True)
    assert all(losses == tuple(loss for loss, *_ in told) for told, _ in results)
    np.testing.assert_allclose(losses, wanted, rtol=1e-9)
    assert max(apart) < 1e-9
    assert losses[-1] < losses[0]
    received = np.array([[rows for *_, rows in told] for told, _ in results])  # [rank, step, kind]
    assert 0 < received.max() < results[0][1] * 3 / 4, "as many as an all-gather brings"
