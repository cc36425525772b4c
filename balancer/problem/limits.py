"""What a micro-batch may hold, besides its tokens: five kinds of limits, and no more.

They are asked for by column or by array (:class:`Limit` and its like), and *held* as arrays of some samples
(:class:`HeldLimits`). A part of what fits fits too, so that micro-batches may be divided; :class:`Everywhere` alone
looks at what other ranks compute at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.described import A_SIZE, Kind, Size, described, key
from balancer.errors import did_you_mean
from solvers.arguments import as_array, as_costs
from solvers.errors import ArgumentError, InfeasibilityCertificate, InfeasibleError, Named, UsageError, braced
from solvers.groups import group_loads
from solvers.packing import BatchLimits

__all__ = [
    "LIMITS", "LIMITS_ASKED", "AnyLimit", "CountLimit", "Everywhere", "HeldLimits", "Kinds", "Limit", "Limits",
    "PaddedLimit", "held_limits", "of_columns", "without_columns",
]  # fmt: skip

Ints = NDArray[np.int64]


class OfSamples:
    """An array with a value for each sample, compared as a whole; no file holds it."""

    array: NDArray[Any]

    def __init__(self, values: ArrayLike) -> None:
        self.array = as_array("values", values).copy()  # the caller may go on to change theirs
        self.array.flags.writeable = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OfSamples) and bool(np.array_equal(self.array, other.array))

    def __hash__(self) -> int:
        return hash(self.array.tobytes())

    def __str__(self) -> str:
        return f"an array of {len(self.array)} samples"

    __repr__ = __str__


def _column_or_array(value: Any) -> str | OfSamples:
    if isinstance(value, str | OfSamples):
        if isinstance(value, str) and not value.strip():
            raise ValueError
        return value
    found = OfSamples(value)
    if found.array.ndim != 1:
        raise TypeError
    return found


def _amount_or_amounts(value: Any) -> int | tuple[int, ...]:
    if isinstance(value, list | tuple | np.ndarray):
        found = tuple(A_SIZE.take(each) for each in np.asarray(value).tolist())
        if not found:
            raise ValueError
        return found
    return int(A_SIZE.take(value))


Column = Annotated[
    str | ArrayLike | OfSamples,
    Kind("a column's name, or a value for each sample", {"type": "string", "minLength": 1}, _column_or_array),
]
Most = Annotated[
    int | Sequence[int],
    Kind("a whole number >= 1, or one for each rank", {"type": ["integer", "array"]}, _amount_or_amounts),
]


@described
class Limit:
    """A sum: no micro-batch has more than `most` images, patches, loss tokens.

    Attributes
    ----------
    amounts : str or int64[n]
        Columns, such as ``"patches"`` or ``"text+image"``, or a number >= 0 for each sample.
    most : int
        In the sampler also a list: one number for each rank.
    """

    amounts: Column = key("What is added up: columns, such as patches or text+image.")
    most: Most = key("The most of a micro-batch.")
    kind: ClassVar[str] = "sum"

    def in_words(self) -> str:
        """Say what it is, for a report."""
        return f"{self.most} {self.amounts if isinstance(self.amounts, str) else 'of a sum'}"


@described
class CountLimit:
    """No micro-batch holds more than `most` samples.

    Attributes
    ----------
    most : int
    """

    most: Size = key("The most samples of a micro-batch.")
    kind: ClassVar[str] = "count"

    def in_words(self) -> str:
        """Say what it is, for a report."""
        return f"{self.most:,} samples"


@described
class PaddedLimit:
    """No micro-batch has more than `most` elements once it is padded: samples times the longest of them.

    Attributes
    ----------
    most : int
    """

    most: Size = key("The most of samples times the longest.")
    kind: ClassVar[str] = "padded"

    def in_words(self) -> str:
        """Say what it is, for a report."""
        return f"{self.most:,} padded"


@described
class Kinds:
    """A micro-batch holds samples of one kind: of one policy version, task or adapter.

    Attributes
    ----------
    values : str or array[n]
        A column of integers or text, or a value for each sample.
    """

    values: Column = key("Rows of unlike values in this column share no micro-batch.")
    kind: ClassVar[str] = "kinds"

    def in_words(self) -> str:
        """Say what it is, for a report."""
        return "samples of one kind"


@described
class Everywhere:
    """In a slot every rank has a sample with a true value, or no rank has; others may join it.

    So that all ranks enter an encoder's collective, or none does, as FSDP needs.

    Attributes
    ----------
    values : str or bool[n]
        Columns of numbers, such as ``"images"``, of which all but 0 are true; or a value for each sample.
    """

    values: Column = key("Rows with a number other than 0 here are on all ranks of a slot, or on none.")
    kind: ClassVar[str] = "everywhere"

    def in_words(self) -> str:
        """Say what it is, for a report."""
        return "some samples on all ranks or none"


AnyLimit = Limit | CountLimit | PaddedLimit | Kinds | Everywhere

LIMITS: dict[str, type[AnyLimit]] = {each.kind: each for each in (Limit, CountLimit, PaddedLimit, Kinds, Everywhere)}
"""The five kinds, by their name in files."""


def as_limits(value: Any) -> tuple[AnyLimit, ...]:
    """Return limits from a list of them, or of dictionaries as files hold them; one is a list of one."""
    given = [value] if isinstance(value, AnyLimit | Mapping) else value
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise TypeError("limits must be a list of Limit, CountLimit, PaddedLimit, Kinds or Everywhere")
    found = tuple(_as_limit(each, f"limits[{place}]") for place, each in enumerate(given))
    for once in (CountLimit, PaddedLimit, Kinds, Everywhere):
        if sum(isinstance(each, once) for each in found) > 1:
            raise UsageError("{limits} has two of {kind}; give one", kind=once.__name__)
    if {"kinds", "everywhere"} <= {each.kind for each in found}:
        raise UsageError("{limits} cannot have Kinds and Everywhere together, which is not planned yet")
    return found


def _as_limit(said: Any, place: str) -> AnyLimit:
    if isinstance(said, AnyLimit):
        return said
    if not isinstance(said, Mapping):
        raise UsageError(f"{{{place}}} must be one of Limit, CountLimit, PaddedLimit, Kinds, Everywhere, got {{what}}",
                         what=repr(said)[:60])  # fmt: skip
    of_limit = dict(said)
    named = of_limit.pop("kind", "sum" if "amounts" in of_limit else None)
    if named not in LIMITS:
        raise UsageError(f"{{{place}.kind}} must be one of {', '.join(LIMITS)}, got {{what!r}}", what=named)
    known = [each.name for each in fields(LIMITS[named])]
    for name in of_limit:
        if name not in known:
            hint = braced(did_you_mean(name, known))
            raise UsageError(f"{{{place}.{name}}}: there is no such key{hint}; {', '.join(known)}")
    if missing := [name for name in known if name not in of_limit]:
        raise UsageError(f"{{{place}.{missing[0]}}} is missing")
    return LIMITS[named](**of_limit)


Limits = Annotated[
    Sequence[AnyLimit],
    Kind(
        "",
        {"type": "array", "items": {"type": "object", "properties": {
            "kind": {"enum": list(LIMITS)}, "amounts": {"type": "string"}, "values": {"type": "string"},
            "most": {"type": "integer", "minimum": 1}}}},
        as_limits,
    ),
]  # fmt: skip


LIMITS_ASKED = "limits"
"""What plan files call limits of columns, which cannot be checked without the log."""


# Limits as they are held ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class HeldLimits:
    """Limits on the micro-batches of n samples, as arrays.

    Attributes
    ----------
    names : tuple of str
        Of each sum, as errors call it.
    sizes : int64[n, q]
        What each sample has of each sum.
    most : int64[q, 1] or int64[q, R]
        The most of a micro-batch, of each rank if these differ.
    most_items, padded : int or None
        The most samples, and the most of samples times the longest.
    kinds : int64[n] or None
        0, 1, ...: what kind each sample is of.
    everywhere : bool[n] or None
    """

    names: tuple[str, ...]
    sizes: Ints
    most: Ints
    most_items: int | None = None
    padded: int | None = None
    kinds: Ints | None = None
    everywhere: NDArray[np.bool_] | None = None

    def of_samples(self, members: NDArray[np.integer] | slice) -> HeldLimits:
        """Return the limits on the micro-batches of some of the samples."""
        return replace(
            self, sizes=self.sizes[members], kinds=None if self.kinds is None else self.kinds[members],
            everywhere=None if self.everywhere is None else self.everywhere[members],
        )  # fmt: skip

    @property
    def only_add_up(self) -> bool:
        """Whether all of them are sums and counts."""
        return self.padded is None and self.kinds is None and self.everywhere is None

    @property
    def by_rank(self) -> bool:
        """Whether ranks differ in what a micro-batch may hold."""
        return bool(self.most.shape[1] > 1)

    def for_solver(self) -> BatchLimits:
        """Return them as :func:`solvers.schedule_micro_batches` takes them; of unlike ranks the least."""
        most = self.most.min(axis=1) if self.most.size else np.zeros(len(self.names), dtype=np.int64)
        return BatchLimits(self.sizes, most, self.most_items, self.padded, self.kinds, self.everywhere)

    def check_alone(self, lengths: Ints) -> None:
        """Raise InfeasibleError for the first sample that is over a limit by itself: sample, limit, and by how much."""
        for name, amounts, most in zip(self.names, self.sizes.T, self.most, strict=True):
            self._check_each(name, amounts, int(most.max()))
        if self.padded is not None:
            self._check_each("PaddedLimit", lengths, self.padded)

    @staticmethod
    def _check_each(name: str, amounts: Ints, most: int) -> None:
        if len(over := np.flatnonzero(amounts > most)):
            sample, excess = int(over[0]), int(amounts[over[0]]) - most
            raise InfeasibleError(
                f"no micro-batch can hold {{sample}}: its {braced(name)} is {amounts[sample]}, over the limit "
                f"{most} by {excess} (samples over it: {len(over)})",
                InfeasibilityCertificate("limits", over.tolist(), [], int(amounts[sample]), most),
                ["raise the limit", "leave them out beforehand"], sample=Named("sample", sample),
            )  # fmt: skip

    def violation(self, lengths: Ints, rank: NDArray[np.integer], slot: NDArray[np.integer], num_ranks: int,
                  slots: int) -> str | None:  # fmt: skip
        """Say which limit micro-batches break first; None if they keep to all. O(n)."""
        bins, num_bins = (rank.astype(np.int64) * slots + slot).astype(np.int32), num_ranks * slots

        def over(held: Ints, most: Ints | int, what: str) -> str | None:
            above = held.reshape(num_ranks, slots) - np.reshape(most, (-1, 1))
            if not above.size or above.max() <= 0:
                return None
            where = np.unravel_index(above.argmax(), above.shape)
            return (
                f"micro-batch {where[1]} of rank {where[0]} holds {held.reshape(above.shape)[where]} {what}, over the "
                f"limit by {above[where]}"
            )

        counts = np.bincount(bins, minlength=num_bins)
        found = [
            over(group_loads(np.ascontiguousarray(amounts), bins, num_bins), most, name)
            for name, amounts, most in zip(self.names, self.sizes.T, self.most, strict=True)
        ]
        if self.most_items is not None:
            found.append(over(counts, self.most_items, "samples"))
        if self.padded is not None:
            longest = np.zeros(num_bins, dtype=np.int64)
            np.maximum.at(longest, bins, lengths)
            found.append(over(counts * longest, self.padded, "padded elements"))
        if self.kinds is not None and len(bins):
            order = np.argsort(bins, kind="stable")
            unlike = (bins[order[1:]] == bins[order[:-1]]) & (self.kinds[order[1:]] != self.kinds[order[:-1]])
            if unlike.any():
                first = bins[order[int(unlike.argmax())]]
                found.append(f"micro-batch {first % slots} of rank {first // slots} holds samples of two kinds")
        if self.everywhere is not None:
            there = np.bincount(bins[self.everywhere], minlength=num_bins).reshape(num_ranks, slots) > 0
            if (mixed := there.any(axis=0) & ~there.all(axis=0)).any():
                at = int(mixed.argmax())
                found.append(
                    f"in slot {at} rank {int(there[:, at].argmin())} has no sample of Everywhere, and rank "
                    f"{int(there[:, at].argmax())} has"
                )
        return next((text for text in found if text), None)


def held_limits(
    limits: Sequence[AnyLimit], count: int, num_ranks: int, column: Callable[[str, bool], Any] | None = None
) -> HeldLimits | None:
    """Return the limits as arrays of `count` samples; None if there are none.

    `column` returns a column by its name: numbers, or with True keys of any kind. Without it arrays alone can be read.

    Raises
    ------
    TypeError, ValueError
        A column that is not there, an array of another length, amounts below 0, a list of another length than ranks.
    """
    if not limits:
        return None

    def values(name: str, given: Any, keys: bool) -> NDArray[Any]:
        if isinstance(given, str):
            if column is None:
                raise UsageError(
                    f"{{{name}}} = {{column!r}} is a column, and there are none: give an array", column=given
                )
            return np.asarray(column(given, keys))
        if not count:
            return np.empty(0, dtype=given.array.dtype)
        if given.array.shape != (count,):
            raise ArgumentError(name, f"have a value for each of {count} samples", given.array.shape)
        found: NDArray[Any] = given.array
        return found

    names, sizes, most = [], [], []
    found: dict[str, Any] = {}
    for place, limit in enumerate(limits):
        name = f"limits[{place}]"
        match limit:
            case Limit():
                amounts, _, _ = as_costs(values(f"{name}.amounts", limit.amounts, False), f"{name}.amounts")
                names.append(limit.amounts if isinstance(limit.amounts, str) else name)
                sizes.append(amounts)
                of_ranks = limit.most if isinstance(limit.most, tuple) else (limit.most,)
                if len(of_ranks) not in (1, num_ranks):
                    raise ArgumentError(f"{name}.most", f"be one number, or one for each of {num_ranks} ranks",
                                        len(of_ranks))  # fmt: skip
                most.append(of_ranks)
            case CountLimit():
                found["most_items"] = min(limit.most, max(1, count))  # a step has no more
            case PaddedLimit():
                found["padded"] = limit.most
            case Kinds():
                found["kinds"] = _codes(f"{name}.values", values(f"{name}.values", limit.values, True))
            case Everywhere():
                found["everywhere"] = _truths(f"{name}.values", values(f"{name}.values", limit.values, False))
    width = max(map(len, most), default=1)
    table = np.array([each if len(each) == width else each * width for each in most], dtype=np.int64)
    held = np.stack(sizes, axis=1) if sizes else np.zeros((count, 0), dtype=np.int64)
    return HeldLimits(tuple(names), held, table.reshape(len(most), width), **found)


def has_array(limit: AnyLimit) -> bool:
    """Whether a limit has its values for each sample itself, and names no column of them."""
    return any(isinstance(getattr(limit, each.name), OfSamples) for each in fields(limit))


def of_columns(limits: Sequence[AnyLimit]) -> bool:
    """Whether any of the limits needs a value for each sample, which no plan file holds."""
    return any(not isinstance(limit, CountLimit | PaddedLimit) for limit in limits)


def without_columns(limits: Sequence[AnyLimit], count: int) -> HeldLimits | None:
    """Return the limits that need no column, on `count` samples: those that can be checked without the log."""
    kept = [limit for limit in limits if isinstance(limit, CountLimit | PaddedLimit)]
    return held_limits(kept, count, 1)


def _codes(name: str, values: NDArray[Any]) -> Ints:
    if len(values) and values.dtype.kind not in "iubUSO":
        raise ArgumentError(name, "hold integers or text", f"{values.dtype}")
    try:
        return np.unique(values, return_inverse=True)[1].astype(np.int64)
    except TypeError:
        raise ArgumentError(name, "hold keys of one kind", "integers and text") from None


def _truths(name: str, values: NDArray[Any]) -> NDArray[np.bool_]:
    if values.dtype.kind not in "iufb":
        raise ArgumentError(name, "hold true and false, or numbers", f"{values.dtype}")
    found: NDArray[np.bool_] = values != 0
    return found
