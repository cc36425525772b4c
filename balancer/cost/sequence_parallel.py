"""Sequence-parallel groups: what a sample takes on several ranks, and which degrees a model's heads allow.

A group of degree d takes ``(a l + b l^2 + x_d l) / d`` for a sample of length l, where x_d is the exchange: work units
a unit of length. Where nothing was measured, a share of a rank's speed is lost with each doubling instead.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from balancer.cost.parts import Attention
from solvers.arguments import INT64_MAX, as_integer
from solvers.errors import ArgumentError
from solvers.types import Record

EXCHANGES = ("ulysses", "ring")
"""How the ranks of a group see each other's tokens: heads for tokens, all to all; or keys and values, round a ring."""

_DEGREE = "d([2-9]|[1-9][0-9]{1,9})"
# Percent of a rank's speed for each doubling of the degree: what is assumed where nothing was measured.
_LOSS = 5
# Beyond it two ranks are slower than one.
_MOST_LOSS = 50
# The largest denominator of a part: its square fits int64.
_FINEST = 2**31
# Of an activation: bfloat16.
_BYTES = 2


@dataclass(frozen=True, slots=True, eq=False)
class DegreeTimes(Record):
    """What :func:`solvers.sequence_groups` is given, all in units of `unit` work units, rounded up.

    Attributes
    ----------
    times : int64[D, n], read-only
        Of each sample alone in a group of each degree.
    overhead : int
        Of a slot.
    unit : int
        A power of two: 1 unless the solver's sums would not fit.
    """

    times: NDArray[np.int64]
    overhead: int
    unit: int


