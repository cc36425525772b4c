"""Lower bounds for mixed costs, where a group S costs sum(u in S) + |S| * max(g in S).

Every item costs at least u + g wherever it is, so what holds for additive costs u + g holds here. One bound more for
free counts and one for equal counts, both by bisection: a makespan is refuted where a relaxation of "all loads are at
most that" has no solution. Let s_1 < s_2 < ... be where, in the sorted order, the longest items of the groups stand,
so s_1 = 0. The items before s_(j+1) all lie in the first j groups, which weigh at most j times the makespan.

``prefix``: an item's row costs at least that of the last s at or before it. So the sorted items, cut at s_1, s_2, ...
into runs that are each padded to their first item, must weigh at most j times the makespan up to every s_(j+1), and at
most m times in all. Which cuts weigh least is a shortest path with j edges.

``quota``, with equal counts: a group holds floor(n/m) items, or one more, each padded to its longest. So the first j
groups weigh at least that padding, what the items before s_(j+1) cost, and the shortest items in the places that these
leave. How far s_(j+1) can be at most is found by looking there, and the further it is, the less rows and items weigh
from there on.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from solvers._jit import kernel
from solvers.arguments import INT64_MAX
from solvers.bounds import Bound

# The prefix bound is known to about a ten-thousandth of the mean load.
_PRECISION_BITS = 13
# Its blocks, and blocks times groups, which is the time of a step: 1,024 on 64 groups. With more groups blocks are
# coarse, and with so many that there would not be two of them a group, it proves hardly more than the mean does.
_MOST_BLOCKS = 1024
_MOST_CELLS = 1 << 16


@kernel
def _quota_holds(rows, longest_sums, shortest_sums, num_groups, makespan):
    """Whether ``quota`` does not refute `makespan`, for more items than groups. O(m log n).

    `longest_sums` and `shortest_sums` are the costs of the k longest and the k shortest items: int64[n + 1].
    """
    n = len(rows)
    few, more = n // num_groups, n % num_groups
    before, held, most = 0, 0, 0
    room = np.int64(0)
    for j in range(num_groups):
        # Of all groups so far, at least those past the first m - more hold one item more, padded to the shortest rows.
        least = few + (1 if j >= num_groups - more else 0)
        held += least
        most += few + (1 if j < more else 0)
        room += makespan - least * rows[before]
        low, high = before + 1, most
        while low <= high:
            middle = (low + high) // 2
            if longest_sums[middle] + shortest_sums[max(0, held - middle)] <= room:
                low = middle + 1
            else:
                high = middle - 1
        if high == before:
            return False
        before = high
    return before == n


@kernel(turns=200)
def _prefix_holds(first, rows, sums, num_groups, makespan):
    """Whether `makespan` is not refuted by ``prefix``, with items cut between blocks only. O(blocks * m).

    Block b holds items first[b] .. first[b + 1] - 1, padded to rows[b] at least; sums[b] are the costs before it. A run
    that begins there adds (x - first[b]) rows[b] up to item x: lines whose slopes fall with b, and the lowest of them
    at ascending x is the first of a queue.
    """
    num_blocks = len(rows)
    end = first[num_blocks]
    padding = np.zeros(num_blocks + 1, np.int64)  # the least of the items before a block, in the runs so far
    block, since, start = np.empty(num_blocks, np.int64), np.empty(num_blocks, np.int64), np.empty(num_blocks, np.int64)
    reach = 0  # the runs so far can end anywhere up to here, and nowhere further
    for j in range(1, num_groups + 1):
        head, size, last = 0, 0, min(reach, num_blocks - 1)
        for b in range(num_blocks + 1):
            if b <= last:
                intercept, begins = padding[b] - first[b] * rows[b], first[b]
                # Lines that this one is below as soon as they are the lowest never are, and leave the queue.
                while size > head:
                    ahead, falls = intercept - start[size - 1], rows[block[size - 1]] - rows[b]
                    begins = since[size - 1] if ahead < 0 else end + 1
                    if falls > 0:
                        begins = -(-ahead // falls)
                    if begins > since[size - 1]:
                        break
                    size -= 1
                if begins <= end:
                    block[size], since[size], start[size] = b, begins, intercept
                    size += 1
            while head + 1 < size and since[head + 1] <= first[b]:
                head += 1
            least = start[head] + first[b] * rows[block[head]]
            # Both rise with b, so that no later block can end these runs either.
            if least + sums[b] > j * makespan:
                break
            padding[b], reach = least, b
        if reach == num_blocks:
            return True
    return False


def _least_kept(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the least number from `low` to `high` that `holds`, as does `high`."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _sums(costs: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum(costs)))


def _quota(costs: NDArray[np.int64], rows: NDArray[np.int64], num_groups: int, low: int, makespan: int) -> Bound:
    longest, shortest = _sums(costs), _sums(costs[::-1])
    return Bound(
        _least_kept(lambda load: _quota_holds(rows, longest, shortest, num_groups, load), low, makespan), "quota"
    )


def _prefix(costs: NDArray[np.int64], rows: NDArray[np.int64], num_groups: int, low: int, makespan: int) -> Bound:
    sums = _sums(costs + rows)
    # Blocks of like weight: an item's row is taken as its block's shortest.
    width = sums[-1] // min(_MOST_BLOCKS, _MOST_CELLS // num_groups) + 1
    first = np.concatenate(([0], np.flatnonzero(np.diff(sums[:-1] // width)) + 1, [len(costs)]))
    shortest, own = rows[first[1:] - 1], _sums(costs)[first]
    # In steps of a unit, which goes by the problem alone: so does the bound. One unit below what holds is refuted.
    unit = max(1, int(sums[-1]) // num_groups >> _PRECISION_BITS)
    steps = _least_kept(
        lambda units: _prefix_holds(first, shortest, own, num_groups, units * unit), low // unit, -(-makespan // unit)
    )
    return Bound((steps - 1) * unit + 1, "prefix")


def tighter_bound(
    costs: NDArray[np.int64], rows: NDArray[np.int64], num_groups: int, equal_counts: bool, plain: Bound, makespan: int
) -> Bound:
    """Return the best bound on the optimum: `plain`, which holds for u + g, or a better one; `makespan` is reached.

    `costs` (u) and `rows` (g) descend together, and count * largest row + sum of costs fits int64.
    """
    # Sums over groups, and lines of rows, must fit int64 as well.
    fits = num_groups * makespan + len(rows) * int(rows[0] if len(rows) else 0) <= INT64_MAX // 4
    if makespan <= plain.value or not fits:
        return plain
    if equal_counts:
        found = _quota(costs, rows, num_groups, plain.value, makespan)
    elif 2 * num_groups <= min(len(rows), _MOST_CELLS // num_groups):
        found = _prefix(costs, rows, num_groups, plain.value, makespan)
    else:
        return plain
    return max(plain, found, key=lambda bound: bound.value)
