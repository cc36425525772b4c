"""What a cap that was too small would have to be: said with the error, so that nobody has to find it by trying."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import solvers
from balancer.errors import InputError
from solvers.errors import SolverError

__all__ = ["AskedCap", "least_cap", "most_needed", "needed", "with_smallest_cap"]

_BUDGET = 0.01  # seconds' worth of looking for a plan that needs little room
_MOST_ROWS = 2**21  # of a log that are read on for the sake of a message


class AskedCap(NamedTuple):
    """A cap on what a bin gets of one phase's lengths; `num_bins` None: as many as it takes."""

    phase: str
    name: str
    limit: int
    num_bins: int | None


def least_cap(amounts: NDArray[np.int64], num_bins: int) -> int:
    """Return a cap below which `num_bins` bins cannot hold these amounts: the largest, or the mean of a bin. O(n)."""
    if not len(amounts):
        return 0
    mean: int = -(-sum(amounts.tolist()) // num_bins)
    return max(int(amounts.max()), mean)


def needed(
    name: str, amounts: NDArray[np.int64], num_bins: int, cap: int, padded: bool = False, **keywords: Any
) -> str:
    """Say which cap would do in place of one that is proven, or seems, too small.

    Parameters
    ----------
    name : str
        The cap's.
    amounts : int64[n]
    num_bins : int
    cap : int
        What was given.
    padded : bool
        A bin holds its number of items times the largest of them.
    **keywords
        Other constraints, as :func:`solvers.partition` takes them.

    Returns
    -------
    str
        Words that go on after a message; empty where the other constraints alone cannot be kept, as far as is known.
    """
    try:
        if padded:
            equal_counts = bool(keywords.get("equal_counts", False))
            found = solvers.padded(amounts, num_bins, equal_counts=equal_counts)
        else:
            found = solvers.partition(amounts, num_bins, "auto", _BUDGET, **keywords)
    except (ValueError, SolverError):
        return ""
    least, enough = max(found.lower_bound, 1), max(found.makespan, 1)
    if least >= enough:
        return f"; for this batch {name} must be at least {enough}, which does" if enough > cap else ""
    return f"; for this batch {name} must be at least {max(least, cap + 1)}, and {enough} does" if enough > cap else ""


def most_needed(asked: Sequence[AskedCap], steps: Iterable[Mapping[str, NDArray[np.int64]]], failed: int) -> str:
    """Say, on a line of its own, which steps after the one that `failed` need most, where that is over a cap too.

    Parameters
    ----------
    asked : sequence of AskedCap
    steps : iterable of mapping of str to int64[n]
        Of every step from the first the lengths of each phase; read as far as 2**21 rows.
    failed : int
        Which step failed.
    """
    most = [(0, -1)] * len(asked)
    rows = 0
    try:
        for step, lengths in enumerate(steps):
            for i, cap in enumerate(asked):
                mine = lengths[cap.phase]
                most[i] = max(most[i], (least_cap(mine, cap.num_bins or max(1, len(mine))), -step))
            rows += max(map(len, lengths.values()), default=0)
            if rows > _MOST_ROWS:
                break
    except (InputError, ValueError):
        return ""  # a bad row further on: another error's matter
    short = [
        f"step {-minus_step} needs {cap.name} of at least {least}"
        for cap, (least, minus_step) in zip(asked, most, strict=True)
        if least > cap.limit and -minus_step > failed
    ]
    return f"\nfurther on {', '.join(short)}" if short else ""


def with_smallest_cap(
    error: SolverError, caps: Sequence[tuple[str, NDArray[np.int64], int]], keywords: dict[str, Any], num_ranks: int
) -> SolverError:
    """Add to an error that is, or may be, about a cap what that would have to be, the other constraints kept.

    Each cap has a name, amounts and a limit; `keywords` are all constraints, as :func:`solvers.partition` takes them.
    """
    certificate = getattr(error, "certificate", None)
    only = 0 if len(caps) == 1 else None
    index = only if certificate is None else certificate.quantity
    if index is None or index >= len(caps):
        return error
    name, amounts, limit = caps[index]
    others = {word: value for word, value in keywords.items() if word not in ("initial_loads", "speeds")}
    for word in ("sizes", "caps"):
        rest = np.delete(others.pop(word), index, axis=-1)
        if len(caps) > 1:
            others[word] = rest
    name = name if name == "max_tokens_per_rank" else f"the cap on {name}"
    error.args = (f"{error.args[0]}{needed(name, amounts, num_ranks, limit, **others)}",)
    return error
