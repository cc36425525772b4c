"""What micro-batches have in common, whether a pipeline runs them or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from balancer.cost import CostModel
from balancer.described import Flag, Size, described, key, one_of, settle, whole
from balancer.problem.batch import GlobalBatch
from balancer.problem.constraints import Constraints, not_taken
from balancer.problem.cuts.cut import Cut
from balancer.problem.smallest_cap import check_cap, needed
from balancer.problem.topology import Topology
from solvers.errors import (
    InfeasibilityCertificate,
    InfeasibleError,
    Named,
    SolverError,
    UsageError,
    Wording,
)
from solvers.groups import group_loads
from solvers.packing import slots_for

OVER_LONG = ("error", "own")
"""What happens to a sample over the cap; see :class:`MicroBatches`."""

ENCODERS = ("slot", "step")
"""When encoders compute an item: in the slot of its sample, or before the first micro-batch of the step."""

MOST_SLOTS = 2**20
"""Micro-batches of a rank that may be asked for: empty ones are written down too."""

PACKING = Wording({
    "cap": "cut.tokens", "tokens": "length", "num_slots": "cut.count", "min_slots": "cut.at_least",
    "slots_multiple_of": "cut.multiple_of", "slots": "micro-batches", "item": "sample", "items": "samples",
    "sizes": "lengths", "in_flight_cap": "in_flight_tokens", "num_replicas": "num_ranks",
})  # fmt: skip
"""The arguments of :mod:`solvers.packing` and :mod:`solvers.pipeline` under the names of the fields that set them."""


Slots = Annotated[int, whole(1, MOST_SLOTS)]
SlotsOrFewest = Annotated[int | str, whole(1, MOST_SLOTS).or_word("fewest")]
OverLong = Annotated[str, one_of(*OVER_LONG)]
Encoders = Annotated[str, one_of(*ENCODERS)]


@described
class InSlots(Cut):
    """Slots of ranks: how many tokens, how many of them, and when encoders compute."""

    tokens: Size = key("Elements of a micro-batch at most.")
    count: SlotsOrFewest | None = key(
        'How many micro-batches a rank, or "fewest"; by default the fastest.', default=None, kw_only=True
    )
    at_least: Slots = key("At least so many micro-batches a rank.", default=1, kw_only=True)
    multiple_of: Slots = key("Their number is a multiple of this.", default=1, kw_only=True)
    allow_empty: Flag = key("A micro-batch may hold nothing.", default=False, kw_only=True)
    over_long: OverLong = key("A row over the cap: error, or own.", default=OVER_LONG[0], kw_only=True)
    encoders: Encoders = key(
        "Encoders compute in a sample's micro-batch (slot), or before (step).", default=ENCODERS[0], kw_only=True
    )

    called: ClassVar[str] = "cut.tokens"

    def __post_init__(self) -> None:
        settle(self, "cut")
        if isinstance(self.count, int) and (self.count < self.at_least or self.count % self.multiple_of):
            other = "at_least" if self.count < self.at_least else "multiple_of"
            raise UsageError(
                f"{{cut.count}} = {{count}} contradicts {{cut.{other}}} = {{limit}}",
                count=self.count, limit=getattr(self, other),
            )  # fmt: skip

    # What goes together

    def check_settings(self, method: str, group_size: int | None) -> None:
        """Raise ValueError if no micro-batches are made so."""
        check_slots_planned(self, "micro-batches", method, group_size)

    def check_encoder(self, cost: CostModel, constraints: Sequence[str]) -> None:
        """Raise ValueError if an encoder in these micro-batches cannot have this cost or these constraints."""
        if self.encoders == "slot":
            check_encoder_in_slots(self, constraints)
            self._check(cost, constraints)

    def check(self, cost: CostModel, constraints: Sequence[str], topology: Topology) -> None:
        """Raise ValueError if micro-batches cannot have this cost or these constraints."""
        self._check(cost, constraints)

    def _check(self, cost: CostModel, constraints: Sequence[str]) -> None:
        raise NotImplementedError

    def check_batch(self, batch: GlobalBatch, num_ranks: int, constraints: Constraints, cost: CostModel) -> None:
        """Raise InfeasibleError if a sample is too long for a micro-batch, or all are too many for a cap on ranks."""
        check_cap(batch, num_ranks, constraints, cost)
        if self.over_long == "error":
            self._check_longest(batch)

    def _check_longest(self, batch: GlobalBatch) -> None:
        cap, over = self.tokens, np.flatnonzero(batch.lengths > self.tokens)
        if not len(over):
            return
        sample = int(np.argmax(batch.lengths))
        longest, them, each = int(batch.lengths[sample]), "it", "it"
        what = f"{{sample}} of length {longest} is longer than {{cut.tokens}} = {cap}"
        if len(over) > 1:
            them, each = "them", "each"
            what = (
                f"{len(over)} {{samples}} are longer than {{cut.tokens}} = {cap} (the longest, {{sample}}: {longest})"
            )
        raise InfeasibleError(
            what,
            InfeasibilityCertificate("cut.tokens", over.tolist(), [], longest, cap),
            [
                f"leave {them} out beforehand (lengths <= {cap})", "raise the cap",
                f"{{over_long='own'}} gives {each} a micro-batch of its own",
            ],
            sample=Named("sample", sample),
        )  # fmt: skip

    def cap_on_tokens(self, num_ranks: int) -> tuple[str, int, int | None] | None:
        """Return the cap on a micro-batch, if every sample must keep to it."""
        if self.over_long != "error":
            return None
        return "{cut.tokens}", self.tokens, num_ranks * self.count if isinstance(self.count, int) else None

    @property
    def tokens_of_slot(self) -> int | None:
        """The cap on a micro-batch."""
        return self.tokens

    def kept_by_encoder(self, constraints: Constraints) -> Constraints:
        """Return where items may run, if slots say when: what a rank holds over the step is not planned then."""
        return Constraints(allowed_ranks=constraints.allowed_ranks) if self.encoders == "slot" else constraints

    def slots_for(self, used: int) -> int:
        """Return K, given that the `used`-th micro-batch is the last that holds anything on any rank.

        A plan's rows do not show the empty ones behind it: there are as many as the rules on K need.
        """
        if isinstance(self.count, int):
            return max(self.count, used)
        return slots_for(used, self.at_least, self.multiple_of)

    def explained(self, error: SolverError, lengths: NDArray[np.int64], num_ranks: int) -> SolverError:
        """Return an error of the solvers in the names of these fields, with the cap that would do."""
        too_few = getattr(getattr(error, "certificate", None), "constraint", None) == "num_slots"
        if too_few and isinstance(self.count, int) and self.over_long != "own":
            what = f"with {{cut.count}} = {self.count} {{cut.tokens}}"
            error = error.with_remedy(needed(what, lengths, num_ranks * self.count, self.tokens))
        return error.in_words(PACKING)

    def makespan(self, slot_loads: NDArray[np.int64]) -> int:
        """Return what a step takes in cost units, from the cost of each micro-batch, int64[ranks, K]."""
        return int(self.span(slot_loads))

    def violation(
        self, lengths: NDArray[np.int64], rank: NDArray[np.int32], slot: NDArray[np.int32], num_ranks: int, slots: int
    ) -> str | None:
        """Say which rule micro-batches break first; None if they keep to all."""
        bins = (rank.astype(np.int64) * slots + slot).astype(np.int32)
        tokens, counts = group_loads(lengths, bins, num_ranks * slots), np.bincount(bins, minlength=num_ranks * slots)
        over = tokens > self.tokens
        if self.over_long == "own":
            over &= counts > 1
        if over.any():
            first = int(np.argmax(over))
            where = f"micro-batch {first % slots} of rank {first // slots}"
            return f"{where} holds {tokens[first]} tokens, cap {self.tokens}"
        if not self.allow_empty and len(lengths) and counts.min() == 0:
            first = int(np.argmin(counts))
            return f"micro-batch {first % slots} of rank {first // slots} is empty"
        if slots < self.at_least or slots % self.multiple_of or (isinstance(self.count, int) and slots != self.count):
            return f"there are {slots} micro-batches a rank, which is not what was asked for"
        return None


def check_adds_up(cut: Cut, cost: CostModel) -> None:
    """Raise ValueError if what a slot costs is not the sum of what its samples do."""
    if not cost.additive:
        raise UsageError(
            "{" + cut.called + "} cannot be combined with cost '{cost}': what a padded row costs depends on the rows "
            "beside it; use a cost that adds up",
            cost=cost,
        )  # fmt: skip


def check_encoder_in_slots(cut: Cut, constraints: Sequence[str]) -> None:
    """Raise ValueError if an encoder whose items are in the slots of their samples is to keep to more than where."""
    if held := not_taken("slot", constraints):
        raise UsageError(
            f"{{{cut.called}}} cannot be combined with {{{held[0]}}} of an encoder that computes an item in the slot "
            "of its sample: what a rank has over the step is then not the encoder's to choose",
            "use {encoders='step'}",
        )


def check_slots_planned(cut: Cut, what: str, method: str, group_size: int | None) -> None:
    """Raise ValueError if slots are asked for by a partition method, or within groups of ranks."""
    if method != "auto":
        raise UsageError("method {asked!r} makes no " + what + "; use 'auto'", asked=method)
    if group_size is not None:
        raise UsageError(
            f"{{{cut.called}}} cannot be combined with {{group_size}}: all ranks need one number of micro-batches, on "
            "which groups that plan by themselves do not agree"
        )
