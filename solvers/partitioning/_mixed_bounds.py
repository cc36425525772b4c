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

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers.arguments import INT64_MAX
from solvers.bounds import Bound

_PRECISION_BITS = 20  # the prefix bound is found to about a millionth of the mean load
_WORK_OF_BLOCK = 10  # a block, in one run, in all steps of the bisection (measured)
_BLOCKS_A_GROUP = 16  # more gain little,
_FEW_BLOCKS = 1024  # and take little where groups are few


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


@helper
def _prefix_holds(first, sums, rows, bound, num_groups, weights, lines, since, intercepts):
    """Whether runs of blocks exist whose weight is at most j * bound after every j-th.

    Block b holds the items ``first[b] .. first[b + 1] - 1``, each padded to no less than ``rows[b]``. weights[b] is the
    least padding of what stands before block b, in j runs. A run that begins at block y adds (x - first[y]) rows[y]:
    lines in x whose slopes fall with y, so the least of them at ascending x is found by walking their envelope.
    """
    blocks = len(rows)
    total = first[blocks]
    weights[0] = 0
    reach = 0  # j runs can end anywhere up to here, and nowhere further
    allowed = np.int64(0)
    for _ in range(num_groups):
        allowed = INT64_MAX if allowed > INT64_MAX - bound else allowed + bound
        top = 0
        for y in range(min(reach, blocks - 1) + 1):
            intercept = weights[y] - first[y] * rows[y]
            begins = np.int64(0)  # the smallest x at which this line is the lowest
            while top > 0:
                ahead = intercept - intercepts[top - 1]
                slopes = rows[lines[top - 1]] - rows[y]
                if slopes == 0:
                    begins = since[top - 1] if ahead < 0 else total + 1
                else:
                    begins = (ahead + slopes - 1) // slopes if ahead > 0 else 0
                if begins > since[top - 1]:
                    break
                top -= 1
            if top == 0:
                begins = 0
            if begins <= total:
                lines[top], since[top], intercepts[top] = y, begins, intercept
                top += 1
        at = 0
        for b in range(blocks + 1):
            while at + 1 < top and since[at + 1] <= first[b]:
                at += 1
            padding = intercepts[at] + first[b] * rows[lines[at]]
            if padding + sums[b] > allowed:
                break
            weights[b] = padding
            reach = b
        if reach == blocks:
            return True
    return False


@kernel
def _smallest_prefix(first, sums, rows, num_groups, low, high, grain):
    blocks = len(rows)
    weights = np.empty(blocks + 1, dtype=np.int64)
    lines = np.empty(blocks + 1, dtype=np.int64)
    since = np.empty(blocks + 1, dtype=np.int64)
    intercepts = np.empty(blocks + 1, dtype=np.int64)
    while low < high:  # in steps of `grain`, so that finer blocks never give a smaller bound
        middle = low + (high - low) // 2
        if _prefix_holds(first, sums, rows, middle * grain, num_groups, weights, lines, since, intercepts):
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
    steps = _smallest_prefix(first, sums, rows[first[1:] - 1], num_groups, low // grain, -(-high // grain), grain)
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
