"""The check of context shards, from scratch: masks query by query, with no code of the search or its counts.

Bounds are computed again for the caps that the result states; the tests derive them a second time, key by key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers.check import require, require_status
from solvers.context._problem import Problem, as_problem
from solvers.context.bounds import levels_of, travel_bound
from solvers.context.types import ContextShardsResult
from solvers.types import SolveStatus

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Mask:
    """What each query of each document sees; its work is the difference."""

    low: list[Ints]
    high: list[Ints]
    kind: str
    size: int

    @property
    def work(self) -> list[Ints]:
        return [b - a for a, b in zip(self.low, self.high, strict=True)]


def _mask(name: str | None, lengths: list[int], padded: bool) -> _Mask:
    found = re.fullmatch("([a-z]+)([0-9]*)", name or "padding0")
    kind, size = found[1], int(found[2] or 0)  # type: ignore[index]  # the solver took the name
    low, high = [], []
    for d, length in enumerate(lengths):
        i = np.arange(length)
        if padded and d == len(lengths) - 1:
            low.append(i)
            high.append(i)  # computed by nobody; that they see themselves changes nothing that travels
            continue
        low.append({"window": np.maximum(0, i - size + 1), "chunk": i - i % max(1, size)}.get(kind, 0 * i))
        high.append(i + 1)
    return _Mask(low, high, kind, size)


def check_context_shards(
    lengths: ArrayLike,
    result: ContextShardsResult,
    *,
    num_ranks: int,
    ranks_per_node: int | None = None,
    eps: Fraction | float | str = "0.02",
    block: int | None = None,
    masks: Mapping[str, int] | None = None,
    token_slack: int = 0,
    pad: bool = False,
    max_rows_held: int | None = None,
) -> None:
    """Check rows, what they compute, receive and send, and the bounds; return nothing if all holds.

    Parameters
    ----------
    lengths, num_ranks, ranks_per_node, eps, block, masks, token_slack, pad, max_rows_held
        As given to :func:`solvers.context_shards`.
    result : ContextShardsResult

    Raises
    ------
    CertificateError
        Naming the first violated rule.

    Notes
    -----
    O(T g) for counts, and a bisection for each long document and number of ranks for bounds, in NumPy and Python.

    Examples
    --------
    >>> from solvers.context.solver import context_shards
    >>> check_context_shards([700, 324], context_shards([700, 324], 2), num_ranks=2)
    """
    given = [int(length) for length in np.asarray(lengths).tolist()]
    padded = pad and sum(given) % num_ranks != 0
    if padded:
        given.append(-sum(given) % num_ranks)
    total, named = sum(given), {"full": 1} if masks is None else masks
    least, most = max(0, -(-total // num_ranks) - token_slack), total // num_ranks + token_slack
    owners = _owners(given, result, num_ranks)
    held = np.bincount(np.concatenate(owners), minlength=num_ranks)
    for r, tokens in enumerate(held.tolist()):
        require(least <= tokens <= most, f"rank {r} has {tokens} tokens, not within {least}..{most}")
    if block is None:  # 128, or less where ranks have fewer than 16 such blocks
        block = max(1, min(128, 1 << (total // (16 * num_ranks)).bit_length() >> 1))
    off = sum(int(((np.flatnonzero(np.diff(owner)) + 1) % block > 0).sum()) for owner in owners)
    require(off < num_ranks, f"{off} cuts are off the grid of {block}, more than {num_ranks - 1}")
    require(list(result.weights) == list(named.values()), f"weights are {list(result.weights)}, not those of the masks")
    kinds = [_mask(name, given, padded) for name in named]
    node = num_ranks if ranks_per_node is None else ranks_per_node
    crossing = 0
    for k, mask in enumerate(kinds):
        work, received, sent = _counted(mask, owners, num_ranks)
        for name, found in (("work", work), ("received", received), ("sent", sent)):
            same = np.array_equal(getattr(result, name)[k], found)
            require(same, f"{name}[{k}] is {getattr(result, name)[k].tolist()}, not {found.tolist()}")
        over = [owner // node for owner in owners]
        crossing += int(result.weights[k]) * int(_counted(mask, over, num_ranks // node)[1].sum())
    require(result.crossing == crossing, f"crossing is {result.crossing}, not {crossing}")
    ranges = np.bincount(result.rank, minlength=num_ranks)
    require(np.array_equal(result.ranges, ranges), f"ranges are {result.ranges.tolist()}, not {ranges.tolist()}")
    total_received = int((result.weights @ result.received).sum())
    require(result.total_received == total_received, f"total_received is {result.total_received}, not {total_received}")
    rows = int(result.received.max(axis=0).max()) + total // num_ranks
    require(result.max_rows_held == rows, f"max_rows_held is {result.max_rows_held}, not {rows}")
    require(
        max_rows_held is None or int((result.received + held).max()) <= max_rows_held, "max_rows_held is not kept to"
    )
    problem = as_problem(lengths, num_ranks, ranks_per_node, block, masks, token_slack, pad)
    _require_bounds(problem, result, kinds, Fraction(str(eps)))


def _owners(lengths: list[int], result: ContextShardsResult, num_ranks: int) -> list[Ints]:
    """Return the rank of every position, once the rows are known to hold each once, in order."""
    owners = [np.full(length, -1, dtype=np.int64) for length in lengths]
    rows = list(zip(*(x.tolist() for x in (result.rank, result.document, result.start, result.stop)), strict=True))
    for before, (r, d, start, stop) in zip([None, *rows], rows, strict=False):
        require(0 <= r < num_ranks and 0 <= d < len(lengths), f"there is no rank {r} or no document {d}")
        require(0 <= start < stop <= lengths[d], f"no positions {start} to {stop} are of document {d}")
        if before is not None:
            ordered = (before[0], before[1], before[3]) < (r, d, start)
            require(ordered, f"row {before} must come before {(r, d, start, stop)} and not touch it")
        require(bool((owners[d][start:stop] == -1).all()), f"positions of document {d} are held twice")
        owners[d][start:stop] = r
    for d, owner in enumerate(owners):
        require(bool((owner >= 0).all()), f"positions of document {d} are held by no rank")
    return owners


def _counted(mask: _Mask, owners: list[Ints], ranks: int) -> tuple[Ints, Ints, Ints]:
    """Return the work, the rows received and those sent of each rank, key by key."""
    work, received, sent = (np.zeros(ranks, dtype=np.int64) for _ in range(3))
    for low, high, owner in zip(mask.low, mask.high, owners, strict=True):
        np.add.at(work, owner, high - low)
        for r in np.unique(owner).tolist():
            ends = np.zeros(len(owner) + 1, dtype=np.int64)
            np.add.at(ends, low[owner == r], 1)
            np.add.at(ends, high[owner == r], -1)
            # Key by key: how many of the rank's queries see it, by where their intervals begin and end.
            needed = (np.cumsum(ends)[:-1] > 0) & (owner != r)
            received[r] += int(needed.sum())
            np.add.at(sent, owner[needed], 1)
    return work, received, sent


def _require_bounds(problem: Problem, result: ContextShardsResult, masks: list[_Mask], eps: Fraction) -> None:
    g = problem.num_ranks
    caps, even = [int(cap) for cap in result.caps], True
    for k, mask in enumerate(masks):
        total = sum(int(each.sum()) for each in mask.work)
        largest = max(int(each.max()) for each in mask.work)
        proven, asked = max(-(-total // g), largest), max(-(-total // g), int((1 + eps) * total / g))
        require(result.bound_work[k] == proven, f"bound_work[{k}] is {result.bound_work[k]}, not {proven}")
        allowed = max(asked, int(result.work[k].max()))
        require(caps[k] == allowed, f"caps[{k}] is {caps[k]}, not {allowed}")
        even &= allowed <= max(asked, proven)
    levels = levels_of(problem)
    least, name = travel_bound(problem, result.caps, levels)
    require(result.lower_bound == least, f"lower_bound is {result.lower_bound}, not {least}")
    require(result.bound_name == name, f"bound_name is {result.bound_name!r:.40}, not {name!r}")
    require(result.lower_bound <= result.total_received, "lower_bound exceeds total_received")
    if even:
        require_status(result.status, result.lower_bound, result.total_received, "total_received")
    else:
        require(result.status is SolveStatus.FEASIBLE, f"status is {result.status.value}, but work is not even")
    crossing = travel_bound(problem, result.caps, levels, nodes=True)[0] if result.crossing else 0
    require(result.bound_crossing == crossing, f"bound_crossing is {result.bound_crossing}, not {crossing}")
