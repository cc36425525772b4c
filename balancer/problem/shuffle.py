"""The order of an epoch: a keyed permutation of row numbers, of which any part is computed by itself.

The definition is fixed for ever, because plan files and checkpoints name a seed and not an order. All numbers are
unsigned with 64 bits, and sums and products wrap:

- ``mix(x)`` is the finaliser of SplitMix64: ``x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9``, then ``x = (x ^ x >> 27) *
  0x94D049BB133111EB``, then ``x ^ x >> 31``; with ``g = 0x9E3779B97F4A7C15``,
- the keys of the 8 rounds are ``key[r] = mix(k + (r + 1) * g)`` where ``k = mix(mix(seed + g) + (epoch + 1) * g)``,
- ``w`` is the smallest number >= 1 with ``4**w >= n``, and a number below ``4**w`` is two halves of w bits,
- a round makes of ``(left, right)`` the halves ``(right, left ^ (mix(right + key[r]) mod 2**w))``, which is a Feistel
  network and so a permutation of the numbers below ``4**w``,
- the row at a position is what the 8 rounds make of it, taken through them again while that is >= n.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers.arguments import as_integer

_ROUNDS = 8
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


def shuffled(positions: ArrayLike, num_rows: int, seed: int, epoch: int = 0) -> NDArray[np.int64]:
    """Return the rows that stand at `positions` of an epoch's order; memory is that of the positions.

    Over all positions, from 0, they are a permutation of 0..num_rows - 1. Each pair of seed and epoch, both at least 0,
    has an order of its own.

    Examples
    --------
    >>> shuffled(range(8), 8, seed=0), shuffled([1], 8, seed=0, epoch=1)
    (array([3, 6, 5, 2, 4, 0, 7, 1]), array([3]))
    """
    return _walked(positions, num_rows, seed, epoch, _permuted)


def unshuffled(rows: ArrayLike, num_rows: int, seed: int, epoch: int = 0) -> NDArray[np.int64]:
    """Return the positions at which `rows` stand in an epoch's order: the inverse of :func:`shuffled`.

    Examples
    --------
    >>> unshuffled([3, 6, 5, 2, 4, 0, 7, 1], 8, seed=0)
    array([0, 1, 2, 3, 4, 5, 6, 7])
    """
    return _walked(rows, num_rows, seed, epoch, _permuted_back)


def _walked(numbers: ArrayLike, num_rows: int, seed: int, epoch: int, permuted: Any) -> NDArray[np.int64]:
    """Permute numbers below ``4**w``, again while they are no rows."""
    num_rows, seed, epoch = as_integer("num_rows", num_rows, 1), as_integer("seed", seed), as_integer("epoch", epoch)
    found = np.asarray(numbers, dtype=np.int64).astype(np.uint64)
    # 4**width is at most 4 times the rows, so few numbers are walked often.
    width = max(1, (int(num_rows - 1).bit_length() + 1) // 2)
    base = _mix(_mix(seed + _GOLDEN) + (epoch + 1) * _GOLDEN)
    keys = [np.uint64(_mix(base + (index + 1) * _GOLDEN)) for index in range(_ROUNDS)]
    found = permuted(found, width, keys)
    # A permutation of a larger range, walked on until it comes back to a row, permutes the rows alone.
    while len(outside := np.flatnonzero(found >= num_rows)):
        found[outside] = permuted(found[outside], width, keys)
    numbered: NDArray[np.int64] = found.astype(np.int64)
    return numbered


def _permuted(numbers: NDArray[np.uint64], width: int, keys: list[np.uint64]) -> NDArray[np.uint64]:
    shift, low = np.uint64(width), np.uint64(2**width - 1)
    left, right = numbers >> shift, numbers & low
    for key in keys:
        left, right = right, left ^ (_mixed(right + key) & low)
    return (left << shift) | right


def _permuted_back(numbers: NDArray[np.uint64], width: int, keys: list[np.uint64]) -> NDArray[np.uint64]:
    shift, low = np.uint64(width), np.uint64(2**width - 1)
    left, right = numbers >> shift, numbers & low
    for key in reversed(keys):
        left, right = right ^ (_mixed(left + key) & low), left
    return (left << shift) | right


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return `mix` of every number; arrays wrap silently, as the definition wants."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _mix(x: int) -> int:
    return int(_mixed(np.array([x & _MASK], dtype=np.uint64))[0])