@dataclass(frozen=True, slots=True)
class Sharing:
    """How a sample's cost falls as ranks share it.

    Attributes
    ----------
    loss : int, optional
        Percent of its speed that a rank loses with each doubling of the degree, 0 to 50. By default 5, an assumption;
        0 where there is an `exchange`. Between powers of two what is left is on a straight line.
    exchange : tuple of (int, int)
        Degree and x_d, work units a unit of length, both integers; degrees from 2, ascending. Other degrees take that
        of the next larger one, those beyond the last that of the last.
    hidden : bool
        The exchange runs beside attention, as round a ring, and only what is longer than that counts.
    overhead : int
        Work units that every slot takes besides: gradients, parameters, launches.

    Examples
    --------
    >>> Sharing(exchange=((2, 10), (8, 40))).on_degree(np.array([100]), np.array([0]), np.array([5]), 4)
    array([75])
    """

    loss: int | None = None
    exchange: tuple[tuple[int, int], ...] = ()
    hidden: bool = False
    overhead: int = 0

    def __post_init__(self) -> None:
        loss = (0 if self.exchange else _LOSS) if self.loss is None else as_integer("loss", self.loss)
        if loss > _MOST_LOSS:
            raise ArgumentError("loss", f"be 0 to {_MOST_LOSS}, percent of a rank's speed", loss)
        exchange = tuple((as_integer("exchange", d), as_integer("exchange", work)) for d, work in self.exchange)
        for i, (degree, _) in enumerate(exchange):
            least = exchange[i - 1][0] + 1 if i else 2
            if degree < least:
                raise ArgumentError("exchange", f"be of ascending degrees from 2, here of {least} or more", degree, i)
        if self.hidden not in (0, 1):
            raise ArgumentError("hidden", "be 0 or 1", self.hidden)
        object.__setattr__(self, "loss", loss)
        object.__setattr__(self, "exchange", exchange)
        object.__setattr__(self, "hidden", bool(self.hidden))
        object.__setattr__(self, "overhead", as_integer("overhead", self.overhead))

    @classmethod
    def of(cls, given: dict[str, int]) -> "Sharing":
        """Read what :meth:`words` wrote; TypeError for a word that is none of its own."""
        words = dict(given)
        exchange = sorted((int(word[1:]), words.pop(word)) for word in given if re.fullmatch(_DEGREE, word))
        return cls(exchange=tuple(exchange), **words)  # type: ignore[arg-type]

    def words(self) -> dict[str, int]:
        """Return all that is not as by default, by the names that a cost's text has for it."""
        words = {} if self.loss == (0 if self.exchange else _LOSS) else {"loss": int(self.loss or 0)}
        words |= {f"d{degree}": work for degree, work in self.exchange}
        return words | ({"hidden": 1} if self.hidden else {}) | ({"overhead": self.overhead} if self.overhead else {})

    def exchange_of(self, degree: int) -> int:
        """Work units a unit of length in a group of this degree: x_d."""
        if degree == 1 or not self.exchange:
            return 0
        # A degree that was not measured takes what the next larger one does, or the largest.
        return next((work for each, work in self.exchange if each >= degree), self.exchange[-1][1])

    def _kept(self, degree: int) -> Fraction:
        """Return the share of its speed that a rank of a group has."""
        doublings = degree.bit_length() - 1
        kept = Fraction(100 - int(self.loss or 0), 100)
        # Between powers of two, the loss is on a line.
        beyond = Fraction(degree, 1 << doublings) - 1
        return kept**doublings * (1 - (1 - kept) * beyond)

    def on_degree(
        self, linear: NDArray[np.int64], attention: NDArray[np.int64], lengths: NDArray[np.int64], degree: int
    ) -> NDArray[np.int64]:
        """Time of each sample alone in a group of this degree, rounded up: int64[n], in work units.

        ``linear`` is ``a l``, ``attention`` what pairs of tokens take; with x_d l their sums fit int64.
        """
        exchange = self.exchange_of(degree) * lengths
        work = linear + attention + (np.maximum(exchange - attention, 0) if self.hidden else exchange)
        part = (1 / (degree * self._kept(degree))).limit_denominator(_FINEST)  # at most 1
        # In two parts, as work times a numerator may not fit int64.
        whole, rest = np.divmod(work, part.denominator)
        return np.asarray(whole * part.numerator - -rest * part.numerator // part.denominator)

    def by_degree(
        self, linear: NDArray[np.int64], attention: NDArray[np.int64], lengths: NDArray[np.int64], degrees: ArrayLike,
        num_ranks: int, constant: NDArray[np.int64] | int = 0,
    ) -> DegreeTimes:  # fmt: skip
        """Times in groups of all `degrees`, in units so large that the solver's sums fit on `num_ranks` ranks.

        ``constant`` is what a sample takes on every rank that shares it, such as launches.
        """
        # Only here: every cost is a model with this, and most are of samples that no ranks share.
        from solvers.grouping import MOST_RANK_TIME, as_degrees

        listed = as_degrees(degrees).tolist()
        shared = [self.on_degree(linear, attention, lengths, degree) for degree in listed]
        times = np.array([constant + each for each in shared], dtype=np.int64)
        times = times.reshape(len(listed), len(lengths))
        together = sum(map(int, times.max(axis=0))) + len(lengths) * self.overhead
        shift = 0
        # Coarser by a factor of two at a time, until the sums that the solver forms fit.
        while num_ranks * ((together >> shift) + 3 * len(lengths)) >= MOST_RANK_TIME and together >> shift:
            shift += 1
        return DegreeTimes(-(-times >> shift), -(-self.overhead >> shift), 1 << shift)

    def fits(self, cost: int, length: int) -> bool:
        """Whether :meth:`on_degree` stays in int64 for samples up to this length, which cost no more than `cost`."""
        return cost + max((work for _, work in self.exchange), default=0) * length <= INT64_MAX


def check_heads(degrees: Iterable[int], attention: Attention) -> None:
    """Raise ArgumentError unless every degree can exchange heads for tokens, all to all (Ulysses).

    A degree must divide the heads, and divide those of keys and values or be a multiple of them: these are then
    repeated. A ring takes any degree.

    Examples
    --------
    >>> check_heads([1, 2, 4], Attention(hidden=3584, heads=28, kv_heads=4, head_dim=128))
    >>> check_heads([1, 8], Attention(hidden=3584, heads=28, kv_heads=4, head_dim=128))
    Traceback (most recent call last):
        ...
    solvers.errors.ArgumentError: degrees[1] must divide the model's 28 attention heads (4 of keys and values), got 8; \
take 1, 2, 4, 28, or any with exchange='ring'
    """
    legal = legal_degrees(attention)
    take = f"take {', '.join(map(str, legal))}", "or any with {exchange='ring'}"
    for i, degree in enumerate(degrees):
        if degree not in legal:
            raise ArgumentError(
                "degrees",
                f"divide the model's {attention.heads} attention heads ({attention.kv_heads} of keys and values)",
                degree, i,
                (*take, *padded_heads(attention, degree)),
            )  # fmt: skip


def legal_degrees(attention: Attention) -> list[int]:
    """Return the degrees that :func:`heads_divide` into, ascending."""
    return [degree for degree in range(1, attention.heads + 1) if heads_divide(attention, degree)]


def heads_divide(attention: Attention, parts: int) -> bool:
    """Return whether each of so many parts can have as many heads, with their keys and values."""
    heads, kv_heads = attention.heads, attention.kv_heads
    # More parts than heads of keys and values: each of these is repeated on as many ranks as have its queries.
    return heads % parts == 0 and (kv_heads % parts == 0 or parts % kv_heads == 0)


def padded_heads(attention: Attention, parts: int) -> tuple[str, ...]:
    """Say which model has heads that divide: trainers add heads of zeros, and a model that has them says what it takes.

    Nothing where heads share keys and values, whose groups would have to be padded alike.

    Examples
    --------
    >>> print(*padded_heads(Attention(hidden=3200, heads=25, kv_heads=25, head_dim=128), 8))
    or give a model padded to 32 heads of 128 (in config.json num_attention_heads and head_dim), which counts their work
    """
    if parts < 1 or attention.heads != attention.kv_heads:
        return ()
    heads = -(-attention.heads // parts) * parts
    where = "in config.json num_attention_heads and head_dim"
    return (f"or give a model padded to {heads} heads of {attention.head_dim} ({where}), which counts their work",)


def exchange_bytes(
    attention: Attention, layers: int, degree: int, exchange: str = "ulysses", *, checkpointing: bool = False
) -> int:
    """Bytes in bfloat16 that a rank of a group exchanges for each token that it holds, over all layers and passes.

    All to all, queries, keys, values and outputs change places forward and backward (8 bytes a layer and hidden unit
    each way, where all heads have keys and values of their own); the part that stays is counted too. Round a ring, the
    keys and values of all others come by, and backward their gradients too. Checkpointing repeats what goes forward.

    Examples
    --------
    >>> seven_b = Attention(hidden=4096, heads=32, kv_heads=32, head_dim=128)
    >>> exchange_bytes(seven_b, 32, 8) / 2**20, exchange_bytes(seven_b, 32, 8, "ring") / 2**20
    (2.0, 10.5)
    """
    if exchange not in EXCHANGES:
        raise ArgumentError("exchange", f"be one of {', '.join(EXCHANGES)}", repr(exchange))
    if degree == 1:
        return 0
    if exchange == "ring":
        return (degree - 1) * _BYTES * layers * 2 * attention.kv_heads * attention.head_dim * (3 + checkpointing)
    heads = 2 * attention.heads + 2 * max(attention.kv_heads, degree)
    return _BYTES * layers * heads * attention.head_dim * (2 + checkpointing)
