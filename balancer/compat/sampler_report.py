"""What the steps of a sampler's epoch hold and take, as they are drawn and as they are planned."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["SamplerReport", "StepFigures"]

Ints = NDArray[np.int64]

_MUCH = 0.1  # padding of a plan that counts none, worth a word


@dataclass(slots=True)
class StepFigures:
    """Of steps: what ranks wait for, tokens, and the largest micro-batch.

    Attributes
    ----------
    sync : str
        Where ranks wait.
    speeds : int64[ranks] or None
        Of unlike ranks.
    tokens : list of int
        Of each step, all ranks together, without padding.
    spent, worked : int
        What ranks could work until the slowest is done, and what they work of it, in units of the cost. In a report the
        work is the smaller of both, as padding that a plan avoids need not be worked.
    padded : int
        Tokens if every micro-batch is padded to its longest sample.
    largest, largest_padded : int
        Tokens of the largest micro-batch, without padding and with it: what its memory grows with.
    """

    sync: str
    speeds: Ints | None = field(default=None, repr=False)
    tokens: list[int] = field(default_factory=list, repr=False)
    spent: int = 0
    worked: int = 0
    padded: int = 0
    largest: int = 0
    largest_padded: int = 0

    def add(self, lengths: Ints, counts: Ints, loads: Ints) -> None:
        """Add a step: lengths micro-batch after micro-batch, how many each has, int64[micro-steps, ranks], and loads.

        Loads are int64[micro-steps, ranks] or int64[micro-steps, ranks, phases]: ranks wait in each phase.
        """
        of_ranks = loads.sum(axis=0, keepdims=True) if self.sync == "step" else loads
        if self.speeds is None:
            self.spent += int(of_ranks.max(axis=1).sum()) * loads.shape[1]
        else:
            times = of_ranks / self.speeds.reshape(-1, *[1] * (loads.ndim - 2))
            self.spent += round(float(times.max(axis=1).sum()) * int(self.speeds.sum()))
        self.worked += int(loads.sum())
        starts = np.cumsum(counts.ravel()) - counts.ravel()  # no micro-batch is empty
        tokens = np.add.reduceat(lengths, starts)
        padded = np.maximum.reduceat(lengths, starts) * counts.ravel()
        self.tokens.append(int(tokens.sum()))
        self.padded += int(padded.sum())
        self.largest = max(self.largest, int(tokens.max()))
        self.largest_padded = max(self.largest_padded, int(padded.max()))

    @property
    def imbalance(self) -> float:
        """The slowest rank's time over that of even ranks, where they wait; 1.0 is perfect."""
        return self.spent / self.worked if self.worked else 1.0

    @property
    def padding(self) -> float:
        """Share of padded micro-batches that is padding."""
        return 1 - sum(self.tokens) / self.padded if self.padded else 0.0

    @property
    def weight_spread(self) -> float:
        """Standard deviation over tokens of a token's weight in an epoch, over its mean, if each step's loss is a mean.

        Such a loss gives a token of a step with T tokens the weight 1/T.
        """
        held = np.array([tokens for tokens in self.tokens if tokens], dtype=float)
        return float(np.sqrt(max(0.0, (held.mean() / held).mean() - 1))) if len(held) else 0.0

    def __str__(self) -> str:
        tokens = self.tokens or [0]
        return (
            f"imbalance {self.imbalance:.3f}; tokens of a step {min(tokens):,} to {max(tokens):,}, mean "
            f"{sum(tokens) / len(tokens):,.0f}; largest micro-batch {self.largest:,} tokens, padded "
            f"{self.largest_padded:,}; padding {100 * self.padding:.1f} %; weight of a token +- "
            f"{100 * self.weight_spread:.1f} % under a mean per step"
        )


@dataclass(slots=True)
class SamplerReport:
    """An epoch's steps as they were drawn, dealt to ranks as they come, and as they are planned."""

    sync: str
    unpadded: bool = False  # whether the cost counts no padding
    speeds: Ints | None = field(default=None, repr=False)
    drawn: StepFigures = field(init=False)
    planned: StepFigures = field(init=False)

    def __post_init__(self) -> None:
        self.drawn, self.planned = StepFigures(self.sync, self.speeds), StepFigures(self.sync, self.speeds)

    @property
    def gain(self) -> float:
        """Share of the slowest ranks' time that the plan saves, as the cost predicts it."""
        return 1 - self.planned.spent / self.drawn.spent if self.drawn.spent else 0.0

    def numbers(self) -> dict[str, float]:
        """Return what a trainer's log wants, by name."""
        return {"balancer/imbalance_before": self.drawn.imbalance, "balancer/imbalance": self.planned.imbalance}

    def __str__(self) -> str:
        hint = "\nif your collator pads, give cost='padded': {:.0f} % of each padded batch would be padding"
        return (
            f"{len(self.planned.tokens):,} steps, ranks wait in every {self.sync}: {100 * self.gain:.1f} % of step "
            f"time saved, predicted\nas drawn: {self.drawn}\nplanned: {self.planned}"
            + (hint.format(100 * self.planned.padding) if self.unpadded and self.planned.padding > _MUCH else "")
        )
