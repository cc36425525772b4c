"""Masks of attention: which keys a query sees, what its document's first queries compute, and their names.

Of every mask here a query sees an interval of keys that ends with its own, and whose first never falls from a query to
the next. So what a rank must have for several queries that stand together is one interval as well, and all counts are
closed forms.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper
from solvers.errors import ArgumentError, ArgumentTypeError

FULL, WINDOW, CHUNK, PADDING = range(4)
"""Kinds of masks. Padding is a document that nobody computes: its queries have no work and see but themselves."""

_KINDS = {"full": FULL, "window": WINDOW, "chunk": CHUNK}
# Kinds whose names may end in a number.
_SIZED = ("window", "chunk")
# Layers whose state runs along the sequence, or whose keys are chosen, by how their names begin: no interval of keys is
# what a query of theirs sees.
_STATE = ("mamba", "linear", "conv", "convolution", "compressed", "recurrent", "ssm", "delta", "rwkv", "topk")
# Above every length (_problem.MOST_TOKENS), and a product of two sizes still fits int64.
_LARGEST_SIZE = 2**31 - 1


class Masks(NamedTuple):
    """The masks of all documents, of one kind of layer after another."""

    kinds: NDArray[np.int64]  # int64[m, n]
    sizes: NDArray[np.int64]  # int64[m, n]: the window or the chunk; else 0
    weights: NDArray[np.int64]  # int64[m]: layers of this kind


@helper
def sees_from(kind, size, i):
    """The first key that query `i` sees."""
    if kind == WINDOW:
        return max(0, i - size + 1)
    if kind == CHUNK:
        return i // size * size
    return i if kind == PADDING else 0


@helper
def triangle(x):
    """Return x (x + 1) / 2."""
    return x * (x + 1) // 2


@helper
def work_before(kind, size, x):
    """Pairs of query and key of the first `x` queries of a document."""
    if kind == FULL:
        return triangle(x)
    if kind == WINDOW:
        m = min(x, size)
        return triangle(m) + (x - m) * size
    if kind == CHUNK:
        return x // size * triangle(size) + triangle(x % size)
    return 0 * x


def as_masks(masks: Mapping[str, int] | None, num_documents: int) -> Masks:
    """Check masks by name, each with the number of layers that have it; by default full causal attention.

    Raises
    ------
    ArgumentTypeError, ArgumentError
        An unknown mask, a layer whose state runs along the sequence, a size or number of layers below 1.
    """
    given = {"full": 1} if masks is None else masks
    if not isinstance(given, Mapping):
        raise ArgumentTypeError("masks", "be names of masks, each with a number of layers", repr(given))
    if not given:
        raise ArgumentError("masks", "name a mask at least", "none", remedy="'full' with 1 layer is causal attention")
    kinds, sizes, weights = [], [], []
    for name, layers in given.items():
        if not isinstance(layers, int | np.integer) or isinstance(layers, bool) or not 1 <= layers < 2**20:
            raise ArgumentError("masks", f"have a number of layers >= 1 and < {2**20}", repr(layers), index=repr(name))
        kind, size = _named(name)
        kinds.append(np.full(num_documents, kind))
        sizes.append(np.full(num_documents, size))
        weights.append(int(layers))
    return Masks(np.array(kinds, dtype=np.int64), np.array(sizes, dtype=np.int64), np.array(weights, dtype=np.int64))


def _named(name: object) -> tuple[int, int]:
    if isinstance(name, str) and name.lower().startswith(_STATE):
        raise ArgumentError(
            "masks", "be attention by position: its state runs along the sequence, or its keys are chosen or condensed",
            repr(name), remedy="shard such layers another way",
        )  # fmt: skip
    found = re.fullmatch("([a-z]+)(0|[1-9][0-9]*)?", name) if isinstance(name, str) else None
    if found is not None and (found[1] in _KINDS) and (found[1] in _SIZED) == bool(found[2]):
        size = int(found[2] or 0)
        if found[2] and not 1 <= size <= _LARGEST_SIZE:
            raise ArgumentError("masks", f"have a size of 1 to {_LARGEST_SIZE}, as in {found[1]}1024", repr(name))
        return _KINDS[found[1]], size
    raise ArgumentError("masks", "be full, windowN or chunkN", repr(name))
