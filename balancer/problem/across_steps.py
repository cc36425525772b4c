"""How a log's samples become steps, where a step is more than the next so many samples of each rank."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, Self

from balancer.described import A_SHARE, MOST_COUNT, Kind, Size, Text, as_dict, described, key, one_of, settle, whole
from solvers.errors import UsageError

_STEPS = whole(0, MOST_COUNT)


def _window(value: Any) -> int | tuple[int, int]:
    """Return (early, late), or one number where they are alike."""
    if not isinstance(value, list | tuple):
        return int(_STEPS.take(value))
    early, late = map(_STEPS.take, value)
    return early if early == late else (early, late)


_OF_WINDOW = {"anyOf": [_STEPS.schema, {"type": "array", "items": _STEPS.schema, "minItems": 2, "maxItems": 2}]}
Window = Annotated[
    int | tuple[int, int], Kind("a whole number >= 0, or two of them: [early, late]", _OF_WINDOW, _window)
]
ShareOrAny = Annotated[str | float | Fraction, A_SHARE.or_word("any")]
ExactOrAny = Annotated[str, one_of("exact", "any")]


@described
class AcrossSteps:
    """Which samples form a step, where a sample may run early or late; shares are kept as exact text."""

    window: Window = key("Steps that a sample may run early or late: one number, or [early, late].", default=0)
    # None: any where each step keeps its number of samples, 5 % where that is free
    tokens_within: ShareOrAny | None = key('How far a step\'s tokens may be off: "5%", any.', default=None)
    # None: exact where steps are cut by count, any where they are cut by tokens
    counts: ExactOrAny | None = key("Samples of a step: exact, or any.", default=None)
    stage: Text | None = key("A column; no sample runs across a change of it.", default=None)
    step_tokens: Size | None = None  # the most tokens of a step, instead of a number of samples for each rank

    def __post_init__(self) -> None:
        settle(self)
        if self.counts is None:
            object.__setattr__(self, "counts", "exact" if self.step_tokens is None else "any")
        if self.tokens_within is None:
            object.__setattr__(self, "tokens_within", "any" if self.counts == "exact" else "1/20")
        if self.counts == "exact" and (self.early == 0) != (self.late == 0):
            raise UsageError(
                f"{{counts}} = 'exact' with {{window}} = [{self.early}, {self.late}] leaves every sample in its "
                "nominal step, as none can come in for one that leaves",
                "let samples run both early and late, or give {counts} = 'any'",
            )  # fmt: skip

    @property
    def early(self) -> int:
        """Steps that a sample may run before its nominal one."""
        return self.window if isinstance(self.window, int) else self.window[0]

    @property
    def late(self) -> int:
        """Steps that a sample may run after its nominal one."""
        return self.window if isinstance(self.window, int) else self.window[1]

    @classmethod
    def of_said(cls, **given: Any) -> Self | None:
        """Return settings of what was said; None if nothing was."""
        said = {name: value for name, value in given.items() if value is not None}
        if not said:
            return None
        across = cls(**said)
        if not across.window:
            # A limit of deferral alone would change nothing: whoever gave it meant to defer.
            needed = sorted(set(said) - {"window", "step_tokens", "stage"})
            if needed:
                raise UsageError(f"{{{needed[0]}}} limits what deferral may do to a step, and nothing is deferred",
                                 "give {window}")  # fmt: skip
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
