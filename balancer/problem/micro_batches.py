"""Micro-batches: how a rank's share is cut into slots under a token cap, and where the ranks wait for each other."""

import re
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer.problem.limits import as_limit
from balancer.problem.smallest_cap import needed
from solvers.arguments import as_count
from solvers.errors import SolverError
from solvers.groups import group_loads
from solvers.packing import OBJECTIVES

__all__ = ["ENCODERS", "OVER_LONG", "SCHEDULES", "MicroBatches", "check_keeps_all", "check_schedule_name",
           "in_field_names"]  # fmt: skip

SCHEDULES = OBJECTIVES
"""Where ranks meet, by name: in every slot, once a step, or along a pipeline."""

OVER_LONG = ("error", "own", "drop")
"""What a sample over the cap gets."""

ENCODERS = ("slot", "step")
"""When encoders compute an item: in the slot of its sample, or before the first micro-batch of the step."""


_WORDS = (
    (r"tokens\[\d+\] = (\d+) is over cap =", r"its length \1 is over micro_batch_tokens ="),
    ("num_slots", "num_micro_batches"), ("min_slots", "min_micro_batches"), ("under cap", "under micro_batch_tokens"),
    ("slots_multiple_of", "micro_batches_multiple_of"), ("slots", "micro-batches"),
)  # fmt: skip
"""What :mod:`solvers.packing` calls its arguments, and what the fields of :class:`MicroBatches` are called."""


