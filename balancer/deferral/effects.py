"""What deferral does to training, in numbers: how far samples move, how long ones gather, and what they then weigh."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TrainingEffects:
    """Effects on what an optimizer sees.

    Attributes
    ----------
    moved : float
        Share of samples that run in another step than their nominal one.
    mean_displacement, largest_displacement : float, int
        Steps between nominal and actual, either way; the mean over all samples.
    long_from : int
        Length from which a sample counts as long: more than an eighth of a rank's mean share.
    long_share : tuple of (float, float)
        The mean over steps of the share of tokens in long samples: before, and after.
    sample_mean_weight : float
        What a token of a long sample weighs, next to what it weighed in its nominal step, where a step's loss is
        divided by its samples. With a constant divisor it is exactly 1.
    """

    moved: float
    mean_displacement: float
    largest_displacement: int
    long_from: int
    long_share: tuple[float, float]
    sample_mean_weight: float


def effects_of(lengths: Ints, nominal: Ints, step: Ints, long_from: int) -> TrainingEffects:
    """Compare the steps of samples with their nominal ones. O(n)."""
    far = np.abs(step - nominal)
    (share_before, weight_before), (share_after, weight_after) = (
        _long_in(lengths, at, long_from) for at in (nominal, step)
    )
    return TrainingEffects(
        float((far > 0).mean()) if len(far) else 0.0, float(far.mean()) if len(far) else 0.0, int(far.max(initial=0)),
        long_from, (share_before, share_after), weight_after / weight_before if weight_before else 1.0,
    )  # fmt: skip


def _long_in(lengths: Ints, step: Ints, long_from: int) -> tuple[float, float]:
    """Return the mean share of a step's tokens that long samples have, and the sum of these tokens for each sample."""
    of_long = np.bincount(step, np.where(lengths >= long_from, lengths, 0))
    tokens, counts = np.bincount(step, lengths), np.bincount(step)
    filled = tokens > 0
    share = float((of_long[filled] / tokens[filled]).mean()) if filled.any() else 0.0
    return share, float((of_long[filled] / counts[filled]).sum())
