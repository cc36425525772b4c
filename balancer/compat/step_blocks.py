"""Blocks of ``window + 1`` steps: which positions of an epoch's order each step has.

A step of so many samples is a piece of its block, which is sorted by cost, cut, and runs in random order. Steps of free
size, with ``batch_size=None``, take what their micro-batches hold: :mod:`balancer.compat.free_steps`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balancer.compat import step_grid
from balancer.compat.epoch_order import DrawnOrder
from balancer.compat.rank_batches import Place
from balancer.compat.row_limits import exchanged, why_not
from balancer.compat.step_grid import Grid, StepPlanner
from balancer.problem.shuffle import shuffled
from solvers.arguments import as_share
from solvers.errors import ArgumentError, SolverError, UsageError
from solvers.partitioning import partition

__all__ = ["Block", "CountedSteps", "filled_up", "in_turn", "unfit"]

Ints = NDArray[np.int64]
Planned = tuple[list[Ints], list[Grid] | None]


@dataclass
class Block:
    """Steps that are planned together.

    Attributes
    ----------
    behind : Place
        Where the next block begins.
    positions : int64[n]
        Of the order: what it plans, each once.
    drawn : list of int64[]
        Positions of its steps as they were drawn.
    plan : function
        Returns the positions of each step, and their micro-batches, if steps are not planned one by one.
    """

    behind: Place
    positions: Ints
    drawn: list[Ints]
    order: DrawnOrder
    planner: StepPlanner
    plan: Callable[[], Planned]

    @property
    def count(self) -> int:
        """How many steps it has; nothing is planned for that."""
        return len(self.drawn)

    @cached_property
    def _planned(self) -> Planned:
        return self.plan()

    @property
    def steps(self) -> list[Ints]:
        """The positions of each step."""
        return self._planned[0]

    def grid(self, step: int) -> Grid:
        """Return the micro-batches of a step, as rows."""
        steps, grids = self._planned
        return self.planner.plan(self.order.rows(steps[step])) if grids is None else grids[step]


def in_turn(count: int, drawn: Ints, seed: int, order: DrawnOrder) -> Ints:
    """Return a random order of things of a block, whose random numbers are its own: else lengths would drift."""
    return shuffled(np.arange(count), count, seed ^ (int(drawn[0]) + 1), order.epoch)


COUNTED = ("give a higher limit, more {gradient_accumulation_steps} or a wider {window}",
           "or {batch_size=None}, for steps of as many samples as fit")  # fmt: skip
"""What helps where steps of so many samples do not fit."""


def unfit(
    planner: StepPlanner, number: int, epoch: int, rows: Ints, why: SolverError, remedies: Sequence[str] = COUNTED
) -> UsageError:
    """Return an error that names the step, the limit and what can be done."""
    limits = planner.limits
    over = None if limits is None else why_not(limits.of_samples(rows), planner.num_ranks, planner.micro_steps)
    return UsageError(
        "step {number} of epoch {epoch}: its {count} samples do not fit {batches} micro-batches: {why}",
        remedies, number=number, epoch=epoch, count=len(rows), batches=planner.batches, why=over or why,
    )  # fmt: skip


def filled_up(planner: StepPlanner, rest: Ints, order: DrawnOrder) -> Ints:
    """Fill up the last step with the epoch's first rows: micro-batches are of one size, or of any, but none is empty.

    Of those that all ranks are to have, there are then as many for each.
    """
    if planner.limits is None and planner.speeds is None:
        return np.append(rest, np.arange(-len(rest) % planner.batches) % order.total)
    first = np.arange(order.total)
    if planner.limits is not None and planner.limits.everywhere is not None:
        flags = planner.limits.everywhere[order.rows(first)]
        there = np.count_nonzero(flags[rest])
        # Of rows that are one a micro-batch, whole micro-steps; of more, one for each rank will do.
        if there < planner.num_ranks or len(rest) <= planner.batches:
            rest = np.append(rest, np.setdiff1d(np.flatnonzero(flags), rest)[: -there % planner.num_ranks])
        first = first if flags.all() else first[~flags]
    return np.append(rest, np.resize(first, max(0, planner.batches - len(rest))))


class CountedSteps:
    """Steps of so many samples each.

    Parameters
    ----------
    planner : StepPlanner
    size : int
        Samples of a step.
    window : int
    within : float, str or None
        How far the tokens of a step may be from the mean of its block.
    drop_last : bool
        Leave out what makes no whole step.
    """

    def __init__(
        self, planner: StepPlanner, size: int, window: int, within: float | str | None, seed: int, drop_last: bool
    ) -> None:
        self.planner, self.size, self.window, self.costs = planner, size, window, planner.costs
        self._seed, self._drop = seed, drop_last
        self._within = None if within is None else as_share("step_tokens_within", within)
        if self._within is not None and self._within > 1:
            raise ArgumentError("step_tokens_within", "be a share such as '20%', at most 1", repr(within))
        if self._within is not None and not window:
            raise UsageError("{step_tokens_within} needs {window} >= 1: else steps keep the samples drawn for them")

    @property
    def words(self) -> dict[str, Any]:
        """What was asked of it alone, as JSON."""
        return {"step_tokens_within": None if self._within is None else str(self._within), "step_tokens": None}

    def block(self, at: Place, order: DrawnOrder, number: int) -> Block | None:
        """Return the block that begins at a place, None behind the last; it has step `number` of the epoch first."""
        size = self.size * (self.window + 1)
        end = min(order.total, at.samples + max(0, size - len(at.carried)))
        block = np.concatenate([at.carried[:size], np.arange(at.samples, end)])
        # Those that are left out at the end may be a step of others who go on from there.
        block, out = np.split(block, [len(block) - (len(block) % self.size if self._drop else 0)])
        if not len(block):
            return None
        behind = Place(at.epoch, end, np.concatenate([out, at.carried[size:]]))
        drawn = np.split(block, range(self.size, len(block), self.size))
        whole = [step for step in drawn if len(step) == self.size]
        last = [filled_up(self.planner, step, order) for step in drawn[len(whole) :]]

        def plan() -> Planned:
            ways = ([*way, *(self._by_cost(step, order) for step in last)] for way in self._ways(whole, order))
            return (next(ways), None) if self.planner.limits is None else self._that_fits(ways, order, number)

        return Block(behind, block, [*whole, *last], order, self.planner, plan)

    def _ways(self, drawn: Sequence[Ints], order: DrawnOrder) -> Iterator[list[Ints]]:
        """Yield ways to make steps of what was drawn, the best first; within a step by cost."""
        if not drawn:
            yield []
            return
        count, by_cost = len(drawn), self._by_cost(np.concatenate(drawn), order)
        # What ranks wait for, a step or a micro-step, is of like cost.
        pieces = count * (1 if self.planner.sync == "step" else self.planner.micro_steps)
        steps = by_cost.reshape(pieces, -1)[in_turn(pieces, drawn[0], self._seed, order)].reshape(count, -1)
        if self._keeps_tokens(steps, order):
            yield list(steps)
        if count > 1:
            # Steps of like tokens: rows of like cost, one a rank, stay together, and are dealt to steps evenly.
            of_step = self.planner.sync == "step" and self.costs.additive
            like = self.planner.num_ranks if of_step else self.size // self.planner.micro_steps
            alike = by_cost.reshape(-1, like)
            tokens = self.costs.lengths[order.rows(by_cost)].reshape(alike.shape).sum(axis=1)
            members = _dealt(tokens, count).reshape(count, -1)[in_turn(count, drawn[0], self._seed, order)]
            steps = alike[members].reshape(count, -1)
            if self._keeps_tokens(steps, order):
                yield list(steps)
        yield [self._by_cost(step, order) for step in drawn]

    def _keeps_tokens(self, steps: Ints, order: DrawnOrder) -> bool:
        """Whether no step has tokens further from their mean than was asked for."""
        if self._within is None:
            return True
        tokens = self.costs.lengths[order.rows(steps.ravel())].reshape(steps.shape).sum(axis=1).tolist()
        total, count = sum(tokens), len(tokens)
        return all(abs(each * count - total) <= self._within * total for each in tokens)

    def _by_cost(self, positions: Ints, order: DrawnOrder) -> Ints:
        return positions[self.costs.heaviest_first(order.rows(positions))]

    def _that_fits(self, ways: Iterator[list[Ints]], order: DrawnOrder, number: int) -> Planned:
        """Return the first way whose steps all fit their limits."""
        error: Exception = AssertionError("there is the way that was drawn")
        for way in ways:
            steps, grids = self._gathered(way, order), []
            for each in steps:
                try:
                    grids.append(self.planner.plan(order.rows(each)))
                except SolverError as why:
                    error = unfit(self.planner, number + len(grids), order.epoch, order.rows(each), why)
                    break
            else:
                return steps, grids
        raise error

    def _gathered(self, steps: list[Ints], order: DrawnOrder) -> list[Ints]:
        """Exchange positions between steps, until each has enough of those that all ranks are to have, or none."""
        flags = self.planner.limits.everywhere  # type: ignore[union-attr]
        if flags is None:
            return steps
        positions, sizes = np.concatenate(steps), [len(step) for step in steps]
        # With a row in each micro-batch, a micro-step is either of these alone or has none.
        parts = self.planner.micro_steps if self.size == self.planner.batches else 1
        unit = np.concatenate([
            number * parts + step_grid.pieces(size, parts if size == self.size else 1)
            for number, size in enumerate(sizes)
        ])  # fmt: skip
        rows = order.rows(positions)
        unit = exchanged(unit, flags[rows], self.costs.summed(rows), self.planner.num_ranks)
        return np.split(positions[np.argsort(unit, kind="stable")], np.cumsum(sizes)[:-1])


def _dealt(costs: Ints, groups: int) -> Ints:
    """Return things group by group, as many for each, and each group's in the given order, so that groups are even."""
    found = partition(costs, groups, equal_counts=True, time_budget=step_grid.BUDGET, stop_at=step_grid.STOP_AT)
    return np.argsort(found.group_of_item, kind="stable")
