"""What can go wrong between ranks. Each error says which ranks it is about, by their data-parallel rank."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

__all__ = ["ExecutorError", "FieldMismatchError", "PeerError", "PeerLostError", "PlanMismatchError"]

LONGEST = 300
"""Characters of an error that other ranks hear of."""

_T = TypeVar("_T", bound=Hashable)


class ExecutorError(RuntimeError):
    """Ranks cannot go on together.

    Attributes
    ----------
    ranks : tuple of int
        The ranks that are the reason, as far as it is known.
    """

    def __init__(self, message: str, ranks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)


class PlanMismatchError(ExecutorError):
    """Ranks hold different plans, inputs or versions; :attr:`ranks` differ from the majority. No payload has moved."""


class FieldMismatchError(ExecutorError):
    """Ranks handed in mini-batches of different fields; :attr:`ranks` differ from the majority. Nothing has moved."""


class PeerError(ExecutorError):
    """Other ranks failed before anything was exchanged; the message holds what each of them raised."""

    @classmethod
    def of(cls, what: str, errors: Mapping[int, str]) -> "PeerError":
        """Return the error that says what ranks failed at; `errors` are summaries by rank."""
        return cls(by_text(errors, lambda ranks, error: f"{listed(ranks)} {what}: {error}"), list(errors))


class PeerLostError(ExecutorError):
    """A collective broke or ran out of time; :attr:`ranks` did not report, and are empty where that is not known."""


def summary(error: BaseException) -> str:
    """Return an error as other ranks hear of it: its type and its message, cut short if it is long."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def by_text(texts: Mapping[int, str], sentence: Callable[[list[int], str], str]) -> str:
    """Return a sentence for each text, with all ranks that it is of; the first four texts."""
    ranks_of_text: dict[str, list[int]] = {}
    for rank, text in texts.items():
        ranks_of_text.setdefault(text, []).append(rank)
    parts = [sentence(ranks, text) for text, ranks in ranks_of_text.items()]
    return "; ".join(parts[:4] + (["..."] if len(parts) > 4 else []))


def listed(ranks: Sequence[int]) -> str:
    """Return ``"rank 3"`` or ``"ranks 1, 4, 5"``, the first sixteen of them."""
    shown = ", ".join(map(str, ranks[:16])) + (f" and {len(ranks) - 16} more" if len(ranks) > 16 else "")
    return f"rank{'s' if len(ranks) != 1 else ''} {shown}"


def against_majority(held: Mapping[int, _T]) -> tuple[_T, dict[int, _T]]:
    """Return what most ranks hold, and what each other rank holds; on a tie, the lowest rank decides."""
    ranks_of_value: dict[_T, list[int]] = {}
    for rank, value in held.items():
        ranks_of_value.setdefault(value, []).append(rank)
    usual = max(ranks_of_value, key=lambda value: len(ranks_of_value[value]))  # the first: in order of lowest rank
    return usual, {rank: value for rank, value in held.items() if value != usual}
