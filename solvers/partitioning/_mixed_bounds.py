"""Lower bounds for mixed costs, where a group S costs sum(u in S) + |S| * max(g in S).

Every item costs at least u + g wherever it is, so what holds for additive costs u + g holds here. Two bounds more, both
by bisection: B is refuted where a relaxation of "all loads are at most B" has no solution.

``cover``: a group whose longest row costs G and that holds k items weighs at least k G and the k smallest u. That
allows it k(G) items at most, and k(G) only rises as G falls. So the argument of padded rows holds
(:mod:`solvers.partitioning.padded`): runs of the sorted items, each as long as allowed, need the fewest groups.

``prefix``: let s_1 < s_2 < ... be where, in the sorted order, the longest items of the groups stand. The items before
s_(j+1) all lie in the first j groups, and the one at position i in a group whose row costs at least that of the last
s at or before i. So the sorted items cut at s_1, s_2, ... into runs, each padded to its first item, must weigh at most
j B up to every s_(j+1), and at most m B in all. Which cuts weigh least is a shortest path with j edges.

With equal counts, two more. ``row_filler``: the longest item's group holds floor(n/m) items at least, each padded to
it, and weighs at least the smallest u besides. ``even_runs``: the j groups with the longest rows hold no more than the
j largest counts, so the next group's longest row is no shorter than the row after that many in sorted order; floor(n/m)
times all of these rows, and the n mod m shortest of them once more, is padding that no one avoids.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers.arguments import INT64_MAX
from solvers.bounds import Bound

# The prefix bound is found to about a millionth of the mean load, as gaps are counted in ppm.
_PRECISION_BITS = 20
# Work units of a block, in one run, in all steps of the bisection; measured.
_WORK_OF_BLOCK = 10
# Blocks for each group: more gain little. Where groups are few so many more take little time either.
_BLOCKS_A_GROUP = 16
_FEW_BLOCKS = 1024


@helper
def _cover_needs(fixed, rows, bound, limit):
    """How many runs of at most k(G) items cover `rows`; `fixed` sums the smallest u. Counts no further than `limit`."""
    n = len(rows)
    i, runs, k = 0, 0, 0
    while i < n and runs <= limit:
        room = n - i
        while k < room and (k + 1) * rows[i] + fixed[k + 1] <= bound:
            k += 1
        if k == 0:
            return limit + 1
        runs += 1
        i += min(k, room)
    return runs


@kernel
def _smallest_cover(fixed, rows, num_groups, low, high):
    """The smallest bound above `low` that `num_groups` runs can keep, 0 if they can keep `low`; `high` they can."""
    if _cover_needs(fixed, rows, low, num_groups) <= num_groups:
        return np.int64(0)
    low += 1
    while low < high:
        middle = low + (high - low) // 2
        if _cover_needs(fixed, rows, middle, num_groups) <= num_groups:
            high = middle
        else:
            low = middle + 1
    return low


def _grain(sorted_costs: NDArray[np.int64], num_groups: int) -> int:
    """How finely a bound is worth knowing. It goes by the problem alone, never by a budget."""
    return max(1, (int(sorted_costs.sum()) // num_groups) >> _PRECISION_BITS)


def cover_bound(costs: NDArray[np.int64], rows: NDArray[np.int64], num_groups: int, low: int, high: int) -> Bound:
    """Return the bound ``cover``, within `low` (proven otherwise) and `high` (a makespan).

    `costs` (u) and `rows` (g) descend together and count * largest row + sum of costs fits int64. O(n) a step.
    """
    fixed = np.zeros(len(costs) + 1, dtype=np.int64)
    np.cumsum(costs[::-1], out=fixed[1:])
    return Bound(_smallest_cover(fixed, rows, num_groups, low, high), "cover")


class Blocks(NamedTuple):
    """Items in the sorted order, cut into blocks; nothing of it is written."""

    first: NDArray[np.int64]  # int64[b + 1]: block b holds the items first[b] .. first[b + 1] - 1,
    rows: NDArray[np.int64]  # int64[b]: each padded to no less than this
    sums: NDArray[np.int64]  # int64[b + 1]: costs of all items before a block


class Envelope(NamedTuple):
    """The lowest of some lines at ascending x; all of it is written."""

    lines: NDArray[np.int64]  # int64[b + 1]: the block at which a line's run begins
    since: NDArray[np.int64]  # int64[b + 1]: the least x at which it is the lowest
    intercepts: NDArray[np.int64]  # int64[b + 1]


@helper
def _add_line(blocks, envelope, size, y, intercept):
    """Add the line of runs that begin at block y, whose slope is the least so far; return how many lines there are.

    Lines above it from where they begin are never the lowest again, and go: O(1) for each line, over all.
    """
    lines, since, intercepts, rows = envelope.lines, envelope.since, envelope.intercepts, blocks.rows
    end = blocks.first[len(rows)]
    begins = np.int64(0)  # the smallest x at which this line is the lowest
    while size > 0:
        ahead = intercept - intercepts[size - 1]
        slopes = rows[lines[size - 1]] - rows[y]
        if slopes == 0:
            begins = since[size - 1] if ahead < 0 else end + 1
        else:
            begins = (ahead + slopes - 1) // slopes if ahead > 0 else 0
        if begins > since[size - 1]:
            break
        size -= 1
    if size == 0:
        begins = 0
    if begins <= end:
        lines[size], since[size], intercepts[size] = y, begins, intercept
        size += 1
    return size


@helper
def _prefix_holds(blocks, bound, num_groups, weights, envelope):
    """Whether runs of blocks exist whose weight is at most j * bound after every j-th. O(blocks * m).

    weights[b] is the least padding of what stands before block b, in j runs. A run that begins at block y adds (x -
    first[y]) rows[y]: lines in x whose slopes fall with y, so the least of them at ascending x is found by walking
    their envelope.
    """
    first, rows, num_blocks = blocks.first, blocks.rows, len(blocks.rows)
    weights[0] = 0
    reach = 0  # j runs can end anywhere up to here, and nowhere further
    allowed = np.int64(0)
    for _ in range(num_groups):
        allowed = INT64_MAX if allowed > INT64_MAX - bound else allowed + bound
        size = 0
        for y in range(min(reach, num_blocks - 1) + 1):
            size = _add_line(blocks, envelope, size, y, weights[y] - first[y] * rows[y])
        at = 0
        for b in range(num_blocks + 1):
            while at + 1 < size and envelope.since[at + 1] <= first[b]:
                at += 1
            padding = envelope.intercepts[at] + first[b] * rows[envelope.lines[at]]
            # Both rise with b, so that no later block can end these runs either.
            if padding + blocks.sums[b] > allowed:
                break
            weights[b] = padding
            reach = b
        if reach == num_blocks:
            return True
    return False


@kernel
def _smallest_prefix(blocks, num_groups, low, high, grain):
    """The smallest number of grains above `low` that is not refuted, `high` at most. O(blocks * m) a step."""
    size = len(blocks.sums)
    weights = np.empty(size, dtype=np.int64)
    envelope = Envelope(
        np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
    )  # fmt: skip
    while low < high:  # in steps of `grain`, so that finer blocks never give a smaller bound
        middle = low + (high - low) // 2
        if _prefix_holds(blocks, middle * grain, num_groups, weights, envelope):
            high = middle
        else:
            low = middle + 1
    return low


def _blocks(sorted_costs: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Where to cut the items into at most about `most` blocks of like weight; a smaller `most` leaves cuts out."""
    sums = np.cumsum(sorted_costs)
    shift = 0
    while int(sums[-1]) >> shift > most:
        shift += 1
    cuts = np.flatnonzero(np.diff(sums >> shift)) + 1
    return np.concatenate(([0], cuts, [len(sums)])).astype(np.int64)


