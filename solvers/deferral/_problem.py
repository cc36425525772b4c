"""Items, their windows and the limits of steps, checked once and put in the order of their rows."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solvers.arguments import as_costs, as_count, as_int64
from solvers.errors import ArgumentError, UsageError
from solvers.groups import read_only

Ints = NDArray[np.int64]

UNLIMITED = 2**62
"""Stands for no limit: sums of what is limited stay below it."""

VOLUME, TOKENS, ITEMS = 0, 1, 2
"""Columns of weights and limits; those of further quantities come behind."""


class Problem(NamedTuple):
    """What kernels read: items row by row, all arrays read-only."""

    heights: Ints  # int64[n]: the least makespan of a step that an item is in
    # int64[n, 3 + q]: volume (work, of which a bin holds a makespan at most), tokens, count and what else is limited,
    # side by side, as whatever moves an item moves all of it
    weights: Ints
    rows: Ints  # int64[n], ascending: items of one row have one window
    start: Ints  # int64[n]: the step of each item before the search
    row_starts: Ints  # int64[R + 1]: where rows begin
    first: Ints  # int64[R], non-decreasing: first step of a row's window
    last: Ints  # int64[R], non-decreasing: its last step
    least: Ints  # int64[T, 3 + q]: what a step has of each at least
    most: Ints  # int64[T, 3 + q]: and at most
    num_bins: int
    whole: int  # 1 if items are whole, so that two of num_bins + 1 share a bin; 0 if they may be spread over bins

    @property
    def num_steps(self) -> int:
        """T."""
        return len(self.most)

    @property
    def volumes(self) -> Ints:
        """int64[n]."""
        return self.weights[:, VOLUME]

    @property
    def tokens(self) -> Ints:
        """int64[n]."""
        return self.weights[:, TOKENS]

    @property
    def counts(self) -> Ints:
        """int64[n]."""
        return self.weights[:, ITEMS]


class Given(NamedTuple):
    """A problem, and where its items stand among the caller's."""

    problem: Problem
    order: Ints  # int64[n]: items in the order of rows

    def in_order_given(self, values: Ints) -> Ints:
        """Return values of the problem's items in the order in which the caller gave them."""
        found = np.empty_like(values)
        found[self.order] = values
        return found


def windows(num_steps: int, early: int, late: int, stages: ArrayLike | None = None) -> Ints:
    """Return the first and the last step of each nominal step's items: int64[T, 2].

    Parameters
    ----------
    num_steps : int
        T.
    early, late : int
        Steps that an item may run before and after its nominal step; of the first and the last steps fewer.
    stages : int64[T], optional
        The stage of each nominal step, non-decreasing: no window leaves its stage.

    Examples
    --------
    >>> windows(4, 1, 2).tolist()
    [[0, 2], [0, 3], [1, 3], [2, 3]]
    >>> windows(4, 1, 2, stages=[0, 0, 1, 1]).tolist()
    [[0, 1], [0, 1], [2, 3], [2, 3]]
    """
    steps = np.arange(as_count("num_steps", num_steps))
    early, late = as_count("early", early, 0), as_count("late", late, 0)
    begins, ends = np.zeros_like(steps), np.full_like(steps, num_steps - 1)
    if stages is not None:
        stage = as_int64("stages", stages)
        if len(stage) != num_steps or (np.diff(stage) < 0).any():
            raise ArgumentError("stages", f"be {num_steps} numbers, none smaller than the one before", stage.tolist())
        begins = np.searchsorted(stage, stage, side="left")
        ends = np.searchsorted(stage, stage, side="right") - 1
    return np.stack([np.maximum(steps - early, begins), np.minimum(steps + late, ends)], axis=1)


def as_given(
    costs: ArrayLike,
    rows: ArrayLike,
    spans: ArrayLike,
    num_bins: int,
    start: ArrayLike | None,
    heights: ArrayLike | None,
    amounts: tuple[ArrayLike | None, ArrayLike | None, ArrayLike | None],
    limits: tuple[ArrayLike | None, ArrayLike | None, ArrayLike | None],
) -> Given:
    """Check arguments as :func:`solvers.defer` has them. `amounts` are tokens, counts and sizes."""
    volumes, _, _ = as_costs(costs)
    n = len(volumes)
    span, num_steps = _as_spans(spans)
    row = _as_long("rows", rows, n, len(span))
    begin = row if start is None else _as_long("start", start, n, num_steps)
    outside = (begin < span[row, 0]) | (begin > span[row, 1])
    if outside.any():
        i = int(np.argmax(outside))
        raise ArgumentError("start", f"be within the window {span[row[i]].tolist()} of its row", int(begin[i]), i)
    tall = volumes if heights is None else _as_amounts("heights", heights, n)
    bins = as_count("num_bins", num_bins)
    if bins * num_steps * max(1, int(tall.max(initial=0))) >= UNLIMITED or int(volumes.sum()) >= UNLIMITED:
        raise UsageError("the largest of {heights} times {num_bins} and steps, and the sum of {costs}, must be < 2**62")
    if amounts[0] is None and limits[0] is not None:
        raise UsageError("{token_limits} needs {tokens}")
    ones = np.ones(n, dtype=np.int64)
    tokens = ones if amounts[0] is None else _as_amounts("tokens", amounts[0], n)
    counted = ones if amounts[1] is None else _as_amounts("counts", amounts[1], n)
    sizes, most_sizes = _as_sizes(amounts[2], limits[2], n, num_steps)
    weights = np.stack([volumes, tokens, counted, *sizes], axis=1)
    least, most = (
        np.zeros((num_steps, weights.shape[1]), dtype=np.int64),
        np.full_like(weights, UNLIMITED, shape=(num_steps, weights.shape[1])),
    )
    most[:, ITEMS + 1 :] = most_sizes.T
    for k, name in ((TOKENS, "token_limits"), (ITEMS, "count_limits")):
        if (table := limits[k - TOKENS]) is not None:
            least[:, k], most[:, k] = _as_table(name, table, 2, num_steps)
    order = np.argsort(row, kind="stable")
    tall, row, begin = (read_only(np.ascontiguousarray(each[order])) for each in (tall, row, begin))
    starts = np.searchsorted(row, np.arange(len(span) + 1))
    first, last = (read_only(np.ascontiguousarray(span[:, k])) for k in range(2))
    problem = Problem(
        tall, read_only(weights[order]), row, begin, read_only(starts), first, last, read_only(least),
        read_only(most), bins, int(heights is None),
    )  # fmt: skip
    _check_start(problem)
    return Given(problem, order)


