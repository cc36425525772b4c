"""Local search for the smallest largest send: swap two groups so that the rank that sends most sends less."""

import numpy as np
from numpy.typing import NDArray

from solvers._jit import helper, kernel
from solvers._loops import largest_of
from solvers.rearrangement._problem import RearrangementProblem


@kernel
def _transpose(offsets, ranks, amounts, column_starts, groups, column_amounts):
    """The entries by rank; within a rank, groups ascending."""
    for r in ranks:
        column_starts[r + 1] += 1
    for r in range(1, len(column_starts)):
        column_starts[r] += column_starts[r - 1]
    filled = column_starts[:-1].copy()
    for g in range(len(offsets) - 1):
        for e in range(offsets[g], offsets[g + 1]):
            r = ranks[e]
            groups[filled[r]] = g
            column_amounts[filled[r]] = amounts[e]
            filled[r] += 1


@helper
def _move(g, source, target, rows, unit_of_rank, weights, change):
    """Add to `change` what each rank sends more if group g goes from rank `source` to rank `target`."""
    offsets, ranks, amounts = rows
    for e in range(offsets[g], offsets[g + 1]):
        r = ranks[e]
        for level in range(len(unit_of_rank)):
            u = unit_of_rank[level, r]
            if u == unit_of_rank[level, source]:
                if u != unit_of_rank[level, target]:
                    change[r] += weights[level] * amounts[e]
            elif u == unit_of_rank[level, target]:
                change[r] -= weights[level] * amounts[e]


@helper
def _largest_after(g, rows, sends, change):
    """The largest of the sends that moving group g changes, and the sum of the changes; forgets them."""
    offsets, ranks, _ = rows
    largest, total = np.int64(0), np.int64(0)
    for e in range(offsets[g], offsets[g + 1]):
        r = ranks[e]
        if change[r] != 0:
            largest = max(largest, sends[r] + change[r])
            total += change[r]
            change[r] = 0
    return largest, total


@helper
def _best_swap(
    top,
    rank_of_group,
    group_of_rank,
    rows,
    columns,
    unit_of_rank,
    weights,
    class_of_rank,
    peers,
    sends,
    change,
    amount_of_group,
):
    """The swap after which the ranks it touches send least at most: (outsider, insider, work); -1 if none helps.

    `peers` are ranks of the node of rank `top`. An outsider, of which `top` holds more, comes to one of them.
    """
    column_starts, groups, column_amounts = columns
    offsets = rows[0]
    for k in range(column_starts[top], column_starts[top + 1]):
        amount_of_group[groups[k]] = column_amounts[k]
    outsider, insider, work = -1, -1, np.int64(0)
    least, least_sum = sends[top], np.int64(0)
    for k in range(column_starts[top], column_starts[top + 1]):
        h = groups[k]
        target = rank_of_group[h]
        if unit_of_rank[0, target] == unit_of_rank[0, top]:
            continue
        for source in peers:
            g = group_of_rank[source]
            work += 4
            if amount_of_group[g] >= amount_of_group[h] or class_of_rank[source] != class_of_rank[target]:
                continue
            _move(h, target, source, rows, unit_of_rank, weights, change)
            _move(g, source, target, rows, unit_of_rank, weights, change)
            first, first_sum = _largest_after(h, rows, sends, change)
            second, second_sum = _largest_after(g, rows, sends, change)
            largest = max(first, second)
            work += 3 * len(unit_of_rank) * (offsets[h + 1] - offsets[h] + offsets[g + 1] - offsets[g]) // 2
            if largest < least or (largest == least and outsider >= 0 and first_sum + second_sum < least_sum):
                least, least_sum = largest, first_sum + second_sum
                outsider, insider = h, g
    for k in range(column_starts[top], column_starts[top + 1]):
        amount_of_group[groups[k]] = 0
    return outsider, insider, work


@helper
def _unlike(ranks, group_of_rank, offsets, class_of_rank, seen, turn):
    """Those of `ranks` whose groups differ: of groups that hold nothing, the first of each class stands for all."""
    unlike = np.empty(len(ranks), dtype=ranks.dtype)
    count = 0
    for r in ranks:
        g, kind = group_of_rank[r], class_of_rank[r]
        holds_nothing = offsets[g] == offsets[g + 1]
        if holds_nothing and seen[kind] == turn:
            continue
        if holds_nothing:
            seen[kind] = turn
        unlike[count] = r
        count += 1
    return unlike[:count]


