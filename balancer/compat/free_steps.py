"""Steps of free size: each takes as many of the next rows as its micro-batches hold.

Of the rows that come next, so many are looked at as could fit by their sums. Where one sum limits them they are
packed, and those that find no place come first in the next step; else as many as are found to fit are taken.
With a window, all of its steps are taken as one, whose micro-steps are then dealt to steps by their cost.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from balancer.compat.epoch_order import DrawnOrder
from balancer.compat.rank_batches import Place
from balancer.compat.step_blocks import Block, filled_up, in_turn, unfit
from balancer.compat.step_grid import EVEN, Grid, StepPlanner, numbered
from solvers.arguments import as_count
from solvers.errors import SolverError
from solvers.packing.bins import PackingProblem, best_fit_decreasing, count_of

__all__ = ["FreeSteps"]

Ints = NDArray[np.int64]

_FEWER = 0.93  # of as many rows as did not fit, so many are tried next
_CLOSER = 3  # then as many numbers between one that fits and one that does not


class _Taken(NamedTuple):
    """What a step, or a window of steps, has of the next positions."""

    positions: Ints
    rows: Ints  # at these
    batch: Ints  # the micro-batch of each: within limits
    behind: Place


class FreeSteps:
    """Takes steps, or windows of steps, from an order of rows.

    Parameters
    ----------
    planner : StepPlanner
        Of a step, under limits.
    step_tokens : int or None
        The most tokens of a step, of all ranks together; padded ones where the cost is padded.
    window : int
        Steps of so many tokens keep the order in which they were drawn: sorted, some would have more.
    drop_last : bool
        Leave out what are too few rows for all micro-batches of a step.
    """

    def __init__(self, planner: StepPlanner, step_tokens: int | None, window: int, seed: int, drop_last: bool) -> None:
        self.planner, self._seed, self._drop = planner, seed, drop_last
        self.step_tokens = None if step_tokens is None else as_count("step_tokens", step_tokens)
        self.costs = planner.costs
        self._window: StepPlanner | None = None
        if window and step_tokens is None:
            steps = planner.micro_steps * (window + 1)
            # Like ranks are even if in every micro-step like meets like.
            sync = planner.sync if planner.unlike_ranks else "micro_batch"
            self._window = StepPlanner(planner.costs, planner.num_ranks, steps, sync, planner.speeds, planner.limits)

    @property
    def words(self) -> dict[str, Any]:
        """What was asked of it alone, as JSON."""
        return {"step_tokens_within": None, "step_tokens": self.step_tokens}

    def block(self, at: Place, order: DrawnOrder, number: int) -> Block | None:
        """Return the block that begins at a place, None behind the last; it has step `number` of the epoch first.

        Raises
        ------
        UsageError
            Not even as many rows as a step has micro-batches fit; it names the step, and the limit.
        """
        if self._window is not None and (found := self._sorted(self._window, at, order)) is not None:
            return found
        try:
            taken = self._take(self.planner, at, order) or self._last(at, order)
        except SolverError as why:
            rows = order.rows(self._left(at, order))[: self.planner.batches]
            raise unfit(self.planner, number, order.epoch, rows, why, ()) from None
        return None if taken is None else self._block(taken, np.arange(1), np.zeros_like(taken.batch), order)

    def _block(self, taken: _Taken, turn: Ints, step: Ints, order: DrawnOrder) -> Block:
        """Return the block of what was taken, given in which turn its steps come, and the step of each row."""
        members = [np.flatnonzero(step == each) for each in turn]
        steps = [taken.positions[mine] for mine in members]
        grids = [Grid.of(taken.rows[mine], taken.batch[mine], self.planner.shape) for mine in members]
        # As drawn: the same rows, as many in each step.
        drawn = np.split(np.sort(taken.positions), np.cumsum([len(each) for each in steps])[:-1])
        return Block(taken.behind, np.unique(taken.positions), drawn, order, self.planner, lambda: (steps, grids))

    def _left(self, at: Place, order: DrawnOrder) -> Ints:
        return np.concatenate([at.carried, np.arange(at.samples, order.total)])

    def _sorted(self, window: StepPlanner, at: Place, order: DrawnOrder) -> Block | None:
        """Take all steps of a window as one, and deal its micro-steps to them; None where too few rows are left."""
        try:
            taken = self._take(window, at, order)
        except SolverError:
            return None
        if taken is None:
            return None
        slot, rank = np.divmod(taken.batch, self.planner.num_ranks)
        loads = window.loads(taken.rows, taken.batch).reshape(window.micro_steps, -1).max(axis=1)
        step, slot = np.divmod(numbered(-loads)[slot], self.planner.micro_steps)
        batch, count = slot * self.planner.num_ranks + rank, window.micro_steps // self.planner.micro_steps
        for each in range(count):
            mine = step == each
            batch[mine] = self._evener(self.planner, taken.rows[mine], batch[mine])
        turn = in_turn(count, taken.positions, self._seed, order)
        return self._block(taken._replace(batch=batch), turn, step, order)

    def _last(self, at: Place, order: DrawnOrder) -> _Taken | None:
        """Return the last step: what is left, filled up."""
        left = self._left(at, order)
        if self._drop or not len(left):
            return None
        positions = filled_up(self.planner, left, order)
        rows = order.rows(positions)
        return _Taken(positions, rows, self._fitting(self.planner, rows), Place(at.epoch, order.total))

    # The rows of one step; or of a window, as of a step with all of its micro-steps.

    def _take(self, planner: StepPlanner, at: Place, order: DrawnOrder) -> _Taken | None:
        """Return what comes next; None where too few rows for all micro-batches are left.

        Raises
        ------
        SolverError
            Not even as many rows as micro-batches fit.
        """
        if len(at.carried) + order.total - at.samples < planner.batches:
            return None
        positions, rows = self._next(planner, at, order)
        end = at.samples + max(0, len(positions) - len(at.carried))
        if end == order.total and np.count_nonzero(~self._waits(planner, rows)) < planner.batches:
            return None
        batch = self._packed(planner, rows, min(len(at.carried), len(rows)))
        if batch is None:
            batch = self._as_many(planner, rows)
        placed = batch >= 0
        # So much may be carried that it is not even looked at.
        carried = np.sort(np.concatenate([positions[~placed], at.carried[len(positions) :]]))
        return _Taken(positions[placed], rows[placed], batch[placed], Place(at.epoch, end, carried))

    def _next(self, planner: StepPlanner, at: Place, order: DrawnOrder) -> tuple[Ints, Ints]:
        """Return the longest prefix of what is left whose sums fit, and no less than a row a micro-batch."""
        positions, end, more = at.carried, at.samples, max(4 * planner.batches, 2048)
        rows = order.rows(positions)
        while True:
            count = self._fits_by_sums(planner, rows)
            if count < len(rows) or end == order.total:
                return positions[: max(count, planner.batches)], rows[: max(count, planner.batches)]
            further = np.arange(end, min(order.total, end + more))
            positions, end, more = np.concatenate([positions, further]), end + len(further), max(more, len(rows))
            rows = np.concatenate([rows, order.rows(further)])

    def _fits_by_sums(self, planner: StepPlanner, rows: Ints) -> int:
        held, lengths = planner.limits.of_samples(rows), self.costs.lengths[rows]  # type: ignore[union-attr]
        rooms = np.broadcast_to(held.most, (len(held.names), planner.num_ranks)).sum(axis=1) * planner.micro_steps
        sums = list(zip(held.sizes.T, rooms.tolist(), strict=True))
        if held.most_items is not None:
            sums.append((np.ones_like(lengths), held.most_items * planner.batches))
        if held.padded is not None:
            sums.append((lengths, held.padded * planner.batches))
        if self.step_tokens is not None:
            sums.append((lengths, self.step_tokens))
        fits = (int(np.searchsorted(np.cumsum(amounts), room, side="right")) for amounts, room in sums)
        return min(fits, default=len(rows))

    # Which of them find a place: the micro-batch of each row, -1 of those that do not.

    def _packed(self, planner: StepPlanner, rows: Ints, carried: int) -> Ints | None:
        """Pack rows into more micro-batches than there are, and leave those out that are least full.

        None where they need no more, or where limits are not for packing. The `carried` first ones go first.
        """
        held = planner.limits.of_samples(rows)  # type: ignore[union-attr]
        like = held.only_add_up and self.costs.additive and not planner.unlike_ranks
        if not like or len(held.names) != 1 or held.most_items is not None:
            return None
        sizes = np.ascontiguousarray(held.sizes[:, 0])
        groups = best_fit_decreasing(PackingProblem.prepare(sizes, int(held.most[0, 0])))
        count = count_of(groups)
        if count <= planner.batches:
            return None
        first, full = np.full(count, carried), np.bincount(groups, sizes, count)
        np.minimum.at(first, groups[:carried], np.arange(carried))
        chosen = np.lexsort((-full, first))[: planner.batches]
        # Like meets like, if they stay as they are packed.
        number = np.full(count, -1)
        number[chosen] = numbered(-np.bincount(groups, self.costs.summed(rows), count)[chosen])
        batch = number[groups]
        placed = batch >= 0
        batch[placed] = self._evener(planner, rows[placed], batch[placed])
        return batch

    def _evener(self, planner: StepPlanner, rows: Ints, batch: Ints) -> Ints:
        """Return even micro-batches of these rows; where these are even, or none are found, these."""
        batch = planner.even_ranks(rows, batch)
        try:
            return batch if planner.over_even(rows, batch) <= EVEN else planner.assign(rows)
        except SolverError:
            return batch

    def _as_many(self, planner: StepPlanner, rows: Ints) -> Ints:
        """Take as many of the first rows as are found to fit."""
        count = failed = len(rows)
        while True:
            try:
                found = self._fitting(planner, rows[:count])
                break
            except SolverError:
                if count <= planner.batches:
                    raise
                count, failed = max(planner.batches, int(count * _FEWER)), count
        for _ in range(_CLOSER):
            if (middle := (count + failed) // 2) == count:
                break
            try:
                found, count = self._fitting(planner, rows[:middle]), middle
            except SolverError:
                failed = middle
        return np.append(found, np.full(len(rows) - count, -1))

    def _fitting(self, planner: StepPlanner, rows: Ints) -> Ints:
        """Return the micro-batch of each row, -1 of those that wait; raise SolverError where others do not fit."""
        batch, here = np.full(len(rows), -1), ~self._waits(planner, rows)
        batch[here] = planner.assign(rows[here])
        self._check_tokens(planner, rows[here], batch[here])
        return batch

    def _waits(self, planner: StepPlanner, rows: Ints) -> NDArray[np.bool_]:
        """Say which rows wait for more of their like: those that all ranks are to have, while they are too few."""
        flags = planner.limits.everywhere  # type: ignore[union-attr]
        if flags is None or np.count_nonzero(flags[rows]) >= planner.num_ranks:
            return np.zeros(len(rows), dtype=np.bool_)
        return flags[rows]

    def _check_tokens(self, planner: StepPlanner, rows: Ints, batch: Ints) -> None:
        if self.step_tokens is None:
            return
        lengths = self.costs.lengths[rows]
        tokens = int(lengths.sum())
        if not self.costs.additive:
            longest = np.zeros(planner.batches, dtype=np.int64)
            np.maximum.at(longest, batch, lengths)
            tokens = int(longest[batch].sum())
        if tokens > self.step_tokens:
            raise SolverError(
                f"{{step_tokens}} = {self.step_tokens}, and one sample in each of {planner.batches} micro-batches "
                f"makes {tokens}", "give more {step_tokens}, or fewer {gradient_accumulation_steps}",
            )  # fmt: skip
