"""What a caller asks of deferral: how steps are cut, how far samples may move, and what a step may then hold."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.cost import CostModel, parse_cost
from solvers.arguments import as_costs, as_count, as_share
from solvers.deferral import UNLIMITED
from solvers.errors import ArgumentError, UsageError

Ints = NDArray[np.int64]

_LONG = 8  # a sample longer than one part in so many of a rank's mean share counts as long


@dataclass(frozen=True, slots=True)
class Request:
    """Checked settings, the same offline and online."""

    num_ranks: int
    batch_size: int | None  # samples of a nominal step; or
    step_tokens: int | None  # its tokens, which it does not exceed
    early: int
    late: int
    counts: Fraction | None  # share by which a step's samples may differ; 0: exactly as many as nominally; None: any
    tokens_within: Fraction | None  # and its tokens
    cost: CostModel
    most_long_share: Fraction | None
    max_tokens_per_rank: int | None
    micro_batch_tokens: int | None

    @classmethod
    def of(
        cls,
        num_ranks: int,
        batch_size: int | None,
        step_tokens: int | None,
        early: int,
        late: int,
        counts: Any,
        tokens_within: Any,
        cost: str | CostModel,
        **limits: Any,
    ) -> Self:
        """Check settings that come from a caller; `limits` are the last three fields."""
        if (batch_size is None) == (step_tokens is None):
            raise UsageError("steps are cut by {batch_size} or by {step_tokens}: give one of them")
        model = parse_cost(cost)
        if model.padded or model.c:
            raise UsageError(
                "samples cannot be deferred under {cost} = {given}: what a step costs then depends on its plan",
                "{cost} must be a sum over samples", given=str(model),
            )  # fmt: skip
        share = as_share("counts", 0) if counts == "exact" else None if counts is None else as_share("counts", counts)
        early, late = as_count("early", early, 0), as_count("late", late, 0)
        if share == 0 and (early == 0) != (late == 0):
            raise UsageError(
                f"{{counts}} = 'exact' with {{early}} = {early} and {{late}} = {late} leaves every sample in its "
                "nominal step, as none can come in for one that leaves",
                "let samples run both early and late, or give {counts} a share",
            )  # fmt: skip
        long_share = limits["most_long_share"]
        return cls(
            as_count("num_ranks", num_ranks), None if batch_size is None else as_count("batch_size", batch_size),
            None if step_tokens is None else as_count("step_tokens", step_tokens), early, late, share,
            None if tokens_within is None else as_share("tokens_within", tokens_within), model,
            None if long_share is None else as_share("most_long_share", long_share),
            *(None if (cap := limits[name]) is None else as_count(name, cap)
              for name in ("max_tokens_per_rank", "micro_batch_tokens")),
        )  # fmt: skip

    def checked(self, lengths: ArrayLike) -> Ints:
        """Return lengths as integers; raise if one is negative, or longer than a rank or a micro-batch may hold."""
        length = as_costs(lengths, "lengths")[0]
        for name in ("max_tokens_per_rank", "micro_batch_tokens"):
            cap = getattr(self, name)
            if cap is not None and (over := length > cap).any():
                i = int(np.argmax(over))
                raise ArgumentError("lengths", f"be <= {{{name}}} = {cap}", int(length[i]), i)
        return length

    def nominal_steps(self, lengths: Ints, drop_last: bool = False) -> Ints:
        """Return the nominal step of each sample, in order; with `drop_last` those of a short last one are -1.

        By tokens a step closes before it would exceed them, and a longer sample is a step alone. O(n).
        """
        n = len(lengths)
        if self.batch_size is not None:
            step = np.arange(n) // self.batch_size
            short = n % self.batch_size > 0
        else:
            filled, begins = np.cumsum(lengths), [0]
            budget = self.step_tokens or 0
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
        mean = self.step_tokens or (int(tokens.sum()) // max(1, len(tokens)))
        # Rounded up past the share, so that "long" means more than it.
        return mean // (_LONG * self.num_ranks) + 1

    def most_tokens(self, nominal: Ints) -> Ints:
        """Return the most tokens of each step by the share alone, given those of all nominal steps known."""
        tokens = np.full(len(nominal), self.step_tokens) if self.step_tokens else self._mean(nominal)
        return _around(tokens, self.tokens_within, nominal)[1]

    def limits(
        self, items: dict[str, Ints], start: Ints, nominal: Ints, first: int = 0,
        capped: Sequence[tuple[Ints, int]] = (),
    ) -> dict[str, Any]:  # fmt: skip
        """Return the limits of steps as the solver takes them, widened to what they hold at the start.

        Parameters
        ----------
        items : dict of int64[n]
            ``tokens``, ``counts`` and the tokens of the ``longest`` sample of each item.
        start : int64[n]
            Steps to begin with, counted from `first`.
        nominal : int64[2, T']
            Tokens and samples of all nominal steps known, those before `first` too.
        capped : sequence of (int64[n], int)
            Further amounts of items, and the most that a step may have of each.
        """
        steps = nominal.shape[1] - first
        held = {name: _sums(amounts, start, steps) for name, amounts in items.items()}
        found: dict[str, Any] = {"tokens": items["tokens"], "counts": items["counts"]}
        tokens = np.full(steps, self.step_tokens) if self.step_tokens else self._mean(nominal[0])[first:]
        least, most = _around(tokens, self.tokens_within, held["tokens"])
        cap = self.max_tokens_per_rank
        if cap is not None:
            most = np.maximum(np.minimum(most, self.num_ranks * cap), held["tokens"])
        found["token_limits"] = np.stack([least, most])
        fewest, many = _around(self._mean(nominal[1])[first:], self.counts, held["counts"])
        if self.counts == 0:
            fewest = many = held["counts"]
        elif self.counts is None:  # no rank goes empty that has a sample now
            fewest = np.minimum(held["counts"], self.num_ranks)
        else:
            fewest = np.maximum(fewest, np.minimum(held["counts"], 1))  # no step goes empty
        found["count_limits"] = np.stack([fewest, many])
        found |= self._further(items, start, tokens, capped)
        return found

    def _further(
        self, items: dict[str, Ints], start: Ints, tokens: Ints, capped: Sequence[tuple[Ints, int]]
    ) -> dict[str, Any]:
        """Return what else is limited: samples that share a rank with none like them, and tokens of long ones."""
        sizes, most = [amounts for amounts, _ in capped], [np.full(len(tokens), cap) for _, cap in capped]
        if (cap := self.max_tokens_per_rank) is not None:
            # Two samples of more than half a cap fit no rank together, so a step has at most one for each rank.
            sizes.append((2 * items["tokens"] > cap).astype(np.int64))
            most.append(np.full(len(tokens), self.num_ranks))
        if (share := self.most_long_share) is not None:
            sizes.append(np.where(items["longest"] >= self.long_from(tokens), items["tokens"], 0))
            most.append(
                # In Python's integers: a share's numerator may be too large for int64.
                np.array([held * share.numerator // share.denominator for held in tokens.tolist()], dtype=np.int64)
            )
        if not sizes:
            return {}
        held = [_sums(size, start, len(tokens)) for size in sizes]
        return {"sizes": np.stack(sizes), "size_limits": np.maximum(np.stack(most), np.stack(held))}

    def _mean(self, amounts: Ints) -> Ints:
        """Return the mean of nominal steps t - late to t + early, of each step t: what may run there."""
        before = np.concatenate([[0], np.cumsum(amounts)])
        steps = np.arange(len(amounts))
        low, high = np.maximum(steps - self.late, 0), np.minimum(steps + self.early, len(amounts) - 1) + 1
        mean: Ints = (before[high] - before[low]) // (high - low)
        return mean


def held_in(limits: dict[str, Any], step: Ints) -> Iterator[tuple[str, Ints, Ints, Ints]]:
    """Yield each quantity that is limited: its name; what steps hold of it, at least and at most: int64[T] each."""
    tokens, counts = limits["token_limits"], limits["count_limits"]
    steps = tokens.shape[1]
    yield "tokens", _sums(limits["tokens"], step, steps), tokens[0], tokens[1]
    yield "samples", _sums(limits["counts"], step, steps), counts[0], counts[1]
    for size, most in zip(limits.get("sizes", ()), limits.get("size_limits", ()), strict=True):
        # The solver knows further quantities by their order alone.
        yield "of a capped quantity", _sums(size, step, steps), np.zeros_like(most), most


def _sums(amounts: Ints, step: Ints, steps: int) -> Ints:
    sums = np.zeros(steps, dtype=np.int64)
    np.add.at(sums, step, amounts)
    return sums


def _around(base: Ints, share: Fraction | None, held: Ints) -> tuple[Ints, Ints]:
    """Return limits within a share of a base, widened to what is held; none where there is no share."""
    if share is None:
        return np.zeros_like(held), np.full_like(held, UNLIMITED)
    a, b = share.numerator, share.denominator  # of a float they may be huge, so that int64 would wrap
    amounts, most = base.tolist(), UNLIMITED
    low = np.array([max(0, amount * (b - a) // b) for amount in amounts], dtype=np.int64)
    high = np.array([min(most, amount * (b + a) // b) for amount in amounts], dtype=np.int64)
    return np.minimum(low, held), np.maximum(high, held)