@kernel
def _swap_while_it_helps(
    rank_of_group, rows, columns, unit_of_rank, weights, class_of_rank, node_starts, node_ranks, busy, sends, goal, work
):  # fmt: skip
    m = len(rank_of_group)
    group_of_rank = np.empty(m, dtype=np.int32)
    for g in range(m):
        group_of_rank[rank_of_group[g]] = g
    amount_of_group, change = np.zeros(m, dtype=np.int64), np.zeros(m, dtype=np.int64)
    seen, turn = np.full(largest_of(class_of_rank) + 1, -1, dtype=np.int64), 0
    while work >= 0 and len(busy) > 0:
        top = busy[0]
        for r in busy:
            if sends[r] > sends[top]:
                top = r
        if sends[top] <= goal:
            break
        node = unit_of_rank[0, top]
        peers = node_ranks[node_starts[node] : node_starts[node + 1]]
        unlike = _unlike(peers, group_of_rank, rows[0], class_of_rank, seen, turn)
        turn += 1
        h, g, spent = _best_swap(
            top, rank_of_group, group_of_rank, rows, columns, unit_of_rank, weights, class_of_rank, unlike, sends,
            change, amount_of_group,
        )  # fmt: skip
        work -= len(busy) + len(peers) - len(unlike) + spent
        if h < 0:
            break
        source, target = rank_of_group[g], rank_of_group[h]
        _move(h, target, source, rows, unit_of_rank, weights, sends)
        _move(g, source, target, rows, unit_of_rank, weights, sends)
        rank_of_group[h], rank_of_group[g] = source, target
        group_of_rank[source], group_of_rank[target] = h, g
    return work


class SwapSearch:
    """What the search needs of a problem, made once for many starts."""

    def __init__(self, problem: RearrangementProblem) -> None:
        self.problem = problem
        self.rows = problem.arrays()
        m, entries = problem.num_ranks, len(problem.volumes.ranks)
        self.columns = (np.zeros(m + 1, dtype=np.int64), np.empty(entries, np.int32), np.empty(entries, np.int64))
        _transpose(*self.rows, *self.columns)
        nodes = problem.unit_of_rank[0]
        self.node_ranks = np.argsort(nodes, kind="stable").astype(np.int32)
        self.node_starts = np.searchsorted(nodes[self.node_ranks], np.arange(int(nodes.max()) + 2))
        self.busy = np.flatnonzero(np.diff(self.columns[0]))  # ranks that hold something: no other ever sends
        self.class_of_rank = np.searchsorted(problem.class_places, problem.place_of_rank, side="right") - 1

    def lower(self, rank_of_group: NDArray[np.int32], goal: int, work: int) -> int:
        """Lower the largest send in place until it is `goal`, stuck, or `work` is spent; returns the work left.

        Every swap leaves all ranks that it touches below what the largest sent before: the largest send falls, or
        fewer ranks send as much. So it ends, and never makes the largest send larger.
        """
        problem = self.problem
        left = _swap_while_it_helps(
            rank_of_group, self.rows, self.columns, problem.unit_of_rank, problem.weights, self.class_of_rank,
            self.node_starts, self.node_ranks, self.busy, problem.sends(rank_of_group), goal, work,
        )  # fmt: skip
        return int(left)

    def entries_of(self, ranks: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return how many groups hold something of each of `ranks`."""
        starts: NDArray[np.int64] = self.columns[0]
        return starts[ranks + 1] - starts[ranks]

    def ranks_of_node(self, node: int) -> NDArray[np.int32]:
        """Ranks of `node`, ascending."""
        return self.node_ranks[self.node_starts[node] : self.node_starts[node + 1]]

    def column(self, rank: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the groups that hold something of `rank`, and how much."""
        starts, groups, amounts = self.columns
        here = slice(int(starts[rank]), int(starts[rank + 1]))
        return groups[here], amounts[here]
