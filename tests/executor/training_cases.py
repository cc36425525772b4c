"""What ranks do in the test of training: the example's two runs, at a smaller size."""

import numpy as np
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
