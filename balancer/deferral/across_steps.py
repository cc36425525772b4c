"""How a log's samples become steps, where a step is more than the next so many samples of each rank."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, Self

from balancer.cost import CostModel
from balancer.deferral.request import Request
from solvers.arguments import as_count, as_share
from solvers.errors import ArgumentTypeError, UsageError

_SHARES = ("tokens_within", "counts", "most_long_share")
_WORDS = {"tokens_within": ("any",), "counts": ("exact", "any"), "most_long_share": ()}


@dataclass(frozen=True, slots=True)
class AcrossSteps:
    """Settings of a log's steps; shares are numbers or text, such as ``"5%"``, and kept as exact text."""

    early: int = 0  # steps that a sample may run before its nominal one
    late: int = 0  # and after it
    step_tokens: int | None = None  # the most tokens of a step, instead of a number of samples for each rank
    tokens_within: Any = "1/20"  # share by which a step's tokens may be off; "any"
    # samples of a step: "exact", "any" or a share; None: exact where steps are cut by count, any where by tokens
    counts: Any = None
    most_long_share: Any = None  # most of a step's tokens that long samples may have
    stage: str | None = None  # column; no sample runs across a change of it

    def __post_init__(self) -> None:
        for name in ("early", "late"):
            object.__setattr__(self, name, as_count(name, getattr(self, name), 0))
        if self.step_tokens is not None:
            object.__setattr__(self, "step_tokens", as_count("step_tokens", self.step_tokens))
        if self.counts is None:
            object.__setattr__(self, "counts", "exact" if self.step_tokens is None else "any")
        # Kept as exact text: plan files hold the settings, and a float would not come back as the same share.
        for name in _SHARES:
            value = getattr(self, name)
            if value is not None and value not in _WORDS[name]:
                object.__setattr__(self, name, str(_share(name, value)))

    @classmethod
    def of_said(cls, **given: Any) -> Self | None:
        """Return settings of what was said; None if nothing was."""
        said = {name: value for name, value in given.items() if value is not None}
        if not said:
            return None
        across = cls(**said)
        if not (across.early or across.late):
            # A limit of deferral alone would change nothing: whoever gave it meant to defer.
            needed = sorted(set(said) - {"early", "late", "step_tokens", "stage"})
            if needed:
                raise UsageError(f"{{{needed[0]}}} limits what deferral may do to a step, and nothing is deferred",
                                 "give {early} or {late}")  # fmt: skip
            # Nothing is deferred, and steps are cut by count: this is a log's plain order, which has no settings.
            if across.step_tokens is None:
                return None
        return across

    @property
    def is_exact(self) -> bool:
        """Whether each step has as many samples as it has without deferral, and those are equally many."""
        return self.counts == "exact" and self.step_tokens is None

    def request(
        self, num_ranks: int, batch_size: int | None, cost: str | CostModel, cap: int | None, slot_cap: int | None
    ) -> Request:
        """Return what is asked of the solver; raise as it does."""
        if batch_size is not None and self.step_tokens is not None:
            raise UsageError("{batch_per_rank} and {step_tokens} both say where a step ends: give one of them")
        return Request.of(
            num_ranks, batch_size, self.step_tokens, self.early, self.late,
            None if self.counts == "any" else self.counts, None if self.tokens_within == "any" else self.tokens_within,
            cost, most_long_share=self.most_long_share, max_tokens_per_rank=cap, micro_batch_tokens=slot_cap,
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return the settings as plan files hold them."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Self:
        """Read back what :meth:`to_json` wrote; TypeError or ValueError if it did not."""
        return cls(**said)


def _share(name: str, value: Any) -> Fraction:
    try:
        return as_share(name, value)
    except TypeError:
        words = "".join(f"'{word}' or " for word in _WORDS[name])
        raise ArgumentTypeError(name, f"be {words}a share, such as 5%", repr(value)) from None
