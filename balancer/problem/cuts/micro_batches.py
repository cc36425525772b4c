"""Micro-batches: how a rank's share is cut into slots under a token cap, and where the ranks wait for each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from balancer.cost import CostModel
from balancer.described import Count, as_dict, described, key, one_of
from balancer.problem.constraints import MAX_TOKENS, not_taken
from balancer.problem.cuts.in_slots import InSlots, check_adds_up
from balancer.problem.limits import CountLimit, Limit, Limits, has_array
from solvers.arguments import INT64_MAX
from solvers.errors import UsageError
from solvers.packing import SYNCS, price_tokens, rests_of_slots, taken_tokens

DEALT = ("equal_counts", MAX_TOKENS, "min_samples_per_rank", "max_samples_per_rank", "caps")
"""Constraints that only count or add up what a rank holds: ranks keep to them by which micro-batches they get."""


@described
class MicroBatches(InSlots):
    """What every rank's micro-batches must keep to.

    Attributes
    ----------
    tokens : int
        No micro-batch holds more elements.
    sync : str
        ``"micro_batch"``: ranks wait in every micro-batch, as with FSDP; a step takes the sum over slots of the
        slowest rank. ``"step"``: ranks wait once a step; it takes the largest sum of a rank. ``"pipeline"``: a step
        takes (K + pipeline_stages - 1) times the largest micro-batch; where the times of stages are known, use
        :class:`balancer.Pipelines`. If unsure, choose micro_batch: its plans are nearly as even if ranks wait once a
        step, but plans for ``"step"`` may take twice as long where they wait in each.
    count : int, "fewest" or None
        K, the same on all ranks; None: the fastest. At most 2**20.
    at_least, multiple_of : int
        The least K, and a number that K must be a multiple of.
    limits : sequence of Limit, CountLimit, PaddedLimit, Kinds, Everywhere
        What each micro-batch keeps to besides `tokens`. The longest samples then share no tall slots that other limits
        forbid; micro-batches are moved between ranks whole.
    pipeline_stages : int
        Stages of the pipeline, of which no more is known; 1 where ranks wait elsewhere.
    allow_empty : bool
        Whether a micro-batch may hold nothing.
    over_long : str
        A sample over the cap is an ``"error"``, or gets a micro-batch of its ``"own"``. To train without such samples,
        leave them out beforehand: ``lengths <= tokens``.
    encoders : str
        For several phases. ``"slot"``: an encoder computes an item in the slot of its sample, and keeps only a slot's
        activations for the backward pass. ``"step"``: encoders compute all items of the step before the first
        micro-batch. This is more even, but they keep them for the whole step; in plans they are in slot 0.
    """

    sync: Annotated[str, one_of(*SYNCS)] = key("Where ranks wait: micro_batch, step or pipeline.", default=SYNCS[0])
    pipeline_stages: Count = key("Stages of a pipeline of which no more is known.", default=1, kw_only=True)
    limits: Limits = key(
        "What else a micro-batch keeps to: tables of kind sum, count, padded, kinds or everywhere.",
        default=(), kw_only=True,
    )  # fmt: skip
    called: ClassVar[str] = "cut.tokens"

    def __post_init__(self) -> None:
        InSlots.__post_init__(self)
        if self.pipeline_stages > 1 and self.sync != "pipeline":
            raise UsageError(
                "{pipeline_stages} = {stages} contradicts {cut.sync} = {given!r}: only 'pipeline' has stages",
                stages=self.pipeline_stages, given=self.sync,
            )  # fmt: skip
        if self.limits and self.over_long == "own":
            raise UsageError("{over_long='own'} cannot be combined with {cut.limits}, which it would exceed")

    name: ClassVar[str] = "micro_batches"

    @property
    def meets(self) -> str:
        """Where ranks wait for each other."""
        return self.sync

    def _check(self, cost: CostModel, constraints: Sequence[str]) -> None:
        check_adds_up(self, cost)
        if "prefix" in constraints:
            self._check_prompts(constraints)
        if any(not isinstance(limit, Limit | CountLimit) for limit in self.limits):
            self._check_dealt(constraints)
        if refused := not_taken("micro_batches", [name for name in constraints if name != "prefix_length"]):
            raise UsageError(
                "{cut.tokens} cannot be combined with {" + refused[0] + "}: ranks wait for each other in every "
                "slot, and schedules for ranks that differ are not made; leave one of them out"
            )

    def _check_dealt(self, constraints: Sequence[str]) -> None:
        """Raise ValueError for what ranks keep to that is not kept by dealing whole micro-batches to them."""
        if others := [name for name in constraints if name not in (*DEALT, "prefix_length")]:
            raise UsageError(
                "{cut.limits} other than sums and counts cannot be combined with {" + others[0] + "}, which is not "
                "planned yet", "leave one of them out",
            )  # fmt: skip

    def _check_prompts(self, constraints: Sequence[str]) -> None:
        """Raise ValueError for micro-batches in which no prompt can be shared."""
        unlike = {
            "{cut.sync='pipeline'}": self.sync == "pipeline",
            "{over_long='own'}": self.over_long == "own",
            "{equal_counts}": "equal_counts" in constraints,
            "{cut.limits}": bool(self.limits),
        }  # fmt: skip
        for what, asked in unlike.items():
            if asked:
                raise UsageError(
                    f"{{prefix}} in {{cut.tokens}} cannot be combined with {what}, which is not planned yet",
                    "leave one of them out",
                )  # fmt: skip

    # What it makes of samples

    def check_deferral(self) -> None:
        """Raise nothing: any samples can make a step."""

    def least_work(
        self, cost: CostModel, lengths: NDArray[np.int64], num_ranks: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
        """Return each sample's work, and its time; in a pipeline it passes all stages."""
        costs = cost.sample_costs(lengths)
        return costs, None if self.sync != "pipeline" else self.pipeline_stages * costs

    def solver_keywords(self) -> dict[str, Any]:
        """Return these as :func:`solvers.packing.schedule_micro_batches` takes them."""
        return {
            "cap": self.tokens,
            "sync": self.sync,
            "num_slots": self.count,
            "min_slots": self.at_least,
            "slots_multiple_of": self.multiple_of,
            "stages": self.pipeline_stages,
            "allow_empty": self.allow_empty,
            "over_long": self.over_long,
        }

    def to_json(self) -> dict[str, Any]:
        """Return them as plan files hold them, which hold no arrays: limits by these are left out."""
        kept = replace(self, limits=[limit for limit in self.limits if not has_array(limit)])
        return {"kind": self.name, **as_dict(kept)}

    def in_words(self) -> str:
        """Say what they are, for a report."""
        kept = "".join(f", {limit.in_words()}" for limit in self.limits)
        return f"micro-batches of at most {self.tokens:,}{kept}, sync {self.sync}"

    def span(self, slots: NDArray[np.int64] | NDArray[np.float64]) -> float:
        """Return what a step takes from what each micro-batch takes, [ranks, K]: an int of integers."""
        taken: float
        if self.sync == "step":
            taken = slots.sum(axis=1).max().item()
        elif self.sync == "micro_batch":
            taken = slots.max(axis=0).sum().item()
        else:
            taken = (slots.shape[1] + self.pipeline_stages - 1) * slots.max().item()
        return taken

    def held_by_a_rank(
        self, costs: NDArray[np.int64], tokens: NDArray[np.int64], makespan: int, num_ranks: int, num_slots: int
    ) -> tuple[NDArray[np.int64], int]:
        """Return a cost of samples, and how much of it a rank holds at most in a step of no more than `makespan`."""
        cap = self.tokens
        if self.sync == "micro_batch":
            rests = rests_of_slots(costs, tokens, makespan, num_ranks, num_slots, cap)
        elif self.sync == "pipeline":
            each = makespan // (num_slots + self.pipeline_stages - 1)
            rests = [each * slots for slots in range(num_slots, 0, -1)]
        else:
            rests = [makespan]
        priced = price_tokens(costs, tokens, rests, num_ranks, cap)
        return priced.costs, min(priced.most, INT64_MAX)

    def taken_tokens(
        self, costs: NDArray[np.int64], lengths: NDArray[np.int64], makespan: int, num_slots: int
    ) -> NDArray[np.int64]:
        """Return what samples take of the tokens of a rank's micro-batches in a step of no more than `makespan`."""
        tokens = np.minimum(lengths, self.tokens)
        if self.sync != "pipeline":
            return tokens
        return taken_tokens(costs, tokens, makespan // (num_slots + self.pipeline_stages - 1), self.tokens)

    def perfect(self, total: int, num_ranks: int, num_slots: int) -> tuple[int, int]:
        """Return what a perfectly even step would take, as a fraction: numerator and denominator."""
        if self.sync == "pipeline":
            return (num_slots + self.pipeline_stages - 1) * total, num_ranks * num_slots
        return total, num_ranks

    def of_encoder(self, num_slots: int, num_elements: int) -> MicroBatches:
        """Return an encoder's: possibly empty, and of any size."""
        return MicroBatches(max(1, num_elements), "micro_batch", count=num_slots, allow_empty=True)
