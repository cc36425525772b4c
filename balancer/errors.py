"""Errors about a user's files and values, plans and fits, each with an exit code on the command line."""

import difflib
from collections.abc import Sequence

from solvers.errors import UsageError, WordedError, braced


class InputError(UsageError):
    """A file, a column or a value that cannot be used; one or two lines that name it and the rule it breaks.

    Without fields the text stands as it is, braces too.
    """

    def __init__(self, rule: str, /, **fields: object) -> None:
        super().__init__(rule if fields else braced(rule), (), **fields)

    @classmethod
    def of(cls, error: Exception) -> "InputError":
        """Return what is wrong with an argument as what is wrong with the input that it came from."""
        return error.as_kind(cls) if isinstance(error, WordedError) else cls(str(error))


def on_a_line(name: object) -> str:
    """Return a name that others chose as it stands in an error: as it is, or quoted where it would end the line."""
    text = str(name)
    return text if text.isprintable() else repr(text)


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """Return the words that name what was probably meant; none where nothing known is spelled alike.

    Examples
    --------
    >>> did_you_mean("text_token", ["text_tokens", "image_tokens"])
    " (did you mean 'text_tokens'?)"
    """
    folded = {each.casefold(): each for each in reversed(known)}
    alike = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.75)
    return f" (did you mean {folded[alike[0]]!r}?)" if alike else ""


class PlanError(Exception):
    """A plan, or a plan file, that does not hold what it claims; the message names the first violated rule."""


class FitError(Exception):
    """A fit that does not describe its measurements; the message says by how much."""