def _as_spans(spans: ArrayLike) -> tuple[Ints, int]:
    table = np.asarray(spans)
    if table.ndim != 2 or table.shape[1] != 2 or not len(table):
        raise ArgumentError("spans", "be int64[R, 2] with R >= 1", f"shape {table.shape}")
    span = as_int64("spans", table.ravel()).reshape(-1, 2)
    wrong = (span[:, 0] < 0) | (span[:, 0] > span[:, 1])
    wrong[1:] |= (np.diff(span, axis=0) < 0).any(axis=1)
    if wrong.any():
        r = int(np.argmax(wrong))
        raise ArgumentError("spans", "be 0 <= first <= last, neither smaller than of the row before", span[r].tolist())
    return span, int(span[-1, 1]) + 1


def _as_long(name: str, values: ArrayLike, n: int, below: int) -> Ints:
    array = as_int64(name, values)
    if len(array) != n:
        raise ArgumentError(name, f"be one for each of {n} {{items}}", len(array))
    wrong = (array < 0) | (array >= below)
    if wrong.any():
        i = int(np.argmax(wrong))
        raise ArgumentError(name, f"be within 0..{below - 1}", int(array[i]), i)
    return array


def _as_amounts(name: str, values: ArrayLike, n: int) -> Ints:
    array, _, total = as_costs(values, name)
    if len(array) != n:
        raise ArgumentError(name, f"be one for each of {n} {{items}}", len(array))
    if total >= UNLIMITED and name != "heights":
        raise ArgumentError(name, "sum up to less than 2**62", total)
    return array


def _as_sizes(sizes: ArrayLike | None, limits: ArrayLike | None, n: int, num_steps: int) -> tuple[Ints, Ints]:
    if (sizes is None) != (limits is None):
        raise UsageError("{sizes} and {size_limits} need each other")
    if sizes is None or limits is None:
        return np.zeros((0, n), dtype=np.int64), np.zeros((0, num_steps), dtype=np.int64)
    table = np.stack([_as_amounts("sizes", each, n) for each in np.asarray(sizes)])
    return table, _as_table("size_limits", limits, len(table), num_steps)


def _as_table(name: str, values: ArrayLike | None, height: int, num_steps: int) -> Ints:
    table = np.asarray(values)
    if table.shape != (height, num_steps):
        raise ArgumentError(name, f"be int64[{height}, {num_steps}]", f"shape {table.shape}")
    return np.minimum(as_int64(name, table.ravel()), UNLIMITED).reshape(height, num_steps)


def _check_start(problem: Problem) -> None:
    """Raise unless the steps to begin with keep all limits: the search never leaves what does."""
    sums = sums_of(problem, problem.start)
    wrong = (sums < problem.least) | (sums > problem.most)
    if wrong.any():
        t, k = (int(index[0]) for index in np.nonzero(wrong))
        name = ("costs", "token_limits", "count_limits", "size_limits")[min(k, ITEMS + 1)]
        rule = f"hold what a step has before the search, {int(sums[t, k])}"
        raise ArgumentError(name, rule, [int(problem.least[t, k]), int(problem.most[t, k])], t)


def sums_of(problem: Problem, step: Ints) -> Ints:
    """Return what each step has of each quantity: int64[T, 3 + q]."""
    sums = np.zeros_like(problem.most)
    np.add.at(sums, step, problem.weights)
    return sums


def bin_times(volumes: Ints, heights: Ints, step: Ints, num_steps: int, num_bins: int, whole: int) -> Ints:
    """Return what all bins of each step take together at least, idle time included: int64[T]. O(n log n)."""
    times = np.zeros(num_steps, dtype=np.int64)
    np.add.at(times, step, volumes)
    order = np.lexsort((-heights, step))
    falling, begins = heights[order], np.searchsorted(step[order], np.arange(num_steps + 1))
    filled = np.flatnonzero(begins[:-1] < begins[1:])
    times[filled] = np.maximum(times[filled], num_bins * falling[begins[filled]])
    if whole:
        crowded = np.flatnonzero(begins[1:] - begins[:-1] > num_bins)
        pair = falling[begins[crowded] + num_bins - 1] + falling[begins[crowded] + num_bins]
        times[crowded] = np.maximum(times[crowded], num_bins * pair)
    return times
