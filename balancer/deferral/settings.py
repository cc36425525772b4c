"""What a step is asked to be: how steps are cut, how far samples may move, and what a step may then hold.

The same settings are for an epoch whose lengths are known, for a buffer, and for a log. :class:`AcrossSteps` declares
what may be said; here it is checked against ranks, cost and caps, and becomes limits of steps as the solver takes them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.cost import CostModel, parse_cost
from balancer.problem.across_steps import AcrossSteps
from balancer.problem.cuts import Cut, as_cut
from solvers.arguments import as_costs, as_count, as_share
from solvers.deferral import UNLIMITED
from solvers.errors import ArgumentError, UsageError

Ints = NDArray[np.int64]

_LONG = 8  # a sample longer than one part in so many of a rank's mean share counts as long

FILLED = Fraction(24, 25)
"""Of what all ranks may hold, a step is filled to so much: of a fuller one no plan may be even, or there is none.

64 ranks, 4 steps either way, any number of tokens, ranks full to two thirds: filled to 1, 0.98, 0.96 and 0.93 steps
take 1.155, 1.094, 1.086 and 1.085 of the even share.
"""


@dataclass(frozen=True, slots=True)
class StepSettings:
    """Checked settings."""

    num_ranks: int
    step_samples: int | None  # of a nominal step, over all ranks; None: it is cut by tokens
    across: AcrossSteps
    cost: CostModel
    max_tokens_per_rank: int | None
    cut: Cut

    @classmethod
    def of(
        cls, num_ranks: int, step_samples: int | None, across: AcrossSteps, cost: str | CostModel,
        max_tokens_per_rank: int | None = None, cut: Cut | None = None,
    ) -> Self:  # fmt: skip
        """Check what callers give."""
        if (step_samples is None) == (across.step_tokens is None):
            raise UsageError("steps are cut by {step_samples} or by {step_tokens}: give one of them")
        model, cut = parse_cost(cost), as_cut(cut)
        if model.padded or model.c:
            raise UsageError(
                "samples cannot be deferred under {cost} = {given}: what a step costs then depends on its plan",
                "{cost} must be a sum over samples", given=str(model),
            )  # fmt: skip
        cut.check_deferral()
        cap = None if max_tokens_per_rank is None else as_count("max_tokens_per_rank", max_tokens_per_rank)
        samples = None if step_samples is None else as_count("step_samples", step_samples)
        return cls(as_count("num_ranks", num_ranks), samples, across, model, cap, cut)

    @property
    def is_exact(self) -> bool:
        """Whether every step keeps its number of samples."""
        return self.across.counts == "exact"

    def checked(self, lengths: ArrayLike) -> Ints:
        """Return lengths as integers; raise if one is negative, or longer than a rank or a micro-batch may hold."""
        length = as_costs(lengths, "lengths")[0]
        caps = [("{max_tokens_per_rank}", self.max_tokens_per_rank)]
        if (of_slot := self.cut.cap_on_tokens(self.num_ranks)) is not None:
            caps.append(of_slot[:2])
        for name, cap in caps:
            if cap is not None and (over := length > cap).any():
                i = int(np.argmax(over))
                raise ArgumentError("lengths", f"be <= {name} = {cap}", int(length[i]), i)
        return length

    def nominal_steps(self, lengths: Ints, drop_last: bool = False) -> Ints:
        """Return the nominal step of each sample, in order; with `drop_last` those of a short last one are -1.

        By tokens a step closes before it would exceed them, and a longer sample is a step alone. O(n).
        """
        n, budget = len(lengths), self.across.step_tokens
        if budget is None:
            size = self.step_samples or 1
            step, short = np.arange(n) // size, n % size > 0
        else:
            filled, begins = np.cumsum(lengths), [0]
            while begins[-1] < n:
                before = int(filled[begins[-1] - 1]) if begins[-1] else 0
                # At least one sample, or a sample longer than a step would never be placed.
                begins.append(max(begins[-1] + 1, int(np.searchsorted(filled, before + budget, side="right"))))
            step = np.repeat(np.arange(len(begins) - 1), np.diff(begins))
            # begins[-1] is the end of all samples; the last step begins at begins[-2].
            short = n > 0 and int(lengths[begins[-2] :].sum()) < budget
        if drop_last and short:
            step[step == step[-1]] = -1
        return step.astype(np.int64)

    def long_from(self, tokens: Ints) -> int:
        """Return from which length a sample counts as long, by the tokens of nominal steps."""
        mean = self.across.step_tokens or int(tokens.sum()) // max(1, len(tokens))
        # Rounded up past the share, so that "long" means more than it.
        return mean // (_LONG * self.num_ranks) + 1

    def most_tokens(self, nominal: Ints) -> Ints:
        """Return the most tokens of each step by the share alone, given those of all nominal steps known."""
        return self._around(nominal, nominal)[1]

    def limits(
        self, lengths: Ints, start: Ints, nominal: Ints, first: int = 0, capped: Sequence[tuple[Ints, int]] = (),
        filled: Fraction = Fraction(1),
    ) -> dict[str, Any]:  # fmt: skip
        """Return the limits of steps as the solver takes them, widened to what they hold at the start.

        Parameters
        ----------
        lengths, start : int64[n]
            Of each sample, and the step to begin with, counted from `first`.
        nominal : int64[2, T']
            Tokens and samples of all nominal steps known, those before `first` too.
        capped : sequence of (int64[n], int)
            Further amounts of samples, and the most that a step may have of each.
        filled : Fraction
            Of what all ranks may hold, so much at most is in a step.
        """
        steps = nominal.shape[1] - first
        held, counts = _sums(lengths, start, steps), np.bincount(start, minlength=steps).astype(np.int64)
        least, most = self._around(nominal[0], held, first)
        sizes = [amounts for amounts, _ in capped]
        rooms = [_share_of(cap, filled) for _, cap in capped]
        if (cap := self.max_tokens_per_rank) is not None:
            most = np.maximum(np.minimum(most, _share_of(self.num_ranks * cap, filled)), held)
            # Two samples of more than half a cap fit no rank together, so a step has at most one for each rank.
            sizes.append((2 * lengths > cap).astype(np.int64))
            rooms.append(self.num_ranks)
        # With free counts no rank goes empty that has a sample now.
        fewest = counts if self.is_exact else np.minimum(counts, self.num_ranks)
        many = counts if self.is_exact else np.full_like(counts, UNLIMITED)
        found: dict[str, Any] = {
            "tokens": lengths, "token_limits": np.stack([least, most]), "count_limits": np.stack([fewest, many])
        }  # fmt: skip
        if sizes:
            now = np.stack([_sums(size, start, steps) for size in sizes])
            found |= {"sizes": np.stack(sizes), "size_limits": np.maximum(np.array(rooms)[:, None], now)}
        return found

    def _around(self, nominal: Ints, held: Ints, first: int = 0) -> tuple[Ints, Ints]:
        """Return the least and the most tokens of each step from `first` on, widened to what is held."""
        if self.across.tokens_within in (None, "any"):
            return np.zeros_like(held), np.full_like(held, UNLIMITED)
        share, whole = as_share("tokens_within", self.across.tokens_within), self.across.step_tokens
        if whole is None:  # then the mean of the nominal steps that may run in a step
            before, steps = np.concatenate([[0], np.cumsum(nominal)]), np.arange(first, len(nominal))
            low = np.maximum(steps - self.across.late, 0)
            high = np.minimum(steps + self.across.early, len(nominal) - 1) + 1
            means = ((before[high] - before[low]) // (high - low)).tolist()
        else:
            means = [whole] * len(held)
        # In Python's integers, as a share of many digits has a denominator beyond int64.
        bounds = [(_share_of(mean, 1 - share), _share_of(mean, 1 + share)) for mean in means]
        least, most = np.array(bounds, dtype=np.int64).reshape(-1, 2).T
        return np.minimum(least, held), np.maximum(most, held)


def held_in(limits: dict[str, Any], step: Ints) -> Iterator[tuple[str, Ints, Ints, Ints]]:
    """Yield each quantity that is limited: its name; what steps hold of it, at least and at most: int64[T] each."""
    tokens, counts = limits["token_limits"], limits["count_limits"]
    steps = tokens.shape[1]
    yield "tokens", _sums(limits["tokens"], step, steps), tokens[0], tokens[1]
    yield "samples", np.bincount(step, minlength=steps), counts[0], counts[1]
    for size, most in zip(limits.get("sizes", ()), limits.get("size_limits", ()), strict=True):
        # The solver knows further quantities by their order alone.
        yield "of a capped quantity", _sums(size, step, steps), np.zeros_like(most), most


def _share_of(amount: int, share: Fraction) -> int:
    return max(0, min(UNLIMITED, amount * share.numerator // share.denominator))


def _sums(amounts: Ints, step: Ints, steps: int) -> Ints:
    sums = np.zeros(steps, dtype=np.int64)
    np.add.at(sums, step, amounts)
    return sums