@dataclass(frozen=True, slots=True)
class MicroBatches:
    """What every rank's micro-batches must keep to.

    Attributes
    ----------
    max_tokens : int
        No micro-batch holds more elements.
    schedule : str
        ``"lockstep"``: ranks meet in every micro-batch slot, as FSDP's do; a step takes the sum over the slots of the
        slowest. ``"step"``: they meet once a step; it takes the largest sum of a rank. ``"pipeline"``: a step takes
        (K + pipeline_stages - 1) times the largest micro-batch. In doubt lockstep: its plans are nearly as even once
        a step, while those for ``"step"`` may take twice as long in lockstep.
    count : int, "fewest" or None
        K, the same on all ranks; None: whichever is fastest.
    at_least, multiple_of : int
        What K must be at least, and a multiple of.
    pipeline_stages : int
        Stages of the pipeline; 1 for the other schedules.
    allow_empty : bool
        Whether a micro-batch may hold nothing.
    over_long : str
        A sample over the cap is an ``"error"``, gets a micro-batch of its ``"own"``, or is left out: ``"drop"``. A plan
        lists those left out; where there are several phases none can be, since all phases have the same samples.
    encoders : str
        Where there are several phases. ``"slot"``: an encoder computes an item in the slot of its sample, so that what
        it keeps for the backward pass is a slot's. ``"step"``: encoders compute all items of the step before the first
        micro-batch, which is more even, and keep them for as long as the step takes; in plans they are in slot 0.
    """

    max_tokens: int
    schedule: str = "lockstep"
    count: int | str | None = None
    at_least: int = 1
    multiple_of: int = 1
    pipeline_stages: int = 1
    allow_empty: bool = False
    over_long: str = "error"
    encoders: str = "slot"

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "max_tokens", as_limit("micro_batch_tokens", self.max_tokens))
        set_(self, "at_least", as_count("min_micro_batches", self.at_least))
        set_(self, "multiple_of", as_count("micro_batches_multiple_of", self.multiple_of))
        set_(self, "pipeline_stages", as_count("pipeline_stages", self.pipeline_stages))
        set_(self, "allow_empty", bool(self.allow_empty))
        check_schedule_name(self.schedule)
        _check_choice("over_long", self.over_long, OVER_LONG)
        _check_choice("encoders", self.encoders, ENCODERS)
        if self.count is not None and self.count != "fewest":
            if isinstance(self.count, str):
                raise ValueError(f"num_micro_batches must be an integer, 'fewest' or None, got {self.count!r}")
            set_(self, "count", as_count("num_micro_batches", self.count))
            if self.count < self.at_least or self.count % self.multiple_of:
                raise ValueError(
                    f"num_micro_batches = {self.count} contradicts min_micro_batches = {self.at_least} or "
                    f"micro_batches_multiple_of = {self.multiple_of}"
                )
        if self.pipeline_stages > 1 and self.schedule != "pipeline":
            raise ValueError(
                f"pipeline_stages = {self.pipeline_stages} contradicts schedule = {self.schedule!r}: only 'pipeline' "
                "has stages"
            )

    def slots_for(self, used: int) -> int:
        """Return K where the last micro-batch that holds anything on any rank is the `used`-th.

        Those behind it hold nothing, so a plan's rows do not tell of them: there are as many as K must have.
        """
        if isinstance(self.count, int):
            return max(self.count, used)
        return -(-max(used, self.at_least) // self.multiple_of) * self.multiple_of

    def solver_keywords(self) -> dict[str, Any]:
        """Return these as :func:`solvers.packing.schedule_micro_batches` takes them."""
        return {
            "cap": self.max_tokens,
            "objective": self.schedule,
            "num_slots": self.count,
            "min_slots": self.at_least,
            "slots_multiple_of": self.multiple_of,
            "stages": self.pipeline_stages,
            "allow_empty": self.allow_empty,
            "over_long": self.over_long,
        }

    def in_domain_words(self, error: SolverError, lengths: NDArray[np.int64], num_ranks: int) -> SolverError:
        """Return an error of the solvers as one about these fields, and what the cap would have to be."""
        message = in_field_names(str(error))
        if isinstance(self.count, int) and self.over_long != "own" and "too few" in message:
            remedy = needed("micro_batch_tokens", lengths, num_ranks * self.count, self.max_tokens)
            message += remedy.replace("; ", f"; with num_micro_batches = {self.count} ", 1)
        error.args = (message,)
        return error

    def to_json(self) -> dict[str, Any]:
        """Return the fields; ``MicroBatches(**fields)`` is this again."""
        return asdict(self)

    def makespan(self, slot_loads: NDArray[np.int64]) -> int:
        """Return what a step takes in cost units, from the cost of each micro-batch, int64[ranks, K]."""
        return int(self.span(slot_loads))

    def span(self, slots: NDArray[np.int64] | NDArray[np.float64]) -> float:
        """Return what a step takes from what each micro-batch takes, [ranks, K]: an int of integers."""
        taken: float
        if self.schedule == "step":
            taken = slots.sum(axis=1).max().item()
        elif self.schedule == "lockstep":
            taken = slots.max(axis=0).sum().item()
        else:
            taken = (slots.shape[1] + self.pipeline_stages - 1) * slots.max().item()
        return taken

    def perfect(self, total: int, num_ranks: int, num_slots: int) -> tuple[int, int]:
        """Return what a step would take were all even, as a fraction: numerator and denominator."""
        if self.schedule == "pipeline":
            return (num_slots + self.pipeline_stages - 1) * total, num_ranks * num_slots
        return total, num_ranks

    def violation(
        self, lengths: NDArray[np.int64], rank: NDArray[np.int32], slot: NDArray[np.int32], num_ranks: int, slots: int
    ) -> str | None:
        """Say which rule micro-batches break first; None if they keep to all."""
        bins = (rank.astype(np.int64) * slots + slot).astype(np.int32)
        tokens, counts = group_loads(lengths, bins, num_ranks * slots), np.bincount(bins, minlength=num_ranks * slots)
        over = tokens > self.max_tokens
        if self.over_long == "own":
            over &= counts > 1
        if over.any():
            first = int(np.argmax(over))
            where = f"micro-batch {first % slots} of rank {first // slots}"
            return f"{where} holds {tokens[first]} tokens, cap {self.max_tokens}"
        if not self.allow_empty and len(lengths) and counts.min() == 0:
            first = int(np.argmin(counts))
            return f"micro-batch {first % slots} of rank {first // slots} is empty"
        if slots < self.at_least or slots % self.multiple_of or (isinstance(self.count, int) and slots != self.count):
            return f"there are {slots} micro-batches a rank, which is not what was asked for"
        return None


def in_field_names(message: str) -> str:
    """Return a message of :mod:`solvers.packing` in the words of :class:`MicroBatches`."""
    for word, ours in _WORDS:
        message = re.sub(rf"\b{word}(?!\w)", ours, message)
    return message


def check_schedule_name(schedule: str) -> str:
    """Return `schedule`, or raise ValueError saying which there are."""
    _check_choice("schedule", schedule, SCHEDULES)
    return schedule


def check_keeps_all(micro_batches: MicroBatches | None, whom: str) -> None:
    """Raise TypeError if these are no micro-batches, ValueError if they may leave samples out, where `whom` cannot."""
    if micro_batches is not None and not isinstance(micro_batches, MicroBatches):
        raise TypeError(f"micro_batches must be MicroBatches(max_tokens, ...), got {micro_batches!r}")
    if micro_batches is not None and micro_batches.over_long == "drop":
        raise ValueError(
            f"over_long='drop' leaves samples out of a plan, which {whom} cannot: leave those longer than "
            f"{micro_batches.max_tokens} out beforehand, or use over_long='own'"
        )


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
