"""What can go wrong between ranks. Each error says which it is about, by their rank in the data-parallel group."""

from collections.abc import Sequence

__all__ = ["ExecutorError", "FieldMismatchError", "PeerError", "PeerLostError", "PlanMismatchError"]


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


class PeerError(ExecutorError):
    """Other ranks failed, each with an error of its own, before anything was exchanged."""


class PeerLostError(ExecutorError):
    """A collective broke or ran out of time; :attr:`ranks` did not report, and are empty where that is not known."""


def listed(ranks: Sequence[int]) -> str:
    """Return ``"rank 3"`` or ``"ranks 1, 4, 5"``, the first sixteen of them."""
    shown = ", ".join(map(str, ranks[:16])) + (f" and {len(ranks) - 16} more" if len(ranks) > 16 else "")
    return f"rank{'s' if len(ranks) != 1 else ''} {shown}"


class FieldMismatchError(ExecutorError):
    """Ranks handed in mini-batches of different fields; :attr:`ranks` differ from the majority. Nothing has moved."""


def outside_majority(values: Sequence[object]) -> tuple[int, ...]:
    """Return the ranks that do not hold what most ranks hold; on a tie, what the lowest rank of those tied holds."""
    held: dict[object, list[int]] = {}
    for rank, value in enumerate(values):
        held.setdefault(value, []).append(rank)
    most = max(len(ranks) for ranks in held.values())
    majority = next(value for value, ranks in held.items() if len(ranks) == most)  # held is in order of lowest rank
    return tuple(rank for rank, value in enumerate(values) if value != majority)
