"""What ranks do in tests of training: the examples' runs, at a smaller size."""

import context_parallel
import numpy as np
import predicted_and_measured
import sequence_groups
import shared_images
import three_modalities
import torch


def trains_alike(rank, steps):
    three_modalities.SHRINK = 48
    plain, ours = (three_modalities.train(rank, balance, steps) for balance in (False, True))
    np.testing.assert_allclose(ours.losses, plain.losses, rtol=1e-5)
    assert plain.losses[-1] < plain.losses[0]
    for name in ("first_gradients", "last_gradients"):
        for mine, wanted in zip(getattr(ours, name), getattr(plain, name), strict=True):
            torch.testing.assert_close(mine, wanted, rtol=1e-3, atol=1e-5 * wanted.abs().max().item())
    return plain.tokens.tolist(), ours.tokens.tolist(), ours.losses


def slowest_rank(rank, steps):
    """What the slowest rank computes in each step, as the simulator says and as it was counted: no clock is read."""
    three_modalities.SHRINK, predicted_and_measured.MEASURED = 48, 12
    fits = predicted_and_measured.fitted(predicted_and_measured.FLOPS, 0, {"vision": 20, "audio": 20, "llm": 60})
    told, taken = predicted_and_measured.run(rank, fits, predicted_and_measured.FLOPS, steps, 1)
    return told.tolist(), taken.tolist(), predicted_and_measured.ratios(told, taken)


def shares_samples(rank, way, steps):
    """Losses and gradients over the groups of each slot, in float64, beside those of one process."""
    return sequence_groups.train(rank, way, steps)


def shares_images(rank, steps):
    """Losses and gradients with an encoder whose long images ranks share, beside those of one process."""
    return shared_images.train(rank, steps)


def shares_packs(rank, steps):
    """Losses and weights of a model whose packs ranks share token by token, beside those of one rank."""
    return context_parallel.train(rank, steps), context_parallel.TOKENS
