"""A step on ranks and micro-steps: which rows each micro-batch has, so that ranks are even where they wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from balancer.compat.row_costs import RowCosts
from solvers.partitioning import partition

__all__ = ["Grid", "StepPlanner"]

Ints = NDArray[np.int64]

BUDGET, STOP_AT = 0.01, "0.1%"  # seconds' worth of work, and a gap that is small enough: times of steps vary by more


class Grid(NamedTuple):
    """The micro-batches of a step, none empty.

    Attributes
    ----------
    rows : int64[n]
        Micro-step after micro-step, and in each rank after rank.
    counts : int64[micro-steps, ranks]
    """

    rows: Ints
    counts: Ints

    @classmethod
    def of(cls, rows: Ints, batch: NDArray[np.integer], shape: tuple[int, int]) -> Grid:
        """Return rows by their micro-batches, ``micro_step * ranks + rank``; within one in the order given."""
        counts = np.bincount(batch, minlength=shape[0] * shape[1]).reshape(shape)
        return cls(rows[np.argsort(batch, kind="stable")], counts)

    @classmethod
    def cut(cls, rows: Ints, shape: tuple[int, int]) -> Grid:
        """Return rows cut where they lie, as many in each micro-batch, within one."""
        return cls.of(rows, pieces(len(rows), shape[0] * shape[1]), shape)

    @property
    def batch(self) -> NDArray[np.int32]:
        """The micro-batch of each row, int32[n]."""
        return np.repeat(np.arange(self.counts.size, dtype=np.int32), self.counts.ravel())

    @property
    def starts(self) -> Ints:
        """Where each micro-batch begins in `rows`, int64[micro-steps * ranks]."""
        return np.cumsum(self.counts.ravel()) - self.counts.ravel()

    def batches(self, ranks: Sequence[int]) -> list[list[list[int]]]:
        """Return ``[micro-step][of ranks] -> rows``."""
        ends, rows = (self.starts.reshape(self.counts.shape) + self.counts).tolist(), self.rows
        counts = self.counts.tolist()
        return [
            [rows[end[rank] - count[rank] : end[rank]].tolist() for rank in ranks]
            for end, count in zip(ends, counts, strict=True)
        ]


class StepPlanner:
    """Puts the rows of a step into micro-batches, `micro_steps` on each rank.

    `sync` says where ranks wait: in every ``"micro_batch"``, or once a ``"step"``. `speeds`, int64[ranks], are those of
    unlike ranks, which then hold unlike numbers of rows; by default all hold as many.
    """

    def __init__(
        self, costs: RowCosts, num_ranks: int, micro_steps: int, sync: str, speeds: Ints | None = None
    ) -> None:
        self.costs, self.num_ranks, self.micro_steps, self.sync = costs, num_ranks, micro_steps, sync
        self.speeds = None if speeds is None else speeds // np.gcd.reduce(speeds)
        self.unlike_ranks = speeds is not None

    @property
    def shape(self) -> tuple[int, int]:
        """Micro-steps and ranks."""
        return self.micro_steps, self.num_ranks

    def plan(self, rows: Ints) -> Grid:
        """Return the micro-batches of rows, which come from the one that costs most; as many in each, of like ranks."""
        if self.costs.prompts is not None:
            return self.even_ranks(self._sharing_prompts(rows))
        if not self.costs.additive:  # cut where they lie: rows of like length are padded least
            return self.even_ranks(Grid.cut(rows, self.shape))
        if self.sync == "step":
            return self._even_once(rows)
        return self.even_ranks(self._even_each_time(rows))

    def _even_once(self, rows: Ints) -> Grid:
        """Make ranks even over the whole step; a rank's costliest rows come first, to meet those of other ranks."""
        rank = self._on_ranks(self.costs.of(rows), self.micro_steps)
        order = np.argsort(rank, kind="stable")
        counts = np.bincount(rank, minlength=self.num_ranks)
        slot = np.concatenate([pieces(count, self.micro_steps) for count in counts.tolist()])
        return Grid.of(rows[order], slot * self.num_ranks + rank[order], self.shape)

    def _even_each_time(self, rows: Ints) -> Grid:
        """Make ranks even in every micro-step; like sits with like, as the rows lie."""
        slots = np.split(rows, np.flatnonzero(np.diff(pieces(len(rows), self.micro_steps))) + 1)
        batch = [slot * self.num_ranks + self._on_ranks(self.costs.of(each), 1) for slot, each in enumerate(slots)]
        return Grid.of(rows, np.concatenate(batch), self.shape)

    def _on_ranks(self, costs: Ints, least: int) -> Ints:
        """Return the rank of each row, so that ranks are done together; of unlike ranks each has `least` rows."""
        if self.speeds is None:
            found = partition(costs, self.num_ranks, equal_counts=True, time_budget=BUDGET, stop_at=STOP_AT)
        else:
            found = partition(
                costs * self.finer(costs, None), self.num_ranks, speeds=self.speeds, min_items=least,
                time_budget=BUDGET, stop_at=STOP_AT,
            )  # fmt: skip
        return found.group_of_item.astype(np.int64)

    def finer(self, costs: Ints, initial: Ints | None) -> int:
        """Return a factor of costs: times are whole numbers, and in a finer unit they are rounded less."""
        total = int(costs.sum()) + (0 if initial is None else int(initial.sum()))
        return 1 if self.speeds is None else max(1, min(int(self.speeds.max()), 2**60 // max(1, total)))

    def _sharing_prompts(self, rows: Ints) -> Grid:
        """Plan all micro-batches of a step at once, each with its prompts; those of like load meet in a micro-step."""
        costs, (shared, once) = self.costs.of(rows), self.costs.of_prompts(rows)
        found = partition(costs - once, self.micro_steps * self.num_ranks, prefix=shared.keys, prefix_costs=once,
                          equal_counts=True, time_budget=BUDGET)  # fmt: skip
        members = np.lexsort((shared.keys, found.group_of_item)).reshape(len(found.loads), -1)
        return Grid.cut(rows[members[np.argsort(-found.loads, kind="stable")].ravel()], self.shape)

    def loads(self, grid: Grid) -> Ints:
        """Return the load of each micro-batch: int64[micro-steps, ranks], or int64[micro-steps, ranks, phases]."""
        found = self.costs.loads(grid.rows, grid.batch, grid.counts.size)
        return found.reshape(*grid.counts.shape, *found.shape[1:])

    def even_ranks(self, grid: Grid) -> Grid:
        """Choose which rank has which micro-batch of a micro-step: the heaviest goes to the rank with least so far."""
        if self.micro_steps == 1 or self.unlike_ranks:  # what is planned for a fast rank stays on it
            return grid
        loads = self.loads(grid)
        if loads.ndim > 2:
            loads = loads.sum(axis=2)
        rank_of, totals = np.empty(grid.counts.shape, dtype=np.int64), np.zeros(self.num_ranks, dtype=np.int64)
        for slot in np.argsort(-loads.max(axis=1), kind="stable"):
            heaviest, least = np.argsort(-loads[slot], kind="stable"), np.argsort(totals, kind="stable")
            rank_of[slot, heaviest] = least
            totals[least] += loads[slot, heaviest]
        of_batch = rank_of + self.num_ranks * np.arange(self.micro_steps)[:, None]
        return Grid.of(grid.rows, of_batch.ravel()[grid.batch], self.shape)


def pieces(count: int, number: int) -> Ints:
    """Return which of `number` pieces each of `count` things is in, cut where they lie; their sizes differ by one."""
    return ((np.arange(count) + 1) * number - 1) // max(1, count)