def prefix_blocks(num_items: int, num_groups: int, work: int) -> int:
    """How many blocks :func:`prefix_bound` may have if it is to take no more than `work` units."""
    return min(num_items, _BLOCKS_A_GROUP * num_groups + _FEW_BLOCKS, work // (_WORK_OF_BLOCK * num_groups))


def prefix_bound(
    costs: NDArray[np.int64], rows: NDArray[np.int64], num_groups: int, low: int, high: int, num_blocks: int
) -> Bound:
    """Return the bound ``prefix``, within `low` (proven otherwise) and `high` (a makespan).

    `costs` (u) and `rows` (g) descend together. Items are taken together in about `num_blocks` blocks, each item's row
    at its block's shortest: more blocks, a bound as good or better. O(blocks * m) a step; the steps end at a millionth.
    """
    both = costs + rows
    grain = _grain(both, num_groups)
    first = _blocks(both, num_blocks)
    sums = np.concatenate(([0], np.cumsum(costs)))[first]
    blocks = Blocks(first, rows[first[1:] - 1], sums)
    steps = _smallest_prefix(blocks, num_groups, low // grain, -(-high // grain), grain)
    return Bound((int(steps) - 1) * grain + 1, "prefix")  # one step below is refuted


def quota_bound(costs: NDArray[np.int64], rows: NDArray[np.int64], num_groups: int) -> tuple[Bound, Bound]:
    """Return the bounds ``row_filler`` and ``even_runs``, for equal counts. `costs` and `rows` descend together."""
    few, longer = divmod(len(costs), num_groups)
    company = max(few, 1) - 1
    filler = max(few, 1) * int(rows[0]) + int(costs[0]) + int(costs[len(costs) - company :].sum())
    groups = np.arange(num_groups)
    first = groups * few + np.minimum(groups, longer)  # no group's longest row stands further down
    longest = rows[first[first < len(rows)]]
    padded = few * int(longest.sum()) + int(longest[num_groups - longer :].sum() if longer else 0)
    return Bound(filler, "row_filler"), Bound(-(-(int(costs.sum()) + padded) // num_groups), "even_runs")
