"""Which keys the rows of a layout see: what an exchange must bring, and what a mask is made of."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers.context._problem import as_problem, parts_of

Ints = NDArray[np.int64]


def keys_seen(
    lengths: ArrayLike,
    document: ArrayLike,
    start: ArrayLike,
    stop: ArrayLike,
    *,
    masks: Mapping[str, int] | None = None,
) -> Ints:
    """Return the first key that parts of documents see, of their own document; the last is that of their last query.

    Parameters
    ----------
    lengths, masks
        As :func:`solvers.context_shards` has them, padding left out.
    document, start, stop : int64[p]
        Positions ``start[i]`` to ``stop[i] - 1`` of a document, one at least.

    Returns
    -------
    int64[masks, p]

    Notes
    -----
    O(p) a mask.

    Examples
    --------
    >>> keys_seen([8], [0], [4], [6], masks={"full": 1, "window3": 1}).tolist()
    [[0], [2]]
    """
    problem = as_problem(lengths, 1, None, 1, masks, 0, False)
    return parts_of(problem, *(np.ascontiguousarray(each, dtype=np.int64) for each in (document, start, stop))).low
