"""Steps of free size: each takes as many of the next rows as its micro-batches hold.

Of the rows that come next, so many are looked at as could fit by their sums. Where one sum or a count limits them they
are packed, and those that find no place come first in the next step; else as many as are found to fit are taken. With
a window, all of its steps are taken as one, sorted, and cut.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from balancer.compat.limited_step import LimitedStepPlanner
from balancer.compat.rank_batches import Place
from balancer.compat.step_blocks import Block, DrawnOrder, Planned
from balancer.compat.step_grid import Grid
from balancer.problem.shuffle import shuffled
from solvers.errors import SolverError
from solvers.packing.bins import PackingProblem, best_fit_decreasing, count_of

__all__ = ["FreeSteps"]

Ints = NDArray[np.int64]

_FEWER = 0.93  # of as many rows as did not fit, so many are tried next
_CLOSER = 3  # then as many numbers between one that fits and one that does not
_EVEN = 1.001  # what is packed and no more over even is not planned anew


class _Taken(NamedTuple):
    """What a step, or a window of steps, has of the next positions."""

    positions: Ints
    rows: Ints  # at these
    batch: Ints  # the micro-batch of each: within limits
    even: bool  # whether they are planned, and not only packed
    behind: Place


class FreeSteps:
    """Takes steps, or windows of steps, from an order of rows.

    Parameters
    ----------
    planner : LimitedStepPlanner
        Of a step.
    step_tokens : int or None
        The most tokens of a step, of all ranks together; padded ones where the cost is padded.
    window : int
    drop_last : bool
        Leave out what are too few rows for all micro-batches of a step.
    """

    def __init__(
        self, planner: LimitedStepPlanner, step_tokens: int | None, window: int, seed: int, drop_last: bool
    ) -> None:
        self.planner, self._seed, self._drop, self._steps = planner, seed, drop_last, window + 1
        self._one = _Taker(planner, step_tokens)
        self._all = self._one
        if window:
            many = planner.with_micro_steps(self._steps * planner.micro_steps)
            self._all = _Taker(many, None if step_tokens is None else step_tokens * self._steps)

    def block(self, at: Place, order: DrawnOrder, number: int) -> Block | None:
        """Return the block that begins at a place, None behind the last; it has step `number` of the epoch first.

        Raises
        ------
        UsageError
            Not even as many rows as a step has micro-batches fit; it names the step, and the limit.
        """
        if self._steps > 1 and (found := self._window(at, order)) is not None:
            return found
        try:
            taken = self._one.take(at, order)
            if taken is None:
                taken = self._last(at, order)
        except SolverError as why:
            raise self.planner.unfit(number, order.epoch, self._that_do_not_fit(at, order), why) from None
        if taken is None:
            return None
        plan = lambda: ([taken.positions], [self._one.grid(taken)])  # noqa: E731
        return self._block(taken, [taken.positions], order, plan)

    def _that_do_not_fit(self, at: Place, order: DrawnOrder) -> Ints:
        """Return all rows that are left, if they are too few that all ranks are to have; else one a micro-batch."""
        left = order.rows(np.concatenate([at.carried, np.arange(at.samples, order.total)]))
        flags = self.planner.limits.everywhere
        too_few = flags is not None and 0 < int(flags[left].sum()) < self.planner.num_ranks
        return left if too_few else left[: self._one.batches]

    def _block(self, taken: _Taken, drawn: list[Ints], order: DrawnOrder, plan: Callable[[], Planned]) -> Block:
        return Block(taken.behind, np.unique(taken.positions), drawn, order, self.planner, plan)

    def _last(self, at: Place, order: DrawnOrder) -> _Taken | None:
        """Return the last step: what is left, and the epoch's first rows, so that no micro-batch is empty."""
        left = np.concatenate([at.carried, np.arange(at.samples, order.total)])
        if self._drop or not len(left):
            return None
        positions = np.concatenate([left, np.arange(self._one.batches - len(left)) % order.total])
        rows = order.rows(positions)
        return _Taken(positions, rows, self._one.fitting(rows), True, Place(at.epoch, order.total))

    def _window(self, at: Place, order: DrawnOrder) -> Block | None:
        """Take all steps of a window as one, and cut it; None where that finds no steps within the limits."""
        try:
            taken = self._all.take(at, order)
            if taken is None:
                return None
            steps = self._cut(taken)
        except SolverError:
            return None
        turn = shuffled(np.arange(len(steps)), len(steps), self._seed ^ (int(taken.positions[0]) + 1), order.epoch)
        planned = [taken.positions[steps[each][0]] for each in turn], [steps[each][1] for each in turn]
        # As drawn: the same rows, as many in each step.
        drawn = np.split(np.sort(taken.positions), np.cumsum([len(step) for step in planned[0]])[:-1])
        return self._block(taken, drawn, order, lambda: planned)

    def _cut(self, taken: _Taken) -> list[tuple[Ints, Grid]]:
        """Cut a window into steps of samples of like cost; return which of them each has, and its micro-batches."""
        if not taken.even:  # packed, by sums and counts alone: then any other steps within these will do
            by_cost = self.planner.costs.heaviest_first(taken.rows)
            until = np.cumsum(self._one.shares(taken.rows[by_cost]))
            ends = np.searchsorted(until, until[-1] * np.arange(1, self._steps) / self._steps)
            try:
                parts = np.split(by_cost, ends)
                return [(part, self._one.step(taken.rows[part], self._one.fitting(taken.rows[part]))) for part in parts]
            except SolverError:
                pass
        # Whole micro-steps, or, where micro-batches are packed one by one, these; those of like load together.
        apart = self.planner.num_ranks if taken.even else 1
        loads = self.planner.costs.loads(taken.rows, taken.batch.astype(np.int32), self._all.batches)
        turn = np.argsort(-loads.reshape(self._all.batches // apart, -1).max(axis=1), kind="stable")
        number = np.empty(len(turn), dtype=np.int64)
        number[turn] = np.arange(len(turn))
        batch = number[taken.batch // apart] * apart + taken.batch % apart
        steps = []
        for step in range(self._steps):
            part = np.flatnonzero(batch // self._one.batches == step)
            of_step = taken._replace(rows=taken.rows[part], batch=batch[part] - step * self._one.batches, even=False)
            steps.append((part, self._one.grid(of_step)))
            self._one.check_tokens(steps[-1][1].rows, steps[-1][1])
        return steps


class _Taker:
    """Takes the rows of one step; or of a window, as of a step with all of its micro-steps."""

    def __init__(self, planner: LimitedStepPlanner, step_tokens: int | None) -> None:
        self.planner, self.step_tokens = planner, step_tokens
        self.batches = planner.num_ranks * planner.micro_steps
        self._flagged: tuple[int, Ints] | None = None
        limits = planner.limits
        one_at_most = len(limits.names) + (limits.most_items is not None) <= 1
        self._packs = limits.only_add_up and one_at_most and not planner.unlike_ranks and planner.costs.additive

    def take(self, at: Place, order: DrawnOrder) -> _Taken | None:
        """Return the next step; None where too few rows for all its micro-batches are left.

        Raises
        ------
        SolverError
            Not even as many rows as micro-batches fit; or too few are left of those that all ranks are to have.
        """
        if len(at.carried) + order.total - at.samples < self.batches:
            return None
        positions, rows = self._next(at, order)
        end = at.samples + max(0, len(positions) - len(at.carried))
        late = at.carried[len(positions) :]  # so much is carried that it does not fit into one step
        waits = self._waiting(rows, end, order)
        mine, of_mine = positions[~waits], rows[~waits]
        if self._packs:
            batch = self._packed(of_mine, min(len(at.carried), len(mine)))
            placed = batch >= 0
            self.check_tokens(of_mine[placed])
        else:
            batch = self._as_many(of_mine)
            placed = np.arange(len(mine)) < len(batch)
        carried = np.sort(np.concatenate([mine[~placed], positions[waits], late]))
        batch = batch[placed] if self._packs else batch
        return _Taken(mine[placed], of_mine[placed], batch, not self._packs, Place(at.epoch, end, carried))

    def grid(self, taken: _Taken) -> Grid:
        """Return the micro-batches of rows that were taken: even ones, or where none are found as they were packed."""
        if taken.even:
            return self.step(taken.rows, taken.batch)
        packed = self.planner.even_ranks(self.step(taken.rows, taken.batch))
        # Full micro-batches of a cost that the limit is on are even, too.
        if not self.planner.unlike_ranks and self.planner.over_even(packed) <= _EVEN:
            return packed
        try:
            return self.planner.plan(taken.rows)
        except SolverError:
            return packed

    def step(self, rows: Ints, batch: Ints) -> Grid:
        """Return rows by their micro-batches."""
        return Grid.of(rows, batch, self.planner.shape)

    def fitting(self, rows: Ints) -> Ints:
        """Return the micro-batch of each row; raise SolverError where they exceed what a step may hold."""
        batch = self.planner.assign(rows)
        self.check_tokens(rows, self.step(rows, batch))
        return batch

    def check_tokens(self, rows: Ints, grid: Grid | None = None) -> None:
        """Raise SolverError where rows have more than the tokens of a step; of a grid padded ones, if costs are."""
        if self.step_tokens is None:
            return
        tokens = int(self.planner.costs.lengths[rows].sum())
        if grid is not None and not self.planner.costs.additive:
            lengths = self.planner.costs.lengths[grid.rows]
            tokens = int((np.maximum.reduceat(lengths, grid.starts) * grid.counts.ravel()).sum())
        if tokens > self.step_tokens:
            raise SolverError(
                f"{{step_tokens}} = {self.step_tokens}, and one sample in each of {self.batches} micro-batches makes "
                f"{tokens}", "give more {step_tokens}, or fewer {gradient_accumulation_steps}",
            )  # fmt: skip

    # How many rows are looked at.

    def _next(self, at: Place, order: DrawnOrder) -> tuple[Ints, Ints]:
        """Return the longest prefix of what is left whose sums fit a step, and no less than a row a micro-batch."""
        positions, end, more = at.carried, at.samples, max(4 * self.batches, 2048)
        rows = order.rows(positions)
        while True:
            count = self._fits_by_sums(rows)
            if count < len(rows) or end == order.total:
                return positions[: max(count, self.batches)], rows[: max(count, self.batches)]
            further = np.arange(end, min(order.total, end + more))
            positions, end, more = np.concatenate([positions, further]), end + len(further), max(more, len(rows))
            rows = np.concatenate([rows, order.rows(further)])

    def _fits_by_sums(self, rows: Ints) -> int:
        limits, planner = self.planner.limits, self.planner
        lengths, count = planner.costs.lengths[rows], len(rows)
        if limits.most_items is not None:
            count = min(count, limits.most_items * self.batches)
        of_ranks = np.broadcast_to(limits.most, (len(limits.names), planner.num_ranks)).sum(axis=1).tolist()
        rooms = [(limits.sizes[rows, q], most * planner.micro_steps) for q, most in enumerate(of_ranks)]
        if limits.padded is not None:
            rooms.append((lengths, limits.padded * self.batches))
        if self.step_tokens is not None:
            rooms.append((lengths, self.step_tokens))
        for amounts, most in rooms:
            count = min(count, int(np.searchsorted(np.cumsum(amounts), most, side="right")))
        return count

    def _waiting(self, rows: Ints, end: int, order: DrawnOrder) -> NDArray[np.bool_]:
        """Say which rows wait for more of their like: those that all ranks are to have, while they are too few."""
        waits, flags = np.zeros(len(rows), dtype=np.bool_), self.planner.limits.everywhere
        if flags is None:
            return waits
        flagged, ranks = np.flatnonzero(flags[rows]), self.planner.num_ranks
        if self._flagged is None or self._flagged[0] != order.epoch:  # how many of the epoch lie before each position
            self._flagged = order.epoch, np.cumsum(flags[order.rows(np.arange(order.total))])
        later = int(self._flagged[1][-1] - (self._flagged[1][end - 1] if end else 0))
        if later and len(flagged) < ranks:
            waits[flagged] = True
        elif 0 < later < ranks <= len(flagged):  # those that come later would be too few without some of these
            spare = len(flagged) - ranks
            waits[flagged[-(ranks - later) :] if spare >= ranks - later else flagged] = True
        if len(rows) - waits.sum() < self.batches:  # nothing else is there
            waits[:] = False
        return waits

    # Which of them find a place.

    def shares(self, rows: Ints) -> Ints:
        """Return how much of a step each row takes: of its one sum, or of tokens."""
        limits = self.planner.limits
        return np.ascontiguousarray(limits.sizes[rows, 0]) if limits.names else self.planner.costs.lengths[rows]

    def _packed(self, rows: Ints, carried: int) -> Ints:
        """Pack rows; return the micro-batch of each, -1 where none has room. The `carried` first ones go first."""
        limits, share = self.planner.limits, self.shares(rows)
        if not limits.names and limits.most_items is None:
            return np.arange(len(rows)) % self.batches
        cap = int(limits.most[0, 0]) if limits.names else max(1, int(share.sum()))
        packed = best_fit_decreasing(PackingProblem.prepare(share, cap, limits.most_items))
        batch, count = packed.astype(np.int64), count_of(packed)
        if count > self.batches:
            first = np.full(count, carried)
            np.minimum.at(first, batch[:carried], np.arange(carried))
            full = np.zeros(count, dtype=np.int64)
            np.add.at(full, batch, share)
            number = np.full(count, -1)
            number[np.lexsort((-full, first))[: self.batches]] = np.arange(self.batches)
            batch = number[batch]
        return _without_empty(batch, self.batches)

    def _as_many(self, rows: Ints) -> Ints:
        """Return the micro-batches of as many of the first rows as are found to fit."""
        count, failed = len(rows), len(rows) + 1
        while True:
            try:
                found = self.fitting(rows[:count])
                break
            except SolverError:
                if count <= self.batches:
                    raise
                count, failed = max(self.batches, int(count * _FEWER)), count
        for _ in range(_CLOSER if failed <= len(rows) else 0):
            if (middle := (count + failed) // 2) == count:
                break
            try:
                found, count = self.fitting(rows[:middle]), middle
            except SolverError:
                failed = middle
        return found


def _without_empty(batch: Ints, count: int) -> Ints:
    """Give each of `count` micro-batches a row, from those with most; a part of what fits fits."""
    batch, sizes = batch.copy(), np.bincount(batch[batch >= 0], minlength=count)
    for empty in np.flatnonzero(sizes == 0):
        most = int(sizes.argmax())
        batch[np.flatnonzero(batch == most)[-1]] = empty
        sizes[most] -= 1
        sizes[empty] += 1
    return batch
