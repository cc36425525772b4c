"""Terms of a cost, by name: of attention the area of its mask, which is how many pairs of query and key that keeps.

Every formula is of whole numbers, never falls with l, and is 0 at 0. It takes Python integers of any size, and arrays
of int64 (which hold what is formed on the way wherever they hold the area), so that there is one formula to check.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers.errors import ArgumentError, ArgumentTypeError

Terms = tuple[tuple[str, int], ...]
"""Names of areas and what a pair of each takes, in the order of :data:`AREAS`, then by size; no name twice, no 0."""

_LARGEST_SIZE = 2**31 - 1  # its square fits int64


def _least(length: Any, size: Any) -> Any:
    return length - (length - size) * (length > size)


def _triangle(x: Any) -> Any:
    """Return x (x + 1) / 2, halving the even factor first so that nothing larger than the result is formed."""
    return (x + 1) // 2 * (x + 1 - x % 2)


def _window(length: Any, w: int) -> Any:
    m = _least(length, w)
    return _triangle(m) + (length - m) * w


def _chunk(length: Any, w: int) -> Any:
    return length // w * _triangle(w) + _triangle(length % w)


def _blocks(length: Any, w: int) -> Any:
    rest = length % w
    return length // w * (w * w) + rest * rest


def _band(length: Any, w: int) -> Any:
    v = _least(length - 1, w)
    return length + v * (2 * length - v - 1)


def _prefix(length: Any, p: int) -> Any:
    m = _least(length, p)
    return _triangle(length) - _triangle(m) + m * m


def _compressed(length: Any, r: int) -> Any:
    k = (length + 1) // r
    return r * _triangle(k - 1) + k * (length + 1 - k * r)


AREAS: dict[str, tuple[str, Callable[[Any, int], Any]]] = {
    "full": ("query i sees the keys 0 to i", lambda length, _: _triangle(length)),
    "bidirectional": ("every query sees every key", lambda length, _: length * length),
    "window": ("the last w of the keys 0 to i", _window),
    "chunk": ("the keys 0 to i in chunks of w, each by itself", _chunk),
    "blocks": ("blocks of w, each bidirectional by itself", _blocks),
    "band": ("keys at most w away, before and behind", _band),
    "prefix": ("the keys 0 to i, and all of the first P; without a number P is each sample's own", _prefix),
    "topk": ("K chosen ones of the keys 0 to i, all while there are fewer", _window),
    "compressed": ("one key for every R of the keys 0 to i", _compressed),
}
"""Masks by name: what a query sees, and the area by length and size. Those but the first two have a size of tokens."""

_UNSIZED = ("full", "bidirectional")
OWN_PREFIX = "prefix"
"""The one mask whose size is each sample's own: how many of its tokens, from the first, see each other."""
_FORMS = ", ".join([*(name if name in _UNSIZED else f"{name}N" for name in AREAS), OWN_PREFIX])


def checked(name: str) -> tuple[str, int]:
    """Return the kind and the size (0 if it has none) that the name of an area says.

    Raises
    ------
    ArgumentError
        An unknown name (the known ones are listed), or a size that is not from 1 to 2^31 - 1.

    Examples
    --------
    >>> checked("window1024"), checked("full")
    (('window', 1024), ('full', 0))
    """
    found = re.fullmatch("([a-z]+)([0-9]*)", name) if isinstance(name, str) else None
    if name == OWN_PREFIX:
        return OWN_PREFIX, 0
    if found is None or found[1] not in AREAS or (found[1] in _UNSIZED) != (not found[2]):
        raise ArgumentError("areas", f"be named {_FORMS}, where N is a whole number", repr(name))
    size = int(found[2] or 0)
    if found[1] not in _UNSIZED and (not 1 <= size <= _LARGEST_SIZE or found[2][0] == "0"):
        raise ArgumentError("areas", f"have a size of 1 to {_LARGEST_SIZE}, as in {found[1]}1024", repr(name))
    return found[1], size


def area(name: str, lengths: Any, prefixes: Any = 0) -> Any:
    """Pairs that the mask of this name keeps of a sample of each length: an int, or int64[n].

    `prefixes` are the samples' own, of :data:`OWN_PREFIX`; 0 is a causal mask, the least there is.
    """
    kind, size = checked(name)
    return AREAS[kind][1](lengths, prefixes if name == OWN_PREFIX else size)


def as_terms(given: Mapping[str, int] | Iterable[tuple[str, int]]) -> Terms:
    """Return areas in one order, without those that cost nothing; ArgumentError names what is wrong."""
    listed = list(given.items()) if isinstance(given, Mapping) else given
    if not isinstance(listed, list | tuple) or not all(
        isinstance(each, list | tuple) and len(each) == 2 for each in listed
    ):
        raise ArgumentTypeError("areas", "map names of masks to work units a pair", repr(given))
    names = [name for name, _ in listed]
    for i, (name, value) in enumerate(listed):
        checked(name)
        if name in names[:i]:
            raise ArgumentError("areas", "have each name once", f"{name!r} twice")
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 0:
            raise ArgumentError(f"areas[{name!r}]", "be an integer >= 0", repr(value))
    # One order for all: equal costs must be equal as text, which plan files and digests hold.
    order = {kind: place for place, kind in enumerate(AREAS)}
    kept = [(name, int(value)) for name, value in listed if value]
    return tuple(sorted(kept, key=lambda term: (order[checked(term[0])[0]], checked(term[0])[1])))


def amount(name: str, lengths: Any, prefixes: Any = 0) -> Any:
    """How much of a term of a cost a sample of each length has: an int, or int64[n], which the caller knows to hold it.

    ``constant`` is once a sample that is not empty, ``a`` a unit of length, ``b`` one squared; other names are those of
    masks.
    """
    if name == "constant":
        return 1 * (lengths > 0)
    if name == "a":
        return lengths
    return lengths * lengths if name == "b" else area(name, lengths, prefixes)


def term_sums(names: Iterable[str], lengths: ArrayLike) -> NDArray[np.float64]:
    """How much of each term samples of these lengths have together, and of ``c0`` once: float64[k].

    Examples
    --------
    >>> term_sums(["c0", "constant", "a", "b", "window2"], [3, 0, 1]).tolist()
    [1.0, 2.0, 4.0, 10.0, 6.0]
    """
    values = np.asarray(lengths, dtype=np.float64)
    return np.array([1.0 if name == "c0" else amount(name, values).sum() for name in names], dtype=np.float64)


def largest_rate(name: str, longest: int) -> Fraction:
    """Most of a term a token that any sample up to `longest` has: the first, the longest, or one that fills a chunk."""
    size = 0 if name in ("constant", "a", "b") else checked(name)[1]
    own = longest if name == OWN_PREFIX else 0
    # In chunks and blocks the rate falls again behind each one that is full, so the longest need not have the largest.
    return max(Fraction(int(amount(name, each, own)), each) for each in (1, longest, min(size, longest) or longest))
