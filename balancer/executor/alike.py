"""All ranks say what they hold, and raise alike: no rank goes on where another cannot."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from balancer.executor.collectives import Collectives
from balancer.executor.errors import PeerError, summary
from balancer.executor.peers import Peers

__all__ = ["attempt", "held_by_all", "raise_alike"]

_T = TypeVar("_T")


def attempt(make: Callable[[], _T]) -> tuple[_T | None, Exception | None]:
    """Return what a function makes, or the error that it raises: the other ranks must hear of any."""
    try:
        return make(), None
    except Exception as error:
        return None, error


def held_by_all(
    peers: Peers | Collectives, held: Any, failure: Exception | None = None, what: str = "cannot go on",
    where: str = "",
) -> list[list[Any]]:  # fmt: skip
    """Return what every rank holds: of each rank a list, with an entry for each of its replica peers, the leader first.

    All ranks call this, and give what JSON can hold. The failure of a rank is raised there, once the others have heard
    of it; they raise a PeerError: it says that the rank failed at `what`, and `where` in front of the failure.
    """
    said = peers.gather_json(["" if failure is None else where + summary(failure), held])
    failed = {rank: [text for text, _ in of_rank if text] for rank, of_rank in enumerate(said)}
    raise_alike(failure, {rank: texts[0] for rank, texts in failed.items() if texts}, what)
    return [[each for _, each in of_rank] for of_rank in said]


def raise_alike(failure: Exception | None, failed: Mapping[int, str], what: str) -> None:
    """Raise this rank's failure, else PeerError if others failed, given a summary of each rank's failure."""
    if failure is not None:
        raise failure
    if failed:
        raise PeerError.of(what, failed)
