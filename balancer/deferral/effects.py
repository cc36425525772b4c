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
    drift : float
        Rank correlation of displacement (late is positive) with length, -1 to 1: 0 where long samples are neither
        earlier nor later than short ones.
    long_from : int
        Length from which a sample counts as long: more than an eighth of a rank's mean share.
    long_share, long_spread : tuple of (float, float)
        Mean and standard deviation over steps of the share of tokens in long samples: before, and after.
    largest_long_share : tuple of (float, float)
        That of the step with most.
    token_mean_weight : float
        What a token of a long sample weighs, next to what it weighed in its nominal step, where a step's loss is
        divided by its tokens. All tokens are taken to count in the loss.
    sample_mean_weight : float
        The same where it is divided by the step's samples. With a constant divisor it is exactly 1.
    """

    moved: float
    mean_displacement: float
    largest_displacement: int
    drift: float
    long_from: int
    long_share: tuple[float, float]
    long_spread: tuple[float, float]
    largest_long_share: tuple[float, float]
    token_mean_weight: float
    sample_mean_weight: float


def effects_of(lengths: Ints, nominal: Ints, step: Ints, long_from: int) -> TrainingEffects:
    """Compare the steps of samples with their nominal ones. O(n log n)."""
    displacement, steps = step - nominal, int(max(nominal.max(initial=-1), step.max(initial=-1))) + 1
    # Tokens of long samples, 0 for all others, so that sums over steps are those of long ones.
    long = np.where(lengths >= long_from, lengths, 0)
    shares, weights = [], []
    for at in (nominal, step):
        tokens, of_long = (np.bincount(at, amounts, steps) for amounts in (lengths, long))
        counts = np.bincount(at, minlength=steps)
        shares.append(of_long[tokens > 0] / tokens[tokens > 0] if steps else np.zeros(1))
        weights.append((shares[-1].sum(), (of_long[counts > 0] / counts[counts > 0]).sum()))
    (tokens_before, samples_before), (tokens_after, samples_after) = weights
    before, after = shares
    far = np.abs(displacement)
    return TrainingEffects(
        float((far > 0).mean()) if len(far) else 0.0, float(far.mean()) if len(far) else 0.0, int(far.max(initial=0)),
        _rank_correlation(displacement, lengths), long_from,
        (_mean(before), _mean(after)), (_spread(before), _spread(after)),
        (float(before.max(initial=0)), float(after.max(initial=0))),
        float(tokens_after / tokens_before) if tokens_before else 1.0,
        float(samples_after / samples_before) if samples_before else 1.0,
    )  # fmt: skip


def _mean(shares: NDArray[np.float64]) -> float:
    """Mean over steps; 0 where no step holds a token."""
    return float(shares.mean()) if len(shares) else 0.0


def _spread(shares: NDArray[np.float64]) -> float:
    return float(shares.std()) if len(shares) else 0.0


def _rank_correlation(one: Ints, other: Ints) -> float:
    """Spearman's, with mean ranks for equal values; 0 where one of them is the same everywhere."""
    ranks = [_mean_ranks(values) for values in (one, other)]
    if not len(one) or min(each.std() for each in ranks) == 0:
        return 0.0
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _mean_ranks(values: Ints) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    # Equal values share the mean of the ranks that they take up together.
    ranks: NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return ranks
