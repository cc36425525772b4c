"""The check of a deferral, from scratch, with no code of the search or the bound: plain loops, exact numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from solvers.check import require, require_status
from solvers.deferral.types import MOST_STEPS, DeferralResult
from solvers.types import SolveStatus


@dataclass(frozen=True, slots=True)
class _Given:
    """What was asked for, in Python's numbers."""

    volumes: list[int]
    heights: list[int]
    tokens: list[int]
    counts: list[int]
    rows: list[int]
    spans: list[list[int]]
    num_bins: int
    least: list[list[int]]  # tokens and items of each step
    most: list[list[int]]
    whole: bool

    def pools(self) -> list[list[int]]:
        """Return the items that may run in each step."""
        found: list[list[int]] = [[] for _ in range(len(self.least[0]))]
        for i, row in enumerate(self.rows):
            for t in range(self.spans[row][0], self.spans[row][1] + 1):
                found[t].append(i)
        return found


def check_deferral(
    costs: ArrayLike,
    rows: ArrayLike,
    spans: ArrayLike,
    result: DeferralResult,
    *,
    num_bins: int,
    heights: ArrayLike | None = None,
    tokens: ArrayLike | None = None,
    token_limits: ArrayLike | None = None,
    count_limits: ArrayLike | None = None,
    sizes: ArrayLike | None = None,
    size_limits: ArrayLike | None = None,
    counts: ArrayLike | None = None,
) -> None:
    """Check steps against windows and limits, what they take at least, and the bound; return nothing if all holds.

    Parameters
    ----------
    costs, rows, spans, num_bins, heights, tokens, token_limits, count_limits, sizes, size_limits, counts
        As given to :func:`solvers.defer`.
    result : DeferralResult

    Raises
    ------
    CertificateError
        Naming the first violated rule.

    Notes
    -----
    The bound is recomputed from the result's multipliers alone. O(n D log n + T^2 D) in plain Python.

    Examples
    --------
    >>> from solvers.deferral.solver import defer
    >>> given = [9, 1, 2, 3, 9, 3], [0, 0, 0, 1, 1, 1], [[0, 1], [0, 1]]
    >>> check_deferral(*given, defer(*given, num_bins=2), num_bins=2)
    """
    volumes = _numbers(costs)
    span = [[int(a), int(b)] for a, b in np.asarray(spans).tolist()]
    steps = span[-1][1] + 1
    none = [0] * steps, [sum(volumes) + sum(_numbers(tokens)) + len(volumes) + sum(_numbers(counts))] * steps
    token_table, count_table = (none if limits is None else np.asarray(limits).tolist()
                                for limits in (token_limits, count_limits))  # fmt: skip
    given = _Given(
        volumes, volumes if heights is None else _numbers(heights),
        [1] * len(volumes) if tokens is None else _numbers(tokens),
        [1] * len(volumes) if counts is None else _numbers(counts), _numbers(rows), span, num_bins,
        [token_table[0], count_table[0]], [token_table[1], count_table[1]], heights is None,
    )  # fmt: skip
    _require_shapes(result, len(volumes), steps)
    step = result.step_of_item.tolist()
    _require_windows(given, step)
    _require_limits(given, step)
    for k, (size, limit) in enumerate(zip(_table(sizes), _table(size_limits), strict=True)):
        for t, held in enumerate(_sums(size, step, steps)):
            require(held <= limit[t], f"step {t} has {held} of quantity {k}, at most {limit[t]}")
    floors = [_floor(given, [i for i, s in enumerate(step) if s == t]) for t in range(steps)]
    require(floors == result.floors.tolist(), f"floors are {floors}, not {result.floors.tolist()}")
    require(sum(floors) == result.total, f"total is {sum(floors)}, not {result.total}")
    proven = -(-(sum(volumes) + _wasted(given, result)) // num_bins)
    require(result.lower_bound <= proven, f"lower_bound = {result.lower_bound}, but its multipliers prove {proven}")
    require(result.start_total >= result.total, f"start_total = {result.start_total} is below total = {result.total}")
    require_status(result.status, result.lower_bound, result.total, "total")


def _require_shapes(result: DeferralResult, items: int, steps: int) -> None:
    """Require arrays and numbers of the kinds that the result declares, before anything is computed with them."""
    for name, shape in (("step_of_item", (items,)), ("floors", (steps,)), ("multipliers", (2, steps))):
        array = getattr(result, name)
        fits = isinstance(array, np.ndarray) and array.shape == shape and np.issubdtype(array.dtype, np.integer)
        require(fits, f"{name} must be integers of shape {shape}")
    for name in ("total", "start_total", "lower_bound", "multiplier_bits"):
        number = getattr(result, name)
        require(type(number) is int and number >= 0, f"{name} must be an integer >= 0, got {number!r:.40}")
    require(result.bound_name in ("cover", "mean"), f"bound_name {result.bound_name!r:.40} is none of cover, mean")
    require(isinstance(result.status, SolveStatus), f"status must be a SolveStatus, got {result.status!r:.40}")


def _numbers(values: ArrayLike | None) -> list[int]:
    return [] if values is None else [int(value) for value in np.asarray(values).tolist()]


def _table(values: ArrayLike | None) -> list[list[int]]:
    return [] if values is None else [_numbers(row) for row in np.asarray(values)]


def _sums(amounts: Sequence[int], step: list[int], steps: int) -> list[int]:
    sums = [0] * steps
    for amount, t in zip(amounts, step, strict=True):
        sums[t] += amount
    return sums


def _require_windows(given: _Given, step: list[int]) -> None:
    require(len(step) == len(given.rows), f"{len(step)} items have a step, of {len(given.rows)}")
    for i, (t, row) in enumerate(zip(step, given.rows, strict=True)):
        first, last = given.spans[row]
        require(first <= t <= last, f"item {i} runs in step {t}, outside {first}..{last}")


def _require_limits(given: _Given, step: list[int]) -> None:
    for name, amounts, least, most in zip(
        ("tokens", "items"), (given.tokens, given.counts), given.least, given.most, strict=True
    ):
        for t, held in enumerate(_sums(amounts, step, len(least))):
            require(least[t] <= held <= most[t], f"step {t} has {held} {name}, not within {least[t]}..{most[t]}")


def _floor(given: _Given, items: list[int]) -> int:
    """Return what a step of these items takes at least, however they are packed."""
    tops = sorted((given.heights[i] for i in items), reverse=True)
    bins = given.num_bins
    pair = tops[bins - 1] + tops[bins] if given.whole and len(tops) > bins else 0
    return max(0, pair, *tops[:1], -(-sum(given.volumes[i] for i in items) // bins))


def _wasted(given: _Given, result: DeferralResult) -> int:
    """Return bin time that steps waste at least: the least over all ways in which steps hold every row's tallest."""
    tallest = [-1] * len(given.spans)
    for i, row in enumerate(given.rows):
        tallest[row] = max(tallest[row], given.heights[i])
    waste = [_waste_by_height(given, result, t, pool) for t, pool in enumerate(given.pools())]
    steps, total = len(waste), 0
    for begin in range(0, steps, MOST_STEPS):
        end = min(steps, begin + MOST_STEPS)
        inside = [r for r, (a, b) in enumerate(given.spans) if begin <= a and b < end and tallest[r] >= 0]
        total += _least_cover(given, waste, tallest, inside, (begin, end))
    return total


def _waste_by_height(given: _Given, result: DeferralResult, t: int, pool: list[int]) -> list[tuple[int, int]]:
    """Return pairs of a height, descending, and what the step wastes at least with an item so tall or taller."""
    token_price, item_price = result.multipliers[:, t].tolist()
    scale = 1 << result.multiplier_bits
    paid = token_price * given.most[0][t] + item_price * (given.most if item_price > 0 else given.least)[1][t]
    require(token_price >= 0, f"the multiplier of tokens of step {t} is negative")
    worth = {
        i: max(0, given.volumes[i] * scale - token_price * given.tokens[i] - item_price * given.counts[i]) for i in pool
    }
    order = sorted(pool, key=lambda i: -given.heights[i])
    filled, volume = paid + sum(worth.values()), sum(given.volumes[i] for i in pool)
    found: list[tuple[int, int]] = []
    for i in order:
        # With this item on top, those after it in order are what else there may be
        wasted = max(0, given.num_bins * given.heights[i] - min(filled // scale, volume))
        found.append((given.heights[i], min(wasted, found[-1][1]) if found else wasted))
        filled -= worth[i]
        volume -= given.volumes[i]
    return found


def _least_cover(
    given: _Given,
    waste: list[list[tuple[int, int]]],
    tallest: list[int],
    rows: list[int],
    block: tuple[int, int],
) -> int:
    """Return the least waste of steps of a block that hold the tallest item of all these rows."""
    asked = {}
    for r in rows:
        for t in range(given.spans[r][0], given.spans[r][1] + 1):
            asked[r, t] = min(w for height, w in waste[t] if height >= tallest[r])
    begin, end = block
    best: dict[tuple[int, int], int] = {}
    for low in range(end, begin - 1, -1):
        for high in range(low, end + 1):
            within = [r for r in rows if given.spans[r][0] >= low and given.spans[r][1] < high]
            if not within:
                best[low, high] = 0
                continue
            top = max(within, key=lambda r: tallest[r])
            best[low, high] = min(
                asked[top, t] + best[low, t] + best[t + 1, high]
                for t in range(given.spans[top][0], given.spans[top][1] + 1)
            )
    return best[begin, end]
