"""How a log's samples become steps, where a step is more than the next so many samples of each rank."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from balancer.described import A_SHARE, Amount, Share, Size, Text, as_dict, described, key, settle
from solvers.errors import UsageError

ShareOrAny = Annotated[str, A_SHARE.or_word("any")]
ShareExactOrAny = Annotated[str, A_SHARE.or_word("exact", "any")]


@described
class AcrossSteps:
    """Which samples form a step, where a sample may run early or late; shares are kept as exact text."""

    early: Amount = key("Steps that a sample may run early.", default=0)
    late: Amount = key("Steps that a sample may run late.", default=0)
    tokens_within: ShareOrAny = key('How far a step\'s tokens may be off: "5%", any.', default="1/20")
    # None: exact where steps are cut by count, any where they are cut by tokens
    counts: ShareExactOrAny | None = key("Samples of a step: exact, any, or a share they may be off.", default=None)
    most_long_share: Share | None = key("Most of a step's tokens that long samples may have.", default=None)
    stage: Text | None = key("A column; no sample runs across a change of it.", default=None)
    step_tokens: Size | None = None  # the most tokens of a step, instead of a number of samples for each rank

    def __post_init__(self) -> None:
        settle(self)
        if self.counts is None:
            object.__setattr__(self, "counts", "exact" if self.step_tokens is None else "any")

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

    def to_json(self) -> dict[str, Any]:
        """Return the settings as plan files hold them."""
        of_tokens = {} if self.step_tokens is None else {"step_tokens": self.step_tokens}
        return {**as_dict(self), **of_tokens}

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Self:
        """Read back what :meth:`to_json` wrote; TypeError or ValueError if it did not."""
        return cls(**said)
