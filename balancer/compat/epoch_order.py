"""The order of an epoch: positions 0, 1, ..., and the row of the dataset that stands at each."""

import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.problem.shuffle import shuffled
from solvers.arguments import as_int64
from solvers.errors import ArgumentError, ArgumentTypeError, UsageError

__all__ = ["OF_THE_EPOCH", "DrawnOrder", "EpochOrder", "Order", "digest", "whole_numbers"]

OF_THE_EPOCH = (
    "what draws at random needs a seed of the epoch: order=lambda epoch: "
    "numpy.random.default_rng([0, epoch]).permutation(len(dataset))"
)
"""What to give instead of an order that is drawn anew each time it is asked for."""

_KINDS = "be an array, a sampler or a function of the epoch, and no iterator, class, set or mapping"

Ints = NDArray[np.int64]
Order = ArrayLike | Iterable[int] | Callable[[int], Any]


@dataclass(frozen=True, slots=True)
class DrawnOrder:
    """The order of an epoch: how many positions it has, and the row at each."""

    epoch: int
    total: int
    rows: Callable[[Ints], Ints]


class EpochOrder:
    """All rows, shuffled by a seed or not; or the user's own: rows, what yields them, or a function of the epoch."""

    def __init__(self, given: Order | None, count: int, shuffle: bool, seed: int, least: int) -> None:
        if given is not None and (isinstance(given, Iterator) or not (_takes_epoch(given) or _has_rows(given))):
            raise ArgumentTypeError("order", _KINDS, repr(given)[:60])
        self.given = _as_rows(given).copy() if _is_array(given) else _whole(given)
        self.count, self.shuffle, self.seed, self.least = count, shuffle, seed, least
        self._drawn: dict[int, Ints] = {}  # rows of epochs that were asked for
        self.running = -1
        """The epoch that is trained: its rows are kept."""
        _check_fills("lengths", count, least if given is None else 1)

    def drawn(self, epoch: int) -> DrawnOrder:
        """Return the order of an epoch."""
        if self.given is not None:
            return DrawnOrder(epoch, len(self._rows_of(epoch)), lambda positions: self._rows_of(epoch)[positions])
        if not self.shuffle:
            return DrawnOrder(epoch, self.count, lambda positions: positions)
        return DrawnOrder(epoch, self.count, lambda positions: shuffled(positions, self.count, self.seed, epoch))

    def words(self, epoch: int) -> dict[str, Any]:
        """Return what tells an epoch's order from another, as JSON."""
        if self.given is not None:
            return {"order": digest(self._rows_of(epoch))}
        return {"seed": self.seed if self.shuffle else None}

    def _rows_of(self, epoch: int) -> Ints:
        """Return an epoch of the user's own order; asked for once an epoch, as it may draw anew each time."""
        if epoch not in self._drawn:
            if callable(set_epoch := getattr(self.given, "set_epoch", None)):
                set_epoch(epoch)
            rows = _as_rows(self.given(epoch) if callable(self.given) else self.given, f" for epoch {epoch}")
            if len(odd := np.flatnonzero((rows < 0) | (rows >= self.count))):
                raise ArgumentError("order", f"name rows 0..{self.count - 1}", rows[odd[0]], int(odd[0]))
            _check_fills("order", len(rows), self.least)
            # The last that was asked for, too: a loader that fetches ahead has begun with the next epoch.
            kept = {self.running, *list(self._drawn)[-1:]}
            self._drawn = {each: held for each, held in self._drawn.items() if each in kept} | {epoch: rows}
        return self._drawn[epoch]


def _check_fills(name: str, total: int, least: int) -> None:
    if total < least:
        raise ArgumentError(name, f"have at least {least} rows{', a step, with drop_last' if least > 1 else ''}", total)


def _has_rows(order: Any) -> bool:
    return hasattr(order, "__iter__") and not isinstance(order, type | Set | Mapping | str)


def _takes_epoch(order: Any) -> bool:
    try:
        inspect.signature(order).bind(0)
    except ValueError:  # it does not say what it takes
        return True
    except TypeError:  # no function, or one of other arguments
        return False
    return not isinstance(order, type)


def _as_rows(order: Any, when: str = "") -> Ints:
    if not _has_rows(order):
        raise ArgumentTypeError("order", _KINDS, f"{repr(order)[:60]}{when}")
    return as_int64("order", order if _is_array(order) else list(_whole(order)))


def _is_array(order: Any) -> bool:
    return isinstance(order, list | tuple | range) or hasattr(order, "__array__")


def _whole(order: Any) -> Any:
    """Refuse what yields the rows of one rank alone."""
    if (ranks := getattr(order, "num_replicas", 1) or 1) > 1:
        raise UsageError(
            "order must be the rows of all ranks, and a {kind} of {ranks} ranks yields a part of them",
            ("leave order out, for all rows shuffled by seed", "or give it num_replicas=1, rank=0"),
            kind=type(order).__name__, ranks=ranks,
        )  # fmt: skip
    return order


def whole_numbers(name: str, values: ArrayLike, least: int) -> Ints:
    """Return a copy of whole numbers of at least `least`: the caller may go on to change theirs."""
    found = as_int64(name, values).copy()
    if len(odd := np.flatnonzero(found < least)):
        raise ArgumentError(name, f"be >= {least}", found[odd[0]], int(odd[0]))
    return found


def digest(values: Ints) -> str:
    """Return what tells values apart, and keeps states small."""
    return hashlib.sha256(values.tobytes()).hexdigest()[:16]
